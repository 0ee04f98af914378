//! Options of the commands that write datasets and their indexes.

use std::path::PathBuf;

use clap::Args;

use super::units::bytes;

/// `lossfeed pack`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Stores are reached by their usual environment (AWS_*, GOOGLE_*, AZURE_*). Images are copied unchanged. \
                        Labels are folder names, or key.cls members if the source has only numbers. Other parts of a sample \
                        become members beside its image: text key.NAME.txt, numbers key.NAME.npy."
)]
pub struct PackArgs {
    /// What to pack: class folders, tar shards, Parquet files or a URL, as for lossfeed.open
    pub source: String,
    /// Where to put the shards: a folder of this machine, new or empty
    pub folder: PathBuf,
    /// Parts of the samples to pack, as in lossfeed.open(…, fields=): columns of Parquet files, members of shards
    #[arg(long, value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Size limit of a shard: "256MB"
    #[arg(long, value_name = "SIZE", default_value = "256MB", value_parser = bytes)]
    pub shard_size: u64,
    /// Seed of the random order of the samples
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "keep_order")]
    pub seed: u64,
    /// Keep the source's order, without mixing
    #[arg(long)]
    pub keep_order: bool,
    /// Continue in a folder that an earlier call with the same options started
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
    /// Folder for the index, for lossfeed.open(…, index_cache=FOLDER); created if missing
    #[arg(long, value_name = "FOLDER")]
    pub cache: PathBuf,
    /// Read the whole dataset and keep a CRC-32 of every sample, for lossfeed.open(…, checksums=True)
    #[arg(long)]
    pub checksums: bool,
    /// Members of each sample, as in lossfeed.open(…, fields=): jpg,json,cls
    #[arg(long, value_delimiter = ',')]
    pub fields: Vec<String>,
    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,
}
