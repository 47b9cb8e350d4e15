//! The device process, as its users meet it: contexts, shares, deaths, faults, and those who send it nonsense.

#![allow(clippy::expect_used, reason = "a test whose rig fails has failed")]

mod rig;

use std::thread;
use std::time::Duration;

use evenkeel_gpu::limits::{MAX_CLIENTS, MAX_QUEUED};
use evenkeel_gpu::model::solo_time_ns;
use evenkeel_gpu::wire::{ErrorCode, GpuState};
use evenkeel_gpu::{Admin, Client, ClientError, ClientId, ContextOptions, GpuSpec, KernelGroup};
use rig::{Device, until};

/// `ms` milliseconds of full waves on `sms` SMs of an H100, less the launch overhead.
fn work(sms: u32, ms: u32) -> KernelGroup {
    KernelGroup {
        flops: 7_495_454_545 * u64::from(sms),
        bytes: 0,
        width_blocks: sms,
        repeat: ms,
    }
}

fn context(device: &Device, percentage: u32) -> Client {
    let options = ContextOptions {
        role: "test".to_owned(),
        percentage: Some(percentage),
        memory_limit: None,
    };
    Client::connect(&device.socket(0), &options).expect("connects")
}

fn refused_as<T: std::fmt::Debug>(result: Result<T, ClientError>, expect: ErrorCode) {
    match result {
        Err(ClientError::Refused { code, message }) if code == expect => {
            assert!(!message.is_empty())
        }
        other => panic!("expected {expect:?}, got {other:?}"),
    }
}

#[test]
fn the_environment_is_read_when_the_context_is_created() {
    let device = Device::start(&[]);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    let mut worker = device.probe_from_env(&[
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=10G,1=512MB"),
    ]);
    let info = until("the worker is listed", || {
        admin.list().expect("lists").pop()
    });
    assert_eq!((info.sms, info.memory_limit), (32, 10 << 30));
    assert_eq!((info.pid, info.role.as_str()), (worker.id(), "probe"));
    assert!(info.start_time > 0, "the process's start time is read");
    worker.kill().expect("kills");
    worker.wait().expect("reaped");

    let unreadable = device.probe_from_env(&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25%")]);
    let output = unreadable.wait_with_output().expect("ends");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && message.contains("whole number from 1 to 100"),
        "{message}"
    );
}

#[test]
fn a_new_percentage_touches_only_new_contexts() {
    let device = Device::start(&[]);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    let old = context(&device, 50);
    admin.set_default_percentage(25).expect("sets");
    refused_as(admin.set_default_percentage(101), ErrorCode::BadRequest);
    assert_eq!(
        context(&device, 50).sms_at_creation(),
        32,
        "a client can only lower what its GPU allows"
    );
    assert_eq!(context(&device, 10).sms_at_creation(), 12);
    let listed = admin.list().expect("lists");
    assert_eq!(
        listed
            .iter()
            .find(|info| info.client == old.id())
            .map(|info| info.sms),
        Some(66)
    );
    let done = old
        .wait(old.submit(&[work(66, 3)]).expect("submits"))
        .expect("completes");
    let solo = solo_time_ns(&GpuSpec::h100(), 66, &[work(66, 3)]);
    assert_eq!(
        done.end_ns - done.start_ns,
        solo,
        "the device's times are the model's"
    );
}

#[test]
fn lists_run_back_to_back_and_any_thread_may_wait() {
    let device = Device::start(&[]);
    let client = context(&device, 100);
    let tickets: Vec<_> = (0..8)
        .map(|_| client.submit(&[work(132, 1)]).expect("submits"))
        .collect();
    let mut spans: Vec<_> = thread::scope(|scope| {
        let wait = |ticket| scope.spawn(|| client.wait(ticket).expect("completes"));
        let threads: Vec<_> = tickets.into_iter().rev().map(wait).collect();
        assert_eq!(
            client
                .resize(131)
                .expect("resizes beside the waiting threads"),
            132
        );
        threads
            .into_iter()
            .map(|thread| thread.join().expect("joins"))
            .collect()
    });
    spans.sort_by_key(|done| done.start_ns);
    assert!(
        spans
            .windows(2)
            .all(|pair| pair[0].end_ns == pair[1].start_ns),
        "{spans:?}"
    );
    let now = evenkeel_gpu::clock::boottime_ns().expect("reads");
    assert!(
        spans[7].end_ns <= now,
        "completions are told after they happened, in CLOCK_BOOTTIME"
    );
}

