//! Handshakes: the key of a connection, and what happens when a handshake fails.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData};
use datapath::multipath::token;
use testnet::root_or_skip;
use wire::tcp_options::Version;
use wire::tunnel::geneve;

use super::agents::timed_syn;
use super::balancing::{self, ACK, BACKEND, SYN, first, forge_echo, is_capable_syn};
use super::net::{
    BOTH_FAMILIES, MIB, MPTCP, Net, TCP, TIMEOUT, each, echo_by, kernel, listener_at, transfer,
    vip, window_scales,
};
use crate::support::bpf_file_system::BpfFileSystem;

#[test]
fn three_hundred_connections_in_sequence_all_have_their_keys() {
    if !root_or_skip("three_hundred_connections_in_sequence_all_have_their_keys") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, false);
        for _ in 0..300 {
            transfer(&net.connect(is_v6, MPTCP), 100);
        }
        assert_eq!(net.at_backend("MPCapableACKRX"), 300);
        assert_eq!(net.event("syn_ack_keyed"), 300);
        assert_eq!(kernel(&net.backend, "TcpExt", "SyncookiesSent"), 300);
        net.assert_no_complaints();
    });
}

#[test]
fn connections_in_parallel_join_by_their_tokens() {
    if !root_or_skip("connections_in_parallel_join_by_their_tokens") {
        return;
    }
    const CONNECTIONS: u64 = 600;
    let net = Net::new();
    net.joins();
    net.balances(|balancing| balancing.delay = Duration::from_millis(50));
    let _agent = net.agent();
    net.serve(false, false);
    net.serve(true, false);
    let connections: Vec<bool> = (0..CONNECTIONS).map(|number| number % 2 == 0).collect();
    let streams: Vec<TcpStream> = std::thread::scope(|scope| {
        let connect = |is_v6| {
            let stream = net.connect(is_v6, MPTCP);
            transfer(&stream, 100);
            stream
        };
        let connecting: Vec<_> =
            connections.iter().map(|is_v6| scope.spawn(move || connect(*is_v6))).collect();
        connecting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    net.wait_until("all joins", || net.at_backend("MPJoinAckRx") == CONNECTIONS);
    each(&streams, |stream| transfer(stream, 1000));
    // A SYN that came again, as its answer was late, had one more.
    let again = kernel(&net.client, "TcpExt", "TCPSynRetrans");
    let cookies = kernel(&net.backend, "TcpExt", "SyncookiesSent");
    assert!(
        (CONNECTIONS..=CONNECTIONS + again).contains(&cookies),
        "{cookies}, {again} came again"
    );
    net.assert_no_complaints();
}

#[test]
fn a_plain_client_is_served_without_a_cookie() {
    if !root_or_skip("a_plain_client_is_served_without_a_cookie") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, false);
        transfer(&net.connect(is_v6, TCP), MIB);
        assert_eq!(kernel(&net.backend, "TcpExt", "SyncookiesSent"), 0);
        assert_eq!((net.event("syn_plain"), net.event("syn_cookie")), (1, 0));
        net.assert_no_complaints();
    });
}

#[test]
fn a_lost_syn_and_a_lost_ack_cost_time_only() {
    if !root_or_skip("a_lost_syn_and_a_lost_ack_cost_time_only") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, false);
        net.loses(first(|tcp| tcp[13] & (SYN | ACK) == SYN));
        transfer(&net.connect(is_v6, MPTCP), 1000);
        // The third packet of the handshake.
        net.loses(first(|tcp| tcp[13] & (SYN | ACK) == ACK));
        transfer(&net.connect(is_v6, MPTCP), 1000);
        assert_eq!(net.at_backend("MPCapableACKRX"), 2);
        net.assert_no_complaints();
    });
}

