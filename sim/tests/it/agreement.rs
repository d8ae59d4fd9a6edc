//! All code that decides about a packet agrees: the one-packet path, batches, the slow path
//! (for its first fragment, and for an error about an answer to it) and explanations, on random
//! packets over random plans; second chances are limited in all of them alike.
//! `AGREEMENT_TEST_PACKETS=4000000` makes the run longer; a failure names the seed.

use std::net::{IpAddr, Ipv6Addr};

use crate::batch::{self, Side};
use crate::common::Random;
use datapath::explain::{Details, Explanation, explain};
use datapath::{DropReason, FlowHash, Journey, Verdict};
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4::DestUnreachableHeader};
use plan::proto;
use sim::{Outcome, Path};
use wire::tunnel::geneve;
use wire::{Family, FlowKey, Fragment, Headers, Protocol, ethernet, headers};

const MTU: u16 = 1600;
const PLANS: u64 = 50;
const FAR: [u8; 4] = [198, 18, 0, 1];
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xd, 0, 0, 0, 0, 1);

/// Where a packet went, and what it said to agents there; or why it went nowhere.
type Way = Result<(IpAddr, Vec<u8>), DropReason>;

/// How often each decided about a packet, beside the one-packet path.
#[derive(Debug, Default)]
struct Compared {
    batches: u64,
    fragments: u64,
    errors: u64,
    explanations: u64,
    second_chances: u64,
    limited: u64,
}

/// A plan of which this machine takes all fragments.
fn plan(random: &mut Random) -> proto::Plan {
    let mut message = batch::plan(random);
    message.peers.clear();
    message.services.iter_mut().for_each(|service| service.set_fragments(proto::Fragments::On));
    message
}

/// A whole packet of TCP or UDP, with some content, so that its first fragment has all headers.
fn packet(random: &mut Random) -> (Vec<u8>, Headers) {
    loop {
        let payload_bytes = random.pick(&[8, 104, 704]);
        let bytes = batch::packet(random, payload_bytes);
        let Ok(Some(headers)) = headers::parse(&bytes) else { continue };
        let carries_ports = matches!(headers.key.protocol, Protocol::TCP | Protocol::UDP);
        if carries_ports && headers.fragment == Fragment::Whole {
            return (bytes, headers);
        }
    }
}

/// The first fragment of a datagram that begins with that packet.
fn first_fragment(packet: &[u8], key: &FlowKey, id: u16) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    match key.family {
        Family::V4 => {
            bytes.truncate(34 + (packet.len() - 34) / 8 * 8);
            let length = (bytes.len() - ethernet::HEADER_BYTES) as u16;
            bytes[16..18].copy_from_slice(&length.to_be_bytes());
            bytes[18..20].copy_from_slice(&id.to_be_bytes());
            bytes[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
            crate::common::sum_v4(&mut bytes);
        }
        Family::V6 => {
            bytes.truncate(54 + (packet.len() - 54) / 8 * 8);
            let [high, low] = id.to_be_bytes();
            bytes.splice(54..54, [key.protocol.0, 0, 0, 1, 0, 0, high, low]);
            bytes[20] = 44;
            let length = (bytes.len() - 54) as u16;
            bytes[18..20].copy_from_slice(&length.to_be_bytes());
        }
    }
    bytes
}

/// A router's error about an answer to that packet.
fn error_about(key: &FlowKey) -> Vec<u8> {
    let ethernet = || PacketBuilder::ethernet2([1; 6], [2; 6]);
    let (to, from) = (key.source_port, key.destination_port);
    let (v4, v6) = (|address: u128| (address as u32).to_be_bytes(), u128::to_be_bytes);
    let (client, vip) = (key.source, key.destination);
    let ip = match key.family {
        Family::V4 => ethernet().ipv4(v4(vip), v4(client), 60),
        Family::V6 => ethernet().ipv6(v6(vip), v6(client), 60),
    };
    let mut quoted = Vec::new();
    match key.protocol {
        Protocol::TCP => ip.tcp(from, to, 7, 1024).write(&mut quoted, &[]).unwrap(),
        _ => ip.udp(from, to).write(&mut quoted, &[0; 8]).unwrap(),
    }
    let quoted = &quoted[ethernet::HEADER_BYTES..];
    let mut bytes = Vec::new();
    match key.family {
        Family::V4 => {
            let too_big = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1400 };
            let icmp = Icmpv4Type::DestinationUnreachable(too_big);
            ethernet().ipv4(FAR, v4(vip), 60).icmpv4(icmp).write(&mut bytes, quoted).unwrap();
        }
        Family::V6 => {
            let icmp = Icmpv6Type::PacketTooBig { mtu: 1400 };
            let ip = ethernet().ipv6(FAR_V6.octets(), v6(vip), 60);
            ip.icmpv6(icmp).write(&mut bytes, quoted).unwrap();
        }
    }
    bytes
}

