//! Profiles as CSV: a row for each measurement, units in the names of the columns. Reads and writes; stores nothing.
//!
//! What is wrong is said with its line and column, and then nothing of the file is used.
use std::collections::BTreeMap;
use std::io;

use csv::StringRecord;
use evenkeel_client::{CoRun, CoRunCaps, Conditions, Profile, ProfileKey, ProfilePoint};
use evenkeel_core::decide::node::{POINTS_MAX, PROFILES_MAX};

use crate::mistake;
use crate::nearest::nearest;
use crate::offline;

/// Every column, in the order of writing. The first six are needed.
const COLUMNS: [&str; 18] = [
    "stage",
    "gpu",
    "cores",
    "sms",
    "batch",
    "units_per_s",
    "replicas",
    "repeat",
    "memory_bytes",
    "weight",
    "beside_stage",
    "beside_sms",
    "beside_caps",
    "beside_alone_units_per_s",
    "beside_overlap",
    "cpu",
    "driver",
    "evenkeel",
];
const NEEDED: usize = 6;
/// The fastest that the daemon believes.
const RATE_MAX: f64 = 1e15;
/// The most of anything that is counted in a row; the daemon's own limits are lower, and it says so.
const COUNT_MAX: u64 = 1 << 50;

/// Why a text is no file of profiles: where, and what.
#[derive(Debug, PartialEq)]
pub(super) struct Bad(pub(super) String);

/// One row's fields, by column.
struct Row<'r> {
    line: u64,
    record: &'r StringRecord,
    /// Where each of `COLUMNS` is in this file.
    places: &'r [Option<usize>],
}

/// Where a measurement is: what two rows may not share.
type Place = ((String, String), [u32; 5], String, u32, CoRunCaps);

/// Reads profiles, in the order in which they come.
pub(super) fn read(text: &str) -> Result<Vec<Profile>, Bad> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| Bad(broken(&e, text)))?.clone();
    let places = columns(&header)?;
    let mut profiles: Vec<Profile> = Vec::new();
    let mut at: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut seen: BTreeMap<Place, u64> = BTreeMap::new();
    let mut record = StringRecord::new();
    while reader
        .read_record(&mut record)
        .map_err(|e| Bad(broken(&e, text)))?
    {
        let row = Row {
            line: line_of(record.position(), text),
            record: &record,
            places: &places,
        };
        let key = ProfileKey {
            stage: row.name("stage")?,
            gpu: row.name("gpu")?,
        };
        let (point, repeat) = row.point()?;
        if let Some(first) = seen.insert(place(&key, &point, repeat), row.line) {
            return Err(row.bad(
                "cores",
                format_args!(
                    "the same point of {} is in line {first} already; repeats are numbered in a column `repeat`",
                    key.stage
                ),
            ));
        }
        let found = (key.stage.clone(), key.gpu.clone());
        let at = *at.entry(found).or_insert_with(|| {
            profiles.push(Profile {
                key,
                ..Profile::default()
            });
            profiles.len() - 1
        });
        if profiles.len() > PROFILES_MAX {
            let what = format_args!(
                "this is profile {}; {PROFILES_MAX} are kept of one tenant",
                profiles.len()
            );
            return Err(row.bad("stage", what));
        }
        if profiles[at].points.len() == POINTS_MAX {
            let what =
                format_args!("a profile holds {POINTS_MAX} measurements, and here is one more");
            return Err(row.bad("stage", what));
        }
        profiles[at].points.push(point);
    }
    match profiles.is_empty() {
        true => Err(Bad("there is no measurement under the header".to_owned())),
        false => Ok(profiles),
    }
}

fn place(key: &ProfileKey, p: &ProfilePoint, repeat: u32) -> Place {
    let beside = p.beside.clone().unwrap_or_default();
    let numbers = [p.cores, p.sms, p.batch, p.replicas, repeat];
    (
        (key.stage.clone(), key.gpu.clone()),
        numbers,
        beside.stage,
        beside.sms,
        beside.caps,
    )
}

/// Where the columns are. Unknown ones are refused: a wrong unit would be a silent factor.
fn columns(header: &StringRecord) -> Result<Vec<Option<usize>>, Bad> {
    let mut places = vec![None; COLUMNS.len()];
    for (i, name) in header.iter().enumerate() {
        let Some(at) = COLUMNS.iter().position(|c| *c == name) else {
            let near = nearest(name, COLUMNS.iter().copied()).or_else(|| same_quantity(name));
            let near = match near {
                Some(near) => format!("; is it meant as `{near}`?"),
                None if name.contains([';', '\t']) => "; columns are parted by commas".to_owned(),
                None => format!("; known are {}", COLUMNS.join(", ")),
            };
            let name = mistake::cut(name);
            let what = format!(
                "line 1, column {}: there is no column `{name}`{near}",
                i + 1
            );
            return Err(Bad(what));
        };
        if places[at].replace(i).is_some() {
            let what = format!("line 1, column {}: `{name}` is there twice", i + 1);
            return Err(Bad(what));
        }
    }
    match (0..NEEDED).find(|at| places[*at].is_none()) {
        Some(at) => Err(Bad(format!(
            "line 1: the column `{}` is missing; needed are {}",
            COLUMNS[at],
            COLUMNS[..NEEDED].join(", ")
        ))),
        None => Ok(places),
    }
}

