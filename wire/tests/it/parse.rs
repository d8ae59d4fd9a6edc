//! Tests parsing with an independent parser, and with arbitrary bytes.

use etherparse::PacketBuilder;
use proptest::prelude::*;
use wire::{Family, Fragment, ParseError, Protocol, headers};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn tcp_v4(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv4([192, 0, 2, 1], [203, 0, 113, 10], 64)
        .tcp(1234, 80, 7, 1024)
        .syn()
        .write(&mut frame, payload)
        .unwrap();
    frame
}

fn udp_v6(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv6([0x20; 16], [0x30; 16], 64)
        .udp(53, 443)
        .write(&mut frame, payload)
        .unwrap();
    frame
}

/// Inserts `extension` between the fixed IPv6 header and what follows.
fn with_extension(mut frame: Vec<u8>, number: u8, extension: &[u8]) -> Vec<u8> {
    let mut extension = extension.to_vec();
    extension[0] = std::mem::replace(&mut frame[14 + 6], number);
    frame.splice(54..54, extension);
    let payload = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&payload.to_be_bytes());
    frame
}

/// Replaces the IPv4 header by one with `options`.
fn with_options(mut frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    frame.splice(34..34, options.iter().copied());
    frame[14] = 0x45 + (options.len() / 4) as u8;
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    reseal(frame)
}

