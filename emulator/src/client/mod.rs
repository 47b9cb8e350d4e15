//! What users of an emulated GPU link: [`Client`] is a context, as a CUDA process would have one; [`Admin`] lists,
//! resizes and ends contexts. Blocking, and safe to share between threads. All times are CLOCK_BOOTTIME nanoseconds.

mod admin;
mod channel;
mod env;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use admin::Admin;
pub use env::{
    ContextOptions, ENV_MEMORY_LIMIT, ENV_PERCENTAGE, ENV_SOCKET, EnvError, parse_memory_limit,
    parse_percentage,
};

use crate::clock::boottime_ns;
use crate::limits::MAX_GROUPS;
use crate::model::{ClientId, KernelGroup, ModelError};
use crate::spec::GpuSpec;
use crate::wire::{ErrorCode, Reply, Request, WireError};
use channel::Channel;

/// A context on an emulated GPU. Dropping it ends the context; its SMs and memory are free at once.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    id: ClientId,
    sms: u32,
    memory_limit: u64,
    epoch_ns: u64,
    spec: GpuSpec,
}

/// A submission on its way; give it to [`Client::wait`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "a completion that is not waited for stays in memory until the client is dropped"]
pub struct Ticket(u64);

/// When a submission ran on the device, in CLOCK_BOOTTIME nanoseconds. Intervals of one context never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// When its first kernel was launched.
    pub start_ns: u64,
    /// When its last kernel ended.
    pub end_ns: u64,
}

/// Why a call to the emulated GPU failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error("cannot connect to the emulated GPU at {}: {reason}; is `evenkeel-gpu serve` running?", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The environment is not usable.
    #[error("cannot create a context from the environment")]
    Env(#[from] EnvError),
    /// The device refused; nothing changed.
    #[error("the emulated GPU refused: {message}")]
    Refused {
        /// What kind of refusal.
        code: ErrorCode,
        /// What was tried, what was wrong, what to do.
        message: String,
    },
    /// The context has ended: terminated, or in a fault of the GPU.
    #[error("the context has ended: {message}")]
    Ended {
        /// Why.
        code: ErrorCode,
        /// In words.
        message: String,
    },
    /// The device process is gone.
    #[error("the emulated GPU has hung up: its device process ended; connect again when it runs")]
    HungUp,
    /// The device does not speak our language.
    #[error("the emulated GPU sent what is no reply")]
    Wire(#[from] WireError),
    /// A reply to another question.
    #[error("the emulated GPU sent an unexpected reply: use device and client of one release")]
    Unexpected,
    /// The operating system.
    #[error("cannot {what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
}

impl Client {
    /// Creates a context as a CUDA process would: the GPU from EVENKEEL_GPU_SOCKET, the share from
    /// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, the memory limit from CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, all read *now*.
    /// Later changes of the environment touch only contexts that are created later.
    ///
    /// # Errors
    /// When a variable is missing or unreadable, nobody serves the socket, or the device refuses.
    pub fn connect_from_env(role: &str) -> Result<Self, ClientError> {
        let path = env::socket_from_env()?;
        Self::connect(&path, &ContextOptions::from_env(role)?)
    }

    /// Creates a context with explicit options.
    ///
    /// # Errors
    /// When nobody serves the socket or the device refuses.
    pub fn connect(path: &Path, options: &ContextOptions) -> Result<Self, ClientError> {
        let channel = Channel::open(path)?;
        let hello = Request::Hello {
            role: options.role.clone(),
            percentage: options.percentage,
            memory_limit: options.memory_limit,
        };
        match channel.call(&hello)? {
            Reply::Welcome {
                client,
                sms,
                memory_limit,
                epoch_ns,
                spec,
            } => Ok(Self {
                channel,
                id: client,
                sms,
                memory_limit,
                epoch_ns,
                spec,
            }),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The context's number, as the client list shows it.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The cap in SMs that the context was created with, after rounding. A resize does not change this figure.
    pub fn sms_at_creation(&self) -> u32 {
        self.sms
    }

    /// The context's memory limit in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit
    }

    /// What the GPU is.
    pub fn spec(&self) -> &GpuSpec {
        &self.spec
    }

    /// Submits kernels as one list with one completion, behind what was submitted before. Returns at once; up to
    /// [`MAX_QUEUED`](crate::limits::MAX_QUEUED) submissions may be under way. A refusal is returned by `wait`.
    ///
    /// # Errors
    /// When the list is longer than [`MAX_GROUPS`], the context has ended, or the device is gone.
    pub fn submit(&self, groups: &[KernelGroup]) -> Result<Ticket, ClientError> {
        if groups.len() > MAX_GROUPS {
            let message = ModelError::ListLength {
                groups: groups.len(),
            }
            .to_string();
            return Err(ClientError::Refused {
                code: ErrorCode::BadRequest,
                message,
            });
        }
        let submitted_ns = boottime_ns().map_err(|errno| ClientError::System {
            what: "read CLOCK_BOOTTIME",
            reason: errno.to_string(),
        })?;
        self.channel
            .send(&Request::Submit {
                submitted_ns,
                groups: groups.to_vec(),
            })
            .map(Ticket)
    }

    /// Waits until a submission is complete.
    ///
    /// # Errors
    /// When the device refused it, the context has ended, or the device is gone.
    pub fn wait(&self, ticket: Ticket) -> Result<Done, ClientError> {
        let reply = self.channel.wait(ticket.0)?;
        self.done(reply)
    }

    /// Waits for a submission for at most `timeout`; gives the ticket back if it is not complete by then.
    ///
    /// # Errors
    /// As [`Client::wait`].
    pub fn wait_timeout(
        &self,
        ticket: Ticket,
        timeout: Duration,
    ) -> Result<Result<Done, Ticket>, ClientError> {
        match self.channel.wait_for(ticket.0, Some(timeout))? {
            Some(reply) => self.done(reply).map(Ok),
            None => Ok(Err(ticket)),
        }
    }

    /// Changes this context's own SMs live, as a green context would: co-operative, also for kernels that run.
    /// Returns what is effective: rounded up to the granularity.
    ///
    /// # Errors
    /// When the GPU has fewer SMs, the context has ended, or the device is gone.
    pub fn resize(&self, sms: u32) -> Result<u32, ClientError> {
        match self.channel.call(&Request::Resize {
            client: self.id,
            sms,
        })? {
            Reply::Resized { effective } => Ok(effective),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// [`ErrorCode::OutOfMemory`] when the limit or the GPU's memory is used up; or the context or device is gone.
    pub fn alloc(&self, bytes: u64) -> Result<(), ClientError> {
        self.channel.call_ok(&Request::Alloc { bytes })
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// When less is allocated, or the context or device is gone.
    pub fn free(&self, bytes: u64) -> Result<(), ClientError> {
        self.channel.call_ok(&Request::Free { bytes })
    }

    fn done(&self, reply: Reply) -> Result<Done, ClientError> {
        match reply {
            Reply::Done { start_ns, end_ns } => Ok(Done {
                start_ns: self.epoch_ns.saturating_add(start_ns),
                end_ns: self.epoch_ns.saturating_add(end_ns),
            }),
            _ => Err(ClientError::Unexpected),
        }
    }
}
