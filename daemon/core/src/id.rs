//! Names and numbers that identify things. Ids are never reused; fences and generations only rise.
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

macro_rules! number {
    ($($(#[$doc:meta])* $t:ident($inner:ty) $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $t(pub $inner);
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                d.deserialize_any(Number(PhantomData)).map(Self)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, concat!($prefix, "{}"), self.0) }
        }
    )*};
}

number! {
    /// A lease, for as long as the ledger exists.
    LeaseId(u64) "lease ";
    /// A job, for as long as the ledger exists.
    JobId(u64) "job ";
    /// Rises when the right to use a lease changes hands or ends; an old one is refused.
    Fence(u64) "fence ";
    /// Rises with each new resize target of a lease.
    Generation(u64) "generation ";
    /// A GPU's place on its node.
    GpuId(u16) "gpu ";
    /// A stage's place in its job's list.
    StageId(u8) "stage ";
    /// A worker's place among its stage's workers.
    WorkerId(u32) "worker ";
    /// A digest of a request's body: the same `request_id` with another body is an error.
    BodyHash(u64) "body ";
}

/// A number, or a text that is one: keys of JSON objects are texts, and inside a tagged enum serde does not turn them
/// back into numbers.
struct Number<T>(PhantomData<T>);

impl<T: TryFrom<u64> + FromStr> Visitor<'_> for Number<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0")
    }
    fn visit_u64<E: Error>(self, n: u64) -> Result<T, E> {
        T::try_from(n).map_err(|_| E::invalid_value(Unexpected::Unsigned(n), &self))
    }
    fn visit_i64<E: Error>(self, n: i64) -> Result<T, E> {
        let unsigned = u64::try_from(n).map_err(|_| E::invalid_value(Unexpected::Signed(n), &self));
        self.visit_u64(unsigned?)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse()
            .map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl Fence {
    /// The next higher one. Said also of what a client gave, so the highest number has none above it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
impl Generation {
    /// The next higher one. Said also of what a client gave, so the highest number has none above it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The client's own id of a request (a UUID, best a time-ordered one): the key of idempotence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RequestId(pub u128);

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let h = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            (h >> 96) as u32,
            (h >> 80) as u16,
            (h >> 64) as u16,
            (h >> 48) as u16,
            h & 0xffff_ffff_ffff
        )
    }
}
impl core::str::FromStr for RequestId {
    type Err = BadRequestId;
    /// Reads 32 hexadecimal digits, with or without hyphens.
    fn from_str(s: &str) -> Result<Self, BadRequestId> {
        let (mut value, mut digits) = (0u128, 0);
        for c in s.chars().filter(|c| *c != '-') {
            let d = c.to_digit(16).ok_or(BadRequestId)?;
            digits += 1;
            if digits > 32 {
                return Err(BadRequestId);
            }
            value = value << 4 | u128::from(d);
        }
        if digits == 32 {
            Ok(Self(value))
        } else {
            Err(BadRequestId)
        }
    }
}
impl Serialize for RequestId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Why a text is not a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request id is a UUID: 32 hexadecimal digits, with or without hyphens")]
pub struct BadRequestId;

/// A short name: of a tenant, a job, a stage, a model. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

/// The longest name. Names are keys in the ledger and labels in metrics.
pub const NAME_MAX: usize = 128;

impl Name {
    /// Checks that `s` has 1 to [`NAME_MAX`] printable characters and none of them is a space or a control.
    pub fn new(s: &str) -> Result<Self, BadName> {
        let plain = |c: char| {
            c.is_ascii_graphic() || (!c.is_ascii() && !c.is_control() && !c.is_whitespace())
        };
        if s.is_empty() || s.len() > NAME_MAX || !s.chars().all(plain) {
            return Err(BadName);
        }
        Ok(Self(s.into()))
    }
    /// Stands for somebody whose name is no longer known.
    pub fn unknown() -> Self {
        Self("-".into())
    }
    /// Comes before every other name, and is nobody's: the start of a range.
    pub fn least() -> Self {
        Self("".into())
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to {NAME_MAX} bytes, without spaces and control characters")]
pub struct BadName;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::string::ToString;

    #[test]
    fn request_ids_print_and_read_back_as_uuids() {
        let id: RequestId = "018f1c2e-0000-7abc-8def-0123456789ab".parse().unwrap();
        assert_eq!(id.to_string(), "018f1c2e-0000-7abc-8def-0123456789ab");
        for bad in [
            "",
            "xyz",
            "018f1c2e00007abc8def0123456789a",
            "018f1c2e00007abc8def0123456789abc",
        ] {
            assert_eq!(bad.parse::<RequestId>(), Err(BadRequestId), "{bad:?}");
        }
    }

    #[test]
    fn numbers_read_back_as_keys_inside_a_tagged_enum() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind")]
        enum Told {
            Shares { by_gpu: BTreeMap<GpuId, Fence> },
        }
        let told = Told::Shares {
            by_gpu: BTreeMap::from([(GpuId(3), Fence(u64::MAX))]),
        };
        let json = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Told>(&json).unwrap(), told);
        for bad in ["-1", "65536", "1.5", "\"x\"", "\"\"", "null"] {
            assert!(serde_json::from_str::<GpuId>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_refuse_spaces_controls_and_excess() {
        assert!(Name::new("pick-place/0.3").is_ok());
        assert!(Name::new("größe").is_ok());
        for bad in ["", "a b", "a\n", &"x".repeat(NAME_MAX + 1)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
    }
}
