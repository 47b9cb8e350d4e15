//! Walks through simulated worlds: `sim --seeds 1..100 --happenings 10000`. With `--trace`, says all that happens.
use std::io::Write;

use clap::Parser;
use evenkeel_tests::world::planted::Planted;
use evenkeel_tests::world::swarm::Swarm;
use evenkeel_tests::world::trace::Counts;
use evenkeel_tests::world::{Outcome, World, coverage};

#[derive(Parser)]
#[command(about = "Walks through simulated worlds, seed by seed")]
struct Args {
    /// Seeds, the last included: `7` or `1..100`.
    #[arg(long, default_value = "1..20")]
    seeds: String,
    /// Happenings per seed, before faults stop.
    #[arg(long, default_value_t = 10_000)]
    happenings: u64,
    /// A planted fault, by name.
    #[arg(long)]
    fault: Option<String>,
    /// Say all that happens.
    #[arg(long)]
    trace: bool,
    /// Go on after a violation, with the next seed.
    #[arg(long)]
    keep_going: bool,
    /// Print the counts.
    #[arg(long)]
    counts: bool,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let mut out = std::io::stdout().lock();
    let (first, last) = args
        .seeds
        .split_once("..")
        .unwrap_or((&args.seeds, &args.seeds));
    let (Ok(first), Ok(last)) = (
        first.parse::<u64>(),
        last.trim_start_matches('=').parse::<u64>(),
    ) else {
        let _ = writeln!(
            out,
            "--seeds {}: two numbers with .. between them are wanted",
            args.seeds
        );
        return 2.into();
    };
    let planted = match args
        .fault
        .as_deref()
        .map(|name| (name, Planted::named(name)))
    {
        Some((name, None)) => {
            let _ = writeln!(out, "--fault {name}: one of {:?} is wanted", Planted::ALL);
            return 2.into();
        }
        Some((_, fault)) => fault,
        None => None,
    };
    drop(out);
    let (mut counts, mut happenings, mut timers, mut failed) = (Counts::default(), 0, 0, 0_u64);
    let began = std::time::Instant::now();
    for seed in first..=last {
        let swarm = planted.map_or_else(|| Swarm::draw(seed), |p| Swarm::broken(seed, p));
        let outcome = World::new(seed, swarm, true, args.trace).run(args.happenings);
        counts.merge(&outcome.counts);
        happenings += outcome.happenings;
        timers += outcome.timers;
        failed += u64::from(outcome.violation.is_some());
        report(seed, &outcome);
        if outcome.violation.is_some() && !args.keep_going {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut out = std::io::stdout().lock();
    if args.counts {
        for (kind, name, n) in counts.iter() {
            let _ = writeln!(out, "{kind:>8}  {name:<32} {n:>9}");
        }
    }
    let _ = writeln!(
        out,
        "{happenings} happenings ({} % timers) in {seconds:.1} s, {:.0}/s; {failed} violations; never reached: {:?}",
        100 * timers / happenings.max(1),
        happenings as f64 / seconds,
        coverage::missing(&counts),
    );
    u8::from(failed > 0).into()
}

fn report(seed: u64, outcome: &Outcome) {
    let mut out = std::io::stdout().lock();
    if let Some((violation, tail)) = &outcome.violation {
        let _ = writeln!(
            out,
            "{tail}seed {seed}, after {} happenings: {}: {}",
            outcome.happenings, violation.invariant, violation.detail
        );
    }
}
