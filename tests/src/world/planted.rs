//! Planted faults: the product broken on purpose, to prove that the invariants notice.
//!
//! All of them are made here, in the emulation of the shell around the core: by what it does with a step, a
//! reply, a look or the rows on the disk. The product has no switch for any of them.

/// A way to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Planted {
    /// Answers leave before the commit that justifies them.
    ReplyBeforeCommit,
    /// An expired lease counts as proved gone at once.
    ExpiredFreedAtOnce,
    /// A shrink counts as observed when it is ordered.
    GrowBeforeShrink,
    /// The handle renews a lease whose expiry is being committed.
    RenewalAfterClosing,
    /// A restart forgets what requests led to.
    RequestsForgottenByCrash,
    /// Attaching leaves the fence as it was.
    FenceNotRaisedOnAttach,
    /// A failed commit is not taken back completely.
    UndoIncomplete,
    /// The daemon's own stall counts against the holders.
    StallNotCredited,
    /// A request that fits goes ahead of those that wait.
    QueueJumped,
    /// Everybody is an admin.
    OtherTenantVisible,
    /// The handle renews whatever fence it is given.
    OldFenceAccepted,
    /// A restart drops leases in quarantine.
    QuarantineForgottenByCrash,
    /// A commit writes everything but the targets.
    TargetsNotWritten,
    /// A retry with a new body gets the old answer's effect twice.
    RetryGrantedTwice,
    /// A restart leaves old deadlines in force.
    NoTtlAfterRestart,
    /// A restart counts the time in which the daemon was down against the holders.
    DowntimeCounted,
    /// A tree without processes is gone, whatever its GPU says or does not say.
    GoneWithoutTheGpu,
    /// A renewal that waits for a verdict is told that its lease is lost when the daemon ends.
    LostWhenStopping,
    /// A cancelled job's workers lose their leases before they are told.
    CancelTakesAtOnce,
}

impl Planted {
    /// All of them, with the invariant that has to notice.
    pub const ALL: [(Self, &'static str); 19] = [
        (Self::ReplyBeforeCommit, "nothing_is_said_before_its_commit"),
        (Self::ExpiredFreedAtOnce, "freed_only_when_proved_gone"),
        (Self::GrowBeforeShrink, "reality_is_counted"),
        (Self::RenewalAfterClosing, "no_expiry_before_the_ttl"),
        (
            Self::RequestsForgottenByCrash,
            "memory_tables_and_fold_agree",
        ),
        (
            Self::FenceNotRaisedOnAttach,
            "fences_rise_with_each_change_of_hands",
        ),
        (Self::UndoIncomplete, "undo_is_complete"),
        (Self::StallNotCredited, "a_stall_is_credited"),
        (Self::QueueJumped, "backfill_delays_nobody"),
        (Self::OtherTenantVisible, "no_tenant_sees_anothers"),
        (Self::OldFenceAccepted, "an_old_fence_renews_nothing"),
        (
            Self::QuarantineForgottenByCrash,
            "memory_tables_and_fold_agree",
        ),
        (Self::TargetsNotWritten, "memory_tables_and_fold_agree"),
        (Self::RetryGrantedTwice, "one_effect_per_request"),
        (Self::NoTtlAfterRestart, "a_restart_gives_one_ttl"),
        (Self::DowntimeCounted, "a_restart_gives_one_ttl"),
        (Self::GoneWithoutTheGpu, "freed_only_when_proved_gone"),
        (Self::LostWhenStopping, "only_what_is_over_is_lost"),
        (Self::CancelTakesAtOnce, "a_cancelled_worker_is_told_first"),
    ];
    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        let plain = |s: &str| s.replace(['-', '_'], "").to_lowercase();
        Self::ALL
            .iter()
            .map(|(f, _)| *f)
            .find(|f| plain(&format!("{f:?}")) == plain(name))
    }
}
