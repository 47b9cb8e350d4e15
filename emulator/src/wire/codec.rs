//! Messages to bytes and back: which fields each has, in which order. How a field looks is `fields`' business.

use super::fields::{MAX_TEXT_BYTES, Reader, Writer, code_byte};
use super::{GpuInfo, GpuState, Reply, Request, VERSION};
use crate::limits::{MAX_MESSAGE_BYTES, MAX_ROLE_BYTES};
use crate::model::ClientId;

/// A datagram that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Another version.
    #[error(
        "message of version {0}, but this side speaks {VERSION}: use device and client of one release"
    )]
    Version(u8),
    /// No such message.
    #[error("unknown message tag {0}")]
    Tag(u8),
    /// The bytes end too early.
    #[error("message ends {0} bytes too early")]
    Short(usize),
    /// Bytes after the end.
    #[error("{0} bytes after the end of the message")]
    Long(usize),
    /// A value that its field cannot have.
    #[error("field `{0}` has a value that it cannot have")]
    Field(&'static str),
    /// More than one datagram may hold.
    #[error("message of {0} bytes, but {MAX_MESSAGE_BYTES} are allowed")]
    TooLarge(usize),
}

/// The `seq` of a frame that may be unreadable otherwise; 0 if it has none.
pub fn peek_seq(bytes: &[u8]) -> u64 {
    bytes
        .get(2..10)
        .and_then(|seq| seq.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// A request as bytes.
pub fn encode_request(seq: u64, request: &Request) -> Vec<u8> {
    match request {
        Request::Hello {
            role,
            percentage,
            memory_limit,
        } => Writer::new(1, seq)
            .text(role, MAX_ROLE_BYTES)
            .option(percentage.map(u64::from))
            .option(*memory_limit),
        Request::Submit {
            submitted_ns,
            groups,
        } => {
            let frame = Writer::new(2, seq)
                .u64(*submitted_ns)
                .u32(groups.len() as u32);
            groups.iter().fold(frame, |frame, group| {
                frame
                    .u64(group.flops)
                    .u64(group.bytes)
                    .u32(group.width_blocks)
                    .u32(group.repeat)
            })
        }
        Request::Resize { client, sms } => Writer::new(3, seq).u64(client.0).u32(*sms),
        Request::Alloc { bytes } => Writer::new(4, seq).u64(*bytes),
        Request::Free { bytes } => Writer::new(5, seq).u64(*bytes),
        Request::Gpu => Writer::new(6, seq),
        Request::List => Writer::new(7, seq),
        Request::Terminate { client } => Writer::new(8, seq).u64(client.0),
        Request::Fault => Writer::new(9, seq),
        Request::SetDefaultPercentage { percentage } => Writer::new(10, seq).u32(*percentage),
    }
    .bytes
}

/// A request from bytes.
///
/// # Errors
/// When the bytes are not exactly one request of this version.
pub fn decode_request(bytes: &[u8]) -> Result<(u64, Request), WireError> {
    let (mut reader, tag, seq) = Reader::open(bytes)?;
    let request = match tag {
        1 => Request::Hello {
            role: reader.text("role", MAX_ROLE_BYTES)?,
            percentage: match reader.option("percentage")? {
                Some(value) => {
                    Some(u32::try_from(value).map_err(|_| WireError::Field("percentage"))?)
                }
                None => None,
            },
            memory_limit: reader.option("memory_limit")?,
        },
        2 => Request::Submit {
            submitted_ns: reader.u64()?,
            groups: reader.groups()?,
        },
        3 => Request::Resize {
            client: ClientId(reader.u64()?),
            sms: reader.u32()?,
        },
        4 => Request::Alloc {
            bytes: reader.u64()?,
        },
        5 => Request::Free {
            bytes: reader.u64()?,
        },
        6 => Request::Gpu,
        7 => Request::List,
        8 => Request::Terminate {
            client: ClientId(reader.u64()?),
        },
        9 => Request::Fault,
        10 => Request::SetDefaultPercentage {
            percentage: reader.u32()?,
        },
        other => return Err(WireError::Tag(other)),
    };
    reader.close()?;
    Ok((seq, request))
}

/// A reply as bytes.
pub fn encode_reply(seq: u64, reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Welcome {
            client,
            sms,
            memory_limit,
            epoch_ns,
            spec,
        } => Writer::new(1, seq)
            .u64(client.0)
            .u32(*sms)
            .u64(*memory_limit)
            .u64(*epoch_ns)
            .spec(spec),
        Reply::Done { start_ns, end_ns } => Writer::new(2, seq).u64(*start_ns).u64(*end_ns),
        Reply::Resized { effective } => Writer::new(3, seq).u32(*effective),
        Reply::Ok => Writer::new(4, seq),
        Reply::Error { code, message } => Writer::new(5, seq)
            .u8(code_byte(*code))
            .text(message, MAX_TEXT_BYTES),
        Reply::Gpu(info) => Writer::new(6, seq)
            .u32(info.index)
            .u8(u8::from(info.state == GpuState::Fault))
            .u32(info.default_percentage)
            .u64(info.epoch_ns)
            .u32(info.device_pid)
            .spec(&info.spec),
        Reply::Clients(clients) => {
            let frame = Writer::new(7, seq).u32(clients.len() as u32);
            clients.iter().fold(frame, Writer::client)
        }
        Reply::Ended { code, message } => Writer::new(8, seq)
            .u8(code_byte(*code))
            .text(message, MAX_TEXT_BYTES),
    }
    .bytes
}

/// A reply from bytes.
///
/// # Errors
/// When the bytes are not exactly one reply of this version.
pub fn decode_reply(bytes: &[u8]) -> Result<(u64, Reply), WireError> {
    let (mut reader, tag, seq) = Reader::open(bytes)?;
    let reply = match tag {
        1 => Reply::Welcome {
            client: ClientId(reader.u64()?),
            sms: reader.u32()?,
            memory_limit: reader.u64()?,
            epoch_ns: reader.u64()?,
            spec: reader.spec()?,
        },
        2 => Reply::Done {
            start_ns: reader.u64()?,
            end_ns: reader.u64()?,
        },
        3 => Reply::Resized {
            effective: reader.u32()?,
        },
        4 => Reply::Ok,
        5 => Reply::Error {
            code: reader.code()?,
            message: reader.text("message", MAX_TEXT_BYTES)?,
        },
        6 => Reply::Gpu(GpuInfo {
            emulated: true,
            index: reader.u32()?,
            state: if reader.u8()? == 0 {
                GpuState::Active
            } else {
                GpuState::Fault
            },
            default_percentage: reader.u32()?,
            epoch_ns: reader.u64()?,
            device_pid: reader.u32()?,
            spec: reader.spec()?,
        }),
        7 => Reply::Clients(reader.clients()?),
        8 => Reply::Ended {
            code: reader.code()?,
            message: reader.text("message", MAX_TEXT_BYTES)?,
        },
        other => return Err(WireError::Tag(other)),
    };
    reader.close()?;
    Ok((seq, reply))
}
