//! A store's URL, resolved.

use std::sync::Arc;

use object_store::ObjectStore;

use crate::request::failure::Access;

/// A connected store and the keys a URL stands for.
pub(crate) struct Target {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Scheme and host: names the store for people.
    pub(crate) base: String,
    /// The base, and the endpoint that it is reached at: tells stores apart.
    pub(crate) place: String,
    pub(crate) paths: Vec<String>,
    pub(crate) access: Access,
    /// Without a path all of it is meant, whatever folders it has.
    pub(crate) repository: bool,
}
