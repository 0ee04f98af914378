//! What is read whole of a store: objects of servers that give no parts (`whole.rs` says which these are, and what is
//! kept).

use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use futures::stream::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetResultPayload, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::request::failure::{Refused, cause, classified};
use crate::request::identity::{Mark, Stamp};
use crate::request::retry::Failure;
use crate::request::store::{Store, Wanted};
use crate::request::whole::part;

impl Store {
    /// If `e` says that the server gives no parts, that is known from now on.
    pub(crate) fn learnt_of_parts(&self, e: &object_store::Error) {
        if let (object_store::Error::NotSupported { .. }, Some(wholes)) = (e, &self.wholes) {
            wholes.learn(false);
        }
    }

    /// Size and stamp of an object by asking for its first byte; `None` when there is none.
    pub(crate) async fn looked_at(&self, key: &Path) -> Result<Option<(u64, Stamp)>, Failure> {
        let first = GetOptions { range: Some((0..1).into()), ..GetOptions::default() };
        let answer = match self.inner.get_opts(key, first).await {
            Ok(answer) => {
                if let Some(wholes) = &self.wholes {
                    wholes.learn(true);
                }
                Ok(answer)
            }
            Err(e) if matches!(e, object_store::Error::NotSupported { .. }) => {
                self.learnt_of_parts(&e);
                // Its body is left where it is.
                self.inner.get(key).await
            }
            Err(e) if cause::<Refused>(&e).is_some_and(|refused| refused.status == 416) => {
                return Err(Failure::Final(Error::unreadable(format!("{key} is empty (0 bytes): store it again"))));
            }
            Err(e) => Err(e),
        };
        match answer {
            Ok(answer) => Ok(Some((answer.meta.size, Stamp::of_object(&answer.meta)))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(classified(e, key.as_ref(), false, self.maker)),
        }
    }

    /// Before shards are walked: which they are, and their sizes.
    pub(crate) fn announce<'a>(&self, shards: impl Iterator<Item = (&'a Path, u64)>) {
        if let Some(wholes) = &self.wholes {
            wholes.announce(shards);
        }
    }

    /// What was read of a shard is no sample: a shard that is kept is read anew, once.
    pub(crate) fn doubt(&self, key: &Path) {
        if let Some(wholes) = &self.wholes {
            wholes.doubt(key);
        }
    }

    /// After shards were indexed, maybe without a question to the server: whether it gives parts, and else whether they
    /// have room.
    ///
    /// # Errors
    /// As reading; `Source` where there is no room.
    pub(crate) fn settle(&self, key: &Path, what: &str, bytes: u64) -> Result<()> {
        let Some(wholes) = &self.wholes else { return Ok(()) };
        if !wholes.is_known() {
            self.look(key)?;
        }
        if wholes.in_parts() { Ok(()) } else { wholes.has_room(what, bytes) }
    }

    /// A part of an object by reading all of it, or of what was read before.
    pub(crate) async fn of_whole(&self, wanted: Wanted<'_>) -> Result<Bytes, Failure> {
        let internal = || Failure::Final(Error::internal("a whole object without a part of it"));
        let Some(wholes) = &self.wholes else { return Err(internal()) };
        let kept = wholes.kept(wanted.key);
        // What is no shard is one sample.
        let Some(kept) = kept else {
            let all = self.whole(wanted).await?;
            return part(&all, wanted.start, wanted.bytes).ok_or_else(internal);
        };
        let mut kept = kept.lock().await;
        if kept.is_none() {
            wholes.has_room(&(wanted.what)(), wanted.total).map_err(Failure::Final)?;
            *kept = Some(self.whole(wanted).await?);
        }
        kept.as_ref().and_then(|shard| part(shard, wanted.start, wanted.bytes)).ok_or_else(internal)
    }

    /// All of the object that `wanted` is of. The time limit is one on each piece and none on the whole.
    async fn whole(&self, wanted: Wanted<'_>) -> Result<Bytes, Failure> {
        let what = || format!("all of {}", (wanted.what)());
        let failed = |e| classified(e, &(wanted.what)(), true, self.maker);
        let all = Wanted { start: 0, bytes: wanted.total, ..wanted };
        let paced = self.sent_in_turn(wanted.total).await;
        wanted.requests.fetch_add(1, Ordering::Relaxed);
        self.delayed().await;
        let (started, sent) = (Instant::now(), self.link.send(wanted.total));
        let options = GetOptions { if_match: wanted.if_match.map(str::to_owned), ..GetOptions::default() };
        let answer =
            self.limited(&what, async { self.inner.get_opts(wanted.key, options).await.map_err(failed) }).await?;
        let (first_byte, before) = (started.elapsed(), self.link.brought());
        all.proved(answer.meta.size, Mark::of(&Stamp::of_object(&answer.meta)), &answer.meta)?;
        let GetResultPayload::Stream(mut pieces) = answer.payload else {
            return Err(Failure::Final(Error::internal("a web server that is a file")));
        };
        let mut bytes = Vec::new();
        loop {
            let next = async { pieces.next().await.transpose().map_err(failed) };
            let Some(piece) = self.limited(&what, next).await? else { break };
            if bytes.len() as u64 + piece.len() as u64 > wanted.total {
                let more = format!("more than {}", wanted.total);
                return Err(Failure::Again(all.wrong_length(&more, answer.meta.size)));
            }
            if !paced {
                self.link.count(piece.len() as u64);
            }
            // As much as comes, whatever was announced.
            bytes.try_reserve(piece.len()).map_err(|e| {
                Failure::Final(
                    Error::memory(format!("there is no memory for {} bytes of {}", wanted.total, what())).because(e),
                )
            })?;
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() as u64 != wanted.total {
            return Err(Failure::Again(all.wrong_length(&bytes.len().to_string(), answer.meta.size)));
        }
        self.let_through(wanted.total, paced).await;
        let body = started.elapsed().saturating_sub(first_byte);
        sent.answered(first_byte, body, before);
        Ok(bytes.into())
    }
}
