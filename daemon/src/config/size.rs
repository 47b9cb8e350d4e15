//! Sizes in the configuration: `"10GiB"`, `"512MiB"`, or a number of bytes. Nothing else reads sizes this way.

use evenkeel_core::unit::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An amount of memory, written as people write it. Binary units: KiB, MiB, GiB, TiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub Bytes);

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size; write a whole number with KiB, MiB, GiB or TiB, such as \"10GiB\"")]
pub struct BadSize(String);

impl std::str::FromStr for Size {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_owned());
        let trimmed = text.trim();
        let (number, shift) = UNITS
            .iter()
            .find_map(|(unit, shift)| Some((trimmed.strip_suffix(unit)?, *shift)))
            .unwrap_or((trimmed, 0));
        let number: u64 = number.trim().parse().map_err(|_| bad())?;
        let bytes = number.checked_mul(1 << shift).ok_or_else(bad)?;
        Ok(Self(Bytes(bytes)))
    }
}

impl std::fmt::Display for Size {
    /// The largest unit that keeps the number whole.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0.0;
        let whole = |(_, shift): &&(&str, u32)| bytes > 0 && bytes.is_multiple_of(1 << shift);
        let (unit, shift) = UNITS.iter().find(whole).unwrap_or(&("B", 0));
        write!(f, "{}{unit}", bytes >> shift)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size such as \"10GiB\", or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(Bytes(bytes)))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(|bytes| Size(Bytes(bytes)))
                    .map_err(|_| E::custom(format!("{bytes} bytes are less than none")))
            }
        }
        d.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_as_people_do() {
        let check = |text: &str, bytes: u64, back: &str| {
            let size: Size = text.parse().unwrap();
            assert_eq!(size, Size(Bytes(bytes)), "{text}");
            assert_eq!(size.to_string(), back);
        };
        check("10GiB", 10 << 30, "10GiB");
        check("1536 MiB", 1536 << 20, "1536MiB");
        check("2048MiB", 2 << 30, "2GiB");
        check("17", 17, "17B");
        check("0", 0, "0B");
        for bad in ["", "GiB", "1.5GiB", "-1GiB", "10GB", "99999999TiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
