//! A URL or path becomes a [`Source`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::catalog::{Catalog, Shard};
use crate::format::files::Files;
use crate::format::local::{self, LocalReader};
use crate::format::several;
use crate::format::tar::ShardIndex;
use crate::format::{folder, index_cache, label};
use crate::options::{OpenOptions, PoolTier};
use crate::place::found::{Found, all_parquet, find};
use crate::place::schemes::Scheme;
use crate::place::store_open;
use crate::request::file;
use crate::sample::Source;
use crate::shown::without_secrets;
use crate::stop::Stop;
use crate::wrap::on_disk::OnDisk;
#[cfg(feature = "cloud")]
use crate::wrap::pool::InPool;

/// Opens a dataset of images:
///
/// - a directory with one folder a class, or one with `.tar` files;
/// - tar shards by name, with `{0000..0146}`, `{a,b}`, `*` and `?` for several (the order of names is the order of
///   ids);
/// - Parquet files, named likewise (feature `parquet`);
/// - the same behind `file://`, and, where the crate is built with the feature `cloud`, behind the URLs of [`SCHEMES`](crate::SCHEMES).
///
/// Labels of shards are numbers in the member that `fields` names, or without `fields` in `key.cls` beside `key.jpg`
/// where there are any, otherwise the directory an image lies in, numbered in the order of names.
///
/// # Errors
/// `Source` when something is missing, unreadable or empty; `Sample` when the data contradicts itself (labels missing,
/// names twice); `Settings` for options or URLs that make no sense. Shards are indexed here, so a truncated one is
/// found here and not in the middle of an epoch. `Settings`, too, for a disk tier whose folder or limit cannot be, and
/// for a pool that refuses its user.
pub fn open(url_or_path: &str, options: &OpenOptions) -> Result<Arc<dyn Source>> {
    options.check()?;
    // Whatever failed because it was stopped says so.
    let source = without_tiers(url_or_path, options).map_err(|e| options.stop.check().err().unwrap_or(e))?;
    let source = match &options.pool {
        None => source,
        Some(pool) => in_pool(source, &place(url_or_path, options)?, pool)?,
    };
    match &options.disk {
        None => Ok(source),
        Some(tier) => Ok(Arc::new(OnDisk::before(source, &place(url_or_path, options)?, tier, None)?)),
    }
}

/// The names of all files below a directory of this machine, in the order of ids, without hidden ones.
///
/// # Errors
/// `Source` when it, or a directory below, cannot be read.
pub fn files_below(root: &Path, stop: &Stop) -> Result<Vec<String>> {
    folder::below(root, stop)
}

/// What tells names of samples apart that are equal in two places: the store, or where relative paths begin.
fn place(url_or_path: &str, options: &OpenOptions) -> Result<String> {
    match Scheme::of(url_or_path)? {
        Some(scheme) if !scheme.is_local() => store_place(scheme, url_or_path, options),
        _ => {
            let here = std::env::current_dir().map_err(|e| file::failed("the current directory", e))?;
            Ok(format!("files, from {}", file::utf8(&here)?))
        }
    }
}

#[cfg(feature = "cloud")]
fn store_place(scheme: &Scheme, url: &str, options: &OpenOptions) -> Result<String> {
    scheme.reach.map_or_else(|| Ok(url.to_owned()), |reach| (reach.place)(url, options))
}

/// Never reached: without the feature no such URL is opened.
#[cfg(not(feature = "cloud"))]
fn store_place(_: &Scheme, url: &str, _: &OpenOptions) -> Result<String> {
    Ok(url.to_owned())
}

#[cfg(feature = "cloud")]
fn in_pool(source: Arc<dyn Source>, place: &str, pool: &PoolTier) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(InPool::before(source, place, pool)?))
}

#[cfg(not(feature = "cloud"))]
fn in_pool(_: Arc<dyn Source>, _: &str, pool: &PoolTier) -> Result<Arc<dyn Source>> {
    Err(Error::settings(format!("{pool:?}: pools are not built in; build lossfeed with the feature \"cloud\"")))
}

fn without_tiers(url_or_path: &str, options: &OpenOptions) -> Result<Arc<dyn Source>> {
    if url_or_path.is_empty() {
        return Err(Error::settings("the dataset's path is empty: pass a directory, tar shards or a URL"));
    }
    let local = match Scheme::of(url_or_path)? {
        None => url_or_path,
        Some(scheme) if !scheme.is_local() => return store_open::remote(scheme, url_or_path, options),
        Some(_) => {
            let path = url_or_path.split_once("://").map_or(url_or_path, |(_, path)| path);
            if !path.starts_with('/') {
                return Err(Error::settings(format!(
                    "{} is no file URL of this machine: write file:///absolute/path",
                    without_secrets(url_or_path)
                )));
            }
            path
        }
    };
    if options.throttle.is_some() || options.chaos.is_some() {
        return store_open::local(local, options);
    }
    match find(local, &options.stop)? {
        Found::Folder(root, listed) => {
            options.check_fields_of(local)?;
            let catalog = folder::catalog(&root, listed, &options.stop)?;
            Ok(Arc::new(Files::new(catalog, LocalReader::new(root, 0), options)?))
        }
        Found::Shards(paths) if all_parquet(&paths)? => local_parquet(local, &paths, options),
        Found::Shards(paths) => {
            options.check_members()?;
            let cache = options.index_cache.as_deref();
            let at_once = std::thread::available_parallelism().map_or(1, usize::from);
            let shards = several::shards(&paths, at_once, options, |path| {
                let (_, bytes, stamp) = file::open_file(path)?;
                let shard = Shard { path: path.clone(), bytes, stamp };
                let key = || index_cache::local_key(&shard);
                let sum = |index: &mut ShardIndex| local::sum_shard(&shard, index, &options.stop);
                let sum: Option<&dyn Fn(&mut ShardIndex) -> Result<()>> =
                    if options.sums_of_members() { Some(&sum) } else { None };
                index_cache::through(
                    cache,
                    key,
                    &shard,
                    || local::index_shard(&shard.path, &options.stop),
                    sum,
                    &options.stop,
                )
            })?;
            let reader = LocalReader::new(PathBuf::new(), shards.len());
            let mut catalog = Catalog { url: local.to_owned(), ..Catalog::default() };
            label::assemble(&mut catalog, shards, &options.fields)?;
            Ok(Arc::new(Files::new(catalog, reader, options)?))
        }
    }
}

#[cfg(feature = "parquet")]
fn local_parquet(url: &str, paths: &[String], options: &OpenOptions) -> Result<Arc<dyn Source>> {
    options.check_rows(url)?;
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let looked = several::shards(paths, at_once, options, |path| {
        let (file, bytes, stamp) = file::open_file(path)?;
        let looked = crate::format::parquet::look(
            options.stop.reading(&file),
            Shard { path: path.clone(), bytes, stamp: stamp.clone() },
            &options.fields,
        )?;
        local::unchanged(&Shard { path: path.clone(), bytes, stamp }, &file)?;
        Ok(looked)
    })?;
    let reader = LocalReader::new(PathBuf::new(), paths.len());
    Ok(Arc::new(crate::format::parquet::Parquet::new(url.to_owned(), looked, reader)?))
}

#[cfg(not(feature = "parquet"))]
fn local_parquet(url: &str, _: &[String], _: &OpenOptions) -> Result<Arc<dyn Source>> {
    Err(crate::options::without_parquet(url))
}
