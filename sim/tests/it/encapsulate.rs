//! Checks encapsulated packets with an independent parser.

use crate::common::{self, Machine, message, vip};
use datapath::{DropReason, NextHop, Verdict};
use etherparse::{IpSlice, NetSlice, PacketBuilder, SlicedPacket};
use plan::proto;
use proptest::prelude::*;

/// A machine whose only backend is in the outer family.
fn machine(outer_v6: bool, change: impl FnOnce(&mut proto::Plan)) -> Machine {
    let mut plan = message(1);
    plan.backends[0].address = if outer_v6 { "2001:db8:1::11" } else { "10.1.0.11" }.into();
    change(&mut plan);
    Machine::new(plan, 100)
}

fn packet(inner_v6: bool, traffic_class: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]);
    if inner_v6 {
        let mut vip = [0u8; 16];
        vip.copy_from_slice(&"2001:db8:f::10".parse::<std::net::Ipv6Addr>().unwrap().octets());
        builder.ipv6([0x20; 16], vip, 60).udp(1000, 53).write(&mut frame, payload).unwrap();
        frame[14] = 0x60 | traffic_class >> 4;
        frame[15] = traffic_class << 4;
    } else {
        builder
            .ipv4(common::CLIENT, common::VIP, 60)
            .udp(1000, 53)
            .write(&mut frame, payload)
            .unwrap();
        frame[15] = traffic_class;
        common::sum_v4(&mut frame);
    }
    frame
}

/// The outer IP slice and what follows its header.
fn outer(frame: &[u8]) -> (NetSlice<'_>, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let net = packet.net.unwrap();
    let payload = match &net {
        NetSlice::Ipv4(ip) => ip.payload().payload.to_vec(),
        NetSlice::Ipv6(ip) => ip.payload().payload.to_vec(),
        NetSlice::Arp(_) => panic!("ARP"),
    };
    (net, payload)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_inner_packet_arrives_unchanged_in_all_four_combinations(
        inner_v6: bool, outer_v6: bool, traffic_class: u8, payload in proptest::collection::vec(any::<u8>(), 0..300), padding in 0usize..30,
    ) {
        let mut machine = machine(outer_v6, |_| {});
        let before = packet(inner_v6, traffic_class, &payload);
        let mut padded = before.clone();
        padded.resize(before.len() + padding, 0xee);
        let (verdict, _, after) = machine.forward(0, &padded);
        prop_assert!(matches!(verdict, Verdict::Send(_)));
        prop_assert_eq!(&after[..12], &[2, 0, 0, 0, 0, 0xfe, 2, 0, 0, 0, 0, 1]);
        let (net, rest) = outer(&after);
        match net {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                prop_assert!(!outer_v6);
                prop_assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
                prop_assert_eq!((header.dont_fragment(), header.identification(), header.ttl(), header.protocol().0), (true, common::hash().outer_id(0x0a00_0001, 0x0a01_000b), 64, 47));
                prop_assert_eq!((header.source(), header.destination()), ([10, 0, 0, 1], [10, 1, 0, 11]));
                prop_assert_eq!(after[15], traffic_class);
                prop_assert_eq!(usize::from(header.total_len()), after.len() - 14);
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                prop_assert!(outer_v6);
                prop_assert_eq!((header.hop_limit(), header.next_header().0, header.traffic_class()), (64, 47, traffic_class));
                prop_assert_eq!(usize::from(header.payload_length()), after.len() - 54);
            }
            NetSlice::Arp(_) => unreachable!(),
        }
        prop_assert_eq!(&rest[..4], if inner_v6 { &[0, 0, 0x86, 0xdd] } else { &[0, 0, 8, 0] });
        prop_assert_eq!(&rest[4..], &before[14..]);
        prop_assert!(IpSlice::from_slice(&rest[4..]).is_ok());
    }
}

