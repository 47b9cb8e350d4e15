//! Every message survives the wire; nothing that is not a message passes.

use super::*;
use crate::limits::{MAX_CLIENTS, MAX_GROUPS, MAX_MESSAGE_BYTES, MAX_ROLE_BYTES};

fn requests() -> Vec<Request> {
    let group = KernelGroup {
        flops: 1,
        bytes: 2,
        width_blocks: 3,
        repeat: 4,
    };
    vec![
        Request::Hello {
            role: "generation/0".to_owned(),
            percentage: Some(25),
            memory_limit: None,
        },
        Request::Hello {
            role: String::new(),
            percentage: None,
            memory_limit: Some(0),
        },
        Request::Submit {
            submitted_ns: u64::MAX,
            groups: vec![group; MAX_GROUPS],
        },
        Request::Resize {
            client: ClientId(7),
            sms: 66,
        },
        Request::Alloc { bytes: 1 },
        Request::Free { bytes: 2 },
        Request::Gpu,
        Request::List,
        Request::Terminate {
            client: ClientId(9),
        },
        Request::Fault,
        Request::SetDefaultPercentage { percentage: 50 },
    ]
}

fn replies() -> Vec<Reply> {
    let client = ClientInfo {
        client: ClientId(1),
        pid: 2,
        uid: 3,
        start_time: 4,
        role: "r".repeat(MAX_ROLE_BYTES),
        sms: 5,
        memory_limit: 6,
        memory_used: 7,
        busy_ns: 8,
        queued: 9,
    };
    let gpu = GpuInfo {
        emulated: true,
        index: 1,
        spec: GpuSpec::a100(),
        state: GpuState::Fault,
        default_percentage: 30,
        epoch_ns: 5,
        device_pid: 6,
    };
    vec![
        Reply::Welcome {
            client: ClientId(1),
            sms: 2,
            memory_limit: 3,
            epoch_ns: 4,
            spec: GpuSpec::h200(),
        },
        Reply::Done {
            start_ns: 1,
            end_ns: 2,
        },
        Reply::Resized { effective: 2 },
        Reply::Ok,
        Reply::Error {
            code: ErrorCode::OutOfMemory,
            message: "no".to_owned(),
        },
        Reply::Gpu(gpu),
        Reply::Clients(vec![client; MAX_CLIENTS]),
        Reply::Ended {
            code: ErrorCode::Faulted,
            message: String::new(),
        },
    ]
}

#[test]
fn every_message_survives() {
    for request in requests() {
        let bytes = encode_request(42, &request);
        assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{} bytes", bytes.len());
        assert_eq!(peek_seq(&bytes), 42);
        assert_eq!(decode_request(&bytes), Ok((42, request)));
    }
    for reply in replies() {
        let bytes = encode_reply(43, &reply);
        assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{} bytes", bytes.len());
        assert_eq!(decode_reply(&bytes), Ok((43, reply)));
    }
}

#[test]
fn no_prefix_and_no_extension_is_a_message() {
    for request in requests() {
        let mut bytes = encode_request(1, &request);
        let step = (bytes.len() / 100).max(1);
        for length in (0..bytes.len()).step_by(step) {
            assert!(
                decode_request(&bytes[..length]).is_err(),
                "{length} bytes of {request:?}"
            );
        }
        bytes.push(0);
        assert!(decode_request(&bytes).is_err());
    }
}

#[test]
fn wrong_bytes_are_named() {
    let check = |bytes: &[u8], expect: WireError| assert_eq!(decode_request(bytes), Err(expect));
    let mut frame = encode_request(1, &Request::List);
    frame[0] = 9;
    check(&frame, WireError::Version(9));
    frame[0] = VERSION;
    frame[1] = 200;
    check(&frame, WireError::Tag(200));
    check(
        &vec![0; MAX_MESSAGE_BYTES + 1],
        WireError::TooLarge(MAX_MESSAGE_BYTES + 1),
    );
    // A count that the bytes behind it could not hold is refused before anything is allocated.
    let mut submit = encode_request(
        1,
        &Request::Submit {
            submitted_ns: 0,
            groups: vec![],
        },
    );
    submit.truncate(submit.len() - 4);
    submit.extend_from_slice(&u32::MAX.to_le_bytes());
    check(&submit, WireError::Field("groups"));
}

#[test]
fn long_text_is_cut_at_a_character() {
    let bytes = encode_reply(
        1,
        &Reply::Error {
            code: ErrorCode::Limit,
            message: "é".repeat(1000),
        },
    );
    let Ok((1, Reply::Error { message, .. })) = decode_reply(&bytes) else {
        panic!("no error reply")
    };
    assert_eq!(message, "é".repeat(256));
}
