//! Several load balancers: fragments find the machine in charge, ICMP errors the machine that
//! knows the connection, and packets without a backend another cluster.

use crate::common::{self, CLIENT, Machine, Tcp, VIP, message, tcp, vip};
use datapath::outbox::Accounting;
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
            assert_eq!(frame[34..36], [3, 0], "to be spilled, and redirected there");
            let (more, further) = travel(machines, 1 - at, &frame);
            assert_eq!(further, 0, "never redirected twice");
            redirects = 1;
            arrived.extend(more);
        }
        Verdict::Hold => {}
        other => panic!("{other:?}"),
    }
    arrived.extend(machines[at].originated.drain(..).map(|more| {
        assert!(matches!(more.counts, Accounting::Released(Verdict::Send(_))));
        split(&more.bytes)
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
    let totals = machine.totals();
    assert_eq!((totals.waiting(), totals.dropped[DropReason::FragmentBuffer.index()]), (2_048, 52));
    machine.forward(1_500, &fragments_v4(9_999, 1500)[1]);
    assert_eq!(machine.slow_path_counters().fragments.expired.get(), 2_048);
    machine.forward(0, &fragments_v4(5, 1500)[0]);
    assert!(machine.originated.is_empty(), "what expired is not sent");
    assert_eq!(machine.totals().unaccounted(2_102), 0);
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
        [([10, 0, 8, 1], 0, DropReason::UntrustedTunnelSource), (LB_2, 0, DropReason::Recursion)]
    {
        let verdict = machine.forward(0, &tunnelled(source, LB_1, recursion, &inner)).0;
        assert_eq!(verdict, Verdict::Drop(reason));
    }
    let mut elsewhere = inner.clone();
    elsewhere[33] ^= 1;
    common::sum_v4(&mut elsewhere);
    assert_eq!(
        machine.forward(0, &tunnelled(LB_2, LB_1, 1, &elsewhere)).0,
        Verdict::Drop(DropReason::NoService)
    );
    let mut routed = tunnelled(LB_2, LB_1, 1, &inner);
    routed[34] |= 0x40;
    assert_eq!(machine.forward(0, &routed).0, Verdict::Drop(DropReason::TunnelHeader));
    let mut cut = tunnelled(LB_2, LB_1, 1, &inner[..30]);
    cut.truncate(14 + 20 + 4 + 16);
    assert_eq!(machine.forward(0, &cut).0, Verdict::Drop(DropReason::IpHeader));
}

/// GRE from `source` with optional words, `flags` says which.
fn optional(source: [u8; 4], flags: u8, words: &[u8], inner: &[u8]) -> Vec<u8> {
    let mut payload = vec![flags, 0, 8, 0];
    payload.extend(words);
    payload.extend(&inner[14..]);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(source, LB_1, 60)
        .write(&mut frame, etherparse::ip_number::GRE, &payload)
        .unwrap();
    frame
}

#[test]
fn encapsulators_may_add_checksum_key_and_sequence_number() {
    const ROUTER: [u8; 4] = [10, 0, 9, 77];
    let mut plan = peered(1, 4);
    plan.encapsulators = vec!["10.0.9.0/24".into()];
    let mut machine = Machine::new(plan, 100);
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    let direct = machine.backend(0, &inner).unwrap();
    for flags in (0u8..16).map(|bits| bits << 4).filter(|flags| flags & 0x40 == 0) {
        let words = vec![0; (flags & 0xb0).count_ones() as usize * 4];
        let mut frame = optional(ROUTER, flags, &words, &inner);
        if flags & 0x80 != 0 {
            let sum = wire::checksum::finish(wire::checksum::sum(&frame[34..]));
            frame[38..40].copy_from_slice(&sum.to_be_bytes());
            let mut wrong = frame.clone();
            *wrong.last_mut().unwrap() ^= 1;
            let verdict = machine.forward(0, &wrong).0;
            assert_eq!(verdict, Verdict::Drop(DropReason::TunnelHeader), "a wrong checksum");
        }
        assert_eq!(machine.backend(0, &frame).unwrap(), direct, "{flags:x}");
        let (_, _, sent) = machine.forward(0, &frame);
        assert_eq!(sent[38..], inner[14..], "the inner packet is unchanged");
    }
    let mut cut = optional(ROUTER, 0, &[], &inner);
    cut[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    with_ecn(&mut cut, 0);
    assert_eq!(machine.forward(0, &cut).0, Verdict::Drop(DropReason::TunnelFragment));
    // Peers never write them.
    let keyed = optional(LB_2, 0x20, &[0; 4], &inner);
    assert_eq!(machine.forward(0, &keyed).0, Verdict::Drop(DropReason::TunnelHeader));
}

#[test]
fn to_a_vip_only_gre_of_senders_that_are_known_is_a_tunnel() {
    let mut plan = peered(1, 4);
    plan.encapsulators = vec!["10.0.9.0/24".into()];
    // A VIP that is an address of the machine, too, with a port as Geneve's.
    plan.services[0].vips.push(proto::Vip {
        protocol: proto::Protocol::Udp.into(),
        ports: vec![proto::PortRange { first: 6081, last: 6081 }],
        ..vip("10.0.0.1")
    });
    let mut machine = Machine::new(plan, 100);
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    let direct = machine.backend(0, &inner).unwrap();
    assert_eq!(machine.backend(0, &tunnelled([10, 0, 9, 77], VIP, 2, &inner)).unwrap(), direct);
    let to_vip = |source: [u8; 4], protocol: etherparse::IpNumber| {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4(source, VIP, 60)
            .write(&mut frame, protocol, &inner[14..])
            .unwrap();
        frame
    };
    let gre = tunnelled(CLIENT, VIP, 2, &inner);
    let ip_in_ip = [LB_2, [10, 0, 9, 77], CLIENT].map(|source| to_vip(source, 4.into()));
    for frame in ip_in_ip.iter().chain([&gre]) {
        let (verdict, _, sent) = machine.forward(0, frame);
        assert!(matches!(verdict, Verdict::Send(_)), "a client's own packet: {verdict:?}");
        assert_eq!(sent[38..], frame[14..]);
    }
    let mut datagram = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, LB_1, 60)
        .udp(1000, 6081)
        .write(&mut datagram, &[0; 20])
        .unwrap();
    assert!(matches!(machine.forward(0, &datagram).0, Verdict::Send(_)), "a client's own packet");
}

fn with_ecn(frame: &mut [u8], ecn: u8) {
    frame[15] = ecn;
    common::sum_v4(frame);
}

#[test]
fn congestion_is_told_onwards_of_fragments_that_follow_and_that_wait() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut plan = peered(1, 2);
        plan.peers[0].healthy = false;
        let mut machine = Machine::new(plan, 100);
        let mut pieces = fragments_v4(7, 2500);
        let mut sent = Vec::new();
        for index in order {
            with_ecn(&mut pieces[index], 0b10);
            let mut tunnel = tunnelled(LB_2, LB_1, 3, &pieces[index]);
            with_ecn(&mut tunnel, 0b11);
            let (verdict, _, frame) = machine.forward(0, &tunnel);
            match verdict {
                Verdict::Send(_) => sent.push(frame),
                other => assert_eq!(other, Verdict::Hold),
            }
            sent.extend(emit(&mut machine));
        }
        assert_eq!(sent.len(), 3);
        for frame in sent {
            assert_eq!((frame[15] & 3, frame[39] & 3), (0b11, 0b10), "{order:?}");
        }
    }
}

