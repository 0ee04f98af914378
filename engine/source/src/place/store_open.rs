//! Stores opened: what a URL or a throttled path stands for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use crate::decode::is_image;
use crate::error::{Error, Result};
use crate::format::catalog::{Catalog, Shard, is_hidden};
use crate::format::files::Files;
use crate::format::several;
use crate::format::store_reader::{StoreReader, below};
use crate::format::tar::{self, ShardIndex};
use crate::format::walked::Parts;
use crate::format::{checksums, folder, index_cache, label, pattern};
use crate::options::OpenOptions;
use crate::place::found::{self, Found};
#[cfg(not(feature = "cloud"))]
use crate::place::schemes;
use crate::place::schemes::Scheme;
use crate::request::failure::Maker;
use crate::request::file;
use crate::request::identity::{Mark, Stamp};
use crate::request::link::Worth;
use crate::request::ranged::Ranged;
use crate::request::store::{Store, Wanted};
use crate::request::whole::Wholes;
use crate::sample::Source;

/// Shards looked at and walked at once; each has one request in flight.
const LANES_MAX: usize = 16;

/// A shard in a store; its path is its URL, for people and the index cache.
struct Object {
    key: Path,
    shard: Shard,
}

/// A local path read as if it were far away.
pub(crate) fn local(path: &str, options: &OpenOptions) -> Result<Arc<dyn Source>> {
    let store = Store::new(Arc::new(LocalFileSystem::new()), Maker::Files, options)?;
    let index_key: IndexKey<'_> = &index_cache::local_key;
    let key = |path: &str| -> Result<Path> {
        let absolute = std::path::absolute(path).map_err(|e| file::failed(path, e))?;
        Path::from_absolute_path(&absolute)
            .map_err(|e| Error::unreadable(format!("{path} is no valid path for a store")).because(e))
    };
    match found::find(path, &options.stop)? {
        Found::Folder(root, listed) => {
            options.check_fields_of(path)?;
            let root_key = key(file::utf8(&root)?)?;
            files(store, folder::catalog(&root, listed, &options.stop)?, root_key, options)
        }
        Found::Shards(paths) => {
            let objects = paths
                .into_iter()
                .map(|path| {
                    let (_, bytes, stamp) = file::open_file(&path)?;
                    Ok(Object { key: key(&path)?, shard: Shard { path, bytes, stamp } })
                })
                .collect::<Result<_>>()?;
            shards(store, path.to_owned(), objects, index_key, options)
        }
    }
}

/// A dataset behind a URL.
#[cfg(feature = "cloud")]
pub(crate) fn remote(scheme: &Scheme, url: &str, options: &OpenOptions) -> Result<Arc<dyn Source>> {
    let reach = scheme.reach.ok_or_else(|| Error::internal(format!("{} has no store", scheme.name)))?;
    let target = (reach.connect)(url, options)?;
    let index_key = |shard: &Shard| index_cache::remote_key(&target.place, shard);
    let store = Store::new(target.store, Maker::Cloud(target.access), options)?;
    let mut paths = target.paths;
    if target.repository && paths.iter().all(|path| path.is_empty()) {
        let listed = store.list(&Path::default())?;
        let names: Vec<String> = listed.into_iter().map(|object| object.location.to_string()).collect();
        paths = found::of_repository(&target.base, &names)?;
    }
    in_store(store, &target.base, &paths, &index_key, options)
}

/// A dataset behind a URL.
#[cfg(not(feature = "cloud"))]
pub(crate) fn remote(scheme: &Scheme, _: &str, _: &OpenOptions) -> Result<Arc<dyn Source>> {
    Err(Error::settings(format!(
        "{} is not built in: build lossfeed with the feature \"cloud\" ({}), or pass a local path or a file:// URL",
        scheme.name,
        schemes::stores()
    )))
}

