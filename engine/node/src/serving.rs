//! The owner's answers to messages.

use crate::admin::{Listed, ListedJob};
use crate::arena::Shown;
use crate::flights::OVERDUE_MS;
use crate::message::{Key, Message, Part, begin, finish, frame, kind};
use crate::owner::{Coming, Owner, Peer, UNREAD_MAX, Waiter};
use crate::planted::planted;
use crate::start;

/// Codes of [`kind::WHOSE`].
pub(crate) const OURS: u8 = 0;
pub(crate) const THEIRS: u8 = 1;
pub(crate) const THERE: u8 = 2;

impl Owner {
    /// Acts on what came over a connection.
    ///
    /// # Errors
    /// The reason why the connection ends.
    pub(crate) fn hear(&mut self, number: u64, peer: &mut Peer, part: Part<'_>) -> Result<(), String> {
        match part {
            Part::Message(message) => self.obey(number, peer, message)?,
            Part::Offer(head) => {
                let member = peer.member.ok_or("an offer before a greeting")?;
                let offered = self.books.offer(member, &head, self.flights.is_wanted(&head.key));
                offered.freed.iter().for_each(|&slot| self.arena.untag(slot));
                let at = offered.slot.and_then(|slot| self.books.place_of(slot)).unwrap_or(0);
                let sum = crc32fast::Hasher::new();
                peer.coming = Some(Coming { slot: offered.slot, at, came: 0, crc: head.crc, sum });
                planted("offered");
            }
            Part::Bytes(bytes) => {
                if let Some(coming) = &mut peer.coming
                    && coming.slot.is_some()
                {
                    coming.sum.update(bytes);
                    self.arena.put(coming.at + coming.came, bytes);
                    coming.came += bytes.len() as u64;
                    planted("put");
                }
            }
            Part::Offered => {
                if let Some(Coming { slot: Some(slot), crc, sum, .. }) = peer.coming.take() {
                    if sum.finalize() != crc {
                        self.drop_slot(slot);
                        return Err("an offered sample whose checksum does not fit".into());
                    }
                    if let Some(resident) = self.books.publish(slot) {
                        planted("published");
                        self.arena.tag(slot, &resident);
                        planted("tagged");
                    }
                    self.news = true;
                }
            }
        }
        Ok(())
    }

    fn obey(&mut self, number: u64, peer: &mut Peer, message: Message<'_>) -> Result<(), String> {
        if peer.out.len() > UNREAD_MAX {
            return Err(format!("{} bytes of answers that are not read", peer.out.len()));
        }
        self.release(peer);
        match message {
            Message::Hello(hello) => {
                if peer.member.is_some() {
                    return Err("a second greeting".into());
                }
                self.books.join(&hello);
                peer.member = Some(hello.member);
                let fetched_in_us = self.books.fetched_in_us(hello.dataset).unwrap_or(f64::NAN);
                let (id, bytes) = (self.arena.id.to_le_bytes(), self.bytes.to_le_bytes());
                peer.file_out = Some(self.arena.file().try_clone_to_owned().map_err(|e| e.to_string())?);
                peer.out.extend(frame(kind::WELCOME, &[&id, &bytes, &fetched_in_us.to_le_bytes()]));
            }
            Message::Ask(keys) => self.find(peer, &keys),
            Message::Claim { wait, keys } => {
                if wait {
                    self.news |= self.flights.end(number);
                }
                let whose = self.whose(number, &keys);
                if wait && !whose.is_empty() && whose.iter().all(|&who| who == THEIRS) {
                    let until_ms = self.now_ms() + OVERDUE_MS;
                    self.waiters.retain(|waiter| waiter.peer != number);
                    self.waiters.push(Waiter { peer: number, keys, until_ms });
                } else {
                    peer.out.extend(frame(kind::WHOSE, &[&whose]));
                }
            }
            Message::End => self.news |= self.flights.end(number),
            Message::Rate { first, draws } => {
                let member = peer.member.ok_or("importances before a greeting")?;
                self.books.rate(member, first, &draws);
            }
            Message::Forget(keys) => {
                for key in keys {
                    if let Some((slot, _)) = self.books.find(&key) {
                        self.drop_slot(slot);
                    }
                    self.adoptions.iter_mut().for_each(|adoption| _ = adoption.left.remove(&key));
                }
            }
            Message::Adopt => {
                let file = peer.file_in.take().ok_or("an arena without its file")?;
                self.begin_adoption(Shown::map(file)?);
                peer.out.extend(frame(kind::COUNT, &[&self.adoptable().to_le_bytes()]));
            }
            planning @ (Message::Order | Message::At(_) | Message::Processors { .. }) => {
                return self.plan(peer, &planning);
            }
            managing @ (Message::List | Message::Drop(_) | Message::Limit { .. } | Message::Pin { .. }) => {
                return self.manage(peer, &managing);
            }
        }
        Ok(())
    }

    /// Acts on what a client asks for its epoch or its threads.
    fn plan(&mut self, peer: &mut Peer, message: &Message<'_>) -> Result<(), String> {
        let member = peer.member.ok_or("an order or processors are asked for before a greeting")?;
        match *message {
            Message::At(at) => self.books.read_to(member, at as usize),
            Message::Processors { all, wanted } => {
                let share = self.processors.share(member, all, wanted, self.now_ms());
                peer.out.extend(frame(kind::SHARE, &[&share.to_le_bytes()]));
            }
            _ => {
                let ids = self.books.order(member, start::random())?;
                let at = begin(&mut peer.out, kind::ORDERED);
                peer.out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
                finish(&mut peer.out, at);
            }
        }
        Ok(())
    }

