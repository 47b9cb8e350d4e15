//! Reports that are refused, and what the others add up to.
use alloc::vec;
use alloc::vec::Vec;

use super::*;

#[track_caller]
fn refused(report: Report, expect: &str) {
    let spec = job(Detector::default(), [2, 1, 1]);
    let mut watch = Watch::new(&spec, Time(0));
    let error = watch.ingest(&report).unwrap_err();
    assert!(alloc::format!("{error}").contains(expect), "{error}");
    assert_eq!(watch.last_report(), None, "nothing of it was taken in");
}

#[test]
fn reports_that_cannot_be_true_are_refused() {
    let good = second(0, 0, 10.0, None);
    let with = |b: Busy| Report {
        busy: vec![b],
        ..good.clone()
    };
    refused(
        Report {
            worker: WorkerId(2),
            ..good.clone()
        },
        "declares no worker 2 of stage 0",
    );
    refused(
        Report {
            stage: StageId(9),
            ..good.clone()
        },
        "declares no",
    );
    refused(
        Report {
            lanes: 0,
            ..good.clone()
        },
        "1 to 1024",
    );
    refused(
        Report {
            lanes: LANES_MAX + 1,
            ..good.clone()
        },
        "1 to 1024",
    );
    refused(with(busy(LANES_MAX, 10, 10, 0.0)), "too high");
    for units in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        refused(with(busy(0, 10, 10, units)), "finite");
    }
    refused(with(busy(1, 10, 10, 1.0)), "helper");
    refused(
        with(Busy {
            batch: 0,
            ..busy(0, 10, 10, 1.0)
        }),
        "batch size 0",
    );
    refused(with(busy(0, 10, 11, 1.0)), "must have ended");
    refused(with(busy(0, u64::MAX, 1, 1.0)), "within a day");
}

#[test]
fn reports_that_overlap_or_go_backwards_are_refused() {
    let good = second(0, 0, 10.0, None);
    let overlap = vec![busy(0, 10, 5, 1.0), busy(0, 6, 5, 1.0)];
    refused(
        Report {
            busy: overlap,
            ..good.clone()
        },
        "lane 0 overlap",
    );
    refused(
        Report {
            busy: vec![busy(0, 9, 1, 0.0); BUSY_MAX + 1],
            ..good.clone()
        },
        "merge",
    );
    let step = |n, consumed| StepReport {
        n,
        consumed,
        discarded: 0.0,
    };
    refused(
        Report {
            steps: vec![step(1, f64::NAN)],
            ..good.clone()
        },
        "step 1",
    );
    refused(
        Report {
            steps: vec![step(2, 1.0), step(2, 1.0)],
            ..good.clone()
        },
        "step 2",
    );
    let touching = vec![busy(0, 10, 5, 1.0), busy(0, 5, 5, 1.0), busy(0, 5, 0, 1.0)];
    assert_eq!(
        Report {
            busy: touching,
            ..good
        }
        .check(),
        Ok(())
    );
}

/// Closes one window with one report for each stage and gives it back.
fn window(reports: &[Report]) -> Option<Window> {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let mut watch = Watch::new(&spec, Time(0));
    for report in reports {
        watch.ingest(report).unwrap();
        watch.poll(&ctx(&spec, &plan));
    }
    watch.view().last
}

