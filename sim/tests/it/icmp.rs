//! ICMP to a VIP, and packets too big for their path.

use crate::common::{self, CLIENT, Machine, Tcp, VIP, message, tcp};
use datapath::{DropReason, Verdict};
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, SlicedPacket, TransportSlice};
use plan::proto::BackendState;

const VIP6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0xf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const CLIENT6: [u8; 16] = [0x20; 16];

fn with_mtu(machine: &mut Machine, mtu: u16) {
    machine.set_next_hops(|_| vec![common::hop(mtu)]);
}

/// The packet that a backend sent from the VIP, as a router quotes it.
fn quote(port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(VIP, CLIENT, 60)
        .tcp(80, port, 7, 1024)
        .write(&mut frame, &[0; 8])
        .unwrap();
    frame.split_off(14)
}

fn error_about(port: u16, kind: Icmpv4Type) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4([198, 18, 0, 1], VIP, 60)
        .icmpv4(kind)
        .write(&mut frame, &quote(port)[..28])
        .unwrap();
    frame
}

fn fragmentation_needed() -> Icmpv4Type {
    Icmpv4Type::DestinationUnreachable(
        etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1400 },
    )
}

#[test]
fn an_echo_to_a_vip_is_answered() {
    let mut machine = Machine::new(message(1), 100);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 9)
        .icmpv4_echo_request(7, 3)
        .write(&mut frame, b"ping")
        .unwrap();
    let (verdict, _, reply) = machine.forward(0, &frame);
    assert_eq!(verdict, Verdict::Reply);
    assert_eq!(reply[..12], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    let packet = SlicedPacket::from_ethernet(&reply).unwrap();
    let Some(etherparse::NetSlice::Ipv4(ip)) = packet.net else { panic!() };
    assert_eq!(
        (ip.header().source(), ip.header().destination(), ip.header().ttl()),
        (VIP, CLIENT, 64)
    );
    assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
    let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else { panic!() };
    assert!(
        matches!(icmp.icmp_type(), Icmpv4Type::EchoReply(echo) if echo.id == 7 && echo.seq == 3)
    );
    assert_eq!(icmp.payload(), b"ping");
    assert!(wire::checksum::is_valid(icmp.slice()));
}

#[test]
fn an_ipv6_echo_to_a_vip_is_answered() {
    let mut machine = Machine::new(message(1), 100);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv6(CLIENT6, VIP6, 9)
        .icmpv6_echo_request(7, 3)
        .write(&mut frame, b"ping")
        .unwrap();
    let (verdict, _, reply) = machine.forward(0, &frame);
    assert_eq!(verdict, Verdict::Reply);
    let packet = SlicedPacket::from_ethernet(&reply).unwrap();
    let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else { panic!() };
    assert!(matches!(icmp.icmp_type(), Icmpv6Type::EchoReply(_)));
    assert!(icmp.is_checksum_valid(VIP6, CLIENT6));
}

#[test]
fn an_error_follows_the_connection_that_it_quotes() {
    let mut machine = Machine::new(message(8), 1000);
    let backends: Vec<String> = (1..50)
        .map(|port| machine.backend(0, &tcp(u32::from_be_bytes(CLIENT), port, Tcp::Syn)).unwrap())
        .collect();
    // More backends: by hash alone many of these would go elsewhere.
    machine.set(message(80));
    for (port, backend) in (1..50).zip(&backends) {
        assert_eq!(
            &machine.backend(0, &error_about(port, fragmentation_needed())).unwrap(),
            backend
        );
    }
}

#[test]
fn an_error_about_an_untracked_connection_follows_the_hash() {
    let mut machine = Machine::new(message(8), 1000);
    for port in 1..50 {
        let by_error = machine.backend(0, &error_about(port, fragmentation_needed())).unwrap();
        assert_eq!(
            machine.backend(0, &tcp(u32::from_be_bytes(CLIENT), port, Tcp::Ack)).unwrap(),
            by_error
        );
    }
}

