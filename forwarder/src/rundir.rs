//! The run directory: one forwarder at a time, and the socket it listens on.
//!
//! A lock file decides who is the one: unlike a socket's path it cannot be
//! left behind, because the kernel drops the lock with the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Gid, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::{files, take_over};

/// Members of this group may talk to the forwarder.
const GROUP: &str = "guideway";

/// The socket that the controller and the CLI use.
const SOCKET: &str = "forwarder.sock";

/// The socket that answers whether we forward, and nothing else.
const HEALTH_SOCKET: &str = "health.sock";

/// Connections that may wait there until they are accepted.
const HEALTH_BACKLOG: i32 = 64;

/// A killed forwarder has its lock until the last of its threads is gone.
const LOCK_TRIES: u32 = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Whoever holds it has the directory.
const LOCK: &str = "forwarder.lock";

/// Why the run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another forwarder lives here.
    #[error("{path} is in use by {owner}: stop it, or choose another --run-dir")]
    InUse {
        /// The lock file or the socket.
        path: PathBuf,
        /// As well as we can tell.
        owner: String,
    },
    /// Something that is no socket lies where ours should be.
    #[error("{0} is there but is no socket: remove it, or choose another --run-dir")]
    NotASocket(PathBuf),
    /// The operating system refuses.
    #[error("{what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What came back.
        error: io::Error,
    },
}

/// A run directory that is ours while this value lives.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: File,
}

impl RunDir {
    /// Takes the directory, and makes it first if need be.
    pub fn take(path: &Path) -> Result<RunDir, RunDirError> {
        files::make_folder(path).map_err(|error| failed("taking", path, error))?;
        let lock = lock(&path.join(LOCK))?;
        Ok(RunDir { path: path.to_owned(), lock })
    }

    /// Shares the lock of a predecessor, until that one ends.
    #[must_use]
    pub fn inherit(path: &Path, lock: File) -> RunDir {
        RunDir { path: path.to_owned(), lock }
    }

    /// Says in the lock file who we are, for people.
    pub fn sign(&mut self) {
        sign(&mut self.lock);
    }

    /// The lock, for a successor.
    pub fn lock(&self) -> io::Result<OwnedFd> {
        self.lock.try_clone().map(OwnedFd::from)
    }

    /// Listens on `take-over.sock`, for its owner only: who may connect there
    /// gets everything.
    pub fn listen_for_successors(&self) -> Result<UnixListener, RunDirError> {
        let path = self.path.join(take_over::SOCKET);
        remove_stale(&path)?;
        // Made under another name, so that nobody finds it with a wider mode.
        let hidden = self.path.join("take-over.new");
        let _ = std::fs::remove_file(&hidden);
        let failed = |error| failed("listening on", &path, error);
        let listener = UnixListener::bind(&hidden).map_err(failed)?;
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| std::fs::rename(&hidden, &path))
            .map_err(failed)?;
        Ok(listener)
    }

    /// Listens on `health.sock`, for its owner and the group `guideway`. A
    /// predecessor's socket there is replaced: who is connected to it stays so
    /// until that process ends.
    pub fn listen_for_health(&self) -> Result<OwnedFd, RunDirError> {
        let path = self.path.join(HEALTH_SOCKET);
        // Made under another name, so that nobody finds it before it listens.
        let hidden = self.path.join("health.new");
        let _ = std::fs::remove_file(&hidden);
        let failed = |error| failed("listening on", &path, error);
        let listener = listen_by_packet(&hidden).map_err(|error| failed(error.into()))?;
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o660))
            .map_err(failed)?;
        give_to_group(&hidden);
        std::fs::rename(&hidden, &path).map_err(failed)?;
        Ok(listener)
    }

    /// Removes the sockets: nobody must find one without a listener.
    pub fn remove_sockets(&self) {
        for name in [SOCKET, HEALTH_SOCKET, take_over::SOCKET] {
            let _ = std::fs::remove_file(self.path.join(name));
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Listens on `forwarder.sock`: for its owner and the group `guideway`.
    pub fn listen(&self) -> Result<UnixListener, RunDirError> {
        let path = self.path.join(SOCKET);
        remove_stale(&path)?;
        let listener =
            UnixListener::bind(&path).map_err(|error| failed("listening on", &path, error))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660))
            .map_err(|error| failed("setting the mode of", &path, error))?;
        give_to_group(&path);
        listener.set_nonblocking(true).map_err(|error| failed("listening on", &path, error))?;
        Ok(listener)
    }
}