/// Opens a dataset in an object store of the caller's own: any implementation of `object_store`, configured at will.
/// `path` is a key, a prefix, or a pattern as for [`open`](crate::place::open). Its indexes are not kept: nothing tells two
/// stores apart.
///
/// # Errors
/// As [`open`](crate::place::open); also `Settings` for a disk tier, for the same reason.
pub fn open_in(store: Arc<dyn ObjectStore>, path: &str, options: &OpenOptions) -> Result<Arc<dyn Source>> {
    options.check()?;
    if options.disk.is_some() {
        return Err(Error::settings(format!(
            "{store} cannot be kept on disk: nothing tells it from another store of the same name, whose samples would \
             be delivered in its place; open it by its URL, or leave the disk tier out"
        )));
    }
    let base = store.to_string();
    in_store(Store::new(store, Maker::Caller, options)?, &base, &pattern::braces(path)?, &|_| None, options)
}

/// A dataset in `store`: `paths` are keys below `base`, which names the store for people.
pub(crate) fn in_store(
    store: Store,
    base: &str,
    paths: &[String],
    index_key: IndexKey<'_>,
    options: &OpenOptions,
) -> Result<Arc<dyn Source>> {
    let url = |key: &str| format!("{base}/{key}");
    let mut keys = Vec::new();
    for path in paths {
        let key = below(&Path::default(), path)?;
        if pattern::has_wildcard(path) {
            let (parent, wanted) = path.rsplit_once('/').unwrap_or(("", path));
            let before = keys.len();
            for found in store.list(&below(&Path::default(), parent)?)? {
                let found = found.location.to_string();
                let direct = below(&Path::default(), parent)?.as_ref().len();
                let name = found.get(direct..).unwrap_or("").trim_start_matches('/');
                if !name.contains('/') && pattern::matches(wanted, name) {
                    keys.push((found.clone(), url(&found)));
                }
            }
            if keys.len() == before {
                return Err(Error::unreadable(format!("no object matches {}: check the pattern", url(path))));
            }
        } else {
            keys.push((key.as_ref().to_owned(), url(path)));
        }
    }
    let found = looked_at(&store, &keys, options)?;
    if let ([path], [None]) = (paths, found.as_slice())
        && !pattern::has_wildcard(path)
        && found::shards_among(&[path]).is_empty()
    {
        return prefix(store, base, &below(&Path::default(), path)?, index_key, options);
    }
    let there = |(object, (_, url)): (Option<Object>, &(String, String))| {
        object.ok_or_else(|| Error::unreadable(format!("{url} does not exist: check the URL")))
    };
    let objects = found.into_iter().zip(&keys).map(there).collect::<Result<Vec<_>>>()?;
    let named = paths.first().map(|p| url(p)).unwrap_or_default();
    let named = if paths.len() > 1 { format!("{named} and {} more", paths.len() - 1) } else { named };
    shards(store, named, objects, index_key, options)
}

/// The objects of these keys and URLs as they are now, several asked for at once; `None` where there is none.
fn looked_at(store: &Store, keys: &[(String, String)], options: &OpenOptions) -> Result<Vec<Option<Object>>> {
    several::several(keys, LANES_MAX.min(options.connections), &options.stop, |(key, url)| {
        let key = below(&Path::default(), key)?;
        let found = store.head(&key)?;
        Ok(found.map(|(bytes, stamp)| Object { key, shard: Shard { path: url.clone(), bytes, stamp } }))
    })
}

