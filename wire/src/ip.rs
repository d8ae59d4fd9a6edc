//! What IPv4 and IPv6 have in common.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Bits of an address.
    #[inline]
    #[must_use]
    pub fn address_bits(self) -> u32 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// An address as a number, for comparing and hashing; its family stands
/// beside it. IPv4 fills the low 32 bits.
pub type AddressBits = u128;

/// An address as a number.
#[must_use]
pub fn address_bits(address: IpAddr) -> AddressBits {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// A number as an address.
#[must_use]
pub fn address(family: Family, bits: AddressBits) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

/// An IP protocol number (IANA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// IPv4 in IP.
    pub const IPIP: Protocol = Protocol(4);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// IPv6 in IP.
    pub const IPV6: Protocol = Protocol(41);
    /// Generic routing encapsulation.
    pub const GRE: Protocol = Protocol(47);
    /// ICMPv6.
    pub const ICMPV6: Protocol = Protocol(58);
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: Protocol = Protocol(59);
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Protocol::TCP => f.write_str("tcp"),
            Protocol::UDP => f.write_str("udp"),
            Protocol::ICMP => f.write_str("icmp"),
            Protocol::ICMPV6 => f.write_str("icmpv6"),
            Protocol(number) => write!(f, "{number}"),
        }
    }
}

/// Where a packet stands in its datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fragment {
    /// A whole datagram, RFC 6946's atomic fragments included.
    #[default]
    Whole,
    /// The first of several: it has the transport header.
    First {
        /// The datagram's identification.
        id: u32,
    },
    /// A later one: it has no transport header.
    Later {
        /// The datagram's identification.
        id: u32,
    },
}
