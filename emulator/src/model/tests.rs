//! The model against figures worked out by hand, and its properties over random histories.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use proptest::prelude::*;

use super::*;

/// Round figures: an SM does 10⁴ FLOP/ns and draws up to 20 B/ns; the memory gives 1,000 B/ns, so 50 SMs saturate it.
fn round_gpu() -> GpuSpec {
    GpuSpec {
        name: "round".to_owned(),
        sms: 100,
        memory_bytes: 1_000_000,
        memory_bandwidth_bytes_per_s: 1_000_000_000_000,
        sm_bandwidth_bytes_per_s: 20_000_000_000,
        flops_per_s: 1_000_000_000_000_000,
        sm_granularity: 2,
        launch_overhead_ns: 1_000,
        blocks_per_sm: 1,
    }
}

/// `width` blocks of 9,000 ns each, so that a launch of one wave takes 10,000 with its overhead.
fn compute(width: u32, repeat: u32) -> KernelGroup {
    KernelGroup {
        flops: u64::from(width) * 90_000_000,
        bytes: 0,
        width_blocks: width,
        repeat,
    }
}

fn memory(bytes: u64, repeat: u32) -> KernelGroup {
    KernelGroup {
        flops: 0,
        bytes,
        width_blocks: 100,
        repeat,
    }
}

fn client(model: &mut Model, at: u64, sms: u32) -> ClientId {
    model
        .connect(
            at,
            ClientSpec {
                sms,
                memory: 600_000,
            },
        )
        .expect("connects")
}

fn run_to(model: &mut Model, to: u64) -> Vec<Completion> {
    let mut out = Vec::new();
    model.advance(to, &mut out);
    out
}

#[track_caller]
fn spans(completions: &[Completion], id: ClientId, expect: &[(u64, u64)]) {
    let spans: Vec<_> = completions
        .iter()
        .filter(|c| c.client == id)
        .map(|c| (c.start, c.end))
        .collect();
    assert_eq!(spans, expect);
}

#[test]
fn solo_times_by_hand() {
    let gpu = round_gpu();
    let check = |what: &str, sms: u32, kernel: KernelGroup, expect: u64| {
        assert_eq!(solo_time_ns(&gpu, sms, &[kernel]), expect, "{what}");
    };
    check(
        "one wave of 9,000 ns and its launch",
        100,
        compute(100, 1),
        10_000,
    );
    check(
        "repeats pay their launch each",
        100,
        compute(100, 7),
        70_000,
    );
    check("half the SMs, two waves", 50, compute(100, 1), 19_000);
    check(
        "60 SMs still need two waves for 100 blocks",
        60,
        compute(100, 1),
        19_000,
    );
    check("48 SMs need three", 48, compute(100, 1), 28_000);
    check(
        "a narrow kernel gains nothing from more SMs",
        100,
        compute(10, 1),
        10_000,
    );
    check(
        "1 MB at the memory's 1,000 B/ns",
        100,
        memory(1_000_000, 1),
        2_000,
    );
    check(
        "half of the SMs saturate the memory",
        50,
        memory(1_000_000, 1),
        2_000,
    );
    check("10 SMs draw 200 B/ns", 10, memory(1_000_000, 1), 6_000);
    check("no SMs, never", 0, compute(10, 1), u64::MAX);
    let both = KernelGroup {
        bytes: 18_000_000,
        ..compute(100, 1)
    };
    check(
        "the larger of compute (9,000) and memory (18,000)",
        100,
        both,
        19_000,
    );
}

#[test]
fn two_blocks_on_an_sm_share_its_rate() {
    let gpu = GpuSpec {
        blocks_per_sm: 2,
        ..round_gpu()
    };
    // 100 blocks fill 50 SMs, where each block runs at half the rate: one wave of 18,000 ns.
    assert_eq!(solo_time_ns(&gpu, 100, &[compute(100, 1)]), 19_000);
    assert_eq!(solo_time_ns(&gpu, 50, &[compute(100, 1)]), 19_000);
    assert_eq!(solo_time_ns(&gpu, 48, &[compute(100, 1)]), 37_000);
}