#[test]
fn a_configured_dscp_replaces_the_inner_one_but_not_ecn() {
    for outer_v6 in [false, true] {
        let mut machine = machine(outer_v6, |plan| plan.services[0].dscp = Some(46));
        let (_, _, after) = machine.forward(0, &packet(false, 0b0010_1001, b""));
        let traffic_class = if outer_v6 { after[14] << 4 | after[15] >> 4 } else { after[15] };
        assert_eq!(traffic_class, 46 << 2 | 0b01);
    }
}

#[test]
fn a_packet_that_does_not_fit_the_egress_is_dropped_by_that_name() {
    let mut machine = machine(false, |_| {});
    let fits = 1600 - 24 - 28;
    assert!(matches!(machine.forward(0, &packet(false, 0, &vec![0; fits])).0, Verdict::Send(_)));
    assert!(!matches!(
        machine.forward(0, &packet(false, 0, &vec![0; fits + 1])).0,
        Verdict::Send(_)
    ));
}

#[test]
fn several_next_hops_share_the_flows_and_each_flow_has_one() {
    let mut machine = machine(false, |_| {});
    let hops = |count: u8| {
        (0..count)
            .map(|i| NextHop { device: datapath::verdict::DeviceIndex(i), ..common::hop(1600) })
            .collect()
    };
    machine.set_next_hops(|_| hops(3));
    let mut seen = [0; 3];
    for port in 1..300 {
        let device = |machine: &mut Machine| match machine.forward(0, &common::udp(7, port)).0 {
            Verdict::Send(device) => usize::from(device.0),
            other => panic!("{other:?}"),
        };
        let first = device(&mut machine);
        assert_eq!(device(&mut machine), first);
        seen[first] += 1;
    }
    assert!(seen.iter().all(|count| *count > 60), "{seen:?}");
    machine.set_next_hops(|_| Vec::new());
    assert_eq!(machine.forward(0, &common::udp(7, 1)).0, Verdict::Drop(DropReason::NoNeighbour));
}

#[test]
fn what_is_not_ours_passes_untouched() {
    let mut machine = machine(false, |plan| plan.services[0].vips = vec![vip("203.0.113.99")]);
    let before = packet(false, 0, b"for the kernel");
    let (verdict, _, after) = machine.forward(0, &before);
    assert_eq!((verdict, after), (Verdict::Pass, before));
}

/// The tunnel bytes between outer IP header and inner packet.
fn tunnel(
    encap: proto::Encap,
    inner_v6: bool,
    outer_v6: bool,
    change: impl FnOnce(&mut proto::Plan),
) -> (u8, Vec<u8>, Vec<u8>) {
    let mut machine = machine(outer_v6, |plan| {
        plan.services[0].set_encap(encap);
        change(plan);
    });
    let before = packet(inner_v6, 0, b"payload");
    let (verdict, _, after) = machine.forward(0, &before);
    assert!(matches!(verdict, Verdict::Send(_)));
    let (net, rest) = outer(&after);
    let protocol = match net {
        NetSlice::Ipv4(ip) => ip.header().protocol().0,
        NetSlice::Ipv6(ip) => ip.header().next_header().0,
        NetSlice::Arp(_) => unreachable!(),
    };
    let split = rest.len() - (before.len() - 14);
    assert_eq!(&rest[split..], &before[14..], "the inner packet is unchanged");
    (protocol, rest[..split].to_vec(), after)
}

#[test]
fn ip_in_ip_puts_nothing_between() {
    for (inner_v6, outer_v6, protocol) in
        [(false, false, 4), (true, true, 41), (false, true, 4), (true, false, 41)]
    {
        let (got, header, _) = tunnel(proto::Encap::Ipip, inner_v6, outer_v6, |_| {});
        assert_eq!((got, header), (protocol, vec![]));
    }
}

