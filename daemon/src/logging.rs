//! The log: lines for people or JSON for machines, on standard error. Nothing else writes there.

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level.
    #[error("log.level = `{0}` is no level")]
    Level(String),
    /// Somebody else logs already.
    #[error("the log was started twice")]
    Twice,
}

/// Starts logging, once per process.
///
/// # Errors
/// When the level cannot be read, or it was started before.
pub fn start(config: &LogConfig) -> Result<(), LogError> {
    let filter = filter(&config.level).map_err(|_| LogError::Level(config.level.clone()))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Else a line that cannot be written is told on standard error, which panics if that is what is closed.
        .log_internal_errors(false);
    match config.format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LogError::Twice)
}

/// The level as asked, but h2's warnings only where h2 is named: a client can have one written with each frame that it
/// sends, and so fill the disk.
fn filter(level: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    if level.split(',').any(|part| part.starts_with("h2")) {
        return EnvFilter::try_new(level);
    }
    EnvFilter::try_new(format!("{level},h2=error"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_fill_the_log() {
        for (level, quiet) in [
            ("warn", true),
            ("debug,sqlx=warn", true),
            ("info,h2=trace", false),
        ] {
            let text = filter(level).unwrap().to_string();
            assert_eq!(text.contains("h2=error"), quiet, "{level}: {text}");
        }
        assert!(filter("loud,=").is_err());
    }
}
