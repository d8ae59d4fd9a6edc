//! Tunnels: the headers between an outer IP header and the packet inside. Each has one
//! description, in its own file; encapsulation, decapsulation, path MTU, overheads, `explain`
//! and the headers of the eBPF programs use it.
//!
//! ```text
//!  gre      |outer IP|GRE|inner IP ...........|
//!  ipip     |outer IP|inner IP ...........|
//!  gue      |outer IP|UDP|GUE|inner IP ...........|
//!  geneve   |outer IP|UDP|Geneve|inner IP ...........|
//! ```

pub mod multipath_option;
pub mod route_option;

use arrayvec::ArrayVec;

use crate::ethernet::EtherType;
use crate::flow::FlowKey;
use crate::ip::{Family, Protocol};
use crate::udp;

/// A line for each kind: its value, its file and what it is.
macro_rules! tunnels {
    ($($variant:ident $module:ident $what:literal)*) => {
        $(pub mod $module;)*

        /// A kind of tunnel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Encap {
            $(#[doc = $what] $variant,)*
        }

        impl Encap {
            /// Every kind there is.
            pub const ALL: &'static [Encap] = &[$(Encap::$variant,)*];

            /// What is particular to it.
            #[must_use]
            pub const fn description(self) -> &'static Description {
                match self { $(Encap::$variant => &$module::DESCRIPTION,)* }
            }
        }
    };
}

tunnels! {
    Gre gre "Generic routing encapsulation, RFC 2784."
    Ipip ipip "IP in IP: RFC 2003, RFC 2473, RFC 4213."
    Gue gue "Generic UDP encapsulation, variant 0."
    Geneve geneve "Geneve, RFC 8926."
}

/// Bytes of the longest options that a Geneve tunnel of ours has: one of each type.
pub const OPTIONS_BYTES_MAX: usize = route_option::BYTES_MAX + multipath_option::BYTES_MAX;

/// Options of a Geneve tunnel as bytes, one after the other.
pub type Options = ArrayVec<u8, OPTIONS_BYTES_MAX>;

/// Everything that is particular to a kind of tunnel.
#[derive(Debug)]
pub struct Description {
    /// Its name in configs.
    pub name: &'static str,
    /// What its packets are recognised by.
    pub carrier: Carrier,
    /// Bytes of the header as we write it, a UDP header in front not counted.
    /// A multiple of four.
    pub header_bytes: usize,
    /// The header says how many further encapsulations are permitted (RFC 1701).
    pub recursion_control: bool,
    /// Writes that header.
    emit: fn(&mut [u8], Inside),
    /// Reads a header with the options it has.
    parse: fn(Protocol, &[u8]) -> Option<Parsed>,
    /// False if a checksum in the header, over all of the payload, is wrong.
    is_checksum_valid: fn(&[u8]) -> bool,
}

/// What a tunnel's packets are recognised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The outer header's protocol, by the family of the packet inside.
    Ip {
        /// With IPv4 inside.
        v4: Protocol,
        /// With IPv6 inside.
        v6: Protocol,
    },
    /// A UDP destination port.
    Udp {
        /// The port.
        port: u16,
    },
}

/// What is inside a tunnel that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside {
    /// The family of the packet inside.
    pub family: Family,
    /// How many further encapsulations are permitted, where the header says it.
    pub recursion: u8,
}

/// A tunnel's header that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parsed {
    /// Bytes between the outer IP header and the packet inside.
    pub header_bytes: usize,
    /// What is inside.
    pub inner: EtherType,
    /// How many further encapsulations are permitted; zero where the header
    /// does not say it.
    pub recursion: u8,
}

