//! The pages of a listing, as a store sent them.
//!
//! The stores' clients take a page's objects and its token, and nothing else: they end a listing that says it goes on
//! and gives no token, go round for ever where tokens repeat, and refuse all of a page for one name that they have no
//! path for. So every page is looked at before they see it. That no object comes twice is for `store.rs` to see.

use std::collections::HashSet;

use object_store::path::Path;
use quick_xml::Reader;
use quick_xml::events::Event;
use serde::Deserialize;

use crate::decode::is_image;

/// Pages without an object that may follow each other: a store may skip what was deleted, and not for ever.
const EMPTY_MAX: usize = 1000;
/// Names that a warning quotes.
const NAMED: usize = 5;
/// The elements that hold an object: of S3 and Google, and of Azure.
const OBJECTS: [&[u8]; 2] = [b"Contents", b"Blob"];
/// Those that hold the token of the next page.
const TOKENS: [&[u8]; 2] = [b"NextContinuationToken", b"NextMarker"];

/// A listing that contradicts itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Contradiction(pub(crate) String);

/// What the pages of one listing have said.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    tokens: HashSet<String>,
    /// Pages without an object since the last one with some.
    empty: usize,
    left_out: u64,
    /// The first of those left out.
    names: Vec<String>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(rename = "IsTruncated")]
    truncated: Option<String>,
    #[serde(rename = "NextContinuationToken", alias = "NextMarker")]
    token: Option<String>,
    #[serde(default, rename = "Contents")]
    contents: Vec<Named>,
    #[serde(rename = "Blobs")]
    blobs: Option<Blobs>,
}

#[derive(Deserialize)]
struct Blobs {
    #[serde(default, rename = "Blob")]
    each: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "Key", alias = "Name")]
    name: String,
}

impl Pages {
    /// The page `body` as the store's client may have it: without names that no path takes, and without the token of a
    /// listing that says it ends here. What is no page of a listing is left to the client to refuse.
    ///
    /// # Errors
    /// As [`Self::turn`]; also for a page that says that more follow and gives no token.
    pub(crate) fn page(&mut self, body: Vec<u8>) -> Result<Vec<u8>, Contradiction> {
        let Some(page) = std::str::from_utf8(&body).ok().and_then(|text| quick_xml::de::from_str::<Page>(text).ok())
        else {
            return Ok(body);
        };
        let token = page.token.filter(|token| !token.is_empty());
        let ends = match page.truncated.as_deref().map(str::trim) {
            Some(truncated) if truncated.eq_ignore_ascii_case("true") => {
                if token.is_none() {
                    return Err(Contradiction(format!(
                        "page {} of it says that more follow (IsTruncated), and gives no token to ask for them with",
                        self.tokens.len() + 1
                    )));
                }
                false
            }
            Some(_) => true,
            None => token.is_none(),
        };
        let names = page.contents.into_iter().chain(page.blobs.into_iter().flat_map(|blobs| blobs.each));
        let names: Vec<Named> = names.collect();
        let odd = names.iter().filter(|object| !self.takes(&object.name)).count();
        let rewritten = (odd > 0 || (ends && token.is_some())).then(|| without(&body, ends));
        self.turn(token.filter(|_| !ends).as_deref(), names.is_empty())?;
        Ok(rewritten.unwrap_or(body))
    }

    /// Goes on to the page that `token` asks for; `None` after the last one, where names that were left out are told.
    /// `empty`: the page at hand has no object.
    ///
    /// # Errors
    /// For a token that was given before, and for too many empty pages in a row: the listing would never end.
    pub(crate) fn turn(&mut self, token: Option<&str>, empty: bool) -> Result<(), Contradiction> {
        self.empty = if empty { self.empty + 1 } else { 0 };
        match token {
            Some(_) if self.empty > EMPTY_MAX => Err(Contradiction(format!(
                "{EMPTY_MAX} pages of it in a row name no object, and it goes on: it would never end"
            ))),
            Some(token) if self.tokens.insert(token.to_owned()) => Ok(()),
            Some(_) => Err(Contradiction(format!(
                "page {} of it gives a token for the next page that a page before gave: it would never end",
                self.tokens.len() + 1
            ))),
            None => {
                if self.left_out > 0 {
                    let more = self.left_out - self.names.len() as u64;
                    tracing::warn!(
                        "objects are left out whose names have empty, '.' or '..' parts, a slash at an end, or control characters \
                         ({} in all): rename {}{}",
                        self.left_out,
                        self.names.join(", "),
                        if more > 0 { format!(" and {more} more") } else { String::new() }
                    );
                }
                *self = Self::default();
                Ok(())
            }
        }
    }

    /// Whether a path can stand for the object `name`. One that none can stand for is counted. What consoles make of a
    /// folder, an object whose name ends with a slash, is neither.
    pub(crate) fn takes(&mut self, name: &str) -> bool {
        let takes = is_plain(name);
        if !takes && !name.strip_suffix('/').is_some_and(|folder| is_plain(folder) && !is_image(folder)) {
            self.left_out += 1;
            if self.names.len() < NAMED {
                self.names.push(format!("{name:?}"));
            }
        }
        takes
    }
}

/// Whether a path says `name`, and nothing else.
fn is_plain(name: &str) -> bool {
    Path::parse(name).is_ok_and(|path| path.as_ref() == name)
}

/// A page without the objects whose names are not plain, and without its token if it `ends`.
fn without(page: &[u8], ends: bool) -> Vec<u8> {
    let (mut reader, mut kept) = (Reader::from_reader(page), Vec::with_capacity(page.len()));
    let (mut from, mut inside) = (0, None);
    let at = |reader: &Reader<&[u8]>| reader.buffer_position() as usize;
    let part = |from: usize, until: usize| page.get(from..until).unwrap_or_default();
    let named = |object| std::str::from_utf8(object).ok().and_then(|text| quick_xml::de::from_str::<Named>(text).ok());
    loop {
        let before = at(&reader);
        match reader.read_event() {
            Ok(Event::Start(tag)) if inside.is_none() => {
                let name = tag.name().as_ref().to_vec();
                if OBJECTS.contains(&name.as_slice()) || (ends && TOKENS.contains(&name.as_slice())) {
                    inside = Some((name, before));
                }
            }
            Ok(Event::End(tag)) if inside.as_ref().is_some_and(|(name, _)| name == tag.name().as_ref()) => {
                let (until, object) = (at(&reader), OBJECTS.contains(&tag.name().as_ref()));
                let (_, start) = inside.take().unwrap_or_default();
                if !object || named(part(start, until)).is_some_and(|object| !is_plain(&object.name)) {
                    kept.extend_from_slice(part(from, start));
                    from = until;
                }
            }
            // It was read as a whole before.
            Ok(Event::Eof) | Err(_) => break,
            Ok(_) => {}
        }
    }
    kept.extend_from_slice(page.get(from..).unwrap_or_default());
    kept
}
