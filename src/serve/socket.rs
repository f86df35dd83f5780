//! The Unix socket as a file. It appears with its final mode, never replaces the socket of a running daemon, and is
//! removed only by the process that created it.
//!
//! A lock file beside it is held for as long as the socket exists: of several daemons that start at once one wins,
//! and a daemon that stops does not remove a socket that another one has created since.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A listening socket. A file that was created here is removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// `None` when another process has bound the socket; its file is left alone.
    bound: Option<SocketFile>,
}

/// The file of a socket that was bound here.
#[derive(Debug)]
struct SocketFile {
    /// Device and inode number.
    identity: (u64, u64),
    /// Held while the file exists.
    _lock: OwnedFd,
}

/// Why a socket cannot be bound.
#[derive(Debug)]
pub enum SocketError {
    /// A daemon listens there.
    InUse(PathBuf),
    /// The path exists and is no socket.
    Occupied(PathBuf),
    /// The operating system refused.
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The operating system's error.
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
    /// Binds `path` with `mode`, and `group` if one is given. The socket of a daemon that is gone is replaced; a
    /// missing directory is created.
    ///
    /// # Errors
    /// The path is in use, or the operating system refuses.
    pub fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<Self, SocketError> {
        // The socket is bound under another name and renamed, so that nobody can connect before the mode is set.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        // A name that is too long is never bound, so nothing is made for it.
        SocketAddr::from_pathname(&beside).map_err(failed("bind", path))?;
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(failed("make the directory of", path))?;
        }
        let lock = Lock::of(path)?;
        match bind(path, &beside, mode, group) {
            Ok((listener, identity)) => {
                let bound = SocketFile { identity, _lock: lock.file };
                Ok(Self { listener, path: path.to_owned(), bound: Some(bound) })
            }
            Err(error) => {
                lock.undo();
                Err(error)
            }
        }
    }

    /// A listener that another process bound at `path`. Its file, mode and group are that process's responsibility.
    ///
    /// # Errors
    /// It cannot be set up.
    pub fn adopt(listener: UnixListener, path: &Path) -> Result<Self, SocketError> {
        listener.set_nonblocking(true).map_err(failed("set up", path))?;
        Ok(Self { listener, path: path.to_owned(), bound: None })
    }

    /// Duplicates the listener, for one more thread.
    ///
    /// # Errors
    /// No descriptor is left.
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
        // The lock is still held, so no other daemon can create the file between the check and the removal.
        if let Some(bound) = &self.bound
            && fs::symlink_metadata(&self.path).is_ok_and(|seen| (seen.dev(), seen.ino()) == bound.identity)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What went wrong while `doing` something at `path`.
fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    move |error| SocketError::Io { doing, path: path.to_owned(), error }
}

/// Binds `path` by way of a name beside it, once it is locked. Returns the listener, and its file's device and inode number.
fn bind(path: &Path, beside: &Path, mode: u32, group: Option<u32>) -> Result<(UnixListener, (u64, u64)), SocketError> {
    make_sure_it_is_free(path)?;
    let _ = fs::remove_file(beside);
    let listener = UnixListener::bind(beside).map_err(failed("bind", path))?;
    let identity = fs::symlink_metadata(beside).map_err(failed("look at", path));
    let placed = fs::set_permissions(beside, fs::Permissions::from_mode(mode))
        .map_err(failed("set the mode of", path))
        .and_then(|()| std::os::unix::fs::chown(beside, None, group).map_err(failed("set the group of", path)))
        .and_then(|()| fs::rename(beside, path).map_err(failed("put in place", path)))
        .and_then(|()| listener.set_nonblocking(true).map_err(failed("set up", path)))
        .and(identity);
    match placed {
        Ok(seen) => Ok((listener, (seen.dev(), seen.ino()))),
        Err(error) => {
            let _ = fs::remove_file(beside);
            Err(error)
        }
    }
}

/// The lock of a socket's path. It ends with the process, however that ends. Its file stays when a daemon has used it: a
/// process of an earlier version, which does not look whether the file that it locks is still there, could hold one lock while
/// another process holds a second file of that name.
#[derive(Debug)]
struct Lock {
    file: OwnedFd,
    beside: PathBuf,
    /// There was no such file before.
    is_made: bool,
}

