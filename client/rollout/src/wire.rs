//! What the stages say to each other, and how it travels: messages of plain numbers in frames with a length, over
//! any stream of bytes (Unix sockets between processes, pairs of them in tests).
//!
//! Little-endian; a peer is a process of the same job and version. Lengths are checked before memory is taken.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one message: the weights of a policy of four million values fit.
pub const MESSAGE_MAX: usize = 16 << 20;

/// One environment's part of a trajectory: a chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// What was observed before the chunk.
    pub first: Vec<f32>,
    /// The actions.
    pub actions: Vec<f32>,
    /// What was observed after the chunk.
    pub last: Vec<f32>,
    /// Sum of rewards.
    pub reward: f32,
    /// Steps that were done.
    pub steps: u32,
    /// An episode ended in it.
    pub done: bool,
    /// It ended in success.
    pub success: bool,
}

/// What one stage says to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Simulation to generation: environments that wait for actions.
    Observe {
        /// Names the batch; comes back with the actions.
        batch: u64,
        /// One observation for each environment.
        observations: Vec<Vec<f32>>,
    },
    /// Generation to simulation.
    Act {
        /// The batch.
        batch: u64,
        /// The rollout that it belongs to.
        rollout: u64,
        /// Version of the weights.
        version: u64,
        /// One chunk of actions for each environment, in the order asked.
        chunks: Vec<Vec<f32>>,
    },
    /// Simulation to training.
    Trajectory {
        /// The rollout that it belongs to.
        rollout: u64,
        /// Version of the weights that made it.
        version: u64,
        /// One part for each environment of the batch.
        parts: Vec<Part>,
    },
    /// Training to generation.
    Weights {
        /// Finished training iterations.
        version: u64,
        /// The values.
        values: Vec<f32>,
    },
}

/// Sends messages to one peer. Cheap to clone; messages of several threads do not mix.
#[derive(Clone, Debug)]
pub struct Sender(Arc<Mutex<UnixStream>>);

/// Receives messages from one peer.
#[derive(Debug)]
pub struct Receiver {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// Both ends of a connection.
///
/// # Errors
/// When the socket cannot be duplicated.
pub fn split(stream: UnixStream) -> io::Result<(Sender, Receiver)> {
    let reader = stream.try_clone()?;
    Ok((
        Sender(Arc::new(Mutex::new(stream))),
        Receiver {
            stream: reader,
            buffer: Vec::new(),
        },
    ))
}

impl Sender {
    /// Sends one message; blocks while the peer does not read.
    ///
    /// # Errors
    /// When the peer is gone or the message is larger than [`MESSAGE_MAX`].
    pub fn send(&self, message: &Message) -> io::Result<()> {
        let mut frame = vec![0; 4];
        encode(message, &mut frame);
        let length = frame.len() - 4;
        if length > MESSAGE_MAX {
            let text = format!("a message of {length} bytes: {MESSAGE_MAX} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&frame)
    }
}

impl Receiver {
    /// The next message; none when the peer has hung up.
    ///
    /// # Errors
    /// When the connection breaks in the middle of a message, or what came is none.
    pub fn receive(&mut self) -> io::Result<Option<Message>> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > MESSAGE_MAX {
            return Err(malformed("it is too long"));
        }
        self.buffer.resize(length, 0);
        self.stream.read_exact(&mut self.buffer)?;
        let mut cursor = Cursor(&self.buffer);
        let message = cursor.message()?;
        if cursor.0.is_empty() {
            Ok(Some(message))
        } else {
            Err(malformed("it has more bytes than it should"))
        }
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a message that is none: {what}"),
    )
}

fn encode(message: &Message, out: &mut Vec<u8>) {
    match message {
        Message::Observe {
            batch,
            observations,
        } => {
            out.push(1);
            out.extend(batch.to_le_bytes());
            put_rows(out, observations);
        }
        Message::Act {
            batch,
            rollout,
            version,
            chunks,
        } => {
            out.push(2);
            [batch, rollout, version]
                .iter()
                .for_each(|n| out.extend(n.to_le_bytes()));
            put_rows(out, chunks);
        }
        Message::Trajectory {
            rollout,
            version,
            parts,
        } => {
            out.push(3);
            [rollout, version]
                .iter()
                .for_each(|n| out.extend(n.to_le_bytes()));
            out.extend((parts.len() as u32).to_le_bytes());
            for part in parts {
                [&part.first, &part.actions, &part.last]
                    .iter()
                    .for_each(|row| put_row(out, row));
                out.extend(part.reward.to_le_bytes());
                out.extend(part.steps.to_le_bytes());
                out.extend([u8::from(part.done), u8::from(part.success)]);
            }
        }
        Message::Weights { version, values } => {
            out.push(4);
            out.extend(version.to_le_bytes());
            put_row(out, values);
        }
    }
}

fn put_rows(out: &mut Vec<u8>, rows: &[Vec<f32>]) {
    out.extend((rows.len() as u32).to_le_bytes());
    rows.iter().for_each(|row| put_row(out, row));
}

fn put_row(out: &mut Vec<u8>, row: &[f32]) {
    out.extend((row.len() as u32).to_le_bytes());
    row.iter().for_each(|value| out.extend(value.to_le_bytes()));
}

/// What is left of a message.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn message(&mut self) -> io::Result<Message> {
        Ok(match self.u8()? {
            1 => Message::Observe {
                batch: self.u64()?,
                observations: self.rows()?,
            },
            2 => Message::Act {
                batch: self.u64()?,
                rollout: self.u64()?,
                version: self.u64()?,
                chunks: self.rows()?,
            },
            3 => Message::Trajectory {
                rollout: self.u64()?,
                version: self.u64()?,
                parts: self.list(Self::part)?,
            },
            4 => Message::Weights {
                version: self.u64()?,
                values: self.row()?,
            },
            _ => return Err(malformed("its kind is unknown")),
        })
    }

