//! What trials on this machine are made with: CPU, driver, version. Read once; a text that cannot be read stays empty,
//! which means "not known" everywhere.
use std::fs;
use std::sync::OnceLock;

use evenkeel_client::Conditions;
use evenkeel_core::curve::conditions::CONDITION_MAX;

/// This machine.
pub(crate) fn here() -> &'static Conditions {
    static HERE: OnceLock<Conditions> = OnceLock::new();
    HERE.get_or_init(|| Conditions {
        cpu: short(&cpu(
            &fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
        )),
        driver: short(&fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default()),
        evenkeel: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// The first CPU's model. Arm kernels have no name for theirs.
fn cpu(info: &str) -> String {
    let of = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    };
    info.lines().find_map(of).unwrap_or_default()
}

fn short(text: &str) -> String {
    let mut text = text.trim().to_owned();
    while text.len() > CONDITION_MAX {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_called_by_its_model() {
        let info = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\n";
        assert_eq!(cpu(info), "AMD EPYC 9654");
        assert_eq!(cpu(""), "");
        assert_eq!(short(&"é".repeat(100)).len(), CONDITION_MAX);
    }
}