#[test]
fn errors_that_quote_nothing_of_ours_are_dropped() {
    let mut machine = Machine::new(message(2), 100);
    let mut strange = error_about(5, fragmentation_needed());
    let quoted_source = 14 + 20 + 8 + 12;
    strange[quoted_source + 3] ^= 1;
    assert_eq!(machine.forward(0, &strange).0, Verdict::Drop(DropReason::Icmp));
    let short = error_about(5, fragmentation_needed());
    let mut cut = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 9)
        .icmpv4(fragmentation_needed())
        .write(&mut cut, &short[42..60])
        .unwrap();
    assert_eq!(machine.forward(0, &cut).0, Verdict::Drop(DropReason::Icmp));
    let mut other = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 9)
        .icmpv4_raw(13, 0, [0; 4])
        .write(&mut other, &[0; 12])
        .unwrap();
    assert_eq!(machine.forward(0, &other).0, Verdict::Drop(DropReason::Icmp));
    assert_eq!(machine.totals().unaccounted(3), 0);
}

#[test]
fn a_packet_that_must_not_be_fragmented_is_answered_with_the_mtu_that_fits() {
    for mtu in [1500u16, 1280, 600] {
        let mut machine = Machine::new(message(1), 100);
        with_mtu(&mut machine, mtu);
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4(CLIENT, VIP, 60)
            .tcp(9, 80, 7, 9)
            .write(&mut frame, &[7; 1460])
            .unwrap();
        frame[20] |= 0x40;
        reseal(&mut frame);
        let (verdict, _, reply) = machine.forward(0, &frame);
        assert_eq!(verdict, Verdict::Reply);
        let packet = SlicedPacket::from_ethernet(&reply).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = &packet.net else { panic!() };
        assert_eq!((ip.header().source(), ip.header().destination()), (VIP, CLIENT));
        assert_eq!(reply.len(), 14 + 576);
        let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else { panic!() };
        let Icmpv4Type::DestinationUnreachable(
            etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu },
        ) = icmp.icmp_type()
        else {
            panic!()
        };
        assert_eq!(next_hop_mtu, mtu - 24);
        assert!(wire::checksum::is_valid(icmp.slice()));
        assert_eq!(icmp.payload(), &frame[14..14 + 548]);
    }
}

#[test]
fn an_ipv6_packet_too_big_is_answered() {
    let mut machine = Machine::new(message(1), 100);
    with_mtu(&mut machine, 1400);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv6(CLIENT6, VIP6, 60)
        .tcp(9, 80, 7, 9)
        .write(&mut frame, &[7; 1440])
        .unwrap();
    let (verdict, _, reply) = machine.forward(0, &frame);
    assert_eq!((verdict, reply.len()), (Verdict::Reply, 14 + 1280));
    let packet = SlicedPacket::from_ethernet(&reply).unwrap();
    let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else { panic!() };
    assert!(matches!(icmp.icmp_type(), Icmpv6Type::PacketTooBig { mtu: 1376 }));
    assert!(icmp.is_checksum_valid(VIP6, CLIENT6));
}

/// What a client is told of, where the link to the next hop carries 1500 bytes.
#[test]
fn the_mtu_of_tunnels_counts_where_the_link_carries_more() {
    for (mtu, told) in [(None, 1476), (Some(1400), 1376), (Some(9000), 1476)] {
        let mut message = message(1);
        message.tunnel.get_or_insert_default().mtu = mtu.unwrap_or(0);
        let mut machine = Machine::new(message, 100);
        with_mtu(&mut machine, 1500);
        for (frame, of) in [(tcp_v4(1460), "IPv4"), (tcp_v6(1440), "IPv6")] {
            let (verdict, _, reply) = machine.forward(0, &frame);
            assert_eq!(verdict, Verdict::Reply);
            let headers = wire::headers::parse(&reply).unwrap().unwrap();
            let message = &reply[14 + usize::from(headers.transport_offset)..];
            let reported = wire::icmp::reported_mtu(headers.key.family, message);
            assert_eq!(reported, Some(told), "{mtu:?}, {of}");
        }
        // What they are told fits.
        assert!(matches!(machine.forward(0, &tcp_v4(told as usize - 40)).0, Verdict::Send(_)));
        assert!(matches!(machine.forward(0, &tcp_v6(told as usize - 60)).0, Verdict::Send(_)));
    }
}

