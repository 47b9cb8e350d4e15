//! Evenkeel's decisions: what is granted, to whom, for how long, and when it moves.
//!
//! This crate names no clock, socket, thread, file or hash map: `no_std` makes that a compile error.
//! Time comes in as a parameter, randomness not at all; the same calls give the same results.
//! The daemon drives it through [`step`]; the simulated world in `tests` drives the same code.
//!
//! Ten floors, no circle; a file uses only floors below its own:
//! `unit id cpuset` < `curve node grant` < `job` < `lease clock pool settings allocate` < `balance caps trials`
//! < `command event` < `state` < `volatile` < `decide converge invariant` < `step`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cpuset;
pub mod id;
pub mod unit;

pub mod curve;
pub mod grant;
pub mod job;
pub mod node;

pub mod allocate;
pub mod balance;
pub mod caps;
pub mod clock;
pub mod lease;
pub mod pool;
pub mod settings;
pub mod trials;

pub mod command;
pub mod event;

pub mod state;
pub mod volatile;

pub mod converge;
pub mod decide;
pub mod invariant;

pub mod step;
