//! The XDP filter, loaded and attached to an interface.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{MapData, MapError, XskMap};
use aya::programs::Xdp;
use ebpf::xdp::{self, Mode, ModePreference};
use ebpf::{Link, ObjectError};

use crate::error::ProgramFailure;
use crate::filter::Filter;
use crate::interface::Interface;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));

const FILTER: &str = "guideway_filter";

/// The filter on its interface; detached when dropped.
pub(super) struct Program {
    /// Holds the program's descriptor.
    object: Ebpf,
    sockets: XskMap<MapData>,
    mode: Mode,
    link: Link,
}

impl Program {
    /// Loads the filter, empty, and attaches it: natively if the driver can
    /// and the preference allows.
    pub(super) fn attach(
        interface: &Interface,
        preference: ModePreference,
    ) -> Result<(Program, Filter), ProgramFailure> {
        let (mut object, sockets, filter) = load()?;
        let program = fd(&mut object)?;
        let (link, mode) = xdp::attach(program, &interface.name, interface.index, preference)?;
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
        let program = fd(&mut self.object)?;
        Ok(xdp::replace(&self.link, program, &interface.name, self.mode)?)
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

fn load() -> Result<(Ebpf, XskMap<MapData>, Filter), ObjectError> {
    let mut object = ebpf::load(OBJECT)?;
    let filter = Filter::take(&mut object)?;
    let sockets = ebpf::table(&mut object, "sockets")?;
    ebpf::verify(FILTER, ebpf::program::<Xdp>(&mut object, FILTER)?.load())?;
    Ok((object, sockets, filter))
}

fn fd(object: &mut Ebpf) -> Result<BorrowedFd<'_>, ObjectError> {
    let missing = |_| ObjectError::Missing(FILTER);
    ebpf::program::<Xdp>(object, FILTER)?.fd().map(|fd| fd.as_fd()).map_err(missing)
}

#[cfg(test)]
mod tests;
