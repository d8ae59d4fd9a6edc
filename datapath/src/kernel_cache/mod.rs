//! The kernel flow cache: decisions that workers have made often, in memory that
//! an interface's filter reads, which then sends a flow's plain data packets itself
//! (nic/bpf/cache.h): in the driver (XDP), or in traffic control.
//!
//! ```text
//!  frame ─► five-tuple ─► SipHash ─► bucket in the region ─► entry ─► target ─► sent
//!            plain, data              of its RX queue         │        │
//!    │                                written by that      writes    written by
//!    └ anything else: AF_XDP          queue's worker       the time  the control thread
//!      socket ─► worker                                    of use
//!
//!  stateless services: destination ─► hash ─► the service's bucket ─► target ─► sent
//! ```
//!
//! Guarantees, each held by whom it names:
//!
//! - An entry is a copy of what [`crate::forward`] decides about data of its flow, so an
//!   empty cache is always right (the worker, which enters connections while data changes
//!   nothing in their own entries).
//! - Each device's filter has regions and targets of its own; a target has the same number
//!   and generation in all, and its headers where the filter can send by its next hop's
//!   device ([`by_device`], [`targets`]).
//! - One region has one writer, the worker of its queue. Its readers, of which traffic
//!   control may have several at once, write the time of use and nothing else.
//! - An entry whose target is of another generation is a miss. So a plan, a drain or
//!   a next hop changes targets, in one store each, and never entries (the control
//!   thread; see [`targets`]).
//! - What a bucket of a stateless service is sent by is what [`crate::forward`] decides
//!   about all of its packets (the control thread; see [`services`]).
//! - A connection's own entry lives at least as long as the cached one is used (the
//!   worker's sweep; see [`entries`]).
//!
//! Only where loads are seen in order, and stores too (x86): [`IS_SUPPORTED`]. Knows
//! no map of the kernel: memory comes in as words.

mod aes;
pub mod by_device;
pub mod entries;
pub mod limits;
mod note;
pub mod services;
mod target_fields;
pub mod targets;
mod tuple;

pub use aes::write_hash;
pub use by_device::EntryWriters;
pub use entries::{CacheKey, CacheRegion, EntryWriter, Pause, Validity, idle_ms, pause};
pub(crate) use note::ChosenPacket;
pub use target_fields::TARGET_WORDS;
pub use targets::{KernelTargets, TargetMemory, TargetRef, TargetWriter, Targets};

/// The kernel's program reads by plain loads, which only a processor that keeps the
/// order of loads, and that of stores, makes right.
pub const IS_SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Words of a cache line.
pub const LINE_WORDS: usize = 8;