/// With a cookie the kernel keeps nothing of the handshake, and would reset what is not right
/// behind the SYN.
#[test]
fn a_request_whose_beginning_was_lost_with_the_ack_costs_time_only() {
    if !root_or_skip("a_request_whose_beginning_was_lost_with_the_ack_costs_time_only") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, false);
        let mut lost = 0;
        net.loses(move |tcp| {
            let is_lost = tcp[13] & (SYN | ACK) == ACK && lost < 2;
            lost += u32::from(is_lost);
            is_lost
        });
        transfer(&net.connect(is_v6, MPTCP), 4000);
        assert_eq!(net.at_backend("MPCapableACKRX"), 1);
        assert!(net.event("ack_too_early") > 0);
        net.assert_no_complaints();
    });
}

/// The kernel drops ACKs and requests while its server has no room for more connections,
/// and keeps nothing of those handshakes either.
#[test]
fn connections_that_the_server_has_no_room_for_wait() {
    if !root_or_skip("connections_that_the_server_has_no_room_for_wait") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    // All SYNs are there before the first ACK.
    net.balances(|balancing| balancing.delay = Duration::from_millis(50));
    let listener = listener_at(&net.backend, vip(false));
    rustix::net::listen(&listener, 0).unwrap();
    std::thread::scope(|scope| {
        let transfers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| transfer(&net.connect(false, MPTCP), 4000))).collect();
        std::thread::sleep(Duration::from_millis(500));
        echo_by(listener, false);
        transfers.into_iter().for_each(|transfer| transfer.join().unwrap());
    });
    assert!(kernel(&net.backend, "TcpExt", "ListenOverflows") > 0);
    assert_eq!(net.at_backend("MPCapableACKRX"), 4);
    net.assert_no_complaints();
}

/// The kernel repeats no SYN/ACK of a cookie, and the client waits for the server.
#[test]
fn a_server_that_speaks_first_does_so_though_the_clients_ack_was_lost() {
    if !root_or_skip("a_server_that_speaks_first_does_so_though_the_clients_ack_was_lost") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, true);
        net.loses(first(|tcp| tcp[13] & (SYN | ACK) == ACK));
        let started = Instant::now();
        let mut stream = net.connect(is_v6, MPTCP);
        let mut greeting = [0; 10];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"220 hello\n");
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        assert_eq!(net.event("syn_repeated"), 1);
        assert_eq!(net.at_backend("MPCapableACKRX"), 1);
        transfer(&stream, 1000);
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(net.event("syn_repeated"), 1, "answered");
        net.assert_no_complaints();
    });
}

/// After two SYNs with MP_CAPABLE without an answer Linux sends one without it, of the same
/// ports and sequence number: SYNs are lost, or the answers to them.
#[test]
fn a_client_that_fell_back_to_plain_tcp_is_served() {
    if !root_or_skip("a_client_that_fell_back_to_plain_tcp_is_served") {
        return;
    }
    let cases = BOTH_FAMILIES.map(|is_v6| [(is_v6, false), (is_v6, true)]).concat();
    each(&cases, |&(is_v6, are_answered)| {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, false);
        let drop_answers = "nft add rule inet test forward tcp flags & (syn|ack) == (syn|ack) drop";
        net.lb.run("nft add table inet test");
        net.lb.run("nft add chain inet test forward { type filter hook forward priority 0 ; }");
        match are_answered {
            true => drop(net.lb.run(drop_answers)),
            false => net.loses(is_capable_syn),
        }
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| net.connect(is_v6, MPTCP));
            net.wait_until("it falls back", || {
                kernel(&net.client, "MPTcpExt", "MPCapableSYNTXDrop") == 1
            });
            net.lb.run("nft flush ruleset");
            transfer(&connecting.join().unwrap(), MIB);
        });
        assert!(net.event("syn_plain") >= 1);
        assert_eq!(net.event("syn_cookie") > 0, are_answered);
        assert_eq!(net.at_backend("MPCapableACKRX"), 0);
        assert!(net.tokens().is_empty());
        net.assert_no_complaints();
    });
}