#[test]
fn congestion_met_in_a_tunnel_is_told_onwards() {
    let mut machine = Machine::new(peered(1, 4), 100);
    // RFC 6040, figure 4: inner, outer, what is told onwards.
    for (inner, outer, told) in [
        (0b10, 0b11, 0b11),
        (0b01, 0b11, 0b11),
        (0b10, 0b01, 0b01),
        (0b01, 0b10, 0b01),
        (0b10, 0b00, 0b10),
        (0b11, 0b01, 0b11),
        (0b00, 0b01, 0b00),
        (0b00, 0b10, 0b00),
    ] {
        let mut capable = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
        with_ecn(&mut capable, inner);
        let mut tunnel = tunnelled(LB_2, LB_1, 1, &capable);
        with_ecn(&mut tunnel, outer);
        let (verdict, _, sent) = machine.forward(0, &tunnel);
        assert!(matches!(verdict, Verdict::Send(_)));
        assert_eq!(
            (sent[15] & 3, sent[39] & 3),
            (told, inner),
            "told by the outer header, the inner packet unchanged"
        );
    }
    let mut outer = tunnelled(LB_2, LB_1, 1, &tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn));
    with_ecn(&mut outer, 0b11);
    assert_eq!(machine.forward(0, &outer).0, Verdict::Drop(DropReason::CeOnNotEct));
}

