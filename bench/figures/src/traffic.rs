//! Frames of any number of connections.

use guideway_bench::traffic::Segment;

use crate::random::mix;

/// The shortest frame Ethernet allows, without its checksum.
pub const FRAME_BYTES: usize = 60;
const IP: usize = 14;
const TRANSPORT: usize = IP + 20;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN_ACK: u8 = 0x11;
/// Of a short flow.
pub const SHORT_PACKETS: u64 = 20;
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
    bytes: Vec<u8>,
    checksum: u16,
    /// Where the frame echoes a timestamp.
    echo_at: Option<usize>,
}

impl Template {
    /// TCP without a checksum of its own (load balancers do not look), SYN or
    /// ACK.
    #[must_use]
    pub fn tcp(syn: bool) -> Template {
        let mut header = [0; 20];
        header[2..4].copy_from_slice(&80u16.to_be_bytes());
        header[12] = 5 << 4;
        header[13] = if syn { SYN } else { ACK };
        Template::new(TCP, &header, FRAME_BYTES)
    }

    /// A segment to a service with Multipath TCP, with data up to the frame's length.
    ///
    /// # Errors
    /// If its headers are longer than that.
    pub fn segment(segment: Segment, frame_bytes: usize) -> Result<Template, String> {
        let (options, option_bytes) = segment.options(0);
        let header_bytes = segment.header_bytes();
        if !(TRANSPORT + header_bytes..=1514).contains(&frame_bytes) {
            return Err(format!(
                "frames of {frame_bytes} bytes: from {} to 1514",
                TRANSPORT + header_bytes
            ));
        }
        let mut data = vec![0; frame_bytes - TRANSPORT];
        data[2..4].copy_from_slice(&80u16.to_be_bytes());
        data[12] = ((header_bytes / 4) as u8) << 4;
        data[13] = segment.flags().0;
        data[20..header_bytes].copy_from_slice(&options[..option_bytes]);
        let has_echo = matches!(segment, Segment::Timestamp | Segment::TimestampFirst);
        let echo_at = has_echo.then_some(TRANSPORT + 20 + 8);
        Ok(Template { echo_at, ..Template::new(TCP, &data, frame_bytes) })
    }

    /// UDP without a checksum (allowed over IPv4), as long as the shortest
    /// frame.
    #[must_use]
    pub fn udp() -> Template {
        const BYTES: usize = FRAME_BYTES - TRANSPORT;
        let mut datagram = [0; BYTES];
        datagram[2..4].copy_from_slice(&53u16.to_be_bytes());
        datagram[4..6].copy_from_slice(&(BYTES as u16).to_be_bytes());
        Template::new(UDP, &datagram, FRAME_BYTES)
    }

    fn new(protocol: u8, transport: &[u8], frame_bytes: usize) -> Template {
        let mut bytes = vec![0; frame_bytes];
        let packet_bytes = 20 + transport.len() as u16;
        bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[IP..IP + 12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        bytes[IP + 2..IP + 4].copy_from_slice(&packet_bytes.to_be_bytes());
        bytes[IP + 12..IP + 16].copy_from_slice(&CLIENTS);
        bytes[IP + 16..IP + 20].copy_from_slice(&VIP);
        bytes[TRANSPORT..TRANSPORT + transport.len()].copy_from_slice(transport);
        let checksum = wire::checksum::finish(wire::checksum::sum(&bytes[IP..TRANSPORT]));
        Template { bytes, checksum, echo_at: None }
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
    /// If `frame` is not as long as the template.
    #[inline]
    pub fn write(&self, frame: &mut [u8], connection: u32) {
        frame.copy_from_slice(&self.bytes);
        let client = u32::from_be_bytes(CLIENTS) + (connection >> PORTS_BITS);
        let port = FIRST_PORT + (connection & ((1 << PORTS_BITS) - 1)) as u16;
        let old = u32::from_be_bytes(CLIENTS);
        let checksum =
            wire::checksum::update(self.checksum, (old >> 16) as u16, (client >> 16) as u16);
        let checksum = wire::checksum::update(checksum, old as u16, client as u16);
        frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        frame[IP + 12..IP + 16].copy_from_slice(&client.to_be_bytes());
        frame[TRANSPORT..TRANSPORT + 2].copy_from_slice(&port.to_be_bytes());
        if let Some(at) = self.echo_at {
            // Zero would be none.
            let echo = mix(u64::from(connection)) as u32 | 1 << 31;
            frame[at..at + 4].copy_from_slice(&echo.to_be_bytes());
        }
    }

    /// A packet of the short flows that `connections` clients have one after the other: the
    /// first is a SYN, the last a FIN.
    ///
    /// # Panics
    /// If `frame` is not as long as the template.
    pub fn write_short(&self, frame: &mut [u8], packet: u64, connections: u32) {
        let connections = u64::from(connections);
        let (turn, client) = (packet / connections, packet % connections);
        self.write(frame, (turn / SHORT_PACKETS * connections + client) as u32);
        frame[TRANSPORT + 13] = match turn % SHORT_PACKETS {
            0 => SYN,
            last if last == SHORT_PACKETS - 1 => FIN_ACK,
            _ => ACK,
        };
    }

    /// Bytes of each frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.bytes.len()
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
    fn segments_are_whole_and_echo_their_connections_bits() {
        use wire::tcp_options::{Signal, signal};

        let template = Template::segment(Segment::TimestampFirst, 128).unwrap();
        let mut frame = vec![0; template.frame_bytes()];
        let mut echoes = HashSet::new();
        for connection in 0..100 {
            template.write(&mut frame, connection);
            assert_eq!(wire::headers::parse(&frame).unwrap().unwrap().packet_bytes, 114);
            let Ok(Signal::Echo(echo)) = signal(&frame[TRANSPORT..]) else { panic!("no echo") };
            echoes.insert(echo);
        }
        assert_eq!(echoes.len(), 100);
        assert!(Template::segment(Segment::TimestampFirst, 85).is_err());
    }

    #[test]
    fn shuffled_packets_are_of_all_connections() {
        let seen: HashSet<u32> = (0..1000).map(|packet| shuffled(packet, 50)).collect();
        assert_eq!((seen.len(), seen.into_iter().max()), (50, Some(49)));
    }
}
