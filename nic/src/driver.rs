//! A driver as seen by all other code: a value that says what it can do, a way to open devices,
//! and the device itself. Code outside a driver's folder uses only this, never which driver it
//! is.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ebpf::xdp::{Mode, ModePreference};
use wire::{BATCH_MAX, CHUNK_BYTES};

use crate::claim::Claim;
use crate::device::Queue;
use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::kernel_cache::{CacheMemory, CacheRequest};
use crate::memory::{Memory, Pool, mapped_bytes};

/// Queues of an interface that may have owners: entries of the XDP filter's
/// table of sockets (bpf/redirect.bpf.c).
pub const QUEUES_MAX: u32 = 64;

/// Frames that a worker may hold beyond its rings: the batch in hand and what
/// it originates (eight times as many), those waiting on rings between threads
/// (as many again to the slow path, and as many for what that originates).
const CHUNKS_IN_HAND: usize = 32 * BATCH_MAX;

/// An interface to open.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// Its name.
    pub interface: String,
    /// How frames are got from it.
    pub driver: &'static Driver,
    /// Queues to own; 0 for all it has. Some drivers take no fewer
    /// ([`QueueOwners::Each`]).
    pub queues: u32,
    /// How an XDP filter is attached.
    pub mode: ModePreference,
    /// What may be sent without user space, by drivers that can; None: nothing.
    pub kernel_cache: Option<CacheRequest>,
}

/// How queues are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Frames that each ring holds, a power of two. A queue needs three times
    /// as many chunks: free, received and being sent.
    pub ring_entries: u32,
    /// The kernel polls the device inside our calls, for cores that do
    /// nothing else.
    pub busy_poll: bool,
    /// Never zero-copy; for a driver whose zero-copy is faulty.
    pub copy: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions { ring_entries: 2048, busy_poll: false, copy: false }
    }
}

/// An open interface, as the control thread holds it. Dropping it takes the
/// filter off.
pub struct Device {
    driver: &'static Driver,
    interface: Interface,
    filter: Option<Filter>,
    claim: Claim,
    kernel_cache: Option<CacheMemory>,
    /// By queue.
    sockets: Vec<Arc<OwnedFd>>,
    /// Queues that are not zero-copy.
    copied_queues: usize,
    port: Box<dyn Port>,
}

/// A way to get frames, and what it can do.
pub struct Driver {
    /// As configs, status and metrics call it.
    pub name: &'static str,
    /// What its devices have.
    pub abilities: Abilities,
    /// Which of an interface's RX queues must have an owner.
    pub queues: QueueOwners,
    /// Chunks of packet memory that one of its queues keeps busy.
    pub chunks: fn(&QueueOptions) -> usize,
    /// Maps packet memory for that many chunks. Interfaces that one worker
    /// owns queues of share its memory: their drivers must take the same.
    pub pool: fn(chunks: usize) -> io::Result<Pool>,
    /// Opens an interface for that many queues.
    pub(crate) open: fn(&DeviceConfig, queues: u32) -> Result<Device, OpenError>,
    /// Goes on with an interface of a predecessor that still has it.
    pub(crate) inherit: fn(Inheritance) -> Result<Device, OpenError>,
}

/// What devices of a driver have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// A filter that chooses what they take; without one they take all frames.
    pub filter: bool,
    /// An interface that stays the kernel's, too: what the filter does not
    /// take the kernel receives, and its routes lead to it.
    pub kernel_interface: bool,
    /// Descriptors by which a successor goes on without losing a frame.
    pub take_over: bool,
    /// A kernel flow cache, and what it sends by.
    pub kernel_cache: Option<CacheSends>,
}

/// What a kernel flow cache sends by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSends {
    /// The interface's driver, which has to take what programs send.
    ByDriver,
    /// The kernel, as it sends its own packets.
    ByKernel,
}

/// Which RX queues of an interface must have an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOwners {
    /// Each, or it loses frames.
    Each,
    /// Any number of owners share what the interface receives.
    Shared,
}

/// As people and programs call it.
impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.name)
    }
}

impl PartialEq for Driver {
    fn eq(&self, other: &Driver) -> bool {
        self.name == other.name
    }
}

impl Eq for Driver {}

/// What holds a device beside its sockets.
#[derive(Debug)]
pub struct Held {
    /// The right to use the interface.
    pub claim: OwnedFd,
    /// What keeps the filter attached; None where nothing does.
    pub link: Option<OwnedFd>,
}

/// What a predecessor hands over of an interface, its sockets apart.
pub(crate) struct Inheritance {
    pub(crate) interface: Interface,
    /// How its XDP filter is attached, where it has one.
    pub(crate) mode: Option<Mode>,
    pub(crate) held: Held,
    pub(crate) queues: u32,
    pub(crate) kernel_cache: Option<CacheRequest>,
}

/// A driver's part of an open interface. Dropping it takes its filter off.
pub(crate) trait Port: Send {
    /// How its XDP filter is attached; None: it has none.
    fn mode(&self) -> Option<Mode>;

    /// Opens a queue on a worker's memory; with its socket.
    fn queue(
        &mut self,
        interface: &Interface,
        number: u32,
        lane: &mut Lane,
        options: &QueueOptions,
    ) -> Result<Opened<Box<dyn Queue>>, OpenError>;

    /// The queue on a predecessor's socket, whose rings have that many entries.
    fn inherit_queue(
        &mut self,
        interface: &Interface,
        number: u32,
        socket: OwnedFd,
        ring_entries: u32,
        memory: &'static Memory,
    ) -> Result<Opened<Box<dyn InheritedQueue>>, OpenError>;

    /// Puts its filter in the place of the predecessor's, on these sockets.
    fn switch(&mut self, interface: &Interface, sockets: &[Arc<OwnedFd>]) -> Result<(), OpenError>;

