//! Frames of HTTP/2 as they come in (RFC 9113, section 4.1): only their heads are looked at. hyper answers for what
//! they mean; here it is counted what costs the daemon work and its sender nothing, and noticed what never ends.
use std::time::Instant;

use crate::api::limits::{CONTROL_FRAMES, WINDOW_FRAMES};
use crate::bucket::{Bucket, RateLimit};

/// What a client says before its first frame.
pub(super) const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client sends more frames that carry nothing than any honest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more frames than an honest client sends")]
pub(super) struct Flood;

/// Where in the stream of frames a connection is.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the preface, or of a payload, that are still to come.
    skip: usize,
    head: [u8; HEAD],
    have: usize,
    /// A block of headers has begun and not ended.
    in_block: bool,
    control: (Bucket, RateLimit),
    window: (Bucket, RateLimit),
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            skip: PREFACE.len(),
            head: [0; HEAD],
            have: 0,
            in_block: false,
            control: (Bucket::default(), CONTROL_FRAMES),
            window: (Bucket::default(), WINDOW_FRAMES),
        }
    }

    /// Whether something has begun of which the rest is still to come.
    pub(super) const fn waits_for_more(&self) -> bool {
        self.skip > 0 || self.have > 0 || self.in_block
    }

    /// Takes in what came.
    pub(super) fn came(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Flood> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let n = self.skip.min(bytes.len());
                self.skip -= n;
                bytes = &bytes[n..];
                continue;
            }
            let n = (HEAD - self.have).min(bytes.len());
            self.head[self.have..self.have + n].copy_from_slice(&bytes[..n]);
            self.have += n;
            bytes = &bytes[n..];
            if self.have == HEAD {
                self.have = 0;
                self.frame(now)?;
            }
        }
        Ok(())
    }

    fn frame(&mut self, now: Instant) -> Result<(), Flood> {
        let [a, b, c, kind, flags, ..] = self.head;
        let len = u32::from_be_bytes([0, a, b, c]);
        self.skip = len as usize;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.in_block = flags & END_HEADERS == 0;
        }
        match kind {
            // What they carry is limited elsewhere.
            HEADERS => Ok(()),
            DATA if len > 0 || flags & END_STREAM != 0 => Ok(()),
            // One for each answer that is read, at worst.
            WINDOW_UPDATE => spend(&mut self.window, now),
            _ => spend(&mut self.control, now),
        }
    }
}

fn spend((bucket, limit): &mut (Bucket, RateLimit), now: Instant) -> Result<(), Flood> {
    bucket.take(*limit, now).map_err(|_| Flood)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = (payload as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(vec![7; payload]);
        bytes
    }

    fn greeted(now: Instant) -> Frames {
        let mut frames = Frames::new();
        frames.came(&PREFACE, now).unwrap();
        assert!(!frames.waits_for_more());
        frames
    }

    #[test]
    fn what_has_begun_is_known_wherever_it_is_cut() {
        let now = Instant::now();
        let all = [
            frame(HEADERS, 0, 30),
            frame(CONTINUATION, END_HEADERS, 5),
            frame(DATA, END_STREAM, 300),
        ]
        .concat();
        for cut in 1..all.len() {
            let mut frames = greeted(now);
            frames.came(&all[..cut], now).unwrap();
            let whole = cut == 39 + 14; // between the block and DATA
            assert_eq!(frames.waits_for_more(), !whole, "{cut}");
            frames.came(&all[cut..], now).unwrap();
            assert!(!frames.waits_for_more(), "{cut}");
        }
    }

    #[test]
    fn frames_that_carry_nothing_are_few_a_second() {
        let now = Instant::now();
        let check = |what: &str, one: Vec<u8>, most: Option<u32>| {
            let mut frames = greeted(now);
            let mut sent = 0;
            while sent < 200_000 && frames.came(&one, now).is_ok() {
                sent += 1;
            }
            assert_eq!((sent < 200_000).then_some(sent), most, "{what}");
            let later = now + Duration::from_secs(1);
            assert!(frames.came(&one, later).is_ok(), "{what}: later some more");
        };
        let few = Some(CONTROL_FRAMES.burst());
        check("PING", frame(6, 0, 8), few);
        check("SETTINGS", frame(4, 0, 0), few);
        check("PRIORITY", frame(2, 0, 5), few);
        check("RST_STREAM", frame(3, 0, 4), few);
        check("an unknown one", frame(77, 0, 0), few);
        check("DATA with nothing", frame(DATA, 0, 0), few);
        check("CONTINUATION", frame(CONTINUATION, 0, 9), few);
        check(
            "WINDOW_UPDATE",
            frame(WINDOW_UPDATE, 0, 4),
            Some(WINDOW_FRAMES.burst()),
        );
        check("DATA", frame(DATA, 0, 1), None);
        check("the last DATA", frame(DATA, END_STREAM, 0), None);
        check("HEADERS", frame(HEADERS, END_HEADERS, 9), None);
    }
}