/// The column of the same quantity in our unit.
fn same_quantity(name: &str) -> Option<&'static str> {
    let starts = |start: &str| name.starts_with(start);
    match () {
        () if starts("memory") || starts("mem") => Some("memory_bytes"),
        () if starts("units") || starts("rate") || starts("throughput") => Some("units_per_s"),
        () if starts("sm") => Some("sms"),
        () => None,
    }
}

/// The line on which a record begins. The reader says where it began to look for it, remarks and empty lines included.
fn line_of(at: Option<&csv::Position>, text: &str) -> u64 {
    let Some(at) = at else { return 0 };
    let from = usize::try_from(at.byte()).unwrap_or(usize::MAX);
    let rest = text.get(from..).unwrap_or_default();
    let skipped = |line: &&str| line.trim().is_empty() || line.starts_with('#');
    at.line() + rest.lines().take_while(skipped).count() as u64
}

fn broken(error: &csv::Error, text: &str) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            pos,
            expected_len,
            len,
        } => format!(
            "line {}: {len} fields, and the header has {expected_len}",
            line_of(pos.as_ref(), text)
        ),
        csv::ErrorKind::Utf8 { pos, .. } => format!(
            "line {}: this is no text in UTF-8",
            line_of(pos.as_ref(), text)
        ),
        _ => error.to_string(),
    }
}

impl Row<'_> {
    /// A field; none if the column is not there, or the field is empty.
    fn text(&self, column: &str) -> Option<&str> {
        let at = COLUMNS.iter().position(|c| *c == column)?;
        let text = self.record.get(self.places[at]?)?;
        (!text.is_empty()).then_some(text)
    }

    fn bad(&self, column: &str, what: impl std::fmt::Display) -> Bad {
        Bad(format!("line {}, column `{column}`: {what}", self.line))
    }

    fn name(&self, column: &str) -> Result<String, Bad> {
        let text = self
            .text(column)
            .ok_or_else(|| self.bad(column, "it is empty"))?;
        let fine = text.len() <= 128 && text.bytes().all(|b| b.is_ascii_graphic());
        match fine {
            true => Ok(text.to_owned()),
            false => {
                let text = mistake::cut(text);
                Err(self.bad(
                    column,
                    format_args!("`{text}` is not 1 to 128 signs of ASCII without spaces"),
                ))
            }
        }
    }

    fn whole(&self, column: &str, or: Option<u64>) -> Result<u64, Bad> {
        let Some(text) = self.text(column) else {
            return or.ok_or_else(|| self.bad(column, "it is empty"));
        };
        let n: u64 = text.parse().map_err(|_| {
            let what = format_args!("`{text}` is not a whole number, 0 or more, without a unit");
            self.bad(column, what)
        })?;
        match n > COUNT_MAX {
            true => Err(self.bad(column, format_args!("{n} is more than any machine has"))),
            false => Ok(n),
        }
    }

    fn count(&self, column: &str, or: Option<u64>) -> Result<u32, Bad> {
        let n = self.whole(column, or)?;
        u32::try_from(n)
            .map_err(|_| self.bad(column, format_args!("{n} is more than any machine has")))
    }

    fn number(&self, column: &str, or: Option<f64>) -> Result<f64, Bad> {
        let Some(text) = self.text(column) else {
            return or.ok_or_else(|| self.bad(column, "it is empty"));
        };
        let x: f64 = text
            .parse()
            .map_err(|_| self.bad(column, format_args!("`{text}` is not a number")))?;
        match x.is_finite() && (0.0..=RATE_MAX).contains(&x) {
            true => Ok(x),
            // Not three hundred digits.
            false if x.is_finite() && x.abs() > RATE_MAX => {
                Err(self.bad(column, format_args!("{x:e} is not 0 to {RATE_MAX:e}")))
            }
            false => Err(self.bad(column, format_args!("{x} is not 0 to {RATE_MAX:e}"))),
        }
    }

    /// The measurement, and which repeat of its point it is.
    fn point(&self) -> Result<(ProfilePoint, u32), Bad> {
        let point = ProfilePoint {
            cores: self.count("cores", None)?,
            sms: self.count("sms", None)?,
            batch: self.count("batch", None)?,
            replicas: self.count("replicas", Some(1))?,
            units_per_s: self.number("units_per_s", None)?,
            memory_bytes: self.whole("memory_bytes", Some(0))?,
            weight: self.number("weight", Some(1.0))?,
            beside: self.beside()?,
            conditions: self.conditions(),
        };
        // What the daemon would refuse, in the words of its columns.
        offline::point(&point).map_err(|bad| {
            let column = bad.path.trim_start_matches("conditions.").replace('.', "_");
            self.bad(&column, bad.why)
        })?;
        Ok((point, self.count("repeat", Some(1))?))
    }

    fn beside(&self) -> Result<Option<CoRun>, Bad> {
        if self.text("beside_stage").is_none() {
            let rest = COLUMNS.iter().filter(|c| c.starts_with("beside_"));
            return match rest.copied().find(|c| self.text(c).is_some()) {
                Some(column) => Err(self.bad(
                    column,
                    "it is of another stage, and `beside_stage` is empty",
                )),
                None => Ok(None),
            };
        }
        Ok(Some(CoRun {
            stage: self.name("beside_stage")?,
            sms: self.count("beside_sms", None)?,
            caps: match self.text("beside_caps") {
                None | Some("reserve") => CoRunCaps::Reserve,
                Some("half_more") => CoRunCaps::HalfMore,
                Some("none") => CoRunCaps::None,
                Some(other) => {
                    let what = format_args!("`{other}` is not reserve, half_more or none");
                    return Err(self.bad("beside_caps", what));
                }
            },
            alone_units_per_s: self.number("beside_alone_units_per_s", None)?,
            overlap: self.number("beside_overlap", None)?,
        }))
    }

    fn conditions(&self) -> Option<Conditions> {
        let text = |column| self.text(column).unwrap_or_default().to_owned();
        let all = Conditions {
            cpu: text("cpu"),
            driver: text("driver"),
            evenkeel: text("evenkeel"),
        };
        (all != Conditions::default()).then_some(all)
    }
}