#[test]
fn disjoint_shares_do_not_disturb_each_other() {
    let mut model = Model::new(round_gpu());
    let (a, b) = (client(&mut model, 0, 50), client(&mut model, 0, 50));
    model
        .submit(0, a, SubmissionId(1), vec![compute(50, 10)])
        .expect("a");
    model
        .submit(0, b, SubmissionId(1), vec![compute(50, 5)])
        .expect("b");
    let done = run_to(&mut model, 1_000_000);
    spans(&done, a, &[(0, 100_000)]);
    spans(&done, b, &[(0, 50_000)]);
}

#[test]
fn overlapping_caps_share_sms_in_proportion() {
    // Both may use all 100 SMs. A launch works 9,000 of 10,000 ns on 100 SMs: 90 SMs on average, 180 for both, of 100.
    // So each runs 1.8 times slower: 18,000 ns a launch. b ends its 5 launches at 90,000; until then a has done 5 of
    // its 10 as well, and goes on alone: 90,000 + 5 × 10,000.
    let mut model = Model::new(round_gpu());
    let (a, b) = (client(&mut model, 0, 100), client(&mut model, 0, 100));
    model
        .submit(0, a, SubmissionId(1), vec![compute(100, 10)])
        .expect("a");
    model
        .submit(0, b, SubmissionId(1), vec![compute(100, 5)])
        .expect("b");
    assert!((model.sms_in_use() - 100.0).abs() < 1e-9);
    let done = run_to(&mut model, 1_000_000);
    spans(&done, b, &[(0, 90_000)]);
    spans(&done, a, &[(0, 140_000)]);
}

#[test]
fn bandwidth_is_shared_between_co_runners() {
    // On 50 SMs each could saturate the memory: 9 MB take 9,000 ns + 1,000 of launch, 900 B/ns on average. Two ask for
    // 1,800 of 1,000 B/ns: 500 each, 18,000 ns a launch. A third that is compute-bound does not notice.
    let mut model = Model::new(GpuSpec {
        sms: 200,
        flops_per_s: 2_000_000_000_000_000,
        ..round_gpu()
    });
    let (a, b, c) = (
        client(&mut model, 0, 50),
        client(&mut model, 0, 50),
        client(&mut model, 0, 50),
    );
    model
        .submit(0, a, SubmissionId(1), vec![memory(9_000_000, 10)])
        .expect("a");
    model
        .submit(0, b, SubmissionId(1), vec![memory(9_000_000, 10)])
        .expect("b");
    model
        .submit(0, c, SubmissionId(1), vec![compute(50, 20)])
        .expect("c");
    assert!((model.bandwidth_in_use() - 1e12).abs() < 1.0);
    let done = run_to(&mut model, 1_000_000);
    spans(&done, a, &[(0, 180_000)]);
    spans(&done, b, &[(0, 180_000)]);
    spans(&done, c, &[(0, 200_000)]);
}

#[test]
fn a_small_demand_is_served_before_the_rest_is_halved() {
    // b draws 1 MB a launch of 9,000 + 1,000 ns: 100 B/ns. a asks for 900 and is not cut. With c asking for 900, too,
    // b keeps its 100 and the others get 450: 20,000 ns a launch.
    let mut model = Model::new(GpuSpec {
        sms: 200,
        flops_per_s: 2_000_000_000_000_000,
        ..round_gpu()
    });
    let (a, b, c) = (
        client(&mut model, 0, 50),
        client(&mut model, 0, 50),
        client(&mut model, 0, 50),
    );
    let mixed = KernelGroup {
        bytes: 1_000_000,
        ..compute(50, 100)
    };
    model
        .submit(0, a, SubmissionId(1), vec![memory(9_000_000, 10)])
        .expect("a");
    model.submit(0, b, SubmissionId(1), vec![mixed]).expect("b");
    let c_at = 50_000; // a has done 5 launches
    model
        .submit(c_at, c, SubmissionId(1), vec![memory(9_000_000, 100)])
        .expect("c");
    let done = run_to(&mut model, 1_000_000);
    spans(&done, a, &[(0, 50_000 + 5 * 20_000)]);
    spans(&done, b, &[(0, 1_000_000)]);
}

