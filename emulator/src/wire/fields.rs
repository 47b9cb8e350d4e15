//! The fields of messages. Every length is checked before anything is allocated; bytes left over are an error.

use super::codec::WireError;
use super::{ClientInfo, ErrorCode, VERSION};
use crate::limits::{MAX_CLIENTS, MAX_GROUPS, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_ROLE_BYTES};
use crate::model::{ClientId, KernelGroup};
use crate::spec::GpuSpec;

/// Bytes of an error's text at most; a longer one is cut.
pub(super) const MAX_TEXT_BYTES: usize = 512;

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

pub(super) fn code_byte(code: ErrorCode) -> u8 {
    CODES.iter().position(|known| *known == code).unwrap_or(0) as u8
}

pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn new(tag: u8, seq: u64) -> Self {
        Self {
            bytes: vec![VERSION, tag],
        }
        .u64(seq)
    }

    pub(super) fn u8(mut self, value: u8) -> Self {
        self.bytes.push(value);
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn option(self, value: Option<u64>) -> Self {
        self.u8(u8::from(value.is_some())).u64(value.unwrap_or(0))
    }

    pub(super) fn text(mut self, text: &str, limit: usize) -> Self {
        let cut = text.floor_char_boundary(limit);
        let text = &text.as_bytes()[..cut];
        self.bytes
            .extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(text);
        self
    }

    pub(super) fn spec(self, spec: &GpuSpec) -> Self {
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

    pub(super) fn client(self, client: &ClientInfo) -> Self {
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

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<(Self, u8, u64), WireError> {
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

    pub(super) fn close(self) -> Result<(), WireError> {
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

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn option(&mut self, field: &'static str) -> Result<Option<u64>, WireError> {
        match (self.u8()?, self.u64()?) {
            (0, 0) => Ok(None),
            (1, value) => Ok(Some(value)),
            _ => Err(WireError::Field(field)),
        }
    }

    pub(super) fn text(&mut self, field: &'static str, limit: usize) -> Result<String, WireError> {
        let length = usize::from(self.array().map(u16::from_le_bytes)?);
        if length > limit {
            return Err(WireError::Field(field));
        }
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| WireError::Field(field))
    }

    pub(super) fn code(&mut self) -> Result<ErrorCode, WireError> {
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

    pub(super) fn groups(&mut self) -> Result<Vec<KernelGroup>, WireError> {
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

    pub(super) fn spec(&mut self) -> Result<GpuSpec, WireError> {
        let spec = GpuSpec {
            name: self.text("name", MAX_NAME_BYTES)?,
            sms: self.u32()?,
            memory_bytes: self.u64()?,
            memory_bandwidth_bytes_per_s: self.u64()?,
            sm_bandwidth_bytes_per_s: self.u64()?,
            flops_per_s: self.u64()?,
            sm_granularity: self.u32()?,
            launch_overhead_ns: self.u64()?,
            blocks_per_sm: self.u32()?,
        };
        // Whoever gets it computes with it.
        spec.validate().map_err(|_| WireError::Field("spec"))?;
        Ok(spec)
    }

    pub(super) fn clients(&mut self) -> Result<Vec<ClientInfo>, WireError> {
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
