//! The limit of open files: raised at start as far as the system allows. What it is enough for is said by
//! [`crate::api::Connections`]. Called by `main`.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one, which any process may; returns what it is then.
///
/// The usual soft limit (1,024) is for programs that call `select`, which the daemon does not.
pub fn raise() -> u64 {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::warn!(%error, "cannot read the limit of open files; taken for unlimited");
            return u64::MAX;
        }
    };
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            tracing::warn!(%error, soft, hard, "cannot raise the limit of open files; it stays as it is");
            soft
        }
    };
    tracing::info!(limit, was = soft, "open files");
    limit
}