impl Lock {
    fn of(path: &Path) -> Result<Self, SocketError> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let beside = PathBuf::from(beside);
        let failed = |error: Errno| failed("lock", path)(error.into());
        loop {
            let open = |flags| {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | flags;
                open(&beside, flags, Mode::RUSR | Mode::WUSR)
            };
            let (file, is_made) = match open(OFlags::CREATE | OFlags::EXCL) {
                Ok(file) => (file, true),
                Err(Errno::EXIST) => match open(OFlags::empty()) {
                    Ok(file) => (file, false),
                    // The process that had made it has removed it meanwhile.
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(failed(error)),
                },
                Err(error) => return Err(failed(error)),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(SocketError::InUse(path.to_owned())),
                Err(error) => return Err(failed(error)),
            }
            // A process that fails removes the file while it holds the lock, so a lock counts only if the locked file
            // still has the name.
            let locked = fstat(&file).map_err(failed)?;
            if stat(&beside).is_ok_and(|named| (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)) {
                return Ok(Self { file, beside, is_made });
            }
        }
    }

    /// Nothing was bound, so a file that was made for the lock is removed before the lock is released.
    fn undo(self) {
        if self.is_made {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

/// Checks that nothing listens at the path, as a daemon without a lock or another program might. The connection
/// attempt does not block, because a program that hangs with a full queue would never accept it.
fn make_sure_it_is_free(path: &Path) -> Result<(), SocketError> {
    let Ok(seen) = fs::symlink_metadata(path) else { return Ok(()) };
    if !seen.file_type().is_socket() {
        return Err(SocketError::Occupied(path.to_owned()));
    }
    let failed = |error: Errno| failed("look at", path)(error.into());
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let asking = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    match connect(&asking, &address) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        // It listens, or it is so busy or so restricted that something must be there.
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_file_that_is_anothers_by_now_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let first = Socket::bind(&path, 0o600, None).expect("nobody is there");
        fs::remove_file(&path).expect("it is there");
        let other = UnixListener::bind(&path).expect("there is room");
        drop(first);
        assert!(UnixStream::connect(&path).is_ok(), "its file is gone");
        drop(other);
        let last = Socket::bind(&path, 0o600, None).expect("a dead file is replaced");
        drop(last);
        assert!(!path.exists(), "its own file goes with it");
    }

    /// The files that are left in a directory in which nothing could be bound.
    fn left_by(name: &str, begin: impl FnOnce(&Path)) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a directory");
        begin(directory.path());
        let problem = Socket::bind(&directory.path().join(name), 0o600, None).expect_err("it cannot be bound");
        assert!(problem.to_string().contains(&directory.path().display().to_string()), "{problem}");
        let left = fs::read_dir(directory.path()).expect("it is there").map(|file| file.expect("it is there"));
        let mut left: Vec<_> = left.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        left.sort();
        left
    }

    #[test]
    fn what_cannot_be_bound_leaves_nothing_behind() {
        // Longer than the system allows, or so long that the name under which it is bound first is.
        for length in [200, 105 - tempfile::tempdir().expect("a directory").path().as_os_str().len()] {
            assert!(left_by(&"s".repeat(length), |_| ()).is_empty(), "{length} letters");
            assert!(left_by(&format!("more/{}", "s".repeat(length)), |_| ()).is_empty(), "{length} letters");
        }
        // No socket, or one of a program that knows no lock.
        assert_eq!(left_by("s", |directory| fs::write(directory.join("s"), "notes").expect("written")), ["s"]);
        let mut other = None;
        assert_eq!(left_by("s", |directory| other = UnixListener::bind(directory.join("s")).ok()), ["s"]);
        // A lock file of an earlier daemon may be held by another one by now, so it stays.
        let locked = left_by("s", |directory| {
            fs::write(directory.join("s"), "notes").expect("written");
            fs::write(directory.join("s.lock"), "").expect("written");
        });
        assert_eq!(locked, ["s", "s.lock"]);
    }

    #[test]
    fn of_two_that_start_at_once_one_wins() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let bound: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..16).map(|_| scope.spawn(|| Socket::bind(&path, 0o600, None))).collect();
            starts.into_iter().map(|start| start.join().expect("it ends")).collect()
        });
        let (won, lost): (Vec<_>, Vec<_>) = bound.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "{lost:?}");
        assert!(lost.iter().all(|lost| matches!(lost, Err(SocketError::InUse(_)))), "{lost:?}");
        drop(lost);
        assert!(UnixStream::connect(&path).is_ok(), "a loser took the winner's file");
    }

    #[test]
    fn a_daemon_that_stands_still_with_a_full_queue_is_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a descriptor");
        let (still, address) = (socket(), SocketAddrUnix::new(&path).expect("a short path"));
        rustix::net::bind(&still, &address).expect("there is room");
        rustix::net::listen(&still, 1).expect("it is bound");
        let clients = std::iter::repeat_with(socket);
        let waiting: Vec<_> = clients.take_while(|client| connect(client, &address).is_ok()).collect();
        assert!(!waiting.is_empty() && waiting.len() < 100, "{} wait", waiting.len());
        assert!(matches!(Socket::bind(&path, 0o600, None), Err(SocketError::InUse(_))));
    }
}