fn listen_by_packet(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, HEALTH_BACKLOG)?;
    Ok(listener)
}

fn failed(what: &'static str, path: &Path, error: io::Error) -> RunDirError {
    RunDirError::Io { what, path: path.to_owned(), error }
}

fn lock(path: &Path) -> Result<File, RunDirError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(path)
        .map_err(|error| failed("opening", path, error))?;
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                sign(&mut file);
                return Ok(file);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(failed("locking", path, error.into())),
        }
    }
    Err(RunDirError::InUse { path: path.to_owned(), owner: holder(&mut file) })
}

/// For people and for `holder`; the lock does not depend on it.
fn sign(file: &mut File) {
    let written = file.rewind().and_then(|()| file.set_len(0));
    let _ = written.and_then(|()| writeln!(file, "{}", std::process::id()));
}

/// Who has the run directory, as well as we can tell.
#[must_use]
pub fn holder_of(path: &Path) -> String {
    match File::open(path.join(LOCK)) {
        Ok(mut file) => holder(&mut file),
        Err(_) => "the running forwarder".into(),
    }
}

/// The process that wrote its id into the lock file.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
    match text.trim() {
        "" => "another forwarder".into(),
        pid => format!("the forwarder with process id {pid}"),
    }
}

/// We hold the lock, so a socket without a listener is a dead forwarder's.
fn remove_stale(path: &Path) -> Result<(), RunDirError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("looking at", path, error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(RunDirError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    if let Ok(stream) = UnixStream::connect(path) {
        let owner = match rustix::net::sockopt::socket_peercred(&stream) {
            Ok(peer) => format!("process {}", peer.pid.as_raw_nonzero()),
            Err(_) => "another process".into(),
        };
        return Err(RunDirError::InUse { path: path.to_owned(), owner });
    }
    tracing::info!(path = %path.display(), "removing the socket of a forwarder that is gone");
    std::fs::remove_file(path).map_err(|error| failed("removing the stale", path, error))
}

fn give_to_group(path: &Path) {
    let Some(gid) =
        std::fs::read_to_string("/etc/group").ok().and_then(|text| group_id(&text, GROUP))
    else {
        tracing::info!(group = GROUP, "no such group: the socket is its owner's only");
        return;
    };
    if let Err(error) = rustix::fs::chown(path, None, Some(Gid::from_raw(gid))) {
        tracing::warn!(path = %path.display(), group = GROUP, %error, "the socket could not be given to the group");
    }
}

/// Lines are `name:password:id:members` (group(5)).
fn group_id(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_forwarder_is_told_who_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let first = RunDir::take(folder.path()).unwrap();
        let error = RunDir::take(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains(&std::process::id().to_string()) && error.contains("--run-dir"),
            "{error}"
        );
        drop(first);
        RunDir::take(folder.path()).unwrap();
    }

    #[test]
    fn a_stale_socket_is_removed_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::take(folder.path()).unwrap();
        drop(UnixListener::bind(folder.path().join("forwarder.sock")).unwrap());
        let listener = run_dir.listen().unwrap();
        let error = run_dir.listen().unwrap_err();
        assert!(
            matches!(&error, RunDirError::InUse { owner, .. } if owner.contains("process")),
            "{error}"
        );
        drop(listener);
    }

    #[test]
    fn a_file_in_the_way_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::take(folder.path()).unwrap();
        std::fs::write(folder.path().join("forwarder.sock"), "precious").unwrap();
        assert!(matches!(run_dir.listen(), Err(RunDirError::NotASocket(_))));
    }

    #[test]
    fn the_socket_is_for_owner_and_group_only() {
        let folder = tempfile::tempdir().unwrap();
        let _listener = RunDir::take(folder.path()).unwrap().listen().unwrap();
        let mode =
            std::fs::metadata(folder.path().join("forwarder.sock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
    }

    #[test]
    fn groups_are_found_by_name() {
        let text = "root:x:0:\nguidewayx:x:7:\nguideway:x:990:alice,bob\n";
        assert_eq!(group_id(text, "guideway"), Some(990));
        assert_eq!(group_id(text, "nobody"), None);
    }
}
