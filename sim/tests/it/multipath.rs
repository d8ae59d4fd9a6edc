//! Services with Multipath TCP, tested with packets: what selects (MPLB, figure 6), and which
//! options SYNs carry for agents.

use std::net::IpAddr;

use crate::common::{self, CLIENT, Machine, VIP, make_stateless, message, udp};
use datapath::explain::{Details, explain};
use datapath::multipath::{MultipathKeys, Selection, WithoutBits, token};
use datapath::{FlowHash, Journey};
use etherparse::PacketBuilder;
use plan::{Affinity, proto};
use wire::tcp_options::Version;
use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;
use wire::tunnel::route_option::RouteOption;
use wire::{FlowKey, headers};

const BUCKETS: u32 = 1024;
const BACKENDS: u32 = 7;

/// Buckets shared out in turn, so that neighbours are other backends'.
fn with_mptcp() -> proto::Plan {
    let mut message = message(BACKENDS as usize);
    let by_bucket: Vec<u32> = (0..BUCKETS).map(|bucket| bucket % BACKENDS).collect();
    make_stateless(&mut message, &by_bucket);
    message.services[0].mptcp = Some(proto::Mptcp {});
    message
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const ISN: u32 = 0x0102_0304;
const V1: [u8; 4] = [30, 4, 0x01, 0x01];
const V0: [u8; 12] = [30, 12, 0x00, 0x81, 1, 2, 3, 4, 5, 6, 7, 8];
const CLIENT_KEY: u64 = 0x0102_0304_0506_0708;

fn join(token: u32) -> Vec<u8> {
    [&[30, 12, 0x10, 2][..], &token.to_be_bytes(), &[9; 4]].concat()
}

fn echo(echo: u32) -> Vec<u8> {
    [&[8, 10, 1, 1, 1, 1][..], &echo.to_be_bytes()].concat()
}

fn segment(v6: bool, port: u16, flags: u8, options: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    let v6_address = |net, host| std::net::Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host);
    let ip = match v6 {
        true => ethernet.ipv6(v6_address(0xc, 1).octets(), v6_address(0xf, 0x10).octets(), 60),
        false => ethernet.ipv4(CLIENT, VIP, 60),
    };
    let mut tcp = ip.tcp(port, 443, ISN, 1024).options_raw(options).unwrap();
    for (flag, set) in [(SYN, true), (RST, true), (ACK, true)] {
        tcp = match flags & flag != 0 && set {
            true if flag == SYN => tcp.syn(),
            true if flag == RST => tcp.rst(),
            true => tcp.ack(1),
            false => tcp,
        };
    }
    let mut frame = Vec::new();
    tcp.write(&mut frame, b"").unwrap();
    frame
}

fn key_of(frame: &[u8]) -> FlowKey {
    headers::parse(frame).unwrap().unwrap().key
}

/// The bucket of the five-tuple, as agents compute it.
fn by_flow(frame: &[u8]) -> u32 {
    let selector = FlowHash::new(&common::secret());
    let message = with_mptcp();
    let machine = Machine::new(message, 10);
    let service = machine.view.plan.services().next().unwrap();
    assert_eq!(service.affinity, Affinity::Flow);
    let hash = selector.selector(service, 0, || key_of(frame));
    (hash >> (64 - BUCKETS.ilog2())) as u32
}

/// The options behind the outer headers, and that the packet inside is the one sent.
fn options(sent: &[u8], frame: &[u8]) -> (Option<RouteOption>, Option<MultipathOption>) {
    let datagram = &frame[14 + 20 + 8..];
    let header = geneve::parse_with_options(datagram).unwrap();
    let inner = &datagram[geneve::HEADER_BYTES + header.options.len()..];
    assert_eq!(inner, &sent[14..]);
    let all: Vec<_> = geneve::options(header.options).map(Option::unwrap).collect();
    assert_eq!(header.has_critical, !all.is_empty());
    let route = all.iter().find_map(RouteOption::parse).map(Result::unwrap);
    let multipath = all.iter().find_map(MultipathOption::parse).map(Result::unwrap);
    let known = usize::from(route.is_some()) + usize::from(multipath.is_some());
    assert_eq!(all.len(), known);
    (route, multipath)
}

fn address_of(bucket: u32) -> IpAddr {
    [10, 1, 0, (1 + bucket % BACKENDS) as u8].into()
}

/// Where the frame is sent to, and what decided.
fn sent(machine: &mut Machine, frame: &[u8]) -> (Journey, Vec<u8>) {
    let (_, journey, out) = machine.forward(1, frame);
    let bucket = journey.slot.unwrap();
    let to: [u8; 4] = out[30..34].try_into().unwrap();
    assert_eq!(IpAddr::from(to), address_of(bucket));
    (journey, out)
}

