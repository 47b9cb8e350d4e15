//! The lines of doors, limits, peers and packages: one file each.
mod attack;
mod expiry;
mod moved;
mod package;
mod ratios;
mod steady;
mod strangers;

pub(crate) use attack::{AttackerArgs, VictimArgs, attacker, victim};
pub(crate) use moved::{NextArgs, next};

use crate::Run;
use crate::row::Row;

/// Measures one line.
pub(crate) async fn measure(run: &Run, number: u8) -> anyhow::Result<Vec<Row>> {
    match number {
        1 => ratios::measure(run).await,
        2 => steady::measure(run).await,
        3 => expiry::measure(run).await,
        4 => attack::measure(run).await,
        5 => strangers::measure(run).await,
        6 => package::measure(run).await,
        _ => moved::measure(run).await,
    }
}
