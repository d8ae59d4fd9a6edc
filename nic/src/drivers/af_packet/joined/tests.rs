use proptest::prelude::*;

use super::*;

/// Fields of a segment that a test looks at, whose checksums are right.
#[derive(Debug, PartialEq)]
struct Segment {
    identification: Option<u16>,
    sequence: u32,
    flags: u8,
    payload: Vec<u8>,
}

const FLAGS_ACK: u8 = 0x10;
const FRONT_BYTES: usize = wire::FRAME_BYTES_MAX;

/// A frame as the kernel gives it: joined, and with checksums that nobody has computed.
fn joined_frame(is_v6: bool, is_tcp: bool, flags: u8, payload: &[u8]) -> Vec<u8> {
    let transport = if is_tcp {
        let mut header = [0; 32];
        header[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        (header[12], header[TCP_FLAGS_AT]) = (8 << 4, flags);
        header.to_vec()
    } else {
        vec![0x30, 0x39, 0, 53, 0, 0, 0, 0]
    };
    let protocol = if is_tcp { TCP } else { UDP };
    let mut ip = if is_v6 { vec![0; ipv6::HEADER_BYTES] } else { vec![0; ipv4::HEADER_BYTES] };
    if is_v6 {
        (ip[0], ip[6], ip[7], ip[8], ip[39]) = (0x60, protocol, 64, 0x20, 9);
    } else {
        (ip[0], ip[4], ip[5], ip[8], ip[9], ip[12], ip[19]) =
            (0x45, 0xff, 0xff, 64, protocol, 192, 9);
    }
    let ether_type: [u8; 2] = if is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    [&[2; 12][..], &ether_type, &ip, &transport, payload].concat()
}

fn chunk() -> Chunk {
    Vec::leak(vec![0xee; wire::CHUNK_BYTES])
}

fn cut(frame: &[u8], gso_type: u8, gso_size: u16) -> Option<Vec<Vec<u8>>> {
    let undone = Undone { gso_type, gso_size, ..Undone::default() };
    let mut front = vec![0xee; FRONT_BYTES];
    let in_front = frame.len().min(FRONT_BYTES);
    front[..in_front].copy_from_slice(&frame[..in_front]);
    let bytes = Bytes { front: &front, rest: &frame[in_front..] };
    let mut joined = Joined::new(undone, &front, frame.len())?;
    let mut frames = Vec::new();
    while joined.left() > 0 {
        frames.push(joined.cut(&bytes, chunk()).bytes().to_vec());
    }
    Some(frames)
}

/// Reads a segment, whose lengths and checksums must be right.
fn segment(frame: &[u8]) -> Segment {
    let packet = &frame[ETHERNET_BYTES..];
    let is_v4 = packet[0] >> 4 == 4;
    let packet_bytes = if is_v4 {
        ipv4::parse(packet).unwrap().packet_bytes
    } else {
        ipv6::parse(packet).unwrap().packet_bytes
    };
    assert_eq!(packet_bytes, packet.len());
    let (addresses, transport) =
        if is_v4 { (&packet[12..20], &packet[20..]) } else { (&packet[8..40], &packet[40..]) };
    let is_tcp = packet[if is_v4 { 9 } else { 6 }] == 6;
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let protocol = if is_tcp { TCP } else { UDP };
    let pseudo = checksum::pseudo_header(source, destination, protocol, transport.len());
    assert_eq!(checksum::finish(pseudo + checksum::sum(transport)), 0);
    let payload_at = if is_tcp { usize::from(transport[12] >> 4) * 4 } else { udp::HEADER_BYTES };
    if !is_tcp {
        assert_eq!(transport[4..6], (transport.len() as u16).to_be_bytes());
    }
    Segment {
        identification: is_v4.then(|| u16::from_be_bytes([packet[4], packet[5]])),
        sequence: if is_tcp { u32::from_be_bytes(transport[4..8].try_into().unwrap()) } else { 0 },
        flags: if is_tcp { transport[TCP_FLAGS_AT] } else { 0 },
        payload: transport[payload_at..].to_vec(),
    }
}

#[test]
fn segments_are_as_their_sender_would_have_sent_them() {
    let payload: Vec<u8> = (0..3000).map(|at| (at * 7) as u8).collect();
    let frame = joined_frame(false, true, FLAGS_ACK | FIN_PSH | CWR, &payload);
    let segments: Vec<Segment> = cut(&frame, GSO_TCPV4 | GSO_ECN, 1448)
        .unwrap()
        .iter()
        .map(|frame| segment(frame))
        .collect();
    let expected =
        [(0xffff, u32::MAX, FLAGS_ACK | CWR), (0, 1447, FLAGS_ACK), (1, 2895, FLAGS_ACK | FIN_PSH)];
    let expected =
        expected.iter().zip(payload.chunks(1448)).map(|((id, sequence, flags), payload)| Segment {
            identification: Some(*id),
            sequence: *sequence,
            flags: *flags,
            payload: payload.to_vec(),
        });
    assert_eq!(segments, expected.collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn the_segments_payload_is_that_of_the_whole(
        is_v6: bool,
        is_tcp: bool,
        bytes in 1..65_000usize,
        size in 64..1600u16,
        first: u8,
    ) {
        let payload: Vec<u8> = (0..bytes).map(|at| (at >> 3) as u8 ^ at as u8 ^ first).collect();
        let frame = joined_frame(is_v6, is_tcp, FLAGS_ACK, &payload);
        let gso_type = match (is_tcp, is_v6) {
            (false, _) => GSO_UDP,
            (true, false) => GSO_TCPV4,
            (true, true) => GSO_TCPV6,
        };
        let segments: Vec<Segment> =
            cut(&frame, gso_type, size).unwrap().iter().map(|frame| segment(frame)).collect();
        let whole: Vec<u8> = segments.iter().flat_map(|segment| segment.payload.clone()).collect();
        prop_assert!(whole == payload);
        prop_assert!(segments.iter().all(|segment| segment.payload.len() <= usize::from(size)));
    }

    /// What a guest with a virtio device can make the kernel say.
    #[test]
    fn any_header_and_any_frame_are_cut_within_their_bytes_or_not_at_all(
        mut frame in proptest::collection::vec(any::<u8>(), 0..4000),
        gso_type: u8,
        gso_size: u16,
        is_ip: bool,
    ) {
        if is_ip && frame.len() > 14 {
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            frame[14] = 0x45;
        }
        let bytes = frame.len();
        let Some(segments) = cut(&frame, gso_type, gso_size) else { return Ok(()) };
        prop_assert!(segments.iter().all(|segment| segment.len() <= wire::FRAME_BYTES_MAX));
        prop_assert!(segments.len() <= bytes);
    }
}

#[test]
fn what_is_no_joined_segments_is_not_cut() {
    let payload = [1; 3000];
    let frame = joined_frame(false, true, FLAGS_ACK, &payload);
    let datagrams = joined_frame(false, false, 0, &payload);
    for (frame, gso_type, size, is_cut) in [
        (&frame, GSO_TCPV4, 1448, true),
        (&frame, GSO_UDP, 1448, false),
        (&frame, 3, 1448, false),
        (&frame, GSO_TCPV4, 0, false),
        (&frame, GSO_TCPV4, 3, true),
        (&frame, GSO_TCPV4, 2, false),
        (&frame, GSO_TCPV4, 1800, false),
        (&datagrams, GSO_UDP, 1448, true),
        (&datagrams, GSO_TCPV4, 1448, false),
        (&frame[..60].to_vec(), GSO_TCPV4, 1448, false),
    ] {
        assert_eq!(
            cut(frame, gso_type, size).is_some(),
            is_cut,
            "{gso_type} {size} {}",
            frame.len()
        );
    }
}

#[test]
fn a_checksum_left_to_hardware_is_completed() {
    // A UDP datagram over IPv4: the field holds the folded sum over the
    // pseudo header, as the kernel leaves it.
    let (source, destination) = ([192, 0, 2, 1], [203, 0, 113, 10]);
    let mut datagram = [0x30, 0x39, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
    let pseudo = checksum::pseudo_header(&source, &destination, 17, datagram.len());
    datagram[6..8].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
    let mut frame = [vec![0xee; 34], datagram.to_vec()].concat();
    undone(34, 6).complete_checksum(&mut frame).unwrap();
    let whole = pseudo + checksum::sum(&frame[34..]);
    assert_eq!(checksum::finish(whole), 0, "the receiver's sum over all must come to zero");
}

fn undone(checksum_start: u16, checksum_offset: u16) -> Undone {
    Undone { flags: NEEDS_CHECKSUM, checksum_start, checksum_offset, ..Undone::default() }
}

#[test]
fn a_checksum_outside_the_frame_is_not_completed() {
    for (start, offset) in [(50, 0), (34, 6)] {
        assert!(undone(start, offset).complete_checksum(&mut [0; 40]).is_none());
    }
}