    /// What keeps the filter attached, for a successor; None where nothing does.
    fn link(&self) -> Option<BorrowedFd<'_>>;
}

/// A queue with its socket.
pub(crate) struct Opened<Q> {
    pub(crate) queue: Q,
    pub(crate) socket: Arc<OwnedFd>,
    /// The device itself writes frames into our memory.
    pub(crate) zero_copy: bool,
}

/// A queue whose predecessor may still use it.
pub(crate) trait InheritedQueue: Send {
    /// Goes on where the predecessor has stopped.
    fn resume(self: Box<Self>, pool: &mut Pool) -> Box<dyn Queue>;
}

/// For drivers without interfaces of the kernel.
pub(crate) fn opens_nothing(config: &DeviceConfig, _: u32) -> Result<Device, OpenError> {
    Err(OpenError::NotOfTheKernel { name: config.interface.clone(), driver: config.driver.name })
}

/// For drivers without take-over.
pub(crate) fn inherits_nothing(inheritance: Inheritance) -> Result<Device, OpenError> {
    Err(OpenError::NotHandedOver { name: inheritance.interface.name, what: "device" })
}

/// One worker's packet memory while its queues are opened.
pub(crate) struct Lane {
    pub(crate) pool: Pool,
    /// What drivers keep of the memory, each in a type of its own.
    registrations: Vec<Box<dyn Any>>,
}

impl Lane {
    /// Memory of the first device's driver, for that many chunks in rings and
    /// those in hand.
    pub(crate) fn new(
        worker: u32,
        devices: &[Device],
        chunks_in_rings: usize,
    ) -> Result<Lane, OpenError> {
        let chunks = CHUNKS_IN_HAND + chunks_in_rings;
        let no_memory = |error| OpenError::Memory { worker, bytes: chunks * CHUNK_BYTES, error };
        let first = devices.first().ok_or(OpenError::NoInterface)?;
        let pool = (first.driver.pool)(chunks).map_err(no_memory)?;
        Ok(Lane { pool, registrations: Vec::new() })
    }

    /// Bytes of it.
    pub(crate) fn bytes(chunks_in_rings: usize) -> u64 {
        mapped_bytes(CHUNKS_IN_HAND + chunks_in_rings) as u64
    }

    /// What a driver keeps of the memory for all its queues on it, made at
    /// the first one; and the pool.
    pub(crate) fn registered<T: Any>(
        &mut self,
        make: impl FnOnce(&'static Memory) -> T,
    ) -> (&mut T, &mut Pool) {
        let at = self.registrations.iter().position(|registration| registration.is::<T>());
        let at = at.unwrap_or_else(|| {
            self.registrations.push(Box::new(make(self.pool.memory())));
            self.registrations.len() - 1
        });
        let registration = self.registrations[at].downcast_mut().expect("it is of this type");
        (registration, &mut self.pool)
    }
}

impl Device {
    pub(crate) fn new(
        driver: &'static Driver,
        interface: Interface,
        filter: Option<Filter>,
        claim: Claim,
        port: Box<dyn Port>,
    ) -> Device {
        let (kernel_cache, sockets, copied_queues) = (None, Vec::new(), 0);
        Device { driver, interface, filter, claim, kernel_cache, sockets, copied_queues, port }
    }

    pub(crate) fn with_kernel_cache(self, kernel_cache: Option<CacheMemory>) -> Device {
        Device { kernel_cache, ..self }
    }

    /// Opens a queue. All must be opened, each once, in their order.
    pub(crate) fn queue(
        &mut self,
        number: u32,
        lane: &mut Lane,
        options: &QueueOptions,
    ) -> Result<Box<dyn Queue>, OpenError> {
        let opened = self.port.queue(&self.interface, number, lane, options)?;
        Ok(self.keep(opened))
    }

    /// The queue on a predecessor's socket.
    pub(crate) fn inherit_queue(
        &mut self,
        number: u32,
        socket: OwnedFd,
        ring_entries: u32,
        memory: &'static Memory,
    ) -> Result<Box<dyn InheritedQueue>, OpenError> {
        let inherited =
            self.port.inherit_queue(&self.interface, number, socket, ring_entries, memory);
        Ok(self.keep(inherited?))
    }

    fn keep<Q>(&mut self, opened: Opened<Q>) -> Q {
        self.copied_queues += usize::from(!opened.zero_copy);
        self.sockets.push(opened.socket);
        opened.queue
    }

    /// True if all its queues are zero-copy, as the driver granted it.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.copied_queues == 0
    }

    /// How frames are got from it.
    #[must_use]
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// How the XDP filter is attached; None: the driver has none.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.port.mode()
    }

    /// The interface as it was when opened.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// What it takes from the kernel, to change; None: it takes all frames.
    pub fn filter(&mut self) -> Option<&mut Filter> {
        self.filter.as_mut()
    }

    /// What it takes from the kernel, to read; None: it takes all frames.
    #[must_use]
    pub fn filter_ref(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// The memory of its kernel flow cache; None: it has none.
    #[must_use]
    pub fn kernel_cache(&self) -> Option<&CacheMemory> {
        self.kernel_cache.as_ref()
    }

    /// Puts our filter in the place of the predecessor's, which did the same.
    pub fn switch(&mut self) -> Result<(), OpenError> {
        self.claim.sign();
        self.port.switch(&self.interface, &self.sockets)
    }

    /// What holds it beside its sockets, for a successor: claim and link.
    #[must_use]
    pub fn held(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.claim.fd(), self.port.link())
    }

    /// The sockets of its queues, in their order, for a successor.
    #[must_use]
    pub fn sockets(&self) -> &[Arc<OwnedFd>] {
        &self.sockets
    }
}
