//! Frames of the smallest size, of as many connections as one likes.

use crate::random::mix;

/// The shortest frame Ethernet allows, without its checksum.
pub const FRAME_BYTES: usize = 60;
const IP: usize = 14;
const TRANSPORT: usize = IP + 20;
const TCP: u8 = 6;
const UDP: u8 = 17;
const PORTS_BITS: u32 = 14;
const FIRST_PORT: u16 = 16_384;
/// Clients are 10.0.0.0 and the following.
const CLIENTS: [u8; 4] = [10, 0, 0, 0];
/// The service's address.
pub const VIP: [u8; 4] = [203, 0, 113, 10];

/// The connection of packet number `packet` of those in no order.
#[inline]
#[must_use]
pub fn shuffled(packet: u64, connections: u32) -> u32 {
    ((u128::from(mix(packet)) * u128::from(connections)) >> 64) as u32
}

/// Writes frames by copying one and changing its connection.
#[derive(Debug)]
pub struct Template {
    bytes: [u8; FRAME_BYTES],
    checksum: u16,
}

impl Template {
    /// TCP without a checksum of its own (load balancers do not look), SYN or
    /// ACK.
    #[must_use]
    pub fn tcp(syn: bool) -> Template {
        let mut header = [0; 20];
        header[2..4].copy_from_slice(&80u16.to_be_bytes());
        header[12] = 5 << 4;
        header[13] = if syn { 0x02 } else { 0x10 };
        Template::new(TCP, &header)
    }

    /// UDP without a checksum (allowed over IPv4), as long as the shortest
    /// frame.
    #[must_use]
    pub fn udp() -> Template {
        const BYTES: usize = FRAME_BYTES - TRANSPORT;
        let mut datagram = [0; BYTES];
        datagram[2..4].copy_from_slice(&53u16.to_be_bytes());
        datagram[4..6].copy_from_slice(&(BYTES as u16).to_be_bytes());
        Template::new(UDP, &datagram)
    }

    fn new(protocol: u8, transport: &[u8]) -> Template {
        let mut bytes = [0; FRAME_BYTES];
        let packet_bytes = 20 + transport.len() as u16;
        bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[IP..IP + 12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        bytes[IP + 2..IP + 4].copy_from_slice(&packet_bytes.to_be_bytes());
        bytes[IP + 12..IP + 16].copy_from_slice(&CLIENTS);
        bytes[IP + 16..IP + 20].copy_from_slice(&VIP);
        bytes[TRANSPORT..TRANSPORT + transport.len()].copy_from_slice(transport);
        let checksum = wire::checksum::finish(wire::checksum::sum(&bytes[IP..TRANSPORT]));
        Template { bytes, checksum }
    }

    /// The same between other link addresses.
    #[must_use]
    pub fn between(mut self, source: [u8; 6], destination: [u8; 6]) -> Template {
        self.bytes[..6].copy_from_slice(&destination);
        self.bytes[6..12].copy_from_slice(&source);
        self
    }

    /// A packet of that connection: 2^14 ports at each of the clients.
    ///
    /// # Panics
    /// If `frame` is not [`FRAME_BYTES`] long.
    #[inline]
    pub fn write(&self, frame: &mut [u8], connection: u32) {
        let frame: &mut [u8; FRAME_BYTES] = frame.try_into().expect("a frame of that size");
        *frame = self.bytes;
        let client = u32::from_be_bytes(CLIENTS) + (connection >> PORTS_BITS);
        let port = FIRST_PORT + (connection & ((1 << PORTS_BITS) - 1)) as u16;
        let old = u32::from_be_bytes(CLIENTS);
        let checksum =
            wire::checksum::update(self.checksum, (old >> 16) as u16, (client >> 16) as u16);
        let checksum = wire::checksum::update(checksum, old as u16, client as u16);
        frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        frame[IP + 12..IP + 16].copy_from_slice(&client.to_be_bytes());
        frame[TRANSPORT..TRANSPORT + 2].copy_from_slice(&port.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_connection_is_a_valid_packet_of_its_own() {
        let mut keys = HashSet::new();
        for (template, opens) in
            [(Template::tcp(true), true), (Template::tcp(false), false), (Template::udp(), false)]
        {
            for connection in [0, 1, 16_383, 16_384, 1_000_000, u32::MAX] {
                let mut frame = [0; FRAME_BYTES];
                template.write(&mut frame, connection);
                let headers = wire::headers::parse(&frame).unwrap().unwrap();
                assert_eq!(headers.tcp_flags.opens(), opens);
                keys.insert((opens, headers.key));
            }
        }
        assert_eq!(keys.len(), 18);
    }

    #[test]
    fn shuffled_packets_are_of_all_connections() {
        let seen: HashSet<u32> = (0..1000).map(|packet| shuffled(packet, 50)).collect();
        assert_eq!((seen.len(), seen.into_iter().max()), (50, Some(49)));
    }
}
