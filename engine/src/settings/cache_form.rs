//! The form of cached samples.

use crate::error::{Error, Result};

/// The form of a sample in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheForm {
    /// The source's own bytes: small, decoded on every use.
    Encoded,
    /// The decoded fixed-shape tensor: larger, and a hit costs one copy.
    Decoded,
}

impl CacheForm {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            CacheForm::Encoded => "encoded",
            CacheForm::Decoded => "decoded",
        }
    }

    /// The form of that name.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for any name but "encoded" and "decoded".
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "encoded" => Ok(CacheForm::Encoded),
            "decoded" => Ok(CacheForm::Decoded),
            other => Err(Error::settings(format!("cache_form {other:?} is unknown: use encoded or decoded"))),
        }
    }
}
