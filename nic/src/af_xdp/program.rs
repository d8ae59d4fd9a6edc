//! The XDP filter, loaded and attached to an interface.

use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use aya::maps::{MapData, MapError, XskMap};
use aya::programs::xdp::XdpMode;
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfLoader};

use super::{Mode, ModeWish};
use crate::bpf::{os_error, with_causes};
use crate::filter::{Filter, FilterError};
use crate::interface::Interface;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));

/// A predecessor's link goes some milliseconds after its process.
const ATTACH_TRIES: u32 = 25;
const ATTACH_PAUSE: Duration = Duration::from_millis(20);

/// The filter on its interface; detached when dropped.
pub(super) struct Program {
    /// Holds the link: dropping it detaches.
    _object: Ebpf,
    sockets: XskMap<MapData>,
    mode: Mode,
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
        let mut object = EbpfLoader::new()
            .load(OBJECT)
            .map_err(|error| ProgramFailure::Load(with_causes(&error)))?;
        let filter = Filter::take(&mut object)?;
        let sockets = object.take_map("sockets").ok_or(FilterError::NoTable("sockets"))?;
        let sockets = XskMap::try_from(sockets).map_err(FilterError::from)?;
        let xdp = program(&mut object)?;
        xdp.load().map_err(|error| ProgramFailure::Verify(with_causes(&error)))?;
        let mode = attach_as_wished(xdp, interface, wish)?;
        Ok((Program { _object: object, sockets, mode }, filter))
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

fn program(object: &mut Ebpf) -> Result<&mut Xdp, ProgramFailure> {
    let missing = || ProgramFailure::Verify("the object lacks it: rebuild".to_string());
    object
        .program_mut("guideway_filter")
        .and_then(|program| program.try_into().ok())
        .ok_or_else(missing)
}

fn attach_as_wished(
    xdp: &mut Xdp,
    interface: &Interface,
    wish: ModeWish,
) -> Result<Mode, ProgramFailure> {
    match wish {
        ModeWish::Native => attach_in(xdp, interface, Mode::Native),
        ModeWish::Generic => attach_in(xdp, interface, Mode::Generic),
        ModeWish::Auto => match attach_in(xdp, interface, Mode::Native) {
            Ok(mode) => Ok(mode),
            Err(error @ ProgramFailure::Occupied(_)) => Err(error),
            Err(error) => {
                tracing::warn!(interface = interface.name, %error, "falling back to generic XDP, which is several times slower");
                attach_in(xdp, interface, Mode::Generic)
            }
        },
    }
}

fn attach_in(xdp: &mut Xdp, interface: &Interface, mode: Mode) -> Result<Mode, ProgramFailure> {
    let flags = match mode {
        Mode::Native => XdpMode::Driver,
        Mode::Generic => XdpMode::Skb,
    };
    for _ in 0..ATTACH_TRIES {
        match xdp.attach_to_if_index(interface.index, flags) {
            Ok(_) => return Ok(mode),
            // Busy: by a program in the same mode; exists: in the other one.
            Err(error) if matches!(os_error(&error), Some(libc::EBUSY | libc::EEXIST)) => {
                thread::sleep(ATTACH_PAUSE);
            }
            Err(error) => return Err(explained(interface, mode, &error)),
        }
    }
    Err(ProgramFailure::Occupied(interface.name.clone()))
}

fn explained(interface: &Interface, mode: Mode, error: &ProgramError) -> ProgramFailure {
    let reason = match os_error(error) {
        Some(libc::EOPNOTSUPP) => {
            "its driver has no native XDP; use mode generic or driver af_packet".to_string()
        }
        Some(libc::ERANGE) => format!(
            "its MTU of {} is too large for XDP: ip link set {} mtu 1600",
            interface.mtu, interface.name
        ),
        Some(libc::EPERM) => "not permitted: give CAP_NET_ADMIN, or run as root".to_string(),
        _ => with_causes(error),
    };
    ProgramFailure::Attach { interface: interface.name.clone(), mode, error: reason }
}

#[cfg(test)]
mod tests;
