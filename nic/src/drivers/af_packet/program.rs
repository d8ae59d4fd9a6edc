//! The two filters of a packet socket: the frames that it takes, and those that traffic control
//! sends or drops.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya::programs::socket_filter::SocketFilterError;
use aya::programs::tc::{self, TcAttachType};
use aya::programs::{ProgramError, SchedClassifier, SocketFilter};
use ebpf::{Hook, Link, ObjectError, with_causes};

use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::kernel_cache::{self, CacheConfig, CacheMemory, Loaded};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/packet.bpf.o"));

const TAKE: &str = "guideway_take";
const TRAFFIC_CONTROL: &str = "guideway_traffic_control";
/// Its name in the release before.
const FORMER: &str = "guideway_drop";

/// The filters, loaded; that of traffic control attached until this is dropped.
pub(super) struct Program {
    object: Ebpf,
    /// None before Linux 6.6: there the object holds what takes it off.
    link: Option<Link>,
}

impl Program {
    /// Loads both filters, empty, and attaches that of traffic control.
    pub(super) fn attach(
        interface: &Interface,
        cache: Option<CacheConfig>,
    ) -> Result<(Program, Filter, Option<CacheMemory>), OpenError> {
        let (mut program, filter, cache) = Program::load(interface, cache)?;
        program.attach_to_traffic_control(interface).map_err(failed(interface, "attach"))?;
        Ok((program, filter, cache))
    }

    /// Loads both filters, empty and with an empty cache of their own, beside those of a
    /// predecessor, which stay until [`Program::switch`].
    pub(super) fn inherit(
        interface: &Interface,
        link: Option<OwnedFd>,
        cache: Option<CacheConfig>,
    ) -> Result<(Program, Filter, Option<CacheMemory>), ObjectError> {
        let (program, filter, cache) = Program::load(interface, cache)?;
        Ok((Program { link: link.map(Link::inherit), ..program }, filter, cache))
    }

    /// Puts our filter of traffic control in the place of the predecessor's.
    pub(super) fn switch(&mut self, interface: &Interface) -> Result<(), OpenError> {
        let replaced = match &self.link {
            Some(link) => ebpf::program_fd(&self.object, TRAFFIC_CONTROL)
                .map_err(|error| error.to_string())
                .and_then(|program| link.replace(program).map_err(|error| error.to_string())),
            None => self.attach_to_traffic_control(interface),
        };
        replaced.map_err(failed(interface, "replace"))
    }

    /// What keeps the filter of traffic control attached, for a successor.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(Link::fd)
    }

    fn load(
        interface: &Interface,
        cache: Option<CacheConfig>,
    ) -> Result<(Program, Filter, Option<CacheMemory>), ObjectError> {
        let (object, filter, cache) = kernel_cache::load_for(interface, cache, load)?;
        Ok((Program { object, link: None }, filter, cache))
    }

    /// From Linux 6.6 on a link holds the program, and goes with us. Before,
    /// it hangs on a queueing discipline and stays after a crash: ours from
    /// before is taken off first.
    fn attach_to_traffic_control(&mut self, interface: &Interface) -> Result<(), String> {
        if ebpf::has_tc_links() {
            let program = ebpf::program_fd(&self.object, TRAFFIC_CONTROL);
            let program = program.map_err(|error| error.to_string())?;
            let link = Link::create(program, interface.index, Hook::TcIngress);
            self.link = Some(link.map_err(|error| error.to_string())?);
            return Ok(());
        }
        // It is there already, or the attachment fails and says why.
        let _ = tc::qdisc_add_clsact(&interface.name);
        for ours in [TRAFFIC_CONTROL, FORMER] {
            let _ = tc::qdisc_detach_program(&interface.name, TcAttachType::Ingress, ours);
        }
        let program: &mut SchedClassifier =
            ebpf::program(&mut self.object, TRAFFIC_CONTROL).map_err(|error| error.to_string())?;
        let attached = program.attach(&interface.name, TcAttachType::Ingress);
        attached.map(|_| ()).map_err(|error| with_causes(&error))
    }

    /// Makes a socket take what is ours and nothing else.
    pub(super) fn guard(&self, socket: BorrowedFd) -> io::Result<()> {
        let filter: Option<&SocketFilter> =
            self.object.program(TAKE).and_then(|program| program.try_into().ok());
        let filter =
            filter.ok_or_else(|| io::Error::other("the object lacks guideway_take: rebuild"))?;
        filter.attach(socket).map_err(|error| {
            let cure = if is_out_of_memory(&error) { OPTIONS_MEMORY_CURE } else { "" };
            io::Error::other(with_causes(&error) + cure)
        })
    }
}

/// The kernel counts the filters of a socket against it; take-overs met that on Linux 6.1.
const OPTIONS_MEMORY_CURE: &str =
    ": net.core.optmem_max is too low for the filter (sysctl -w net.core.optmem_max=131072)";

fn is_out_of_memory(error: &ProgramError) -> bool {
    let ProgramError::SocketFilterError(SocketFilterError::SetsockoptError { io_error, .. }) =
        error
    else {
        return false;
    };
    io_error.kind() == io::ErrorKind::OutOfMemory
}

fn failed(interface: &Interface, action: &'static str) -> impl FnOnce(String) -> OpenError {
    let name = interface.name.clone();
    move |error| OpenError::PacketFilter { name, action, error }
}

/// Both filters, in the kernel and on no interface yet.
pub(crate) fn load(cache: Option<CacheConfig>) -> Result<Loaded, ObjectError> {
    let (mut object, filter, memory) = kernel_cache::load_maps(OBJECT, cache, &[])?;
    for name in [TRAFFIC_CONTROL, TAKE] {
        ebpf::load_program(&mut object, name)?;
    }
    Ok((object, filter, memory))
}