impl Encap {
    /// Its name in configs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// The kind of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Encap> {
        Encap::ALL.iter().copied().find(|encap| encap.name() == name)
    }

    /// The kind of tunnel that packets with this outer protocol and destination
    /// port are of.
    #[must_use]
    pub fn of(key: &FlowKey) -> Option<Encap> {
        Encap::ALL.iter().copied().find(|encap| match encap.description().carrier {
            Carrier::Ip { v4, v6 } => key.protocol == v4 || key.protocol == v6,
            Carrier::Udp { port } => key.protocol == Protocol::UDP && key.destination_port == port,
        })
    }

    /// The outer header's protocol, for a packet of that family inside.
    #[must_use]
    pub fn protocol(self, inner: Family) -> Protocol {
        match (self.description().carrier, inner) {
            (Carrier::Ip { v4, .. }, Family::V4) => v4,
            (Carrier::Ip { v6, .. }, Family::V6) => v6,
            (Carrier::Udp { .. }, _) => Protocol::UDP,
        }
    }

    /// Bytes that we write between the outer IP header and the packet inside.
    #[must_use]
    pub const fn front_bytes(self) -> usize {
        let description = self.description();
        description.header_bytes
            + match description.carrier {
                Carrier::Ip { .. } => 0,
                Carrier::Udp { .. } => udp::HEADER_BYTES,
            }
    }

    /// Writes what stands between the outer IP header and the packet inside at
    /// the beginning of `to`. Of UDP, source port, length and checksum are zero.
    ///
    /// # Panics
    /// If `to` has fewer than [`Encap::front_bytes`].
    pub fn emit(self, to: &mut [u8], inside: Inside) {
        let description = self.description();
        let to = match description.carrier {
            Carrier::Ip { .. } => to,
            Carrier::Udp { port } => {
                let (header, rest) = to.split_at_mut(udp::HEADER_BYTES);
                header.copy_from_slice(&udp::emit(0, port, 0, 0));
                rest
            }
        };
        (description.emit)(&mut to[..description.header_bytes], inside);
    }

    /// Reads what follows an outer IP header of that `protocol`; None: it is
    /// malformed, or not understood.
    #[must_use]
    pub fn parse(self, protocol: Protocol, payload: &[u8]) -> Option<Parsed> {
        let description = self.description();
        let before = self.front_bytes() - description.header_bytes;
        let parsed = (description.parse)(protocol, payload.get(before..)?)?;
        Some(Parsed { header_bytes: before + parsed.header_bytes, ..parsed })
    }

    /// False if the header has a checksum and it is wrong.
    #[must_use]
    pub fn is_checksum_valid(self, payload: &[u8]) -> bool {
        (self.description().is_checksum_valid)(payload)
    }
}

/// The longest [`Encap::front_bytes`].
pub const FRONT_BYTES_MAX: usize = {
    let (mut longest, mut at) = (0, 0);
    while at < Encap::ALL.len() {
        let bytes = Encap::ALL[at].front_bytes();
        assert!(bytes.is_multiple_of(4), "checksums and copies go by words");
        longest = if bytes > longest { bytes } else { longest };
        at += 1;
    }
    longest
};

/// True for the UDP destination port of a tunnel.
#[inline(always)]
#[must_use]
pub const fn is_port(port: u16) -> bool {
    let mut at = 0;
    while at < Encap::ALL.len() {
        if let Carrier::Udp { port: of_tunnel } = Encap::ALL[at].description().carrier
            && of_tunnel == port
        {
            return true;
        }
        at += 1;
    }
    false
}

/// For headers without one.
fn no_checksum(_: &[u8]) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tunnel_reads_what_it_writes_and_is_recognised() {
        for &encap in Encap::ALL {
            assert_eq!(Encap::by_name(encap.name()), Some(encap));
            for family in [Family::V4, Family::V6] {
                let recursion = if encap.description().recursion_control { 5 } else { 0 };
                let mut header = vec![0xff; encap.front_bytes()];
                encap.emit(&mut header, Inside { family, recursion });
                let protocol = encap.protocol(family);
                let inner = EtherType::of(family);
                let expected = Parsed { header_bytes: header.len(), inner, recursion };
                assert_eq!(encap.parse(protocol, &header), Some(expected), "{encap:?}");
                assert!(encap.is_checksum_valid(&header));
                for cut in 0..header.len() {
                    assert_eq!(encap.parse(protocol, &header[..cut]), None, "{encap:?} {cut}");
                }
                let destination_port = match encap.description().carrier {
                    Carrier::Ip { .. } => 0,
                    Carrier::Udp { port } => port,
                };
                assert_eq!(is_port(destination_port), protocol == Protocol::UDP);
                let key = FlowKey {
                    family,
                    protocol,
                    source: 1,
                    destination: 2,
                    source_port: 3,
                    destination_port,
                };
                assert_eq!(Encap::of(&key), Some(encap));
                assert_eq!(Encap::of(&FlowKey { protocol: Protocol::TCP, ..key }), None);
            }
        }
    }
}
