//! The messages between a device and its users: one request or reply per SOCK_SEQPACKET datagram, in a small binary
//! form (`codec`). No sockets here, no logic.
//!
//! A frame is `version: u8, tag: u8, seq: u64, fields…`, little-endian. A reply carries the `seq` of its request; a
//! submission's `seq` is its name, and its reply is [`Reply::Done`] when it completes. Unasked replies have `seq` 0.

mod codec;
mod fields;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::model::{ClientId, KernelGroup};
use crate::spec::GpuSpec;

pub use codec::{WireError, decode_reply, decode_request, encode_reply, encode_request, peek_seq};

/// The version of the messages. Device and client come from one release; another version is refused.
pub const VERSION: u8 = 1;

/// What is asked of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates this connection's context. Answer: [`Reply::Welcome`]. The process is known from the socket's peer
    /// credentials, never from the message.
    Hello {
        /// What the client calls itself, for the client list.
        role: String,
        /// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, if set: 1 to 100. The lower of it and the GPU's default holds.
        percentage: Option<u32>,
        /// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT for this GPU in bytes, if set.
        memory_limit: Option<u64>,
    },
    /// Puts kernels into the context's stream. Answer: [`Reply::Done`] on completion, or an error.
    Submit {
        /// When the client submitted, in CLOCK_BOOTTIME nanoseconds.
        submitted_ns: u64,
        /// The kernels, in order.
        groups: Vec<KernelGroup>,
    },
    /// Changes a context's SMs live, as a green context would. A context may resize itself only; an administrator
    /// any. Answer: [`Reply::Resized`].
    Resize {
        /// The context.
        client: ClientId,
        /// SMs, 0 to the GPU's; rounded up to the granularity.
        sms: u32,
    },
    /// Allocates device memory. Answer: [`Reply::Ok`].
    Alloc {
        /// Bytes.
        bytes: u64,
    },
    /// Frees device memory. Answer: [`Reply::Ok`].
    Free {
        /// Bytes.
        bytes: u64,
    },
    /// What the GPU is and how it is. Answer: [`Reply::Gpu`].
    Gpu,
    /// The contexts. Answer: [`Reply::Clients`].
    List,
    /// Ends a context, as MPS's `terminate_client` does. Answer: [`Reply::Ok`].
    Terminate {
        /// The context.
        client: ClientId,
    },
    /// A fatal fault: ends all contexts of the GPU, as under MPS. Answer: [`Reply::Ok`].
    Fault,
    /// Sets the percentage that *new* contexts get at most. Answer: [`Reply::Ok`].
    SetDefaultPercentage {
        /// 1 to 100.
        percentage: u32,
    },
}

/// What a device answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The context exists.
    Welcome {
        /// Its number.
        client: ClientId,
        /// Its cap in SMs, after rounding.
        sms: u32,
        /// Its memory limit in bytes.
        memory_limit: u64,
        /// The device's time 0 in CLOCK_BOOTTIME nanoseconds.
        epoch_ns: u64,
        /// What the GPU is.
        spec: GpuSpec,
    },
    /// A submission is complete; times in nanoseconds since the device's time 0.
    Done {
        /// When its first kernel was launched.
        start_ns: u64,
        /// When its last kernel ended.
        end_ns: u64,
    },
    /// A context has a new cap.
    Resized {
        /// In SMs, after rounding.
        effective: u32,
    },
    /// Done as asked.
    Ok,
    /// Refused; nothing changed.
    Error {
        /// What kind.
        code: ErrorCode,
        /// What was tried, what was wrong, what to do.
        message: String,
    },
    /// The GPU.
    Gpu(GpuInfo),
    /// The contexts, ascending.
    Clients(Vec<ClientInfo>),
    /// Unasked: this connection's context has ended; every later request is refused.
    Ended {
        /// Why.
        code: ErrorCode,
        /// In words.
        message: String,
    },
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Not a message, or one that is out of range or out of place.
    BadRequest,
    /// No such context.
    UnknownClient,
    /// The context's limit or the GPU's memory is used up.
    OutOfMemory,
    /// A limit of the device is reached: contexts, queue, connections.
    Limit,
    /// Not this peer's to ask.
    Forbidden,
    /// The GPU had a fault and waits until all affected processes have exited.
    NotReady,
    /// The context was terminated by an administrator.
    Terminated,
    /// The context ended in a fault of the GPU.
    Faulted,
}

/// Whether new contexts can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuState {
    /// As usual.
    Active,
    /// After a fault, until the last affected process has exited (the MPS server's FAULT state).
    Fault,
}

/// What a GPU is and how it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuInfo {
    /// Always true: the specification may be a real GPU's, the device never is.
    pub emulated: bool,
    /// Its place in the device process, from 0.
    pub index: u32,
    /// What it is.
    pub spec: GpuSpec,
    /// Whether it accepts new contexts.
    pub state: GpuState,
    /// What new contexts get at most, in percent.
    pub default_percentage: u32,
    /// The device's time 0 in CLOCK_BOOTTIME nanoseconds.
    pub epoch_ns: u64,
    /// The device's process.
    pub device_pid: u32,
}

/// One context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClientInfo {
    /// Its number.
    pub client: ClientId,
    /// Its process, from the socket's peer credentials; 0 if that is in another pid namespace.
    pub pid: u32,
    /// That process's user.
    pub uid: u32,
    /// When that process started: field 22 of /proc/PID/stat, clock ticks since boot; 0 if unreadable.
    pub start_time: u64,
    /// What it calls itself.
    pub role: String,
    /// Its cap in SMs, effective.
    pub sms: u32,
    /// Its memory limit in bytes.
    pub memory_limit: u64,
    /// Bytes that it has allocated.
    pub memory_used: u64,
    /// Nanoseconds during which one of its submissions was running.
    pub busy_ns: u64,
    /// Submissions that wait or run.
    pub queued: u32,
}