#[test]
fn without_peers_a_tunnel_to_ourselves_is_the_kernels() {
    let mut machine = Machine::new(message(1), 100);
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    assert_eq!(machine.forward(0, &tunnelled(LB_2, LB_1, 1, &inner)).0, Verdict::Pass);
}

fn spill_to(prefix: &str) -> proto::Spill {
    proto::Spill { prefix_group: "a".into(), prefix: prefix.into(), down: false }
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
    first.services[0].spill = vec![spill_to("198.51.100.0/24")];
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
    assert_eq!(first.counters(0).spilled.get(), 1);
    assert!(second.backend(0, &spilled).is_ok());
}

#[test]
fn a_packet_whose_family_no_cluster_takes_has_no_backend() {
    let (first, _) = clusters();
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    let with_spills = |spills: &[&str]| {
        let mut plan = first.view.plan.message.clone();
        plan.services[0].spill = spills.iter().copied().map(spill_to).collect();
        Machine::new(plan, 100).forward(0, &inner).0
    };
    assert_eq!(with_spills(&["2001:db8::/64"]), Verdict::Drop(DropReason::NoBackend));
    let both = with_spills(&["2001:db8::/64", "198.51.100.0/24"]);
    assert!(matches!(both, Verdict::Redirect(_)), "{both:?}");
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
        let copies: Vec<Vec<u8>> = asked.originated.drain(..).map(|copy| copy.bytes).collect();
        assert_eq!(copies.len(), 1);
        let verdict = knows.backend(0, &copies[0]);
        if by_hash == backend {
            assert_eq!(verdict, Err(DropReason::IcmpCopyRedundant));
        } else {
            assert_eq!(verdict, Ok(backend));
            redelivered += 1;
        }
        assert!(knows.originated.is_empty(), "a copy is not copied");
    }
    assert!(redelivered > 40, "{redelivered}");
}

/// Two clusters of two machines; of the first all backends are down.
struct Clusters {
    first: [Machine; 2],
    second: [Machine; 2],
    /// Frames between machines, by recursion control.
    redirected: std::collections::BTreeMap<u8, usize>,
}

impl Clusters {
    fn new() -> Clusters {
        let (first, second) = clusters();
        let with_peer = |plan: &proto::Plan, own: u8| {
            let peer = peered(own, 1);
            let mut plan = plan.clone();
            (plan.machine, plan.peers) = (peer.machine, peer.peers);
            plan.services[0].set_fragments(proto::Fragments::On);
            plan
        };
        let of_first = &first.view.plan.message;
        // Other addresses than the first cluster's: those spill here.
        let elsewhere = |plan: proto::Plan| {
            let text = serde_json::to_string(&plan).unwrap().replace("10.0.0.", "10.0.1.");
            let mut plan: proto::Plan = serde_json::from_str(&text).unwrap();
            plan.encapsulators = vec!["10.0.0.0/24".into()];
            plan
        };
        let of_second = &second.view.plan.message;
        Clusters {
            first: [1, 2].map(|own| Machine::new(with_peer(of_first, own), 100)),
            second: [1, 2].map(|own| Machine::new(elsewhere(with_peer(of_second, own)), 100)),
            redirected: std::collections::BTreeMap::new(),
        }
    }

