//! Starts a device that has died again: in a thread of its own, so that nobody waits for it, and with pauses that grow
//! while it does not stay.
//!
//! Only where the configuration says that the daemon starts it. The contexts of the old device are gone; the look that
//! finds the new one makes the GPU available again. Called by the backend with each look.

use std::thread::JoinHandle;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::unit::{Millis, Time};

use super::start::{StartError, ensure_served};
use crate::backend::affinity;
use crate::config::EmulatedConfig;

/// Pause after the first start. The first one itself is at once: workers wait.
const PAUSE_FIRST: Millis = Millis::secs(1);
/// Longest pause: a device that cannot be started is tried once a minute, and says why in the log.
const PAUSE_MOST: Millis = Millis::secs(60);
/// A device that has been there for so long has stayed: the next start is at once again.
const STAYED: Millis = Millis::secs(60);

/// The device's guardian.
#[derive(Debug)]
pub(super) struct Revival {
    config: EmulatedConfig,
    pace: Pace,
    under_way: Option<JoinHandle<Result<(), StartError>>>,
    /// Why the last start failed.
    failure: Option<String>,
}

impl Revival {
    /// For the device of this configuration.
    pub(super) fn new(config: EmulatedConfig) -> Self {
        Self {
            config,
            pace: Pace::default(),
            under_way: None,
            failure: None,
        }
    }

    /// The device answers, or may be there.
    pub(super) fn is_there(&mut self, now: Time) {
        self.collect();
        self.failure = None;
        self.pace.is_there(now);
    }

    /// Nobody serves any of its GPUs: starts it, unless a start is under way or was only just. It runs on `cpus`, as
    /// the first one did. Returns what a person should know.
    pub(super) fn is_gone(&mut self, now: Time, cpus: &CpuSet) -> String {
        self.collect();
        if self.under_way.is_none() && self.pace.may_start(now) {
            tracing::warn!(dir = %self.config.dir.display(), "the emulated GPU's device is gone; starting it again");
            metrics::counter!("evenkeel_gpu_device_starts_total").increment(1);
            let (config, cpus) = (self.config.clone(), cpus.clone());
            let start = move || {
                // The daemon's own threads are bound to the shared set; the device is not.
                let own = nix::unistd::gettid().as_raw().cast_unsigned();
                if let Err(error) = affinity::bind(own, &cpus) {
                    tracing::debug!(%error, "the emulated GPU shares the daemon's cores");
                }
                ensure_served(&config).map(drop)
            };
            let thread = std::thread::Builder::new().name("gpu-start".into());
            match thread.spawn(start) {
                Ok(under_way) => self.under_way = Some(under_way),
                Err(error) => self.failed(&error),
            }
        }
        match &self.failure {
            Some(why) => format!("it could not be started again ({why}); it is tried again"),
            None => "it is being started again".into(),
        }
    }

    /// Takes in how a start ended.
    fn collect(&mut self) {
        let Some(done) = self.under_way.take_if(|start| start.is_finished()) else {
            return;
        };
        match done.join() {
            Ok(Ok(())) => self.failure = None,
            Ok(Err(error)) => self.failed(&error),
            Err(_) => self.failed(&std::io::Error::other("the thread that starts it panicked")),
        }
    }

    fn failed(&mut self, error: &dyn std::error::Error) {
        let causes = std::iter::successors(error.source(), |cause| cause.source());
        let why = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        tracing::error!(why, "cannot start the emulated GPU again");
        self.failure = Some(why);
    }
}

/// When the next start may be.
#[derive(Debug, Default)]
struct Pace {
    next: Time,
    /// After the next start; zero: the next is the first.
    pause: Millis,
    there_since: Option<Time>,
}

impl Pace {
    fn is_there(&mut self, now: Time) {
        let since = *self.there_since.get_or_insert(now);
        if since.after(STAYED) <= now {
            (self.next, self.pause) = (Time(0), Millis(0));
        }
    }

    fn may_start(&mut self, now: Time) -> bool {
        self.there_since = None;
        if now < self.next {
            return false;
        }
        self.pause = Millis(self.pause.0.saturating_mul(2)).clamp(PAUSE_FIRST, PAUSE_MOST);
        self.next = now.after(self.pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in seconds at which it is started, if it is looked at ten times a second and is `there` or not.
    fn starts(until_s: u64, there: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut pace = Pace::default();
        let mut starts = Vec::new();
        for tenth in 0..until_s * 10 {
            let now = Time(1_000_000 + tenth * 100);
            if there(tenth / 10) {
                pace.is_there(now);
            } else if pace.may_start(now) {
                starts.push(tenth / 10);
            }
        }
        starts
    }

    #[test]
    fn the_first_start_is_at_once_and_pauses_grow_to_a_minute() {
        let never = |_| false;
        assert_eq!(starts(250, never), [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        // There and gone again every other second: it does not stay.
        let flickers = |s| s % 2 == 1;
        assert_eq!(starts(100, flickers), [0, 2, 4, 8, 16, 32, 64]);
        // It stayed for a minute: at once again.
        let stays = |s| (5..70).contains(&s);
        assert_eq!(starts(75, stays), [0, 1, 3, 70, 71, 73]);
    }
}
