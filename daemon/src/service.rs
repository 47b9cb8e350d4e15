//! What the service manager (systemd) is told: that the daemon serves, what it is about, that it stops, and that it is
//! alive. Without one (`NOTIFY_SOCKET` is not set) all of this is silent.
//!
//! Alive means that the *controller* comes round: before each beat it is asked, like any reader of its state, and the
//! beat is its answer. A timer of its own would beat on over a controller that hangs. Called by `main`.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::handle::{Degraded, Handle};

/// Beats in the time after which the service manager gives a silent daemon up: a late one, or two, cost nothing.
const BEATS: u32 = 4;
/// Where nobody waits for a beat, a change of the status is still told.
const UNWATCHED: Duration = Duration::from_secs(3_600);

/// Says what the daemon is about before it serves: a new schema, say, which takes a while.
pub fn starting(what: &str) {
    notify(&[NotifyState::Status(what)]);
}

/// Says that it serves: its ledger is open, and so are its doors. From here on, until `stop`, it tells what it does and
/// beats.
pub fn ready(serves: String, handle: Handle, stop: CancellationToken) {
    // It may have started on a full disk.
    let now = status(&serves, handle.degraded().borrow().as_ref());
    notify(&[NotifyState::Ready, NotifyState::Status(&now)]);
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tell(&serves, &handle) => {}
        }
    });
}

/// Says that it ends, and why.
pub fn stopping(why: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(why)]);
}

/// Beats, and says when grants are refused and when they go on. Ends with the controller.
async fn tell(serves: &str, handle: &Handle) {
    let pause = sd_notify::watchdog_enabled().map_or(UNWATCHED, |within| within / BEATS);
    let mut degraded = handle.degraded();
    let mut beat = tokio::time::interval(pause.max(Duration::from_millis(1)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beat.tick() => {
                // However long that takes: no answer, no beat.
                if handle.comes_round().await.is_err() {
                    return;
                }
                notify(&[NotifyState::Watchdog]);
            }
            changed = degraded.changed() => {
                if changed.is_err() {
                    return;
                }
                let status = status(serves, degraded.borrow_and_update().as_ref());
                notify(&[NotifyState::Status(&status)]);
            }
        }
    }
}

fn status(serves: &str, degraded: Option<&Degraded>) -> String {
    match degraded {
        None => serves.to_owned(),
        Some(Degraded::DiskFull) => {
            "grants are refused: the ledger's disk is full, or nearly so; renewals and releases go on".to_owned()
        }
        Some(Degraded::Misplaced(what)) => format!("grants are refused: {what}"),
    }
}

/// A service manager that does not listen changes nothing: the daemon serves all the same.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) does not hear this daemon");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Misplaced;

    #[test]
    fn the_status_says_why_nothing_is_granted() {
        let check = |degraded: Option<Degraded>, part: &str| {
            let said = status("serving", degraded.as_ref());
            assert!(said.contains(part) && !said.contains('\n'), "{said}");
        };
        check(None, "serving");
        check(Some(Degraded::DiskFull), "disk is full");
        let gone = Misplaced::Ledger("/var/lib/evenkeel/ledger.db".into());
        check(Some(Degraded::Misplaced(gone)), "ledger.db");
    }
}