#[test]
fn of_two_connections_with_one_key_the_second_is_plain() {
    if !root_or_skip("of_two_connections_with_one_key_the_second_is_plain") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    // Trap: kernels have one table of tokens for all namespaces, and a former run's connection
    // keeps its token there for a minute.
    let key = RandomState::new().hash_one(net.client.name.as_str());
    net.balances(|balancing| balancing.key = Some(key));
    let (one, other) = (net.connect(false, MPTCP), net.connect(false, MPTCP));
    transfer(&one, 100_000);
    transfer(&other, 100_000);
    assert_eq!(net.tokens(), [token(Version::V1, key)]);
    assert_eq!((net.event("syn_stripped_token"), net.event("syn_ack_keyed")), (1, 1));
    net.assert_no_complaints();
}

/// A flood displaces all that was noted of handshakes before the clients' ACKs come: what these
/// echo is enough, and the connections have what their SYNs offered.
#[test]
fn of_displaced_handshakes_nothing_is_lost() {
    if !root_or_skip("of_displaced_handshakes_nothing_is_lost") {
        return;
    }
    const CONNECTIONS: usize = 30;
    let net = Net::new();
    let pins = BpfFileSystem::mount(net.folder.path().join("bpf"));
    let _agent = net.agent_with(&format!(", pin: {}/agent", pins.0.display()), "");
    for is_v6 in BOTH_FAMILIES {
        net.serve(is_v6, false);
    }
    let undisturbed = net.connect(false, MPTCP);
    transfer(&undisturbed, 1000);
    let scales = window_scales(&net.backend);
    let is_held = Arc::new(AtomicBool::new(true));
    let holds = Arc::clone(&is_held);
    net.loses(move |tcp| tcp[13] & (SYN | ACK) == ACK && holds.load(Ordering::Relaxed));
    let streams: Vec<TcpStream> =
        (0..CONNECTIONS).map(|number| net.connect(number % 2 == 0, MPTCP)).collect();
    displace::<16>(&pins, "keyed-handshakes-1");
    displace::<12>(&pins, "handshakes-1");
    is_held.store(false, Ordering::Relaxed);
    each(&streams, |stream| {
        // Alone: of what comes before it nobody knows that it is too early.
        transfer(stream, 100);
        transfer(stream, 100_000);
    });
    assert_eq!(net.at_backend("MPCapableACKRX"), CONNECTIONS as u64 + 1);
    assert_eq!(window_scales(&net.backend), vec![scales[0].clone(); CONNECTIONS + 1]);
    assert_eq!(net.status(&net.backend)["timestamps"]["cookie_echo"], CONNECTIONS);
    assert_eq!(net.event("ack_other_key"), 0);
    net.assert_no_complaints();
}

/// While a thousand handshakes are not answered nothing is noted of others. Without timestamps
/// nothing says in an ACK that its handshake was one.
#[test]
fn in_a_flood_clients_without_timestamps_are_served_plain() {
    if !root_or_skip("in_a_flood_clients_without_timestamps_are_served_plain") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| flood(&net, &is_over));
        net.client.run("sysctl -qw net.ipv4.tcp_timestamps=0");
        net.wait_within(6 * TIMEOUT, "a client without timestamps is served plain", || {
            transfer(&net.connect(false, MPTCP), 1000);
            net.event("syn_stripped_flood") > 0
        });
        let before = net.at_backend("MPCapableACKRX");
        net.client.run("sysctl -qw net.ipv4.tcp_timestamps=1");
        transfer(&net.connect(false, MPTCP), 1000);
        assert_eq!(net.at_backend("MPCapableACKRX"), before + 1, "others have their keys");
        is_over.store(true, Ordering::Relaxed);
    });
    net.assert_no_complaints();
}

