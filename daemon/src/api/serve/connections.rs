//! How many connections are served: as many as we want, or as many as the limit of open files leaves room for.
//!
//! Without it the kernel would refuse descriptors at a moment of its own choosing: to the ledger, say.

use crate::api::limits::{
    CONNECTIONS_LEAST, CONNECTIONS_MAX, CONNECTIONS_PER_USER_MAX, OWN_DESCRIPTORS,
    REST_CONNECTIONS_MAX,
};

/// Open files that are needed for all the connections that we want to serve.
const WANTED: usize = CONNECTIONS_MAX + REST_CONNECTIONS_MAX + OWN_DESCRIPTORS;

/// How many connections may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// gRPC, over all listeners.
    pub grpc: usize,
    /// gRPC, of one user.
    pub per_user: usize,
    /// REST.
    pub rest: usize,
}

impl Default for Connections {
    /// All that we want to serve.
    fn default() -> Self {
        Self {
            grpc: CONNECTIONS_MAX,
            per_user: CONNECTIONS_PER_USER_MAX,
            rest: REST_CONNECTIONS_MAX,
        }
    }
}

impl Connections {
    /// What fits into a process that may open so many files.
    pub fn within(open_files: u64) -> Self {
        let most = Self::default();
        let files = usize::try_from(open_files).unwrap_or(usize::MAX);
        let room = files.saturating_sub(OWN_DESCRIPTORS);
        // Status is read by few: an eighth, and one at least.
        let rest = most.rest.min(room / 8).max(1);
        let grpc = most.grpc.min(room - rest.min(room)).max(CONNECTIONS_LEAST);
        Self {
            grpc,
            // Half: one user cannot shut the others out, and one who is alone is not kept from much.
            per_user: most.per_user.min(grpc / 2),
            rest,
        }
    }

    /// What an admin has to know where they are fewer than we want.
    pub fn shortfall(&self, open_files: u64) -> Option<String> {
        (*self != Self::default()).then(|| {
            format!(
                "only {open_files} files can be open, so {} connections are served ({} of one user) and not \
                 {CONNECTIONS_MAX}; set LimitNOFILE={WANTED} or more in the daemon's unit, or `ulimit -Hn` where \
                 there is none",
                self.grpc, self.per_user
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_limit_of_open_files() {
        let check = |files: u64, grpc: usize, per_user: usize, rest: usize| {
            let found = Connections::within(files);
            let expect = Connections {
                grpc,
                per_user,
                rest,
            };
            assert_eq!(found, expect, "{files} files");
            let told = found.shortfall(files);
            assert_eq!(told.is_none(), files >= WANTED as u64, "{told:?}");
            let all = (found.grpc + found.rest + OWN_DESCRIPTORS) as u64;
            assert!(all <= files || found.grpc == CONNECTIONS_LEAST, "{all}");
        };
        check(u64::MAX, 2_048, 1_024, 128);
        check(65_536, 2_048, 1_024, 128); // as in the unit
        check(2_304, 2_048, 1_024, 128);
        check(2_303, 2_047, 1_023, 128);
        check(1_024, 784, 392, 112); // the usual limit, where the hard one is no higher
        check(256, 112, 56, 16);
        check(64, 16, 8, 1);
        check(0, 16, 8, 1);
    }

    #[test]
    fn what_is_short_says_what_to_set() {
        let told = Connections::within(1_024).shortfall(1_024).unwrap();
        for part in ["1024 files", "784", "2048", "LimitNOFILE=2304"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
    }
}
