//! The Unix socket as a file: taken over from a dead daemon, never from a living one, and never open for a moment
//! to those who may not.
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::ServeError;

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.to_owned();
    move |source| ServeError::Socket { what, path, source }
}

/// Binds a socket at `path`. It appears there in one step, with its permissions set.
pub(super) async fn bind(path: &Path, mode: u32) -> Result<UnixListener, ServeError> {
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
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(failed("make the directory of", path))?;
    let fresh = beside(path);
    let _ = fs::remove_file(&fresh); // of a daemon that died in these lines
    let listener = UnixListener::bind(&fresh).map_err(failed("listen at", path))?;
    let open = fs::Permissions::from_mode(mode);
    fs::set_permissions(&fresh, open).map_err(failed("set the permissions of", path))?;
    fs::rename(&fresh, path).map_err(failed("move the socket to", path))?;
    Ok(listener)
}

/// A name in the same directory, and not longer: paths of sockets are short.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}", std::process::id()))
}

/// Takes the socket away, so that clients see at once that nobody is there.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(%error, path = %path.display(), "the socket stays; the next start takes it over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_ones_socket_is_taken_over_and_a_living_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/s.sock");
        let first = bind(&path, 0o640).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(matches!(
            bind(&path, 0o600).await,
            Err(ServeError::Taken(_))
        ));
        drop(first);
        let _second = bind(&path, 0o600).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(matches!(
            bind(&file, 0o600).await,
            Err(ServeError::Socket { .. })
        ));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }
}