#[test]
fn a_workers_rate_is_units_times_lanes_over_busy_lane_seconds() {
    #[track_caller]
    fn check(lanes: u32, intervals: Vec<Busy>, expect: f64) {
        let report = Report {
            lanes,
            busy: intervals,
            ..second(1, 0, 0.0, None)
        };
        let others = [second(0, 0, 1e6, None), second(2, 0, 1e6, Some(1))];
        let last = window(&[report, others[0].clone(), others[1].clone()]).unwrap();
        let got = last.stages[1].unwrap().rate.get();
        assert!(
            (got - expect).abs() < 1e-6 * expect,
            "{got}, expected {expect}"
        );
    }
    let s = 1_000_000;
    check(1, vec![busy(0, 2 * s, s, 50.0)], 50.0); // waiting does not count
    check(1, vec![busy(0, 2 * s, s, 50.0), busy(0, s, s, 30.0)], 40.0);
    check(1, vec![busy(0, 2 * s, 2 * s, 80.0)], 40.0); // the same, merged
    check(2, vec![busy(0, s, s, 50.0), busy(1, s, s, 50.0)], 100.0);
    check(4, vec![busy(0, s, s, 50.0), busy(3, s, s / 2, 25.0)], 200.0); // idle lanes could work as well
    check(
        1,
        vec![busy(0, s, s / 2, 50.0), busy(1, s, s / 10, 0.0)],
        100.0,
    ); // a helper that keeps up
    check(1, vec![busy(0, s, s / 2, 50.0), busy(1, s, s, 0.0)], 50.0); // a helper that binds
}

#[test]
fn a_stage_is_the_sum_of_its_workers_and_the_slowest_times_their_number_if_synchronous() {
    for (synchronous, expect) in [(false, 70.0), (true, 60.0)] {
        let mut spec = job(Detector::default(), [1, 2, 1]);
        spec.stages[1].synchronous = synchronous;
        let plan = planned(100.0);
        let mut watch = Watch::new(&spec, Time(0));
        for r in [
            second(0, 0, 100.0, None),
            second(1, 0, 30.0, None),
            second(1, 1, 40.0, None),
            second(2, 0, 100.0, Some(1)),
        ] {
            watch.ingest(&r).unwrap();
            watch.poll(&ctx(&spec, &plan));
        }
        assert_eq!(watch.view().last.unwrap().t_r.get(), expect);
    }
}

#[test]
fn discarded_units_count_against_the_rollout_and_one_group_adds_times() {
    let mut spec = job(Detector::default(), [1, 1, 1]);
    spec.groups = 1;
    let plan = planned(100.0);
    let mut watch = Watch::new(&spec, Time(0));
    let mut training = second(2, 0, 100.0, None);
    training.steps = vec![StepReport {
        n: 7,
        consumed: 30.0,
        discarded: 10.0,
    }];
    for r in [
        second(0, 0, 200.0, None),
        second(1, 0, 200.0, None),
        training,
    ] {
        watch.ingest(&r).unwrap();
        watch.poll(&ctx(&spec, &plan));
    }
    let last = watch.view().last.unwrap();
    assert_eq!(
        (last.t_r.get(), last.yielded, last.t_train.get()),
        (75.0, 0.75, 100.0)
    );
}

#[test]
fn a_window_closes_when_every_training_worker_has_finished_the_step() {
    let spec = job(Detector::default(), [1, 1, 2]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let mut watch = Watch::new(&spec, Time(0));
    let mut closed_after = |reports: &[Report]| {
        for r in reports {
            watch.ingest(r).unwrap();
            watch.poll(&c);
        }
        watch.view().windows
    };
    assert_eq!(
        closed_after(&[second(0, 0, 9.0, None), second(1, 0, 9.0, None)]),
        0
    );
    assert_eq!(
        closed_after(&[second(2, 0, 9.0, Some(5))]),
        0,
        "the other rank is not there"
    );
    assert_eq!(closed_after(&[second(2, 1, 9.0, Some(5))]), 1);
    assert_eq!(closed_after(&[second(2, 1, 9.0, Some(5))]), 1, "sent again");
    assert_eq!(
        closed_after(&[second(2, 0, 9.0, Some(6)), second(2, 1, 9.0, Some(6))]),
        1,
        "no rollout data"
    );
    assert_eq!(
        closed_after(&[second(0, 0, 9.0, None)]),
        1,
        "no generation data"
    );
    assert_eq!(
        closed_after(&[second(1, 0, 9.0, None)]),
        2,
        "the late data close the window"
    );
}

#[test]
fn a_worker_that_restarts_from_a_checkpoint_counts_from_there() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let mut watch = Watch::new(&spec, Time(0));
    run(&mut watch, &c, 40..43, |_| [9.0, 9.0, 9.0]);
    assert_eq!(watch.view().windows, 3);
    watch.forget(StageId(2), WorkerId(0));
    run(&mut watch, &c, 38..40, |_| [9.0, 9.0, 9.0]);
    assert_eq!(watch.view().windows, 5);
}

