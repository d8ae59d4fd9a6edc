//! Several load balancers: fragments find the machine in charge, ICMP errors
//! the one that knows, and packets without a backend another cluster.

mod common;

use common::{CLIENT, Machine, Tcp, VIP, message, tcp, vip};
use datapath::outbox::Kind;
use datapath::{DropReason, Verdict};
use etherparse::PacketBuilder;
use plan::proto;
use plan::proto::BackendState::Down;

/// The plan of lb-1 or lb-2, which are peers and take fragments.
fn peered(own: u8, backends: usize) -> proto::Plan {
    let mut plan = message(backends);
    let address = |index: u8| vec![format!("10.0.0.{index}"), format!("2001:db8::{index}")];
    plan.machine = Some(proto::Machine {
        name: format!("lb-{own}"),
        addresses: address(own),
        routers: Vec::new(),
    });
    plan.peers = vec![proto::Peer {
        name: format!("lb-{}", 3 - own),
        addresses: address(3 - own),
        healthy: true,
    }];
    plan.services[0].set_fragments(proto::Fragments::On);
    plan
}

fn pair(backends: usize) -> [Machine; 2] {
    [Machine::new(peered(1, backends), 1000), Machine::new(peered(2, backends), 1000)]
}

/// A large UDP datagram in fragments, and its payload.
fn fragments_v4(id: u16, payload: usize) -> Vec<Vec<u8>> {
    let mut whole = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 60)
        .udp(1000 + id, 53)
        .write(&mut whole, &(0..payload).map(|i| i as u8).collect::<Vec<_>>())
        .unwrap();
    let (header, data) = whole[14..].split_at(20);
    let parts: Vec<&[u8]> = data.chunks(1000).collect();
    let piece = |(index, part): (usize, &&[u8])| {
        let mut frame = whole[..14].to_vec();
        let mut header = header.to_vec();
        header[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        header[4..6].copy_from_slice(&id.to_be_bytes());
        let more = if index + 1 < parts.len() { 0x2000 } else { 0 };
        header[6..8].copy_from_slice(&(more | (index * 125) as u16).to_be_bytes());
        header[10..12].fill(0);
        let sum = wire::checksum::finish(wire::checksum::sum(&header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(header);
        frame.extend(*part);
        frame
    };
    parts.iter().enumerate().map(piece).collect()
}

fn fragments_v6(id: u32) -> Vec<Vec<u8>> {
    let vip: [u8; 16] = "2001:db8:f::10".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut whole = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv6([0x20; 16], vip, 60)
        .udp(1000, 53)
        .write(&mut whole, &[5; 1992])
        .unwrap();
    let parts: Vec<&[u8]> = whole[54..].chunks(1000).collect();
    let piece = |(index, part): (usize, &&[u8])| {
        let mut frame = whole[..54].to_vec();
        frame[18..20].copy_from_slice(&(8 + part.len() as u16).to_be_bytes());
        frame[20] = 44;
        let more = u16::from(index + 1 < parts.len());
        frame.extend([17, 0]);
        frame.extend(((index * 1000) as u16 | more).to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend(*part);
        frame
    };
    parts.iter().enumerate().map(piece).collect()
}

/// Outer destinations and inner packets.
type Arrivals = Vec<(Vec<u8>, Vec<u8>)>;

/// Lets a frame travel until it reaches backends; gives the inner packets
/// with the outer destination, and how often it was redirected.
fn travel(machines: &mut [Machine; 2], at: usize, bytes: &[u8]) -> (Arrivals, usize) {
    let (verdict, _, frame) = machines[at].forward(1, bytes);
    let mut arrived = Arrivals::new();
    let split = |frame: &[u8]| (frame[30..34].to_vec(), frame[38..].to_vec());
    let mut redirects = 0;
    match verdict {
        Verdict::Send(_) => arrived.push(split(&frame)),
        Verdict::Redirect(_) => {
            assert_eq!(frame[34..36], [1, 0], "one further encapsulation is permitted");
            let (more, further) = travel(machines, 1 - at, &frame);
            assert_eq!(further, 0, "never redirected twice");
            redirects = 1;
            arrived.extend(more);
        }
        Verdict::Hold => {}
        other => panic!("{other:?}"),
    }
    arrived.extend(machines[at].outbox.frames.drain(..).map(|more| {
        assert_eq!(more.kind, Kind::Released);
        split(more.frame.bytes())
    }));
    (arrived, redirects)
}

#[test]
fn a_datagrams_fragments_reach_one_backend_whole_wherever_and_in_whatever_order_they_come() {
    for order in [[0usize, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut machines = pair(20);
        let mut redirects = 0;
        let mut backends = std::collections::BTreeSet::new();
        for id in 1..60 {
            let pieces = fragments_v4(id, 2500);
            assert_eq!(pieces.len(), 3);
            let mut arrived = Vec::new();
            for (nth, index) in order.iter().enumerate() {
                let (more, times) =
                    travel(&mut machines, (usize::from(id) + nth) % 2, &pieces[*index]);
                arrived.extend(more);
                redirects += times;
            }
            arrived.sort();
            let mut expected: Vec<Vec<u8>> =
                pieces.iter().map(|piece| piece[14..].to_vec()).collect();
            expected.sort();
            assert_eq!(
                arrived.iter().map(|(_, inner)| inner.clone()).collect::<Vec<_>>(),
                expected
            );
            assert!(arrived.iter().all(|(backend, _)| *backend == arrived[0].0), "one backend");
            backends.insert(arrived[0].0.clone());
        }
        assert!(
            redirects > 30 && backends.len() > 10,
            "{redirects} redirects, {} backends",
            backends.len()
        );
    }
}

#[test]
fn ipv6_fragments_reach_one_backend_too() {
    let mut machines = pair(20);
    for id in 1..40 {
        let pieces = fragments_v6(id);
        let mut arrived = Vec::new();
        for (nth, piece) in pieces.iter().enumerate().rev() {
            arrived.extend(travel(&mut machines, (id as usize + nth) % 2, piece).0);
        }
        assert_eq!(arrived.len(), 2);
        assert!(arrived.iter().all(|(backend, _)| *backend == arrived[0].0));
    }
}

#[test]
fn a_datagram_follows_the_connection_that_its_machine_tracks() {
    let mut alone = message(3);
    alone.services[0].set_fragments(proto::Fragments::Auto);
    let mut machine = Machine::new(alone.clone(), 1000);
    let mut small = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 60)
        .udp(1007, 53)
        .write(&mut small, b"x")
        .unwrap();
    let backend = machine.backend(0, &small).unwrap();
    let mut grown = message(60);
    grown.services[0].set_fragments(proto::Fragments::Auto);
    machine.set(grown);
    assert_eq!(machine.backend(1, &fragments_v4(7, 2500)[0]).unwrap(), backend);
    assert_eq!(machine.backend(1, &fragments_v4(7, 2500)[1]).unwrap(), backend);
}

#[test]
fn a_datagram_that_outlives_its_plan_is_matched_by_the_next() {
    let mut alone = message(9);
    alone.services[0].set_fragments(proto::Fragments::On);
    let mut many = alone.clone();
    let other = |index: u8| proto::Service {
        name: format!("other-{index}"),
        vips: vec![vip(&format!("203.0.113.{}", 100 + index))],
        group: "web".into(),
        ..Default::default()
    };
    many.services.splice(0..0, (0..40).map(other));
    let mut machine = Machine::new(many, 100);
    let pieces = fragments_v4(7, 2500);
    let backend = machine.backend(0, &pieces[0]).unwrap();
    // The service's match and members have other places in every count now.
    machine.set(alone.clone());
    assert_eq!(machine.backend(1, &pieces[1]).unwrap(), backend);
    let slow_path = machine.view.counters.last().unwrap();
    let sent: u64 = slow_path.members.iter().map(|traffic| traffic.packets.get()).sum();
    assert_eq!(sent, 1);
    alone.services[0].vips[0].set_protocol(proto::Protocol::Tcp);
    machine.set(alone);
    assert_eq!(machine.backend(1, &pieces[2]), Err(DropReason::NoService));
}

#[test]
fn with_the_peer_dead_this_machine_is_in_charge_of_all() {
    let mut plan = peered(1, 5);
    plan.peers[0].healthy = false;
    let mut machine = Machine::new(plan, 1000);
    for id in 1..50 {
        for piece in fragments_v4(id, 2500) {
            assert!(matches!(machine.forward(0, &piece).0, Verdict::Send(_)));
        }
    }
}

#[test]
fn a_fragment_that_waits_in_vain_expires_and_the_buffer_is_bounded() {
    let mut plan = message(2);
    plan.services[0].set_fragments(proto::Fragments::On);
    let mut machine = Machine::new(plan, 100);
    for id in 0..2_100 {
        machine.forward(0, &fragments_v4(id, 1500)[1]);
    }
    let totals = machine.counters.totals();
    assert_eq!((totals.held, totals.dropped[DropReason::FragmentBuffer.index()]), (2_048, 52));
    machine.forward(1_500, &fragments_v4(9_999, 1500)[1]);
    assert_eq!(machine.counters.fragments.expired.get(), 2_048);
    machine.forward(0, &fragments_v4(5, 1500)[0]);
    assert!(machine.outbox.frames.is_empty(), "what expired is not sent");
    assert_eq!(machine.counters.totals().unaccounted(2_102), 0);
}

/// A packet in GRE from `source` with that recursion control.
fn tunnelled(source: [u8; 4], destination: [u8; 4], recursion: u8, inner: &[u8]) -> Vec<u8> {
    let mut payload = vec![recursion, 0, 8, 0];
    payload.extend(&inner[14..]);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(source, destination, 60)
        .write(&mut frame, etherparse::ip_number::GRE, &payload)
        .unwrap();
    frame
}

const LB_1: [u8; 4] = [10, 0, 0, 1];
const LB_2: [u8; 4] = [10, 0, 0, 2];

#[test]
fn tunnels_are_taken_from_peers_and_encapsulators_only() {
    let mut plan = peered(1, 4);
    plan.encapsulators = vec!["10.0.9.0/24".into()];
    let mut machine = Machine::new(plan, 100);
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    let direct = machine.backend(0, &inner).unwrap();
    assert_eq!(machine.backend(0, &tunnelled([10, 0, 9, 77], LB_1, 0, &inner)).unwrap(), direct);
    let (_, _, sent) = machine.forward(0, &tunnelled([10, 0, 9, 77], LB_1, 0, &inner));
    assert_eq!(sent[34..36], [0, 0], "recursion control zero to a backend");
    assert_eq!(sent[38..], inner[14..], "the inner packet is unchanged");
    assert_eq!(machine.backend(0, &tunnelled(LB_2, LB_1, 1, &inner)).unwrap(), direct);
    for (source, recursion, reason) in
        [([10, 0, 8, 1], 0, DropReason::Stranger), (LB_2, 0, DropReason::Recursion)]
    {
        let verdict = machine.forward(0, &tunnelled(source, LB_1, recursion, &inner)).0;
        assert_eq!(verdict, Verdict::Drop(reason));
    }
    let mut elsewhere = inner.clone();
    elsewhere[33] ^= 1;
    elsewhere[24..26].fill(0);
    let sum = wire::checksum::finish(wire::checksum::sum(&elsewhere[14..34]));
    elsewhere[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(
        machine.forward(0, &tunnelled(LB_2, LB_1, 1, &elsewhere)).0,
        Verdict::Drop(DropReason::NoService)
    );
    let mut keyed = tunnelled(LB_2, LB_1, 1, &inner);
    keyed[34] |= 0x20;
    assert_eq!(machine.forward(0, &keyed).0, Verdict::Drop(DropReason::TunnelHeader));
    let mut cut = tunnelled(LB_2, LB_1, 1, &inner[..30]);
    cut.truncate(14 + 20 + 4 + 16);
    assert_eq!(machine.forward(0, &cut).0, Verdict::Drop(DropReason::IpHeader));
}

#[test]
fn congestion_met_in_a_tunnel_is_told_onwards() {
    let mut machine = Machine::new(peered(1, 4), 100);
    let with_ecn = |frame: &mut Vec<u8>, ecn: u8| {
        frame[15] = ecn;
        frame[24..26].fill(0);
        let sum = wire::checksum::finish(wire::checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    };
    let mut capable = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    with_ecn(&mut capable, 0b10);
    let mut outer = tunnelled(LB_2, LB_1, 1, &capable);
    with_ecn(&mut outer, 0b11);
    let (verdict, _, sent) = machine.forward(0, &outer);
    assert!(matches!(verdict, Verdict::Send(_)));
    assert_eq!(
        (sent[15] & 3, sent[39] & 3),
        (0b11, 0b10),
        "told by the outer header, the inner packet unchanged"
    );
    let mut outer = tunnelled(LB_2, LB_1, 1, &tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn));
    with_ecn(&mut outer, 0b11);
    assert_eq!(machine.forward(0, &outer).0, Verdict::Drop(DropReason::Congestion));
}

#[test]
fn without_peers_a_tunnel_to_ourselves_is_the_kernels() {
    let mut machine = Machine::new(message(1), 100);
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    assert_eq!(machine.forward(0, &tunnelled(LB_2, LB_1, 1, &inner)).0, Verdict::Pass);
}

/// Cluster 1, all of whose backends are down, spills to cluster 2.
fn clusters() -> (Machine, Machine) {
    let group = || proto::PrefixGroup {
        name: "a".into(),
        prefixes: vec!["203.0.113.0/24".into(), "198.51.100.0/24".into()],
    };
    let suffix =
        proto::PrefixSuffix { prefix_group: "a".into(), suffix: "0.0.0.10".into(), suffix_bits: 0 };
    let vip = || proto::Vip {
        target: Some(proto::vip::Target::PrefixSuffix(suffix.clone())),
        ..Default::default()
    };
    let mut first = message(2);
    first.prefix_groups = vec![group()];
    first.services[0].vips = vec![vip()];
    first.services[0].spill =
        vec![proto::Spill { prefix_group: "a".into(), prefix: "198.51.100.0/24".into() }];
    first.groups[0].members.iter_mut().for_each(|member| member.set_state(Down));
    let mut second = message(3);
    second.prefix_groups = vec![group()];
    second.services[0].vips = vec![vip()];
    second.encapsulators = vec!["10.0.0.0/24".into()];
    (Machine::new(first, 100), Machine::new(second, 100))
}

#[test]
fn a_service_without_backends_is_served_by_the_other_cluster() {
    let (mut first, mut second) = clusters();
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    let (verdict, _, spilled) = first.forward(0, &inner);
    assert!(matches!(verdict, Verdict::Redirect(_)));
    assert_eq!(spilled[30..34], [198, 51, 100, 10], "the same suffix in the other prefix");
    assert_eq!(spilled[34..36], [2, 0], "two further encapsulations are permitted");
    assert_eq!(spilled[38..], inner[14..]);
    assert_eq!(first.counters.spilled.get(), 1);
    assert!(second.backend(0, &spilled).is_ok());
}

#[test]
fn a_spilled_packet_is_never_spilled_again() {
    let (mut first, mut second) = clusters();
    let (_, _, spilled) = first.forward(0, &tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn));
    let (third, _) = clusters();
    let mut empty = third.view.plan.message.clone();
    empty.encapsulators = vec!["10.0.0.0/24".into()];
    second.set(empty);
    assert_eq!(second.forward(0, &spilled).0, Verdict::Drop(DropReason::NoBackend));
}

#[test]
fn an_error_for_a_flow_that_only_the_peer_knows_reaches_its_backend() {
    let [mut knows, mut asked] = pair(3);
    let mut redelivered = 0;
    for port in 1..60u16 {
        knows.set(peered(1, 3));
        asked.set(peered(2, 3));
        let backend = knows.backend(0, &tcp(u32::from_be_bytes(CLIENT), port, Tcp::Syn)).unwrap();
        // More backends: the hash no longer says what the table knows.
        knows.set(peered(1, 40));
        asked.set(peered(2, 40));
        let mut quote = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4(VIP, CLIENT, 60)
            .tcp(80, port, 7, 9)
            .write(&mut quote, &[])
            .unwrap();
        let mut error = Vec::new();
        let kind = etherparse::Icmpv4Type::TimeExceeded(
            etherparse::icmpv4::TimeExceededCode::TtlExceededInTransit,
        );
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([9; 4], VIP, 60)
            .icmpv4(kind)
            .write(&mut error, &quote[14..])
            .unwrap();
        let by_hash = asked.backend(0, &error).unwrap();
        let copies: Vec<Vec<u8>> =
            asked.outbox.frames.drain(..).map(|copy| copy.frame.bytes().to_vec()).collect();
        assert_eq!(copies.len(), 1);
        let verdict = knows.backend(0, &copies[0]);
        if by_hash == backend {
            assert_eq!(verdict, Err(DropReason::CopyNotNeeded));
        } else {
            assert_eq!(verdict, Ok(backend));
            redelivered += 1;
        }
        assert!(knows.outbox.frames.is_empty(), "a copy is not copied");
    }
    assert!(redelivered > 40, "{redelivered}");
}
