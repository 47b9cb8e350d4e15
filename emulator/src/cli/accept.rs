//! `evenkeel-gpu accept`: measures what was asked of the emulated GPU, on a device process of its own, by the wall
//! clock, with the cores idle and with all of them busy. Every figure is a row; the exit code says whether all hold.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use evenkeel_gpu::wire::ClientInfo;
use evenkeel_gpu::{Admin, Client};
use serde::Serialize;

use super::corun::{self, PAIRS};
use super::probe::{Got, compute_list, connect, keep_busy, measure};
use super::world::{Device, Hogs};

/// The most by which a busy probe may differ from what its percentage allows.
const PROBE_PERCENT: f64 = 3.0;
/// The most by which co-running clients may differ from the figures worked out by hand.
const CORUN_PERCENT: f64 = 5.0;
/// Runs of each probe. All of them count.
const RUNS: usize = 3;
/// Lists that are asked for: of 20 ms one deep, or two deep, and then 20 ms or less. Milliseconds and depth.
const SHAPES: [(u32, usize); 3] = [(20, 1), (20, 2), (5, 2)];
/// The longest wait for something that takes milliseconds: ten times what a stalled machine needs.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Accept {
    /// Print a JSON array of rows.
    #[arg(long)]
    json: bool,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
}

#[derive(Serialize)]
struct Row {
    what: String,
    asked: String,
    measured: String,
    holds: bool,
}

impl Accept {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let seconds = Duration::try_from_secs_f64(self.seconds)?;
        let device = Device::start("h100")?;
        let mut rows = Vec::new();
        for hogged in [false, true] {
            let hogs = hogged.then(Hogs::start);
            let load = if hogged {
                "every core busy"
            } else {
                "cores idle"
            };
            for shape in SHAPES {
                probes(&device, shape, load, seconds, &mut rows)?;
            }
            pairs(&device, load, seconds, &mut rows)?;
            drop(hogs);
        }
        rows.push(percentage_is_read_once(&device)?);
        rows.extend(killed_client(&device)?);
        self.report(&rows)?;
        let broken = rows.iter().filter(|row| !row.holds).count();
        ensure!(
            broken == 0,
            "{broken} of {} figures do not hold",
            rows.len()
        );
        Ok(())
    }

    fn report(&self, rows: &[Row]) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(rows)?);
            return Ok(());
        }
        println!("The emulated GPU (an emulated H100; nothing here is a real GPU)");
        for row in rows {
            let verdict = if row.holds { "holds" } else { "BROKEN" };
            println!(
                "{verdict:6}  {}\n        asked: {}; measured: {}",
                row.what, row.asked, row.measured
            );
        }
        Ok(())
    }
}

/// Lists of so many milliseconds, so many deep, at several percentages: [`RUNS`] runs each, and all of them have to be
/// near. One deep, a client that wakes up late leaves the GPU idle meanwhile, and that counts against it.
fn probes(
    device: &Device,
    (list_ms, depth): (u32, usize),
    load: &str,
    seconds: Duration,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    for percentage in [10, 25, 40, 60, 75] {
        let client = connect(&device.socket(), "accept/probe", percentage)?;
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            runs.push(measure(&client, list_ms, depth, seconds)?);
        }
        // By how far they are off, whatever the side.
        runs.sort_by(|a, b| a.error_percent.abs().total_cmp(&b.error_percent.abs()));
        let (median, worst) = (&runs[RUNS / 2], &runs[RUNS - 1]);
        let near = |got: &&Got| got.error_percent.abs() <= PROBE_PERCENT;
        let spec = client.spec();
        let rounded = spec.sms * percentage / 100 / spec.sm_granularity * spec.sm_granularity;
        rows.push(Row {
            what: format!(
                "busy probe at {percentage} % ({} of {} SMs), lists of {list_ms} ms, {depth} deep, {load}",
                worst.sms_effective, spec.sms
            ),
            asked: format!(
                "within {PROBE_PERCENT} % of the {:.2} TFLOP/s of {rounded} SMs",
                worst.allowed_flops_per_s / 1e12
            ),
            measured: format!(
                "{} of {RUNS} runs within; the worst {:.2} TFLOP/s ({:+.2} %), the median {:+.2} %; {} tasks runnable on \
                 the machine",
                runs.iter().filter(near).count(),
                worst.measured_flops_per_s / 1e12,
                worst.error_percent,
                median.error_percent,
                runnable()
            ),
            holds: worst.sms_effective == rounded && runs.iter().all(|got| near(&got)),
        });
    }
    Ok(())
}

/// Tasks that run or wait for a core, this one included: a figure measured beside other work should say so.
fn runnable() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = load
        .split_whitespace()
        .nth(3)
        .and_then(|field| field.split('/').next());
    running.unwrap_or("an unknown number of").to_owned()
}

