//! The codec of every call: Protobuf, with buffers that begin small.
//!
//! tonic makes two buffers of 8 KiB for each call, and keeps them for as long as the call lasts. A session lasts for as
//! long as its worker, and its frames have some hundred bytes: with a thousand of them the buffers were a tenth of the
//! daemon's memory. A larger message makes its buffer grow.
use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// Bytes of a buffer at first, and by which it grows: a session's frame with ten leases, or a lease's answer.
const BUFFER: usize = 1 << 10;
/// So many bytes are encoded before they are handed on: tonic's own default.
const YIELD: usize = 32 << 10;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD))
    }
    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD))
    }
}