#[test]
fn a_resize_speeds_up_what_runs_and_zero_stops_it() {
    let device = Device::start(&[]);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    let client = context(&device, 1);
    // 66 waves on 2 SMs: over an hour. On all SMs it takes a minute; stopped, for ever; so it never completes here.
    let slow = client.submit(&[work(132, 60_000)]).expect("submits");
    assert_eq!(admin.resize(client.id(), 0).expect("resizes"), 0);
    let slow = match client
        .wait_timeout(slow, Duration::from_millis(20))
        .expect("waits")
    {
        Err(ticket) => ticket,
        Ok(done) => panic!("completed without SMs: {done:?}"),
    };
    assert_eq!(client.resize(131).expect("resizes itself"), 132);
    refused_as(client.resize(133), ErrorCode::BadRequest);
    refused_as(
        admin.resize(ClientId(client.id().0 + 7), 10),
        ErrorCode::UnknownClient,
    );
    admin.terminate(client.id()).expect("terminates");
    assert!(matches!(
        client.wait(slow),
        Err(ClientError::Ended {
            code: ErrorCode::Terminated,
            ..
        })
    ));
    assert!(
        matches!(client.submit(&[work(2, 1)]), Err(ClientError::Ended { .. })),
        "the end is sticky"
    );
    refused_as(admin.terminate(client.id()), ErrorCode::UnknownClient);
}

#[test]
fn a_resize_takes_effect_at_once() {
    let device = Device::start(&[]);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    let client = context(&device, 1);
    let ticket = client.submit(&[work(132, 10)]).expect("submits"); // 0.66 s on 2 SMs, 10 ms on 132
    admin.resize(client.id(), 132).expect("resizes");
    let done = client.wait(ticket).expect("completes");
    let slow = solo_time_ns(&GpuSpec::h100(), 2, &[work(132, 10)]);
    assert!(done.end_ns - done.start_ns < slow, "{done:?}");
}

#[test]
fn a_killed_client_leaves_its_sms_and_memory() {
    let device = Device::start(&[]);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    let survivor = context(&device, 100);
    let mut victim = device.probe(&[
        "--percentage",
        "100",
        "--alloc-mib",
        "60000",
        "--seconds",
        "600",
    ]);
    until("the victim works", || {
        let infos = admin.list().expect("lists");
        infos
            .into_iter()
            .find(|info| info.pid == victim.id() && info.queued > 0 && info.memory_used > 0)
    });
    refused_as(survivor.alloc(40_000 << 20), ErrorCode::OutOfMemory);
    victim.kill().expect("kills");
    victim.wait().expect("reaped");
    until("only the survivor is listed", || {
        let infos = admin.list().expect("lists");
        (infos.len() == 1 && infos[0].client == survivor.id()).then_some(())
    });
    survivor.alloc(40_000 << 20).expect("the memory is free");
    let done = survivor
        .wait(survivor.submit(&[work(132, 5)]).expect("submits"))
        .expect("completes");
    let solo = solo_time_ns(&GpuSpec::h100(), 132, &[work(132, 5)]);
    assert_eq!(done.end_ns - done.start_ns, solo, "the SMs are free");
}

