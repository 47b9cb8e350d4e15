//! The batch size of a stage, as the plan of its job has it: told with the lease, told again when it changes, read by the
//! loop that works.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_client::{BATCH_VARIABLE, Lease};

/// A batch size that changes while a stage runs. Clones share it.
#[derive(Clone, Debug)]
pub struct BatchSize(Arc<AtomicU32>);

impl BatchSize {
    /// That of a lease; 1 where it has none.
    pub fn of(lease: &Lease) -> Self {
        Self::new(lease.batch.unwrap_or(1))
    }

    /// That of a process that `evenkeel run` started; 1 outside a lease.
    pub fn from_env() -> Self {
        let told = std::env::var(BATCH_VARIABLE).ok();
        Self::new(told.and_then(|text| text.parse().ok()).unwrap_or(1))
    }

    /// So much; at least 1.
    pub fn new(batch: u32) -> Self {
        Self(Arc::new(AtomicU32::new(batch.max(1))))
    }

    /// Now.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// From the next list on. Says what it was before.
    pub fn set(&self, batch: u32) -> u32 {
        self.0.swap(batch.max(1), Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_lease_s_and_never_zero() {
        let of = |batch| {
            let lease = Lease {
                batch,
                ..Lease::default()
            };
            BatchSize::of(&lease).get()
        };
        assert_eq!((of(Some(64)), of(Some(0)), of(None)), (64, 1, 1));
        let shared = BatchSize::new(8);
        let worker = shared.clone();
        assert_eq!(shared.set(16), 8);
        assert_eq!(worker.get(), 16);
    }
}
