//! Redirect rules: a connection is on the backend given by its token, and packets without
//! timestamps reach the other backend, to which its five-tuple leads.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use testnet::{Namespace, root_or_skip};
use wire::tunnel::geneve;

use super::agents::capable_syn;
use super::balancing::{BACKEND, OTHER_BACKEND, forge_hmac, take_timestamps_off_resets, tunnel};
use super::net::{
    BOTH_FAMILIES, MIB, MPTCP, Net, agents, each, kernel, listener_at, transfer, vip,
};
use crate::support::Agent;
use crate::support::bpf_file_system::BpfFileSystem;

/// Rules end after both agents have listed theirs, each ten seconds.
const LISTS: Duration = Duration::from_secs(30);

const RULES_PORT: u16 = 9476;

/// Of the agents, from one secret: each has the key of both.
const PAIR_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

struct Pair {
    net: Net,
    _pins: BpfFileSystem,
}

impl Pair {
    fn new() -> Pair {
        let net = Net::with_two_backends();
        net.balances(|balancing| balancing.owner = Some(OTHER_BACKEND.parse().unwrap()));
        let pins = BpfFileSystem::mount(net.folder.path().join("bpf"));
        Pair { net, _pins: pins }
    }

    fn here(&self) -> &Namespace {
        &self.net.backend
    }

    fn there(&self) -> &Namespace {
        self.net.other.as_ref().unwrap()
    }

    fn without_timestamps(&self) {
        self.net.client.run("sysctl -qw net.ipv4.tcp_timestamps=0");
    }

    /// Agents a here and b there, of which this one has a key of the other, or not.
    fn agent(&self, name: &str, has_key: bool) -> Agent {
        let (namespace, other) = if name == "a" { (self.here(), "b") } else { (self.there(), "a") };
        let folder = self.net.folder.path();
        let keys = folder.join(format!("{name}.key"));
        let mut text = format!(
            "agent: {name}\nkey_id: \"0123456789abcdef\"\nmessage_key: \"{PAIR_KEY}\"\nbucket_key: \"{}\"\n",
            &PAIR_KEY[..32]
        );
        if has_key {
            text += &format!("peers:\n  {other}: \"{PAIR_KEY}\"\n");
        }
        std::fs::write(&keys, text).unwrap();
        let pin = folder.join("bpf").join(name);
        let (keys, pin) = (keys.display(), pin.display());
        let fields = format!("{}, key_file: {keys}, pin: {pin}", agents(name));
        self.net.agent_at(namespace, &fields, "")
    }

    /// Both, which take rules of one another.
    fn agents(&self) -> [Agent; 2] {
        let agents = ["a", "b"].map(|name| self.agent(name, true));
        self.wait_until_rules_are_taken();
        agents
    }

    fn wait_until_rules_are_taken(&self) {
        self.net.wait_until("agents take rules of one another", || {
            [self.here(), self.there()].iter().all(|at| self.rules(at, "agents") == 1)
        });
    }

    /// Until all rules for connections here are granted, which are of this number.
    /// Those of handshakes are requested for six seconds, and longer on a busy machine.
    fn wait_until_granted(&self, count: u64) {
        self.net.wait_within(LISTS, "rules are granted", || {
            self.rules(self.here(), "requested") == count && self.rules(self.here(), "pending") == 0
        });
    }

    fn wait_until_there_are_none(&self) {
        self.net.wait_within(LISTS, "no rule is left", || {
            self.rules(self.here(), "requested") == 0 && self.rules(self.there(), "rules") == 0
        });
    }

    fn rules(&self, namespace: &Namespace, field: &str) -> u64 {
        let status = self.net.status(namespace);
        status["redirects"][field].as_u64().unwrap_or_else(|| panic!("{field}: {status}"))
    }

    fn event(&self, namespace: &Namespace, name: &str) -> u64 {
        let status = self.net.status(namespace);
        status["redirects"]["events"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status}"))
    }

    fn sent_by_rules(&self) -> u64 {
        self.net.status(self.there())["packets"]["forwarded"]["redirect_rule"].as_u64().unwrap()
    }
}

