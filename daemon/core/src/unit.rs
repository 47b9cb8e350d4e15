//! The amounts everything is counted in: SMs, bytes, time, rates, ratios. Newtypes; integers in the ledger.
use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// A number of streaming multiprocessors of one GPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Sms(pub u32);

/// A number of bytes of GPU memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A duration in milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// A point in time: milliseconds of `CLOCK_BOOTTIME` (it runs on in suspend and cannot be set).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Sms {
    /// What is left after taking `other`, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Bytes {
    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }
    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }
    /// What is left after taking `other`, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Millis {
    /// `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(n.saturating_mul(1000))
    }
}

impl Time {
    /// The time `d` after this one; the far end of time if there is none.
    pub const fn after(self, d: Millis) -> Self {
        Self(self.0.saturating_add(d.0))
    }
    /// How long after `earlier` this is; zero if it is before.
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

macro_rules! additive {
    ($($t:ident),*) => {$(
        impl Add for $t {
            type Output = Self;
            fn add(self, o: Self) -> Self { Self(self.0.saturating_add(o.0)) }
        }
        impl AddAssign for $t {
            fn add_assign(&mut self, o: Self) { *self = *self + o; }
        }
        impl Sub for $t {
            type Output = Self;
            fn sub(self, o: Self) -> Self { Self(self.0.saturating_sub(o.0)) }
        }
        impl Sum for $t {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self { iter.fold(Self::default(), Add::add) }
        }
    )*};
}
additive!(Sms, Bytes, Millis);

/// Sums of plain counts that stop at the largest number instead of overflowing. What is asked may be absurd; its sum
/// is then more than there is, which is what a comparison with the pool has to find. (The newtypes add like this by
/// themselves.)
pub trait Total<T>: Iterator<Item = T> {
    /// The sum, at most the type's largest number.
    fn total(self) -> T;
}
impl<I: Iterator<Item = u32>> Total<u32> for I {
    fn total(self) -> u32 {
        self.fold(0, u32::saturating_add)
    }
}
impl<I: Iterator<Item = u64>> Total<u64> for I {
    fn total(self) -> u64 {
        self.fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Sms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} SMs", self.0)
    }
}

impl fmt::Display for Bytes {
    /// The largest binary unit that keeps the number exact or above ten: `10 GiB`, `1536 MiB`, `17 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (name, shift) in UNITS {
            let one = 1u64 << shift;
            if self.0 >= one && self.0.is_multiple_of(one) {
                return write!(f, "{} {name}", self.0 >> shift);
            }
            if self.0 >= 10 * one {
                let tenths = (u128::from(self.0) * 10) >> shift;
                return write!(f, "{}.{} {name}", tenths / 10, tenths % 10);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 1000 => write!(f, "{n} ms"),
            n if n.is_multiple_of(1000) => write!(f, "{} s", n / 1000),
            n => write!(f, "{}.{:03} s", n / 1000, n % 1000),
        }
    }
}

/// Throughput in work units per second (the job declares its unit: environment step, token).
/// Always finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Rate(f64);

/// Why a number is not a throughput.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a throughput must be a finite number of work units per second, zero or more; got {0}")]
pub struct BadRate(pub f64);

impl Rate {
    /// No work at all.
    pub const ZERO: Self = Self(0.0);

    /// Checks that `units_per_s` is finite and not negative.
    pub fn new(units_per_s: f64) -> Result<Self, BadRate> {
        if units_per_s.is_finite() && units_per_s >= 0.0 {
            Ok(Self(units_per_s + 0.0)) // + 0.0 turns -0.0 into 0.0
        } else {
            Err(BadRate(units_per_s))
        }
    }
    /// The nearest throughput to a computed number: NaN and negatives become zero, infinity the largest.
    pub fn clamped(units_per_s: f64) -> Self {
        if units_per_s.is_nan() || units_per_s <= 0.0 {
            Self::ZERO
        } else {
            Self(units_per_s.min(f64::MAX))
        }
    }
    /// Work units per second.
    pub const fn get(self) -> f64 {
        self.0
    }
    /// The smaller of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        if other.0 < self.0 { other } else { self }
    }
    /// The larger of two.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if other.0 > self.0 { other } else { self }
    }
    /// A total order (there is no NaN in here).
    pub fn total_cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl TryFrom<f64> for Rate {
    type Error = BadRate;
    fn try_from(v: f64) -> Result<Self, BadRate> {
        Self::new(v)
    }
}
impl From<Rate> for f64 {
    fn from(r: Rate) -> Self {
        r.0
    }
}
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 100.0 {
            write!(f, "{:.2}/s", self.0)
        } else {
            write!(f, "{:.0}/s", self.0)
        }
    }
}

/// The gap between two throughputs: `1 − min/max`, in 0..=1; zero when both are zero.
pub fn gap(a: Rate, b: Rate) -> f64 {
    let (low, high) = (a.min(b).0, a.max(b).0);
    if high == 0.0 { 0.0 } else { 1.0 - low / high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn bytes_read_as_a_person_would_write_them() {
        for (bytes, expect) in [
            (Bytes::gib(10), "10 GiB"),
            (Bytes::mib(1536), "1536 MiB"),
            (Bytes(17), "17 B"),
            (Bytes(85_899_345_920 + 1), "80.0 GiB"),
        ] {
            assert_eq!(format!("{bytes}"), expect);
        }
    }

    #[test]
    fn sums_stop_at_the_largest_number() {
        let absurd = [u32::MAX, 1, u32::MAX];
        assert_eq!(absurd.into_iter().total(), u32::MAX);
        assert_eq!(absurd.into_iter().map(u64::from).total(), 8_589_934_591);
        assert_eq!([u64::MAX, 1].into_iter().total(), u64::MAX);
        let bytes = [Bytes(u64::MAX), Bytes::gib(u64::MAX), Bytes(1)];
        assert_eq!(bytes.into_iter().sum::<Bytes>(), Bytes(u64::MAX));
    }

    #[test]
    fn rates_refuse_what_is_not_a_throughput() {
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(Rate::new(bad).is_err(), "{bad}");
        }
        assert_eq!(gap(Rate::clamped(85.0), Rate::clamped(100.0)), 1.0 - 0.85);
        assert_eq!(gap(Rate::ZERO, Rate::ZERO), 0.0);
    }
}
