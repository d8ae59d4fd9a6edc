//! Handshakes of Multipath TCP with a load balancer's keys, by real kernels on both sides.
//! Needs root.
//!
//! ```text
//!  client ══ link 1: 10.66.1.0/24, fd66:1:: ══ lb ══ 10.66.0.0/24, fd66:: ══ backend: agent
//!         ══ link 2: 10.66.2.0/24, fd66:2:: ══                              VIPs on lo
//! ```
//!
//! The load balancer is a thread: it reads the client's packets from a TUN device, and
//! sends them on in Geneve, SYNs with the Multipath TCP option. What the backend answers is
//! routed by the same namespace.

mod support;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapath::multipath::token;
use nic::Tun;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use sha2::{Digest, Sha256};
use support::Agent;
use tempfile::TempDir;
use testnet::{Namespace, root_or_skip};
use wire::EtherType;
use wire::tcp_options::{self, Signal, Version};
use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;

const PORT: u16 = 443;
const TIMEOUT: Duration = Duration::from_secs(10);
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Decides over a client's packet: whether it is lost, by its TCP header and payload.
type Loss = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// What the load balancer does with packets from clients.
struct Balancing {
    loses: Loss,
    /// A fixed key in the place of one of the connection's own.
    key: Option<u64>,
    delay: Duration,
    /// Whether ACKs echo another key than they got.
    forges_echo: bool,
    /// Keys that it chose.
    chosen: Vec<u64>,
}

struct Net {
    client: Namespace,
    lb: Namespace,
    backend: Namespace,
    folder: TempDir,
    balancing: Arc<Mutex<Balancing>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn vip(is_v6: bool) -> IpAddr {
    if is_v6 { "2001:db8:a::10" } else { "203.0.113.10" }.parse().unwrap()
}

impl Net {
    fn new() -> Net {
        let [client, lb, backend] = ["client", "lb", "backend"].map(Namespace::new);
        for (namespace, name, number) in
            [(&backend, "eth0", 0), (&client, "eth1", 1), (&client, "eth2", 2)]
        {
            testnet::link(&lb, &format!("to{number}"), namespace, name, 1);
            for (side, namespace, name) in
                [(1, &lb, format!("to{number}")), (2, namespace, name.to_string())]
            {
                namespace.run(&format!("ip addr add 10.66.{number}.{side}/24 dev {name}"));
                namespace.run(&format!("ip addr add fd66:{number}::{side}/64 dev {name} nodad"));
            }
        }
        for setting in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            lb.run(&format!("sysctl -qw net.{setting}=1"));
        }
        for namespace in [&client, &backend] {
            namespace.run("sysctl -qw net.mptcp.enabled=1");
            namespace.run("sysctl -qw net.ipv4.conf.all.rp_filter=0");
        }
        for is_v6 in [false, true] {
            let vip = vip(is_v6);
            backend.run(&format!("ip addr add {vip} dev lo"));
            let (via0, via1, via2) = if is_v6 {
                ("fd66:0::1", "fd66:1::1", "fd66:2::1")
            } else {
                ("10.66.0.1", "10.66.1.1", "10.66.2.1")
            };
            backend.run(&format!("ip route add default via {via0}"));
            client.run(&format!("ip route add default via {via1} dev eth1"));
            let family = if is_v6 { "-6" } else { "-4" };
            let own = if is_v6 { "fd66:2::2" } else { "10.66.2.2" };
            client.run(&format!("ip {family} route add default via {via2} dev eth2 table 2"));
            client.run(&format!("ip {family} rule add from {own} table 2"));
        }
        let balancing = Balancing {
            loses: Box::new(|_| false),
            key: None,
            delay: Duration::ZERO,
            forges_echo: false,
            chosen: Vec::new(),
        };
        let mut net = Net {
            client,
            lb,
            backend,
            folder: TempDir::new().unwrap(),
            balancing: Arc::new(Mutex::new(balancing)),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        net.balance();
        net
    }

    /// Has the client open a second subflow from its other link.
    fn joins(&self) {
        for address in ["10.66.2.2", "fd66:2::2"] {
            self.client.run(&format!("ip mptcp endpoint add {address} dev eth2 subflow"));
        }
    }

