//! Emulated GPUs: asks the device what it serves, after starting it where that is wanted. A GPU that is configured and
//! does not answer is installed as its preset says, and unavailable.

use evenkeel_core::id::GpuId;
use evenkeel_gpu::limits::MAX_GPUS;
use evenkeel_gpu::{GpuSpec, socket_path};

use super::{Draft, Scanner, whole};
use crate::backend::emulated::{Emulated, Link, ensure_served};
use crate::config::Config;

pub(super) struct Device(pub(super) Config);

impl Scanner for Device {
    fn scan(&self, draft: &mut Draft) -> Result<(), String> {
        let settings = &self.0.gpu.emulated;
        let dir = match ensure_served(settings) {
            Ok(served) => {
                draft.started = served.started;
                served.dir
            }
            Err(error) => {
                draft.notes.push(chain(&error));
                settings.dir.clone()
            }
        };
        let preset = GpuSpec::preset(&settings.model).map(|spec| match settings.sms {
            0 => spec,
            sms => spec.with_sms(sms),
        });
        for index in 0..MAX_GPUS as u16 {
            let socket = socket_path(&dir, index.into());
            if index >= settings.count && !socket.exists() {
                continue;
            }
            let emulated = Emulated {
                id: GpuId(index),
                socket,
                mode: self.0.gpu_mode(index),
                reserved: self.0.gpu.reserved_memory.0,
            };
            match Link::new(emulated.socket.clone()).look() {
                Ok((info, _)) => draft.gpus.push(emulated.describe(&info.spec)),
                Err(error) => {
                    draft
                        .notes
                        .push(format!("{} is lost: {error}", emulated.id));
                    let Some(spec) = &preset else { continue };
                    let gpu = emulated.describe(spec);
                    draft.unavailable.gpus.insert(gpu.id, whole(&gpu));
                    draft.gpus.push(gpu);
                }
            }
            draft.emulated.push(emulated);
        }
        Ok(())
    }
}

/// An error with what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
