//! XDP programs: attached to an interface, in its driver if that can.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use crate::link::{Hook, Link};

/// A predecessor's link goes some milliseconds after its process.
const ATTACH_TRIES: u32 = 25;
const ATTACH_PAUSE: Duration = Duration::from_millis(20);

// XDP_FLAGS of linux/if_link.h.
const DRIVER_MODE: u32 = 4;
const GENERIC_MODE: u32 = 2;

/// How a program is to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModePreference {
    /// Natively if the driver can, else generically, with a warning.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel's generic path.
    Generic,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel allocates anything.
    Native,
    /// In the kernel's generic path: works with every driver, slowly.
    Generic,
}

impl Mode {
    fn flags(self) -> u32 {
        match self {
            Mode::Native => DRIVER_MODE,
            Mode::Generic => GENERIC_MODE,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
        })
    }
}

/// Why a program cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Another program is there, in this mode or the other.
    #[error(
        "interface {0} already has an XDP program, of a process that is still running or of another product; see `ip link show {0}`, stop what attached it, or remove it with `ip link set {0} xdp off` (or `xdpgeneric off`)"
    )]
    Occupied(String),
    /// The interface cannot, or the kernel does not permit it.
    #[error("cannot attach the XDP program to interface {interface} in {mode} mode: {reason}")]
    Refused {
        /// The interface.
        interface: String,
        /// The mode that was tried.
        mode: Mode,
        /// The kernel's reason, with a cure.
        reason: String,
    },
}

/// Attaches a program to the interface of this number, whose name is for
/// messages.
pub fn attach(
    program: BorrowedFd,
    interface: &str,
    index: u32,
    preference: ModePreference,
) -> Result<(Link, Mode), AttachError> {
    let in_mode = |mode| attach_in(program, interface, index, mode);
    match preference {
        ModePreference::Native => in_mode(Mode::Native),
        ModePreference::Generic => in_mode(Mode::Generic),
        ModePreference::Auto => match in_mode(Mode::Native) {
            Err(error @ AttachError::Refused { .. }) => {
                tracing::warn!(interface, %error, "falling back to generic XDP, which is several times slower");
                in_mode(Mode::Generic)
            }
            result => result,
        },
    }
}

/// Puts a program in the place of the one that a predecessor attached.
pub fn replace(
    link: &Link,
    program: BorrowedFd,
    interface: &str,
    mode: Mode,
) -> Result<(), AttachError> {
    link.replace(program).map_err(|error| refused(interface, mode, &error))
}

fn attach_in(
    program: BorrowedFd,
    interface: &str,
    index: u32,
    mode: Mode,
) -> Result<(Link, Mode), AttachError> {
    for _ in 0..ATTACH_TRIES {
        match Link::create(program, index, Hook::Xdp(mode.flags())) {
            Ok(link) => return Ok((link, mode)),
            // Busy: by a program in the same mode; exists: in the other one.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                thread::sleep(ATTACH_PAUSE);
            }
            Err(error) => return Err(refused(interface, mode, &error)),
        }
    }
    Err(AttachError::Occupied(interface.to_owned()))
}

fn refused(interface: &str, mode: Mode, error: &io::Error) -> AttachError {
    let reason = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            "its driver has no native XDP, or not with its settings (LRO, number of channels, MTU); generic mode works with every driver".to_string()
        }
        Some(libc::ERANGE) => {
            format!("its MTU is too large for XDP: ip link set {interface} mtu 1600")
        }
        Some(libc::EINVAL) => format!(
            "{error}; some drivers (ena, gve) say so if more than half of their channels are in use: ethtool -l {interface}, then ethtool -L"
        ),
        Some(libc::EPERM) => "not permitted: give CAP_NET_ADMIN, or run as root".to_string(),
        _ => error.to_string(),
    };
    AttachError::Refused { interface: interface.to_owned(), mode, reason }
}
