//! The entries of the programs' tables and rings. Each is also a struct in bpf/;
//! program/tests/records.rs checks that they are equal.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An address of either family: `struct in6_addr`. IPv4 is mapped (RFC 4291, section 2.5.5.2).
pub type Address = [u8; 16];

/// As the programs have it.
pub fn mapped(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// As everybody else has it.
pub fn unmapped(address: Address) -> IpAddr {
    Ipv6Addr::from(address).to_canonical()
}

/// A connection, or a flow of datagrams: `struct flow`, as packets from the client have it.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub struct Flow {
    pub client: Address,
    pub vip: Address,
    pub client_port: U16,
    pub vip_port: U16,
}

impl Flow {
    /// Where the client's packets go.
    pub fn service(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.vip), self.vip_port.get())
    }

    /// True if both ends are of IPv4.
    pub fn is_v4(&self) -> bool {
        unmapped(self.client).is_ipv4() && unmapped(self.vip).is_ipv4()
    }
}

/// Where clients reach a service with Multipath TCP: `struct service`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct Service {
    pub address: Address,
    pub port: U16,
    pub zero: u16,
}

/// How long a service's clients waited: `struct responses`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct Responses {
    pub classes: [u64; crate::responses::CLASSES],
    pub nanoseconds: u64,
    pub resets: u64,
}

/// Which flows are measured: `struct sampling`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct Sampling {
    pub mask: u32,
    pub seed: u32,
}

/// How another agent is reached, from here: `struct agent`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
pub struct Agent {
    /// Of the next hop; zero: not known.
    pub mac: [u8; 6],
    pub own_mac: [u8; 6],
    pub mtu: u32,
    pub source: Address,
}

/// An Ethernet address of this host: `struct mac`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable)]
pub struct Mac {
    pub words: [u8; 6],
    pub unused: u16,
}

/// Where packets of a flow go: `struct rule`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct Rule {
    pub agent: Address,
    /// In seconds, as `now_seconds()`.
    pub until: u32,
    pub zero: u32,
}

/// A connection or a handshake is new whose bucket another agent has: `struct rule_event`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RuleEvent {
    pub flow: Flow,
    pub owner: Address,
    pub is_connection: u32,
}

/// What is in front of a SYN that the program hands over: `struct handed_syn`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct HandedSyn {
    /// That a load balancer chose; 0: it opens no connection of several paths.
    pub key: U64,
    pub bytes: u32,
    pub zero: u32,
}

/// What the program knows of the injector: `struct injector`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct Injector {
    /// In ns; 0: it does not live.
    pub heartbeat: u64,
    /// SYNs in a window.
    pub syns_max: u64,
}

/// The SYN that the kernel is being given: `struct injected_syn`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct InjectedSyn {
    pub flow: Flow,
    pub sequence: u32,
    pub key: U64,
}

/// A handshake that was given to the kernel: `struct keyed_handshake`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct KeyedHandshake {
    pub key: U64,
    /// Of the SYN.
    pub sequence: u32,
    /// `enum progress`; 0: the client has not answered.
    pub progress: u32,
}

/// A connection's clock: `struct clock`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct Clock {
    pub sent: u32,
    pub echoed: u32,
    pub offset: u32,
    pub since: u32,
    pub offset_before: u32,
    pub bits: u16,
    pub has_offset: u8,
    pub has_offset_before: u8,
}

/// What a SYN brought for its connection: `struct opening`, which tests alone write.
#[cfg(test)]
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct Opening {
    pub owner: Address,
    pub key: u64,
    pub bucket: u16,
    pub bits: u16,
    pub version: u8,
    pub zero: [u8; 3],
}