    fn part(&mut self) -> io::Result<Part> {
        Ok(Part {
            first: self.row()?,
            actions: self.row()?,
            last: self.row()?,
            reward: f32::from_le_bytes(self.take()?),
            steps: self.u32()?,
            done: self.u8()? != 0,
            success: self.u8()? != 0,
        })
    }

    fn rows(&mut self) -> io::Result<Vec<Vec<f32>>> {
        self.list(Self::row)
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> io::Result<T>) -> io::Result<Vec<T>> {
        // Grows with what is really there, not with what the count claims.
        let count = self.u32()?;
        (0..count).map(|_| one(self)).collect()
    }

    fn row(&mut self) -> io::Result<Vec<f32>> {
        let length = self.u32()? as usize;
        let bytes = length
            .checked_mul(4)
            .and_then(|n| self.0.split_at_checked(n));
        let (row, rest) = bytes.ok_or_else(|| malformed("it is too short"))?;
        self.0 = rest;
        let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Ok(row.chunks_exact(4).map(value).collect())
    }

    fn u8(&mut self) -> io::Result<u8> {
        Ok(u8::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (first, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| malformed("it is too short"))?;
        self.0 = rest;
        Ok(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Message> {
        let part = Part {
            first: vec![1.0, -2.5],
            actions: vec![0.1; 4],
            last: vec![3.0],
            reward: -0.5,
            steps: 2,
            done: true,
            success: false,
        };
        vec![
            Message::Observe {
                batch: 7,
                observations: vec![vec![1.0, 2.0], vec![]],
            },
            Message::Act {
                batch: u64::MAX,
                rollout: 3,
                version: 2,
                chunks: vec![vec![0.5; 3]],
            },
            Message::Trajectory {
                rollout: 1,
                version: 0,
                parts: vec![part.clone(), Part::default()],
            },
            Message::Weights {
                version: 9,
                values: vec![0.25; 5],
            },
        ]
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (here, there) = UnixStream::pair().unwrap();
        let (sender, _) = split(here).unwrap();
        let (_, mut receiver) = split(there).unwrap();
        for message in examples() {
            sender.send(&message).unwrap();
            assert_eq!(receiver.receive().unwrap(), Some(message));
        }
    }

    #[test]
    fn a_peer_that_hangs_up_is_no_error_but_half_a_message_is() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let (_, mut receiver) = split(there).unwrap();
        here.write_all(&[200, 0, 0, 0, 1]).unwrap();
        drop(here);
        assert!(receiver.receive().is_err());
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let (_, mut receiver) = split(there).unwrap();
        assert_eq!(receiver.receive().unwrap(), None);
    }

    #[test]
    fn nonsense_is_refused_without_taking_memory_for_it() {
        let check = |bytes: &[u8]| {
            let mut cursor = Cursor(bytes);
            assert!(cursor.message().is_err(), "{bytes:?}");
        };
        check(&[]);
        check(&[99]);
        check(&[1, 0, 0]);
        check(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]); // four thousand million rows
        check(&[4, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 1, 2]);
        for message in examples() {
            let mut bytes = Vec::new();
            encode(&message, &mut bytes);
            for length in 0..bytes.len() {
                assert!(
                    Cursor(&bytes[..length]).message().is_err(),
                    "{message:?} cut at {length}"
                );
            }
        }
    }
}