/// No IPv6 host sends less than 1280 because of an answer (RFC 8201).
#[test]
fn a_link_too_narrow_for_ipv6_is_never_blamed_on_the_client() {
    let mut machine = Machine::new(message(1), 100);
    with_mtu(&mut machine, 600);
    let (verdict, _, reply) = machine.forward(0, &tcp_v6(1440));
    assert_eq!(verdict, Verdict::Reply);
    assert_eq!(wire::icmp::reported_mtu(wire::Family::V6, &reply[54..]), Some(1280));
    let small = machine.forward(0, &tcp_v6(1220)).0;
    assert_eq!(small, Verdict::Drop(DropReason::TooBig));
}

/// A TCP packet of that many bytes that must not be fragmented.
fn tcp_v4(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 60)
        .tcp(9, 80, 7, 9)
        .write(&mut frame, &vec![7; payload])
        .unwrap();
    frame[20] |= 0x40;
    reseal(&mut frame);
    frame
}

fn tcp_v6(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv6(CLIENT6, VIP6, 60)
        .tcp(9, 80, 7, 9)
        .write(&mut frame, &vec![7; payload])
        .unwrap();
    frame
}

/// Neither answered (RFC 4443 section 2.4) nor fragmented: no router
/// fragments IPv6. Its addresses must not be taken for IPv4 options.
#[test]
fn an_icmpv6_error_too_big_for_its_path_is_dropped() {
    let mut machine = Machine::new(message(1), 100);
    with_mtu(&mut machine, 1500);
    let mut quote = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv6(VIP6, CLIENT6, 60)
        .tcp(80, 9, 7, 9)
        .write(&mut quote, &[7; 1392])
        .unwrap();
    let mut error = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv6([0xff; 16], VIP6, 60)
        .icmpv6(Icmpv6Type::PacketTooBig { mtu: 1400 })
        .write(&mut error, &quote[14..])
        .unwrap();
    assert_eq!(error.len(), 14 + 1500);
    assert_eq!(machine.forward(0, &error).0, Verdict::Drop(DropReason::TooBig));
}

