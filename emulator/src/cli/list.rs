//! `evenkeel-gpu list`: the emulated GPUs and who uses them.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use evenkeel_gpu::wire::{ClientInfo, GpuInfo, GpuState};
use evenkeel_gpu::{Admin, limits, socket_path};
use serde::Serialize;

#[derive(Args)]
pub(crate) struct List {
    /// Directory of the device's sockets.
    #[arg(long)]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    gpu: GpuInfo,
    clients: Vec<ClientInfo>,
}

impl List {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for index in 0..limits::MAX_GPUS {
            let path = socket_path(&self.dir, index);
            if path.exists() {
                let admin = Admin::connect(&path)?;
                rows.push(Row {
                    gpu: admin.gpu()?,
                    clients: admin.list()?,
                });
            }
        }
        ensure!(
            !rows.is_empty(),
            "no emulated GPU in {}: start one with `evenkeel-gpu serve`",
            self.dir.display()
        );
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else {
            rows.iter().for_each(print);
        }
        Ok(())
    }
}

fn print(row: &Row) {
    let gpu = &row.gpu;
    let state = match gpu.state {
        GpuState::Active => "active",
        GpuState::Fault => "fault: waits until the affected processes have exited",
    };
    println!(
        "GPU {} (emulated {}): {} SMs, {} MiB, new contexts get at most {} %, {state}",
        gpu.index,
        gpu.spec.name,
        gpu.spec.sms,
        gpu.spec.memory_bytes >> 20,
        gpu.default_percentage
    );
    println!(
        "  {:>6} {:>8} {:>5} {:>10} {:>10} {:>10} {:>6}  ROLE",
        "CLIENT", "PID", "SMS", "USED MiB", "LIMIT MiB", "BUSY s", "QUEUE"
    );
    for client in &row.clients {
        println!(
            "  {:>6} {:>8} {:>5} {:>10} {:>10} {:>10.3} {:>6}  {}",
            client.client.0,
            client.pid,
            client.sms,
            client.memory_used >> 20,
            client.memory_limit >> 20,
            client.busy_ns as f64 / 1e9,
            client.queued,
            client.role
        );
    }
}