#[test]
fn a_connection_goes_to_the_bucket_of_the_token_of_its_key() {
    let mut machine = Machine::new(with_mptcp(), 10);
    let keys = MultipathKeys::new(&common::secret());
    let v0 = Version::V0 { client_key: CLIENT_KEY };
    for (v6, version, option) in
        [(false, Version::V1, &V1[..]), (true, Version::V1, &V1), (false, v0, &V0), (true, v0, &V0)]
    {
        for port in 1000..1100 {
            let frame = segment(v6, port, SYN, option);
            let (journey, out) = sent(&mut machine, &frame);
            let key = keys.key(&key_of(&frame), version, ISN);
            let token = token(version, key);
            assert_eq!(journey.multipath, Some(Selection::Key { version, key, token }));
            assert_eq!(journey.slot, Some(token % BUCKETS));
            let bucket = by_flow(&frame);
            let expected = MultipathOption {
                key: Some(key),
                bucket: bucket as u16,
                address: address_of(bucket),
            };
            assert_eq!(options(&frame, &out), (None, Some(expected)));
        }
    }
}

#[test]
fn a_join_goes_to_its_tokens_bucket_from_everywhere() {
    let mut machine = Machine::new(with_mptcp(), 10);
    for token in (0..4_000_000_000u32).step_by(123_456_789) {
        for (v6, port) in [(false, 1000), (false, 1001), (true, 1000)] {
            let frame = segment(v6, port, SYN, &join(token));
            let (journey, out) = sent(&mut machine, &frame);
            assert_eq!(journey.multipath, Some(Selection::Token(token)));
            assert_eq!(journey.slot, Some(token % BUCKETS));
            let bucket = by_flow(&frame);
            let (_, multipath) = options(&frame, &out);
            let address = address_of(bucket);
            assert_eq!(
                multipath,
                Some(MultipathOption { key: None, bucket: bucket as u16, address })
            );
        }
    }
}

#[test]
fn data_go_where_the_echoed_bits_say_wherever_the_option_stands() {
    let mut machine = Machine::new(with_mptcp(), 10);
    let usual = |bits| [&[1, 1][..], &echo(bits)].concat();
    let last = |bits| [&[1; 30][..], &echo(bits)].concat();
    let behind_another = |bits| [&[5, 10, 0, 0, 0, 0, 0, 0, 0, 0][..], &echo(bits)].concat();
    for port in 1000..1050 {
        for bits in [1, 5, 1023, 1024, 8191, 0xffff_ffff, 77 << 13 | 600] {
            for v6 in [false, true] {
                for option in [usual(bits), echo(bits), last(bits), behind_another(bits)] {
                    let frame = segment(v6, port, ACK, &option);
                    let (journey, out) = sent(&mut machine, &frame);
                    assert_eq!(journey.multipath, Some(Selection::Echo(bits)));
                    assert_eq!(journey.slot, Some(bits % BUCKETS));
                    assert_eq!(options(&frame, &out), (None, None));
                }
            }
        }
    }
}

#[test]
fn what_says_no_bits_goes_by_its_five_tuple_and_is_counted_by_reason() {
    use WithoutBits::{CutOption, NoTimestamp, OptionLength, PlainSyn, RepeatedOption};
    let mut machine = Machine::new(with_mptcp(), 10);
    let twice = [V1, V1].concat();
    let cases: [(u8, &[u8], WithoutBits); 10] = [
        (SYN, &[], PlainSyn),
        (SYN, &[2, 4, 5, 0xb4], PlainSyn),
        (SYN, &[30, 4, 0x02, 1], PlainSyn),
        (ACK, &[], NoTimestamp),
        (ACK, &[8, 10, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1], NoTimestamp),
        (RST, &[8, 10, 1, 1, 1, 1, 0, 0, 0, 9, 1, 1], NoTimestamp),
        (SYN, &[30, 8, 0x01, 1], CutOption),
        (SYN, &[30, 12, 0x01, 1, 0, 0, 0, 0, 0, 0, 0, 0], OptionLength),
        (SYN, &twice, RepeatedOption),
        (ACK, &[8, 10, 1, 1, 1, 1, 0, 0, 0, 9, 8, 10, 1, 1, 1, 1, 0, 0, 0, 8], RepeatedOption),
    ];
    for port in 1000..1040 {
        for (flags, option, why) in &cases {
            let frame = segment(port % 2 == 0, port, *flags, option);
            let (journey, out) = sent(&mut machine, &frame);
            assert_eq!(journey.multipath, Some(Selection::Flow(*why)));
            let bucket = by_flow(&frame);
            assert_eq!(journey.slot, Some(bucket));
            let (_, multipath) = options(&frame, &out);
            let address = address_of(bucket);
            let of_syn = MultipathOption { key: None, bucket: bucket as u16, address };
            assert_eq!(multipath, (*flags == SYN).then_some(of_syn));
        }
    }
    let counted = machine.counters(0).multipath.each_ref().map(datapath::counters::Counter::get);
    assert_eq!(counted, [0, 0, 0, 0, 3 * 40, 3 * 40, 40, 40, 2 * 40]);
}

