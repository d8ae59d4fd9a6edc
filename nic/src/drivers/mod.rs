//! The drivers: how frames are got from an interface, or from elsewhere. One
//! folder each, and one line in [`ALL`].
//!
//! A driver says as a value what it can do ([`Driver`]). What is outside its
//! folder goes by that, never by which driver it is.

pub mod af_packet;
pub mod af_xdp;
pub mod memory;
pub mod pcap;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ebpf::xdp::Mode;

use crate::device::Queue;
use crate::error::OpenError;
use crate::interface::Interface;
use crate::memory::{Memory, Pool};
use crate::open::{Device, DeviceConfig, Lane, QueueOptions};
use crate::take_over::Held;

/// Every driver.
pub static ALL: [&Driver; 4] =
    [&af_xdp::DRIVER, &af_packet::DRIVER, &memory::DRIVER, &pcap::DRIVER];

/// The driver of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Driver> {
    ALL.into_iter().find(|driver| driver.name == name)
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

/// Where none is named.
impl Default for &'static Driver {
    fn default() -> &'static Driver {
        &af_xdp::DRIVER
    }
}

/// What a predecessor hands over of an interface, its sockets apart.
pub(crate) struct Inheritance {
    pub(crate) interface: Interface,
    /// How its XDP filter is attached, where it has one.
    pub(crate) mode: Option<Mode>,
    pub(crate) held: Held,
    pub(crate) queues: u32,
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
    ) -> Result<(Box<dyn Queue>, Arc<OwnedFd>), OpenError>;

    /// The queue on a predecessor's socket, whose rings have that many entries.
    fn inherit_queue(
        &mut self,
        interface: &Interface,
        number: u32,
        socket: OwnedFd,
        ring_entries: u32,
        memory: &'static Memory,
    ) -> Result<(Box<dyn InheritedQueue>, Arc<OwnedFd>), OpenError>;

    /// Puts its filter in the place of the predecessor's, on these sockets.
    fn switch(&mut self, interface: &Interface, sockets: &[Arc<OwnedFd>]) -> Result<(), OpenError>;

    /// What keeps the filter attached, for a successor; None where nothing does.
    fn link(&self) -> Option<BorrowedFd<'_>>;
}

/// A queue whose predecessor may still use it.
pub(crate) trait InheritedQueue: Send {
    /// Goes on where the predecessor has stopped.
    fn resume(self: Box<Self>, pool: &mut Pool) -> Box<dyn Queue>;
}

/// For drivers without interfaces of the kernel.
fn opens_nothing(config: &DeviceConfig, _: u32) -> Result<Device, OpenError> {
    Err(OpenError::NotOfTheKernel { name: config.interface.clone(), driver: config.driver.name })
}

/// For drivers without take-over.
fn inherits_nothing(inheritance: Inheritance) -> Result<Device, OpenError> {
    Err(OpenError::NotHandedOver { name: inheritance.interface.name, what: "device" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_found_by_its_name_and_by_no_other() {
        for driver in ALL {
            assert_eq!(named(driver.name), Some(driver));
            assert_eq!(ALL.iter().filter(|other| other.name == driver.name).count(), 1);
        }
        assert_eq!(named("no_such_driver"), None);
        assert_eq!(<&Driver>::default(), &af_xdp::DRIVER);
    }

    #[test]
    fn a_driver_without_interfaces_of_the_kernel_opens_none() {
        let without: Vec<&Driver> =
            ALL.into_iter().filter(|driver| !driver.abilities.kernel_interface).collect();
        assert_eq!(without, [&memory::DRIVER, &pcap::DRIVER]);
        for driver in without {
            let config = DeviceConfig { interface: "lo".into(), driver, ..DeviceConfig::default() };
            let error = crate::open(&[config], &QueueOptions::default()).err().unwrap();
            assert!(matches!(error, OpenError::NotOfTheKernel { .. }), "{error}");
        }
    }

    #[test]
    fn every_driver_maps_the_memory_that_its_queues_keep_busy() {
        for driver in ALL {
            let chunks = (driver.chunks)(&QueueOptions { ring_entries: 8, ..Default::default() });
            assert_eq!((driver.pool)(chunks).unwrap().free(), chunks, "{driver}");
        }
    }
}