/// A prefix in a store: tar shards directly below it, or class folders, with the samples and the ids that the same
/// folder has on disk.
fn prefix(
    store: Store,
    base: &str,
    key: &Path,
    index_key: IndexKey<'_>,
    options: &OpenOptions,
) -> Result<Arc<dyn Source>> {
    let url = format!("{base}/{key}");
    let listed = store.list(key)?;
    let direct = if key.as_ref().is_empty() { 0 } else { key.as_ref().len() + 1 };
    let mut catalog = Catalog { url: url.clone(), ..Catalog::default() };
    let below_key = |object: &'_ str| object.get(direct..).unwrap_or("").to_owned();
    let mut listed: Vec<_> = listed.into_iter().map(|object| (below_key(object.location.as_ref()), object)).collect();
    listed.sort_by(|(a, _), (b, _)| folder::order(a, b));
    let folders: BTreeSet<&str> =
        listed.iter().filter_map(|(name, _)| Some(name.split_once('/')?.0)).filter(|f| !is_hidden(f)).collect();
    let mut images = vec![0u64; folders.len()];
    let labels: BTreeMap<&str, usize> = folders.iter().copied().zip(0..).collect();
    let mut top = Vec::new();
    for (name, object) in &listed {
        let label = name.split_once('/').map(|(class, _)| labels.get(class).copied());
        match label {
            // What lies in a hidden folder is hidden too.
            _ if name.split('/').any(is_hidden) => {}
            None => top.push(name.as_str()),
            Some(Some(label)) if is_image(name) => {
                catalog.push_file(name, object.size, &Stamp::of_object(object))?;
                catalog.labels.push(label as i64);
                if let Some(images) = images.get_mut(label) {
                    *images += 1;
                }
            }
            Some(_) => catalog.ignored.others += 1,
        }
    }
    catalog.classes = folders.iter().map(|&f| f.to_owned()).collect();
    let names = found::shards_among(&top);
    found::one_split(&url, &names)?;
    catalog.ignored.others += (top.len() - names.len()) as u64;
    if listed.is_empty() {
        return Err(Error::unreadable(format!("{url} does not exist or is empty: check the URL")));
    }
    if names.is_empty() {
        if let Some((class, _)) = catalog.classes.iter().zip(&images).find(|(_, images)| **images == 0) {
            let of_class = |name: &&(String, _)| name.0.split_once('/').is_some_and(|(folder, _)| folder == class);
            let shard = listed.iter().filter(of_class).find(|(name, _)| crate::format::catalog::is_shard(name));
            return Err(folder::empty_class(class, &url, shard.map(|(name, _)| name.as_str())));
        }
        return files(store, catalog, key.clone(), options);
    }
    if !catalog.classes.is_empty() {
        return Err(found::ambiguous(&url, names.len(), catalog.classes.len()));
    }
    let named = names.into_iter().map(|name| Ok((below(key, name)?.as_ref().to_owned(), format!("{url}/{name}"))));
    let keys = named.collect::<Result<Vec<_>>>()?;
    let objects = looked_at(&store, &keys, options)?.into_iter().flatten().collect();
    shards(store, url, objects, index_key, options)
}

fn files(store: Store, catalog: Catalog, root: Path, options: &OpenOptions) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(Files::new(catalog, StoreReader::new(store, Vec::new(), root, options.coalesce), options)?))
}

/// What the index cache knows a shard by.
type IndexKey<'a> = &'a (dyn Fn(&Shard) -> Option<String> + Sync);

/// Indexes shards, several at once, and opens them.
fn shards(
    store: Store,
    url: String,
    objects: Vec<Object>,
    index_key: IndexKey<'_>,
    options: &OpenOptions,
) -> Result<Arc<dyn Source>> {
    let lanes = objects.len().min(LANES_MAX).min(options.connections);
    if found::all_parquet(&objects.iter().map(|object| object.shard.path.as_str()).collect::<Vec<_>>())? {
        return parquet(store, url, objects, lanes, options);
    }
    options.check_members()?;
    store.announce(objects.iter().map(|object| (&object.key, object.shard.bytes)));
    let cache = options.index_cache.as_deref();
    let (numbered, parts) = ((0u32..).zip(&objects).collect::<Vec<_>>(), Parts::default());
    let indexed = several::shards(&numbered, lanes, options, |&(number, object)| {
        let key = || index_key(&object.shard);
        let came = |start, bytes: &Bytes| {
            // Several samples may come with one request, and what is held whole is held already.
            if options.coalesce && store.wholes.as_ref().is_none_or(Wholes::in_parts) {
                parts.add(number, start, bytes);
            }
        };
        let sum = |index: &mut ShardIndex| sum(&store, object, lanes, &came, index);
        let sum: Option<&dyn Fn(&mut ShardIndex) -> Result<()>> =
            if options.sums_of_members() { Some(&sum) } else { None };
        let walk = || walk(&store, object, lanes, &came);
        let indexed = index_cache::through(cache, key, &object.shard, walk, sum, &options.stop)?;
        parts.indexed(number, &indexed.1);
        Ok(indexed)
    })?;
    if let Some(largest) = objects.iter().max_by_key(|object| object.shard.bytes) {
        store.settle(&largest.key, &largest.shard.path, largest.shard.bytes)?;
    }
    let mut catalog = Catalog { url, ..Catalog::default() };
    label::assemble(&mut catalog, indexed, &options.fields)?;
    let keys = objects.into_iter().map(|o| o.key).collect();
    let (reader, walked) = (StoreReader::new(store, keys, Path::default(), options.coalesce), parts.cut(&catalog));
    Ok(Arc::new(Files::new(catalog, reader, options)?.with(walked)))
}

