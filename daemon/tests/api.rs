//! The API over real sockets, with the real controller on a real ledger: every call, what it refuses, and what it
//! never tells. Two tenants and an admin have a socket each, because all tests run as one user.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::too_many_lines,
    reason = "tests and their helpers; tables are long, and a panic is how a test fails"
)]
#[path = "api/bad_input.rs"]
mod bad_input;
#[path = "api/doors.rs"]
mod doors;
#[path = "api/doors_kit.rs"]
mod doors_kit;
#[path = "api/floods.rs"]
mod floods;
#[path = "api/jobs.rs"]
mod jobs;
#[path = "api/kit.rs"]
mod kit;
#[path = "api/leases.rs"]
mod leases;
#[path = "api/node.rs"]
mod node;
#[path = "api/profiles.rs"]
mod profiles;
#[path = "api/rest.rs"]
mod rest;
#[path = "api/rest_feeds.rs"]
mod rest_feeds;
#[path = "api/rest_pages.rs"]
mod rest_pages;
#[path = "api/rest_writes.rs"]
mod rest_writes;
#[path = "api/serving.rs"]
mod serving;
#[path = "api/session.rs"]
mod session;
#[cfg(feature = "otel")]
#[path = "api/traces.rs"]
mod traces;
#[path = "api/trials.rs"]
mod trials;
#[path = "api/waiting.rs"]
mod waiting;
#[path = "api/web.rs"]
mod web;