#[test]
fn a_resize_changes_the_work_that_is_left() {
    // 100 blocks on 50 SMs: 19,000 ns a launch. At 38,000 two of ten launches are done; the other eight take 10,000.
    let mut model = Model::new(round_gpu());
    let a = client(&mut model, 0, 50);
    model
        .submit(0, a, SubmissionId(1), vec![compute(100, 10)])
        .expect("a");
    assert_eq!(
        model.resize(38_000, a, 99),
        Ok(100),
        "99 SMs round up to whole granules"
    );
    let done = run_to(&mut model, 1_000_000);
    spans(&done, a, &[(0, 118_000)]);
}

#[test]
fn a_client_without_sms_stands_still() {
    let mut model = Model::new(round_gpu());
    let a = client(&mut model, 0, 100);
    model
        .submit(0, a, SubmissionId(1), vec![compute(100, 10)])
        .expect("a");
    assert_eq!(model.resize(50_000, a, 0), Ok(0));
    assert_eq!(model.next(), None);
    assert_eq!(model.resize(80_000, a, 100), Ok(100));
    spans(&run_to(&mut model, 1_000_000), a, &[(0, 130_000)]);
}

#[test]
fn starts_follow_the_end_before_and_late_submissions_are_backdated() {
    let mut model = Model::new(round_gpu());
    let a = client(&mut model, 0, 100);
    model
        .submit(500, a, SubmissionId(1), vec![compute(100, 1)])
        .expect("first");
    model
        .submit(600, a, SubmissionId(2), vec![compute(100, 1)])
        .expect("second");
    // The model was advanced far beyond the end, but nothing happened there: a submission of 21,000 still starts then.
    let mut done = run_to(&mut model, 90_000);
    assert_eq!(model.now(), 20_500);
    model
        .submit(21_000, a, SubmissionId(3), vec![compute(100, 1)])
        .expect("third");
    // One from before the last thing that happened cannot rewrite it.
    model
        .submit(100, a, SubmissionId(4), vec![compute(100, 1)])
        .expect("fourth");
    done.extend(run_to(&mut model, 90_000));
    spans(
        &done,
        a,
        &[
            (500, 10_500),
            (10_500, 20_500),
            (21_000, 31_000),
            (31_000, 41_000),
        ],
    );
    assert_eq!(
        model.stats(90_000, a).map(|stats| stats.busy_ns),
        Some(40_000)
    );
}

#[test]
fn an_ended_client_leaves_its_share_and_memory_to_others() {
    let mut model = Model::new(round_gpu());
    let (a, b) = (client(&mut model, 0, 100), client(&mut model, 0, 100));
    model.alloc(a, 600_000).expect("within the limit");
    let refused = model
        .alloc(b, 500_000)
        .expect_err("the GPU has 400,000 left");
    assert_eq!(
        refused,
        ModelError::OutOfMemory {
            asked: 500_000,
            free: 400_000,
            limit: 600_000
        }
    );
    model
        .submit(0, a, SubmissionId(1), vec![compute(100, 10)])
        .expect("a");
    model
        .submit(0, b, SubmissionId(1), vec![compute(100, 10)])
        .expect("b");
    model.disconnect(90_000, a).expect("a ends"); // b has done 5 launches, see above
    model.alloc(b, 500_000).expect("a's memory is free");
    let done = run_to(&mut model, 1_000_000);
    spans(&done, a, &[]);
    spans(&done, b, &[(0, 140_000)]);
    assert_eq!(
        model.resize(1_000_000, a, 10),
        Err(ModelError::UnknownClient(a))
    );
}

