//! The XDP filter, loaded and attached to an interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use aya::maps::{MapData, MapError, XskMap};
use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader};

use super::{Mode, ModeWish};
use crate::bpf::with_causes;
use crate::filter::{Filter, FilterError};
use crate::interface::Interface;
use crate::link::{Hook, Link};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));

/// A predecessor's link goes some milliseconds after its process.
const ATTACH_TRIES: u32 = 25;
const ATTACH_PAUSE: Duration = Duration::from_millis(20);

// XDP_FLAGS of linux/if_link.h.
const DRIVER_MODE: u32 = 4;
const GENERIC_MODE: u32 = 2;

/// The filter on its interface; detached when dropped.
pub(super) struct Program {
    /// Holds the program's descriptor.
    object: Ebpf,
    sockets: XskMap<MapData>,
    mode: Mode,
    link: Link,
}

/// Why the filter cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramFailure {
    /// The kernel does not load it.
    #[error(
        "cannot load the XDP filter: {0}; it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and Linux 5.11 or later"
    )]
    Load(String),
    /// The kernel does not verify it.
    #[error(
        "the kernel refuses the XDP filter (it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN): {0}"
    )]
    Verify(String),
    /// Another program is there.
    #[error(
        "interface {0} already has an XDP program: a forwarder that is still running, or another product's; see `ip link show {0}`, remove it with `ip link set {0} xdp off` (or `xdpgeneric off`)"
    )]
    Occupied(String),
    /// The interface cannot.
    #[error("cannot attach the XDP filter to interface {interface} in {mode} mode: {error}")]
    Attach {
        /// The interface.
        interface: String,
        /// The mode asked for.
        mode: Mode,
        /// The kernel's reason.
        error: String,
    },
    /// A table is missing or refused.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl Program {
    /// Loads the filter, empty, and attaches it: natively if the driver can
    /// and the wish allows.
    pub(super) fn attach(
        interface: &Interface,
        wish: ModeWish,
    ) -> Result<(Program, Filter), ProgramFailure> {
        let (mut object, sockets, filter) = load()?;
        let (link, mode) = attach_as_wished(fd(program(&mut object)?)?, interface, wish)?;
        Ok((Program { object, sockets, mode, link }, filter))
    }

    /// Loads the filter, empty, beside that of a predecessor, which stays
    /// attached until [`Program::switch`].
    pub(super) fn inherit(link: OwnedFd, mode: Mode) -> Result<(Program, Filter), ProgramFailure> {
        let (object, sockets, filter) = load()?;
        Ok((Program { object, sockets, mode, link: Link::inherit(link) }, filter))
    }

    /// Puts our filter in the place of the predecessor's.
    pub(super) fn switch(&mut self, interface: &Interface) -> Result<(), ProgramFailure> {
        let program = fd(program(&mut self.object)?)?;
        let replaced = self.link.replace(program);
        replaced.map_err(|error| explained(interface, self.mode, &error))
    }

    /// What keeps it attached, for a successor.
    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    /// How it is attached.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// From now on what is ours on a queue goes to the socket.
    pub(super) fn connect(&mut self, queue: u32, socket: impl AsRawFd) -> Result<(), MapError> {
        self.sockets.set(queue, socket, 0)
    }
}

fn load() -> Result<(Ebpf, XskMap<MapData>, Filter), ProgramFailure> {
    let mut object = EbpfLoader::new()
        .load(OBJECT)
        .map_err(|error| ProgramFailure::Load(with_causes(&error)))?;
    let filter = Filter::take(&mut object)?;
    let sockets = object.take_map("sockets").ok_or(FilterError::NoTable("sockets"))?;
    let sockets = XskMap::try_from(sockets).map_err(FilterError::from)?;
    let loaded = program(&mut object)?.load();
    loaded.map_err(|error| ProgramFailure::Verify(with_causes(&error)))?;
    Ok((object, sockets, filter))
}

fn program(object: &mut Ebpf) -> Result<&mut Xdp, ProgramFailure> {
    let missing = || ProgramFailure::Verify("the object lacks it: rebuild".to_string());
    object
        .program_mut("guideway_filter")
        .and_then(|program| program.try_into().ok())
        .ok_or_else(missing)
}

fn fd(program: &Xdp) -> Result<BorrowedFd<'_>, ProgramFailure> {
    let fd = program.fd().map_err(|error| ProgramFailure::Verify(with_causes(&error)))?;
    Ok(fd.as_fd())
}

fn attach_as_wished(
    program: BorrowedFd,
    interface: &Interface,
    wish: ModeWish,
) -> Result<(Link, Mode), ProgramFailure> {
    match wish {
        ModeWish::Native => attach_in(program, interface, Mode::Native),
        ModeWish::Generic => attach_in(program, interface, Mode::Generic),
        ModeWish::Auto => match attach_in(program, interface, Mode::Native) {
            Ok(attached) => Ok(attached),
            Err(error @ ProgramFailure::Occupied(_)) => Err(error),
            Err(error) => {
                tracing::warn!(interface = interface.name, %error, "falling back to generic XDP, which is several times slower");
                attach_in(program, interface, Mode::Generic)
            }
        },
    }
}

fn attach_in(
    program: BorrowedFd,
    interface: &Interface,
    mode: Mode,
) -> Result<(Link, Mode), ProgramFailure> {
    let hook = Hook::Xdp(match mode {
        Mode::Native => DRIVER_MODE,
        Mode::Generic => GENERIC_MODE,
    });
    for _ in 0..ATTACH_TRIES {
        match Link::create(program, interface.index, hook) {
            Ok(link) => return Ok((link, mode)),
            // Busy: by a program in the same mode; exists: in the other one.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                thread::sleep(ATTACH_PAUSE);
            }
            Err(error) => return Err(explained(interface, mode, &error)),
        }
    }
    Err(ProgramFailure::Occupied(interface.name.clone()))
}

fn explained(interface: &Interface, mode: Mode, error: &io::Error) -> ProgramFailure {
    let reason = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            "its driver has no native XDP; use mode generic or driver af_packet".to_string()
        }
        Some(libc::ERANGE) => format!(
            "its MTU of {} is too large for XDP: ip link set {} mtu 1600",
            interface.mtu, interface.name
        ),
        Some(libc::EPERM) => "not permitted: give CAP_NET_ADMIN, or run as root".to_string(),
        _ => error.to_string(),
    };
    ProgramFailure::Attach { interface: interface.name.clone(), mode, error: reason }
}

#[cfg(test)]
mod tests;
