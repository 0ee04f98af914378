//! The node cache.

/// One cache for all processes of this user on this machine; see [`lossfeed_source::on_node`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeSettings {
    /// Bytes for samples, if this process is the first one that uses it.
    pub bytes: u64,
    /// Starts the process that owns it: a program and its words.
    pub command: Vec<String>,
}