#[test]
fn a_client_without_timestamps_has_both_subflows_by_rules() {
    if !root_or_skip("a_client_without_timestamps_has_both_subflows_by_rules") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let pair = Pair::new();
        pair.without_timestamps();
        pair.net.joins();
        let _agents = pair.agents();
        pair.net.serve(is_v6, false);
        let stream = pair.net.connect(is_v6, MPTCP);
        transfer(&stream, 1000);
        pair.net.wait_until("the join", || pair.net.at_backend("MPJoinAckRx") == 1);
        // Trap: without window scaling, which SYN cookies keep in timestamps alone, Linux lets
        // a subflow stall if both sides have sent more than 64 KB.
        (0..200).for_each(|_| transfer(&stream, 50_000));
        assert_eq!(pair.net.at_backend("MPCapableACKRX"), 1);
        assert!(pair.sent_by_rules() > 1000);
        pair.wait_until_granted(2);
        drop(stream);
        pair.wait_until_there_are_none();
        pair.net.assert_no_complaints();
    });
}

/// A later fragment has no ports, and follows its first one.
#[test]
fn fragments_reach_their_connection_by_timestamps_and_by_rules() {
    if !root_or_skip("fragments_reach_their_connection_by_timestamps_and_by_rules") {
        return;
    }
    each(&[(false, true), (false, false), (true, true), (true, false)], |&(is_v6, is_timed)| {
        let pair = Pair::new();
        if !is_timed {
            pair.without_timestamps();
        }
        pair.net.balances(|balancing| balancing.fragments = true);
        let _agents = pair.agents();
        pair.net.serve(is_v6, false);
        let stream = pair.net.connect(is_v6, MPTCP);
        transfer(&stream, 50_000);
        assert!(reassembled(pair.here(), is_v6) >= 30);
        assert_eq!(pair.sent_by_rules() >= 60, !is_timed);
        assert_eq!(pair.net.at_backend("MPCapableACKRX"), 1);
        pair.net.assert_no_complaints();
    });
}

/// Packets that the kernel put together.
fn reassembled(namespace: &Namespace, is_v6: bool) -> u64 {
    if !is_v6 {
        return kernel(namespace, "Ip", "ReasmOKs");
    }
    let text = namespace.run("cat /proc/thread-self/net/snmp6");
    let count = text.lines().find_map(|line| line.strip_prefix("Ip6ReasmOKs"));
    count.unwrap().trim().parse().unwrap()
}

/// Namespaces of one machine have SYN cookies of one secret: so the other backend's listener
/// would take the client's ACK, once it has sent a cookie itself.
#[test]
fn a_client_without_timestamps_is_not_the_other_listeners() {
    if !root_or_skip("a_client_without_timestamps_is_not_the_other_listeners") {
        return;
    }
    each(&[false, true], |&greets| {
        let pair = Pair::new();
        pair.without_timestamps();
        let _agents = pair.agents();
        pair.net.serve(false, greets);
        pair.net.serve_at(pair.there(), vip(false), greets);
        let to_other = pair.net.balancing.lock().unwrap().encapsulated(&capable_syn(10_000));
        let tunnel = pair.net.lb.inside(tunnel);
        // Again, as clients do: an agent that waits for a processor leaves SYNs to the kernel.
        pair.net.wait_until("the other one sends a cookie", || {
            tunnel.send_to(&to_other, (OTHER_BACKEND, geneve::PORT)).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            kernel(pair.there(), "TcpExt", "SyncookiesSent") > 0
        });
        let mut slow = 0;
        for _ in 0..10 {
            let start = Instant::now();
            let mut stream = pair.net.connect(false, MPTCP);
            if greets {
                stream.read_exact(&mut [0; 10]).unwrap();
            }
            transfer(&stream, 1000);
            slow += u32::from(start.elapsed() > Duration::from_millis(900));
        }
        // A rule that is late by 30 ms, on a busy machine, costs a second.
        assert!(slow <= 3, "{slow} of 10");
        assert_eq!(pair.net.at_backend("MPCapableACKRX"), 10);
        assert_eq!(kernel(pair.there(), "MPTcpExt", "MPCapableACKRX"), 0);
        pair.net.assert_no_complaints();
    });
}

