//! Options of the commands that write datasets and their indexes.

use std::path::PathBuf;

use clap::Args;

use super::units::bytes;

/// `lossfeed pack`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Stores are reached by their usual environment (AWS_*, GOOGLE_*, AZURE_*). Images are copied as they are. \
                        Labels stand in folder names, or in key.cls members where the source has numbers alone. Other parts of a sample \
                        become members beside its image: text key.NAME.txt, numbers key.NAME.npy."
)]
pub struct PackArgs {
    /// What to pack: class folders, tar shards, Parquet files or a URL, as for lossfeed.open
    pub source: String,
    /// Where to put the shards: a folder of this machine, new or empty
    pub folder: PathBuf,
    /// What of the samples to pack, as lossfeed.open(…, fields=) takes it: columns of Parquet files, members of shards
    #[arg(long, value_delimiter = ',')]
    pub fields: Vec<String>,
    /// How long a shard may become: "256MB"
    #[arg(long, value_name = "SIZE", default_value = "256MB", value_parser = bytes)]
    pub shard_size: u64,
    /// Which order of the samples, of all that there are
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "keep_order")]
    pub seed: u64,
    /// Keep the source's order: neighbours stay neighbours, also where they are alike
    #[arg(long)]
    pub keep_order: bool,
    /// Go on with a folder that an earlier call with the same options began
    #[arg(long)]
    pub resume: bool,
    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,
}

/// `lossfeed index`.
#[derive(Debug, Clone, Args)]
pub struct IndexArgs {
    /// The dataset: tar shards or a URL, as for lossfeed.open
    pub source: String,
    /// The folder that keeps indexes, as lossfeed.open(…, index_cache=FOLDER) takes it; made if it is not there
    #[arg(long, value_name = "FOLDER")]
    pub cache: PathBuf,
    /// Read the whole dataset and keep a CRC-32 of every sample, for lossfeed.open(…, checksums=True)
    #[arg(long)]
    pub checksums: bool,
    /// The members that samples are made of, as lossfeed.open(…, fields=) takes them: jpg,json,cls
    #[arg(long, value_delimiter = ',')]
    pub fields: Vec<String>,
    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,
}
