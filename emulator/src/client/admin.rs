//! The administrator's side of an emulated GPU: what the MPS control program and `nvidia-smi` would be.

use std::path::Path;

use super::ClientError;
use super::channel::Channel;
use crate::model::ClientId;
use crate::wire::{ClientInfo, GpuInfo, Reply, Request};

/// A connection without a context. Only the device's own user and root are answered.
#[derive(Debug)]
pub struct Admin {
    channel: Channel,
}

impl Admin {
    /// Connects to a GPU's socket.
    ///
    /// # Errors
    /// When nobody serves it.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Channel::open(path).map(|channel| Self { channel })
    }

    /// What the GPU is and how it is.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn gpu(&self) -> Result<GpuInfo, ClientError> {
        match self.channel.call(&Request::Gpu)? {
            Reply::Gpu(info) => Ok(info),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The contexts, ascending.
    ///
    /// # Errors
    /// When this user may not ask, or the device is gone.
    pub fn list(&self) -> Result<Vec<ClientInfo>, ClientError> {
        match self.channel.call(&Request::List)? {
            Reply::Clients(clients) => Ok(clients),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Changes a context's SMs live and returns what is effective: rounded up to the granularity; 0 stops it.
    ///
    /// # Errors
    /// When there is no such context or the GPU has fewer SMs.
    pub fn resize(&self, client: ClientId, sms: u32) -> Result<u32, ClientError> {
        match self.channel.call(&Request::Resize { client, sms })? {
            Reply::Resized { effective } => Ok(effective),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Ends a context, as MPS's `terminate_client` does.
    ///
    /// # Errors
    /// When there is no such context.
    pub fn terminate(&self, client: ClientId) -> Result<(), ClientError> {
        self.channel.call_ok(&Request::Terminate { client })
    }

    /// Makes the GPU fault: all of its contexts end, and new ones are refused until all their processes hung up.
    ///
    /// # Errors
    /// When this user may not, or the device is gone.
    pub fn fault(&self) -> Result<(), ClientError> {
        self.channel.call_ok(&Request::Fault)
    }

    /// Sets the percentage that *new* contexts get at most; existing ones keep theirs.
    ///
    /// # Errors
    /// When it is not from 1 to 100.
    pub fn set_default_percentage(&self, percentage: u32) -> Result<(), ClientError> {
        self.channel
            .call_ok(&Request::SetDefaultPercentage { percentage })
    }
}