    /// Lets a frame travel from a machine of the first cluster, or `second`,
    /// until it reaches backends; a packet to the other cluster reaches the
    /// machine there that `entry` says.
    fn travel(&mut self, second: bool, at: usize, entry: usize, bytes: &[u8]) -> Arrivals {
        let machines = if second { &mut self.second } else { &mut self.first };
        let (verdict, _, frame) = machines[at].forward(1, bytes);
        let mut emitted: Vec<Vec<u8>> = match verdict {
            Verdict::Send(_) | Verdict::Redirect(_) => vec![frame],
            Verdict::Hold => vec![],
            other => panic!("{other:?} at machine {at} of cluster {}", 1 + u8::from(second)),
        };
        let released = machines[at].originated.drain(..);
        emitted.extend(released.map(|made| made.bytes));
        let mut arrived = Arrivals::new();
        for frame in emitted {
            match frame[30..34] {
                [10, 1, ..] => arrived.push((frame[30..34].to_vec(), frame[38..].to_vec())),
                [10, 0, cluster, machine] => {
                    assert_eq!(cluster == 1, second, "peers are of one cluster");
                    *self.redirected.entry(frame[34]).or_default() += 1;
                    arrived.extend(self.travel(second, usize::from(machine) - 1, entry, &frame));
                }
                [198, 51, 100, 10] => {
                    assert!(!second, "never spilled twice");
                    *self.redirected.entry(frame[34]).or_default() += 1;
                    arrived.extend(self.travel(true, entry, entry, &frame));
                }
                ref other => panic!("to {other:?}"),
            }
        }
        arrived
    }
}

#[test]
fn a_spilling_cluster_of_several_machines_loses_no_fragment() {
    for order in [[0usize, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut clusters = Clusters::new();
        for id in 1..40 {
            let pieces = fragments_v4(id, 2500);
            let mut arrived = Arrivals::new();
            for (nth, index) in order.iter().enumerate() {
                let (at, entry) = ((usize::from(id) + nth) % 2, usize::from(id / 2) % 2);
                // Each fragment may come by another machine there, too.
                arrived.extend(clusters.travel(false, at, (entry + nth) % 2, &pieces[*index]));
            }
            arrived.sort();
            let mut expected: Vec<Vec<u8>> =
                pieces.iter().map(|piece| piece[14..].to_vec()).collect();
            expected.sort();
            let inner: Vec<Vec<u8>> = arrived.iter().map(|(_, inner)| inner.clone()).collect();
            assert_eq!(inner, expected);
            assert!(arrived.iter().all(|(backend, _)| *backend == arrived[0].0), "one backend");
        }
        let steps: Vec<u8> = clusters.redirected.keys().copied().collect();
        assert_eq!(steps, [1, 2, 3], "each step of the way was needed: {:?}", clusters.redirected);
    }
}

/// Whether the owner that the hash says is another machine, by what becomes of
/// the fragments of a datagram that came with that recursion control.
fn redirections(recursion: u8) -> usize {
    let mut machine = Machine::new(peered(1, 3), 100);
    let is_redirected = |client: &u8| {
        let mut piece = fragments_v4(7, 1500).swap_remove(0);
        piece[29] = *client;
        common::sum_v4(&mut piece);
        let arriving = tunnelled(LB_2, LB_1, recursion, &piece);
        let (verdict, _, frame) = machine.forward(1, &arriving);
        let redirected = matches!(verdict, Verdict::Redirect(_));
        assert!(!redirected || frame[34] == if recursion == 2 { 1 } else { 3 });
        redirected
    };
    (1..40).filter(is_redirected).count()
}

#[test]
fn what_came_by_a_redirect_is_not_redirected_again() {
    assert_eq!([1, 3].map(redirections), [0, 0]);
    let [spilled, fresh] = [2, 7].map(redirections);
    assert!(spilled > 0 && spilled == fresh, "{spilled} of spilled, {fresh} of fresh ones");
}

#[test]
fn a_redirected_packet_may_be_spilled_and_a_spilled_one_is_not() {
    let (mut first, _) = clusters();
    let mut plan = first.view.plan.message.clone();
    plan.peers = peered(1, 1).peers;
    first.set(plan);
    let inner = tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn);
    let (verdict, _, spilled) = first.forward(0, &tunnelled(LB_2, LB_1, 3, &inner));
    assert!(matches!(verdict, Verdict::Redirect(_)));
    assert_eq!(spilled[34], 2);
    for recursion in [1, 2] {
        let verdict = first.forward(0, &tunnelled(LB_2, LB_1, recursion, &inner)).0;
        assert_eq!(verdict, Verdict::Drop(DropReason::NoBackend));
    }
}

