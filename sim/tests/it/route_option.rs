//! Packets of buckets that move: their route option, decoded as agents do, and what fits the
//! path.

use std::net::IpAddr;

use crate::common::{self, CLIENT, Machine, Tcp, hash, hop, make_stateless, message, tcp, udp};
use datapath::Verdict;
use datapath::explain::{Details, explain};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use plan::proto;
use proptest::prelude::*;
use wire::tunnel::geneve;
use wire::tunnel::route_option::RouteOption;
use wire::{EtherType, headers};

const BUCKETS: u32 = 256;

/// Every other bucket moves: to the next of four backends, of which the third has an
/// IPv6 address if `v6`.
fn moving(others: &[u32], v6: bool) -> proto::Plan {
    let mut message = message(4);
    let by_bucket: Vec<u32> = (0..BUCKETS).map(|bucket| bucket % 4).collect();
    make_stateless(&mut message, &by_bucket);
    if v6 {
        message.backends[2].address = "2001:db8:1::13".into();
    }
    let open_move = |bucket: u32| proto::OpenMove {
        bucket,
        others: others.iter().map(|other| (bucket + other) % 4).collect(),
    };
    let map = message.services[0].bucket_map.as_mut().unwrap();
    map.generation = 77;
    map.moves = (0..BUCKETS).step_by(2).map(open_move).collect();
    message
}

/// What an agent sees: outer destination, option and inner packet. The decoders of
/// outer IP and UDP are etherparse's.
fn decode(frame: &[u8]) -> (IpAddr, Option<RouteOption>, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let to: IpAddr = match packet.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            assert_eq!(usize::from(ip.header().total_len()), frame.len() - 14);
            ip.header().destination_addr().into()
        }
        NetSlice::Ipv6(ip) => ip.header().destination_addr().into(),
        NetSlice::Arp(_) => panic!("ARP"),
    };
    let Some(TransportSlice::Udp(udp)) = packet.transport else { panic!("no UDP") };
    assert_eq!((udp.destination_port(), usize::from(udp.length())), (6081, udp.slice().len()));
    let header = geneve::parse_with_options(udp.payload()).unwrap();
    let options: Vec<_> = geneve::options(header.options).map(Option::unwrap).collect();
    assert_eq!(header.has_critical, !options.is_empty());
    assert!(options.len() <= 1);
    let option = options.first().map(|option| RouteOption::parse(option).unwrap().unwrap());
    let inner = udp.payload()[geneve::HEADER_BYTES + header.options.len()..].to_vec();
    assert_eq!(header.inner, if inner[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 });
    (to, option, inner)
}

/// What the option of a bucket's packets has to say, by the plan's message.
fn expected(message: &proto::Plan, bucket: u32) -> (IpAddr, Option<RouteOption>) {
    let map = message.services[0].bucket_map.as_ref().unwrap();
    let address = |index: u32| -> IpAddr {
        let name = &map.backends[index as usize];
        let backend = message.backends.iter().find(|backend| backend.name == *name).unwrap();
        backend.address.parse().unwrap()
    };
    let option = map.moves.iter().find(|open| open.bucket == bucket).map(|open| RouteOption {
        returns: false,
        hop_limit: 4,
        bucket: Some(bucket as u16),
        generation: 77,
        addresses: open.others.iter().map(|other| address(*other)).collect(),
    });
    (address(map.by_bucket[bucket as usize]), option)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn packets_carry_what_their_bucket_has_to_say_and_arrive_unchanged(
        client: u32,
        port: u16,
        count in 1..4usize,
        v6: bool,
        padding in 0..40usize,
        udp6_checksum: bool,
    ) {
        let mut message = moving(&[1, 2, 3][..count], v6);
        message.tunnel = Some(proto::Tunnel { udp6_checksum, ..Default::default() });
        let mut machine = Machine::new(message.clone(), 10);
        for packet in [tcp(client, port, Tcp::Syn), tcp(client, port, Tcp::Ack), udp(client, port)] {
            let padded = [&packet[..], &vec![0xee; padding]].concat();
            let (verdict, journey, frame) = machine.forward(1, &padded);
            // Some clients' addresses cannot be.
            if matches!(verdict, Verdict::Drop(_)) {
                continue;
            }
            let (to, option, inner) = decode(&frame);
            prop_assert_eq!((to, option), expected(&message, journey.slot.unwrap()));
            prop_assert_eq!(inner.as_slice(), &packet[14..]);
        }
    }
}

#[test]
fn the_udp_checksum_over_ipv6_covers_the_option() {
    let mut message = moving(&[1, 2, 3], true);
    message.tunnel = Some(proto::Tunnel { udp6_checksum: true, ..Default::default() });
    let mut machine = Machine::new(message, 10);
    let mut seen = 0;
    for port in 1..400 {
        let (_, _, frame) = machine.forward(1, &udp(u32::from_be_bytes(CLIENT), port));
        let (to, option, _) = decode(&frame);
        if to.is_ipv4() || option.is_none() {
            continue;
        }
        let datagram = &frame[54..];
        let pseudo =
            wire::checksum::pseudo_header(&frame[22..38], &frame[38..54], 17, datagram.len());
        assert_eq!(wire::checksum::finish(pseudo + wire::checksum::sum(datagram)), 0);
        seen += 1;
    }
    assert!(seen > 10, "{seen} packets over IPv6 with an option");
}

