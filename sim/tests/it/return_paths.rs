//! Where answers go: to the router that a packet came from; if it arrived in a tunnel from
//! another load balancer, to one of our routers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{self, CLIENT, Machine, VIP, message};
use datapath::outbox::Kind;
use datapath::reply::{ReplyLink, ReturnPaths};
use datapath::trace::{MARK_BYTES, Mark, PACKET_BYTES, sign};
use datapath::verdict::DeviceIndex;
use datapath::{NextHop, Secret, Verdict};
use etherparse::{IpNumber, PacketBuilder};
use plan::proto;
use wire::MacAddress;

const SENDER: [u8; 6] = [1; 6];
const OURS: [u8; 6] = [2; 6];
const ROUTER: NextHop = NextHop {
    device: DeviceIndex(3),
    source: MacAddress([2, 0, 0, 0, 0, 3]),
    destination: MacAddress([2, 0, 0, 0, 0, 0x33]),
    mtu: 1500,
    is_destination: true,
};

/// With the peer lb-2, at 10.0.0.2.
fn machine(return_paths: ReturnPaths) -> Machine {
    machine_with_secret(return_paths, common::secret())
}

fn machine_with_secret(return_paths: ReturnPaths, secret: Secret) -> Machine {
    let mut plan = message(3);
    plan.peers = vec![proto::Peer {
        name: "lb-2".into(),
        addresses: vec!["10.0.0.2".into()],
        healthy: true,
    }];
    let mut machine = Machine::with_secret(plan, 100, secret);
    Arc::get_mut(&mut machine.view).unwrap().return_paths = return_paths;
    machine
}

fn known() -> ReturnPaths {
    let other = NextHop { device: DeviceIndex(6), ..ROUTER };
    ReturnPaths { all: None, v4: Some(ROUTER), v6: Some(other) }
}

/// As the peer redirects it: in GRE that permits one further encapsulation.
fn redirected(frame: &[u8], ether_type: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let gre = [&[1, 0][..], &ether_type.to_be_bytes(), &frame[14..]].concat();
    PacketBuilder::ethernet2(SENDER, OURS)
        .ipv4([10, 0, 0, 2], [10, 0, 0, 1], 60)
        .write(&mut bytes, IpNumber(47), &gre)
        .unwrap();
    bytes
}

fn echo_v4() -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(SENDER, OURS).ipv4(CLIENT, VIP, 60);
    builder.icmpv4_echo_request(7, 1).write(&mut bytes, b"ping").unwrap();
    bytes
}

fn echo_v6() -> Vec<u8> {
    let vip: [u8; 16] = "2001:db8:f::10".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(SENDER, OURS).ipv6([0x20; 16], vip, 60);
    builder.icmpv6_echo_request(7, 1).write(&mut bytes, b"ping").unwrap();
    bytes
}

fn link(frame: &[u8]) -> ([u8; 6], [u8; 6]) {
    (*frame[..6].first_chunk().unwrap(), *frame[6..12].first_chunk().unwrap())
}

#[test]
fn a_clients_packet_is_answered_by_way_of_whom_it_came_from() {
    for return_paths in [ReturnPaths::default(), known()] {
        let (verdict, _, answer) = machine(return_paths).forward(0, &echo_v4());
        assert_eq!((verdict, link(&answer)), (Verdict::Reply, (SENDER, OURS)));
    }
}

#[test]
fn what_came_from_a_peer_is_answered_by_way_of_a_router() {
    for (echo, ether_type, device) in [(echo_v4(), 0x0800, 3), (echo_v6(), 0x86dd, 6)] {
        let (verdict, _, answer) = machine(known()).forward(0, &redirected(&echo, ether_type));
        assert_eq!(verdict, Verdict::ReplyBy(DeviceIndex(device)));
        assert_eq!(link(&answer), (ROUTER.destination.0, ROUTER.source.0));
        assert_eq!(answer[12..14], ether_type.to_be_bytes());
    }
}