/// The outer destination of a packet of a service without backends that names
/// three clusters, of which these are down or without a next hop.
fn spilled_to(down: &[usize], unreached: &[&str]) -> Result<String, DropReason> {
    const PREFIXES: [&str; 3] = ["198.51.100.0/24", "192.0.2.0/24", "10.9.0.0/24"];
    let (mut first, _) = clusters();
    let mut plan = first.view.plan.message.clone();
    plan.services[0].spill = PREFIXES.map(spill_to).into();
    plan.services[0].spill.insert(0, spill_to("2001:db8:e::/64"));
    down.iter().for_each(|index| plan.services[0].spill[index + 1].down = true);
    first.set(plan);
    first.set_next_hops(|address| {
        let reached = !unreached.contains(&address.to_string().as_str());
        reached.then(|| common::hop(1600)).into_iter().collect()
    });
    match first.forward(0, &tcp(u32::from_be_bytes(CLIENT), 5, Tcp::Syn)) {
        (Verdict::Redirect(_), _, frame) => {
            Ok(frame[30..34].iter().map(u8::to_string).collect::<Vec<_>>().join("."))
        }
        (Verdict::Drop(reason), ..) => Err(reason),
        (other, ..) => panic!("{other:?}"),
    }
}

#[test]
fn the_first_cluster_that_answers_and_is_reached_gets_what_is_spilled() {
    let (a, b, c) = ("198.51.100.10", "192.0.2.10", "10.9.0.10");
    let to = |down: &[usize], unreached: &[&str]| spilled_to(down, unreached).unwrap();
    assert_eq!(to(&[], &[]), a);
    assert_eq!(to(&[0], &[]), b);
    assert_eq!(to(&[], &[a]), b);
    assert_eq!(to(&[1], &[a]), c);
    assert_eq!(to(&[0, 2], &[b]), a, "better one that does not answer than none");
    assert_eq!(to(&[0, 1, 2], &[]), a);
    assert_eq!(spilled_to(&[0], &[a, b, c]), Err(DropReason::NoNeighbour));
}

#[test]
fn a_peer_that_the_forwarder_does_not_reach_is_in_charge_of_nothing() {
    let mut machine = Machine::new(peered(1, 5), 1000);
    let backends_only = |address: std::net::IpAddr| match address.to_string().as_str() {
        "10.0.0.2" | "2001:db8::2" => Vec::new(),
        _ => vec![common::hop(1600)],
    };
    machine.set_next_hops(backends_only);
    for id in 1..50 {
        for piece in fragments_v4(id, 2500) {
            assert!(matches!(machine.forward(0, &piece).0, Verdict::Send(_)));
        }
    }
}

