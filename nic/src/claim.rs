//! The owner of an interface: one forwarder in each network namespace.
//!
//! A claim is a lock (flock) on a file in a directory that belongs to root, so that no other
//! user can hold one. The kernel releases it when its process dies, however it dies; a
//! successor shares it from the moment it gets the descriptor. The file's name consists of the
//! namespace's inode and the interface's number, so that interfaces with equal names in several
//! namespaces do not conflict. It contains the holder's process id, for the error message of a
//! second forwarder.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::folder::Folder;
use crate::interface::{Interface, own_namespace};

/// The same for every forwarder of the machine.
const FOLDER: &str = "/run/guideway/claims";

/// A predecessor that is just ending, or a child it is just starting, has the
/// lock some milliseconds more.
const TRIES: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);

/// The right to use an interface, until dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
}

/// Why an interface cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another forwarder has it.
    #[error("interface {interface} is in use by another forwarder{}; stop that one first", .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Taken {
        /// The interface.
        interface: String,
        /// The other's process id, as far as it has written it down.
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
    pub fn new(interface: &Interface) -> Result<Claim, ClaimError> {
        let refused = |error| ClaimError::Refused { interface: interface.name.clone(), error };
        let namespace = own_namespace().map_err(refused)?;
        let name = format!("{namespace}-{}", interface.index);
        let folder = Folder::open(Path::new(FOLDER)).map_err(refused)?;
        remove_unused(&folder).map_err(refused)?;
        Claim::in_folder(&folder, &name, &interface.name)
    }

    fn in_folder(folder: &Folder, name: &str, interface: &str) -> Result<Claim, ClaimError> {
        let refused = |error| ClaimError::Refused { interface: interface.to_owned(), error };
        for _ in 0..TRIES {
            let file = folder.file_or_new(name).map_err(refused)?;
            match file.try_lock() {
                // Locked, but removed before that: another forwarder's file.
                Ok(()) if file.metadata().map_err(refused)?.nlink() == 0 => {}
                Ok(()) => {
                    let mut claim = Claim { file };
                    claim.sign();
                    return Ok(claim);
                }
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(refused(error)),
            }
        }
        Err(ClaimError::Taken { interface: interface.to_owned(), pid: holder(folder, name) })
    }

    /// The claim of a predecessor, which shares it until it ends.
    pub(crate) fn inherit(claim: OwnedFd) -> Claim {
        Claim { file: File::from(claim) }
    }

    /// Writes down whose it is, for people; the lock does not depend on it.
    pub(crate) fn sign(&mut self) {
        let written = self.file.rewind().and_then(|()| self.file.set_len(0));
        let _ = written.and_then(|()| writeln!(self.file, "{}", std::process::id()));
    }

    /// The descriptor, for a successor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Files of interfaces that no forwarder has are of namespaces that are gone, or of
/// forwarders that are: the holder of the lock may remove one.
fn remove_unused(folder: &Folder) -> io::Result<()> {
    for name in folder.names()? {
        if let Ok(Some(file)) = folder.file(&name)
            && file.try_lock().is_ok()
        {
            folder.remove(&name)?;
        }
    }
    Ok(())
}

fn holder(folder: &Folder, name: &str) -> Option<i32> {
    let mut text = String::new();
    folder.file(name).ok()??.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_names_the_holder_and_the_end_of_all_that_share_it_frees_it() {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::open(&above.path().join("claims")).unwrap();
        let claim = Claim::in_folder(&folder, "4026531840-2", "eth1").unwrap();
        let shared = Claim::inherit(claim.fd().try_clone_to_owned().unwrap());
        drop(claim);
        let error = Claim::in_folder(&folder, "4026531840-2", "eth1").unwrap_err();
        let own_pid = std::process::id() as i32;
        assert!(
            matches!(&error, ClaimError::Taken { pid: Some(pid), .. } if *pid == own_pid),
            "{error}"
        );
        // Another interface, or another namespace.
        let others = ["4026531840-3", "4026532000-2"];
        let claims = others.map(|name| Claim::in_folder(&folder, name, "eth1").unwrap());
        remove_unused(&folder).unwrap();
        assert_eq!(folder.names().unwrap().len(), 3, "all are in use");
        drop((shared, claims));
        Claim::in_folder(&folder, "4026531840-2", "eth1").unwrap();
        remove_unused(&folder).unwrap();
        assert_eq!(folder.names().unwrap(), Vec::<String>::new());
    }
}
