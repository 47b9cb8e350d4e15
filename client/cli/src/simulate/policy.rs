//! What is compared: each way to share a node among stages, by name.

use clap::ValueEnum;
use evenkeel_core::job;
use serde::Serialize;

/// A way to share a node among the stages of its jobs; a row of the table.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// Whole GPUs to each stage, the best way to deal them out at the start (disaggregated)
    WholeGpu,
    /// One stage at a time on all the GPUs, with a switch between them (collocated)
    Collocated,
    /// Simulation beside generation, then training on all the GPUs
    Hybrid,
    /// Cores and SMs split evenly, nothing measured
    Even,
    /// No caps and no binding: everybody contends
    Unmanaged,
    /// The ebrl allocator's plan of the start, never moved
    EbrlOnce,
    /// The ebrl allocator, rebalanced when a gap has lasted
    EbrlStreak,
    /// The ebrl allocator, rebalanced when deviations add up
    EbrlCusum,
    /// The waterfill allocator, rebalanced when a gap has lasted
    WaterfillStreak,
    /// The waterfill allocator, rebalanced when deviations add up
    WaterfillCusum,
    /// The best split for what is true at each moment, at no cost
    Clairvoyant,
}

/// Which detector watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watcher {
    Streak,
    Cusum,
}

impl Policy {
    /// All of them, in the table's order.
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// As it is typed and printed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WholeGpu => "whole-gpu",
            Self::Collocated => "collocated",
            Self::Hybrid => "hybrid",
            Self::Even => "even",
            Self::Unmanaged => "unmanaged",
            Self::EbrlOnce => "ebrl-once",
            Self::EbrlStreak => "ebrl-streak",
            Self::EbrlCusum => "ebrl-cusum",
            Self::WaterfillStreak => "waterfill-streak",
            Self::WaterfillCusum => "waterfill-cusum",
            Self::Clairvoyant => "clairvoyant",
        }
    }

    /// The production allocator that plans it.
    pub(super) const fn allocator(self) -> job::Policy {
        match self {
            Self::EbrlOnce | Self::EbrlStreak | Self::EbrlCusum => job::Policy::Ebrl,
            _ => job::Policy::Waterfill,
        }
    }

    /// The detector that watches it; none: nothing is moved.
    pub(super) const fn watcher(self) -> Option<Watcher> {
        match self {
            Self::EbrlStreak | Self::WaterfillStreak => Some(Watcher::Streak),
            Self::EbrlCusum | Self::WaterfillCusum => Some(Watcher::Cusum),
            _ => None,
        }
    }

    /// Whether it is a static split or better, which no clairvoyant can be beaten by.
    #[cfg(test)]
    pub(super) const fn is_split(self) -> bool {
        !matches!(
            self,
            Self::WholeGpu | Self::Collocated | Self::Hybrid | Self::Clairvoyant
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_they_are_typed() {
        for policy in Policy::all() {
            let typed = policy.to_possible_value().unwrap();
            assert_eq!(typed.get_name(), policy.name());
            let json = serde_json::to_string(policy).unwrap();
            assert_eq!(json, format!("\"{}\"", policy.name()));
        }
    }
}
