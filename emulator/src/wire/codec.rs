//! Messages to bytes and back. Every length is checked before anything is allocated; bytes left over are an error.

use super::{ClientInfo, ErrorCode, GpuInfo, GpuState, Reply, Request, VERSION};
use crate::limits::{MAX_CLIENTS, MAX_GROUPS, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_ROLE_BYTES};
use crate::model::{ClientId, KernelGroup};
use crate::spec::GpuSpec;

/// Bytes of an error's text at most; a longer one is cut.
const MAX_TEXT_BYTES: usize = 512;

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

const CODES: [ErrorCode; 8] = [
    ErrorCode::BadRequest,
    ErrorCode::UnknownClient,
    ErrorCode::OutOfMemory,
    ErrorCode::Limit,
    ErrorCode::Forbidden,
    ErrorCode::NotReady,
    ErrorCode::Terminated,
    ErrorCode::Faulted,
];

fn code_byte(code: ErrorCode) -> u8 {
    CODES.iter().position(|known| *known == code).unwrap_or(0) as u8
}

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn new(tag: u8, seq: u64) -> Self {
        Self {
            bytes: vec![VERSION, tag],
        }
        .u64(seq)
    }

    fn u8(mut self, value: u8) -> Self {
        self.bytes.push(value);
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn option(self, value: Option<u64>) -> Self {
        self.u8(u8::from(value.is_some())).u64(value.unwrap_or(0))
    }

    fn text(mut self, text: &str, limit: usize) -> Self {
        let cut = text.floor_char_boundary(limit);
        let text = &text.as_bytes()[..cut];
        self.bytes
            .extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(text);
        self
    }

    fn spec(self, spec: &GpuSpec) -> Self {
        self.text(&spec.name, MAX_NAME_BYTES)
            .u32(spec.sms)
            .u64(spec.memory_bytes)
            .u64(spec.memory_bandwidth_bytes_per_s)
            .u64(spec.sm_bandwidth_bytes_per_s)
            .u64(spec.flops_per_s)
            .u32(spec.sm_granularity)
            .u64(spec.launch_overhead_ns)
            .u32(spec.blocks_per_sm)
    }

    fn client(self, client: &ClientInfo) -> Self {
        self.u64(client.client.0)
            .u32(client.pid)
            .u32(client.uid)
            .u64(client.start_time)
            .text(&client.role, MAX_ROLE_BYTES)
            .u32(client.sms)
            .u64(client.memory_limit)
            .u64(client.memory_used)
            .u64(client.busy_ns)
            .u32(client.queued)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(bytes: &'a [u8]) -> Result<(Self, u8, u64), WireError> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(WireError::TooLarge(bytes.len()));
        }
        let mut reader = Self { bytes };
        let version = reader.u8()?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let tag = reader.u8()?;
        let seq = reader.u64()?;
        Ok((reader, tag, seq))
    }

    fn close(self) -> Result<(), WireError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(WireError::Long(self.bytes.len()))
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let Some((head, tail)) = self.bytes.split_at_checked(count) else {
            return Err(WireError::Short(count - self.bytes.len()));
        };
        self.bytes = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N)?.try_into().map_err(|_| WireError::Short(N))
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    fn option(&mut self, field: &'static str) -> Result<Option<u64>, WireError> {
        match (self.u8()?, self.u64()?) {
            (0, 0) => Ok(None),
            (1, value) => Ok(Some(value)),
            _ => Err(WireError::Field(field)),
        }
    }

    fn text(&mut self, field: &'static str, limit: usize) -> Result<String, WireError> {
        let length = usize::from(self.array().map(u16::from_le_bytes)?);
        if length > limit {
            return Err(WireError::Field(field));
        }
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| WireError::Field(field))
    }

    fn code(&mut self) -> Result<ErrorCode, WireError> {
        let code = usize::from(self.u8()?);
        CODES.get(code).copied().ok_or(WireError::Field("code"))
    }

    fn count(&mut self, field: &'static str, limit: usize) -> Result<usize, WireError> {
        let count = self.u32()? as usize;
        if count > limit {
            Err(WireError::Field(field))
        } else {
            Ok(count)
        }
    }

    fn groups(&mut self) -> Result<Vec<KernelGroup>, WireError> {
        let count = self.count("groups", MAX_GROUPS)?;
        let mut group = || {
            Ok(KernelGroup {
                flops: self.u64()?,
                bytes: self.u64()?,
                width_blocks: self.u32()?,
                repeat: self.u32()?,
            })
        };
        (0..count).map(|_| group()).collect()
    }

    fn spec(&mut self) -> Result<GpuSpec, WireError> {
        Ok(GpuSpec {
            name: self.text("name", MAX_NAME_BYTES)?,
            sms: self.u32()?,
            memory_bytes: self.u64()?,
            memory_bandwidth_bytes_per_s: self.u64()?,
            sm_bandwidth_bytes_per_s: self.u64()?,
            flops_per_s: self.u64()?,
            sm_granularity: self.u32()?,
            launch_overhead_ns: self.u64()?,
            blocks_per_sm: self.u32()?,
        })
    }

    fn clients(&mut self) -> Result<Vec<ClientInfo>, WireError> {
        let count = self.count("clients", MAX_CLIENTS)?;
        let mut client = || {
            Ok(ClientInfo {
                client: ClientId(self.u64()?),
                pid: self.u32()?,
                uid: self.u32()?,
                start_time: self.u64()?,
                role: self.text("role", MAX_ROLE_BYTES)?,
                sms: self.u32()?,
                memory_limit: self.u64()?,
                memory_used: self.u64()?,
                busy_ns: self.u64()?,
                queued: self.u32()?,
            })
        };
        (0..count).map(|_| client()).collect()
    }
}
