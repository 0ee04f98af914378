//! Where a dataset is: a URL or path becomes a [`Source`](crate::Source).
//!
//! ```text
//! open.rs       paths of this machine      found.rs  what such a name stands for
//! schemes.rs    the kinds of URLs that there are
//! store_open.rs datasets in a store        target.rs what a URL of one stands for
//! cloud.rs      URLs of object stores      cloud_settings.rs  what environment and caller say of a store
//! connector.rs  how they are reached       address.rs         a URL apart from its secrets
//! credentials/  AWS's profiles, roles, commands and logins; whether a machine lends credentials
//! hub.rs        the Hugging Face Hub       listed.rs          a store that lists its objects by an interface of its own
//! ```

#[cfg(feature = "cloud")]
mod address;
#[cfg(feature = "cloud")]
mod cloud;
#[cfg(feature = "cloud")]
mod cloud_settings;
#[cfg(feature = "cloud")]
mod connector;
#[cfg(feature = "cloud")]
mod credentials;
mod found;
#[cfg(feature = "cloud")]
pub(crate) mod hub;
#[cfg(feature = "cloud")]
mod listed;
mod open;
#[cfg(feature = "cloud")]
mod redirects;
mod schemes;
mod store_open;
#[cfg(feature = "cloud")]
mod target;

pub use open::{files_below, open};
pub use schemes::{SCHEMES, Scheme};
pub use store_open::open_in;
