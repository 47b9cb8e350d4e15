//! A GPU stream: lists of kernels go in, completions come out on a thread of their own, with the device's times.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use evenkeel_gpu::{Client, ClientError, KernelGroup, Ticket};

/// When a list ran, by the device's clock (CLOCK_BOOTTIME nanoseconds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// What it was submitted with.
    pub token: u64,
    /// When its first kernel was launched.
    pub start_ns: u64,
    /// When its last kernel ended.
    pub end_ns: u64,
}

/// Why a GPU stream failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The device.
    #[error("the GPU stream failed")]
    Device(#[source] ClientError),
    /// The waiting thread is gone.
    #[error("the GPU stream's thread is gone: an earlier list failed")]
    Closed,
    /// The system gives no thread.
    #[error("cannot start the thread that waits for the GPU")]
    Thread(#[source] std::io::Error),
}

/// Something that runs lists of kernels in order.
pub trait Compute: Send {
    /// Puts a list into the stream; its completion arrives with `token`.
    ///
    /// # Errors
    /// When the stream has failed.
    fn submit(&self, token: u64, list: &[KernelGroup]) -> Result<(), LaneError>;
}

/// The stream of a context on an emulated GPU.
pub struct GpuLane {
    client: Arc<Client>,
    waiting: Mutex<Sender<(u64, Ticket)>>,
}

impl GpuLane {
    /// `sink` is called on the waiting thread with each completion, in order; with an error once, at the end.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        client: Arc<Client>,
        sink: impl Fn(Result<Ran, LaneError>) + Send + 'static,
    ) -> Result<Self, LaneError> {
        let (waiting, tickets) = channel::<(u64, Ticket)>();
        let device = Arc::clone(&client);
        let work = move || {
            for (token, ticket) in tickets {
                let done = device.wait(ticket);
                let failed = done.is_err();
                sink(done.map_err(LaneError::Device).map(|done| Ran {
                    token,
                    start_ns: done.start_ns,
                    end_ns: done.end_ns,
                }));
                if failed {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("gpu-lane".to_owned())
            .spawn(work)
            .map_err(LaneError::Thread)?;
        Ok(Self {
            client,
            waiting: Mutex::new(waiting),
        })
    }
}

impl Compute for GpuLane {
    fn submit(&self, token: u64, list: &[KernelGroup]) -> Result<(), LaneError> {
        // Submission and hand-over are one step, so that tickets are waited for in the order of the stream.
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = self.client.submit(list).map_err(LaneError::Device)?;
        waiting.send((token, ticket)).map_err(|_| LaneError::Closed)
    }
}