fn reseal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let end = 14 + usize::from(frame[14] & 15) * 4;
    let sum = wire::checksum::finish(wire::checksum::sum(&frame[14..end]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn a_packet_that_may_be_fragmented_arrives_in_pieces_on_one_backend() {
    for (mtu, options) in [(1500u16, 0usize), (600, 0), (600, 8)] {
        let mut machine = Machine::new(message(5), 100);
        with_mtu(&mut machine, mtu);
        let payload: Vec<u8> = (0..1472u32).map(|i| (i * 7) as u8).collect();
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4(CLIENT, VIP, 60)
            .udp(9, 53)
            .write(&mut frame, &payload)
            .unwrap();
        frame[20] = 0;
        if options > 0 {
            // A timestamp option that is not copied, and padding.
            frame.splice(34..34, [0x44, 4, 5, 0, 1, 1, 1, 0]);
            frame[14] = 0x47;
            let total = (frame.len() - 14) as u16;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
        }
        reseal(&mut frame);
        let (verdict, _, first) = machine.forward(0, &frame);
        assert!(matches!(verdict, Verdict::Send(_)));
        let mut pieces = vec![first];
        pieces.extend(machine.originated.drain(..).map(|originated| originated.bytes));
        assert_eq!(
            pieces.len(),
            (8usize + 1472).div_ceil((usize::from(mtu) - 24 - 20 - options) & !7)
        );
        let mut whole = vec![0u8; 1480];
        let mut seen = 0;
        for (index, piece) in pieces.iter().enumerate() {
            assert!(piece.len() <= 14 + usize::from(mtu));
            assert_eq!(piece[30..34], pieces[0][30..34], "one backend");
            let inner = etherparse::Ipv4Slice::from_slice(&piece[38..]).unwrap();
            let header = inner.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            assert_eq!(header.more_fragments(), index + 1 < pieces.len());
            let offset = usize::from(header.fragments_offset().value()) * 8;
            let part = &piece[38 + 20 + options..];
            whole[offset..offset + part.len()].copy_from_slice(part);
            seen += part.len();
            let kept = if index == 0 { 0x44 } else { 1 };
            assert!(options == 0 || piece[58] == kept, "an option that is not to be copied");
        }
        assert_eq!((seen, &whole[8..]), (1480, payload.as_slice()));
    }
}

#[test]
fn no_memory_for_pieces_means_too_big_and_nothing_leaks() {
    let mut machine = Machine::new(message(1), 100);
    with_mtu(&mut machine, 100);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 60)
        .udp(9, 53)
        .write(&mut frame, &[0; 1472])
        .unwrap();
    frame[20] = 0;
    reseal(&mut frame);
    assert_eq!(
        machine.forward(0, &frame).0,
        Verdict::Drop(DropReason::TooBig),
        "more than eight pieces"
    );
    assert!(machine.originated.is_empty());
}

#[test]
fn answers_are_limited() {
    let mut machine = Machine::new(message(1), 100);
    with_mtu(&mut machine, 100);
    let frame = tcp_v4(100);
    for _ in 0..3000 {
        machine.forward(0, &frame);
    }
    // The shared half, and the two cells of the only client there is.
    let totals = machine.totals();
    assert_eq!((totals.replied, totals.dropped[DropReason::TooBig.index()]), (508, 2492));
}

/// A client's packet of that size from anywhere, which must not be fragmented.
fn from(source: u32, port: u16) -> Vec<u8> {
    let mut frame = tcp_v4(1460);
    frame[26..30].copy_from_slice(&source.to_be_bytes());
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    reseal(&mut frame);
    frame
}

#[test]
fn forged_sources_take_no_answer_from_established_connections() {
    let mut machine = Machine::new(message(1), 100_000);
    with_mtu(&mut machine, 1500);
    let victim = u32::from_be_bytes(CLIENT);
    machine.forward(0, &tcp(victim, 9, Tcp::Syn));
    machine.forward(200, &tcp(victim, 9, Tcp::Ack));
    let mut random = 1u64;
    for second in 0..5 {
        let mut answered = 0;
        for _ in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Any source but those that no host has.
            let source = 0x0b00_0000 + (random >> 33) as u32 % 0x6000_0000;
            answered += u32::from(machine.forward(0, &from(source, 9)).0 == Verdict::Reply);
        }
        assert!(answered < 1100, "{answered}");
        // The victim's very first packet, in the middle of the flood.
        let verdict = machine.forward(0, &from(victim, 9)).0;
        assert_eq!(verdict, Verdict::Reply, "second {second}");
        machine.now_ms += 1000;
    }
    assert_eq!(machine.totals().unaccounted(5 * 3001 + 2), 0);
}

fn echo_v4(source: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(source, VIP, 9)
        .icmpv4_echo_request(7, 3)
        .write(&mut frame, b"ping")
        .unwrap();
    frame
}

#[test]
fn echo_requests_from_where_no_host_is_are_dropped() {
    let mut machine = Machine::new(message(1), 100);
    for source in [
        [224, 0, 0, 1],
        [239, 1, 1, 1],
        [255; 4],
        [0; 4],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [240, 0, 0, 1],
        VIP,
    ] {
        assert_eq!(
            machine.forward(0, &echo_v4(source)).0,
            Verdict::Drop(DropReason::MartianSource),
            "{source:?}"
        );
    }
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
    let mut loopback = [0; 16];
    loopback[15] = 1;
    for source in [[0xff; 16], [0; 16], loopback, mapped, VIP6] {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv6(source, VIP6, 9)
            .icmpv6_echo_request(7, 3)
            .write(&mut frame, b"ping")
            .unwrap();
        assert_eq!(
            machine.forward(0, &frame).0,
            Verdict::Drop(DropReason::MartianSource),
            "{source:?}"
        );
    }
    // Nor is one told that its packets are too big.
    with_mtu(&mut machine, 1500);
    let too_big = machine.forward(0, &from(0x7f00_0001, 9)).0;
    assert_eq!(too_big, Verdict::Drop(DropReason::TooBig));
    assert_eq!(machine.totals().unaccounted(14), 0);
}

