//! The Unix socket as a file: taken over from a dead daemon, never from a living one, never open for a moment to those
//! who may not, and made again when somebody deletes it. Its connections do not need the file and go on without it.
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::ServeError;

/// The listening socket, and the file by which clients find it.
#[derive(Debug)]
pub(super) struct Door {
    listener: UnixListener,
    path: PathBuf,
    mode: u32,
    /// Of the file: it is not given to another one while the socket is open.
    id: (u64, u64),
}

/// Why new clients do not find the daemon, and what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum Astray {
    /// The path leads to something else, which is not ours to remove.
    #[error(
        "{} is not this daemon's socket any more but another file (another daemon's socket?): new clients do not reach \
         this daemon, connected ones go on. Stop the other daemon, or move the file away: this one listens there again \
         within a second",
        .0.display()
    )]
    Another(PathBuf),
    /// There is nothing, and nothing can be made.
    #[error(
        "the socket {} is gone and cannot be made again ({why}): new clients do not reach this daemon, connected ones \
         go on. Make its directory writable for the daemon's user; it is tried each second",
        .path.display()
    )]
    Gone {
        /// The socket.
        path: PathBuf,
        /// What was tried, and what the system said.
        why: String,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.to_owned();
    move |source| ServeError::Socket { what, path, source }
}

impl Door {
    /// Binds a socket at `path`, in the place of a dead daemon's.
    pub(super) async fn bind(path: &Path, mode: u32) -> Result<Self, ServeError> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                let not_ours = io::Error::other("it is there and not a socket");
                return Err(failed("listen at", path)(not_ours));
            }
            Ok(_) if UnixStream::connect(path).await.is_ok() => {
                return Err(ServeError::Taken(path.to_owned()));
            }
            _ => {}
        }
        make(path, mode, |fresh| fs::rename(fresh, path))
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Looks whether the path still leads here, and makes the file again if there is none. Returns the door of before
    /// where it did: somebody may just have come in by it.
    pub(super) fn mend(&mut self) -> Result<Option<Self>, Astray> {
        let path = &self.path;
        let gone = |why: String| Astray::Gone {
            path: path.clone(),
            why,
        };
        match fs::symlink_metadata(path) {
            Ok(found) if id(&found) == self.id => return Ok(None),
            Ok(_) => return Err(Astray::Another(path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(gone(error.to_string())),
        }
        // A link, unlike a rename, replaces nothing that came to the path meanwhile.
        let made = make(path, self.mode, |fresh| {
            fs::hard_link(fresh, path)?;
            fs::remove_file(fresh)
        });
        let new = made.map_err(|error| {
            let cause = std::error::Error::source(&error).map(|s| format!(": {s}"));
            gone(format!("{error}{}", cause.unwrap_or_default()))
        })?;
        Ok(Some(std::mem::replace(self, new)))
    }

    /// Takes the socket away, so that clients see at once that nobody is there. Another's stays.
    pub(super) fn remove(self) {
        let path = &self.path;
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if id(&found) == self.id => fs::remove_file(path),
            _ => Ok(()),
        };
        if let Err(error) = removed {
            tracing::debug!(%error, path = %path.display(), "the socket stays; the next start takes it over");
        }
    }
}

/// A socket that appears at `path` in one step, with its permissions set: `place` moves it there from beside it.
fn make(
    path: &Path,
    mode: u32,
    place: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<Door, ServeError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(failed("make the directory of", path))?;
    let fresh = beside(path);
    let _ = fs::remove_file(&fresh); // of a daemon that died in these lines
    let listener = UnixListener::bind(&fresh).map_err(failed("listen at", path))?;
    let open = fs::Permissions::from_mode(mode);
    let placed = fs::set_permissions(&fresh, open)
        .map_err(failed("set the permissions of", path))
        .and_then(|()| fs::symlink_metadata(&fresh).map_err(failed("look at", path)))
        .and_then(|made| {
            place(&fresh).map_err(failed("move the socket to", path))?;
            Ok(id(&made))
        });
    if placed.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    Ok(Door {
        listener,
        path: path.to_owned(),
        mode,
        id: placed?,
    })
}

/// A name in the same directory, and not longer: paths of sockets are short.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}", std::process::id()))
}

fn id(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_ones_socket_is_taken_over_and_a_living_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/s.sock");
        let first = Door::bind(&path, 0o640).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(matches!(
            Door::bind(&path, 0o600).await,
            Err(ServeError::Taken(_))
        ));
        drop(first);
        let _second = Door::bind(&path, 0o600).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(matches!(
            Door::bind(&file, 0o600).await,
            Err(ServeError::Socket { .. })
        ));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_file_that_is_gone_is_made_again_and_another_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/s.sock");
        let mut door = Door::bind(&path, 0o640).await.unwrap();
        assert!(matches!(door.mend(), Ok(None)), "all is well");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert!(matches!(door.mend(), Ok(Some(_))));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let (client, served) = tokio::join!(UnixStream::connect(&path), door.accept());
        assert!(client.is_ok() && served.is_ok());

        fs::remove_file(&path).unwrap();
        let other = Door::bind(&path, 0o600).await.unwrap();
        let told = door.mend().unwrap_err();
        assert!(matches!(&told, Astray::Another(_)), "{told}");
        door.remove();
        assert!(UnixStream::connect(&path).await.is_ok(), "it is another's");
        other.remove();
        assert!(!path.exists());
    }
}