#[test]
fn where_the_bucket_moves_both_options_are_there_and_say_their_own() {
    let mut message = with_mptcp();
    let map = message.services[0].bucket_map.as_mut().unwrap();
    map.moves = (0..BUCKETS)
        .step_by(2)
        .map(|bucket| proto::OpenMove { bucket, others: vec![(bucket + 1) % BACKENDS] })
        .collect();
    let mut machine = Machine::new(message, 10);
    for bucket in [0, 1, 2, 3] {
        let is_moving = bucket % 2 == 0;
        let next = address_of(bucket + 1);
        for (flags, option) in [(SYN, join(bucket)), (ACK, echo(BUCKETS + bucket))] {
            let frame = segment(false, 1000, flags, &option);
            let (_, out) = sent(&mut machine, &frame);
            let (route, multipath) = options(&frame, &out);
            assert_eq!(route.is_some(), is_moving);
            assert!(route.is_none_or(|route| route.addresses[..] == [next]));
            assert_eq!(multipath.is_some(), flags == SYN);
        }
    }
}

#[test]
fn other_protocols_and_services_without_it_go_by_their_five_tuple() {
    let mut plain = with_mptcp();
    plain.services[0].mptcp = None;
    let (mut with, mut without) = (Machine::new(with_mptcp(), 10), Machine::new(plain, 10));
    for port in 1000..1100 {
        let datagram = udp(u32::from_be_bytes(CLIENT), port);
        let [one, other] = [&mut with, &mut without].map(|machine| sent(machine, &datagram));
        assert_eq!((one.0.slot, one.0.multipath), (other.0.slot, None));
        let frame = segment(false, port, SYN, &V1);
        let (journey, out) = sent(&mut without, &frame);
        assert_eq!((journey.slot, journey.multipath), (Some(by_flow(&frame)), None));
        assert_eq!(options(&frame, &out), (None, None));
        sent(&mut without, &segment(false, port, SYN, &join(7)));
        sent(&mut without, &segment(false, port, SYN | ACK, &V1));
    }
    let requested = [with, without].map(|machine| machine.counters(0).multipath_unserved.get());
    assert_eq!(requested, [0, 100], "SYNs with MP_CAPABLE alone");
}

#[test]
fn the_first_fragment_of_a_join_goes_to_its_tokens_bucket_and_the_others_with_it() {
    let mut message = with_mptcp();
    message.services[0].set_fragments(proto::Fragments::On);
    let mut machine = Machine::new(message, 10);
    for token in [3u32, 4, 5, 700] {
        let mut frame = segment(false, 1000, SYN, &join(token));
        let id = (token as u16).to_be_bytes();
        frame[18..20].copy_from_slice(&id);
        let fragment = |frame: &[u8], flags: u16| {
            let mut frame = frame.to_vec();
            frame[20..22].copy_from_slice(&flags.to_be_bytes());
            common::sum_v4(&mut frame);
            frame
        };
        let first = fragment(&frame, 0x2000);
        let (journey, out) = sent(&mut machine, &first);
        assert_eq!(journey.slot, Some(token % BUCKETS));
        assert!(options(&first, &out).1.is_some());
        let later = fragment(&frame, 0x0004);
        let (_, _, out) = machine.forward(1, &later);
        assert_eq!(
            IpAddr::from(<[u8; 4]>::try_from(&out[30..34]).unwrap()),
            address_of(token % BUCKETS)
        );
        assert_eq!(options(&later, &out), (None, None));
    }
}

#[test]
fn an_explanation_says_what_the_header_selects_by_and_the_outer_headers_show_it() {
    let mut machine = Machine::new(with_mptcp(), 10);
    let hash = FlowHash::new(&common::secret());
    let cases: [(u8, Vec<u8>); 5] = [
        (SYN, V1.to_vec()),
        (SYN, join(0xc0a0_fb6c)),
        (SYN, Vec::new()),
        (ACK, echo(77 << 13 | 600)),
        (SYN, [V1, V1].concat()),
    ];
    for (flags, option) in cases {
        let frame = segment(false, 1000, flags, &option);
        let (journey, out) = sent(&mut machine, &frame);
        let details = Details { tcp_header: Some(&frame[34..]), ..Details::default() };
        let told = explain(&machine.view, &hash, &[], &key_of(&frame), details);
        assert_eq!(told.multipath, journey.multipath.map(|by| (by, journey.slot)));
        assert_eq!((told.backend, told.slot), (journey.backend, Some(by_flow(&frame))));
        assert_eq!(told.outer[42..], out[42..told.outer.len()], "Geneve with its options");
        let without = explain(&machine.view, &hash, &[], &key_of(&frame), Details::default());
        assert_eq!((without.multipath, without.slot), (None, told.slot));
    }
}