/// A machine that takes fragments, with a second VIP.
fn collector() -> Machine {
    let mut plan = message(8);
    plan.services[0].set_fragments(proto::Fragments::On);
    plan.services[0].vips.push(vip("203.0.113.99"));
    Machine::new(plan, 1000)
}

/// The same packet between other addresses, with other flags.
fn changed(frame: &[u8], source: [u8; 4], to: [u8; 4], flags: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&to);
    frame[20] |= flags;
    common::sum_v4(&mut frame);
    frame
}

/// What was emitted beside the packets themselves.
fn emit(machine: &mut Machine) -> Vec<Vec<u8>> {
    machine.originated.drain(..).map(|made| made.bytes).collect()
}

const OTHER_VIP: [u8; 4] = [203, 0, 113, 99];

/// How many of 20 clients' datagrams to `to` arrive whole whose later fragments
/// come first, and their first ones behind `flood` more.
fn whole_datagrams(to: [u8; 4], mut flood: impl FnMut(u32) -> Vec<u8>) -> usize {
    let mut machine = collector();
    let mut next = 0..;
    let mut orphans = |machine: &mut Machine, count| {
        for number in next.by_ref().take(count) {
            machine.forward(0, &flood(number));
        }
    };
    orphans(&mut machine, 3_000);
    let mut whole = 0;
    for client in 1..=20u8 {
        let pieces = fragments_v4(u16::from(client), 2500).into_iter();
        let pieces: Vec<_> =
            pieces.map(|piece| changed(&piece, [198, 18, client, 7], to, 0)).collect();
        machine.forward(0, &pieces[2]);
        machine.forward(0, &pieces[1]);
        orphans(&mut machine, 200);
        let (verdict, ..) = machine.forward(1, &pieces[0]);
        assert!(matches!(verdict, Verdict::Send(_)));
        whole += usize::from(emit(&mut machine).len() == 2);
    }
    let totals = machine.totals();
    assert_eq!(totals.unaccounted(7_060), 0);
    assert!(totals.dropped[DropReason::FragmentBuffer.index()] > 4_000, "the buffer was full");
    whole
}

#[test]
fn a_flood_of_orphans_takes_only_what_others_leave_of_the_buffer() {
    let orphan = fragments_v4(7, 2500).swap_remove(1);
    let of = |source: u32, number: u32, to| {
        let mut frame = changed(&orphan, source.to_be_bytes(), to, 0);
        frame[18..20].copy_from_slice(&(number as u16).to_be_bytes());
        changed(&frame, source.to_be_bytes(), to, 0)
    };
    let spoofed = |number: u32| number.wrapping_mul(0x9e37_79b9);
    assert_eq!(whole_datagrams(OTHER_VIP, |number| of(spoofed(number), number, VIP)), 20);
    assert_eq!(whole_datagrams(VIP, |number| of(0xc000_0201, number, VIP)), 20);
    let same_vip_spoofed = whole_datagrams(VIP, |number| of(spoofed(number), number, VIP));
    assert_eq!(same_vip_spoofed, 20, "each source has its share");
}

#[test]
fn a_datagram_has_its_share_of_the_buffer_too() {
    let mut machine = collector();
    let pieces = fragments_v4(7, 2500);
    let verdicts: Vec<Verdict> = (0..70).map(|_| machine.forward(0, &pieces[1]).0).collect();
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Hold).count(), 64);
    assert_eq!(verdicts[64], Verdict::Drop(DropReason::FragmentBuffer));
    machine.forward(0, &pieces[0]);
    assert_eq!(emit(&mut machine).len(), 64);
    let totals = machine.totals();
    assert_eq!((totals.unaccounted(71), totals.held, totals.waiting(), totals.sent), (0, 64, 0, 1));
}

