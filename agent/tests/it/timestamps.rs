//! Connections of real kernels through a load balancer that is this test: it selects nothing,
//! but checks the bits by which a real one would. Needs root.
//!
//! ```text
//!  client ══ veth ══ lb ══ veth ══ backend: VIPs on lo, the agent
//!            all it sends to a VIP is put into Geneve tunnels, answers are routed
//! ```

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::Agent;
use aya::maps::{HashMap, Map, MapData};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use tempfile::TempDir;
use testnet::{Namespace, link, receive, root_or_skip, run};
use wire::EtherType;
use wire::tcp_options::{Signal, signal};
use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;

const PORT: u16 = 443;
const VIPS: [&str; 2] = ["203.0.113.10", "2001:db8:a::10"];
/// The bucket that all five-tuples fall on.
const BUCKET: u16 = 0x0b57;
const BITS: u32 = 0x1fff;
const TIMEOUT: Duration = Duration::from_secs(20);
const AF_PACKET: u16 = 17;

struct Lab {
    client: Namespace,
    lb: Namespace,
    backend: Namespace,
    directory: TempDir,
    bpf: PathBuf,
}

impl Lab {
    fn new() -> Lab {
        let directory = TempDir::new().unwrap();
        let bpf = directory.path().join("bpf");
        std::fs::create_dir(&bpf).unwrap();
        run(&format!("mount -t bpf bpf {}", bpf.display()));
        let [client, lb, backend] = ["client", "lb", "backend"].map(Namespace::new);
        link(&client, "eth0", &lb, "eth0", 1);
        link(&lb, "eth1", &backend, "eth0", 1);
        for (namespace, interface, v4, v6) in [
            (&client, "eth0", "198.51.100.2/24", "2001:db8:c::2/64"),
            (&lb, "eth0", "198.51.100.1/24", "2001:db8:c::1/64"),
            (&lb, "eth1", "10.66.0.1/24", "fd66::1/64"),
            (&backend, "eth0", "10.66.0.2/24", "fd66::2/64"),
            (&backend, "lo", "203.0.113.10/32", "2001:db8:a::10/128"),
        ] {
            namespace.run(&format!("ip addr add {v4} dev {interface}"));
            namespace.run(&format!("ip addr add {v6} dev {interface} nodad"));
        }
        let lab = Lab { client, lb, backend, directory, bpf };
        lab.configure();
        lab
    }

