//! Stores.
use std::sync::Arc;
use super::{OpenOptions, Source};
use crate::error::{Error, Result};
pub(super) fn remote(url: &str, _: &OpenOptions) -> Result<Arc<dyn Source>> {
    Err(Error::settings(format!("{url}: stores are not built in")))
}
pub(super) fn local(path: &str, _: &OpenOptions) -> Result<Arc<dyn Source>> {
    Err(Error::settings(format!("{path}: throttling is not built in")))
}