#[test]
fn gue_and_geneve_travel_in_udp_without_checksum() {
    for (inner_v6, outer_v6) in [(false, false), (true, true), (false, true), (true, false)] {
        let inner_bytes = (packet(inner_v6, 0, b"payload").len() - 14) as u16;
        let (protocol, header, _) = tunnel(proto::Encap::Gue, inner_v6, outer_v6, |_| {});
        assert_eq!((protocol, header.len()), (17, 12));
        assert!(u16::from_be_bytes([header[0], header[1]]) >= 49152);
        assert_eq!(header[2..4], 6080u16.to_be_bytes());
        assert_eq!(header[4..6], (inner_bytes + 12).to_be_bytes());
        assert_eq!(header[6..], [0, 0, 0, if inner_v6 { 41 } else { 4 }, 0, 0]);
        let (protocol, header, _) = tunnel(proto::Encap::Geneve, inner_v6, outer_v6, |_| {});
        assert_eq!((protocol, header.len()), (17, 16));
        assert_eq!(header[2..4], 6081u16.to_be_bytes());
        let ether_type = if inner_v6 { [0x86, 0xdd] } else { [8, 0] };
        assert_eq!(header[6..], [0, 0, 0, 0, ether_type[0], ether_type[1], 0, 0, 0, 0]);
    }
}

/// To its Ethernet address, and a hop less.
fn by_link(mut packet: Vec<u8>) -> Vec<u8> {
    packet[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xfe, 2, 0, 0, 0, 0, 1]);
    if packet[14] >> 4 == 6 {
        packet[21] -= 1;
        return packet;
    }
    packet[22] -= 1;
    common::sum_v4(&mut packet);
    packet
}