#[cfg(feature = "parquet")]
fn parquet(
    store: Store,
    url: String,
    objects: Vec<Object>,
    lanes: usize,
    options: &OpenOptions,
) -> Result<Arc<dyn Source>> {
    options.check_rows(&url)?;
    store.announce(objects.iter().map(|object| (&object.key, object.shard.bytes)));
    let looked = several::shards(&objects, lanes, options, |object| {
        let requests = AtomicU64::new(0);
        let file = reader(&store, object, lanes, &requests, &|_, _| ());
        let failure = file.failure();
        let looked = crate::format::parquet::look(file, object.shard.clone(), &options.fields);
        // What the store said, if it failed: the library passes it on as text only.
        looked.map_err(|e| failure.lock().take().unwrap_or(e))
    })?;
    let keys = objects.into_iter().map(|object| object.key).collect();
    let reader = StoreReader::new(store, keys, Path::default(), options.coalesce);
    Ok(Arc::new(crate::format::parquet::Parquet::new(url, looked, reader)?))
}

#[cfg(not(feature = "parquet"))]
fn parquet(_: Store, url: String, _: Vec<Object>, _: usize, _: &OpenOptions) -> Result<Arc<dyn Source>> {
    Err(crate::options::without_parquet(&url))
}

/// Is given each part of an object that is read, with its offset.
type Came<'a> = &'a (dyn Fn(u64, &Bytes) + Sync);

/// The object as a file, read while `lanes` are; every part of it must be from the object that was looked at first.
fn reader<'a>(
    store: &'a Store,
    object: &'a Object,
    lanes: usize,
    requests: &'a AtomicU64,
    came: Came<'a>,
) -> Ranged<impl FnMut(Range<u64>) -> Result<Bytes> + 'a, impl Fn() -> Worth + 'a> {
    let Object { key, shard } = object;
    let if_match = shard.stamp.if_match();
    let worth = move || store.worth(lanes);
    Ranged::new(shard.bytes, worth, move |range| {
        let what = || shard.path.clone();
        let (start, bytes) = (range.start, range.end - range.start);
        let (mark, if_match) = (Mark::of(&shard.stamp), if_match.as_deref());
        let wanted =
            Wanted { key, start, bytes, total: shard.bytes, mark, if_match, what: &what, requests, early: false };
        let bytes = store.wait(store.range(wanted, &|_| Ok(())))??;
        came(start, &bytes);
        Ok(bytes)
    })
}

fn walk(store: &Store, object: &Object, lanes: usize, came: Came<'_>) -> Result<(Shard, ShardIndex)> {
    let requests = AtomicU64::new(0);
    let reader = reader(store, object, lanes, &requests, came);
    let failure = reader.failure();
    let index =
        tar::walk(reader, object.shard.bytes, &object.shard.path).map_err(|e| failure.lock().take().unwrap_or(e))?;
    let requests = requests.into_inner();
    tracing::debug!(shard = object.shard.path, members = index.members.len(), requests, "walked a shard");
    Ok((object.shard.clone(), index))
}

fn sum(store: &Store, object: &Object, lanes: usize, came: Came<'_>, index: &mut ShardIndex) -> Result<()> {
    let requests = AtomicU64::new(0);
    let reader = reader(store, object, lanes, &requests, came);
    let failure = reader.failure();
    checksums::of_members(reader, index)
        .map_err(|e| failure.lock().take().unwrap_or_else(|| file::failed(&object.shard.path, e)))
}
