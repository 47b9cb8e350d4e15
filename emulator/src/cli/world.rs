//! What a measurement needs around it: a device process in a directory of its own, and cores that are busy with
//! something else. Both are gone when they are dropped.

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, ensure};
use evenkeel_gpu::socket_path;

/// A device process with one emulated GPU.
pub(crate) struct Device {
    process: Child,
    dir: PathBuf,
}

impl Device {
    pub(crate) fn start(gpu: &str) -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("evenkeel-gpu-{}", std::process::id()));
        let mut process = Command::new(std::env::current_exe()?)
            .args(["serve", "--gpu", gpu, "--dir"])
            .arg(&dir)
            .env("EVENKEEL_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the device process")?;
        let output = process
            .stdout
            .take()
            .context("the device process has no output")?;
        let device = Self { process, dir };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(
            line.starts_with("ready "),
            "the device process said `{}` instead of `ready`",
            line.trim()
        );
        Ok(device)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket_path(&self.dir, 0)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nothing to be done about a process that is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// One busy thread per core.
pub(crate) struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hogs {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let hog = |_| {
            let stop = stop.clone();
            thread::spawn(move || {
                let mut turns = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    turns = black_box(turns.wrapping_add(1));
                }
            })
        };
        Self {
            threads: (0..cores).map(hog).collect(),
            stop,
        }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}
