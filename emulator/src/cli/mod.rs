//! The subcommands of `evenkeel-gpu`.

pub(crate) mod accept;
mod corun;
pub(crate) mod list;
pub(crate) mod pages;
pub(crate) mod probe;
pub(crate) mod serve;
mod world;