fn way(verdict: Verdict, frame: &[u8]) -> Way {
    match verdict {
        Verdict::Send(_) => Ok(tunnel_of(frame)),
        Verdict::Drop(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// The outer destination and the options behind a Geneve header.
fn tunnel_of(frame: &[u8]) -> (IpAddr, Vec<u8>) {
    let key = headers::parse(frame).unwrap().expect("IP in front").key;
    let (address, ip_bytes): (IpAddr, _) = match key.family {
        Family::V4 => (IpAddr::from((key.destination as u32).to_be_bytes()), 20),
        Family::V6 => (IpAddr::from(key.destination.to_be_bytes()), 40),
    };
    let is_geneve = key.protocol == Protocol::UDP && key.destination_port == geneve::PORT;
    let datagram = &frame[ethernet::HEADER_BYTES + ip_bytes..];
    let header = is_geneve.then(|| geneve::parse_with_options(&datagram[8..]).expect("Geneve"));
    (address, header.map_or(Vec::new(), |header| header.options.to_vec()))
}

/// The connection id where a QUIC packet has it.
fn connection_id(payload: &[u8]) -> Option<&[u8]> {
    match payload.first()? & 0x80 {
        0 => payload.get(1..),
        _ => payload.get(6..)?.get(..usize::from(payload[5])),
    }
}

/// What an explanation says of the packet.
fn explained(side: &Side, hash: &FlowHash, bytes: &[u8], headers: &Headers) -> Explanation {
    let details = Details {
        connection_id: headers.udp_payload(bytes).and_then(connection_id),
        tcp_header: headers.tcp_segment(bytes),
    };
    let balancer = &side.balancer;
    explain(&balancer.view, hash, &balancer.tables, &headers.key, details)
}

/// Where it goes by that.
fn way_told(told: &Explanation, family: Family) -> Way {
    let small = if family == Family::V4 { 40 } else { 60 };
    match told.end {
        Some(reason) => Err(reason),
        None => Ok(tunnel_of(&[&told.outer[..], &vec![0; small]].concat())),
    }
}

/// The packet says itself where it goes, which an error about an answer does not.
fn is_named(journey: &Journey) -> bool {
    let by_bits = journey.multipath.is_some_and(|selection| selection.bits().is_some());
    by_bits || journey.connection_id.is_some_and(|named| named.is_ok())
}

struct Sides {
    one: Side,
    all: Side,
    /// Meets with each packet's first fragment and an error about it in front of it.
    slow: Side,
    hash: FlowHash,
}

impl Sides {
    fn new(message: &proto::Plan) -> Sides {
        let side = |path| Side::new(message, MTU, 1 << 12, path);
        let (one, all) = (side(Path::Specification), side(Path::Batch));
        let slow = side(Path::Specification);
        Sides { one, all, slow, hash: FlowHash::new(&batch::secret()) }
    }

    fn set(&mut self, message: &proto::Plan) {
        let Sides { one, all, slow, .. } = self;
        [one, all, slow].into_iter().for_each(|side| side.set(message, MTU));
    }

    fn set_time(&mut self, now_ms: u64) {
        let Sides { one, all, slow, .. } = self;
        [one, all, slow].into_iter().for_each(|side| side.balancer.set_time(now_ms));
    }

    /// Forwards packets on all sides.
    fn compare(&mut self, packets: &[(Vec<u8>, Headers)], id: u16, compared: &mut Compared) {
        let frames: Vec<&[u8]> = packets.iter().map(|(bytes, _)| bytes.as_slice()).collect();
        let in_batch = self.all.balancer.forward(0, 0, &frames);
        for (at, (bytes, headers)) in packets.iter().enumerate() {
            let told = explained(&self.one, &self.hash, bytes, headers);
            let limited = &self.one.balancer.counters(0).second_chances.limited;
            let before = limited.get();
            let one = self.one.balancer.forward(0, 0, &[bytes]).remove(0);
            let is_limited = limited.get() > before;
            compared.limited += u64::from(is_limited);
            compared.second_chances += u64::from(one.journey.second_chance);
            let Outcome { verdict: in_batch, frame, .. } = &in_batch[at];
            if let Verdict::Pass = one.verdict {
                assert_eq!(*in_batch, Verdict::Pass);
                continue;
            }
            let expected = way(one.verdict, &one.frame);
            assert_eq!(way(*in_batch, frame), expected, "by a batch: {:?}", headers.key);
            compared.batches += 1;
            let has_chance = expected.is_ok() && (one.journey.second_chance || is_limited);
            assert_eq!(told.second_chance, has_chance, "{:?}", headers.key);
            let told = way_told(&told, headers.key.family);
            match is_limited {
                true => assert_eq!(told.map(to), expected.clone().map(to)),
                false => assert_eq!(told, expected, "explained: {:?}", headers.key),
            }
            compared.explanations += 1;
            self.compare_slow(bytes, headers, id.wrapping_add(at as u16), &one, compared);
        }
    }

    fn compare_slow(
        &mut self,
        bytes: &[u8],
        headers: &Headers,
        id: u16,
        one: &Outcome,
        compared: &mut Compared,
    ) {
        let (key, expected) = (&headers.key, way(one.verdict, &one.frame));
        let mut decided = |frame: &[u8]| {
            let outcome = self.slow.balancer.forward(0, 0, &[frame]).remove(0);
            way(outcome.verdict, &outcome.frame)
        };
        let has_id = one.journey.connection_id.is_some_and(|named| named.is_ok());
        if expected != Err(DropReason::NoService) && !has_id {
            let by_fragment = decided(&first_fragment(bytes, key, id));
            // Its datagram's others would have no second chance.
            match one.journey.second_chance {
                true => assert_eq!(by_fragment.map(to), expected.clone().map(to)),
                false => assert_eq!(by_fragment, expected, "by a fragment: {key:?}"),
            }
            compared.fragments += 1;
        }
        if expected != Err(DropReason::NoService)
            && !headers.tcp_flags.opens()
            && !is_named(&one.journey)
        {
            assert_eq!(decided(&error_about(key)), expected, "by an error: {key:?}");
            compared.errors += 1;
        }
        assert_eq!(decided(bytes), expected, "after both: {key:?}");
    }
}

fn to((address, _): (IpAddr, Vec<u8>)) -> IpAddr {
    address
}

fn run(seed: u64, packets: u64, compared: &mut Compared) {
    let mut random = Random(seed);
    let mut sides = Sides::new(&plan(&mut random));
    let (mut now_ms, mut forwarded) = (0, 0);
    while forwarded < packets {
        if random.one_in(50) {
            sides.set(&plan(&mut random));
        }
        now_ms += random.pick(&[0, 1, 30, 100, 150, 900, 12_000]);
        sides.set_time(now_ms);
        let count = 1 + random.below(64);
        let packets: Vec<_> = (0..count).map(|_| packet(&mut random)).collect();
        sides.compare(&packets, forwarded as u16, compared);
        forwarded += count;
    }
}

#[test]
fn all_who_decide_agree() {
    let packets = std::env::var("AGREEMENT_TEST_PACKETS");
    let packets: u64 = packets.map_or(500_000, |text| text.parse().expect("a number"));
    let mut compared = Compared::default();
    for seed in 0..PLANS {
        println!("seed {seed}"); // shown if it fails
        run(seed, packets / PLANS, &mut compared);
    }
    println!("{compared:?}");
    let Compared { batches, fragments, errors, explanations, second_chances, limited } = compared;
    for (what, count) in [
        ("batches", batches),
        ("fragments", fragments),
        ("errors", errors),
        ("explanations", explanations),
    ] {
        assert!(count > packets / 10, "{count} by {what}");
    }
    assert!(second_chances > 100 && limited > 100, "{second_chances} sent, {limited} limited");
}
