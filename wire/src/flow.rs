//! The five-tuple, and its fixed layout as bytes.

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
}
