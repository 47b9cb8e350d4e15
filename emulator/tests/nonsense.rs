//! Peers that do not keep to the protocol: nobody else notices them.

#![allow(clippy::expect_used, reason = "a test whose rig fails has failed")]

mod rig;

use std::os::fd::{AsRawFd, OwnedFd};

use evenkeel_gpu::limits::MAX_MESSAGE_BYTES;
use evenkeel_gpu::wire::{ErrorCode, Reply, Request, decode_reply, encode_request};
use evenkeel_gpu::{Admin, Client, ContextOptions, KernelGroup};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use rig::{Device, until};

fn raw(device: &Device) -> OwnedFd {
    let fd = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .expect("a socket");
    connect(
        fd.as_raw_fd(),
        &UnixAddr::new(&device.socket(0)).expect("an address"),
    )
    .expect("connects");
    fd
}

fn say(fd: &OwnedFd, bytes: &[u8]) {
    send(fd.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).expect("sends");
}

fn hear(fd: &OwnedFd) -> (u64, Reply) {
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let length = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("receives");
    decode_reply(&buffer[..length]).expect("a reply")
}

fn refusal(fd: &OwnedFd, seq: u64) -> (ErrorCode, String) {
    match hear(fd) {
        (got, Reply::Error { code, message }) if got == seq => (code, message),
        other => panic!("expected a refusal of {seq}, got {other:?}"),
    }
}

#[test]
fn garbage_is_refused_and_the_connection_lives() {
    let device = Device::start(&[]);
    let fd = raw(&device);
    say(&fd, b"\x07GET / HTTP/1.1");
    assert_eq!(hear_code(&fd), ErrorCode::BadRequest);
    say(&fd, &[1]);
    assert_eq!(refusal(&fd, 0).0, ErrorCode::BadRequest);
    say(&fd, &vec![0xff; MAX_MESSAGE_BYTES + 1]);
    assert_eq!(hear_code(&fd), ErrorCode::BadRequest);
    let mut long = encode_request(5, &Request::List);
    long.push(0);
    say(&fd, &long);
    let (code, message) = refusal(&fd, 5);
    assert!(
        code == ErrorCode::BadRequest && message.contains("after the end"),
        "{message}"
    );
    say(&fd, &encode_request(6, &Request::Alloc { bytes: 1 }));
    let (code, message) = refusal(&fd, 6);
    assert!(
        code == ErrorCode::BadRequest && message.contains("say hello first"),
        "{message}"
    );
    let hello = Request::Hello {
        role: "late".to_owned(),
        percentage: Some(10),
        memory_limit: None,
    };
    say(&fd, &encode_request(7, &hello));
    assert!(matches!(hear(&fd), (7, Reply::Welcome { sms: 12, .. })));
    say(&fd, &encode_request(8, &hello));
    assert_eq!(refusal(&fd, 8).0, ErrorCode::BadRequest);
    say(&fd, &encode_request(9, &Request::Fault));
    assert_eq!(refusal(&fd, 9).0, ErrorCode::Forbidden);
}

fn hear_code(fd: &OwnedFd) -> ErrorCode {
    match hear(fd) {
        (_, Reply::Error { code, .. }) => code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_clock_that_lies_gains_at_most_the_allowance() {
    let device = Device::start(&[]);
    let fd = raw(&device);
    say(
        &fd,
        &encode_request(
            1,
            &Request::Hello {
                role: String::new(),
                percentage: None,
                memory_limit: None,
            },
        ),
    );
    let (_, Reply::Welcome { epoch_ns, .. }) = hear(&fd) else {
        panic!("no welcome")
    };
    let groups = vec![KernelGroup {
        flops: 0,
        bytes: 0,
        width_blocks: 1,
        repeat: 1,
    }];
    for (seq, submitted_ns) in [(2, 0), (3, u64::MAX)] {
        let before = evenkeel_gpu::clock::boottime_ns().expect("reads") - epoch_ns;
        say(
            &fd,
            &encode_request(
                seq,
                &Request::Submit {
                    submitted_ns,
                    groups: groups.clone(),
                },
            ),
        );
        let (got, Reply::Done { start_ns, end_ns }) = hear(&fd) else {
            panic!("not done")
        };
        let after = evenkeel_gpu::clock::boottime_ns().expect("reads") - epoch_ns;
        assert_eq!((got, end_ns - start_ns), (seq, 500));
        assert!(start_ns + evenkeel_gpu::limits::MAX_BACKDATE_NS >= before && start_ns <= after);
    }
}

#[test]
fn one_who_does_not_read_holds_up_nobody_and_loses_nothing() {
    let device = Device::start(&[]);
    let fd = raw(&device);
    // Asks until the device stops reading, without ever reading an answer.
    let request = encode_request(1, &Request::Gpu);
    let mut asked = 0_u32;
    loop {
        match send(
            fd.as_raw_fd(),
            &request,
            MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        ) {
            Ok(_) => asked += 1,
            Err(Errno::EAGAIN) => {
                // Full at this moment; for good once the device has stopped reading.
                let admin = Admin::connect(&device.socket(0)).expect("connects");
                admin.gpu().expect("others are served");
                if send(
                    fd.as_raw_fd(),
                    &request,
                    MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
                )
                .is_err()
                {
                    break;
                }
                asked += 1;
            }
            Err(errno) => panic!("{errno}"),
        }
        assert!(asked < 1_000_000, "the device never stops reading");
    }
    let client = Client::connect(&device.socket(0), &ContextOptions::default()).expect("connects");
    let work = KernelGroup {
        flops: 1_000_000,
        bytes: 0,
        width_blocks: 1,
        repeat: 1,
    };
    client
        .wait(client.submit(&[work]).expect("submits"))
        .expect("completes");
    for _ in 0..asked {
        assert!(matches!(hear(&fd), (1, Reply::Gpu(_))));
    }
}

#[test]
fn those_who_hang_up_in_the_middle_are_forgotten() {
    let device = Device::start(&[]);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    let hello = Request::Hello {
        role: String::new(),
        percentage: None,
        memory_limit: None,
    };
    let submit = Request::Submit {
        submitted_ns: 0,
        groups: vec![KernelGroup {
            flops: 1 << 50,
            bytes: 0,
            width_blocks: 132,
            repeat: 1_000,
        }],
    };
    for messages in [
        vec![],
        vec![hello.clone()],
        vec![hello.clone(), submit.clone(), submit],
    ] {
        for _ in 0..100 {
            let fd = raw(&device);
            for (message, seq) in messages.iter().zip(1..) {
                say(&fd, &encode_request(seq, message));
            }
        }
    }
    until("all are gone", || {
        admin.list().expect("lists").is_empty().then_some(())
    });
    let client = Client::connect(&device.socket(0), &ContextOptions::default()).expect("connects");
    client
        .alloc(client.spec().memory_bytes)
        .expect("all of the memory is free");
}