#[test]
fn refusals_change_nothing() {
    let mut model = Model::new(round_gpu());
    let a = client(&mut model, 0, 10);
    let mut refused = |groups: Vec<KernelGroup>| {
        model
            .submit(5, a, SubmissionId(1), groups)
            .expect_err("refused")
    };
    assert_eq!(refused(vec![]), ModelError::ListLength { groups: 0 });
    assert_eq!(
        refused(vec![compute(1, 1); MAX_GROUPS + 1]),
        ModelError::ListLength {
            groups: MAX_GROUPS + 1
        }
    );
    assert!(matches!(
        refused(vec![compute(1, 1), compute(0, 1)]),
        ModelError::Kernel { index: 1, .. }
    ));
    assert!(matches!(
        refused(vec![compute(1, 0)]),
        ModelError::Kernel { index: 0, .. }
    ));
    let huge = KernelGroup {
        bytes: u64::MAX,
        ..compute(1, 1)
    };
    assert!(matches!(
        refused(vec![huge]),
        ModelError::Kernel { index: 0, .. }
    ));
    assert_eq!(
        model.resize(5, a, 102),
        Err(ModelError::Sms {
            asked: 102,
            installed: 100
        })
    );
    assert!(matches!(
        model.free(a, 1),
        Err(ModelError::NotAllocated { .. })
    ));
    assert_eq!(model.now(), 0);
    for id in 0..MAX_QUEUED as u64 {
        model
            .submit(5, a, SubmissionId(id), vec![compute(1, 1)])
            .expect("fits");
    }
    assert_eq!(
        model.submit(5, a, SubmissionId(99), vec![compute(1, 1)]),
        Err(ModelError::QueueFull)
    );
    for _ in 1..MAX_CLIENTS {
        client(&mut model, 5, 2);
    }
    assert_eq!(
        model.connect(5, ClientSpec { sms: 2, memory: 0 }),
        Err(ModelError::TooManyClients)
    );
}

/// One happening of a random history: after a pause, client `who` submits, is resized, or leaves and comes back.
#[derive(Clone, Debug)]
enum Act {
    Submit(Vec<KernelGroup>),
    Resize(u32),
    Rejoin(u32),
}

fn kernels() -> impl Strategy<Value = Vec<KernelGroup>> {
    let kernel = (
        0_u64..2_000_000_000,
        0_u64..20_000_000,
        1_u32..400,
        1_u32..30,
    )
        .prop_map(|(flops, bytes, width_blocks, repeat)| KernelGroup {
            flops,
            bytes,
            width_blocks,
            repeat,
        });
    prop::collection::vec(kernel, 1..4)
}

fn history() -> impl Strategy<Value = Vec<(u64, usize, Act)>> {
    let act = prop_oneof![
        6 => kernels().prop_map(Act::Submit),
        2 => (0_u32..=100).prop_map(Act::Resize),
        1 => (1_u32..=100).prop_map(Act::Rejoin),
    ];
    prop::collection::vec((0_u64..200_000, 0_usize..4, act), 1..40)
}

/// Plays a history, advancing in portions of `chunk` ns where given, and returns everything that completed.
fn play(history: &[(u64, usize, Act)], chunk: Option<u64>) -> Vec<Completion> {
    let mut model = Model::new(round_gpu());
    let mut ids: Vec<ClientId> = (0..4).map(|_| client(&mut model, 0, 50)).collect();
    let (mut at, mut out) = (0, Vec::new());
    for (index, (pause, who, act)) in history.iter().enumerate() {
        let to = at + pause;
        while let Some(chunk) = chunk
            && at + chunk < to
        {
            at += chunk;
            model.advance(at, &mut out);
        }
        at = to;
        match act {
            Act::Submit(groups) => {
                // A full queue is refused in every portioning alike.
                let _ = model.submit(at, ids[*who], SubmissionId(index as u64), groups.clone());
            }
            Act::Resize(sms) => drop(model.resize(at, ids[*who], *sms).expect("known")),
            Act::Rejoin(sms) => {
                model.disconnect(at, ids[*who]).expect("known");
                ids[*who] = client(&mut model, at, *sms);
            }
        }
        assert!(
            model.sms_in_use() <= 100.0 * (1.0 + 1e-9),
            "SMs over-committed: {}",
            model.sms_in_use()
        );
        assert!(
            model.bandwidth_in_use() <= 1e12 * (1.0 + 1e-9),
            "bandwidth: {}",
            model.bandwidth_in_use()
        );
    }
    model.advance(u64::MAX, &mut out);
    out
}

