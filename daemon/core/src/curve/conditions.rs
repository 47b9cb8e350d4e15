//! Under which conditions a point was measured, and what is different now. A profile's key says what never fits (another
//! stage, another GPU model); this says what may have changed since.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Profile;

/// Longest text of one condition in bytes: CPUs call themselves things like "AMD EPYC 9654 96-Core Processor".
pub const CONDITION_MAX: usize = 128;

/// What a measurement was made with. An empty text: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// CPU model.
    pub cpu: String,
    /// Version of the GPU's driver.
    pub driver: String,
    /// Version of Evenkeel.
    pub evenkeel: String,
}

impl Conditions {
    /// What is different now, in words. What is not known on either side is not different.
    pub fn changed(&self, now: &Self) -> Vec<String> {
        let pairs = [
            ("CPU", &self.cpu, &now.cpu),
            ("driver", &self.driver, &now.driver),
            ("Evenkeel", &self.evenkeel, &now.evenkeel),
        ];
        let differ = |(_, then, now): &(&str, &String, &String)| {
            !then.is_empty() && !now.is_empty() && then != now
        };
        let changed = pairs.into_iter().filter(differ);
        changed
            .map(|(what, then, now)| format!("{what} {then}, now {now}"))
            .collect()
    }
}

impl Profile {
    /// How its points differ from what is so now, each difference once; empty: it is fresh, or nobody knows.
    pub fn stale(&self, now: &Conditions) -> Vec<String> {
        let then = self.points.iter().filter_map(|p| p.conditions.as_deref());
        let mut all: Vec<String> = Vec::new();
        let mut last: Option<&Conditions> = None;
        for conditions in then {
            if last == Some(conditions) {
                continue; // points come in runs
            }
            last = Some(conditions);
            for change in conditions.changed(now) {
                if !all.contains(&change) {
                    all.push(change);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_on_both_sides_can_have_changed() {
        let of = |cpu: &str, driver: &str| Conditions {
            cpu: cpu.into(),
            driver: driver.into(),
            evenkeel: "0.1.0".into(),
        };
        let now = of("EPYC 9654", "560.35");
        assert!(of("EPYC 9654", "").changed(&now).is_empty());
        assert_eq!(
            of("EPYC 9654", "550.54").changed(&now),
            ["driver 550.54, now 560.35"]
        );
        assert_eq!(of("Xeon", "550.54").changed(&now).len(), 2);
    }
}
