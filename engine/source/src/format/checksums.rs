//! A checksum a sample, taken when the dataset is opened and held against every later read of it: what no tag or date
//! tells, bytes do.
//!
//! CRC-32 finds damage and mix-ups, not forgery. Shards keep theirs in the index cache; folders are read anew.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use lossfeed_sync::Mutex;

use crate::error::{Error, Result};
use crate::format::catalog::Catalog;
use crate::format::reader::Reader;
use crate::format::several::several;
use crate::format::tar::ShardIndex;
use crate::stop::Stop;
use crate::types::SampleId;

/// Samples read in one call.
const BLOCK: usize = 1024;
const THREADS_MAX: usize = 8;

/// Adds the checksums that members lack, reading them in the order they lie.
pub(crate) fn of_members<R: Read + Seek>(mut shard: R, index: &mut ShardIndex) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    for member in index.members.iter_mut().filter(|m| m.sum.is_none()) {
        shard.seek(SeekFrom::Start(member.offset))?;
        let (mut sum, mut left) = (crc32fast::Hasher::new(), member.bytes);
        while left > 0 {
            let room = piece.get_mut(..left.min(64 << 10) as usize).unwrap_or_default();
            let got = match shard.read(room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            sum.update(room.get(..got).unwrap_or_default());
            left -= got as u64;
        }
        member.sum = Some(sum.finalize());
    }
    Ok(())
}

/// The checksums of all samples of a catalog, read with `reader`.
pub(crate) fn of_samples(catalog: &Arc<Catalog>, reader: &impl Reader, stop: &Stop) -> Result<Vec<u32>> {
    let ids: Vec<(usize, SampleId)> =
        (0..).zip(&catalog.places).filter(|(_, p)| p.bytes > 0).map(|(id, _)| (id as usize, id)).collect();
    let (sums, blocks) = (Mutex::new(vec![0; catalog.places.len()]), ids.chunks(BLOCK).collect::<Vec<_>>());
    // A store's reader has many requests in flight by itself.
    let threads =
        if reader.remote() { 1 } else { thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX) };
    several(&blocks, threads, stop, |block| {
        let (mut found, mut failure) = (Vec::with_capacity(block.len()), None);
        reader.read(catalog, block, u64::MAX, &|| stop.is_asked(), &mut |at, _, data| match data {
            Ok(data) => {
                found.push((at, crc32fast::hash(data)));
                ControlFlow::Continue(())
            }
            Err(e) => {
                failure = Some(e);
                ControlFlow::Break(())
            }
        });
        let mut sums = sums.lock();
        for (at, sum) in found {
            if let Some(place) = sums.get_mut(at) {
                *place = sum;
            }
        }
        failure.map_or(Ok(()), Err)
    })
    .map_err(|e| Error::new(e.kind(), format!("{} cannot be read for its checksums", catalog.url)).because(e))?;
    // What was left when it was stopped has no sum.
    stop.check().map(|()| sums.into_inner())
}
