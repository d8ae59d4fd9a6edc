//! Devices: where frames come from and go to.
//!
//! Contains the project's unsafe code, one kernel concept per file. Knows frames and batches
//! (`wire`), but no plans and no datapath.
#![warn(missing_docs)]
#![allow(unsafe_code, reason = "rings and packet memory are shared with the kernel")]

mod claim;
pub mod device;
pub mod driver;
pub mod drivers;
mod error;
pub mod filter;
pub mod filter_run;
pub mod folder;
pub mod interface;
pub mod kernel_cache;
mod link_sender;
pub mod mapping;
pub mod memory;
pub mod open;
pub mod pcap;
pub mod take_over;
pub mod tap;
pub mod too_big;
mod tun;
pub mod wait;

pub use claim::ClaimError;
pub use device::{Meter, Queue, QueueCounters};
pub use driver::{CacheSends, Device, DeviceConfig, Driver, QueueOptions};
pub use ebpf::driver_of;
pub use ebpf::xdp::{Mode, ModePreference};
pub use error::{OpenError, ProgramFailure};
pub use filter::{Filter, FilterCounters, FilterError, FilterReader};
pub use interface::{Interface, InterfaceError};
pub use link_sender::LinkSender;
pub use memory::{Chunk, Pool};
pub use open::{SharedIo, WorkerIo, needed, needed_shared, open, open_shared};
pub use tap::{Tap, TapError};
pub use tun::Tun;
pub use wire::IpPrefix;
