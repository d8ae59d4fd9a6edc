//! The three types of packets, as frames.

use crate::random::mix;

/// A minimal TCP packet in the shortest frame, without its checksum.
pub const FRAME_BYTES: usize = 60;
const IP: usize = 14;
const TCP: usize = IP + 20;
const PORTS_BITS: u32 = 14;
const FIRST_PORT: u16 = 16_384;
/// Clients are 10.0.0.0 and the following.
const CLIENTS: [u8; 4] = [10, 0, 0, 0];
/// The service's address.
pub const VIP: [u8; 4] = [203, 0, 113, 10];

/// A type of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Each packet opens a connection.
    Syn,
    /// Packets of many connections in no order.
    NonSyn,
    /// Packets of one connection.
    Constant,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Syn, Kind::NonSyn, Kind::Constant];

    /// The paper's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Syn => "SYN",
            Kind::NonSyn => "non-SYN",
            Kind::Constant => "constant 5-tuple",
        }
    }

    /// What its section 5.2.2 says.
    pub fn paper(self) -> &'static str {
        match self {
            Kind::Syn => "6 threads saturate",
            Kind::NonSyn | Kind::Constant => "5 threads saturate",
        }
    }

    /// The connection of the packet with that number.
    #[inline]
    pub fn connection(self, packet: u64, connections: u32) -> u32 {
        match self {
            Kind::Syn => packet as u32,
            Kind::NonSyn => ((u128::from(mix(packet)) * u128::from(connections)) >> 64) as u32,
            Kind::Constant => 0,
        }
    }
}

/// Writes frames by copying one and changing its connection.
#[derive(Debug)]
pub struct Template {
    bytes: [u8; FRAME_BYTES],
    checksum: u16,
}

impl Template {
    /// SYN, or ACK.
    pub fn new(syn: bool) -> Template {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[IP..IP + 12].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes[IP + 12..IP + 16].copy_from_slice(&CLIENTS);
        bytes[IP + 16..IP + 20].copy_from_slice(&VIP);
        bytes[TCP + 2..TCP + 4].copy_from_slice(&80u16.to_be_bytes());
        bytes[TCP + 12] = 5 << 4;
        bytes[TCP + 13] = if syn { 0x02 } else { 0x10 };
        let checksum = wire::checksum::finish(wire::checksum::sum(&bytes[IP..TCP]));
        Template { bytes, checksum }
    }

    /// A packet of that connection: 2^14 ports at each of the clients.
    #[inline]
    pub fn write(&self, frame: &mut [u8], connection: u32) {
        let frame: &mut [u8; FRAME_BYTES] = frame.try_into().expect("a frame of that size");
        *frame = self.bytes;
        let client = u32::from_be_bytes(CLIENTS) + (connection >> PORTS_BITS);
        let port = FIRST_PORT + (connection & ((1 << PORTS_BITS) - 1)) as u16;
        let old = u32::from_be_bytes(CLIENTS);
        let checksum = wire::checksum::update(self.checksum, (old >> 16) as u16, (client >> 16) as u16);
        let checksum = wire::checksum::update(checksum, old as u16, client as u16);
        frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        frame[IP + 12..IP + 16].copy_from_slice(&client.to_be_bytes());
        frame[TCP..TCP + 2].copy_from_slice(&port.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_is_a_valid_packet_of_its_own() {
        let mut keys = std::collections::HashSet::new();
        for syn in [true, false] {
            let template = Template::new(syn);
            for connection in [0, 1, 16_383, 16_384, 1_000_000, u32::MAX] {
                let mut frame = [0; FRAME_BYTES];
                template.write(&mut frame, connection);
                let headers = wire::headers::parse(&frame).unwrap().unwrap();
                assert_eq!(headers.tcp_flags.opens(), syn);
                keys.insert((syn, headers.key));
            }
        }
        assert_eq!(keys.len(), 12);
    }
}