/// Probes from load balancer to load balancer need no router.
#[test]
fn what_a_peer_asks_itself_is_answered_to_the_peer() {
    let mut echo = Vec::new();
    let builder = PacketBuilder::ethernet2(SENDER, OURS).ipv4([10, 0, 0, 2], VIP, 60);
    builder.icmpv4_echo_request(7, 1).write(&mut echo, b"ping").unwrap();
    let (verdict, _, answer) = machine(known()).forward(0, &redirected(&echo, 0x0800));
    assert_eq!((verdict, link(&answer)), (Verdict::Reply, (SENDER, OURS)));
}

#[test]
fn without_a_router_it_goes_back_to_the_peer() {
    let echo = redirected(&echo_v4(), 0x0800);
    let (verdict, _, answer) = machine(ReturnPaths::default()).forward(0, &echo);
    assert_eq!((verdict, link(&answer)), (Verdict::Reply, (SENDER, OURS)));
}

#[test]
fn too_big_is_told_by_way_of_a_router() {
    let mut large = Vec::new();
    PacketBuilder::ethernet2(SENDER, OURS)
        .ipv4(CLIENT, VIP, 60)
        .udp(1000, 53)
        .write(&mut large, &[0; 1560])
        .unwrap();
    // Do not fragment.
    large[20] = 0x40;
    common::sum_v4(&mut large);
    let (verdict, _, answer) = machine(known()).forward(0, &redirected(&large, 0x0800));
    assert_eq!(verdict, Verdict::ReplyBy(DeviceIndex(3)));
    assert_eq!(link(&answer), (ROUTER.destination.0, ROUTER.source.0));
    assert_eq!((answer[34], answer[35]), (3, 4), "fragmentation needed");
}

/// As in replay: every answer's link addresses are given.
#[test]
fn link_addresses_of_everything_count_more_than_routers() {
    let (source, destination) = (MacAddress([8; 6]), MacAddress([9; 6]));
    let all = ReturnPaths { all: Some(ReplyLink { source, destination }), ..known() };
    for echo in [echo_v4(), redirected(&echo_v4(), 0x0800)] {
        let (verdict, _, answer) = machine(all).forward(0, &echo);
        assert_eq!((verdict, link(&answer)), (Verdict::Reply, ([9; 6], [8; 6])));
    }
}

#[test]
fn reports_on_what_came_from_a_peer_leave_by_way_of_a_router() {
    const UNIX_MS: u64 = 1_800_000_000_000;
    let secret = Secret::from_file_content(b"0123456789abcdef0123456789abcdef").unwrap();
    for (nonce, receiver, device) in [(1, "192.0.2.99", 3), (2, "2001:db8:9::9", 6)] {
        let mut marked = Vec::new();
        PacketBuilder::ethernet2(SENDER, OURS)
            .ipv4(CLIENT, VIP, 60)
            .udp(1000, 53)
            .write(&mut marked, &vec![0; usize::from(PACKET_BYTES) - 28])
            .unwrap();
        let key = wire::headers::parse(&marked).unwrap().unwrap().key;
        let mark = Mark { receiver: receiver.parse().unwrap(), port: 7777, nonce };
        let at = marked.len() - MARK_BYTES;
        marked[at..].copy_from_slice(&sign(&secret.trace_key().unwrap(), &mark, UNIX_MS, &key));
        for (frame, device, addresses) in [
            (
                redirected(&marked, 0x0800),
                Some(DeviceIndex(device)),
                (ROUTER.destination.0, ROUTER.source.0),
            ),
            (marked.clone(), None, (SENDER, OURS)),
        ] {
            let mut machine = machine_with_secret(known(), secret.clone());
            machine.view.unix_offset_ms.store(UNIX_MS as i64, Ordering::Relaxed);
            assert!(matches!(machine.forward(0, &frame).0, Verdict::Send(_)));
            let report = machine.originated.pop().unwrap();
            assert_eq!((report.counts, report.device), (Kind::Report.into(), device));
            assert_eq!(link(&report.bytes), addresses);
        }
    }
}
