//! Labels of shards: from `key.cls` members where there are any (the webdataset convention), otherwise from the
//! directory an image lies in. Members with longer endings (`key.fine.cls`) are labels only where `fields` names them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::error::{Error, Result};
use crate::format::catalog::{Catalog, Ignored, Shard, key, rest};
use crate::format::groups;
use crate::format::tar::{Member, ShardIndex, twice};
use crate::types::SampleId;

/// What follows the key's dot in the name of a member that holds a class number, where `fields` names no other.
const LABEL: &str = "cls";

/// Adds the members of all shards to `catalog`, in order, with their labels; or samples of the members `fields`.
///
/// # Errors
/// `Sample` when some images have a `key.cls` and others none, when one holds no number or comes twice, or when an
/// image lies in no directory and has none; as [`groups::assemble`].
pub(crate) fn assemble(catalog: &mut Catalog, mut shards: Vec<(Shard, ShardIndex)>, fields: &[String]) -> Result<()> {
    if !fields.is_empty() {
        catalog.members = Some(groups::assemble(catalog, shards, fields)?);
        tell(catalog);
        return Ok(());
    }
    shards.iter_mut().try_for_each(|(shard, index)| join(shard, index))?;
    let images: usize = shards.iter().map(|(_, i)| i.members.len()).sum();
    let labelled: usize = shards.iter().map(|(_, i)| i.members.iter().filter(|m| m.label.is_some()).count()).sum();
    let mut classes = BTreeMap::new();
    if labelled == 0 {
        let names: BTreeSet<&str> =
            shards.iter().flat_map(|(_, i)| &i.members).filter_map(|m| directory(&m.name)).collect();
        catalog.classes = names.iter().map(|&n| n.to_owned()).collect();
        classes = names.into_iter().map(str::to_owned).zip(0i64..).collect();
    }
    catalog.places.reserve(images);
    catalog.labels.reserve(images);
    for (number, (shard, index)) in shards.into_iter().enumerate() {
        let number = u32::try_from(number).map_err(|_| Error::settings("more than four billion shards"))?;
        let mut keys = HashSet::new();
        for member in &index.members {
            if member.label.is_some() && !keys.insert(key(&member.name)) {
                return Err(Error::sample(format!(
                    "{}: two images share the key {}, the second is {}: a sample is one image, rename or remove one, or say which is meant with fields=",
                    shard.path,
                    key(&member.name),
                    member.name
                )));
            }
            let label = match (member.label, labelled) {
                (Some(label), _) => label,
                (None, 0) => directory(&member.name).and_then(|d| classes.get(d)).copied().ok_or_else(|| {
                    Error::sample(format!(
                        "{} in {} has no label: put it into a folder named after its class, or a file {} with its class number beside it, or name \
                         the member that holds it with fields=",
                        member.name,
                        shard.path,
                        label_name(&member.name)
                    ))
                })?,
                (None, _) => {
                    return Err(Error::sample(format!(
                        "{} in {} has no label file {}, while {labelled} of the {images} images have one: add it or remove the image",
                        member.name,
                        shard.path,
                        label_name(&member.name)
                    )));
                }
            };
            if let Some(map) = &member.map {
                if !map.is_bearable(member.bytes) {
                    return Err(Error::sample(format!(
                        "{} in {} is a sparse file of {} bytes of which {} are stored, too few to be believed: write the archive without --sparse",
                        member.name, shard.path, map.bytes, member.bytes
                    )));
                }
                catalog.sparse.insert(catalog.places.len() as SampleId, map.clone());
            }
            catalog.push(&member.name, number, member.offset, member.bytes)?;
            catalog.labels.push(label);
            catalog.sums.extend(member.sum);
        }
        catalog.ignored.add(index.ignored);
        catalog.shards.push(shard);
    }
    if catalog.sums.len() != catalog.places.len() {
        // Some shards were indexed with checksums once; nobody asks for them now.
        catalog.sums = Vec::new();
    }
    tell(catalog);
    Ok(())
}

/// Says once what was left out though it may be a sample.
fn tell(catalog: &Catalog) {
    let Ignored { links, escaping, .. } = catalog.ignored;
    if links + escaping > 0 {
        tracing::warn!(
            "{} members of {} are left out ({links} links that lead to no file of their archive, {escaping} names with '..')",
            links + escaping,
            catalog.url
        );
    }
}

/// Gives every image the number in the `key.cls` of its key. What such a member without an image holds is nobody's
/// concern.
fn join(shard: &Shard, index: &mut ShardIndex) -> Result<()> {
    let mut labels: HashMap<&str, (&Member, Option<&Member>)> = HashMap::new();
    for member in index.labels.iter().filter(|member| rest(&member.name) == LABEL) {
        labels.entry(key(&member.name)).and_modify(|(_, second)| *second = Some(member)).or_insert((member, None));
    }
    let mut used = 0;
    for image in &mut index.members {
        let Some(&(member, second)) = labels.get(key(&image.name)) else { continue };
        if let Some(second) = second {
            return Err(twice(&shard.path, &second.name, second.offset));
        }
        image.label = Some(member.number(&shard.path)?);
        used += 1;
    }
    index.ignored.others += index.labels.len().saturating_sub(used) as u64;
    Ok(())
}

/// The directory an image lies in: `b` of `a/b/c.jpg`.
fn directory(name: &str) -> Option<&str> {
    let (path, _) = name.rsplit_once('/')?;
    Some(path.rsplit('/').next().unwrap_or(path))
}

fn label_name(name: &str) -> String {
    format!("{}.{LABEL}", key(name))
}
