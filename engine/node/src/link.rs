//! A connection to the owner.

use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::Shown;
use crate::message::{ANSWER_MAX, HEAD, kind};
use crate::wire;

/// An offer that the owner does not take in this time.
const TAKES: Duration = Duration::from_secs(1);

/// A connection, and the arena that its answers are about.
pub(crate) struct Link {
    pub(crate) socket: UnixStream,
    pub(crate) shown: Arc<Shown>,
    /// Its owner has taken over all that it was handed.
    pub(crate) adopted: bool,
}

/// An answer of the owner.
pub(crate) struct Answer {
    pub(crate) kind: u8,
    pub(crate) bytes: Vec<u8>,
    pub(crate) file: Option<OwnedFd>,
}

/// Waits for the next answer.
pub(crate) fn answer(socket: &UnixStream, until: Instant, stopped: &dyn Fn() -> bool) -> Result<Answer, Error> {
    let (mut bytes, mut came, mut file) = (vec![0; 4096], 0, None);
    loop {
        if let Some(&[a, b, c, d, kind]) = bytes.first_chunk::<HEAD>().filter(|_| came >= HEAD) {
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            if length > ANSWER_MAX {
                return Err(Error::new(ErrorKind::InvalidData, "an answer that is too long"));
            }
            bytes.resize(HEAD + length, 0);
            if came >= HEAD + length {
                bytes.drain(..HEAD);
                if kind == kind::REFUSED {
                    let reason = String::from_utf8_lossy(&bytes).into_owned();
                    return Err(Error::new(ErrorKind::PermissionDenied, reason));
                }
                return Ok(Answer { kind, bytes, file });
            }
        }
        match wire::receive(socket, bytes.get_mut(came..).unwrap_or_default(), &mut file) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => came += more,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if Instant::now() >= until || stopped() {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
}

impl Link {
    pub(crate) fn send(&self, mut bytes: &[u8]) -> Result<(), Error> {
        let until = Instant::now() + TAKES;
        while !bytes.is_empty() {
            match wire::send(&self.socket, bytes, None) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < until => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(crate) fn ask(&self, message: &[u8], until: Instant, stopped: &dyn Fn() -> bool) -> Result<Answer, Error> {
        self.send(message)?;
        answer(&self.socket, until, stopped)
    }
}
