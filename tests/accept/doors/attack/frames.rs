//! HTTP/2 frames by hand (RFC 9113), as no library would send them.
use prost::Message;

/// What a client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
pub(super) const HEAD: usize = 9;
/// The largest payload that a server has to take.
pub(super) const PAYLOAD_MAX: usize = 16 << 10;

/// Kinds of frames, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Data = 0,
    Headers = 1,
    Priority = 2,
    Reset = 3,
    Settings = 4,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
    Continuation = 9,
}

/// The last frame of a stream.
pub(super) const END_STREAM: u8 = 1;
/// Of SETTINGS and PING: an answer.
pub(super) const ACK: u8 = 1;
/// The last frame of a block of headers.
pub(super) const END_HEADERS: u8 = 4;
/// DATA with padding.
pub(super) const PADDED: u8 = 8;

/// One frame.
pub(super) fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&len.to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind as u8, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// SETTINGS with these values.
pub(super) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in values {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(Kind::Settings, 0, 0, &payload)
}

/// The window of each new stream.
pub(super) const INITIAL_WINDOW: u16 = 4;

/// More window for a stream, or (0) for the connection.
pub(super) fn window_update(stream: u32, more: u32) -> Vec<u8> {
    frame(Kind::WindowUpdate, 0, stream, &more.to_be_bytes())
}

/// RST_STREAM with CANCEL.
pub(super) fn reset(stream: u32) -> Vec<u8> {
    frame(Kind::Reset, 0, stream, &8u32.to_be_bytes())
}

/// The headers of a call as a block of literals: nothing of it enters a table.
pub(super) fn call(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // POST, http
    literal(&mut block, 4, "", path);
    literal(&mut block, 1, "", "localhost");
    literal(&mut block, 31, "", "application/grpc");
    literal(&mut block, 0, "te", "trailers");
    block
}

/// A literal without indexing; `index` 0: with its own name.
pub(super) fn literal(block: &mut Vec<u8>, index: u8, name: &str, value: &str) {
    if index < 15 {
        block.push(index);
    } else {
        block.extend_from_slice(&[0x0f, index - 15]);
    }
    if index == 0 {
        text(block, name);
    }
    text(block, value);
}

fn text(block: &mut Vec<u8>, text: &str) {
    let len = text.len();
    if len < 127 {
        block.push(len as u8);
    } else {
        block.push(127);
        let mut rest = len - 127;
        while rest >= 128 {
            block.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        block.push(rest as u8);
    }
    block.extend_from_slice(text.as_bytes());
}

/// HEADERS that begin a call.
pub(super) fn begin(stream: u32, path: &str) -> Vec<u8> {
    frame(Kind::Headers, END_HEADERS, stream, &call(path))
}

/// A message with its prefix (gRPC over HTTP/2).
pub(super) fn message(message: &impl Message) -> Vec<u8> {
    prefixed(&message.encode_to_vec())
}

/// The same for bytes.
pub(super) fn prefixed(bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![0];
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    all.extend_from_slice(&len.to_be_bytes());
    all.extend_from_slice(bytes);
    all
}

/// Bytes as DATA frames.
pub(super) fn data(stream: u32, bytes: &[u8], end: bool) -> Vec<u8> {
    let mut all = Vec::new();
    let mut chunks = bytes.chunks(PAYLOAD_MAX).peekable();
    while let Some(chunk) = chunks.next() {
        let last = end && chunks.peek().is_none();
        all.extend(frame(Kind::Data, u8::from(last), stream, chunk));
    }
    all
}

/// A whole unary call.
pub(super) fn unary(stream: u32, path: &str, of: &impl Message) -> Vec<u8> {
    let mut all = begin(stream, path);
    all.extend(data(stream, &message(of), true));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_in_the_standard() {
        let bytes = frame(Kind::Ping, ACK, 3, b"12345678");
        assert_eq!(bytes[..HEAD], [0, 0, 8, 6, 1, 0, 0, 0, 3]);
        assert_eq!(settings(&[(INITIAL_WINDOW, 1)])[HEAD..], [0, 4, 0, 0, 0, 1]);
        let mut block = Vec::new();
        literal(&mut block, 0, "a", &"b".repeat(300));
        assert_eq!(block[..6], [0, 1, b'a', 127, 173, 1], "RFC 7541, 5.1");
        assert_eq!(
            data(1, &[0; PAYLOAD_MAX + 1], true).len(),
            PAYLOAD_MAX + 1 + 2 * HEAD
        );
    }
}