/// Without what was noted of a handshake a client that echoes another key has no connection.
#[test]
fn of_a_displaced_handshake_another_key_is_refused() {
    if !root_or_skip("of_a_displaced_handshake_another_key_is_refused") {
        return;
    }
    let net = Net::new();
    let pins = BpfFileSystem::mount(net.folder.path().join("bpf"));
    let _agent = net.agent_with(&format!(", pin: {}/agent", pins.0.display()), "");
    net.serve(false, false);
    let is_held = Arc::new(AtomicBool::new(true));
    let holds = Arc::clone(&is_held);
    net.loses(move |tcp| tcp[13] & (SYN | ACK) == ACK && holds.load(Ordering::Relaxed));
    net.balances(|balancing| balancing.forges = forge_echo);
    let mut stream = net.connect(false, MPTCP);
    displace::<16>(&pins, "keyed-handshakes-1");
    is_held.store(false, Ordering::Relaxed);
    stream.write_all(b"request").unwrap();
    net.wait_until("ACKs are dropped", || net.event("ack_other_key") >= 2);
    assert_eq!(net.at_backend("MPCapableACKRX"), 0);
    assert!(net.tokens().is_empty());
}

/// Removes all entries of one of the agent's pinned tables, whose keys are flows.
fn displace<const VALUE_BYTES: usize>(pins: &BpfFileSystem, pin: &str)
where
    [u8; VALUE_BYTES]: aya::Pod,
{
    let table = Map::LruHashMap(MapData::from_pin(pins.0.join("agent").join(pin)).unwrap());
    let mut table: HashMap<MapData, [u8; 36], [u8; VALUE_BYTES]> = table.try_into().unwrap();
    let keys: Vec<[u8; 36]> = table.keys().map(Result::unwrap).collect();
    assert!(!keys.is_empty());
    keys.iter().for_each(|key| table.remove(key).unwrap());
}

/// Some 2,000 SYNs a second of clients with timestamps that answer nothing.
fn flood(net: &Net, is_over: &AtomicBool) {
    let tunnel = net.lb.inside(balancing::tunnel);
    for number in (0..).step_by(32) {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        for number in number..number + 32 {
            let packet = net.balancing.lock().unwrap().encapsulated(&timed_syn(number as u16));
            tunnel.send_to(&packet, (BACKEND, geneve::PORT)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(16));
    }
}

#[test]
fn an_ack_that_echoes_another_key_makes_no_connection() {
    if !root_or_skip("an_ack_that_echoes_another_key_makes_no_connection") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    net.balances(|balancing| balancing.forges = forge_echo);
    let _stream = net.connect(false, MPTCP);
    net.wait_until("ACKs are dropped", || net.event("ack_other_key") >= 2);
    assert_eq!(net.at_backend("MPCapableACKRX"), 0);
    assert!(net.tokens().is_empty());
}

/// A SYN that TCP gets when SYN cookies are off again: the kernel keeps its own key, by
/// which joins would go elsewhere.
#[test]
fn a_syn_that_got_no_cookie_opens_a_plain_connection() {
    if !root_or_skip("a_syn_that_got_no_cookie_opens_a_plain_connection") {
        return;
    }
    let net = Net::new();
    let switch = net.folder.path().join("tcp_syncookies");
    std::fs::write(&switch, "1").unwrap();
    // What the agent writes there switches nothing; `ip netns exec` has mounts of its own.
    let before = format!("mount --bind {} /proc/sys/net/ipv4/tcp_syncookies", switch.display());
    let _agent = net.agent_with("", &before);
    for is_v6 in BOTH_FAMILIES {
        net.serve(is_v6, false);
        transfer(&net.connect(is_v6, MPTCP), MIB);
    }
    assert_eq!(net.event("syn_cookie"), 2, "as far as the agent knows");
    assert_eq!(kernel(&net.backend, "TcpExt", "SyncookiesSent"), 0);
    assert_eq!((net.event("syn_ack_keyed"), net.event("syn_ack_stripped")), (0, 2));
    assert_eq!(net.at_backend("MPCapableACKRX"), 0);
    assert_eq!(kernel(&net.client, "MPTcpExt", "MPCapableFallbackSYNACK"), 2);
}
