//! Pairs of clients that run at the same time on an emulated H100, with the time of a launch worked out by hand from
//! the formulas in the README (see "Worked by hand" there), not by the model.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_gpu::{Client, KernelGroup};

use super::probe::{connect, keep_busy};

/// One client of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub(crate) percentage: u32,
    pub(crate) kernel: KernelGroup,
    /// Milliseconds from one launch to the next while the other side runs, by hand.
    pub(crate) expect_ms: f64,
}

/// A pair and its name.
pub(crate) struct Pair {
    pub(crate) what: &'static str,
    pub(crate) sides: [Side; 2],
}

/// 20 launches of 1 ms alone on 66 SMs (50 %): 989.4 TFLOP/s × 66/132 × 1 ms.
const COMPUTE_66: KernelGroup = KernelGroup {
    flops: 494_700_000_000,
    bytes: 0,
    width_blocks: 66,
    repeat: 20,
};
/// 20 launches of 1 ms alone on 98 SMs (75 % of 132 is 99, rounded down to pairs).
const COMPUTE_98: KernelGroup = KernelGroup {
    flops: 734_554_545_454,
    bytes: 0,
    width_blocks: 98,
    repeat: 20,
};
/// 10 launches of 1 ms alone at the memory's 3.35 TB/s, which 66 SMs can draw.
const MEMORY: KernelGroup = KernelGroup {
    flops: 0,
    bytes: 3_350_000_000,
    width_blocks: 66,
    repeat: 10,
};
/// 20 launches of 1 ms alone on 66 SMs that move 1 GB each: bound by compute, drawing 1 TB/s.
const MIXED: KernelGroup = KernelGroup {
    bytes: 1_000_000_000,
    ..COMPUTE_66
};

pub(crate) const PAIRS: [Pair; 4] = [
    Pair {
        what: "two compute-bound clients on disjoint halves: nothing shared",
        sides: [
            Side {
                percentage: 50,
                kernel: COMPUTE_66,
                expect_ms: 1.0005,
            },
            Side {
                percentage: 50,
                kernel: COMPUTE_66,
                expect_ms: 1.0005,
            },
        ],
    },
    Pair {
        // Each occupies 98 × 1/1.0005 = 97.95 SMs; 195.90 of 132 is 1.4841 times too much.
        what: "two compute-bound clients with caps of 75 %: SMs in proportion",
        sides: [
            Side {
                percentage: 75,
                kernel: COMPUTE_98,
                expect_ms: 1.4848,
            },
            Side {
                percentage: 75,
                kernel: COMPUTE_98,
                expect_ms: 1.4848,
            },
        ],
    },
    Pair {
        // Both ask for all of the bandwidth and get half: 3.35 GB at 1.675 TB/s.
        what: "two memory-bound clients: bandwidth in halves",
        sides: [
            Side {
                percentage: 50,
                kernel: MEMORY,
                expect_ms: 2.0,
            },
            Side {
                percentage: 50,
                kernel: MEMORY,
                expect_ms: 2.0,
            },
        ],
    },
    Pair {
        // The mixed one asks for 1 TB/s, less than half, and gets it: 0.9995. The other has 2.3505 left: 1.4252 ms.
        what: "a client that draws 1 TB/s beside a memory-bound one: max-min",
        sides: [
            Side {
                percentage: 50,
                kernel: MIXED,
                expect_ms: 1.0005,
            },
            Side {
                percentage: 50,
                kernel: MEMORY,
                expect_ms: 1.4252,
            },
        ],
    },
];

/// Milliseconds of a launch of each side by the wall clock, while both run two deep for at least `seconds`.
pub(crate) fn run(socket: &Path, pair: &Pair, seconds: Duration) -> anyhow::Result<[f64; 2]> {
    let [a, b] = &pair.sides;
    let clients = [
        connect(socket, "corun/a", a.percentage)?,
        connect(socket, "corun/b", b.percentage)?,
    ];
    let (start, finished) = (Barrier::new(2), AtomicUsize::new(0));
    let side = |client: &Client, side: &Side| -> anyhow::Result<f64> {
        let list_ms = side.expect_ms * f64::from(side.kernel.repeat);
        let lists = (seconds.as_secs_f64() * 1e3 / list_ms).ceil() as u64;
        start.wait();
        // Measured over a fixed number of lists; then it keeps the other one company until that has its own.
        let (lists, wall) = keep_busy(client, &[side.kernel], 2, |submitted| submitted < lists)?;
        finished.fetch_add(1, Ordering::SeqCst);
        keep_busy(client, &[side.kernel], 2, |_| {
            finished.load(Ordering::SeqCst) < 2
        })?;
        Ok(wall.as_secs_f64() * 1e3 / (lists as f64 * f64::from(side.kernel.repeat)))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| side(&clients[1], b).inspect_err(|_| release(&finished)));
        let first = side(&clients[0], a).inspect_err(|_| release(&finished));
        let second = other
            .join()
            .map_err(|_| anyhow!("the second client panicked"))?;
        Ok([
            first.context("the first client")?,
            second.context("the second client")?,
        ])
    })
}

/// A side that failed does not keep the other one waiting.
fn release(finished: &AtomicUsize) {
    finished.store(2, Ordering::SeqCst);
}
