//! Amounts as people write and read them: `10GiB`, `30%`, `10m`.
use std::time::Duration;

use evenkeel_client::SmAsk;

/// A number with its unit, apart.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Numbers below are hardly meant as bytes: no share of a GPU is so small.
const BARE_LEAST: u64 = 1 << 20;

/// Bytes: `10GiB`, `512MiB`, `1.5G` (G, M, K and T mean GiB and so on; GB means 10^9 bytes), or a plain number, if it is
/// large enough to be one of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let bad =
        || format!("`{text}` is not an amount of memory; write 10GiB, 512MiB or a number of bytes");
    let (number, unit) = split(text);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        let is_bare = text.trim() == number;
        if is_bare && (1..BARE_LEAST).contains(&whole) {
            return Err(format!(
                "`{whole}` would be {}; did you mean {whole}GiB? (Write {whole}B for bytes.)",
                counted(whole, "byte")
            ));
        }
        return whole.checked_mul(unit).ok_or_else(bad);
    }
    let value = number.parse::<f64>().map_err(|_| bad())? * unit as f64;
    if unit == 1 {
        let number = number.trim();
        return Err(format!(
            "`{number}` is a part of a byte; did you mean {number}GiB?"
        ));
    }
    // 2^53: above it a fraction means nothing any more.
    if !(0.0..=9.0e15).contains(&value) {
        return Err(bad());
    }
    Ok(value.round() as u64)
}

/// SMs: a count such as `40`, or a percentage of the GPU such as `30%`.
pub(crate) fn sms(text: &str) -> Result<SmAsk, String> {
    let bad = || format!("`{text}` is not a share of a GPU; write a number of SMs or 1% to 100%");
    let text = text.trim();
    if let Some(percent) = text.strip_suffix('%') {
        let percent: u32 = percent.trim().parse().map_err(|_| bad())?;
        return match percent {
            1..=100 => Ok(SmAsk::Percent(percent)),
            _ => Err(bad()),
        };
    }
    text.parse().map(SmAsk::Count).map_err(|_| bad())
}

/// A number of things: `7B`, `1.5B`, `350M`, `20k`, or a plain number.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a number of things; write 7B, 350M or 20k");
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let one = match unit {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "B" | "G" => 1e9,
        _ => return Err(bad()),
    };
    let all = number * one;
    match all.is_finite() && (0.0..1e18).contains(&all) {
        true => Ok(all as u64),
        false => Err(bad()),
    }
}

/// A time: `500ms`, `30s`, `10m`, `2h`, or a plain number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("`{text}` is not a time; write 500ms, 30s, 10m or 2h");
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "ms" => number / 1_000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3_600.0,
        "d" => number * 86_400.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

/// Bytes for people: `10.0 GiB`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    for (unit, name) in UNITS {
        if bytes >= unit {
            return if bytes.is_multiple_of(unit) {
                format!("{} {name}", bytes / unit)
            } else {
                format!("{:.1} {name}", bytes as f64 / unit as f64)
            };
        }
    }
    format!("{bytes} B")
}

/// So many of something that gets an `s` when there are several: `1 core`, `2 cores`.
pub(crate) fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A time for people: `450 ms`, `12.3 s`, `4 m 10 s`, `3 h 5 m`.
pub(crate) fn show_duration(d: Duration) -> String {
    match d.as_secs() {
        0 => format!("{} ms", d.as_millis()),
        1..=59 => format!("{:.1} s", d.as_secs_f64()),
        s @ 60..=3_599 => format!("{} m {} s", s / 60, s % 60),
        s @ 3_600..=86_399 => format!("{} h {} m", s / 3_600, s % 3_600 / 60),
        s => format!("{} d {} h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// How often shares moved: `never moved`, `moved once`, `moved 3 times`.
pub(crate) fn moved(n: u32) -> String {
    match n {
        0 => "never moved".to_owned(),
        1 => "moved once".to_owned(),
        n => format!("moved {n} times"),
    }
}

/// A rate with three significant digits or all of its whole ones: `0.123`, `12.3`, `1234`.
pub(crate) fn show_rate(rate: f64) -> String {
    match rate.abs() {
        0.0 => "0".to_owned(),
        r if r < 1.0 => format!("{rate:.3}"),
        r if r < 10.0 => format!("{rate:.2}"),
        r if r < 100.0 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_and_shows() {
        for (text, expect) in [
            ("10GiB", Some(10 << 30)),
            ("10 GiB", Some(10 << 30)),
            ("10g", Some(10 << 30)),
            ("1.5GiB", Some(3 << 29)),
            ("512MiB", Some(512 << 20)),
            ("80GB", Some(80_000_000_000)),
            ("4096B", Some(4096)),
            ("1073741824", Some(1 << 30)),
            ("10", None),
            ("1048575", None),
            ("10.5", None),
            ("10.5B", None),
            ("0", Some(0)),
            ("", None),
            ("-1GiB", None),
            ("10 apples", None),
            ("99999999999TiB", None),
            ("1e9", None),
        ] {
            assert_eq!(bytes(text).ok(), expect, "{text}");
        }
        for (bytes, expect) in [
            (0, "0 B"),
            (10 << 30, "10 GiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 20, "1 MiB"),
        ] {
            assert_eq!(show_bytes(bytes), expect);
        }
    }

    #[test]
    fn a_bare_number_of_gib_is_asked_about() {
        let hint = bytes("10").unwrap_err();
        assert!(hint.contains("10 bytes; did you mean 10GiB?"), "{hint}");
    }

    #[test]
    fn shares_read() {
        for (text, expect) in [
            ("30%", Some(SmAsk::Percent(30))),
            ("100 %", Some(SmAsk::Percent(100))),
            ("40", Some(SmAsk::Count(40))),
            ("0%", None),
            ("101%", None),
            ("30.5%", None),
            ("-3", None),
        ] {
            assert_eq!(sms(text).ok(), expect, "{text}");
        }
    }

    #[test]
    fn times_read_and_show() {
        for (text, expect) in [
            ("500ms", Some(Duration::from_millis(500))),
            ("30s", Some(Duration::from_secs(30))),
            ("30", Some(Duration::from_secs(30))),
            ("1.5m", Some(Duration::from_secs(90))),
            ("2h", Some(Duration::from_secs(7_200))),
            ("soon", None),
            ("-1s", None),
            ("3 weeks", None),
        ] {
            assert_eq!(duration(text).ok(), expect, "{text}");
        }
        assert_eq!(show_duration(Duration::from_secs(250)), "4 m 10 s");
        assert_eq!(show_rate(1234.5), "1234");
        assert_eq!(show_rate(0.1234), "0.123");
    }
}
