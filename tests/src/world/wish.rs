//! What agents ask for: mostly sensible, at times impossible.
use evenkeel_core::command::Acquire;
use evenkeel_core::grant::{Ask, GpuAsk, Member, Resize, SmAsk};
use evenkeel_core::id::{BodyHash, GpuId, Name, RequestId};
use evenkeel_core::node::PoolKind;
use evenkeel_core::unit::{Bytes, Millis, Sms};

use super::rng::Rng;
use super::swarm::Swarm;

/// A request with a new id.
pub fn acquire(
    rng: &mut Rng,
    swarm: &Swarm,
    tenant: &Name,
    member: Option<Member>,
    (me, n): (u64, u64),
) -> Acquire {
    let ask = member.map_or_else(|| alone(rng, swarm), Ask::Stage);
    let enforced = swarm.node.kind == PoolKind::Local;
    let resize = *rng.pick(&[
        Resize::Live,
        Resize::Restart,
        Resize::Restart,
        Resize::Fixed,
    ]);
    let processes = if rng.chance(3) {
        0
    } else {
        rng.range(1, 3) as u32
    };
    // A worker of a job has what its stage declares, and mostly does not say otherwise.
    let says = member.is_none() || processes == 0;
    Acquire {
        tenant: tenant.clone(),
        request: RequestId(u128::from(me) << 64 | u128::from(n)),
        body: BodyHash(n),
        ask,
        enforced: enforced != rng.chance(5),
        resize: says.then_some(resize),
        processes: says.then_some(processes),
        ttl: Millis(if rng.chance(3) {
            1
        } else {
            rng.range(swarm.ttl.0, swarm.ttl.1)
        }),
        wait: rng.chance(if member.is_some() { 800 } else { 500 }),
        priority: rng.below(3) as i32,
    }
}

fn alone(rng: &mut Rng, swarm: &Swarm) -> Ask {
    let cores = if rng.chance(10) {
        1000
    } else {
        rng.range(0, (swarm.node.cores.len() as u64 / 2).max(1))
    };
    let gpus = swarm.node.gpus.len() as u64;
    let count = if gpus == 0 {
        u64::from(rng.chance(20))
    } else {
        rng.range(0, gpus.min(2))
    };
    let asks = (0..count).map(|_| {
        let (least_percent, least_memory) = (!rng.chance(10), !rng.chance(10));
        GpuAsk {
            gpu: rng
                .chance(300)
                .then(|| GpuId(rng.below(gpus.max(1)) as u16)),
            sms: match rng.chance(500) {
                true => SmAsk::Percent(rng.range(least_percent.into(), 70) as u8),
                false => SmAsk::Count(Sms(rng.range(1, 60) as u32)),
            },
            memory: Bytes::gib(rng.range(least_memory.into(), 20)),
        }
    });
    Ask::Alone {
        cores: cores as u32,
        gpus: asks.collect(),
    }
}
