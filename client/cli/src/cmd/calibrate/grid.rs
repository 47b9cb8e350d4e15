//! Which points of a stage are tried.
use std::collections::BTreeSet;

use evenkeel_client::{Gpu, Node, ProfilePoint, SmAsk};

use evenkeel_core::trials::Spot;
use evenkeel_core::unit::Sms;

use crate::fail::Failure;
use crate::jobfile::StageFile;

/// Shares of a GPU that are tried where the job file names none.
const DEFAULT_PERCENTS: [u32; 8] = [10, 20, 30, 40, 50, 60, 80, 100];

/// One point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) cores: u32,
    pub(super) batch: u32,
    pub(super) sms: u32,
    pub(super) replicas: u32,
}

impl Point {
    /// Whether a measurement is of this point.
    pub(super) fn is_of(self, measured: &ProfilePoint) -> bool {
        let alone = measured.beside.is_none();
        let own = (self.cores, self.batch, self.sms, self.replicas);
        own == (
            measured.cores,
            measured.batch,
            measured.sms,
            measured.replicas,
        ) && alone
    }

    /// The same in the core's words.
    pub(super) const fn spot(self) -> Spot {
        Spot {
            batch: self.batch,
            replicas: self.replicas,
            cores: self.cores,
            sms: Sms(self.sms),
        }
    }

    pub(super) const fn of(spot: Spot) -> Self {
        Self {
            cores: spot.cores,
            batch: spot.batch,
            sms: spot.sms.0,
            replicas: spot.replicas,
        }
    }
}

/// All points of a stage: cores × batch sizes × SMs × replicas, small before large.
pub(super) fn points(
    stage: &StageFile,
    node: &Node,
    gpu: Option<&Gpu>,
) -> Result<Vec<Point>, Failure> {
    let Some(bench) = &stage.bench else {
        return Ok(Vec::new());
    };
    let free = node.cores.len().saturating_sub(node.reserved_cores.len());
    let free = u32::try_from(free).unwrap_or(u32::MAX).max(1);
    let cores = if stage.is_without_cores() {
        vec![0] // as it will run, whatever its grid says
    } else if bench.cores.is_empty() {
        doubling(free)
    } else {
        bench.cores.clone()
    };
    let sms = sms(stage, &bench.sms, gpu)?;
    let mut batches = stage.batches_to_try();
    batches.extend(gpu.and_then(|g| stage.guessed_batch(g.leasable_memory_bytes)));
    let replicas = match bench.replicas.as_slice() {
        [] => &[1],
        named => named,
    };
    let mut points = BTreeSet::new();
    for cores in cores {
        for &batch in &batches {
            for &replicas in replicas {
                let point = |&sms| Point {
                    cores,
                    batch,
                    sms,
                    replicas,
                };
                points.extend(sms.iter().map(point));
            }
        }
    }
    Ok(points.into_iter().collect())
}

/// 1, 2, 4, … up to what there is.
fn doubling(most: u32) -> Vec<u32> {
    let mut cores: Vec<u32> = (0..31).map(|i| 1 << i).take_while(|c| *c <= most).collect();
    if cores.last().is_some_and(|last| *last < most) {
        cores.push(most);
    }
    cores
}

/// SM counts that the GPU can enforce, at least those asked for.
fn sms(stage: &StageFile, asked: &[SmAsk], gpu: Option<&Gpu>) -> Result<Vec<u32>, Failure> {
    if stage.is_without_gpu() {
        return Ok(vec![0]);
    }
    let Some(gpu) = gpu else {
        return Err(Failure::new(format!(
            "stage {} needs a GPU, and the node has none",
            stage.name
        ))
        .hint("A stage without GPU work says so with no_gpu = true."));
    };
    let defaults = DEFAULT_PERCENTS.map(SmAsk::Percent);
    let asked = if asked.is_empty() {
        &defaults[..]
    } else {
        asked
    };
    let mut counts = BTreeSet::new();
    for ask in asked {
        let count = stage.sm_count(*ask, Some(gpu.sms))?;
        let enforceable = gpu.enforceable_sms.iter().find(|e| **e >= count);
        match enforceable {
            Some(count) => counts.insert(*count),
            None if gpu.enforceable_sms.is_empty() && count <= gpu.sms => counts.insert(count),
            None => {
                return Err(Failure::usage(format!(
                    "stage {}: GPU {} cannot give {count} SMs, it has {}",
                    stage.name, gpu.id, gpu.sms
                )));
            }
        };
    }
    Ok(counts.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobfile::JobFile;

    #[test]
    fn grids_hold_what_can_be_enforced_once_each() {
        let text = "name='j'\nunit='u'\n[[stages]]\nname='s'\nrole='training'\nbatches=[8,16]\n\
                    [stages.bench]\ncommand=['x']\ncores=[1,2]\nsms=['10%', 13, '100%']\n";
        let file = JobFile::parse(text, "j").unwrap();
        let gpu = Gpu {
            sms: 132,
            enforceable_sms: (1..=66).map(|i| i * 2).collect(),
            ..Gpu::default()
        };
        let points = points(&file.stages[0], &Node::default(), Some(&gpu)).unwrap();
        let sms: BTreeSet<u32> = points.iter().map(|p| p.sms).collect();
        assert_eq!(
            sms.into_iter().collect::<Vec<_>>(),
            [14, 132],
            "10 % and 13 are both 14"
        );
        assert_eq!(points.len(), 2 * 2 * 2);

        let text = text.replace("role=", "no_cores=true\nrole=");
        let file = JobFile::parse(&text, "j").unwrap();
        let points = super::points(&file.stages[0], &Node::default(), Some(&gpu)).unwrap();
        assert_eq!(points.len(), 2 * 2);
        assert!(points.iter().all(|p| p.cores == 0), "{points:?}");
    }

    #[test]
    fn batches_that_nobody_names_are_guessed_by_the_models_size() {
        let text = "name='j'\nunit='u'\n[[stages]]\nname='s'\nrole='training'\n\
                    [stages.bench]\ncommand=['x']\ncores=[1]\nsms=[132]\nparameters='7B'\n\
                    sample_memory='1GiB'\n";
        let gpu = Gpu {
            sms: 132,
            leasable_memory_bytes: 80 << 30,
            ..Gpu::default()
        };
        let batches = |text: &str| -> Vec<u32> {
            let file = JobFile::parse(text, "j").unwrap();
            let points = points(&file.stages[0], &Node::default(), Some(&gpu)).unwrap();
            points.iter().map(|p| p.batch).collect()
        };
        assert_eq!(batches(text), [16, 20, 32]);
        assert_eq!(batches(&text.replace("sample_memory='1GiB'", "")), [16, 32]);
        assert_eq!(batches(&text.replace("cores=", "batches=[4]\ncores=")), [4]);
    }

    #[test]
    fn cores_double_up_to_what_there_is() {
        assert_eq!(doubling(1), [1]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
        assert_eq!(doubling(8), [1, 2, 4, 8]);
    }
}
