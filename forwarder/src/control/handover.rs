//! What a running forwarder passes to its successor: this is the description; the descriptors
//! are sent with it. `lend` makes and uses it, `takeover` transfers it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use plan::proto;
use serde::{Deserialize, Serialize};

/// What must be the same in both, because sockets, memory or entries of the
/// connection tables depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    /// Names the secret that hashes.
    pub key_id: String,
    /// Where the connection tables are.
    pub tables_dir: PathBuf,
    /// Whether sockets poll busily.
    pub busy_poll: bool,
    /// Workers behind a steering thread, if it was said how many.
    pub steered_workers: Option<usize>,
    /// Bytes of a chunk of packet memory.
    pub chunk_bytes: usize,
}

/// What forwards. Its descriptors, in this order: each memory; of each device
/// claim, link (if any) and sockets; each TAP that there is; the probes' device, if
/// there is one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Running {
    /// The plan.
    pub plan: proto::Plan,
    /// Workers; one thread receives for all of them if there is one memory
    /// and `shared`.
    pub workers: usize,
    /// `steering: software`.
    pub shared: bool,
    /// Packet memory of each worker; of all, if shared.
    pub memories: Vec<Memory>,
    /// In their order.
    pub devices: Vec<Device>,
    /// Entries of each ring of an AF_XDP socket.
    pub ring_entries: u32,
    /// Targets without a next hop: not worth waiting for.
    pub unresolved: BTreeSet<IpAddr>,
    /// Nothing: a successor of the former version does not start without it. It goes with
    /// the next release.
    #[serde(default)]
    pub path_mtus: BTreeMap<IpAddr, u16>,
    /// Whether the probes' device comes with it.
    #[serde(default)]
    pub has_probe_device: bool,
}

/// A piece of packet memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Chunks in it.
    pub chunks: usize,
    /// Made of huge pages.
    pub huge: bool,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its interface.
    pub interface: String,
    /// Its driver; None: of a build before drivers had names.
    #[serde(default)]
    pub driver: Option<String>,
    /// The mode of its XDP filter; None: the driver has none.
    pub xdp: Option<Xdp>,
    /// Whether a link comes with it.
    pub has_link: bool,
    /// Its sockets.
    pub sockets: usize,
    /// Whether a TAP comes with it.
    pub has_tap: bool,
}

/// How an XDP filter is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Xdp {
    /// In the driver.
    Native,
    /// In the kernel's generic path.
    Generic,
}

/// What only a predecessor at rest knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiescedState {
    /// When its threads began to rest, on the clock that processes share.
    pub since_ns: u64,
    /// Connections of each worker's table, by service; None: they could
    /// not be counted.
    pub connections: Option<Vec<Vec<(u16, u32)>>>,
}
