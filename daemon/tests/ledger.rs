//! The ledger on real SQLite files: what goes in comes out, what must not be is refused, and what breaks is
//! told apart.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests may fail loudly, too"
)]

#[path = "ledger/backup.rs"]
mod backup;
#[path = "ledger/crash.rs"]
mod crash;
#[path = "ledger/disk.rs"]
mod disk;
#[path = "ledger/door.rs"]
mod door;
#[path = "ledger/happen.rs"]
mod happen;
#[path = "ledger/history.rs"]
mod history;
#[path = "ledger/kit.rs"]
mod kit;
#[path = "ledger/live.rs"]
mod live;
#[path = "ledger/mount.rs"]
mod mount;
#[path = "ledger/refuse.rs"]
mod refuse;
#[path = "ledger/restore.rs"]
mod restore;
#[path = "ledger/roundtrip.rs"]
mod roundtrip;
#[path = "ledger/upgrade.rs"]
mod upgrade;
