//! Vectors of resources. On the wire they also say what follows from them on this node: CPUs, uuids, percentages.
use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::grant::{GpuShare, Vector, percent};
use evenkeel_core::id::GpuId;
use evenkeel_core::node::Node;
use evenkeel_core::unit::{Bytes, Sms};
use evenkeel_proto::v1 as pb;

use super::Bad;
use crate::api::config::GpuSockets;

/// Most entries of a vector: one for each GPU of the largest server, twice.
const GPUS_MAX: usize = 64;

/// What a vector is on: the hardware, and where emulated GPUs listen.
#[derive(Clone, Copy)]
pub(in crate::api) struct Around<'a> {
    /// The hardware.
    pub(in crate::api) node: &'a Node,
    sockets: &'a GpuSockets,
}

impl<'a> Around<'a> {
    pub(in crate::api) const fn new(node: &'a Node, sockets: &'a GpuSockets) -> Self {
        Self { node, sockets }
    }
    /// Where an emulated GPU listens.
    pub(in crate::api) fn socket(&self, gpu: GpuId) -> Option<&Path> {
        self.sockets.get(&gpu).map(|p| p.as_path())
    }
    /// The same as text; empty for real GPUs.
    pub(super) fn socket_text(&self, gpu: GpuId) -> String {
        self.socket(gpu)
            .map(|p| p.display().to_string())
            .unwrap_or_default()
    }
}

/// For the wire.
pub(in crate::api) fn vector(v: &Vector, around: &Around<'_>) -> pb::ResourceVector {
    pb::ResourceVector {
        cores: v.cores.to_string(),
        cpus: around.node.cpus_of(&v.cores).to_string(),
        gpus: v.gpus.iter().map(|(id, s)| share(*id, s, around)).collect(),
    }
}

fn share(id: GpuId, s: &GpuShare, around: &Around<'_>) -> pb::GpuShare {
    let gpu = around.node.gpu(id);
    pb::GpuShare {
        gpu: id.0.into(),
        guarantee_sms: s.guarantee.0,
        cap_sms: s.cap.0,
        memory_bytes: s.memory.0,
        cap_percent: gpu.map_or(0, |g| percent(s.cap, g.sms)),
        gpu_uuid: gpu.map(|g| g.uuid.to_string()).unwrap_or_default(),
        emulated_socket: around.socket_text(id),
    }
}

/// What a worker says that it has. Only cores, GPU numbers and amounts are read; the rest follows from them.
pub(super) fn effective(w: &pb::ResourceVector) -> Result<Vector, Bad> {
    if w.gpus.len() > GPUS_MAX {
        let why = format!("{} entries; at most {GPUS_MAX} make sense", w.gpus.len());
        return Err(Bad::new("gpus", why));
    }
    let mut gpus = BTreeMap::new();
    for s in &w.gpus {
        let id = gpu_id("gpus.gpu", s.gpu)?;
        let share = GpuShare {
            guarantee: Sms(s.guarantee_sms),
            cap: Sms(s.cap_sms),
            memory: Bytes(s.memory_bytes),
        };
        if gpus.insert(id, share).is_some() {
            return Err(Bad::new("gpus.gpu", format!("{id} is there twice")));
        }
    }
    Ok(Vector {
        cores: cores("cores", &w.cores)?,
        gpus,
    })
}

/// A set of core ids in the kernel's list format.
fn cores(field: &str, text: &str) -> Result<CpuSet, Bad> {
    text.parse().map_err(|e| Bad::new(field, e))
}

/// The number of a GPU.
pub(super) fn gpu_id(field: &str, n: u32) -> Result<GpuId, Bad> {
    u16::try_from(n).map(GpuId).map_err(|_| {
        Bad::new(
            field,
            format!("{n} is not the number of a GPU; they are small, from 0"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_gives_what_is_capped_and_not_less() {
        for (cap, total, expect) in [
            (0, 132, 0),
            (33, 132, 25),
            (34, 132, 26),
            (66, 132, 50),
            (2, 132, 2),
            (1, 1000, 1),
            (132, 132, 100),
            (108, 108, 100),
            (54, 108, 50),
        ] {
            let percent = percent(Sms(cap), Sms(total));
            assert_eq!(percent, expect, "{cap} of {total}");
            assert!(u64::from(percent) * u64::from(total) / 100 >= u64::from(cap));
        }
    }

    #[test]
    fn a_percentage_gives_exactly_what_the_ledger_counts() {
        let presets = evenkeel_gpu::GpuSpec::PRESETS.iter();
        let presets = presets.filter_map(|name| evenkeel_gpu::GpuSpec::preset(name));
        for spec in presets.flat_map(|spec| (2..400).map(move |sms| spec.clone().with_sms(sms))) {
            for counted in spec.enforceable_sms() {
                let percent = percent(Sms(counted), Sms(spec.sms));
                assert_eq!(spec.effective_sms(percent), counted, "of {}", spec.sms);
            }
        }
    }

    #[test]
    fn a_vector_from_outside_is_checked() {
        let good = pb::ResourceVector {
            cores: "0-2,5".into(),
            gpus: vec![pb::GpuShare {
                gpu: 1,
                guarantee_sms: 4,
                cap_sms: 6,
                memory_bytes: 7,
                ..Default::default()
            }],
            ..Default::default()
        };
        let vector = effective(&good).unwrap();
        assert_eq!(vector.cores.to_string(), "0-2,5");
        assert_eq!(vector.gpus[&GpuId(1)].cap, Sms(6));
        let twice = pb::ResourceVector {
            gpus: vec![good.gpus[0].clone(), good.gpus[0].clone()],
            ..Default::default()
        };
        assert_eq!(effective(&twice).unwrap_err().field, "gpus.gpu");
        for bad in ["x", "3-1", "0-99999999999"] {
            let w = pb::ResourceVector {
                cores: bad.into(),
                ..Default::default()
            };
            assert_eq!(effective(&w).unwrap_err().field, "cores", "{bad}");
        }
    }
}
