//! The five-tuple, and its fixed layout as bytes.

use std::num::NonZeroU64;

use crate::ip::{AddressBits, Family, Protocol};

/// Bytes of one AES block.
pub const BLOCK_BYTES: usize = 16;

/// The five-tuple of a packet. Ports are zero where the protocol has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Family of both addresses.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Source address.
    pub source: AddressBits,
    /// Destination address.
    pub destination: AddressBits,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// Where a packet is to: what its service is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Destination address.
    pub address: AddressBits,
    /// Its family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Destination port; zero where the protocol has none.
    pub port: u16,
}

/// Where an IPv4 packet is to, in one word: from its highest byte on the
/// destination address, the family (4), the protocol, the destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketV4(NonZeroU64);

impl SocketV4 {
    /// Of a packet whose destination address, source port and destination
    /// port, which follow each other without options, are `tail`.
    #[inline(always)]
    pub(crate) fn of_packet(tail: [u8; 8], protocol: Protocol) -> SocketV4 {
        const SOURCE_PORT: u64 = 0xffff << 16;
        let middle = u64::from(protocol.0) << 16 | 4 << 24;
        let word = u64::from_be_bytes(tail) & !SOURCE_PORT | middle;
        SocketV4(NonZeroU64::new(word).expect("the family is no zero"))
    }

    /// Of a target; None: it is IPv6.
    #[inline]
    #[must_use]
    pub fn of(target: &Target) -> Option<SocketV4> {
        let (address, port) = ((target.address as u32).to_be_bytes(), target.port.to_be_bytes());
        let mut tail = [0; 8];
        tail[..4].copy_from_slice(&address);
        tail[6..].copy_from_slice(&port);
        (target.family == Family::V4).then(|| SocketV4::of_packet(tail, target.protocol))
    }

    /// The target.
    #[must_use]
    pub fn target(self) -> Target {
        let [a, b, c, d, _, protocol, high, low] = self.0.get().to_be_bytes();
        Target {
            address: u32::from_be_bytes([a, b, c, d]).into(),
            family: Family::V4,
            protocol: Protocol(protocol),
            port: u16::from_be_bytes([high, low]),
        }
    }

    /// The word: never zero, and another for each target.
    #[inline(always)]
    #[must_use]
    pub fn word(self) -> u64 {
        self.0.get()
    }
}

impl FlowKey {
    /// Where the packet is to.
    #[inline]
    #[must_use]
    pub fn target(&self) -> Target {
        Target {
            address: self.destination,
            family: self.family,
            protocol: self.protocol,
            port: self.destination_port,
        }
    }

    /// The layout that is hashed, forever (see `vectors/flow_hash.json`):
    /// family (4), protocol, source, destination, ports, zeros; one block.
    #[inline]
    #[must_use]
    pub fn block_v4(&self) -> [u8; BLOCK_BYTES] {
        let bits = 4u128 << 120
            | u128::from(self.protocol.0) << 112
            | (self.source & 0xffff_ffff) << 80
            | (self.destination & 0xffff_ffff) << 48
            | u128::from(self.source_port) << 32
            | u128::from(self.destination_port) << 16;
        bits.to_be_bytes()
    }

    /// The same for IPv6: family (6), protocol, source, destination, ports,
    /// zeros; three blocks.
    #[inline]
    #[must_use]
    pub fn blocks_v6(&self) -> [[u8; BLOCK_BYTES]; 3] {
        let ports = u128::from(self.source_port) << 16 | u128::from(self.destination_port);
        let first = 6u128 << 120 | u128::from(self.protocol.0) << 112 | self.source >> 16;
        let second = self.source << 112 | self.destination >> 16;
        let third = self.destination << 112 | ports << 80;
        [first.to_be_bytes(), second.to_be_bytes(), third.to_be_bytes()]
    }

    /// The way back: source and destination exchanged. ICMP errors quote
    /// this one.
    #[must_use]
    pub fn reversed(&self) -> FlowKey {
        FlowKey {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_as_documented() {
        let v4 = FlowKey {
            family: Family::V4,
            protocol: Protocol::TCP,
            source: 0x0a00_0001,
            destination: 0xcb00_710a,
            source_port: 0x1234,
            destination_port: 80,
        };
        assert_eq!(v4.block_v4(), [4, 6, 10, 0, 0, 1, 203, 0, 113, 10, 0x12, 0x34, 0, 80, 0, 0]);
        let v6 = FlowKey { family: Family::V6, source: u128::MAX - 1, destination: 7, ..v4 };
        let bytes: Vec<u8> = v6.blocks_v6().concat();
        assert_eq!(bytes[..2], [6, 6]);
        assert_eq!(bytes[2..18], (u128::MAX - 1).to_be_bytes());
        assert_eq!(bytes[18..34], 7u128.to_be_bytes());
        assert_eq!(bytes[34..38], [0x12, 0x34, 0, 80]);
        assert_eq!(bytes[38..], [0; 10]);
    }

    #[test]
    fn sockets_are_targets_in_a_word() {
        let target = Target {
            address: 0xcb00_710a,
            family: Family::V4,
            protocol: Protocol::UDP,
            port: 0x1234,
        };
        let socket = SocketV4::of(&target).unwrap();
        assert_eq!(socket.target(), target);
        assert_eq!(socket.word().to_be_bytes(), [203, 0, 113, 10, 4, 17, 0x12, 0x34]);
        let tail = [203, 0, 113, 10, 0xab, 0xcd, 0x12, 0x34];
        assert_eq!(SocketV4::of_packet(tail, Protocol::UDP), socket);
        assert_eq!(SocketV4::of(&Target { family: Family::V6, ..target }), None);
    }
}