#[test]
fn a_fault_ends_all_contexts_and_waits_for_their_processes() {
    let device = Device::start(&["--count", "2"]);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    let (a, b) = (context(&device, 50), context(&device, 50));
    let elsewhere = Client::connect(&device.socket(1), &ContextOptions::default())
        .expect("connects to the other GPU");
    let waiting = a.submit(&[work(66, 60_000)]).expect("submits");
    admin.fault().expect("faults");
    assert!(matches!(
        a.wait(waiting),
        Err(ClientError::Ended {
            code: ErrorCode::Faulted,
            ..
        })
    ));
    assert!(matches!(
        b.alloc(1),
        Err(ClientError::Ended {
            code: ErrorCode::Faulted,
            ..
        })
    ));
    elsewhere.alloc(1).expect("another GPU is not affected");
    assert_eq!(admin.gpu().expect("answers").state, GpuState::Fault);
    assert!(admin.list().expect("lists").is_empty());
    refused_as(
        Client::connect(&device.socket(0), &ContextOptions::default()),
        ErrorCode::NotReady,
    );
    drop(a);
    refused_as(
        Client::connect(&device.socket(0), &ContextOptions::default()),
        ErrorCode::NotReady,
    );
    drop(b);
    until("the GPU is active again", || {
        (admin.gpu().expect("answers").state == GpuState::Active).then_some(())
    });
    context(&device, 50).alloc(1).expect("works again");
}

#[test]
fn limits_are_refused_and_change_nothing() {
    let device = Device::start(&[]);
    let client = context(&device, 100);
    refused_as(
        client.submit(&[]).and_then(|ticket| client.wait(ticket)),
        ErrorCode::BadRequest,
    );
    let zero = KernelGroup {
        width_blocks: 0,
        ..work(1, 1)
    };
    refused_as(
        client
            .submit(&[zero])
            .and_then(|ticket| client.wait(ticket)),
        ErrorCode::BadRequest,
    );
    refused_as(client.alloc(u64::MAX), ErrorCode::OutOfMemory);
    refused_as(client.free(1), ErrorCode::BadRequest);
    let bad = ContextOptions {
        percentage: Some(0),
        ..ContextOptions::default()
    };
    refused_as(
        Client::connect(&device.socket(0), &bad),
        ErrorCode::BadRequest,
    );

    let queued: Vec<_> = (0..MAX_QUEUED)
        .map(|_| client.submit(&[work(132, 1_000)]).expect("submits"))
        .collect();
    let over = client.submit(&[work(132, 1)]).expect("submits");
    refused_as(client.wait(over), ErrorCode::Limit);
    drop(queued);

    let others: Vec<_> = (1..MAX_CLIENTS).map(|_| context(&device, 1)).collect();
    refused_as(
        Client::connect(&device.socket(0), &ContextOptions::default()),
        ErrorCode::Limit,
    );
    drop(others);
    let admin = Admin::connect(&device.socket(0)).expect("connects");
    until("the others are gone", || {
        (admin.list().expect("lists").len() == 1).then_some(())
    });
    context(&device, 1).alloc(1).expect("there is room again");
}

#[test]
fn one_directory_has_one_device_and_a_new_one_follows_a_killed_one() {
    let mut device = Device::start(&[]);
    let second = rig::serve(device.dir(), &[])
        .wait_with_output()
        .expect("ends");
    let message = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && message.contains("another emulated device serves"),
        "{message}"
    );

    let client = context(&device, 50);
    let ticket = client.submit(&[work(66, 60_000)]).expect("submits");
    device.kill();
    assert!(matches!(client.wait(ticket), Err(ClientError::HungUp)));
    assert!(
        device.socket(0).exists(),
        "a killed device leaves its socket behind"
    );
    device.restart();
    context(&device, 50)
        .alloc(1)
        .expect("the stale socket was replaced");

    device.terminate();
    assert!(!device.socket(0).exists(), "SIGTERM removes the sockets");
    let error =
        Client::connect(&device.socket(0), &ContextOptions::default()).expect_err("nobody serves");
    assert!(error.to_string().contains("evenkeel-gpu serve"), "{error}");
}
