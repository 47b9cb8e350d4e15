//! The program `evenkeeld` as a process, while something under it fails: the disk of its ledger, or its device.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests, and helpers that only tests call"
)]

#[path = "process/device.rs"]
mod device;
#[path = "process/doubt.rs"]
mod doubt;
#[allow(
    dead_code,
    reason = "shared with the tests of the reconciler, which use all of it"
)]
#[path = "reconcile/helper.rs"]
mod helper;
#[path = "process/kit.rs"]
mod kit;
#[path = "process/service.rs"]
mod service;
