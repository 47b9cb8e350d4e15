//! Processes to look at: this test program itself, started again with a part to play. Nothing is left behind: every
//! process is remembered by pid and start time and ended when its tree is dropped.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_core::lease::Holder;
use evenkeeld::proc_tree::{self, Process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that says which part to play.
const PART: &str = "EVENKEELD_TEST_PART";
/// Ten times what anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Plays a part if this program was started for one. Under cargo it does nothing.
#[test]
fn helper() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let words: Vec<&str> = part.split(' ').collect();
    match words.as_slice() {
        ["threads", n] => threads(n.parse().unwrap()),
        ["context", percentage, socket] => context(percentage.parse().unwrap(), Path::new(socket)),
        ["device", "serve", rest @ ..] => device(rest),
        other => panic!("no such part: {other:?}"),
    }
}

/// Some threads that sleep, until standard input ends.
fn threads(n: u32) {
    for _ in 0..n {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
    }
    println!("\nready");
    wait_for_end();
}

/// A context on an emulated GPU, until standard input ends.
fn context(percentage: u32, socket: &Path) {
    let options = evenkeel_gpu::ContextOptions {
        role: "test".into(),
        percentage: Some(percentage),
        memory_limit: Some(1 << 30),
    };
    let client = evenkeel_gpu::Client::connect(socket, &options).unwrap();
    println!("\nready");
    wait_for_end();
    drop(client);
}

/// The device process, as `evenkeel-gpu serve` would be.
fn device(arguments: &[&str]) {
    let value = |name: &str| {
        let at = arguments.iter().position(|a| *a == name)?;
        arguments.get(at + 1).map(|v| (*v).to_owned())
    };
    let spec = evenkeel_gpu::GpuSpec::preset(&value("--gpu").unwrap()).unwrap();
    let count: usize = value("--count").unwrap().parse().unwrap();
    let config = evenkeel_gpu::device::DeviceConfig {
        dir: value("--dir").unwrap().into(),
        gpus: vec![spec; count],
        multiuser: false,
    };
    evenkeel_gpu::device::serve(config, || println!("\nready")).unwrap();
}

fn wait_for_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A command line that plays a part.
pub(crate) fn part(words: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "helper::helper",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PART, words);
    command
}

/// A program that can be started as `PROGRAM serve …` and serves emulated GPUs.
pub(crate) fn device_program(dir: &Path) -> PathBuf {
    let path = dir.join("device-program");
    let own = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n{PART}=\"device $*\" exec '{}' --exact helper::helper --nocapture\n",
        own.display()
    );
    std::fs::write(&path, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&path, mode).unwrap();
    path
}

/// A process tree of ours.
pub(crate) struct Tree {
    root: Child,
    output: BufReader<ChildStdout>,
    pub(crate) holder: Holder,
    others: Vec<Process>,
}

impl Tree {
    /// Starts a command as the root.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut root = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(root.stdout.take().unwrap());
        let holder = proc_tree::holder(root.id()).unwrap();
        Self {
            root,
            output,
            holder,
            others: Vec::new(),
        }
    }

    /// A part that says when it is ready.
    pub(crate) fn play(words: &str) -> Self {
        let mut tree = Self::start(&mut part(words));
        while tree.line() != "ready" {}
        tree
    }

    /// A shell script; `echo $!` tells pids to [`Tree::pid`].
    pub(crate) fn shell(script: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).envs(variables.iter().copied());
        Self::start(&mut command)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let n = self.output.read_line(&mut line).unwrap();
        assert!(n > 0, "the helper ended");
        line.trim().to_owned()
    }

    /// The next pid that the script tells; it is ended with the tree.
    pub(crate) fn pid(&mut self) -> Process {
        let pid: u32 = self.line().parse().unwrap();
        let process = proc_tree::status(pid).expect("it lives").process;
        self.others.push(process);
        process
    }

    pub(crate) fn root(&self) -> Process {
        (&self.holder).into()
    }

    /// Ends its standard input.
    pub(crate) fn hang_up(&mut self) {
        drop(self.root.stdin.take());
    }

    /// Ends the root only, and collects it.
    pub(crate) fn end_root(&mut self) {
        let _ = self.root.kill();
        let _ = self.root.wait();
    }

    /// Collects the root if it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.root.try_wait().unwrap().is_some()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.end_root();
        self.others.iter().for_each(|p| end(*p));
    }
}

/// Ends this very process, if it still lives.
pub(crate) fn end(process: Process) {
    if proc_tree::is_alive(process) {
        let _ = kill(Pid::from_raw(process.pid as i32), Signal::SIGKILL);
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = so() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
