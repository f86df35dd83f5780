//! The Unix socket as a file: bound under its final mode, and never in the place of a living daemon's.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A bound socket. Its file goes away with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

/// Why a socket cannot be bound.
#[derive(Debug)]
pub enum SocketError {
    /// A daemon listens there.
    InUse(PathBuf),
    /// Something that is no socket lies there.
    Occupied(PathBuf),
    /// The operating system says no.
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

impl std::fmt::Display for SocketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InUse(path) => {
                write!(f, "a daemon already listens on {}: stop it, or choose another path", path.display())
            }
            Self::Occupied(path) => {
                write!(f, "{} exists and is no socket: remove it, or choose another path", path.display())
            }
            Self::Io { doing, path, error } => write!(f, "cannot {doing} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for SocketError {}

impl Socket {
    /// Binds `path` with `mode`, and `group` if one is given. A file left by a dead daemon is
    /// replaced; a missing directory is made.
    ///
    /// # Errors
    /// The path is in use, or the operating system refuses.
    pub fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<Self, SocketError> {
        let failed = |doing| move |error| SocketError::Io { doing, path: path.to_owned(), error };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
        }
        make_sure_it_is_free(path)?;
        // Bound beside its place and moved there, so that nobody can connect before the mode is set.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside).map_err(failed("bind"))?;
        let placed = fs::set_permissions(&beside, fs::Permissions::from_mode(mode))
            .map_err(failed("set the mode of"))
            .and_then(|()| std::os::unix::fs::chown(&beside, None, group).map_err(failed("set the group of")))
            .and_then(|()| fs::rename(&beside, path).map_err(failed("put in place")))
            .and_then(|()| listener.set_nonblocking(true).map_err(failed("set up")));
        if let Err(error) = placed {
            let _ = fs::remove_file(&beside);
            return Err(error);
        }
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Another handle of the listener, for one more thread.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn make_sure_it_is_free(path: &Path) -> Result<(), SocketError> {
    let Ok(seen) = fs::symlink_metadata(path) else { return Ok(()) };
    if !seen.file_type().is_socket() {
        return Err(SocketError::Occupied(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        // It listens, or it is so busy or so closed to us that somebody must be there.
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}
