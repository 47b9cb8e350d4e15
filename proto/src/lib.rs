//! The wire of Evenkeel: the messages and services of `evenkeel.v1`, generated. No logic.

pub mod codec;

/// Version 1. Names and numbers are for ever; see the `.proto` files for units and errors.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("evenkeel.v1");

    /// The descriptors of every file, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/evenkeel.v1.bin"));
}