fn set_hops(packet: &mut [u8], hops: u8) {
    let hops_at = if packet[14] >> 4 == 6 { 21 } else { 22 };
    packet[hops_at] = hops + 1;
    let as_sent = by_link(packet.to_vec());
    packet[14..].copy_from_slice(&as_sent[14..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn without_a_tunnel_a_packet_is_addressed_to_its_backend_and_one_hop_older(
        is_v6: bool, backend_v6: bool, traffic_class: u8, hops in 1u8..=254,
        payload in proptest::collection::vec(any::<u8>(), 0..300), padding in 0usize..30,
    ) {
        let mut machine = machine(backend_v6, |plan| plan.services[0].set_encap(proto::Encap::L2));
        let mut before = packet(is_v6, traffic_class, &payload);
        set_hops(&mut before, hops);
        let mut padded = before.clone();
        padded.resize(before.len() + padding, 0xee);
        let (verdict, _, after) = machine.forward(0, &padded);
        if hops == 1 {
            prop_assert_eq!(verdict, Verdict::Drop(DropReason::HopLimit));
            return Ok(());
        }
        prop_assert!(matches!(verdict, Verdict::Send(_)));
        prop_assert_eq!(after, by_link(before));
    }
}

#[test]
fn without_a_tunnel_a_packet_has_all_of_the_links_mtu_and_no_gateway() {
    for backend_v6 in [false, true] {
        let l2 = |plan: &mut proto::Plan| plan.services[0].set_encap(proto::Encap::L2);
        let mut machine = machine(backend_v6, l2);
        let longest = packet(false, 0, &vec![7; 1600 - 28]);
        let (_, _, after) = machine.forward(0, &longest);
        assert_eq!(after, by_link(longest));
        machine.originated.clear();
        let mut longer = packet(false, 0, &vec![7; 1600 - 27]);
        longer[20..22].fill(0); // it may be fragmented
        set_hops(&mut longer, 60);
        let (_, _, first) = machine.forward(0, &longer);
        assert_eq!(machine.originated.len(), 1, "the second piece");
        for piece in [&first, &machine.originated[0].bytes] {
            assert_eq!((piece[22], &piece[..6]), (59, &[2, 0, 0, 0, 0, 0xfe][..]));
            assert_eq!(wire::checksum::fold(wire::checksum::sum(&piece[14..34])), 0xffff);
        }
        let gateway = NextHop { is_destination: false, ..common::hop(1600) };
        machine.set_next_hops(|_| vec![gateway]);
        let verdict = machine.forward(0, &packet(false, 0, b"")).0;
        assert_eq!(verdict, Verdict::Drop(DropReason::NoNeighbour));
    }
}

#[test]
fn the_udp_checksum_over_ipv6_is_computed_where_wanted() {
    let wanted = proto::Tunnel { udp6_checksum: true, ..Default::default() };
    let (_, _, after) = tunnel(proto::Encap::Gue, false, true, |plan| plan.tunnel = Some(wanted));
    let sum = wire::checksum::pseudo_header(&after[22..38], &after[38..54], 17, after.len() - 54)
        + wire::checksum::sum(&after[54..]);
    assert_eq!(wire::checksum::fold(sum), 0xffff);
    assert_ne!(after[60..62], [0, 0]);
}

#[test]
fn outer_sources_are_drawn_from_the_source_prefix() {
    let wanted = proto::Tunnel { source_prefix: "10.64.0.0/18".into(), ..Default::default() };
    let mut machine = machine(false, |plan| plan.tunnel = Some(wanted));
    let mut sources = std::collections::BTreeSet::new();
    for port in 1..200 {
        let (_, _, after) = machine.forward(0, &common::udp(7, port));
        let packet = SlicedPacket::from_ethernet(&after).unwrap();
        let Some(NetSlice::Ipv4(ip)) = packet.net else { panic!() };
        assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        assert_eq!(ip.header().source()[..2], [10, 64]);
        assert!(ip.header().source()[2] < 64);
        sources.insert(ip.header().source());
    }
    assert!(sources.len() > 150);
}

/// The offsets and lengths in bytes of the pieces that reach the backend, or
/// why none does: of a fragment at `offset` (in units of eight bytes) over a
/// path of that MTU.
fn pieces_of(offset: u16, payload: usize, mtu: u16) -> Result<Vec<(usize, usize)>, DropReason> {
    let mut machine = machine(false, |plan| plan.services[0].set_fragments(proto::Fragments::On));
    machine.set_next_hops(|_| vec![common::hop(mtu)]);
    let with_offset = |flags: u16, payload| {
        let mut frame = packet(false, 0, &vec![9; payload]);
        frame[20..22].copy_from_slice(&flags.to_be_bytes());
        common::sum_v4(&mut frame);
        frame
    };
    machine.forward(0, &with_offset(0x2000, 16));
    machine.originated.clear();
    let (verdict, _, first) = machine.forward(0, &with_offset(offset, payload));
    if let Verdict::Drop(reason) = verdict {
        return Err(reason);
    }
    let further = machine.originated.iter().map(|made| &made.bytes[..]);
    let piece = |frame: &[u8]| {
        let inner = &frame[38..];
        let word = |at: usize| u16::from_be_bytes([inner[at], inner[at + 1]]);
        (usize::from(word(6) & 0x1fff) * 8, usize::from(word(2)) - 20)
    };
    Ok(std::iter::once(&first[..]).chain(further).map(piece).collect())
}

#[test]
fn pieces_of_a_fragment_follow_each_other_up_to_the_last_offset() {
    // 552 bytes fit behind GRE, of which the header takes 20 and 528 are 66 units.
    let whole = pieces_of(8_000, 1_400, 576).unwrap();
    assert_eq!(whole, [(64_000, 528), (64_528, 528), (65_056, 352)]);
    // The last piece begins at the last offset there is.
    assert_eq!(pieces_of(8_125, 520, 576).unwrap(), [(65_000, 528)]);
    assert_eq!(pieces_of(8_125, 528, 576).unwrap(), [(65_000, 528), (65_528, 8)]);
    // It would begin behind that, where the offset begins anew.
    assert_eq!(pieces_of(8_126, 528, 576), Err(DropReason::TooBig));
    assert_eq!(pieces_of(8_191, 1_400, 576), Err(DropReason::TooBig));
}