#[test]
fn a_clients_rst_reaches_its_connection() {
    if !root_or_skip("a_clients_rst_reaches_its_connection") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let pair = Pair::new();
        pair.net.balances(|balancing| balancing.forges = take_timestamps_off_resets);
        let _agents = pair.agents();
        let listener = listener_at(pair.here(), vip(is_v6));
        let mut stream = pair.net.connect(is_v6, MPTCP);
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_read_timeout(Some(LISTS)).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        accepted.read_exact(&mut bytes).unwrap();
        pair.wait_until_granted(1);
        assert_eq!(pair.sent_by_rules(), 0, "all that came has timestamps");
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        let read = accepted.read(&mut bytes);
        assert!(read.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset), "{read:?}");
        assert!(pair.sent_by_rules() > 0);
    });
}

/// What the server sends next fits.
#[test]
fn an_icmp_error_reaches_its_connection() {
    if !root_or_skip("an_icmp_error_reaches_its_connection") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let pair = Pair::new();
        let _agents = pair.agents();
        pair.net.serve(is_v6, false);
        let stream = pair.net.connect(is_v6, MPTCP);
        transfer(&stream, 1000);
        pair.wait_until_granted(1);
        let (network, client) =
            if is_v6 { ("fd66:1::/64", "fd66:1::2") } else { ("10.66.1.0/24", "10.66.1.2") };
        let family = if is_v6 { "-6" } else { "-4" };
        pair.net.lb.run(&format!("ip {family} route flush {network} dev to1"));
        pair.net.lb.run(&format!("ip {family} route add {network} dev to1 mtu 1300"));
        transfer(&stream, MIB);
        let route = pair.here().run(&format!("ip route get {client}"));
        assert!(route.contains("mtu 1300"), "{route}");
        assert!(pair.sent_by_rules() > 0);
    });
}

/// It is plain where what it sends goes.
#[test]
fn without_a_key_of_the_other_agent_no_rule_is_requested() {
    if !root_or_skip("without_a_key_of_the_other_agent_no_rule_is_requested") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let pair = Pair::new();
        pair.without_timestamps();
        let _agents = [pair.agent("a", false), pair.agent("b", true)];
        pair.net.serve_at(pair.there(), vip(is_v6), false);
        transfer(&pair.net.connect(is_v6, MPTCP), MIB);
        let status = pair.net.status(pair.here());
        assert_eq!(status["packets"]["forwarded"]["plain_syn"], 1);
        assert!(status["redirects"]["problem"].as_str().unwrap().contains("no key"), "{status}");
        assert_eq!(kernel(pair.there(), "MPTcpExt", "MPCapableACKRX"), 0);
    });
}

#[test]
fn either_agent_killed_in_mid_transfer_breaks_nothing() {
    if !root_or_skip("either_agent_killed_in_mid_transfer_breaks_nothing") {
        return;
    }
    let pair = Pair::new();
    pair.without_timestamps();
    let mut agents = pair.agents();
    pair.net.serve(false, false);
    let stream = pair.net.connect(false, MPTCP);
    transfer(&stream, 1000);
    pair.wait_until_granted(1);
    for (at, name) in [(0, "a"), (1, "b")] {
        std::thread::scope(|scope| {
            let transferring = scope.spawn(|| transfer(&stream, 4 * MIB));
            agents[at].child.kill().unwrap();
            agents[at].child.wait().unwrap();
            agents[at] = pair.agent(name, true);
            transferring.join().unwrap();
        });
    }
    pair.wait_until_rules_are_taken();
    pair.wait_until_granted(1);
    transfer(&stream, 1000);
    transfer(&pair.net.connect(false, MPTCP), 1000);
    assert_eq!(pair.net.at_backend("MPCapableACKRX"), 2);
}

/// A predecessor's program stays until the next one knows how other agents are reached.
#[test]
fn a_restart_waits_for_the_next_hop_of_the_other_agent() {
    if !root_or_skip("a_restart_waits_for_the_next_hop_of_the_other_agent") {
        return;
    }
    let pair = Pair::new();
    pair.without_timestamps();
    let [_here, mut there] = pair.agents();
    pair.net.serve(false, false);
    let stream = pair.net.connect(false, MPTCP);
    transfer(&stream, 1000);
    pair.wait_until_granted(1);
    let router_ignores = |what: u32| {
        pair.net.lb.run(&format!("sysctl -qw net.ipv4.conf.all.arp_ignore={what}"));
    };
    there.child.kill().unwrap();
    there.child.wait().unwrap();
    router_ignores(8);
    pair.there().run("ip neigh flush dev eth0");
    let is_ready = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1500));
            router_ignores(0);
        });
        scope.spawn(|| {
            while !is_ready.load(Ordering::Relaxed) {
                transfer(&stream, 1000);
            }
        });
        let _there = pair.agent("b", true);
        is_ready.store(true, Ordering::Relaxed);
    });
}