    /// Acts on what a person asks for.
    fn manage(&mut self, peer: &mut Peer, message: &Message<'_>) -> Result<(), String> {
        let count = match *message {
            Message::Drop(name) => {
                let slots = self.books.all_of(name);
                slots.iter().flatten().for_each(|&slot| self.drop_slot(slot));
                let dropped = self.books.digests(name);
                self.leave_behind(&dropped);
                slots.map_or(u64::MAX, |slots| slots.len() as u64)
            }
            Message::Limit { job, bytes } => {
                let beyond = self.books.limit(job, bytes);
                beyond.iter().flatten().for_each(|&slot| self.drop_slot(slot));
                u64::from(beyond.is_some())
            }
            Message::Pin { dataset, pinned } => u64::from(self.books.pin(dataset, pinned)),
            _ => {
                let text = serde_json::to_vec(&self.listed()).map_err(|e| e.to_string())?;
                peer.out.extend(frame(kind::TEXT, &[&text]));
                return Ok(());
            }
        };
        peer.out.extend(frame(kind::COUNT, &[&count.to_le_bytes()]));
        Ok(())
    }

    /// Leases the samples that are here to the peer, and tells it where each is.
    fn find(&mut self, peer: &mut Peer, keys: &[Key]) {
        let at = begin(&mut peer.out, kind::FOUND);
        peer.out.extend_from_slice(&self.books.used().to_le_bytes());
        peer.out.extend_from_slice(&self.adoptable().to_le_bytes());
        peer.out.reserve(16 * keys.len());
        let mut hit_bytes = 0;
        for key in keys {
            self.adopt(key);
            let (offset, bytes) = match self.books.lease(key) {
                Some((slot, resident)) => {
                    peer.leases.push(slot);
                    (self.arena.offset(resident.at), resident.bytes)
                }
                None => (0, 0),
            };
            hit_bytes += bytes;
            peer.out.extend_from_slice(&offset.to_le_bytes());
            peer.out.extend_from_slice(&bytes.to_le_bytes());
        }
        planted("asked");
        let hits = peer.leases.len();
        self.books.count(peer.member, hits as u64, hit_bytes, (keys.len() - hits) as u64);
        finish(&mut peer.out, at);
    }

    fn whose(&mut self, number: u64, keys: &[Key]) -> Vec<u8> {
        let now_ms = self.now_ms();
        let mut whose = Vec::with_capacity(keys.len());
        for key in keys {
            self.adopt(key);
            whose.push(match () {
                () if self.books.find(key).is_some() => THERE,
                () if self.flights.claim(number, *key, now_ms) => OURS,
                () => THEIRS,
            });
        }
        whose
    }

    /// Answers for connections that have waited for something that has come, or for too long.
    pub(crate) fn answer_waiters(&mut self) -> Vec<(u64, Vec<u8>)> {
        let (news, now_ms) = (std::mem::take(&mut self.news), self.now_ms());
        let mut answers = Vec::new();
        for waiter in std::mem::take(&mut self.waiters) {
            let due = waiter.until_ms <= now_ms;
            if !news && !due {
                self.waiters.push(waiter);
                continue;
            }
            let whose = self.whose(waiter.peer, &waiter.keys);
            if due || whose.iter().any(|&who| who != THEIRS) {
                answers.push((waiter.peer, frame(kind::WHOSE, &[&whose])));
            } else {
                self.waiters.push(waiter);
            }
        }
        answers
    }

    /// A connection has ended: what it had returns.
    pub(crate) fn gone(&mut self, number: u64, peer: &mut Peer) {
        self.release(peer);
        if let Some(Coming { slot: Some(slot), .. }) = peer.coming.take() {
            self.drop_slot(slot);
        }
        self.waiters.retain(|waiter| waiter.peer != number);
        self.flights.end(number);
        self.news = true;
        if let Some(member) = peer.member.filter(|&member| self.books.leave(member)) {
            self.processors.leave(member);
        }
    }

    fn release(&mut self, peer: &mut Peer) {
        for slot in peer.leases.drain(..) {
            self.books.release(slot);
        }
    }

    pub(crate) fn drop_slot(&mut self, slot: u32) {
        // A reader may still be there, and the next owner must not adopt it.
        self.arena.untag(slot);
        self.books.doom(slot);
    }

    fn listed(&self) -> Listed {
        let jobs = self.books.jobs.values().filter(|job| job.clients > 0 || job.residents > 0);
        let mut jobs: Vec<ListedJob> = jobs.map(|job| ListedJob::of(job, self.books.is_pinned(job))).collect();
        jobs.sort_by(|a, b| (&a.dataset, &a.job).cmp(&(&b.dataset, &b.job)));
        Listed {
            pid: std::process::id(),
            bytes: self.books.used(),
            capacity_bytes: self.bytes,
            samples: self.books.residents(),
            adoptable: self.adoptable(),
            evicted: self.books.evicted,
            declined: self.books.declined,
            refused: self.refused,
            last_refusal: self.last_refusal.clone(),
            jobs,
        }
    }
}
