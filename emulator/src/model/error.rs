//! Why the model refuses a call. A refused call changes nothing.

use super::ClientId;
use crate::limits::{MAX_CLIENTS, MAX_GROUPS, MAX_QUEUED};

/// A refusal of the model: what was asked, what is wrong, what would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No context has this number, or it has ended.
    #[error("no client {} on this GPU: it never existed or has ended; list the clients", .0.0)]
    UnknownClient(ClientId),
    /// The GPU serves as many contexts as it can.
    #[error(
        "cannot create a context: the GPU serves {MAX_CLIENTS} already, the most that MPS allows; end one first"
    )]
    TooManyClients,
    /// More SMs than there are.
    #[error("cannot give {asked} SMs: the GPU has {installed}")]
    Sms {
        /// SMs asked for.
        asked: u32,
        /// SMs of the GPU.
        installed: u32,
    },
    /// A limit above the GPU's memory.
    #[error("cannot set a memory limit of {asked} bytes: the GPU has {installed}")]
    MemoryLimit {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the GPU.
        installed: u64,
    },
    /// The client's limit or the GPU's memory is used up.
    #[error("out of memory: {asked} bytes asked, {free} free (the client's limit is {limit})")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that could be had.
        free: u64,
        /// The client's limit in bytes.
        limit: u64,
    },
    /// More freed than was allocated.
    #[error("cannot free {asked} bytes: the client has allocated {used}")]
    NotAllocated {
        /// Bytes to be freed.
        asked: u64,
        /// Bytes that are allocated.
        used: u64,
    },
    /// The stream is full.
    #[error("the client's queue is full at {MAX_QUEUED} submissions: wait for one to complete")]
    QueueFull,
    /// An empty or a too long list.
    #[error("a submission of {groups} kernel groups: it must have from 1 to {MAX_GROUPS}")]
    ListLength {
        /// Groups in the list.
        groups: usize,
    },
    /// A kernel that is out of range.
    #[error("kernel group {index}: {must}")]
    Kernel {
        /// Its place in the list, from 0.
        index: usize,
        /// What must hold.
        must: &'static str,
    },
}