/// The kernel refuses its HMAC, and so no connection's rule is requested.
#[test]
fn of_a_forged_join_no_rule_stays() {
    if !root_or_skip("of_a_forged_join_no_rule_stays") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let pair = Pair::new();
        pair.without_timestamps();
        pair.net.joins();
        pair.net.balances(|balancing| balancing.forges = forge_hmac);
        let _agents = pair.agents();
        pair.net.serve(is_v6, false);
        let stream = pair.net.connect(is_v6, MPTCP);
        transfer(&stream, 1000);
        pair.net.wait_until("it is refused", || pair.net.at_backend("MPJoinAckHMacFailure") == 1);
        pair.wait_until_granted(1);
        // A request whose answer is late is made again, and taken again.
        assert!(pair.event(pair.there(), "taken") >= 3, "two handshakes, and one connection");
        pair.net.wait_within(LISTS, "rules are listed", || pair.rules(pair.there(), "rules") == 1);
        transfer(&stream, MIB);
        pair.wait_until_granted(1);
    });
}

/// More handshakes than there is room for: a connection's rule is in a table of its own.
#[test]
fn a_flood_of_handshakes_displaces_no_connections_rule() {
    if !root_or_skip("a_flood_of_handshakes_displaces_no_connections_rule") {
        return;
    }
    const SYNS: u16 = 20_000;
    let pair = Pair::new();
    pair.without_timestamps();
    let _agents = pair.agents();
    pair.net.serve(false, false);
    let stream = pair.net.connect(false, MPTCP);
    transfer(&stream, 1000);
    pair.wait_until_granted(1);
    let packets: Vec<Vec<u8>> = {
        let mut balancing = pair.net.balancing.lock().unwrap();
        (0..SYNS).map(|number| balancing.encapsulated(&capable_syn(10_000 + number))).collect()
    };
    let tunnel = pair.net.lb.inside(tunnel);
    for some in packets.chunks(16) {
        for packet in some {
            tunnel.send_to(packet, (BACKEND, geneve::PORT)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(pair.event(pair.there(), "taken") > u64::from(SYNS) / 4);
    transfer(&stream, MIB);
    // Meanwhile no other handshake's rule is requested, and its connection is plain.
    pair.net.serve_at(pair.there(), vip(false), false);
    transfer(&pair.net.connect(false, MPTCP), MIB);
    assert_eq!(kernel(pair.there(), "MPTcpExt", "MPCapableACKRX"), 0);
    pair.wait_until_granted(1); // and no handshake's is waited for
    transfer(&stream, MIB);
}

#[test]
fn messages_that_are_forged_count_for_nothing() {
    if !root_or_skip("messages_that_are_forged_count_for_nothing") {
        return;
    }
    let pair = Pair::new();
    let _agents = pair.agents();
    let to = SocketAddr::new(OTHER_BACKEND.parse::<IpAddr>().unwrap(), RULES_PORT);
    let send = |namespace: &Namespace, bytes: &[u8]| {
        namespace.inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(bytes, to).unwrap();
        });
    };
    let mut forged = b"GWAG\x01\x03\x00\x01".to_vec();
    forged.extend([0; 32]);
    forged.extend([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 1, b'a']);
    forged.extend([0; 16]);
    let of_another = [&forged[..49], b"x", &forged[50..]].concat();
    send(pair.here(), &forged);
    send(pair.here(), &of_another);
    send(pair.here(), &forged[..30]);
    send(&pair.net.client, &forged);
    for name in ["forged", "other_key", "malformed", "unknown_agent"] {
        pair.net.wait_until(name, || pair.event(pair.there(), name) == 1);
    }
    assert_eq!(pair.event(pair.there(), "taken"), 0);
}
