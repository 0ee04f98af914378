//! One shard: read in pieces, written under another name until it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use lossfeed::source::{Piece, PieceKind, Source, apart};
use lossfeed::{Error, Result, SampleId};

use super::{Labels, plan};

/// So many bytes are read together and held: a store reads them side by side.
const PIECE_BYTES: u64 = 32 << 20;
const PARTIAL: &str = ".partial";

/// Whether a file of that name is a shard that somebody began and did not end.
pub(super) fn is_partial(name: &str) -> bool {
    name.starts_with(".shard-") && name.ends_with(PARTIAL)
}

/// Writes the samples `ids` as `folder`/`name`.
///
/// # Errors
/// What reading says of a sample; `Source` if the folder cannot be written. Nothing is left behind then.
pub(super) fn shard(
    source: &dyn Source,
    ids: &[SampleId],
    labels: &Labels<'_>,
    folder: &Path,
    name: &str,
) -> Result<()> {
    let partial = folder.join(format!(".{name}{PARTIAL}"));
    let told =
        |e: io::Error| Error::unreadable(format!("{} cannot be written", folder.join(name).display())).because(e);
    let written = (|| {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&partial).map_err(told)?;
        let mut archive = tar::Builder::new(BufWriter::with_capacity(1 << 20, file));
        let mut from = 0;
        while from < ids.len() {
            let piece = piece(source, &ids[from..]);
            let read = read(source, piece)?;
            for (&id, image) in piece.iter().zip(&read) {
                source.delivered(id, image);
                add(&mut archive, source.pieces(), id, image, labels, &told)?;
            }
            from += piece.len();
        }
        let file = archive.into_inner().and_then(|buffer| buffer.into_inner().map_err(io::IntoInnerError::into_error));
        file.and_then(|file: File| file.sync_all()).map_err(told)?;
        fs::rename(&partial, folder.join(name)).map_err(told)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

/// The first of `ids` that are read together: one at least.
fn piece<'a>(source: &dyn Source, ids: &'a [SampleId]) -> &'a [SampleId] {
    let mut bytes = 0;
    let fits = ids.iter().take_while(|&&id| {
        bytes += source.size(id).expected.unwrap_or(0);
        bytes <= PIECE_BYTES
    });
    &ids[..fits.count().max(1)]
}

fn read(source: &dyn Source, ids: &[SampleId]) -> Result<Vec<Vec<u8>>> {
    let mut images = vec![None; ids.len()];
    let mut failure = None;
    source.fetch(ids, &mut |at, payload| match payload {
        Ok(payload) => {
            images[at] = Some(payload.data.to_vec());
            ControlFlow::Continue(())
        }
        Err(e) => {
            failure = Some(e);
            ControlFlow::Break(())
        }
    });
    if let Some(e) = failure {
        return Err(e);
    }
    let image = |(image, &id): (Option<_>, _)| {
        image.ok_or_else(|| Error::unreadable(format!("{} was not read", source.name(id))))
    };
    images.into_iter().zip(ids).map(image).collect()
}

fn add<W: Write>(
    archive: &mut tar::Builder<W>,
    pieces: &[Piece],
    id: SampleId,
    sample: &[u8],
    labels: &Labels<'_>,
    told: &impl Fn(io::Error) -> Error,
) -> Result<()> {
    let key = plan::key(id, labels)?;
    if pieces.is_empty() {
        member(archive, &format!("{key}.{}", plan::ending(sample)), sample).map_err(told)?;
    }
    for (piece, bytes) in pieces.iter().zip(apart(pieces, sample)?) {
        let name = match piece.kind {
            PieceKind::Label => continue,
            PieceKind::Picture => plan::ending(bytes).to_owned(),
            _ => plan::member(piece),
        };
        member(archive, &format!("{key}.{name}"), &plan::content(piece.kind, bytes)).map_err(told)?;
    }
    match labels.beside(id) {
        Some(label) => member(archive, &format!("{key}.cls"), label.to_string().as_bytes()).map_err(told),
        None => Ok(()),
    }
}

/// The same bytes whenever and by whomever it is written.
fn member<W: Write>(archive: &mut tar::Builder<W>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    archive.append_data(&mut header, name, bytes)
}