proptest! {
    #[test]
    fn the_portions_of_advance_do_not_matter(history in history(), chunk in 500_u64..50_000) {
        let whole = play(&history, None);
        prop_assert_eq!(&play(&history, Some(chunk)), &whole);
        prop_assert_eq!(play(&history, None), whole, "the same calls, the same results");
    }

    #[test]
    fn alone_it_takes_exactly_the_solo_time(groups in kernels(), sms in 1_u32..=50) {
        let mut model = Model::new(round_gpu());
        let a = client(&mut model, 0, sms * 2);
        model.submit(7, a, SubmissionId(1), groups.clone()).expect("fits");
        let done = run_to(&mut model, u64::MAX);
        prop_assert_eq!(done[0].end - done[0].start, solo_time_ns(&round_gpu(), sms * 2, &groups));
    }

    fn nobody_is_faster_than_alone(
        lists in prop::collection::vec((0_usize..4, 0_u64..300_000, kernels()), 1..30),
        sms in prop::array::uniform4(1_u32..=50),
    ) {
        let mut model = Model::new(round_gpu());
        let ids = sms.map(|sms| client(&mut model, 0, sms * 2));
        let (mut at, mut slower) = (0, 0);
        for (index, (who, pause, groups)) in lists.iter().enumerate() {
            at += pause;
            model.submit(at, ids[*who], SubmissionId(index as u64), groups.clone()).expect("fits");
        }
        let done = run_to(&mut model, u64::MAX);
        prop_assert_eq!(done.len(), lists.len(), "everything completes");
        for who in 0..4 {
            let mut previous = 0;
            for completion in done.iter().filter(|completion| completion.client == ids[who]) {
                let groups = &lists[completion.id.0 as usize].2;
                let solo = solo_time_ns(&round_gpu(), sms[who] * 2, groups);
                prop_assert!(completion.end - completion.start >= solo);
                slower += u32::from(completion.end - completion.start > solo + 5);
                prop_assert!(completion.start >= previous);
                previous = completion.end;
            }
        }
        SLOWED.fetch_add(slower, Relaxed);
    }
}

/// How often a co-runner slowed a submission: the property above says nothing if that never happens.
static SLOWED: AtomicU32 = AtomicU32::new(0);

#[test]
fn nobody_is_faster_than_alone_and_streams_keep_their_order() {
    nobody_is_faster_than_alone();
    assert!(
        SLOWED.load(Relaxed) > 100,
        "only {} slowed",
        SLOWED.load(Relaxed)
    );
}

#[test]
fn fewer_sms_are_never_faster() {
    let gpu = GpuSpec::h100();
    let kernel = KernelGroup {
        flops: 50_000_000_000,
        bytes: 20_000_000,
        width_blocks: 264,
        repeat: 3,
    };
    let times: Vec<u64> = gpu
        .enforceable_sms()
        .iter()
        .map(|&sms| solo_time_ns(&gpu, sms, &[kernel]))
        .collect();
    assert!(times.windows(2).all(|pair| pair[0] >= pair[1]), "{times:?}");
    assert!(
        times.windows(2).any(|pair| pair[0] == pair[1]),
        "waves make steps: {times:?}"
    );
}