fn pairs(
    device: &Device,
    load: &str,
    seconds: Duration,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    for pair in &PAIRS {
        let measured = corun::run(&device.socket(), pair, seconds)?;
        let [a, b] = pair.sides.map(|side| side.expect_ms);
        let errors = [0, 1].map(|side| (measured[side] / [a, b][side] - 1.0) * 100.0);
        rows.push(Row {
            what: format!("{}, {load}", pair.what),
            asked: format!("within {CORUN_PERCENT} % of {a:.4} and {b:.4} ms a launch, by hand"),
            measured: format!(
                "{:.4} ms ({:+.2} %) and {:.4} ms ({:+.2} %)",
                measured[0], errors[0], measured[1], errors[1]
            ),
            holds: errors.iter().all(|error| error.abs() <= CORUN_PERCENT),
        });
    }
    Ok(())
}

/// Milliseconds that `client` takes for a list of 20 ms on the SMs it was created with, by the device's times.
fn list_ms(client: &Client) -> anyhow::Result<f64> {
    let list = compute_list(client.spec(), client.sms_at_creation(), 20);
    let done = client.wait(client.submit(&[list])?)?;
    Ok((done.end_ns - done.start_ns) as f64 / 1e6)
}

fn percentage_is_read_once(device: &Device) -> anyhow::Result<Row> {
    let admin = Admin::connect(&device.socket())?;
    let old = connect(&device.socket(), "accept/old", 50)?;
    let before = list_ms(&old)?;
    admin.set_default_percentage(25)?;
    let after = list_ms(&old)?;
    let new = connect(&device.socket(), "accept/new", 50)?;
    admin.set_default_percentage(100)?;
    let old_sms = find(&admin, &old)?
        .context("the old context is not listed")?
        .sms;
    Ok(Row {
        what: "a context at 50 % exists when the percentage becomes 25".to_owned(),
        asked: "it keeps 66 SMs and its pace; a new context gets 32".to_owned(),
        measured: format!(
            "{old_sms} SMs, {before:.3} then {after:.3} ms a list; new: {} SMs",
            new.sms_at_creation()
        ),
        holds: old_sms == 66 && before == after && new.sms_at_creation() == 32,
    })
}

fn find(admin: &Admin, client: &Client) -> anyhow::Result<Option<ClientInfo>> {
    Ok(admin
        .list()?
        .into_iter()
        .find(|info| info.client == client.id()))
}

/// A process that uses all SMs and most of the memory is killed in the middle of its work.
fn killed_client(device: &Device) -> anyhow::Result<[Row; 2]> {
    let admin = Admin::connect(&device.socket())?;
    let own = connect(&device.socket(), "accept/survivor", 100)?;
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["probe", "--seconds", "60", "--alloc-mib", "60000", "--dir"])
        .arg(device.dir())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the client that is to be killed")?;
    let pid = victim.id();
    let victim_is = |test: &dyn Fn(Option<&ClientInfo>) -> bool| -> anyhow::Result<()> {
        let start = Instant::now();
        while !test(admin.list()?.iter().find(|info| info.pid == pid)) {
            if start.elapsed() > PATIENCE {
                bail!("the killed client is not in the expected state after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let busy = victim_is(&|info| {
        info.is_some_and(|info| info.queued > 0 && info.memory_used == 60_000 << 20)
    });
    let beside = busy.and_then(|()| list_ms(&own));
    let refused = own.alloc(40_000 << 20).is_err();
    victim.kill()?;
    let killed = Instant::now();
    victim.wait()?;
    let beside = beside?;
    victim_is(&|info| info.is_none())?;
    let gone_ms = killed.elapsed().as_secs_f64() * 1e3;
    let granted = own.alloc(40_000 << 20).is_ok();
    let (lists, wall) = keep_busy(&own, &[compute_list(own.spec(), 132, 20)], 2, |lists| {
        lists < 25
    })?;
    let alone = wall.as_secs_f64() * 1e3 / lists as f64;
    Ok([
        Row {
            what: "SMs after a client at 100 % is killed in the middle of its work (SIGKILL)"
                .to_owned(),
            asked:
                "a list of 20.01 ms takes 40.00 ms beside it, and 20.01 ms within 3 % afterwards"
                    .to_owned(),
            measured: format!(
                "{beside:.2} ms beside it, {alone:.2} ms afterwards; off the list after {gone_ms:.1} ms"
            ),
            holds: (beside / 40.0 - 1.0).abs() < 0.03 && (alone / 20.01 - 1.0).abs() < 0.03,
        },
        Row {
            what: "its 60,000 MiB of 81,559".to_owned(),
            asked: "40,000 MiB are refused to another before, and granted after".to_owned(),
            measured: format!("refused before: {refused}; granted after: {granted}"),
            holds: refused && granted,
        },
    ])
}
