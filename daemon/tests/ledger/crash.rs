//! SIGKILL in the middle of commits, again and again: what was acknowledged is there, and what is there was
//! whole.
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use evenkeel_core::event::Event;
use evenkeel_core::state::Durable;
use evenkeeld::ledger::{Batch, Tables, fold, load};

use super::happen::World;
use super::kit::{Rng, block_on, config, node, open};

const FOLDER: &str = "EVENKEEL_TEST_LEDGER";
const SEED: u64 = 7;

/// The batches of one fixed history, without end.
struct Source(World, bool);

impl Source {
    fn new() -> Self {
        Self(
            World::new(Durable::load(load(&Tables::default()).unwrap()), SEED),
            true,
        )
    }
    fn next(&mut self) -> Batch {
        let first = Event::NodeInstalled { node: node(8, 2) };
        let events = match std::mem::take(&mut self.1) {
            true => {
                self.0.durable.evolve(&first);
                vec![first]
            }
            false => {
                let n = 1 + self.0.rng.below(8);
                self.0.happen(n)
            }
        };
        fold(&events, &self.0.durable, 1)
    }
}

/// Not a test by itself: what `kills` starts and kills. Goes on where the ledger is.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    block_on(async {
        let mut opened = open(&config(folder.as_ref())).await;
        let mut source = Source::new();
        (0..opened.loaded.batches).for_each(|_| drop(source.next()));
        loop {
            opened.ledger.commit(&source.next()).await.unwrap();
            println!("\ncommitted {}", opened.ledger.batches().await);
        }
    });
}

#[test]
fn kills_lose_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let (mut rng, mut source, mut reached) = (Rng(1), Source::new(), 0);
    for kill in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let wait = 1 + rng.below(40);
        let mut acknowledged =
            lines.filter_map(|l| l.strip_prefix("committed ")?.parse::<u64>().ok());
        let seen = acknowledged
            .by_ref()
            .take(wait as usize)
            .last()
            .expect("the child commits");
        child.kill().unwrap();
        child.wait().unwrap();
        let last = acknowledged.last().unwrap_or(seen);
        block_on(async {
            let opened = open(&config).await;
            let found = opened.loaded.batches;
            assert!(
                found == last || found == last + 1,
                "kill {kill}: {last} acknowledged, {found} there"
            );
            while reached < found {
                source.next();
                reached += 1;
            }
            let wanted = format!("{:?}", source.0.durable.parts());
            assert_eq!(
                format!("{:?}", opened.loaded.parts),
                wanted,
                "kill {kill}, batch {found}"
            );
        });
    }
}