/// A UDP packet of that many bytes, and a port whose bucket moves, or does not.
fn sized(machine: &mut Machine, moves: bool, bytes: usize, dont_fragment: bool) -> Vec<u8> {
    let port = (1..).find(|port| {
        let (_, journey, _) = machine.forward(1, &udp(u32::from_be_bytes(CLIENT), *port));
        journey.slot.unwrap().is_multiple_of(2) == moves
    });
    let mut frame = Vec::new();
    let payload = vec![7; bytes - 28];
    let mut ip =
        etherparse::Ipv4Header::new(0, 60, etherparse::IpNumber::UDP, CLIENT, common::VIP).unwrap();
    ip.dont_fragment = dont_fragment;
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .udp(port.unwrap(), 53)
        .write(&mut frame, &payload)
        .unwrap();
    frame
}

/// The outer headers of IPv4, and the longest option.
const OUTER: usize = 36;
const OPTION: usize = 60;

#[test]
fn what_is_reported_to_fit_leaves_room_for_the_longest_option() {
    let mut machine = Machine::new(moving(&[1], false), 10);
    machine.set_next_hops(|_| vec![hop(1500)]);
    for (moves, option) in [(false, 0), (true, 16)] {
        let fits = sized(&mut machine, moves, 1500 - OUTER - option, true);
        let (verdict, _, frame) = machine.forward(1, &fits);
        assert_eq!((verdict, frame.len()), (Verdict::Send(hop(0).device), 14 + 1500));
        let exceeds = sized(&mut machine, moves, 1500 - OUTER - option + 1, true);
        let (verdict, _, answer) = machine.forward(1, &exceeds);
        assert_eq!(verdict, Verdict::Reply);
        let mtu = u16::from_be_bytes([answer[40], answer[41]]);
        assert_eq!(usize::from(mtu), 1500 - OUTER - OPTION, "a move: {moves}");
    }
}

#[test]
fn pieces_of_a_packet_that_does_not_fit_carry_the_option_each() {
    let message = moving(&[1, 2], false);
    let mut machine = Machine::new(message.clone(), 10);
    machine.set_next_hops(|_| vec![hop(1500)]);
    let packet = sized(&mut machine, true, 1450, false);
    machine.originated.clear();
    let (verdict, journey, first) = machine.forward(1, &packet);
    assert_eq!(verdict, Verdict::Send(hop(0).device));
    let pieces: Vec<Vec<u8>> = machine.originated.drain(..).map(|frame| frame.bytes).collect();
    assert_eq!(pieces.len(), 1);
    let mut payload = 0;
    for piece in [first].iter().chain(&pieces) {
        assert!(piece.len() <= 14 + 1500);
        let (to, option, inner) = decode(piece);
        assert_eq!((to, option), expected(&message, journey.slot.unwrap()));
        payload += inner.len() - 20;
    }
    assert_eq!(payload, 1430);
}

#[test]
fn fragments_and_icmp_errors_carry_the_option_of_their_flow() {
    let message = moving(&[1], false);
    let mut machine = Machine::new(message.clone(), 10);
    let packet = sized(&mut machine, true, 600, false);
    let (_, journey, _) = machine.forward(1, &packet);
    let bucket = journey.slot.unwrap();
    let piece = |offset: u16, more: bool, bytes: &[u8]| {
        let mut ip = etherparse::Ipv4Header::new(
            bytes.len() as u16,
            60,
            etherparse::IpNumber::UDP,
            CLIENT,
            common::VIP,
        )
        .unwrap();
        ip.identification = 99;
        ip.more_fragments = more;
        ip.fragment_offset = etherparse::IpFragOffset::try_new(offset / 8).unwrap();
        ip.header_checksum = ip.calc_header_checksum();
        let mut frame = packet[..14].to_vec();
        ip.write(&mut frame).unwrap();
        frame.extend(bytes);
        frame
    };
    let whole = &packet[34..];
    for fragment in [piece(0, true, &whole[..304]), piece(304, false, &whole[304..])] {
        let (verdict, _, frame) = machine.forward(1, &fragment);
        assert_eq!(verdict, Verdict::Send(hop(0).device));
        let (to, option, inner) = decode(&frame);
        assert_eq!((to, option), expected(&message, bucket));
        assert_eq!(inner, fragment[14..]);
    }
    // What the backend sent from the VIP, quoted by a router.
    let port = u16::from_be_bytes([packet[34], packet[35]]);
    let mut quoted = Vec::new();
    PacketBuilder::ipv4(common::VIP, CLIENT, 60)
        .udp(53, port)
        .write(&mut quoted, b"answer")
        .unwrap();
    let mut error = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4([192, 0, 2, 99], common::VIP, 60)
        .icmpv4(etherparse::Icmpv4Type::TimeExceeded(
            etherparse::icmpv4::TimeExceededCode::TtlExceededInTransit,
        ))
        .write(&mut error, &quoted)
        .unwrap();
    let (verdict, _, frame) = machine.forward(1, &error);
    assert_eq!(verdict, Verdict::Send(hop(0).device));
    let (to, option, _) = decode(&frame);
    assert_eq!((to, option), expected(&message, bucket));
}

#[test]
fn explain_says_which_backends_are_tried_and_shows_the_headers() {
    let message = moving(&[1, 2, 3], false);
    let mut machine = Machine::new(message.clone(), 10);
    for port in 1..20 {
        let packet = tcp(u32::from_be_bytes(CLIENT), port, Tcp::Ack);
        let key = headers::parse(&packet).unwrap().unwrap().key;
        let (_, journey, frame) = machine.forward(1, &packet);
        let told = explain(&machine.view, &hash(), &machine.tables, &key, Details::default());
        let (_, option) = expected(&message, journey.slot.unwrap());
        assert_eq!(told.option, option);
        // Lengths and checksum differ.
        assert_eq!(told.outer[42..], frame[42..told.outer.len()]);
        assert_eq!(told.outer.len() - 50, option.map_or(0, |option| option.emit().len()));
    }
}
