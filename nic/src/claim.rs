//! Who owns an interface: one forwarder in each network namespace.
//!
//! An abstract unix socket is a name that the kernel keeps apart for each
//! network namespace and gives free when its process dies, however it dies.
//! The holder listens, so that the one who comes too late learns its pid.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

/// A predecessor that is just ending, or a child it is just starting, has the
/// name some milliseconds more.
const TRIES: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);

/// The right to use an interface, until dropped.
#[derive(Debug)]
pub struct Claim {
    listener: UnixListener,
}

/// Why an interface cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another forwarder has it.
    #[error("interface {interface} is in use by another forwarder{}; stop that one first", .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Taken {
        /// The interface.
        interface: String,
        /// The other's process id, if this process may see it.
        pid: Option<i32>,
    },
    /// The kernel refused.
    #[error("cannot claim interface {interface}: {error}")]
    Refused {
        /// The interface.
        interface: String,
        /// The system's reason.
        error: io::Error,
    },
}

impl Claim {
    /// Claims an interface of this network namespace.
    pub fn new(interface: &str) -> Result<Claim, ClaimError> {
        let refused = |error| ClaimError::Refused { interface: interface.to_string(), error };
        let name = format!("guideway/interface/{interface}");
        let address = SocketAddr::from_abstract_name(name).map_err(refused)?;
        for _ in 0..TRIES {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Ok(Claim { listener }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => thread::sleep(PAUSE),
                Err(error) => return Err(refused(error)),
            }
        }
        Err(ClaimError::Taken { interface: interface.to_string(), pid: holder(&address) })
    }
}

impl Claim {
    /// The claim of a predecessor, which shares it until it ends.
    pub(crate) fn inherit(claim: OwnedFd) -> Claim {
        Claim { listener: UnixListener::from(claim) }
    }

    /// The descriptor, for a successor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The process that listens on an address.
fn holder(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which the structure has.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (result == 0 && peer.pid > 0).then_some(peer.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_names_the_holder_and_the_end_frees_it() {
        let name = format!("test{}", std::process::id());
        let claim = Claim::new(&name).unwrap();
        let error = Claim::new(&name).unwrap_err();
        let own_pid = std::process::id() as i32;
        assert!(
            matches!(&error, ClaimError::Taken { pid: Some(pid), .. } if *pid == own_pid),
            "{error}"
        );
        drop(claim);
        Claim::new(&name).unwrap();
    }
}
