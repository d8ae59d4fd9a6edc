//! Devices: where frames come from and go to.
//!
//! Home of the project's unsafe code, one kernel concept per file. Knows
//! frames and batches (`wire`), and nothing of plans or of the datapath.
#![warn(missing_docs)]

pub mod pcap;
