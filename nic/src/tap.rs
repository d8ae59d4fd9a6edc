//! A TAP device for an interface: the kernel treats frames written to it as received. It
//! returns frames to the kernel that a filter took although they are the kernel's.
//!
//! There is one for each interface, with the interface's hardware address: otherwise the kernel
//! would take the frames for another machine's (`PACKET_OTHERHOST`) and drop them. It is not
//! persistent, so it disappears with the process, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use wire::MacAddress;

use crate::interface::{Interface, InterfaceError, Request};

/// Where the kernel makes TAP devices.
const CLONE_DEVICE: &str = "/dev/net/tun";

/// Names of interfaces, with the zero byte at their end (IFNAMSIZ).
const NAME_BYTES_MAX: usize = 16;

/// Why there is no TAP, or no TUN.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel has no such device, or the process must not see it.
    #[error(
        "{CLONE_DEVICE} cannot be opened ({0}): load the module (`modprobe tun`); in a container, give it the device"
    )]
    NoDevice(io::Error),
    /// Not permitted.
    #[error("making the device {name} is not permitted: the forwarder needs CAP_NET_ADMIN")]
    Denied {
        /// Its name.
        name: String,
    },
    /// An interface of that name is there.
    #[error(
        "there is an interface {name} already: that of a forwarder that is just ending, or another program's (`ip link del {name}`)"
    )]
    Taken {
        /// Its name.
        name: String,
    },
    /// Something else.
    #[error("cannot {action} the device {name}: {error}")]
    Failed {
        /// What was tried.
        action: &'static str,
        /// Its name.
        name: String,
        /// The system's reason.
        error: io::Error,
    },
}

/// A TAP device, until dropped.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
}

impl Tap {
    /// What the TAP beside an interface is called: `gw-eth1`.
    #[must_use]
    pub fn name_for(interface: &Interface) -> String {
        let name = format!("gw-{}", interface.name);
        if name.len() < NAME_BYTES_MAX { name } else { format!("gw-if{}", interface.index) }
    }

    /// Makes the TAP beside an interface, in the network namespace of the
    /// calling thread. Not up yet, so that its settings can be made first.
    pub fn open(interface: &Interface) -> Result<Tap, TapError> {
        let name = Tap::name_for(interface);
        let file = make(&name, libc::IFF_TAP)?;
        let tap = Tap { file, name };
        tap.be_like(interface)?;
        Ok(tap)
    }

    /// The TAP beside an interface, of a predecessor.
    pub fn inherit(tap: OwnedFd, interface: &str) -> Result<Tap, InterfaceError> {
        let name = Tap::name_for(&Interface::find(interface)?);
        Ok(Tap { file: File::from(tap), name })
    }

    /// A copy of its descriptor, for a successor.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// Distinguishes a TAP from one that was made in its place.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it the interface's hardware address and MTU, if it has others:
    /// the interface's may change, and some set-ups of udev give new devices
    /// addresses of their own.
    pub fn be_like(&self, interface: &Interface) -> Result<(), TapError> {
        let request = self.request("open")?;
        if request.mac().map_err(self.failed("look at"))? != interface.mac {
            set_mac(&request, interface.mac).map_err(self.failed("give an address to"))?;
        }
        if request.mtu().map_err(self.failed("look at"))? != interface.mtu {
            set_mtu(&request, interface.mtu).map_err(self.failed("set the MTU of"))?;
        }
        Ok(())
    }

    /// Sets it up. It resolves no address (NOARP): nothing is sent by it.
    pub fn set_up(&self) -> Result<(), TapError> {
        let request = self.request("open")?;
        set_flags(&request, libc::IFF_UP | libc::IFF_NOARP).map_err(self.failed("set up"))
    }

    /// Hands a frame to the kernel, as if received. An error: the kernel has
    /// no memory for it, or the TAP is down or gone.
    pub fn give(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(drop)
    }

    fn request(&self, action: &'static str) -> Result<Request, TapError> {
        Request::new(&self.name).map_err(self.failed(action))
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> TapError {
        move |error| TapError::Failed { action, name: self.name.clone(), error }
    }
}

/// Makes a device of that kind: frames (`IFF_TAP`) or packets (`IFF_TUN`).
pub(crate) fn make(name: &str, kind: libc::c_int) -> Result<File, TapError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(CLONE_DEVICE)
        .map_err(TapError::NoDevice)?;
    let name = name.to_owned();
    attach(&file, &name, kind).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => TapError::Denied { name },
        Some(libc::EBUSY) => TapError::Taken { name },
        _ => TapError::Failed { action: "make", name, error },
    })?;
    Ok(file)
}

/// Makes the device that `file` then stands for. EXCL: never one that is there.
fn attach(file: &File, name: &str, kind: libc::c_int) -> io::Result<()> {
    let mut ifreq = Request::template(name)?;
    let flags = kind | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
    // The flags are the bits of a short, whose sign is the last of them.
    ifreq.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which lives through the
    // call; the descriptor is that of an open file.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut ifreq) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn set_mac(request: &Request, mac: MacAddress) -> io::Result<()> {
    let mut ifreq = request.ifreq();
    // SAFETY: ifreq is integers and arrays of them: zero is valid.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = libc::ARPHRD_ETHER;
    for (to, from) in address.sa_data.iter_mut().zip(mac.0) {
        *to = from as libc::c_char;
    }
    ifreq.ifr_ifru.ifru_hwaddr = address;
    // SAFETY: SIOCSIFHWADDR reads an ifreq with this member set.
    unsafe { request.ioctl(libc::SIOCSIFHWADDR, ifreq) }.map(drop)
}

pub(crate) fn set_mtu(request: &Request, mtu: u32) -> io::Result<()> {
    let mut ifreq = request.ifreq();
    ifreq.ifr_ifru.ifru_mtu = mtu as libc::c_int;
    // SAFETY: SIOCSIFMTU reads an ifreq with this member set.
    unsafe { request.ioctl(libc::SIOCSIFMTU, ifreq) }.map(drop)
}

pub(crate) fn set_flags(request: &Request, flags: libc::c_int) -> io::Result<()> {
    let mut ifreq = request.ifreq();
    ifreq.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq with this member set.
    unsafe { request.ioctl(libc::SIOCSIFFLAGS, ifreq) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str) -> Interface {
        Interface {
            name: name.to_owned(),
            index: 17,
            mac: MacAddress([2; 6]),
            mtu: 1500,
            rx_queues: 1,
            up: true,
        }
    }

    #[test]
    fn it_is_named_after_its_interface_as_far_as_names_go() {
        for (name, tap) in [
            ("eth1", "gw-eth1"),
            ("enp129s0f0n", "gw-enp129s0f0n"),
            ("enp129s0f0np", "gw-enp129s0f0np"),
            ("enp129s0f0np0", "gw-if17"),
        ] {
            assert_eq!(Tap::name_for(&interface(name)), tap);
        }
    }
}
