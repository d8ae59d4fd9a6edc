//! Packets that the agent leaves to the kernel, and those that it sends on to another agent.

use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

use testnet::root_or_skip;
use wire::{checksum, tcp, tunnel::geneve};

use super::balancing::{self, BACKEND, OTHER_BACKEND};
use super::net::{MIB, MPTCP, Net, agents, kernel, subflows_at, transfer, vip};

/// The connection's bucket moved: the agent in charge now sends on what joins a connection
/// of the other backend, and keeps what joins one of its own.
#[test]
fn a_join_finds_its_connection_where_its_bucket_moved_from() {
    if !root_or_skip("a_join_finds_its_connection_where_its_bucket_moved_from") {
        return;
    }
    let net = Net::with_two_backends();
    let other = net.other.as_ref().unwrap();
    let _agents =
        [net.agent_at(&net.backend, &agents("a"), ""), net.agent_at(other, &agents("b"), "")];
    let [here, there] = [BACKEND, OTHER_BACKEND].map(|address| address.parse::<IpAddr>().unwrap());
    for (is_v6, namespace) in
        [(false, &net.backend), (true, &net.backend), (false, other), (true, other)]
    {
        net.serve_at(namespace, vip(is_v6), true);
    }
    // Trap: all namespaces have one secret for SYN cookies. If each side of a connection has
    // sent as many bytes as the other, its ACKs look as one of the handshake to the other
    // backend, too, and make a connection there. So the server speaks first.
    let connect = || {
        [false, true].map(|is_v6| {
            let mut stream = net.connect(is_v6, MPTCP);
            stream.read_exact(&mut [0; 10]).unwrap();
            stream
        })
    };
    net.balances(|balancing| balancing.to = there);
    let old = connect();
    old.iter().for_each(|stream| transfer(stream, 1000));
    net.balances(|balancing| (balancing.to, balancing.addresses) = (here, vec![there]));
    let new = connect();
    new.iter().for_each(|stream| transfer(stream, 1000));
    net.joins();
    for namespace in [&net.backend, other] {
        net.wait_until("its connections are joined", || {
            kernel(namespace, "MPTcpExt", "MPJoinAckRx") == 2
        });
        assert_eq!(subflows_at(namespace).len(), 4);
    }
    old.iter().chain(&new).for_each(|stream| transfer(stream, MIB));
    assert_eq!(net.status(&net.backend)["packets"]["forwarded"]["no_token"], 2);
    assert_eq!(net.status(other)["packets"]["forwarded"]["no_token"], 0);
    net.assert_no_complaints();
}

/// What follows says nothing of a token, and reaches the backend of the five-tuple's bucket:
/// the connection is there, of several paths only if the token's bucket is the same one's.
#[test]
fn a_client_without_timestamps_connects_where_what_follows_goes() {
    if !root_or_skip("a_client_without_timestamps_connects_where_what_follows_goes") {
        return;
    }
    let net = Net::with_two_backends();
    let other = net.other.as_ref().unwrap();
    let _agents =
        [net.agent_at(&net.backend, &agents("a"), ""), net.agent_at(other, &agents("b"), "")];
    net.client.run("sysctl -qw net.ipv4.tcp_timestamps=0");
    let [here, there] = [BACKEND, OTHER_BACKEND].map(|address| address.parse::<IpAddr>().unwrap());
    for (owner, namespace, plain, multipath) in [(here, &net.backend, 0, 2), (there, other, 2, 0)] {
        net.balances(|balancing| balancing.owner = Some(owner));
        for is_v6 in [false, true] {
            net.serve_at(namespace, vip(is_v6), false);
            transfer(&net.connect(is_v6, MPTCP), MIB);
        }
        assert_eq!(net.status(&net.backend)["packets"]["forwarded"]["plain_syn"], plain);
        assert_eq!(net.event("syn_stripped_timestamps"), plain);
        assert_eq!(kernel(namespace, "MPTcpExt", "MPCapableACKRX"), multipath);
    }
    net.assert_no_complaints();
}

