//! The run directory: only one forwarder at a time, and the sockets it listens on.
//!
//! A lock file decides which one. Unlike a socket's path it cannot be left behind, because the
//! kernel releases the lock with the process.

use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nic::folder::Folder;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Gid, Mode, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// A socket, and whose members may connect beside its owner.
struct Socket {
    name: &'static str,
    group: &'static str,
}

/// Changes: plans by the controller, captures by people.
const OPERATE: Socket = Socket { name: "forwarder.sock", group: "guideway-operate" };

/// Looks only.
const VIEW: Socket = Socket { name: "forwarder-view.sock", group: "guideway-view" };

/// Whether we forward, and nothing else. Routes depend on its answers, so it takes
/// the speaker and the controller, the two users of this group, and no people.
const HEALTH: Socket = Socket { name: "health.sock", group: "guideway-speaker" };

/// The socket for successors, for who owns the directory only: what goes over
/// it is the right to see and send all packets.
pub const TAKE_OVER_SOCKET: &str = "take-over.sock";

/// Connections that may wait there until they are accepted.
const HEALTH_BACKLOG: i32 = 64;

/// A killed forwarder has its lock until the last of its threads is gone.
const LOCK_TRIES: u32 = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The process that holds it has the directory.
const LOCK: &str = "forwarder.lock";

/// Why the run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another forwarder lives here.
    #[error("{path} is in use by {owner}: stop it, or choose another --run-dir")]
    InUse {
        /// The lock file or the socket.
        path: PathBuf,
        /// As far as can be seen.
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
        let failed = |error| failed("taking", path, with_cure(error));
        std::fs::create_dir_all(path).map_err(failed)?;
        // Who may write there could hold the lock, or offer a take-over.
        let lock = lock(&Folder::open(path).map_err(failed)?)?;
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
        remove_stale(&self.path.join(TAKE_OVER_SOCKET))?;
        self.bind(TAKE_OVER_SOCKET, None, |path| UnixListener::bind(path))
    }

    /// Listens on `health.sock`, for speaker and controller. A predecessor's socket there
    /// is replaced: who is connected to it stays so until that process ends.
    pub fn listen_for_health(&self) -> Result<OwnedFd, RunDirError> {
        self.bind(HEALTH.name, Some(&HEALTH), |path| {
            listen_by_packet(path).map_err(io::Error::from)
        })
    }

    /// Removes the sockets: a client must not find one without a listener.
    pub fn remove_sockets(&self) {
        for name in [OPERATE.name, VIEW.name, HEALTH.name, TAKE_OVER_SOCKET] {
            let _ = std::fs::remove_file(self.path.join(name));
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Listens on `forwarder.sock`, for those who change something.
    pub fn listen(&self) -> Result<UnixListener, RunDirError> {
        remove_stale(&self.path.join(OPERATE.name))?;
        self.bind_nonblocking(&OPERATE)
    }

    /// Listens on `forwarder-view.sock`, for those who look. It replaces a
    /// predecessor's in one step.
    pub fn listen_for_viewers(&self) -> Result<UnixListener, RunDirError> {
        self.bind_nonblocking(&VIEW)
    }

    /// Opens a `forwarder.sock` that an older version made to the right group.
    pub fn share_inherited(&self) {
        share(&self.path.join(OPERATE.name), &OPERATE);
    }

    fn bind_nonblocking(&self, socket: &Socket) -> Result<UnixListener, RunDirError> {
        let listener = self.bind(socket.name, Some(socket), |path| UnixListener::bind(path))?;
        let path = self.path.join(socket.name);
        listener.set_nonblocking(true).map_err(|error| failed("listening on", &path, error))?;
        Ok(listener)
    }

    /// Made under another name, so that no connection comes to it before mode
    /// and group are right.
    fn bind<L>(
        &self,
        name: &str,
        shared: Option<&Socket>,
        bind: impl FnOnce(&Path) -> io::Result<L>,
    ) -> Result<L, RunDirError> {
        let (path, hidden) = (self.path.join(name), self.path.join(format!("{name}.new")));
        let failed = |error| failed("listening on", &path, error);
        let _ = std::fs::remove_file(&hidden);
        let listener = bind(&hidden).map_err(failed)?;
        std::fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(failed)?;
        if let Some(socket) = shared {
            share(&hidden, socket);
        }
        std::fs::rename(&hidden, &path).map_err(failed)?;
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

fn with_cure(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            io::Error::new(error.kind(), format!("{error}: be root, or give another --run-dir"))
        }
        _ => error,
    }
}

fn failed(what: &'static str, path: &Path, error: io::Error) -> RunDirError {
    RunDirError::Io { what, path: path.to_owned(), error }
}

fn lock(folder: &Folder) -> Result<File, RunDirError> {
    let path = &folder.path().join(LOCK);
    let mut file = folder.file_or_new(LOCK).map_err(|error| failed("opening", path, error))?;
    // Who can open it can hold the lock; older versions let everybody.
    file.set_permissions(Permissions::from_mode(0o600))
        .map_err(|error| failed("setting the mode of", path, error))?;
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

/// Who has the run directory, as far as can be seen.
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

/// Lets the group's members connect. Where there is no such group (the lab, a
/// first try), the owner alone does.
fn share(path: &Path, socket: &Socket) {
    let (path, group) = (path, socket.group);
    let Some(gid) = group_id(group) else {
        tracing::info!(
            socket = socket.name,
            group,
            "no such group: the socket is its owner's only"
        );
        return;
    };
    // The mode last: before that the group is another.
    let shared = rustix::fs::chown(path, None, Some(Gid::from_raw(gid)))
        .and_then(|()| rustix::fs::chmod(path, Mode::from_raw_mode(0o660)));
    if let Err(error) = shared {
        tracing::warn!(socket = socket.name, group, %error, "the socket could not be given to the group: its owner alone may connect");
    }
}

fn group_id(name: &str) -> Option<u32> {
    id_of(&std::fs::read_to_string("/etc/group").ok()?, name)
}

/// The id of a user, given by name or number.
pub fn user_id(name: &str) -> Option<u32> {
    let number = name.parse().ok();
    number.or_else(|| id_of(&std::fs::read_to_string("/etc/passwd").ok()?, name))
}

/// Lines are `name:password:id:...` (group(5), passwd(5)).
fn id_of(text: &str, name: &str) -> Option<u32> {
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
    fn without_the_groups_the_sockets_are_their_owners_only() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::take(folder.path()).unwrap();
        let _listeners = [run_dir.listen().unwrap(), run_dir.listen_for_viewers().unwrap()];
        for socket in [&OPERATE, &VIEW] {
            let found = std::fs::metadata(folder.path().join(socket.name)).unwrap();
            let wanted = if group_id(socket.group).is_some() { 0o660 } else { 0o600 };
            assert_eq!(found.permissions().mode() & 0o777, wanted, "{}", socket.name);
        }
        let lock = std::fs::metadata(folder.path().join(LOCK)).unwrap();
        assert_eq!(lock.permissions().mode() & 0o777, 0o600, "who can open it can hold it");
    }

    #[test]
    fn groups_and_users_are_found_by_name() {
        let text = "root:x:0:\nguidewayx:x:7:\nguideway:x:990:alice,bob\n";
        assert_eq!(id_of(text, "guideway"), Some(990));
        assert_eq!(id_of(text, "daemon"), None);
        assert_eq!((user_id("root"), user_id("4711")), (Some(0), Some(4711)));
    }
}