fn reseal(mut frame: Vec<u8>) -> Vec<u8> {
    let end = 14 + usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let sum = wire::checksum::finish(wire::checksum::sum(&frame[14..end]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn parse(frame: &[u8]) -> Result<wire::Headers, ParseError> {
    headers::parse(frame).map(|headers| headers.expect("an IP packet"))
}

#[test]
fn a_tcp_segment_is_read_as_its_builder_wrote_it() {
    let headers = parse(&tcp_v4(b"hello")).unwrap();
    assert_eq!((headers.key.family, headers.key.protocol), (Family::V4, Protocol::TCP));
    assert_eq!((headers.key.source_port, headers.key.destination_port), (1234, 80));
    assert_eq!((headers.key.source, headers.key.destination), (0xc000_0201, 0xcb00_710a));
    assert_eq!((headers.packet_bytes, headers.transport_offset), (45, 20));
    assert!(headers.tcp_flags.opens());
}

#[test]
fn padding_is_not_part_of_the_packet() {
    let mut frame = tcp_v4(b"");
    frame.resize(60, 0xaa);
    assert_eq!(parse(&frame).unwrap().packet_bytes, 40);
}

#[test]
fn other_ethernet_types_are_not_ours() {
    for ether_type in [0x0806u16, 0x8100, 0x88a8, 0x0026] {
        let mut frame = tcp_v4(b"");
        frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
        assert!(headers::parse(&frame).unwrap().is_none());
    }
}

#[test]
fn ipv4_headers_that_lie_are_refused_by_name() {
    let change = |at: usize, value: u8| {
        let mut frame = tcp_v4(b"hello");
        frame[at] = value;
        reseal(frame)
    };
    assert_eq!(parse(&change(14, 0x65)).unwrap_err(), ParseError::IpVersion);
    assert_eq!(parse(&change(14, 0x44)).unwrap_err(), ParseError::IpHeader);
    assert_eq!(parse(&change(17, 19)).unwrap_err(), ParseError::IpLength);
    assert_eq!(parse(&change(17, 46)).unwrap_err(), ParseError::IpLength);
    assert_eq!(parse(&change(14 + 32, 0x40)).unwrap_err(), ParseError::TransportHeader);
    assert_eq!(parse(&change(14 + 32, 0xf0)).unwrap_err(), ParseError::TransportHeader);
    let mut wrong = tcp_v4(b"");
    wrong[25] ^= 1;
    assert_eq!(parse(&wrong).unwrap_err(), ParseError::IpChecksum);
}

#[test]
fn options_are_walked_and_malformed_ones_refused() {
    let router_alert = [0x94, 4, 0, 0];
    let headers = parse(&with_options(tcp_v4(b""), &router_alert)).unwrap();
    assert_eq!((headers.transport_offset, headers.key.destination_port), (24, 80));
    assert!(parse(&with_options(tcp_v4(b""), &[1, 1, 0, 0xff])).is_ok());
    for options in [[0x94, 5, 0, 0], [0x94, 1, 0, 0], [0x94, 0, 0, 0], [1, 1, 1, 0x94]] {
        assert_eq!(
            parse(&with_options(tcp_v4(b""), &options)).unwrap_err(),
            ParseError::IpOptions,
            "{options:?}"
        );
    }
}

#[test]
fn extension_headers_are_walked_up_to_the_transport() {
    let pad = [0, 0, 1, 4, 0, 0, 0, 0];
    for number in [0, 43, 60, 135, 139, 140, 51] {
        let frame = with_extension(
            udp_v6(b"x"),
            number,
            if number == 51 {
                &[0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
            } else {
                &pad
            },
        );
        let headers = parse(&frame).unwrap_or_else(|error| panic!("{number}: {error:?}"));
        assert_eq!(
            (headers.key.protocol, headers.key.destination_port),
            (Protocol::UDP, 443),
            "{number}"
        );
    }
}

#[test]
fn extension_headers_out_of_place_or_bounds_are_refused() {
    let pad = [0, 0, 1, 4, 0, 0, 0, 0];
    let second_hop_by_hop = with_extension(with_extension(udp_v6(b""), 0, &pad), 60, &pad);
    let long = with_extension(udp_v6(b""), 60, &[0, 200, 1, 4, 0, 0, 0, 0]);
    let bad_option = with_extension(udp_v6(b""), 60, &[0, 0, 1, 5, 0, 0, 0, 0]);
    let atomic = [0, 0, 0, 0, 0, 0, 0, 9];
    let two_fragment_headers =
        with_extension(with_extension(udp_v6(b""), 44, &atomic), 44, &atomic);
    for frame in [second_hop_by_hop, long, bad_option, two_fragment_headers] {
        assert_eq!(parse(&frame).unwrap_err(), ParseError::IpExtension);
    }
}

#[test]
fn fragments_are_told_from_whole_datagrams() {
    let fragment = |offset_and_more: u16| {
        let [a, b] = offset_and_more.to_be_bytes();
        parse(&with_extension(udp_v6(b"x"), 44, &[0, 0, a, b, 0, 0, 0, 9])).unwrap()
    };
    assert_eq!(fragment(0).fragment, Fragment::Whole);
    assert_eq!(fragment(1).fragment, Fragment::First { id: 9 });
    assert_eq!(fragment(1).key.destination_port, 443);
    assert_eq!(fragment(8).fragment, Fragment::Later { id: 9 });
    assert_eq!(fragment(8).key.destination_port, 0);

    let v4 = |flags: u16| {
        let mut frame = tcp_v4(b"");
        frame[20..22].copy_from_slice(&flags.to_be_bytes());
        parse(&reseal(frame)).unwrap().fragment
    };
    assert_eq!(v4(0x4000), Fragment::Whole);
    assert_eq!(v4(0x2000), Fragment::First { id: 0 });
    assert_eq!(v4(0x0001), Fragment::Later { id: 0 });
}

#[test]
fn udp_lengths_that_lie_are_refused() {
    for length in [0u16, 7, 10] {
        let mut frame = udp_v6(b"x");
        frame[58..60].copy_from_slice(&length.to_be_bytes());
        assert_eq!(parse(&frame).unwrap_err(), ParseError::TransportHeader, "{length}");
    }
}

#[test]
fn every_cut_of_a_frame_is_refused_never_misread() {
    for whole in [
        tcp_v4(b"hello"),
        with_options(tcp_v4(b""), &[1, 1, 1, 0]),
        with_extension(udp_v6(b"x"), 60, &[0, 0, 1, 4, 0, 0, 0, 0]),
    ] {
        for cut in 0..whole.len() {
            assert!(parse_result(&whole[..cut]).is_err(), "cut at {cut}");
        }
    }
}

fn parse_result(frame: &[u8]) -> Result<Option<wire::Headers>, ParseError> {
    headers::parse(frame)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..160), v6: bool) {
        let mut frame = bytes;
        if frame.len() > 14 {
            frame[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[0x08, 0x00, 0x45] });
        }
        if let Ok(Some(headers)) = headers::parse(&frame) {
            prop_assert!(usize::from(headers.packet_bytes) + 14 <= frame.len());
            prop_assert!(headers.transport_offset <= headers.packet_bytes);
        }
    }

    #[test]
    fn what_we_accept_an_independent_parser_reads_alike(flips in proptest::collection::vec((0usize..70, any::<u8>()), 0..4), v6: bool) {
        let mut frame = if v6 { udp_v6(b"0123456789") } else { tcp_v4(b"0123456789") };
        for (at, value) in flips {
            let at = at % frame.len();
            frame[at] = value;
        }
        if !v6 {
            frame[12..14].copy_from_slice(&[8, 0]);
            if frame.len() >= 14 + usize::from(frame[14] & 15) * 4 && frame[14] & 15 >= 5 { frame = reseal(frame); }
        }
        let Ok(Some(ours)) = headers::parse(&frame) else { return Ok(()) };
        let Ok(theirs) = etherparse::SlicedPacket::from_ethernet(&frame) else { return Ok(()) };
        match theirs.transport {
            Some(etherparse::TransportSlice::Tcp(tcp)) if ours.key.protocol == Protocol::TCP => {
                prop_assert_eq!((tcp.source_port(), tcp.destination_port()), (ours.key.source_port, ours.key.destination_port));
                prop_assert_eq!(tcp.syn(), ours.tcp_flags.has(wire::tcp::Flags::SYN));
            }
            Some(etherparse::TransportSlice::Udp(udp)) => {
                prop_assert_eq!((udp.source_port(), udp.destination_port()), (ours.key.source_port, ours.key.destination_port));
            }
            _ => {}
        }
    }
}