#[test]
fn a_fragment_that_waited_counts_as_what_became_of_it() {
    const DONT_FRAGMENT: u8 = 0x40;
    let waited = |mtu: Option<u16>, flags| {
        let mut machine = collector();
        machine.set_next_hops(|_| mtu.map(common::hop).into_iter().collect());
        for piece in fragments_v4(7, 1900).iter().rev() {
            machine.forward(0, &changed(piece, CLIENT, VIP, flags));
        }
        let emitted = emit(&mut machine);
        let totals = machine.totals();
        assert_eq!((totals.unaccounted(2), totals.waiting()), (0, 0));
        (totals, emitted)
    };
    let (sent, emitted) = waited(Some(1600), 0);
    assert_eq!((sent.sent, sent.held, sent.replied, emitted.len()), (1, 1, 0, 1));
    let (answered, emitted) = waited(Some(600), DONT_FRAGMENT);
    assert_eq!((answered.replied, answered.held), (2, 0), "{answered:?}");
    assert_eq!(emitted[0][34..36], [3, 4], "fragmentation needed");
    let (dropped, emitted) = waited(None, 0);
    let reason = DropReason::NoNeighbour.index();
    assert_eq!((dropped.dropped[reason], dropped.held, emitted.len()), (2, 0, 0));
}

#[test]
fn a_forged_first_fragment_replaces_no_decision_that_stands() {
    let mut machine = collector();
    let pieces = fragments_v4(7, 3500);
    let forged: Vec<Vec<u8>> = (1..30u16)
        .map(|port| {
            let mut first = pieces[0].clone();
            first[34..36].copy_from_slice(&port.to_be_bytes());
            first
        })
        .collect();
    let backend = machine.backend(0, &pieces[0]).unwrap();
    let elsewhere = forged.iter().filter(|first| machine.backend(0, first).unwrap() != backend);
    assert!(elsewhere.count() > 10, "each goes where its own ports say");
    assert_eq!(machine.backend(3_000, &pieces[3]).unwrap(), backend, "the last before others");
    machine.backend(0, &forged[3]).unwrap();
    for piece in &pieces[1..3] {
        assert_eq!(machine.backend(3_000, piece).unwrap(), backend);
        machine.backend(0, &forged[5]).unwrap();
    }
    // Whole: now the identification may be another datagram's.
    let others = forged.iter().map(|first| {
        let mut machine = collector();
        pieces.iter().for_each(|piece| drop(machine.backend(0, piece)));
        let backend = machine.backend(0, first).unwrap();
        assert_eq!(machine.backend(0, &pieces[1]).unwrap(), backend);
        backend
    });
    assert!(others.collect::<std::collections::BTreeSet<_>>().len() > 3);
}

#[test]
fn a_held_fragment_keeps_what_it_is_permitted() {
    let mut plan = peered(1, 2);
    plan.groups[0].members.iter_mut().for_each(|member| member.set_state(Down));
    plan.prefix_groups = vec![proto::PrefixGroup {
        name: "a".into(),
        prefixes: vec!["203.0.113.0/24".into(), "198.51.100.0/24".into()],
    }];
    plan.services[0].spill = vec![spill_to("198.51.100.0/24")];
    plan.peers[0].healthy = false;
    let mut machine = Machine::new(plan, 100);
    let pieces = fragments_v4(7, 2500);
    // One that was spilled here waits, and one that a client sent.
    machine.forward(0, &tunnelled(LB_2, LB_1, 2, &pieces[2]));
    machine.forward(0, &pieces[1]);
    assert!(matches!(machine.forward(0, &pieces[0]).0, Verdict::Redirect(_)));
    let emitted = emit(&mut machine);
    assert_eq!(emitted.len(), 1, "what was spilled already is not spilled again");
    let totals = machine.totals();
    assert_eq!(totals.dropped[DropReason::NoBackend.index()], 1);
    assert_eq!(totals.unaccounted(3), 0);
}
