//! Clients that close one direction, reuse a socket or a port, or have other settings.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_linger, set_socket_reuseaddr};
use testnet::root_or_skip;

use super::net::{
    BOTH_FAMILIES, MIB, MPTCP, Net, PORT, TIMEOUT, each, kernel, payload, socket, transfer, vip,
};

/// Sends bytes, closes its half, and has them all back, and then the end.
fn send_and_close(stream: &TcpStream, bytes: usize) {
    let sent = payload(bytes);
    let received = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut stream, mut received) = (stream, Vec::new());
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut writing = stream;
        writing.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        reading.join().unwrap()
    });
    assert!(sent == received, "what came back is other");
}

#[test]
fn a_half_that_is_closed_ends_no_other() {
    if !root_or_skip("a_half_that_is_closed_ends_no_other") {
        return;
    }
    each(&BOTH_FAMILIES, |&is_v6| {
        let net = Net::new();
        net.joins();
        let _agent = net.agent();
        net.serve(is_v6, false);
        for bytes in [0, 1, 5_000, MIB, 8 * MIB] {
            send_and_close(&net.connect(is_v6, MPTCP), bytes);
        }
        assert_eq!(net.at_backend("MPCapableACKRX"), 5);
        net.assert_no_complaints();
    });
}

#[test]
fn a_socket_and_a_port_are_used_again() {
    if !root_or_skip("a_socket_and_a_port_are_used_again") {
        return;
    }
    const TIMES: u64 = 5;
    each(&BOTH_FAMILIES, |&is_v6| {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, false);
        let to = SocketAddr::new(vip(is_v6), PORT);
        let open = || net.client.inside(|| socket(is_v6, MPTCP));
        let stream = TcpStream::from(open());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        for _ in 0..TIMES {
            rustix::net::connect(&stream, &to).unwrap();
            transfer(&stream, 100_000);
            rustix::net::connect_unspec(&stream).unwrap();
        }
        let any: IpAddr = if is_v6 { "::".parse().unwrap() } else { Ipv4Addr::UNSPECIFIED.into() };
        for _ in 0..TIMES {
            let stream = TcpStream::from(open());
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            set_socket_reuseaddr(&stream, true).unwrap();
            rustix::net::bind(&stream, &SocketAddr::new(any, 40_000)).unwrap();
            rustix::net::connect(&stream, &to).unwrap();
            transfer(&stream, 100_000);
            // By an RST. Trap: it may be sent after the socket is closed, and until then the
            // kernel opens no other one by these ports.
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
            net.wait_until("the former is gone", || {
                net.client.run("ss -Htan sport = :40000").is_empty()
            });
        }
        assert_eq!(net.at_backend("MPCapableACKRX"), 2 * TIMES);
        net.assert_no_complaints();
    });
}

#[test]
fn other_settings_of_tcp_do_no_harm() {
    if !root_or_skip("other_settings_of_tcp_do_no_harm") {
        return;
    }
    let settings = [
        ("tcp_ecn=1", false),
        ("tcp_congestion_control=reno", true),
        ("tcp_sack=0", false),
        ("tcp_window_scaling=0", true),
        ("tcp_early_retrans=0", false),
        ("tcp_timestamps=2", true),
        ("tcp_fastopen=3", false),
    ];
    each(&settings, |&(setting, is_v6)| {
        let net = Net::new();
        net.joins();
        for namespace in [&net.client, &net.backend] {
            namespace.run(&format!("sysctl -qw net.ipv4.{setting}"));
        }
        let _agent = net.agent();
        net.serve(is_v6, false);
        let stream = net.connect(is_v6, MPTCP);
        transfer(&stream, 1000);
        net.wait_until("the join", || net.at_backend("MPJoinAckRx") == 1);
        (0..200).for_each(|_| transfer(&stream, 50_000));
        if setting == "tcp_ecn=1" {
            assert!(kernel(&net.backend, "IpExt", "InECT0Pkts") > 1000, "no ECN was agreed on");
        }
        assert_eq!(net.at_backend("MPCapableACKRX"), 1, "{setting}");
        net.assert_no_complaints();
    });
}