    fn balance(&mut self) {
        let tun = self.lb.inside(|| {
            let tun = Tun::open("lb0", 1500).unwrap();
            tun.set_up().unwrap();
            tun
        });
        for is_v6 in [false, true] {
            self.lb.run(&format!("ip route add {} dev lb0", vip(is_v6)));
        }
        let tunnel = self.lb.inside(|| UdpSocket::bind("10.66.0.1:0").unwrap());
        let (balancing, stop) = (Arc::clone(&self.balancing), Arc::clone(&self.stop));
        self.threads.push(std::thread::spawn(move || {
            let mut waiting: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
            let mut bytes = [0; 2000];
            while !stop.load(Ordering::Relaxed) {
                let read = tun.read(&mut bytes);
                if let Ok(length) = read {
                    let mut balancing = balancing.lock().unwrap();
                    let due = Instant::now() + balancing.delay;
                    waiting.extend(balancing.tunnelled(&bytes[..length]).map(|sent| (due, sent)));
                }
                while waiting.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                    let (_, sent) = waiting.pop_front().unwrap();
                    tunnel.send_to(&sent, ("10.66.0.2", geneve::PORT)).unwrap();
                }
                if read.is_err() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }));
    }

    fn agent(&self) -> Agent {
        let config = self.folder.path().join("agent.yaml");
        let services = [false, true].map(|v6| format!("{{address: '{}', port: {PORT}}}", vip(v6)));
        let text = format!(
            "{{interface: eth0, mss_clamp: auto, load_balancers: [10.66.0.1], vips: ['{}', '{}'], mptcp: [{}]}}",
            vip(false),
            vip(true),
            services.join(", ")
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.backend.name, env!("CARGO_BIN_EXE_guideway-agent")]);
        command.arg("--config").arg(config);
        let agent = Agent::start(command);
        assert!(agent.ready.starts_with("ready: eth0"), "{}", agent.ready);
        self.wait_until("the injector is there", || {
            self.backend.run("ip -o link").contains("gw-mptcp")
        });
        agent
    }

    /// What the running agent counted, by event.
    fn event(&self, name: &str) -> u64 {
        let config = self.folder.path().join("agent.yaml");
        let agent = env!("CARGO_BIN_EXE_guideway-agent");
        let status =
            self.backend.run(&format!("{agent} --config {} status -o json", config.display()));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["multipath"]["events"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status}"))
    }

    fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn loses(&self, loses: impl FnMut(&[u8]) -> bool + Send + 'static) {
        self.balancing.lock().unwrap().loses = Box::new(loses);
    }

    fn chosen(&self) -> Vec<u64> {
        self.balancing.lock().unwrap().chosen.clone()
    }

