//! The two filters of a packet socket: what it takes, and what traffic
//! control drops.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya::programs::tc::{self, TcAttachType};
use aya::programs::{SchedClassifier, SocketFilter};
use aya::util::KernelVersion;
use ebpf::{Hook, Link, ObjectError, with_causes};

use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/packet.bpf.o"));

const TAKE: &str = "guideway_take";
const DROP: &str = "guideway_drop";

/// The filters, loaded; the dropping one attached until this is dropped.
pub(super) struct Program {
    object: Ebpf,
    /// None before Linux 6.6: there the object holds what takes it off.
    link: Option<Link>,
}

impl Program {
    /// Loads both filters, empty, and attaches the dropping one.
    pub(super) fn attach(interface: &Interface) -> Result<(Program, Filter), OpenError> {
        let (mut program, filter) = Program::load()?;
        program.drop_in_traffic_control(interface).map_err(failed(interface, "attach"))?;
        Ok((program, filter))
    }

    /// Loads both filters, empty, beside those of a predecessor, which stay
    /// until [`Program::switch`].
    pub(super) fn inherit(link: Option<OwnedFd>) -> Result<(Program, Filter), ObjectError> {
        let (program, filter) = Program::load()?;
        Ok((Program { link: link.map(Link::inherit), ..program }, filter))
    }

    /// Puts our dropping filter in the place of the predecessor's.
    pub(super) fn switch(&mut self, interface: &Interface) -> Result<(), OpenError> {
        let replaced = match &self.link {
            Some(link) => dropping(&mut self.object)
                .and_then(|drop| link.replace(drop).map_err(|error| error.to_string())),
            None => self.drop_in_traffic_control(interface),
        };
        replaced.map_err(failed(interface, "replace"))
    }

    /// What keeps the dropping filter attached, for a successor.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(Link::fd)
    }

    fn load() -> Result<(Program, Filter), ObjectError> {
        let mut object = ebpf::load(OBJECT)?;
        let filter = Filter::take(&mut object)?;
        ebpf::verify(TAKE, ebpf::program::<SocketFilter>(&mut object, TAKE)?.load())?;
        ebpf::verify(DROP, ebpf::program::<SchedClassifier>(&mut object, DROP)?.load())?;
        Ok((Program { object, link: None }, filter))
    }

    /// From Linux 6.6 on a link holds the program, and goes with us. Before,
    /// it hangs on a queueing discipline and stays after a crash: ours from
    /// before is taken off first.
    fn drop_in_traffic_control(&mut self, interface: &Interface) -> Result<(), String> {
        if has_links() {
            let link = Link::create(dropping(&mut self.object)?, interface.index, Hook::TcIngress);
            self.link = Some(link.map_err(|error| error.to_string())?);
            return Ok(());
        }
        // It is there already, or the attachment fails and says why.
        let _ = tc::qdisc_add_clsact(&interface.name);
        let _ = tc::qdisc_detach_program(&interface.name, TcAttachType::Ingress, DROP);
        let drop: &mut SchedClassifier =
            ebpf::program(&mut self.object, DROP).map_err(|error| error.to_string())?;
        let attached = drop.attach(&interface.name, TcAttachType::Ingress);
        attached.map(|_| ()).map_err(|error| with_causes(&error))
    }

    /// Makes a socket take what is ours and nothing else.
    pub(super) fn guard(&self, socket: BorrowedFd) -> io::Result<()> {
        let filter: Option<&SocketFilter> =
            self.object.program(TAKE).and_then(|program| program.try_into().ok());
        let filter =
            filter.ok_or_else(|| io::Error::other("the object lacks guideway_take: rebuild"))?;
        filter.attach(socket).map_err(|error| io::Error::other(with_causes(&error)))
    }
}

fn failed(interface: &Interface, action: &'static str) -> impl FnOnce(String) -> OpenError {
    let name = interface.name.clone();
    move |error| OpenError::PacketFilter { name, action, error }
}

fn dropping(object: &mut Ebpf) -> Result<BorrowedFd<'_>, String> {
    let drop: &mut SchedClassifier =
        ebpf::program(object, DROP).map_err(|error| error.to_string())?;
    drop.fd().map(|fd| fd.as_fd()).map_err(|error| with_causes(&error))
}

fn has_links() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}