/// Profiles as CSV.
pub(super) fn write(profiles: &[Profile]) -> io::Result<String> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(COLUMNS)?;
    for profile in profiles {
        let mut repeats: BTreeMap<Place, u32> = BTreeMap::new();
        for p in &profile.points {
            let repeat = repeats.entry(place(&profile.key, p, 0)).or_default();
            *repeat += 1;
            out.write_record(fields(&profile.key, p, *repeat))?;
        }
    }
    let bytes = out.into_inner().map_err(|e| e.into_error())?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn fields(key: &ProfileKey, p: &ProfilePoint, repeat: u32) -> Vec<String> {
    let mut fields = vec![
        key.stage.clone(),
        key.gpu.clone(),
        p.cores.to_string(),
        p.sms.to_string(),
        p.batch.to_string(),
        p.units_per_s.to_string(),
        p.replicas.to_string(),
        repeat.to_string(),
        p.memory_bytes.to_string(),
        p.weight.to_string(),
    ];
    fields.extend(match &p.beside {
        None => [const { String::new() }; 5],
        Some(c) => [
            c.stage.clone(),
            c.sms.to_string(),
            match c.caps {
                CoRunCaps::Reserve => "reserve",
                CoRunCaps::HalfMore => "half_more",
                CoRunCaps::None => "none",
            }
            .to_owned(),
            c.alone_units_per_s.to_string(),
            c.overlap.to_string(),
        ],
    });
    let conditions = p.conditions.clone().unwrap_or_default();
    fields.extend([conditions.cpu, conditions.driver, conditions.evenkeel]);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "stage,gpu,cores,sms,batch,units_per_s";

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let Err(Bad(got)) = read(text) else {
            panic!("it was read: {text}");
        };
        assert!(got.contains(expect), "{got}");
    }

    #[test]
    fn what_was_written_is_read_again() {
        let point = |units_per_s| ProfilePoint {
            cores: 1,
            sms: 20,
            batch: 8,
            units_per_s,
            memory_bytes: 5 << 30,
            ..ProfilePoint::default()
        };
        let mut beside = point(0.1 + 0.2);
        beside.beside = Some(CoRun {
            stage: "j/t".into(),
            sms: 66,
            caps: CoRunCaps::HalfMore,
            alone_units_per_s: 90.0,
            overlap: 0.75,
        });
        beside.conditions = Some(Conditions {
            cpu: "a CPU, with a comma".into(),
            ..Conditions::default()
        });
        let profile = Profile {
            key: ProfileKey {
                stage: "j/s".into(),
                gpu: "H100".into(),
            },
            points: vec![point(80.0), point(80.0), beside],
            ..Profile::default()
        };
        let text = write(std::slice::from_ref(&profile)).unwrap();
        assert!(
            text.starts_with("stage,gpu,cores,sms,batch,units_per_s,replicas,repeat,memory_bytes")
        );
        assert_eq!(read(&text).unwrap(), [profile]);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let row = |row: &str| format!("{HEAD}\n# a remark\ns,g,1,10,1,5\n{row}\n");
        for (text, expect) in [
            ("", "missing"),
            (HEAD, "no measurement"),
            (
                "stage,gpu,cores,sms,batch,units_per_ms",
                "is it meant as `units_per_s`",
            ),
            (
                "stage,gpu,cores,sms,batch,units_per_s,memory_gib",
                "is it meant as `memory_bytes`",
            ),
            (
                "stage,gpu,cores,sms,units_per_s",
                "the column `batch` is missing",
            ),
            (
                "stage;gpu;cores;sms;batch;units_per_s",
                "line 1, column 1: there is no column `stage;gpu;cores;sms;batch;units_per_s`; columns are parted by commas",
            ),
            (
                "stage,stage,gpu",
                "line 1, column 2: `stage` is there twice",
            ),
        ] {
            check(text, expect);
        }
        for (text, expect) in [
            ("s,g,1,10,1", "line 4: 5 fields, and the header has 6"),
            (
                "s,g,-1,10,1,5",
                "line 4, column `cores`: `-1` is not a whole number",
            ),
            ("s,g,1,10%,1,5", "line 4, column `sms`: `10%`"),
            ("s,g,1,10,0,5", "line 4, column `batch`: it is at least 1"),
            ("s,g,1,10,,5", "line 4, column `batch`: it is empty"),
            ("s,g,1,20,1,NaN", "line 4, column `units_per_s`: NaN"),
            ("s,g,1,20,1,-5", "line 4, column `units_per_s`: -5"),
            ("s,g,1,20,1,inf", "line 4, column `units_per_s`: inf"),
            (
                "s,g,1,20,1,1e300",
                "line 4, column `units_per_s`: 1e300 is not 0 to 1e15",
            ),
            (
                "s,g,99999999999,20,1,5",
                "line 4, column `cores`: 99999999999 is more",
            ),
            ("s,g,0,0,1,5", "measures nothing"),
            ("a b,g,1,20,1,5", "line 4, column `stage`"),
            (
                "s,g,1,20,99999999,5",
                "line 4, column `batch`: 99999999 is more than",
            ),
            (
                "s,g,99999,20,1,5",
                "line 4, column `cores`: 99999 is more than",
            ),
            ("s,g,1,10,1,7", "is in line 3 already; repeats are numbered"),
        ] {
            check(&row(text), expect);
        }
    }

    #[test]
    fn what_the_daemon_would_refuse_is_named_by_its_column() {
        let wide =
            |columns: &str, fields: &str| format!("{HEAD},{columns}\ns,g,1,10,1,5,{fields}\n");
        let long = "x".repeat(300);
        let beside = "beside_stage,beside_sms,beside_alone_units_per_s,beside_overlap";
        for (columns, fields, expect) in [
            (
                "replicas",
                "99999",
                "line 2, column `replicas`: 99999 is more than",
            ),
            (
                "replicas",
                "0",
                "line 2, column `replicas`: it is at least 1",
            ),
            ("weight", "0", "line 2, column `weight`: 0.0 is not above 0"),
            ("weight", "-1", "line 2, column `weight`: -1 is not 0 to"),
            (
                "weight",
                "1e12",
                "line 2, column `weight`: 1000000000000.0 is not above 0 and at most",
            ),
            (
                "cpu",
                long.as_str(),
                "line 2, column `cpu`: it is longer than",
            ),
            (
                "beside_sms",
                "20",
                "line 2, column `beside_sms`: it is of another stage, and `beside_stage` is empty",
            ),
            (
                beside,
                "t,10,0,0.5",
                "line 2, column `beside_alone_units_per_s`: 0.0 is not above 0",
            ),
            (
                beside,
                "t,10,5,1.5",
                "line 2, column `beside_overlap`: 1.5 is not above 0 and at most 1",
            ),
        ] {
            check(&wide(columns, fields), expect);
        }
    }

    #[test]
    fn a_hundred_thousand_rows_are_too_many() {
        let mut text = format!("{HEAD},repeat\n");
        for i in 0..100_000 {
            text.push_str(&format!("s,g,1,10,1,5,{i}\n"));
        }
        check(&text, "line 10002, column `stage`: a profile holds 10000");
    }
}
