//! Values that may be written as numbers or as texts with units.
use std::fmt;
use std::time::Duration;

use evenkeel_client::SmAsk;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use crate::units;

/// A number or a text, as a text.
struct Written(String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Written;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a text with a unit")
            }
            fn visit_str<E>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }
        }
        from.deserialize_any(Any)
    }
}

fn read<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    parse(&Written::deserialize(from)?.0).map_err(D::Error::custom)
}

pub(super) fn memory<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    read(from, units::bytes)
}

/// A number of things, such as parameters of a model: `7B`, `350M`, `7000000000`.
pub(super) fn maybe_count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    read(from, units::count).map(Some)
}

pub(super) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    read(from, units::duration)
}

pub(super) fn maybe_time_ms<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let ms = time(from)?.as_millis();
    u64::try_from(ms)
        .map(Some)
        .map_err(|_| D::Error::custom("the time is too long"))
}

pub(super) fn maybe_share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SmAsk>, D::Error> {
    read(from, units::sms).map(Some)
}

pub(super) fn shares<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SmAsk>, D::Error> {
    let written = Vec::<Written>::deserialize(from)?;
    let shares = written.iter().map(|w| units::sms(&w.0));
    shares.collect::<Result<_, _>>().map_err(D::Error::custom)
}
