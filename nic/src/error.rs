//! Why devices cannot be opened. Each error names the interface and a cure.

use std::io;

use ebpf::ObjectError;
use ebpf::xdp::AttachError;

use crate::claim::ClaimError;
use crate::interface::InterfaceError;

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The interface is not there.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Another forwarder has it.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The XDP filter cannot run on it.
    #[error(transparent)]
    Program(#[from] ProgramFailure),
    /// The filter of a packet socket cannot run on it.
    #[error(
        "cannot {action} the packet filter of interface {name}: {error}; it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
    )]
    PacketFilter {
        /// The interface.
        name: String,
        /// "attach" or "replace".
        action: &'static str,
        /// The kernel's reason.
        error: String,
    },
    /// The filter of a packet socket is not taken by the kernel.
    #[error("the packet filter: {0}")]
    Object(#[from] ObjectError),
    /// Its driver gives AF_XDP no packets.
    #[error(
        "interface {name}: its driver ({driver}) brings no packets to AF_XDP sockets: write `driver: af_packet`, or `auto`, which takes that"
    )]
    TakesNothing {
        /// The interface.
        name: String,
        /// Its driver.
        driver: String,
    },
    /// Its frames are too long for XDP.
    #[error(
        "interface {name} has an MTU of {mtu}; AF_XDP takes at most {mtu_max}: ip link set {name} mtu 1600"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The longest that AF_XDP takes.
        mtu_max: u32,
    },
    /// More queues than workers can be.
    #[error(
        "interface {name} has {queues} RX queues; at most {queues_max} can be owned: ethtool -L {name} combined {queues_max}"
    )]
    Queues {
        /// The interface.
        name: String,
        /// Its queues.
        queues: u32,
        /// As many as can be owned.
        queues_max: u32,
    },
    /// Each worker owns one queue of every interface, so all must have as
    /// many as there are workers: an RX queue without an owner loses frames.
    #[error(
        "interface {name} has {queues} RX queues, but there are {workers} workers, each of which owns one queue of every interface: ethtool -L {name} combined {workers}, or `rx {workers}`, or set `queues` of the interfaces alike"
    )]
    QueuesDiffer {
        /// The interface.
        name: String,
        /// Its queues.
        queues: u32,
        /// The workers there are to be.
        workers: u32,
    },
    /// Its driver made queues of its own for the filter, which receive packets, too.
    #[error(
        "interface {name} has {before} RX queues, and {after} as soon as an XDP program is attached; packets to the others would be lost: ethtool -L {name} combined {most}, which leaves no queues to spare, or `driver: af_packet`"
    )]
    QueuesAdded {
        /// The interface.
        name: String,
        /// Its queues without a program.
        before: u32,
        /// Those with one.
        after: u32,
        /// As many as it can have.
        most: u32,
    },
    /// Workers have one memory for all interfaces, which is zero-copy on all or on none.
    #[error("interface {name} has no zero-copy, or it is refused, and another has it: {error}")]
    ZeroCopyDiffers {
        /// The interface without it.
        name: String,
        /// The step that failed, and the system's reason.
        error: io::Error,
    },
    /// A socket cannot be had.
    #[error("cannot open an {kind} socket on queue {queue} of interface {name}: {error}")]
    Socket {
        /// "AF_XDP" or "AF_PACKET".
        kind: &'static str,
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
        /// The step that failed, and the system's reason.
        error: io::Error,
    },
    /// No memory for packets.
    #[error(
        "cannot map {bytes} bytes of packet memory for worker {worker}: {error}; fewer workers or smaller rings need less"
    )]
    Memory {
        /// The worker.
        worker: u32,
        /// Bytes wanted.
        bytes: usize,
        /// The system's reason.
        error: io::Error,
    },
    /// The driver has no interfaces of the kernel.
    #[error("interface {name}: driver {driver} opens no interface of the kernel")]
    NotOfTheKernel {
        /// The interface.
        name: String,
        /// The driver.
        driver: &'static str,
    },
    /// A predecessor that hands its devices over left something out.
    #[error("the predecessor handed no {what} of interface {name} over: start without --take-over")]
    NotHandedOver {
        /// The interface.
        name: String,
        /// What is missing.
        what: &'static str,
    },
    /// Nothing to open.
    #[error("there is no interface to open: the plan's `forwarder.interfaces` is empty")]
    NoInterface,
}

/// Why the XDP filter cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramFailure {
    /// The kernel takes the filter or a table of it not.
    #[error("the XDP filter: {0}")]
    Object(#[from] ObjectError),
    /// The interface takes it not.
    #[error("the XDP filter: {0}")]
    Attach(#[from] AttachError),
}