#[test]
fn nothing_counts_while_a_resize_is_under_way() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let mut watch = Watch::new(&spec, Time(0));
    let moving = JobContext {
        settled: false,
        ..ctx(&spec, &plan)
    };
    run(&mut watch, &moving, 0..5, |_| [9.0, 9.0, 9.0]);
    assert_eq!(watch.view().windows, 0);
    run(&mut watch, &ctx(&spec, &plan), 5..7, |_| [9.0, 9.0, 9.0]);
    assert_eq!(watch.view().windows, 2);
}

#[test]
fn a_silent_stage_is_named_with_its_worker_and_since_when() {
    let mut spec = job(Detector::default(), [1, 2, 2]);
    for (stage, label) in spec.stages.iter_mut().zip(["sim", "gen", "train"]) {
        stage.name = name(label);
    }
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let mut watch = Watch::new(&spec, Time(1_000));
    let says = |watch: &Watch, at: u64| watch.view().silence(&spec, |_| true, Time(at));
    let names = |watch: &Watch, at: u64| {
        let said = says(watch, at).unwrap_or_default();
        let start = "Nothing is measured, so nothing can move: ";
        alloc::string::String::from(said.strip_prefix(start).unwrap_or(&said))
    };
    assert_eq!(says(&watch, 10_999), None, "not silent for long yet");
    assert_eq!(
        names(&watch, 11_000),
        "sim has reported no work for 10 s; gen has reported no work for 10 s; train has reported no work for 10 s."
    );
    let nobody = watch.view().silence(&spec, |_| false, Time(11_000));
    assert!(
        nobody
            .unwrap_or_default()
            .ends_with(": no worker of sim or gen or train is attached.")
    );
    let without_training = watch.view().silence(&spec, |s| s.0 < 2, Time(11_000));
    assert_eq!(
        without_training.unwrap_or_default(),
        "Nothing is measured, so nothing can move: sim has reported no work for 10 s; gen has reported no work for \
         10 s; no worker of train is attached."
    );

    let hear = |watch: &mut Watch, at: u64, reports: &[Report]| {
        for r in reports {
            let at = Time(at);
            watch.ingest(&Report { at, ..r.clone() }).unwrap();
            watch.poll(&c);
        }
    };
    let all = |step: u64| {
        [
            second(0, 0, 9.0, None),
            second(1, 0, 9.0, None),
            second(1, 1, 9.0, None),
            second(2, 0, 9.0, Some(step)),
            second(2, 1, 9.0, Some(step)),
        ]
    };
    hear(&mut watch, 20_000, &all(1));
    assert_eq!((watch.view().windows, says(&watch, 29_000)), (1, None));

    // One training worker takes no step; what the others report waits for it.
    let mut next = all(2);
    next[4].steps.clear();
    hear(&mut watch, 32_000, &next);
    assert_eq!(
        names(&watch, 61_000),
        "worker 1 of train has finished no step for 41 s."
    );
    hear(&mut watch, 62_000, &[second(2, 1, 9.0, Some(2))]);
    assert_eq!((watch.view().windows, says(&watch, 63_000)), (2, None));

    // A whole stage falls silent: an older rate stands in for one of its workers, not for all.
    let next = all(3);
    hear(
        &mut watch,
        70_000,
        &[next[0].clone(), next[3].clone(), next[4].clone()],
    );
    assert_eq!(names(&watch, 95_000), "gen has reported no work for 63 s.");
    hear(&mut watch, 96_000, &next[1..2]);
    assert_eq!((watch.view().windows, says(&watch, 97_000)), (3, None));
}
