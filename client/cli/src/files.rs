//! Files that people write: read as text, whole, up to a limit. What they say is their readers' business; a place in
//! them is told as `file:line:column`, as compilers do.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;

use crate::fail::{Doing as _, Failure, USAGE};
use crate::units::show_bytes;

/// The sign that some editors put before a text; it is none of the text.
const BOM: char = '\u{feff}';

/// The text of a file of at most so many bytes. `what` is what the file is: "job file", say.
pub(crate) fn read(path: &Path, what: &str, max: u64) -> Result<String, Failure> {
    let shown = path.display().to_string();
    let bytes = bytes(path, max)
        .doing(format_args!("read the {what} {shown}"))
        .map_err(|failure| failure.code(USAGE))?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let good = String::from_utf8_lossy(&error.as_bytes()[..at]).into_owned();
        let here = place(&shown, &good, &(good.len()..good.len()));
        Failure::usage(format!("{here}: this is no text in UTF-8"))
            .hint(format!("Save the {what} as UTF-8."))
    })?;
    if text.starts_with(BOM) {
        text.remove(0);
    }
    Ok(text)
}

/// Reads no more than it has to: a device or a pipe may have no end.
fn bytes(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let too_large = || {
        let max = show_bytes(max);
        io::Error::other(format!("it is larger than {max}, the most that is read"))
    };
    let file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_dir() {
        return Err(io::Error::other("it is a folder, and a file is wanted"));
    }
    if about.len() > max {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max {
        true => Err(too_large()),
        false => Ok(bytes),
    }
}

/// Where something is: `file:line:column`, both from 1.
pub(crate) fn place(name: &str, text: &str, at: &Range<usize>) -> String {
    let before = text.get(..at.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("{name}:{line}:{column}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.toml");
        let read = |bytes: &[u8], max| {
            fs::write(&path, bytes).unwrap();
            super::read(&path, "job file", max).map_err(|failure| failure.what)
        };
        assert_eq!(read(b"a = 1\n", 6).unwrap(), "a = 1\n");
        assert_eq!(read("\u{feff}a = 1".as_bytes(), 99).unwrap(), "a = 1");
        for (bytes, max, expect) in [
            (
                &b"a = 1\n# caf\xe9"[..],
                99,
                "job.toml:2:6: this is no text",
            ),
            (&b"a = 1\n"[..], 5, "it is larger than 5 B"),
        ] {
            let said = read(bytes, max).unwrap_err();
            assert!(said.contains(expect), "{said}");
        }
        for (path, expect) in [
            (folder.path(), "it is a folder"),
            (Path::new("/dev/zero"), "it is larger than 8 B"),
            (Path::new("/no/such"), "cannot read the job file /no/such"),
        ] {
            let failure = super::read(path, "job file", 8).unwrap_err();
            assert!(failure.what.contains(expect), "{failure}");
            assert_eq!(failure.code, USAGE);
        }
    }
}