/// Beyond 20,000 SYNs a second they are the kernel's without MP_CAPABLE, and none is lost.
#[test]
fn of_a_flood_of_syns_none_is_dropped() {
    if !root_or_skip("of_a_flood_of_syns_none_is_dropped") {
        return;
    }
    const SYNS: u16 = 6000;
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    let packets: Vec<Vec<u8>> = net.lb.inside(|| {
        let mut balancing = net.balancing.lock().unwrap();
        (0..SYNS).map(|number| balancing.encapsulated(&capable_syn(10_000 + number))).collect()
    });
    let tunnel = net.lb.inside(balancing::tunnel);
    // A veth pair's queue has room for 256.
    for some in packets.chunks(64) {
        for packet in some {
            tunnel.send_to(packet, (BACKEND, geneve::PORT)).unwrap();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let sum = |names: &[&str]| names.iter().map(|name| net.event(name)).sum::<u64>();
    let packets = &net.status(&net.backend)["packets"];
    let arrived = packets["decapsulated"]["geneve"].as_u64().unwrap();
    assert!(packets["dropped"].as_object().unwrap().values().all(|count| *count == 0));
    let all = ["syn_handed", "syn_stripped_rate", "syn_stripped_room"];
    assert!(arrived > u64::from(SYNS) / 2, "{arrived}");
    assert_eq!(sum(&all), arrived);
    assert!(net.event("syn_stripped_rate") > 0);
    let given = ["syn_cookie", "syn_plain", "syn_stripped_token"];
    net.wait_until("the kernel has had all", || {
        sum(&given) == net.event("syn_handed") + net.event("syn_repeated")
    });
    assert_eq!((net.event("syn_failed"), net.event("syn_stripped_silence")), (0, 0));
    assert!(kernel(&net.backend, "Tcp", "OutSegs") >= arrived, "each is answered");
    transfer(&net.connect(false, MPTCP), MIB);
}

/// Rules that name the interface see SYNs by another one.
#[test]
fn a_firewall_that_accepts_by_interface_is_told() {
    if !root_or_skip("a_firewall_that_accepts_by_interface_is_told") {
        return;
    }
    const TOLD: &str = "iifname { eth0, gw-mptcp }";
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    let open = |from: u16| {
        let tunnel = net.lb.inside(balancing::tunnel);
        for port in from..from + 20 {
            let packet =
                net.lb.inside(|| net.balancing.lock().unwrap().encapsulated(&capable_syn(port)));
            tunnel.send_to(&packet, (BACKEND, geneve::PORT)).unwrap();
        }
    };
    net.backend.run("nft add table inet f");
    net.backend
        .run("nft add chain inet f in { type filter hook input priority 0 ; policy drop ; }");
    net.backend.run("nft add rule inet f in iifname { lo, eth0 } accept");
    open(10_000);
    net.wait_until("the kernel has had them", || net.event("syn_cookie") >= 20);
    assert_eq!(net.event("syn_ack_keyed"), 0);
    assert!(net.doctor().contains(TOLD), "{}", net.doctor());
    net.backend.run("nft add rule inet f in iifname gw-mptcp accept");
    open(11_000);
    net.wait_until("they are answered, and the former, which are repeated", || {
        net.event("syn_ack_keyed") >= net.event("syn_cookie") / 2
    });
    transfer(&net.connect(false, MPTCP), MIB);
    assert!(!net.doctor().contains(TOLD), "{}", net.doctor());
}

/// With MP_CAPABLE, from an address that no host has, which would reset what is answered.
pub fn capable_syn(port: u16) -> Vec<u8> {
    syn_from([192, 0, 2, 1], port, &[30, 4, 1, 1])
}

/// The same with timestamps, from one of many clients.
pub fn timed_syn(number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let timestamps = [1, 1, 8, 10, 0, 0, high, low, 0, 0, 0, 0];
    syn_from([198, 18, high, low], number, &[&[30, 4, 1, 1][..], &timestamps].concat())
}

fn syn_from(source: [u8; 4], port: u16, options: &[u8]) -> Vec<u8> {
    let IpAddr::V4(vip) = vip(false) else { unreachable!() };
    let mut segment = vec![0; tcp::HEADER_BYTES];
    segment[..2].copy_from_slice(&port.to_be_bytes());
    segment[2..4].copy_from_slice(&super::net::PORT.to_be_bytes());
    segment[4..8].copy_from_slice(&1234_u32.to_be_bytes());
    segment.extend(options);
    let length = segment.len();
    segment[12..16].copy_from_slice(&[(length as u8 / 4) << 4, balancing::SYN, 0xff, 0xff]);
    let sum = checksum::pseudo_header(&source, &vip.octets(), 6, length) + checksum::sum(&segment);
    segment[16..18].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    let header = wire::ipv4::Emit {
        packet_bytes: 20 + length as u16,
        traffic_class: 0,
        id: 0,
        flags: 0x4000,
        ttl: 60,
        protocol: wire::Protocol::TCP,
        source: u32::from_be_bytes(source),
        destination: vip.to_bits(),
    };
    [&header.to_bytes()[..], &segment].concat()
}
