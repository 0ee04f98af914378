//! The tier's thread and other processes: it reads on in what they write, and leaves to them what they fetch.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::claims::Whose;
use crate::folder::{Listed, Name, now, own};
use crate::followed::Followed;
use crate::segment::{self, Contents, Segment};
use crate::shared::{Request, Shared};
use crate::writer::{LOOK_AROUND, TICK, Writer, listed_bytes};

impl Writer {
    /// Answers the calls that claim samples, and those that wait for others.
    pub(crate) fn serve(&mut self) {
        let asked = self.shared.requested.swap(false, Relaxed);
        if asked {
            let requests = std::mem::take(&mut self.shared.queue.lock().requests);
            self.waiting.extend(requests);
        }
        let Some(claims) = self.claims.as_mut().filter(|_| !self.waiting.is_empty()) else {
            // No answer is one: they fetch.
            return self.waiting.clear();
        };
        if !asked && self.served.elapsed() < TICK {
            return;
        }
        let now = Instant::now();
        self.served = now;
        self.shared.beats.fetch_add(1, Relaxed);
        let others = claims.look(now);
        let waiting = std::mem::take(&mut self.waiting);
        let claimed = |request: &Request| claims.claim(&others, request.ticket, &request.keys, request.since, now);
        let claimed: Vec<Vec<Whose>> = waiting.iter().map(claimed).collect();
        claims.looked();
        if others.news {
            // Trouble with the folder shows when something is written.
            let _ = self.read_on();
        }
        for (request, mut claimed) in waiting.into_iter().zip(claimed) {
            for (key, whose) in request.keys.iter().zip(&mut claimed) {
                let Some(key) = key.filter(|&key| self.shared.keeps(key)) else { continue };
                if std::mem::replace(whose, Whose::There) == Whose::Ours
                    && let Some(claims) = &mut self.claims
                {
                    claims.let_go(request.ticket, key);
                }
            }
            if request.since.is_none() || claimed.iter().any(|&whose| whose != Whose::Theirs) {
                // A call that was stopped is not there any more.
                let _ = request.answer.try_send(claimed);
            } else {
                self.waiting.push(request);
            }
        }
        if let Some(claims) = &mut self.claims {
            claims.write();
        }
    }

    /// Reads what other processes have written since the last look.
    fn read_on(&mut self) -> io::Result<()> {
        let listed = self.shared.folder.list()?;
        self.catch_up(&listed, false, now());
        Ok(())
    }

    /// Brings index and worths up to what lies in the folder now. With the folder's lock also ends segments that a
    /// crash has cut.
    pub(crate) fn look_around(&mut self, locked: bool) -> io::Result<()> {
        self.looked = Instant::now();
        let now = now();
        self.demand.add(self.shared.asked_us.swap(0, Relaxed), now);
        let mut listed = self.shared.folder.list()?;
        // By a clock that was set back since they were read: else they would count as in use until then.
        for ahead in listed.iter_mut().filter(|l| l.used > now + LOOK_AROUND) {
            ahead.used = now;
            let _ = self.shared.folder.touch(ahead.name, now);
        }
        self.shared.counts.bytes.store(listed_bytes(&listed), Relaxed);
        for segment in self.shared.shelf.segments() {
            if let Some(listed) = of(&listed, segment.born).filter(|listed| listed.name == segment.name()) {
                segment.fold(now, listed.used);
            }
        }
        self.catch_up(&listed, locked, now);
        Ok(())
    }

    /// Brings the index up to `listed`.
    fn catch_up(&mut self, listed: &[Listed], locked: bool, now: Duration) {
        let known = self.shared.shelf.segments();
        let gone = |born| of(listed, born).is_none();
        for followed in self.followed.extract_if(.., |followed| gone(followed.segment.born)) {
            self.shared.shelf.remove(&followed.segment);
        }
        for segment in &known {
            match of(listed, segment.born) {
                Some(l) if l.name == segment.name() => {
                    // Another process has written to it again, and ended it again.
                    if l.name.complete && l.bytes != segment.bytes() {
                        let (end, cost_us) = segment.known();
                        self.followed.push(Followed::from(Arc::clone(segment), end, cost_us));
                    }
                }
                _ if !segment.complete.load(Relaxed) => {}
                // Another process writes to it again, behind what is known of it, or has dropped it.
                Some(_) => {
                    let (end, cost_us) = segment.known();
                    segment.complete.store(false, Relaxed);
                    self.followed.push(Followed::from(Arc::clone(segment), end, cost_us));
                }
                None => self.shared.shelf.remove(segment),
            }
        }
        self.follow(listed, locked, now);
        let known: HashSet<u64> = known.iter().map(|s| s.born).collect();
        for listed in listed.iter().filter(|l| !known.contains(&l.name.born)) {
            let file = match self.shared.folder.file(listed.name) {
                Ok(file) => file,
                Err(e) => {
                    if self.is_new() {
                        tracing::debug!(target: "lossfeed::disk", segment = listed.name.born, error = %e, "not ours");
                    }
                    continue;
                }
            };
            let found = if listed.name.complete { segment::contents(&file) } else { None };
            match found {
                Some(contents) => self.add(listed, &contents),
                None if locked && own(&file) => self.recover(listed, &file),
                None => self.begin_following(listed, now),
            }
        }
    }

    fn begin_following(&mut self, listed: &Listed, now: Duration) {
        let segment = Arc::new(Segment::new(self.number(), listed, &self.shared.folder, 0));
        self.shared.shelf.add(Arc::clone(&segment), &[]);
        self.followed.push(Followed::new(segment));
        self.follow(std::slice::from_ref(listed), false, now);
    }

    /// Reads on in what other processes are writing; of those that are not `listed` any more, none is left.
    fn follow(&mut self, listed: &[Listed], locked: bool, now: Duration) {
        let Shared { folder, shelf, .. } = &*self.shared;
        self.followed.retain_mut(|followed| {
            let born = followed.segment.born;
            let Some(listed) = of(listed, born) else { return true };
            match followed.look(folder, listed, locked, now) {
                Ok(news) => {
                    shelf.publish(followed.segment.number, &news.entries);
                    !news.over
                }
                Err(e) => {
                    tracing::debug!(target: "lossfeed::disk", segment = born, error = %e, "not read on");
                    true
                }
            }
        });
    }

    fn add(&mut self, listed: &Listed, contents: &Contents) {
        {
            let mut opened = self.shared.opened.lock();
            *opened = (opened.0 + contents.entries.len() as u64, opened.1 + contents.cost_us);
        }
        let segment = Segment::new(self.number(), listed, &self.shared.folder, contents.cost_us);
        segment.knows(contents);
        self.shared.shelf.add(Arc::new(segment), &contents.entries);
    }

    /// Ends a segment that was cut; its writer is dead.
    fn recover(&mut self, listed: &Listed, file: &File) {
        let Ok(contents) = segment::scan(file) else { return };
        if contents.entries.is_empty() {
            let _ = self.shared.folder.remove(listed.name);
            return;
        }
        // Where it cannot be ended its records can be read all the same, by this process.
        match segment::end(&self.shared.folder, listed.name, file, &contents) {
            Ok(bytes) => {
                let complete = Name { complete: true, ..listed.name };
                self.add(&Listed { name: complete, bytes, ..*listed }, &contents);
            }
            Err(_) => self.add(listed, &contents),
        }
    }
}

/// The file of the segment that was `born` then, of those that are listed, oldest first.
fn of(listed: &[Listed], born: u64) -> Option<&Listed> {
    listed.get(listed.partition_point(|l| l.name.born < born)).filter(|l| l.name.born == born)
}
