//! What a store is asked that takes lists of samples, whichever store it is.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// Something to be listed: an object, or a member of one that is an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) object: String,
    pub(super) member: Option<String>,
}

/// A body that comes piece by piece.
pub(super) type Pieces = BoxStream<'static, object_store::Result<Bytes>>;

/// A store that takes lists.
pub(super) trait Lister: Send + Sync {
    /// Sends one request. Its answer is a TAR stream of these, in this order.
    fn ask(&self, entries: Arc<[Entry]>) -> BoxFuture<'static, object_store::Result<Pieces>>;

    /// What may stand before an object's name in the stream.
    fn bucket(&self) -> &str;

    /// Whether names and lengths are proof enough where there are no checksums.
    fn by_name(&self) -> bool;
}