    fn configure(&self) {
        for (namespace, v4, v6) in [
            (&self.client, "198.51.100.1", "2001:db8:c::1"),
            (&self.backend, "10.66.0.1", "fd66::1"),
        ] {
            namespace.run(&format!("ip route add default via {v4}"));
            namespace.run(&format!("ip route add default via {v6}"));
            namespace.run("sysctl -qw net.ipv4.tcp_ecn=1");
            // Trap: closed connections of the tests before hold the ports.
            namespace.run("sysctl -qw net.ipv4.tcp_tw_reuse=0");
        }
        for (namespace, interface) in [(&self.lb, "eth1"), (&self.backend, "eth0")] {
            namespace.run(&format!("ip link set {interface} mtu 1700"));
        }
        // To the router itself a VIP is nowhere: what it takes is what goes on.
        self.lb.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        self.lb.run("ip route add blackhole 203.0.113.10/32");
        self.lb.run("ip -6 route add blackhole 2001:db8:a::10/128");
        // What the client sends is a packet for each segment.
        self.client.run("ethtool -K eth0 gso off");
        self.lb.run("ethtool -K eth0 gro off");
        // Trap: without NAPI, which comes with GRO, a veth pair has a queue for each
        // processor, and what two of them send of a connection changes its order. Of
        // bare acknowledgements in another order Linux takes those that are one tick of
        // the clock late, which here are far more.
        self.client.run("ethtool -K eth0 gro on");
        self.lb.run("ethtool -K eth1 gro on");
        let one_processor = "echo 1 > /sys/class/net/eth0/queues/rx-0/rps_cpus";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.lb.name, "sh", "-c", one_processor]);
        assert!(command.status().unwrap().success());
    }

    fn agent(&self, arguments: &[&str]) -> Agent {
        let config = self.directory.path().join("agent.yaml");
        let services = VIPS.map(|vip| format!("{{address: '{vip}', port: {PORT}}}")).join(", ");
        let [v4, v6] = VIPS;
        let fields = "interface: eth0, load_balancers: [10.66.0.1]";
        let pin = self.bpf.join("agent");
        let text = format!(
            "{{{fields}, vips: ['{v4}', '{v6}'], mptcp: [{services}], pin: {}}}",
            pin.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.backend.name]);
        command.arg(env!("CARGO_BIN_EXE_guideway-agent")).arg("--config").arg(config);
        command.args(arguments);
        let agent = Agent::start(command);
        assert_eq!(agent.ready, "ready: eth0 tc\n");
        agent
    }

    /// A connection to a VIP, from both ends.
    fn connect(&self, vip: &str) -> (TcpStream, TcpStream) {
        let vip: IpAddr = vip.parse().unwrap();
        let listener = self.backend.inside(|| TcpListener::bind((vip, PORT)).unwrap());
        let server = SocketAddr::new(vip, PORT);
        let client = self.client.inside(|| TcpStream::connect_timeout(&server, TIMEOUT).unwrap());
        let (accepted, _) = listener.accept().unwrap();
        for stream in [&client, &accepted] {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        }
        (client, accepted)
    }

    /// What neither kernel may have found wrong.
    fn assert_no_complaints(&self) {
        for (namespace, name) in [(&self.client, "client"), (&self.backend, "backend")] {
            for counter in ["PAWSEstab", "TSEcrRejected", "InCsumErrors"] {
                assert_eq!(counter_of(namespace, counter), 0, "{counter} of the {name}");
            }
        }
    }

    /// The agent's table, which is pinned.
    fn clocks(&self) -> HashMap<MapData, [u8; 36], [u8; 24]> {
        let clocks = MapData::from_pin(self.bpf.join("agent/clocks-1")).unwrap();
        Map::LruHashMap(clocks).try_into().unwrap()
    }

    /// What the agent counted by now.
    fn outcomes(&self) -> BTreeMap<String, u64> {
        let config = self.directory.path().join("agent.yaml");
        let agent = env!("CARGO_BIN_EXE_guideway-agent");
        let text =
            self.backend.run(&format!("{agent} --config {} status -o json", config.display()));
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        let counts = status["timestamps"].as_object().unwrap().iter();
        counts.map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.bpf).status();
    }
}

/// Of the kernel's, in a namespace: `TcpExt` has it, or `Tcp`.
fn counter_of(namespace: &Namespace, name: &str) -> u64 {
    let text = namespace.run("cat /proc/net/netstat /proc/net/snmp");
    let lines: Vec<&str> = text.lines().collect();
    let of_tcp = lines.chunks(2).filter(|pair| pair[0].starts_with("Tcp"));
    let named = of_tcp.flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    let found = named.filter(|(other, _)| *other == name).map(|(_, value)| value.parse::<u64>());
    found.map(Result::unwrap).next().unwrap_or_else(|| panic!("no {name}"))
}

/// Puts all that the client sends to a VIP into tunnels.
struct Balancer {
    stop: Arc<AtomicBool>,
    echoes: Arc<AtomicU64>,
    wrong: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Balancer {
    fn start(lab: &Lab) -> Balancer {
        let stop = Arc::new(AtomicBool::new(false));
        let [echoes, wrong] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let threads = [EtherType::IPV4, EtherType::IPV6].map(|family| {
            let (stop, echoes, wrong) = (stop.clone(), echoes.clone(), wrong.clone());
            lab.lb.spawn(move || forward(family, &stop, &echoes, &wrong))
        });
        // Sockets that receive come before packets.
        std::thread::sleep(Duration::from_millis(100));
        Balancer { stop, echoes, wrong, threads: threads.into() }
    }

    /// Ends it; how many segments echoed a timestamp. All of them had the bits.
    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(self.wrong.load(Ordering::Relaxed), 0, "echoes with other bits");
        self.echoes.load(Ordering::Relaxed)
    }
}