    /// A counter of the kernel's in a namespace, such as `MPTcpExt MPJoinAckRx`.
    fn kernel(&self, namespace: &Namespace, group: &str, name: &str) -> u64 {
        let text =
            namespace.inside(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
        let group = format!("{group}: ");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(group.as_str()));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|known| known == name);
        values
            .split(' ')
            .nth(at.unwrap_or_else(|| panic!("{name} is no counter")))
            .unwrap()
            .parse()
            .unwrap()
    }

    fn at_backend(&self, name: &str) -> u64 {
        self.kernel(&self.backend, "MPTcpExt", name)
    }

    /// A listener at a VIP whose connections are echoed, or greeted first.
    fn serve(&self, is_v6: bool, greets: bool) {
        let listener = self.backend.inside(|| {
            let socket = socket(is_v6, MPTCP);
            rustix::net::bind(&socket, &SocketAddr::new(vip(is_v6), PORT)).unwrap();
            rustix::net::listen(&socket, 1024).unwrap();
            TcpListener::from(socket)
        });
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    if greets && stream.write_all(b"220 hello\n").is_err() {
                        return;
                    }
                    let mut bytes = vec![0; 65536];
                    while let Ok(length @ 1..) = stream.read(&mut bytes) {
                        if stream.write_all(&bytes[..length]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }

    fn connect(&self, is_v6: bool, protocol: u32) -> TcpStream {
        let stream = self.client.inside(|| {
            let socket = socket(is_v6, protocol);
            rustix::net::connect(&socket, &SocketAddr::new(vip(is_v6), PORT)).unwrap();
            TcpStream::from(socket)
        });
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// The tokens of connections at the backend, as `ss` shows them in hexadecimal.
    fn tokens(&self) -> Vec<u32> {
        let text = self.backend.run("ss -tnHi state established");
        let tokens = text.split("token:").skip(1).filter_map(|rest| {
            // As 0000(id:0)/c0a0fb6c(id:0), the server's last.
            let server = rest.split_whitespace().next()?.split('/').nth(1)?;
            u32::from_str_radix(server.split('(').next()?, 16).ok()
        });
        tokens.collect()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Balancing {
    /// A client's packet as the backend gets it; None: it is lost.
    fn tunnelled(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let (ether_type, tcp) = match packet[0] >> 4 {
            4 if packet[9] == 6 => (EtherType::IPV4, &packet[usize::from(packet[0] & 15) * 4..]),
            6 if packet[6] == 6 => (EtherType::IPV6, &packet[40..]),
            _ => return None,
        };
        if (self.loses)(tcp) {
            return None;
        }
        let mut header = geneve::emit(ether_type).to_vec();
        if tcp[13] & (SYN | ACK) == SYN {
            let key = match tcp_options::signal(tcp) {
                Ok(Signal::Capable { version: Version::V1, .. }) => Some(self.key(tcp)),
                _ => None,
            };
            let address = "10.66.0.2".parse().unwrap();
            let option = MultipathOption { key, bucket: 7, address }.emit();
            header[0] = (option.len() / 4) as u8;
            header[1] = 0x40; // an option is critical
            header.extend(option);
        }
        let mut packet = packet.to_vec();
        if self.forges_echo {
            forge_echo(&mut packet);
        }
        Some([&header[..], &packet].concat())
    }

    /// The same for the same ports and sequence number.
    fn key(&mut self, tcp: &[u8]) -> u64 {
        let digest = Sha256::digest(&tcp[..8]);
        let own = u64::from_be_bytes(digest[..8].try_into().unwrap());
        let key = self.key.unwrap_or(own);
        if !self.chosen.contains(&key) {
            self.chosen.push(key);
        }
        key
    }
}

/// Exchanges two words of the key that an ACK echoes, which leaves the checksum right.
fn forge_echo(packet: &mut [u8]) {
    // MP_CAPABLE of 20 bytes or more, version 1.
    let found = packet
        .windows(3)
        .position(|bytes| bytes[0] == 30 && (20..=24).contains(&bytes[1]) && bytes[2] == 1);
    if let Some(at) = found {
        let (first, second) = packet[at + 12..at + 16].split_at_mut(2);
        first.swap_with_slice(second);
    }
}

const MPTCP: u32 = 262;
const TCP: u32 = 6;

fn socket(is_v6: bool, protocol: u32) -> OwnedFd {
    let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let protocol = Protocol::from_raw(protocol.try_into().unwrap());
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(protocol)).unwrap()
}

/// Sends bytes through the echo, all of which come back as they were.
fn transfer(stream: &TcpStream, bytes: usize) {
    let sent: Vec<u8> = (0..bytes).map(|at| ((at * 7919) >> 3) as u8).collect();
    let mut received = vec![0; bytes];
    std::thread::scope(|scope| {
        let sent = &sent;
        scope.spawn(move || {
            let mut stream = stream;
            stream.write_all(sent).unwrap();
        });
        let mut stream = stream;
        stream.read_exact(&mut received).unwrap();
    });
    assert!(Sha256::digest(&sent) == Sha256::digest(&received), "what came back is other");
}

#[test]
fn a_connection_over_two_subflows_has_the_load_balancers_key() {
    if !root_or_skip("a_connection_over_two_subflows_has_the_load_balancers_key") {
        return;
    }
    for (is_v6, has_checksums) in [(false, false), (true, false), (false, true)] {
        let net = Net::new();
        net.joins();
        for namespace in [&net.client, &net.backend] {
            let value = u8::from(has_checksums);
            namespace.run(&format!("sysctl -qw net.mptcp.checksum_enabled={value}"));
        }
        let _agent = net.agent();
        net.serve(is_v6, false);
        let stream = net.connect(is_v6, MPTCP);
        transfer(&stream, 1000);
        net.wait_until("the join", || net.at_backend("MPJoinAckRx") == 1);
        transfer(&stream, 4 << 20);
        let [key] = net.chosen()[..] else { panic!("{:?}", net.chosen()) };
        let expected = token(Version::V1, key);
        assert_eq!(net.tokens(), [expected, expected], "of both subflows");
        for counter in
            ["MPJoinAckHMacFailure", "MPJoinNoTokenFound", "MPCapableFallbackACK", "DataCsumErr"]
        {
            assert_eq!(net.at_backend(counter), 0, "{counter}");
        }
        let tcp = |name| net.kernel(&net.backend, "TcpExt", name);
        assert_eq!((tcp("SyncookiesSent"), tcp("SyncookiesRecv")), (1, 1), "for that SYN alone");
        assert_eq!(tcp("SyncookiesFailed"), 0);
        assert_eq!((net.event("syn_ack_keyed"), net.event("syn_ack_stripped")), (1, 0));
        assert_eq!((net.event("syn_cookie"), net.event("syn_plain")), (1, 1), "and the join");
        assert_eq!(net.event("other_cookie"), 0);
    }
}

#[test]
fn three_hundred_connections_in_sequence_all_have_their_keys() {
    if !root_or_skip("three_hundred_connections_in_sequence_all_have_their_keys") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    for _ in 0..300 {
        transfer(&net.connect(false, MPTCP), 100);
    }
    assert_eq!(net.at_backend("MPCapableACKRX"), 300);
    assert_eq!(net.event("syn_ack_keyed"), 300);
    for counter in ["MPCapableFallbackACK", "MPFallbackTokenInit"] {
        assert_eq!(net.at_backend(counter), 0, "{counter}");
    }
    assert_eq!(net.kernel(&net.backend, "TcpExt", "SyncookiesSent"), 300);
}

#[test]
fn connections_in_parallel_join_by_their_tokens() {
    if !root_or_skip("connections_in_parallel_join_by_their_tokens") {
        return;
    }
    const CONNECTIONS: u64 = 600;
    let net = Net::new();
    net.joins();
    net.balancing.lock().unwrap().delay = Duration::from_millis(50);
    let _agent = net.agent();
    net.serve(false, false);
    let streams: Vec<TcpStream> = std::thread::scope(|scope| {
        let connecting: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    let streams = (0..CONNECTIONS / 20).map(|_| {
                        let stream = net.connect(false, MPTCP);
                        transfer(&stream, 100);
                        stream
                    });
                    streams.collect::<Vec<_>>()
                })
            })
            .collect();
        connecting.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    net.wait_until("all joins", || net.at_backend("MPJoinAckRx") == CONNECTIONS);
    assert_eq!(net.at_backend("MPJoinAckHMacFailure"), 0);
    assert_eq!(net.at_backend("MPCapableFallbackACK"), 0);
    for stream in &streams {
        transfer(stream, 1000);
    }
}

#[test]
fn a_plain_client_is_served_without_a_cookie() {
    if !root_or_skip("a_plain_client_is_served_without_a_cookie") {
        return;
    }
    for is_v6 in [false, true] {
        let net = Net::new();
        let _agent = net.agent();
        net.serve(is_v6, false);
        transfer(&net.connect(is_v6, TCP), 1 << 20);
        assert_eq!(net.kernel(&net.backend, "TcpExt", "SyncookiesSent"), 0);
        assert_eq!((net.event("syn_plain"), net.event("syn_cookie")), (1, 0));
    }
}

/// True for the first that the closure is true for.
fn first(mut is_it: impl FnMut(&[u8]) -> bool) -> impl FnMut(&[u8]) -> bool {
    let mut is_over = false;
    move |tcp| {
        let now = !is_over && is_it(tcp);
        is_over |= now;
        now
    }
}

#[test]
fn a_lost_syn_and_a_lost_ack_cost_time_only() {
    if !root_or_skip("a_lost_syn_and_a_lost_ack_cost_time_only") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    net.loses(first(|tcp| tcp[13] & (SYN | ACK) == SYN));
    transfer(&net.connect(false, MPTCP), 1000);
    // The third packet of the handshake.
    net.loses(first(|tcp| tcp[13] & (SYN | ACK) == ACK));
    transfer(&net.connect(false, MPTCP), 1000);
    assert_eq!(net.at_backend("MPCapableACKRX"), 2);
    assert_eq!(net.at_backend("MPCapableFallbackACK"), 0);
    assert_eq!(net.kernel(&net.backend, "TcpExt", "SyncookiesFailed"), 0);
}

/// The kernel repeats no SYN/ACK of a cookie, and the client waits for the server.
#[test]
fn a_server_that_speaks_first_does_so_though_the_clients_ack_was_lost() {
    if !root_or_skip("a_server_that_speaks_first_does_so_though_the_clients_ack_was_lost") {
        return;
    }
    for is_v6 in [false, true] {
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
    }
}

#[test]
fn of_two_connections_with_one_key_the_second_is_plain() {
    if !root_or_skip("of_two_connections_with_one_key_the_second_is_plain") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    net.balancing.lock().unwrap().key = Some(0x0123_4567_89ab_cdef);
    let (one, other) = (net.connect(false, MPTCP), net.connect(false, MPTCP));
    transfer(&one, 100_000);
    transfer(&other, 100_000);
    assert_eq!(net.tokens(), [token(Version::V1, 0x0123_4567_89ab_cdef)]);
    assert_eq!((net.event("syn_stripped_token"), net.event("syn_ack_keyed")), (1, 1));
}

#[test]
fn an_ack_that_echoes_another_key_makes_no_connection() {
    if !root_or_skip("an_ack_that_echoes_another_key_makes_no_connection") {
        return;
    }
    let net = Net::new();
    let _agent = net.agent();
    net.serve(false, false);
    net.balancing.lock().unwrap().forges_echo = true;
    let _stream = net.connect(false, MPTCP);
    net.wait_until("ACKs are dropped", || net.event("ack_other_key") >= 2);
    assert_eq!(net.at_backend("MPCapableACKRX"), 0);
    assert!(net.tokens().is_empty());
}

/// Killed, the agent leaves nothing behind: SYN cookies are as they were, connections that
/// there are live on with the next agent, and new ones have their keys.
#[test]
fn killed_and_started_again_in_mid_transfer_it_breaks_nothing() {
    if !root_or_skip("killed_and_started_again_in_mid_transfer_it_breaks_nothing") {
        return;
    }
    let net = Net::new();
    net.joins();
    let mut agent = net.agent();
    net.serve(false, false);
    let stream = net.connect(false, MPTCP);
    transfer(&stream, 1000);
    net.wait_until("the join", || net.at_backend("MPJoinAckRx") == 1);
    std::thread::scope(|scope| {
        let transferring = scope.spawn(|| transfer(&stream, 8 << 20));
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
        agent = net.agent();
        transferring.join().unwrap();
    });
    assert_eq!(net.event("syn_handed"), 0, "counters begin anew");
    let second = net.connect(false, MPTCP);
    transfer(&second, 1000);
    net.wait_until("its join", || net.at_backend("MPJoinAckRx") == 2);
    assert_eq!(net.at_backend("MPCapableFallbackACK"), 0);
}

#[test]
fn syn_cookies_are_switched_back_when_the_agent_is_killed() {
    if !root_or_skip("syn_cookies_are_switched_back_when_the_agent_is_killed") {
        return;
    }
    let net = Net::new();
    let mut agent = net.agent();
    // As if it was killed between on and off.
    net.backend.run("sysctl -qw net.ipv4.tcp_syncookies=2");
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    net.wait_until("they are switched back", || {
        net.backend.run("sysctl -n net.ipv4.tcp_syncookies").trim() == "1"
    });
}
