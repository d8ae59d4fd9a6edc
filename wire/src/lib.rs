//! Bytes and their meaning: one protocol header per file.
//!
//! Guarantees: no unsafe, no allocation, no panic on any input. Parsing says
//! why it failed. Knows nothing of plans, tables or devices.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod error;
pub mod ethernet;
pub mod flow;
pub mod frame;
pub mod headers;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod plain;
pub mod prefix;
pub mod quic;
pub mod tcp;
pub mod tcp_options;
pub mod tunnel;
pub mod udp;

pub use error::ParseError;
pub use ethernet::{EtherType, MacAddress};
pub use flow::{FlowKey, SocketV4, Target};
pub use frame::{BATCH_MAX, Batch, CHUNK_BYTES, FRAME_BYTES_MAX, Frame, HEADROOM_BYTES};
pub use headers::{Headers, PacketMeta};
pub use ip::{Family, Fragment, Protocol};
pub use prefix::{IpPrefix, PrefixError};
pub use tunnel::Encap;
