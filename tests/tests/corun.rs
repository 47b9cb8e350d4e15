//! Stages that slow each other on the emulated GPU, in virtual time: one triple here, twenty in `make accept`.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
use evenkeel_tests::corun::figures;

#[test]
fn interference_is_predicted_found_out_and_planned_for() {
    let found = (1..).find_map(|seed| figures(seed).unwrap()).unwrap();
    assert!(found.misses > 0.2, "{found:?}");
    for kappa in &found.kappa {
        assert!(kappa.error() < 0.2, "{found:?}");
    }
    for way in [found.reserve, found.cap] {
        assert!(
            way.error.abs() < 0.1 && way.settled_error.abs() < 0.1,
            "{found:?}"
        );
        assert!(way.of_best > 0.95, "{found:?}");
    }
}
