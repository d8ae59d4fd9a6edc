//! A TUN device: packets that the kernel sends on it are read here, one at a time, without an
//! Ethernet header, and packets written here are received by the kernel. Through it a program
//! gets packets of this machine to send them in its own way, and gives packets to the kernel at
//! a moment of its choice.
//!
//! It is not persistent, so it disappears with the process, however that ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::interface::Request;
use crate::tap::{self, TapError};

/// A TUN device, until dropped.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
}

impl Tun {
    /// Makes it in the network namespace of the calling thread. Not up yet, so
    /// that its settings can be made first.
    pub fn open(name: &str, mtu: u32) -> Result<Tun, TapError> {
        let file = tap::make(name, libc::IFF_TUN)?;
        let tun = Tun { file, name: name.to_owned() };
        let request = Request::new(name).map_err(tun.failed("open"))?;
        tap::set_mtu(&request, mtu).map_err(tun.failed("set the MTU of"))?;
        Ok(tun)
    }

    /// That of a predecessor.
    #[must_use]
    pub fn inherit(tun: OwnedFd, name: &str) -> Tun {
        Tun { file: File::from(tun), name: name.to_owned() }
    }

    /// A copy of its descriptor, for a successor.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// To wait on.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Whether the kernel still has it, and it is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let flags = Request::new(&self.name).and_then(|request| request.flags());
        flags.is_ok_and(|flags| flags & libc::IFF_UP != 0)
    }

    /// Sets it up. There is nothing at its other end that could be resolved.
    pub fn set_up(&self) -> Result<(), TapError> {
        let request = Request::new(&self.name).map_err(self.failed("open"))?;
        tap::set_flags(&request, libc::IFF_UP | libc::IFF_NOARP).map_err(self.failed("set up"))
    }

    /// Sets it down: its routes are gone, and senders are told.
    pub fn set_down(&self) -> Result<(), TapError> {
        let request = Request::new(&self.name).map_err(self.failed("open"))?;
        tap::set_flags(&request, libc::IFF_NOARP).map_err(self.failed("set down"))
    }

    /// The next packet, into `bytes`; its length. `WouldBlock`: there is none.
    pub fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(bytes)
    }

    /// Has the kernel receive a packet: it has passed it to TCP when this returns, unless
    /// the device's packets are spread over processors (RPS).
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write_all(packet)
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> TapError {
        move |error| TapError::Failed { action, name: self.name.clone(), error }
    }
}
