//! A pool that exists in the ledger only: for planning, load tests and remote machines. Nothing is enforced on it.
use std::sync::Arc;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::node::{Gpu, GpuBackend, GpuMode};
use evenkeel_core::unit::{Bytes, Sms};

use super::{Cpu, Draft, Scanner};
use crate::config::SyntheticConfig;

pub(super) struct Synthetic(pub(super) SyntheticConfig);

impl Scanner for Synthetic {
    fn scan(&self, draft: &mut Draft) -> Result<(), String> {
        let pool = &self.0;
        for number in 0..pool.cores {
            let siblings = CpuSet::range(number, number);
            draft.cpus.insert(
                number,
                Cpu {
                    siblings,
                    ..Cpu::default()
                },
            );
        }
        let step = pool.granularity.max(1);
        let enforceable: Arc<[Sms]> = (1..=pool.sms / step).map(|n| Sms(n * step)).collect();
        draft.gpus = (0..pool.gpus)
            .map(|index| Gpu {
                id: GpuId(index),
                uuid: Name::new(&format!("GPU-synthetic-{index}"))
                    .unwrap_or_else(|_| Name::unknown()),
                model: Name::new("synthetic").unwrap_or_else(|_| Name::unknown()),
                sms: Sms(pool.sms),
                memory: pool.memory.0,
                reserved_memory: Bytes(0),
                enforceable: enforceable.clone(),
                numa: 0,
                backend: GpuBackend::None,
                mode: GpuMode::Enforce,
            })
            .collect();
        Ok(())
    }
}