#[test]
fn echo_replies_are_limited_and_hosts_that_ask_again_get_theirs() {
    let mut machine = Machine::new(message(1), 100);
    let (mut answered, mut random) = (0, 1u64);
    for second in 0..5 {
        for _ in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let source = 0x0b00_0000 + (random >> 33) as u32 % 0x6000_0000;
            let verdict = machine.forward(0, &echo_v4(source.to_be_bytes())).0;
            answered += u32::from(verdict == Verdict::Reply);
        }
        let verdict = machine.forward(0, &echo_v4(CLIENT)).0;
        match second {
            0 => assert_eq!(verdict, Verdict::Drop(DropReason::EchoLimit)),
            _ => assert_eq!(verdict, Verdict::Reply),
        }
        machine.now_ms += 1000;
    }
    assert!(answered < 5 * 1100, "{answered}");
    assert_eq!(machine.totals().unaccounted(5 * 3001), 0);
}

/// An echo request with these IPv4 options, a multiple of four bytes.
fn echo_with_options(options: &[u8]) -> Vec<u8> {
    let mut frame = echo_v4(CLIENT);
    frame.splice(34..34, options.iter().copied());
    frame[14] = 0x45 + (options.len() / 4) as u8;
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    reseal(&mut frame);
    frame
}

#[test]
fn echo_goes_along_no_source_route_and_carries_no_options() {
    let mut machine = Machine::new(message(1), 100);
    for kind in [131, 137] {
        let options = [1, kind, 7, 4, 198, 51, 100, 1];
        assert_eq!(
            machine.forward(0, &echo_with_options(&options)).0,
            Verdict::Drop(DropReason::SourceRoute)
        );
    }
    let plain = machine.forward(0, &echo_v4(CLIENT)).2;
    // Record route, behind a no-operation.
    let (verdict, _, reply) = machine.forward(0, &echo_with_options(&[1, 7, 7, 4, 0, 0, 0, 0]));
    assert_eq!(verdict, Verdict::Reply);
    assert_eq!(reply, plain);

    let echo6 = |extension: &[u8], next: u8| {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv6(CLIENT6, VIP6, 9)
            .icmpv6_echo_request(7, 3)
            .write(&mut frame, b"ping")
            .unwrap();
        frame.splice(54..54, extension.iter().copied());
        frame[19] += extension.len() as u8;
        frame[20] = if extension.is_empty() { 58 } else { next };
        frame
    };
    let plain = machine.forward(0, &echo6(&[], 58)).2;
    let (mut routing, padding) = ([0; 24], [58, 0, 1, 4, 0, 0, 0, 0]);
    routing[..4].copy_from_slice(&[58, 2, 0, 1]);
    assert_eq!(machine.forward(0, &echo6(&routing, 43)).0, Verdict::Drop(DropReason::SourceRoute));
    routing[3] = 0;
    for (extension, next) in [(&routing[..], 43), (&padding[..], 60)] {
        let (verdict, _, reply) = machine.forward(0, &echo6(extension, next));
        assert_eq!((verdict, &reply), (Verdict::Reply, &plain));
    }
}

#[test]
fn an_error_about_a_backend_that_is_gone_selects_anew() {
    let mut machine = Machine::new(message(3), 100);
    let backend = machine.backend(0, &tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn)).unwrap();
    let mut plan = message(3);
    plan.groups[0]
        .members
        .iter_mut()
        .find(|member| member.backend == backend)
        .unwrap()
        .set_state(BackendState::Down);
    machine.set(plan);
    assert_ne!(machine.backend(0, &error_about(5, fragmentation_needed())).unwrap(), backend);
}
