//! What a process says until it ends: its last lines, whatever bytes they are, and no more than fits.
use std::collections::VecDeque;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;

/// Lines that are kept; the last ones hold the result, or the reason.
const LINES_KEPT: usize = 200;
/// Bytes of a line that are kept: a result has some hundred.
const LINE_MAX: usize = 4 << 10;
/// How long what a process has said is waited for, once it has ended: a child that it leaves may hold its pipes for ever.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// How a process ended, and its last lines.
pub(super) struct End {
    pub(super) status: ExitStatus,
    pub(super) said: Vec<String>,
    pub(super) complained: Vec<String>,
}

/// Waits for the end of a process whose pipes are ours.
pub(super) async fn until_end(child: &mut Child) -> io::Result<End> {
    let (mut said, mut complained) = (Lines::default(), Lines::default());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let status = {
        // Both at once: a full pipe must not hold the process up.
        let read = async { tokio::join!(said.read(out), complained.read(err)) };
        tokio::pin!(read);
        let ended = tokio::select! {
            _ = &mut read => None,
            status = child.wait() => Some(status),
        };
        match ended {
            None => child.wait().await?,
            Some(status) => {
                tokio::time::timeout(AFTERWARDS, &mut read).await.ok();
                status?
            }
        }
    };
    Ok(End {
        status,
        said: said.take(),
        complained: complained.take(),
    })
}

/// The last lines of a stream.
#[derive(Default)]
struct Lines {
    kept: VecDeque<String>,
    /// The line that has not ended yet.
    open: Vec<u8>,
}

impl Lines {
    async fn read(&mut self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let mut some = [0; 8 << 10];
        // A pipe that cannot be read has ended.
        while let Ok(n @ 1..) = pipe.read(&mut some).await {
            self.add(&some[..n]);
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.close(),
                _ if self.open.len() < LINE_MAX => self.open.push(*byte),
                _ => {}
            }
        }
    }

    /// Ends a line. What would move a terminal's cursor is left out.
    fn close(&mut self) {
        let line = String::from_utf8_lossy(&self.open);
        let line = line.replace(char::is_control, " ");
        self.open.clear();
        if line.trim().is_empty() {
            return;
        }
        if self.kept.len() == LINES_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(line);
    }

    fn take(mut self) -> Vec<String> {
        self.close();
        self.kept.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_lines_and_no_line_is_endless() {
        let mut lines = Lines::default();
        lines.add(b"caf\xe9\n\n  \nA\x1b[2Jb\tc\n");
        lines.add(&[b'x'; 3 * LINE_MAX]);
        lines.add(b"\n{\"units_per_s\": ");
        lines.add(b"5}");
        let kept = lines.take();
        assert_eq!(kept[0], "caf\u{fffd}");
        assert_eq!(kept[1], "A [2Jb c");
        assert_eq!(kept[2].len(), LINE_MAX);
        assert_eq!(kept[3], "{\"units_per_s\": 5}");
        let mut lines = Lines::default();
        for n in 0..1_000 {
            lines.add(format!("{n}\n").as_bytes());
        }
        let kept = lines.take();
        assert_eq!((kept.len(), kept[0].as_str()), (LINES_KEPT, "800"));
    }
}