fn forward(family: EtherType, stop: &AtomicBool, echoes: &AtomicU64, wrong: &AtomicU64) {
    // Packets without their Ethernet header, of one protocol (packet(7)).
    let protocol = Protocol::from_raw(u32::from(family.0.to_be()).try_into().unwrap());
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let received =
        socket_with(AddressFamily::from_raw(AF_PACKET), kind, flags, Some(protocol)).unwrap();
    set_socket_timeout(&received, Timeout::Recv, Some(Duration::from_millis(100))).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&received, 32 << 20).unwrap();
    let tunnel = UdpSocket::bind("10.66.0.1:0").unwrap();
    tunnel.connect(("10.66.0.2", geneve::PORT)).unwrap();
    let mut bytes = [0; 65536];
    while !stop.load(Ordering::Relaxed) {
        let Ok(len) = receive(&received, &mut bytes) else { continue };
        let Some(segment) = to_vip(&bytes[..len]) else { continue };
        let mut header = geneve::emit(family).to_vec();
        if segment[13] & 0x12 == 0x02 {
            let address = "10.66.0.2".parse().unwrap();
            let option = MultipathOption { key: None, bucket: BUCKET, address }.emit();
            let mut first = geneve::emit(family);
            geneve::announce_critical_options(&mut first, option.len());
            header = [&first[..], &option].concat();
        } else if let Ok(Signal::Echo(echo)) = signal(segment) {
            echoes.fetch_add(1, Ordering::Relaxed);
            wrong.fetch_add(u64::from(echo & BITS != u32::from(BUCKET)), Ordering::Relaxed);
        }
        // A full queue drops, as on any machine.
        let _ = tunnel.send(&[&header, &bytes[..len]].concat());
    }
}

/// The TCP segment of a packet to a VIP; None: it is another one.
fn to_vip(packet: &[u8]) -> Option<&[u8]> {
    let (protocol, destination, header): (u8, IpAddr, usize) = match packet.first()? >> 4 {
        4 => (packet[9], <[u8; 4]>::try_from(packet.get(16..20)?).ok()?.into(), 20),
        _ => (packet[6], <[u8; 16]>::try_from(packet.get(24..40)?).ok()?.into(), 40),
    };
    let is_vip = VIPS.iter().any(|vip| vip.parse() == Ok(destination));
    (protocol == 6 && is_vip).then(|| &packet[header..])
}

/// Bytes that differ at each place.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// Sends from one end to the other, and compares.
fn transfer(mut from: &TcpStream, mut to: &TcpStream, seed: u64, len: usize) {
    let expected = pattern(seed, len);
    let mut got = vec![0; len];
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&expected).expect("what is sent"));
        to.read_exact(&mut got).expect("what is received");
    });
    assert!(got == expected, "other bytes");
}

/// One question and answer; how long it took.
fn exchange(client: &TcpStream, server: &TcpStream) -> Duration {
    let started = Instant::now();
    transfer(client, server, 3, 500);
    transfer(server, client, 4, 500);
    started.elapsed()
}

/// Ends others' loops, also where their starter panics.
struct Stops<'s>(&'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const MIB: usize = 1 << 20;

#[test]
fn connections_have_the_bits_and_the_kernels_find_nothing_wrong() {
    if !root_or_skip("connections_have_the_bits_and_the_kernels_find_nothing_wrong") {
        return;
    }
    let lab = Lab::new();
    let _agent = lab.agent(&[]);
    for control in ["cubic", "reno"] {
        for vip in VIPS {
            let balancer = Balancer::start(&lab);
            let (client, server) = lab.connect(vip);
            for end in [&client, &server] {
                rustix::net::sockopt::set_tcp_congestion(end, control).unwrap();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| transfer(&client, &server, 1, 4 * MIB));
                transfer(&server, &client, 2, 4 * MIB);
            });
            drop((client, server));
            assert!(balancer.finish() > 1000, "{control} {vip}");
        }
    }
    lab.assert_no_complaints();
    let outcomes = lab.outcomes();
    assert_eq!(outcomes["opened"], 4, "{outcomes:?}");
    assert!(outcomes["embedded"] > 1000 && outcomes["restored"] > 1000, "{outcomes:?}");
    for name in ["resumed", "blanked", "foreign_echo", "no_bits", "clock_held"] {
        assert_eq!(outcomes[name], 0, "{name}: {outcomes:?}");
    }
}

