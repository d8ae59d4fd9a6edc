//! The socket for reading the status. It is in a directory that belongs to root, where
//! nobody else can replace it, connect to it or see it.
//!
//! Its name contains the network namespace and the interface, because agents of several
//! namespaces share one directory.

use std::io::{self, ErrorKind, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nic::folder::Folder;

const DIRECTORY: &str = "/run/guideway/agent";

/// Of sockets that somebody listens on, or did: they get their names after that.
const SUFFIX: &str = ".sock";

/// A socket of ours, as long as no other agent has its name.
pub struct Listener {
    socket: tokio::net::UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Takes the name for this network namespace's interface, in one step, also from an
    /// agent that has been replaced and still runs.
    pub fn bind(interface: &str) -> io::Result<Listener> {
        // Refuses a directory that is not this user's alone to write.
        let folder = Folder::open(Path::new(DIRECTORY))?;
        remove_stale(&folder)?;
        let path = path_of(interface)?;
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        let socket = UnixListener::bind(&fresh)?;
        socket.set_nonblocking(true)?;
        let inode = fresh.symlink_metadata()?.ino();
        std::fs::rename(&fresh, &path)?;
        let socket = tokio::net::UnixListener::from_std(socket)?;
        Ok(Listener { socket, path, inode })
    }

    /// The next client.
    pub async fn accept(&self) -> io::Result<tokio::net::UnixStream> {
        self.socket.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        remove(&self.path, self.inode);
    }
}

/// Removes sockets of agents that were killed: nobody listens there.
fn remove_stale(folder: &Folder) -> io::Result<()> {
    for name in folder.names()?.iter().filter(|name| name.ends_with(SUFFIX)) {
        let path = folder.path().join(name);
        let Ok(found) = path.symlink_metadata() else { continue };
        let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
        if UnixStream::connect(&path).is_err_and(refused) {
            remove(&path, found.ino());
        }
    }
    Ok(())
}

/// Removes a socket, unless another one has its name by now.
fn remove(path: &Path, inode: u64) {
    if path.symlink_metadata().is_ok_and(|found| found.ino() == inode) {
        let _ = std::fs::remove_file(path);
    }
}

fn path_of(interface: &str) -> io::Result<PathBuf> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(Path::new(DIRECTORY).join(format!("{namespace}-{interface}{SUFFIX}")))
}

/// What the agent for an interface of this network namespace says.
pub fn ask(interface: &str, timeout: Duration) -> io::Result<String> {
    let asked = path_of(interface).and_then(UnixStream::connect).and_then(|s| listen(s, timeout));
    asked.or_else(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            ask_former(interface, timeout).map_err(|_| error)
        }
        _ => Err(error),
    })
}

/// An agent of the version before, which runs until it is restarted: it has an abstract
/// name, which anybody can take.
fn ask_former(interface: &str, timeout: Duration) -> io::Result<String> {
    let name = SocketAddr::from_abstract_name(format!("guideway-agent/{interface}"))?;
    listen(UnixStream::connect_addr(&name)?, timeout)
}

fn listen(mut stream: UnixStream, timeout: Duration) -> io::Result<String> {
    stream.set_read_timeout(Some(timeout))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        let problem = format!("a process of user {} answers for it", peer.as_raw());
        return Err(io::Error::other(problem));
    }
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
