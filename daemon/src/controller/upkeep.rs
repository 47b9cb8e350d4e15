//! What the controller does for its ledger once a second: looks whether grants may go on (the files are in their place,
//! there is space on their disk) and notes what a restart needs to know. It grants and ends nothing.

use super::Controller;
use crate::clock;
use crate::handle::Degraded;

impl Controller {
    pub(super) async fn look_after_ledger(&mut self) {
        self.note_renewals().await;
        self.look_at_files().await; // after what may have needed the ballast
        self.show_degraded();
        if self.degraded.is_some() {
            return;
        }
        if let Some(alive) = self.state.volatile.alive(clock::now())
            && let Err(error) = self.ledger.set_alive(alive).await
        {
            tracing::warn!(%error, "it was not noted that the daemon lives; it is tried again in a second");
        }
    }

    /// Grants go on only while a restart finds them again, and there is space for what they may lead to.
    pub(super) async fn look_at_files(&mut self) {
        let Some(what) = self.ledger.misplaced().await else {
            return self.look_at_space().await;
        };
        let why = Degraded::Misplaced(what.clone());
        if self.degraded.as_ref() != Some(&why) {
            tracing::error!("ALARM: {what}");
            metrics::counter!("evenkeel_alarms_total", "alarm" => "ledger_misplaced").increment(1);
            self.set_degraded(Some(why));
        }
    }

    /// Grants go on only while there is space for what they may lead to: releases, expiries, a backup.
    async fn look_at_space(&mut self) {
        // Misplaced it is not, or not any more.
        if let Some(Degraded::Misplaced(_)) = self.degraded {
            tracing::info!("the ledger and its lock are in their place again: grants go on");
            self.set_degraded(None);
        }
        let space = match self.ledger.space().await {
            Ok(space) => space,
            Err(error) => {
                tracing::warn!(%error, "cannot tell how much space the ledger's disk has");
                return;
            }
        };
        self.ballast = space.ballast;
        match (self.degraded.is_some(), space.enough) {
            (false, false) => {
                tracing::error!(
                    free_mib = space.free_bytes >> 20,
                    free_inodes_permille = space.free_inodes_permille,
                    ballast = space.ballast,
                    "the disk of the ledger has too little space: grants are refused, renewals and releases go on"
                );
                self.set_degraded(Some(Degraded::DiskFull));
            }
            (true, true) => {
                tracing::info!("there is space on the ledger's disk again: grants go on");
                self.set_degraded(None);
            }
            _ => {}
        }
    }

    pub(super) fn set_degraded(&mut self, degraded: Option<Degraded>) {
        self.degraded.clone_from(&degraded);
        self.show_degraded();
        self.ends.shared.degraded.send_replace(degraded);
    }

    /// Each second, not only at a change: metrics are recorded only from the moment on at which REST is served, and a
    /// daemon may have started on a full disk.
    fn show_degraded(&self) {
        let degraded = f64::from(u8::from(self.degraded.is_some()));
        metrics::gauge!("evenkeel_ledger_degraded").set(degraded);
    }

    /// Notes which leases were renewed since the start. What could not be noted is tried again the next time: a note
    /// that is missing at the next start would count against a lease that was renewed all the time.
    pub(super) async fn note_renewals(&mut self) {
        let renewed = self.state.volatile.renewed();
        if renewed.is_empty() {
            return;
        }
        let since: Vec<_> = renewed.iter().map(|id| (*id, None)).collect();
        match self.ledger.set_unrenewed(&since).await {
            Ok(()) => self.state.volatile.noted(&renewed),
            Err(error) if self.degraded.is_some() => {
                tracing::debug!(%error, "renewals since the start wait to be noted");
            }
            Err(error) => {
                tracing::warn!(%error, "renewals since the start could not be noted; it is tried again");
            }
        }
    }
}
