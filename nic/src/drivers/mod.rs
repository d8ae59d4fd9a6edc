//! The drivers: how frames are got from an interface, or from elsewhere. One
//! folder each.

pub mod af_packet;
pub mod af_xdp;
pub mod memory;
pub mod pcap;
