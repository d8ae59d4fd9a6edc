//! Devices: where frames come from and go to.
//!
//! Home of the project's unsafe code, one kernel concept per file. Knows
//! frames and batches (`wire`), and nothing of plans or of the datapath.
#![warn(missing_docs)]

mod claim;
pub mod device;
pub mod drivers;
mod error;
pub mod filter;
pub mod folder;
pub mod interface;
pub mod mapping;
pub mod memory;
pub mod open;
pub mod pcap;
pub mod take_over;
pub mod tap;
pub mod too_big;
pub mod wait;

pub use claim::ClaimError;
pub use device::{Meter, Queue, QueueCounters};
pub use drivers::Driver;
pub use ebpf::xdp::{Mode, ModePreference};
pub use error::OpenError;
pub use filter::{Filter, FilterCounters, FilterError};
pub use interface::{Interface, InterfaceError};
pub use memory::{Chunk, Pool};
pub use open::{Device, DeviceConfig, QueueOptions, SharedIo, WorkerIo, open, open_shared};
pub use tap::{Tap, TapError};
pub use wire::IpPrefix;
