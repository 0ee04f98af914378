//! Stores that list their objects by an interface of their own and give them as a web server does, by URL and range.
//! Nothing is written.

use std::fmt;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, TryStreamExt, iter, once, try_unfold};
use object_store::client::HttpConnector;
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use object_store::{
    ClientOptions, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as Stored, RetryConfig,
};

use crate::request::pages::Pages;

/// How a store lists its objects.
#[async_trait]
pub(crate) trait Listing: Clone + fmt::Debug + Send + Sync + 'static {
    /// What the store is called where it fails.
    const STORE: &'static str;

    /// A page of the objects below a folder, the first or the one of the token `at`, and the token of the next. An empty
    /// folder stands for the whole store.
    async fn page(&self, folder: &str, at: Option<String>) -> Stored<(Vec<ObjectMeta>, Option<String>)>;

    /// The error of a store that did not do what was asked.
    fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
        object_store::Error::Generic { store: Self::STORE, source: source.into() }
    }
}

/// Such a store.
#[derive(Debug)]
pub(crate) struct Listed<L> {
    files: HttpStore,
    listing: L,
    shown: String,
}

impl<L: Listing> Listed<L> {
    /// Objects lie below `url`; `shown` is what messages call the store. Who reads tries again, not the client.
    ///
    /// # Errors
    /// Those of a URL or options that make no client.
    pub(crate) fn new(
        url: String,
        options: ClientOptions,
        connector: impl HttpConnector,
        listing: L,
        shown: String,
    ) -> Stored<Self> {
        let files = HttpBuilder::new()
            .with_url(url)
            .with_client_options(options)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_http_connector(connector)
            .build()?;
        Ok(Self { files, listing, shown })
    }
}

impl<L> fmt::Display for Listed<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn only_read<L: Listing, T>() -> Stored<T> {
    Err(object_store::Error::NotImplemented { operation: "writing".to_owned(), implementer: L::STORE.to_owned() })
}

#[async_trait]
impl<L: Listing> ObjectStore for Listed<L> {
    async fn get_opts(&self, from: &Path, options: GetOptions) -> Stored<GetResult> {
        self.files.get_opts(from, options).await
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Stored<ObjectMeta>> {
        let folder = prefix.map(|prefix| prefix.as_ref().to_owned()).unwrap_or_default();
        let start = (self.listing.clone(), folder, Pages::default(), None, false);
        try_unfold(start, |(listing, folder, mut pages, at, over)| async move {
            if over {
                return Ok::<_, object_store::Error>(None);
            }
            let (found, next) = listing.page(&folder, at).await?;
            pages.turn(next.as_deref(), found.is_empty()).map_err(L::failed)?;
            let over = next.is_none();
            Ok(Some((iter(found.into_iter().map(Ok)), (listing, folder, pages, next, over))))
        })
        .try_flatten()
        .boxed()
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Stored<ListResult> {
        let objects = self.list(prefix).try_collect().await?;
        Ok(ListResult { common_prefixes: Vec::new(), objects, extensions: Default::default() })
    }
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Stored<PutResult> {
        only_read::<L, _>()
    }
    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Stored<Box<dyn MultipartUpload>> {
        only_read::<L, _>()
    }
    fn delete_stream(&self, _: BoxStream<'static, Stored<Path>>) -> BoxStream<'static, Stored<Path>> {
        once(async { only_read::<L, _>() }).boxed()
    }
    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Stored<()> {
        only_read::<L, _>()
    }
}
