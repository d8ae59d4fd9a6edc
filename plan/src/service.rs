//! A service and a backend for the packet path.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use wire::ip::AddressBits;
use wire::{Encap, Family};

use crate::group::Group;
use crate::ids::{BackendId, ServiceId};
use crate::quic_lb::QuicLb;

/// A service of the plan. What most of its packets need is in
/// [`crate::Matched`], too.
#[derive(Debug)]
pub struct Service {
    /// Its id, stable from plan to plan.
    pub id: ServiceId,
    /// Its name.
    pub name: String,
    /// Its members and what selects among them.
    pub group: Arc<Group>,
    /// Whether its connections are tracked.
    pub tracking: Tracking,
    /// QUIC connection ids that name its backends.
    pub quic_lb: Option<QuicLb>,
    /// What of a packet selects.
    pub affinity: Affinity,
    /// How packets travel to the backend.
    pub tunnel: TunnelProfile,
    /// When tracked connections expire.
    pub timeouts: Timeouts,
    /// Connections that may be tracked on this machine.
    pub quota: u32,
    /// Clusters that take over when no backend is left, in order.
    pub spill: Vec<SpillTo>,
    /// Where this service's members begin in counters: of its group, together
    /// with the group's other services, or its own.
    pub first_member: u32,
    /// Packets without an entry name the backends that earlier tables had for them;
    /// None: they do not.
    pub second_chance: Option<SecondChance>,
}

/// A second chance for connections that no entry knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecondChance {
    /// The most packets of a second that name other backends, on this machine.
    pub packets_per_second: NonZeroU64,
}

/// How packets travel to backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelProfile {
    /// The encapsulation; None, which configs call [`L2`]: frames go to the backend's
    /// Ethernet address.
    pub encap: Option<Encap>,
    /// The outer header's DSCP.
    pub dscp: Dscp,
    /// Bytes of the longest option that a packet may carry. What is reported to
    /// clients as MTU always leaves room for it, lest a connection breaks when the
    /// first of its packets has to carry one.
    pub option_bytes: u8,
}

/// What no encapsulation is called in configs.
pub const L2: &str = "l2";

/// What an encapsulation, or none, is called in configs.
#[must_use]
pub fn encap_name(encap: Option<Encap>) -> &'static str {
    encap.map_or(L2, Encap::name)
}

/// Another cluster's prefix: packets go to the address there that has the
/// VIP's suffix (paper 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpillTo {
    /// Family of the prefix.
    pub family: Family,
    /// The prefix.
    pub network: AddressBits,
    /// The bits of the suffix.
    pub host_mask: AddressBits,
    /// An address in it that its next hop is looked up by.
    pub address: IpAddr,
    /// The controller's probes of that cluster fail.
    pub down: bool,
}

/// Whether connections are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tracking {
    /// An entry in a connection table decides first.
    #[default]
    Tracked,
    /// Each packet is decided alone, by its bucket.
    Stateless,
    /// The same, but where a QUIC connection id names a backend, by that.
    StatelessQuic,
    /// The same, but where a connection of Multipath TCP or an echoed timestamp names the
    /// bucket, by that.
    StatelessMultipath,
    /// Each packet goes to the backend whose port it is to. Of matches, not of services.
    JoinPort,
}

impl Tracking {
    /// No connection is tracked.
    #[inline(always)]
    #[must_use]
    pub fn is_stateless(self) -> bool {
        self != Tracking::Tracked
    }
}

/// What of a packet selects a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// The five-tuple.
    Flow,
    /// The source address alone.
    Client,
}

/// The outer header's DSCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dscp {
    /// The inner packet's.
    Copy,
    /// This one, 0 to 63.
    Set(u8),
}

/// When tracked connections expire, in milliseconds without a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Established TCP.
    pub tcp_ms: u32,
    /// Not yet confirmed, of any protocol.
    pub unconfirmed_ms: u32,
    /// Closing TCP, after a FIN.
    pub closing_ms: u32,
    /// Established UDP, and whatever is not TCP.
    pub udp_ms: u32,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { tcp_ms: 900_000, unconfirmed_ms: 30_000, closing_ms: 120_000, udp_ms: 60_000 }
    }
}

/// A backend of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Its id, stable from plan to plan.
    pub id: BackendId,
    /// Its name.
    pub name: String,
    /// Where packets are tunnelled to.
    pub address: IpAddr,
}
