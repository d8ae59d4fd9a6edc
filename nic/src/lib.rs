//! Devices: where frames come from and go to.
//!
//! Home of the project's unsafe code, one kernel concept per file. Knows
//! frames and batches (`wire`), and nothing of plans or of the datapath.
#![warn(missing_docs)]

pub mod device;
pub mod interface;
pub mod mapping;
pub mod memory;
pub mod memory_device;
pub mod pcap;
mod prefix;
pub mod wait;

pub use device::{Meter, Queue, QueueCounters};
pub use interface::{Interface, InterfaceError};
pub use memory::{Chunk, Pool};
pub use prefix::{IpPrefix, PrefixError};
