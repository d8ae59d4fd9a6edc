//! The two filters of a packet socket: what it takes, and what traffic
//! control drops.

use std::io;
use std::os::fd::BorrowedFd;

use aya::programs::tc::{self, TcAttachType};
use aya::programs::{Program as Loaded, SchedClassifier, SocketFilter};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};

use crate::bpf::with_causes;
use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/packet.bpf.o"));

const TAKE: &str = "guideway_take";
const DROP: &str = "guideway_drop";

/// The filters, loaded; the dropping one attached until this is dropped.
pub(super) struct Program {
    object: Ebpf,
}

impl Program {
    /// Loads both filters, empty, and attaches the dropping one.
    pub(super) fn attach(interface: &Interface) -> Result<(Program, Filter), OpenError> {
        let failed = |action| {
            let name = interface.name.clone();
            move |error: String| OpenError::PacketFilter { name, action, error }
        };
        let mut object =
            EbpfLoader::new().load(OBJECT).map_err(|error| failed("load")(with_causes(&error)))?;
        let filter = Filter::take(&mut object)?;
        load(&mut object).map_err(failed("load"))?;
        drop_in_traffic_control(&mut object, &interface.name).map_err(failed("attach"))?;
        Ok((Program { object }, filter))
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

fn load(object: &mut Ebpf) -> Result<(), String> {
    let take: &mut SocketFilter = program(object, TAKE)?;
    take.load().map_err(|error| with_causes(&error))?;
    let drop: &mut SchedClassifier = program(object, DROP)?;
    drop.load().map_err(|error| with_causes(&error))
}

/// From Linux 6.6 on a link holds the program, and goes with us. Before, it
/// hangs on a queueing discipline and stays after a crash: ours from before is
/// taken off first.
fn drop_in_traffic_control(object: &mut Ebpf, interface: &str) -> Result<(), String> {
    if !has_links() {
        // It is there already, or the attachment fails and says why.
        let _ = tc::qdisc_add_clsact(interface);
        let _ = tc::qdisc_detach_program(interface, TcAttachType::Ingress, DROP);
    }
    let drop: &mut SchedClassifier = program(object, DROP)?;
    drop.attach(interface, TcAttachType::Ingress).map(|_| ()).map_err(|error| with_causes(&error))
}

fn has_links() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

fn program<'o, P>(object: &'o mut Ebpf, name: &str) -> Result<&'o mut P, String>
where
    &'o mut P: TryFrom<&'o mut Loaded>,
{
    object
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| format!("the object lacks {name}: rebuild"))
}