#[test]
fn a_client_without_timestamps_is_served() {
    if !root_or_skip("a_client_without_timestamps_is_served") {
        return;
    }
    let lab = Lab::new();
    let _agent = lab.agent(&[]);
    lab.client.run("sysctl -qw net.ipv4.tcp_timestamps=0");
    for vip in VIPS {
        let balancer = Balancer::start(&lab);
        let (client, server) = lab.connect(vip);
        transfer(&client, &server, 1, MIB);
        transfer(&server, &client, 2, MIB);
        assert_eq!(balancer.finish(), 0);
    }
    lab.assert_no_complaints();
    assert!(lab.outcomes().values().all(|count| *count == 0), "{:?}", lab.outcomes());
}

/// With 20 bits the clock goes round in 4.1 s, and half of that is what PAWS permits.
#[test]
fn idle_connections_go_on_whatever_becomes_of_the_agent_meanwhile() {
    if !root_or_skip("idle_connections_go_on_whatever_becomes_of_the_agent_meanwhile") {
        return;
    }
    let lab = Lab::new();
    let short = ["--timestamp-shift", "20"];
    let mut agent = Some(lab.agent(&short));
    let balancer = Balancer::start(&lab);
    let connections = VIPS.map(|vip| lab.connect(vip));
    // Idle; with the agent killed before, and after; with another one.
    for (idle_ms, lives) in [(2800, true), (1500, false), (3300, false), (2500, true)] {
        for (client, server) in &connections {
            let took = exchange(client, server);
            assert!(took < Duration::from_millis(500), "{took:?}");
        }
        match (lives, agent.is_some()) {
            (false, true) => agent = None,
            (true, false) => agent = Some(lab.agent(&short)),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(idle_ms));
    }
    for (client, server) in &connections {
        let took = exchange(client, server);
        assert!(took < Duration::from_millis(500), "{took:?}");
        transfer(client, server, 5, MIB);
        transfer(server, client, 6, MIB);
    }
    assert!(balancer.finish() > 100);
    lab.assert_no_complaints();
    assert!(lab.outcomes()["clock_held"] > 0);
}

#[test]
fn a_transfer_survives_agents_that_are_killed_and_a_state_that_is_displaced() {
    if !root_or_skip("a_transfer_survives_agents_that_are_killed_and_a_state_that_is_displaced") {
        return;
    }
    let lab = Lab::new();
    let mut agents = vec![lab.agent(&[])];
    let balancer = Balancer::start(&lab);
    for vip in VIPS {
        let (client, server) = lab.connect(vip);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            for (from, to) in [(&client, &server), (&server, &client)] {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        transfer(from, to, 1, MIB);
                    }
                });
            }
            for _ in 0..2 {
                agents.clear(); // killed
                std::thread::sleep(Duration::from_millis(50));
                agents.push(lab.agent(&[]));
            }
            // As if other connections had displaced it.
            let mut clocks = lab.clocks();
            let keys: Vec<[u8; 36]> = clocks.keys().map(Result::unwrap).collect();
            assert!(!keys.is_empty());
            keys.iter().for_each(|key| clocks.remove(key).unwrap());
            std::thread::sleep(Duration::from_millis(200));
        });
    }
    assert!(balancer.finish() > 1000);
    lab.assert_no_complaints();
    assert!(lab.outcomes()["resumed"] > 0, "{:?}", lab.outcomes());
}
