//! What this process may use of the CPUs: its affinity, which its cgroup's cpuset is part of already.

use std::sync::OnceLock;

use evenkeel_core::cpuset::CpuSet;

use super::{Draft, Scanner};
use crate::backend::affinity;

/// With the answer, where a test knows it.
pub(super) struct Allowed(pub(super) Option<CpuSet>);

/// The affinity that the daemon was started with. Later it binds itself to the shared set; that is no limit.
static AT_START: OnceLock<Option<CpuSet>> = OnceLock::new();

impl Scanner for Allowed {
    fn scan(&self, draft: &mut Draft) -> Result<(), String> {
        let own = || affinity::read(std::process::id()).ok().flatten();
        let allowed = self.0.clone().or_else(|| AT_START.get_or_init(own).clone());
        let Some(allowed) = allowed else {
            return Err(
                "cannot read this process's own affinity; all CPUs that are online count".into(),
            );
        };
        let all = draft.cpus.len();
        draft.cpus.retain(|number, _| allowed.contains(*number));
        if draft.cpus.len() < all {
            draft.notes.push(format!(
                "{} of {all} CPUs are outside of the daemon's own affinity or cpuset and are not leased",
                all - draft.cpus.len()
            ));
        }
        Ok(())
    }
}
