//! The XDP filter, loaded and attached to an interface.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{MapData, MapError, XskMap};
use ebpf::xdp::{self, Mode, ModePreference};
use ebpf::{Link, ObjectError};

use crate::error::ProgramFailure;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::kernel_cache::{self, CacheConfig, CacheMemory};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));

pub(crate) const FILTER: &str = "guideway_filter";

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
        cache: Option<CacheConfig>,
    ) -> Result<(Program, Filter, Option<CacheMemory>), ProgramFailure> {
        let (object, sockets, filter, cache) = load_for(interface, cache)?;
        let program = ebpf::program_fd(&object, FILTER)?;
        let (link, mode) = xdp::attach(program, &interface.name, interface.index, preference)?;
        Ok((Program { object, sockets, mode, link }, filter, cache))
    }

    /// Loads the filter, empty and with an empty cache of its own, beside that of a
    /// predecessor, which stays attached until [`Program::switch`].
    pub(super) fn inherit(
        interface: &Interface,
        link: OwnedFd,
        mode: Mode,
        cache: Option<CacheConfig>,
    ) -> Result<(Program, Filter, Option<CacheMemory>), ProgramFailure> {
        let (object, sockets, filter, cache) = load_for(interface, cache)?;
        Ok((Program { object, sockets, mode, link: Link::inherit(link) }, filter, cache))
    }

    /// Puts our filter in the place of the predecessor's.
    pub(super) fn switch(&mut self, interface: &Interface) -> Result<(), ProgramFailure> {
        let program = ebpf::program_fd(&self.object, FILTER)?;
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

/// The program and its table of sockets, in the kernel and on no interface yet.
type Loaded = (Ebpf, XskMap<MapData>, Filter, Option<CacheMemory>);

fn load_for(interface: &Interface, cache: Option<CacheConfig>) -> Result<Loaded, ObjectError> {
    let (mut object, filter, memory) =
        kernel_cache::load_for(interface, cache, |cache| load(cache, &[]))?;
    let sockets = ebpf::table(&mut object, "sockets")?;
    Ok((object, sockets, filter, memory))
}

/// With a kernel flow cache of that config, or without one; and
/// with these constants.
pub(crate) fn load(
    cache: Option<CacheConfig>,
    constants: &[(&'static str, u32)],
) -> Result<kernel_cache::Loaded, ObjectError> {
    let (mut object, filter, memory) = kernel_cache::load_maps(OBJECT, cache, constants)?;
    ebpf::load_program(&mut object, FILTER)?;
    Ok((object, filter, memory))
}

#[cfg(test)]
mod tests;
