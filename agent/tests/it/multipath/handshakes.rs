//! Handshakes: which key a connection has, and what becomes of those that do not go well.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use datapath::multipath::token;
use testnet::root_or_skip;
use wire::tcp_options::Version;

use super::balancing::{ACK, SYN, first, forge_echo, is_capable_syn};
use super::net::{
    BOTH_FAMILIES, MIB, MPTCP, Net, TCP, each, echo_by, kernel, listener_at, transfer, vip,
};

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
    assert_eq!(kernel(&net.backend, "TcpExt", "SyncookiesSent"), CONNECTIONS);
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
    net.balances(|balancing| balancing.key = Some(0x0123_4567_89ab_cdef));
    let (one, other) = (net.connect(false, MPTCP), net.connect(false, MPTCP));
    transfer(&one, 100_000);
    transfer(&other, 100_000);
    assert_eq!(net.tokens(), [token(Version::V1, 0x0123_4567_89ab_cdef)]);
    assert_eq!((net.event("syn_stripped_token"), net.event("syn_ack_keyed")), (1, 1));
    net.assert_no_complaints();
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
