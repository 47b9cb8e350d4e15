//! The golden scripts in `scenarios/`: each is played, and what came of each command is compared with the file.
//!
//! `EVENKEEL_BLESS=1` writes the files anew; read the difference before you commit it.
#![allow(clippy::unwrap_used, reason = "a test may")]
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_tests::script::play;

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "txt"));
    files.sort();
    files
}

#[test]
fn every_scenario_ends_as_written() {
    let bless = std::env::var_os("EVENKEEL_BLESS").is_some();
    let files = scripts();
    assert!(
        files.len() >= 12,
        "only {} scenarios were found",
        files.len()
    );
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let written = fs::read_to_string(&file).unwrap();
        let played = play(&written).unwrap_or_else(|e| panic!("{name}: {e}"));
        if bless {
            fs::write(&file, &played).unwrap();
        } else if played != written {
            let first = played.lines().zip(written.lines()).find(|(a, b)| a != b);
            panic!("{name} differs; first (played, written): {first:#?}\nplayed:\n{played}");
        }
    }
}
