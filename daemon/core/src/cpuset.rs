//! Sets of CPU or core numbers, written as the kernel writes them: `0-3,8,10-11`.
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

/// A set of CPU (or core) numbers, kept as disjoint, ascending, non-adjacent ranges.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    ranges: Vec<(u32, u32)>, // inclusive
}

/// The highest number a set may hold: a limit on what a list such as `0-4294967295` can make us allocate.
pub const CPU_MAX: u32 = 1 << 20;

/// Why a text is not a CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a CPU list: {why}; write numbers and ranges such as 0-3,8")]
pub struct BadCpuList {
    /// What was read.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl CpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }
    /// The numbers `first..=last`; empty if `last < first`.
    pub fn range(first: u32, last: u32) -> Self {
        if last < first {
            Self::new()
        } else {
            Self {
                ranges: [(first, last)].into(),
            }
        }
    }
    /// How many numbers it holds.
    pub fn len(&self) -> u32 {
        let sizes = self.ranges.iter().map(|(a, b)| (b - a).saturating_add(1));
        sizes.fold(0, u32::saturating_add)
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
    /// The smallest number.
    pub fn first(&self) -> Option<u32> {
        self.ranges.first().map(|r| r.0)
    }
    /// Whether `n` is in it.
    pub fn contains(&self, n: u32) -> bool {
        let at = self.ranges.partition_point(|r| r.1 < n);
        self.ranges.get(at).is_some_and(|r| r.0 <= n)
    }
    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|(a, b)| *a..=*b)
    }
    /// Adds one number.
    pub fn insert(&mut self, n: u32) {
        let at = self.ranges.partition_point(|r| r.1 < n);
        if self.ranges.get(at).is_some_and(|r| r.0 <= n) {
            return;
        }
        let joins_left = at > 0 && self.ranges[at - 1].1 + 1 == n;
        let above = self.ranges.get(at).map(|r| r.0);
        let joins_right = above.is_some() && above == n.checked_add(1);
        match (joins_left, joins_right) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = n,
            (false, true) => self.ranges[at].0 = n,
            (false, false) => self.ranges.insert(at, (n, n)),
        }
    }
    /// Takes one number out.
    pub fn remove(&mut self, n: u32) {
        let at = self.ranges.partition_point(|r| r.1 < n);
        let Some(&(a, b)) = self.ranges.get(at).filter(|r| r.0 <= n) else {
            return;
        };
        match (a == n, b == n) {
            (true, true) => {
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at].0 = n + 1,
            (false, true) => self.ranges[at].1 = n - 1,
            (false, false) => {
                self.ranges[at].1 = n - 1;
                self.ranges.insert(at + 1, (n + 1, b));
            }
        }
    }
    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all: Vec<_> = self.ranges.iter().chain(&other.ranges).copied().collect();
        all.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::with_capacity(all.len());
        for (a, b) in all {
            match ranges.last_mut() {
                Some(last) if a <= last.1.saturating_add(1) => last.1 = last.1.max(b),
                _ => ranges.push((a, b)),
            }
        }
        Self { ranges }
    }
    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut i, mut j, mut ranges) = (0, 0, Vec::new());
        while let (Some(x), Some(y)) = (self.ranges.get(i), other.ranges.get(j)) {
            let (a, b) = (x.0.max(y.0), x.1.min(y.1));
            if a <= b {
                ranges.push((a, b));
            }
            if x.1 < y.1 { i += 1 } else { j += 1 }
        }
        Self { ranges }
    }
    /// What is in this one and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut ranges = Vec::new();
        let mut j = 0;
        'ranges: for &(mut a, b) in &self.ranges {
            while j > 0 && other.ranges.get(j - 1).is_some_and(|r| r.1 >= a) {
                j -= 1;
            }
            while let Some(&(x, y)) = other.ranges.get(j) {
                if y < a {
                    j += 1;
                    continue;
                }
                if x > b {
                    break;
                }
                if x > a {
                    ranges.push((a, x - 1));
                }
                j += 1;
                let Some(next) = y.checked_add(1).filter(|next| *next <= b) else {
                    continue 'ranges; // nothing is left of this one
                };
                a = next;
            }
            ranges.push((a, b));
        }
        Self { ranges }
    }
    /// Whether every number of this one is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }
    /// Whether they share no number.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.intersection(other).is_empty()
    }
    /// The `n` smallest numbers; all if there are fewer.
    #[must_use]
    pub fn take(&self, n: u32) -> Self {
        let mut left = n;
        let mut ranges = Vec::new();
        for &(a, b) in &self.ranges {
            if left == 0 {
                break;
            }
            let k = left.min((b - a).saturating_add(1));
            ranges.push((a, a + k - 1));
            left -= k;
        }
        Self { ranges }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Self {
        let mut set = Self::new();
        iter.into_iter().for_each(|n| set.insert(n));
        set
    }
}

impl core::str::FromStr for CpuSet {
    type Err = BadCpuList;
    /// Reads the kernel's list format; an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, BadCpuList> {
        let bad = |why| BadCpuList {
            text: text.into(),
            why,
        };
        let number = |s: &str| match s.trim().parse::<u32>() {
            Ok(n) if n <= CPU_MAX => Ok(n),
            Ok(_) => Err(bad("a number is too large")),
            Err(_) => Err(bad("a number is not a number")),
        };
        let mut set = Self::new();
        for part in text.trim().split(',').map(str::trim) {
            if part.is_empty() {
                if text.trim().is_empty() {
                    break;
                }
                return Err(bad("a part is empty"));
            }
            let (a, b) = part.split_once('-').unwrap_or((part, part));
            let (a, b) = (number(a)?, number(b)?);
            if b < a {
                return Err(bad("a range ends before it starts"));
            }
            set = set.union(&Self::range(a, b));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (a, b)) in self.ranges.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if a == b {
                write!(f, "{comma}{a}")?
            } else {
                write!(f, "{comma}{a}-{b}")?
            }
        }
        Ok(())
    }
}
impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}
impl Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), expect);
    }

    #[test]
    fn lists_read_and_print_as_the_kernel_does() {
        check("", "");
        check("0", "0");
        check("3,1,2", "1-3");
        check("0-3,8,10-11\n", "0-3,8,10-11");
        check("0-3,2-5", "0-5");
        for bad in ["-", "a", "3-1", "1,,2", ",", "0-4294967295"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(a: BTreeSet<u8>, b: BTreeSet<u8>, n: u8) {
            let set = |s: &BTreeSet<u8>| s.iter().map(|x| u32::from(*x)).collect::<CpuSet>();
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(x.union(&y), set(&(&a | &b)));
            prop_assert_eq!(x.intersection(&y), set(&(&a & &b)));
            prop_assert_eq!(x.difference(&y), set(&(&a - &b)));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.contains(n.into()), a.contains(&n));
            prop_assert_eq!(x.len() as usize, a.len());
            let mut less = x.clone();
            less.remove(n.into());
            prop_assert_eq!(less, x.difference(&CpuSet::range(n.into(), n.into())));
            prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x);
        }
    }
}
