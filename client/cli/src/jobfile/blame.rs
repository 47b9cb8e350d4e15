//! Where a job file asks for what the node does not have: a refusal names what is short, and here is the line for it.

use std::cmp::Reverse;

use evenkeel_client::SmAsk;

use super::{JobFile, StageFile, complain};
use crate::fail::Failure;

/// Shares of a GPU are compared with numbers of SMs as if it had so many: an H100's.
const USUAL_SMS: u32 = 132;

impl JobFile {
    /// The same failure, with the place where most is asked for of what is short.
    pub(crate) fn blamed(&self, failure: Failure) -> Failure {
        let Some(resource) = &failure.short_of else {
            return failure;
        };
        let path = self.asks_most(resource);
        self.about(&path, failure)
    }

    /// A failure with the place of a key, where it is known which file it is in.
    pub(super) fn about(&self, path: &str, failure: Failure) -> Failure {
        match self.origin.name.as_str() {
            "" => failure,
            name => failure.about(&complain::at(path, &self.origin.text, name)),
        }
    }

    /// The path of the key that asks for most of it.
    fn asks_most(&self, resource: &str) -> String {
        let asked = self.stages.iter().map(|stage| stage.least(resource));
        match asked
            .enumerate()
            .max_by_key(|(i, (_, n))| (*n, Reverse(*i)))
        {
            Some((i, (key, n))) if n > 0 => format!("stages[{i}].{key}"),
            _ if !self.gpus.is_empty() => "gpus".to_owned(),
            _ if self.gpu_count > 0 => "gpu_count".to_owned(),
            _ => String::new(),
        }
    }
}

impl StageFile {
    /// How much a stage asks for at least of a resource, as the wire calls it, and under which key.
    fn least(&self, resource: &str) -> (&'static str, u64) {
        let is = |word: &str| resource.starts_with(word);
        if is("cores") {
            return (
                "min_cores",
                self.cores.or(self.min_cores).unwrap_or(0).into(),
            );
        }
        if is("sms") {
            let sms = match self.sms.or(self.min_sms) {
                Some(SmAsk::Count(n)) => n,
                Some(SmAsk::Percent(p)) => p.saturating_mul(USUAL_SMS) / 100,
                None => 0,
            };
            return ("min_sms", sms.into());
        }
        match is("memory") {
            true => ("memory", self.memory),
            false => ("", 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_shown_where_most_of_it_is_asked_for() {
        let text = "name = 'j'\nunit = 'u'\ngpu_count = 9\n\
            [[stages]]\nname = 'a'\nrole = 'generation'\nmin_cores = 4\nmin_sms = '50%'\nmemory = '900GiB'\n\
            [[stages]]\nname = 'b'\nrole = 'training'\nmin_cores = 5\nsms = 60\nmemory = '20GiB'\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j.toml");
        std::fs::write(&path, text).unwrap();
        let file = JobFile::load(&path, None).unwrap();
        for (resource, expect) in [
            ("cores", "j.toml:13:1: short"),
            ("sms", "j.toml:8:1: short"),
            ("memory_bytes", "j.toml:9:1: short"),
            ("gpus", "j.toml:3:1: short"),
        ] {
            let failure = Failure {
                short_of: Some(resource.to_owned()),
                ..Failure::new("short")
            };
            let said = file.blamed(failure).what;
            assert!(said.ends_with(expect), "{resource}: {said}");
        }
        assert_eq!(file.blamed(Failure::new("other")).what, "other");
    }
}
