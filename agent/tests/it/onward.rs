//! Two agents with real servers, a real client and a real network: packets of
//! connections that live on the other backend. Needs root.
//!
//! ```text
//!  client ──┐                        ┌── a: agent, server
//!           ├── network (router) ────┤        VIPs on lo, answers go directly
//!      lb ──┘   VIPs are routed to lb └── b: agent, server
//! ```
//!
//! The load balancer is a thread: it reads the client's packets and sends them on in Geneve, to
//! the agent and with the addresses that the test sets.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::Agent;
use crate::support::bpf_file_system::BpfFileSystem;
use crate::support::pass::pass;
use crate::support::tap::Cable;
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tempfile::TempDir;
use testnet::{Namespace, link, raw_socket, receive, root_or_skip};
use wire::tunnel::geneve;
use wire::tunnel::route_option::RouteOption;
use wire::{EtherType, Protocol, checksum, ipv6};

const PORT: u16 = 80;
/// A handshake may lose several segments in a test.
const TIMEOUT: Duration = Duration::from_secs(20);
const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// The namespaces, in the order of their numbers: hosts are 10.66.N.2.
const NAMES: [&str; 4] = ["lb", "client", "a", "b"];

/// An address of both families.
#[derive(Clone, Copy)]
struct Address {
    v4: &'static str,
    v6: &'static str,
}

impl Address {
    fn of(self, is_v6: bool) -> IpAddr {
        if is_v6 { self.v6 } else { self.v4 }.parse().unwrap()
    }
}

const VIP: Address = Address { v4: "203.0.113.10", v6: "2001:db8:a::10" };
const LB: Address = Address { v4: "10.66.0.2", v6: "fd66:0::2" };
const CLIENT: Address = Address { v4: "10.66.1.2", v6: "fd66:1::2" };
const A: Address = Address { v4: "10.66.2.2", v6: "fd66:2::2" };
const B: Address = Address { v4: "10.66.3.2", v6: "fd66:3::2" };

/// What joins the hosts to the router.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Veth,
    Tap,
}

/// Where the load balancer sends a packet, and whom it names.
#[derive(Clone)]
struct Delivery {
    to: IpAddr,
    addresses: Vec<IpAddr>,
}

struct Net {
    namespaces: Vec<Namespace>,
    router: Namespace,
    _far_ends: Vec<ebpf::Link>,
    _cables: Vec<Cable>,
    folder: TempDir,
    delivery: Arc<Mutex<Delivery>>,
    stop: Arc<AtomicBool>,
    balancers: Vec<JoinHandle<()>>,
}

impl Net {
    fn new() -> Net {
        Net::of(Kind::Veth)
    }

    fn of(kind: Kind) -> Net {
        let router = Namespace::new("router");
        for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            router.run(&format!("sysctl -qw net.{family}=1"));
        }
        let namespaces: Vec<Namespace> = NAMES.iter().map(|name| Namespace::new(name)).collect();
        let (mut cables, mut far_ends) = (Vec::new(), Vec::new());
        for (number, namespace) in namespaces.iter().enumerate() {
            let port = format!("port{number}");
            match kind {
                Kind::Veth => {
                    link(&router, &port, namespace, "eth0", 1);
                    far_ends.push(pass(&router, &port));
                }
                Kind::Tap => {
                    let number = u8::try_from(number).unwrap();
                    cables.push(Cable::new((&router, &port), (namespace, "eth0"), number));
                }
            }
            connect(&router, namespace, number);
        }
        for vip in [VIP.v4, VIP.v6] {
            let lb = LB.of(vip.contains(':'));
            router.run(&format!("ip route add {vip} via {lb}"));
            for namespace in [&namespaces[0], &namespaces[2], &namespaces[3]] {
                namespace.add_own(vip.parse().unwrap());
            }
        }
        // The load balancer's kernel has no connection, and would say so.
        let lb = &namespaces[0];
        lb.run("nft add table inet test");
        lb.run("nft add chain inet test output { type filter hook output priority 0 ; }");
        lb.run("nft add rule inet test output tcp flags rst drop");
        lb.run("nft add rule inet test output icmp type destination-unreachable drop");
        lb.run("nft add rule inet test output icmpv6 type destination-unreachable drop");
        let delivery = Delivery { to: B.of(false), addresses: Vec::new() };
        let mut net = Net {
            namespaces,
            router,
            _far_ends: far_ends,
            _cables: cables,
            folder: TempDir::new().unwrap(),
            delivery: Arc::new(Mutex::new(delivery)),
            stop: Arc::default(),
            balancers: Vec::new(),
        };
        for (is_v6, protocol) in [(false, TCP), (true, TCP), (false, UDP), (true, UDP)] {
            let balancer = net.balance(is_v6, protocol);
            net.balancers.push(balancer);
        }
        net
    }

    /// The load balancer of a family and protocol.
    fn balance(&self, is_v6: bool, protocol: u8) -> JoinHandle<()> {
        let (delivery, stop) = (Arc::clone(&self.delivery), Arc::clone(&self.stop));
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let lb = &self.namespaces[0];
        let heard = lb.inside(|| raw_socket(family, protocol.into()));
        set_socket_timeout(&heard, Timeout::Recv, Some(Duration::from_millis(50))).unwrap();
        let tunnels =
            lb.inside(|| [false, true].map(|is_v6| UdpSocket::bind((LB.of(is_v6), 0)).unwrap()));
        lb.spawn(move || {
            let mut bytes = [0; 2000];
            while !stop.load(Ordering::Relaxed) {
                let Ok(len) = receive(&heard, &mut bytes) else { continue };
                let heard = &bytes[..len];
                let packet = if is_v6 { v6_packet(protocol, heard) } else { heard.to_vec() };
                let delivery = delivery.lock().unwrap().clone();
                let tunnel = &tunnels[usize::from(delivery.to.is_ipv6())];
                tunnel
                    .send_to(&encapsulated(&delivery, is_v6, &packet), (delivery.to, geneve::PORT))
                    .unwrap();
            }
        })
    }

    /// From now on packets go to this agent, with these addresses to try.
    fn send_to(&self, to: Address, addresses: &[Address], outer_v6: bool) {
        let addresses = addresses.iter().map(|address| address.of(outer_v6)).collect();
        *self.delivery.lock().unwrap() = Delivery { to: to.of(outer_v6), addresses };
    }

    fn agent(&self, name: &str, mode: &str) -> Agent {
        self.agent_with(name, mode, "")
    }

    fn agent_with(&self, name: &str, mode: &str, fields: &str) -> Agent {
        let file = self.folder.path().join(format!("{name}.yaml"));
        let text = format!(
            "interface: eth0\nmode: {mode}\nmetrics_listen: 127.0.0.1:9479\nname: {name}\n\
             load_balancers: [{}, '{}']\nvips: [{}, '{}']\n\
             agents: {{a: [{}, '{}'], b: [{}, '{}']}}\n{fields}\n",
            LB.v4, LB.v6, VIP.v4, VIP.v6, A.v4, A.v6, B.v4, B.v6
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(name).name]);
        command.arg(env!("CARGO_BIN_EXE_guideway-agent")).arg("--config").arg(file);
        let agent = Agent::start(command);
        let ready = format!("ready: eth0 {mode}\n");
        assert_eq!(agent.ready, ready);
        agent
    }

    fn namespace(&self, name: &str) -> &Namespace {
        &self.namespaces[NAMES.iter().position(|known| *known == name).unwrap()]
    }

    /// Both agents; they have one another's neighbours.
    fn agents(&self, mode: &str) -> [Agent; 2] {
        let agents = ["a", "b"].map(|name| self.agent(name, mode));
        self.wait_for_neighbours();
        agents
    }

    fn wait_for_neighbours(&self) {
        for name in ["a", "b"] {
            for family in ["-4", "-6"] {
                until(|| {
                    let shown =
                        self.namespace(name).run(&format!("ip {family} neigh show dev eth0"));
                    shown.contains("managed") && shown.contains("REACHABLE")
                });
            }
        }
    }

    fn server(&self, name: &str, is_v6: bool) -> TcpListener {
        self.namespace(name).inside(|| TcpListener::bind((VIP.of(is_v6), PORT)).unwrap())
    }

    /// A connection by the present delivery, to a server.
    fn connect(&self, server: &TcpListener, client_port: u16) -> Connection {
        let is_v6 = server.local_addr().unwrap().is_ipv6();
        let client = self.namespace("client").inside(|| connect_from(is_v6, client_port));
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (server, from) = server.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        Connection { client, server }
    }

    /// RSTs that a backend's kernel sent.
    fn resets(&self, name: &str) -> u64 {
        kernel_count(self.namespace(name), "TcpOutRsts")
    }

    fn counted(&self, name: &str, sample: &str) -> u64 {
        let page = self.namespace(name).inside(|| {
            let mut stream = TcpStream::connect("127.0.0.1:9479").unwrap();
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n").unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).unwrap();
            page
        });
        let line = page.lines().find_map(|line| line.strip_prefix(sample));
        line.unwrap_or_else(|| panic!("{sample} in {page}")).trim().parse().unwrap()
    }

    fn forwarded(&self, name: &str, reason: &str) -> u64 {
        let family = "guideway_agent_forwarded_packets_total";
        self.counted(name, &format!("{family}{{reason=\"{reason}\"}}"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for balancer in self.balancers.drain(..) {
            // Its panic has been shown; a second one here would end the process.
            let _ = balancer.join();
        }
    }
}

/// A host behind the router has 10.66.N.2 and fd66:N::2.
fn connect(router: &Namespace, host: &Namespace, number: usize) {
    let port = format!("port{number}");
    router.run(&format!("ip addr add 10.66.{number}.1/24 dev {port}"));
    router.run(&format!("ip addr add fd66:{number}::1/64 dev {port} nodad"));
    host.run(&format!("ip addr add 10.66.{number}.2/24 dev eth0"));
    host.run(&format!("ip addr add fd66:{number}::2/64 dev eth0 nodad"));
    // So that segments fit into the tunnel.
    host.run(&format!("ip route add default via 10.66.{number}.1 advmss 1300"));
    host.run(&format!("ip route add default via fd66:{number}::1 advmss 1300"));
    for (namespace, name) in [(host, "eth0"), (router, &port[..])] {
        for setting in ["all", "default", name] {
            namespace.run(&format!("sysctl -qw net.ipv4.conf.{setting}.rp_filter=0"));
        }
    }
}

/// A raw socket of IPv6 gives what is behind the header.
fn v6_packet(protocol: u8, segment: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (CLIENT.of(true), VIP.of(true)) else {
        unreachable!("both are of IPv6")
    };
    let header = ipv6::Emit {
        payload_bytes: segment.len() as u16,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 60,
        protocol: Protocol(protocol),
        source: source.to_bits(),
        destination: destination.to_bits(),
    };
    [&header.to_bytes()[..], segment].concat()
}

fn encapsulated(delivery: &Delivery, is_v6: bool, packet: &[u8]) -> Vec<u8> {
    let inner = if is_v6 { EtherType::IPV6 } else { EtherType::IPV4 };
    let mut header = geneve::emit(inner);
    if delivery.addresses.is_empty() {
        return [&header[..], packet].concat();
    }
    let addresses = delivery.addresses.iter().copied().collect();
    let route =
        RouteOption { returns: false, hop_limit: 4, bucket: Some(1), generation: 1, addresses };
    let option = route.emit();
    geneve::announce_critical_options(&mut header, option.len());
    [&header[..], &option, packet].concat()
}

/// With port 0 the kernel chooses one.
fn connect_from(is_v6: bool, port: u16) -> TcpStream {
    let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket: OwnedFd =
        socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_reuseaddr(&socket, true).unwrap();
    set_socket_timeout(&socket, Timeout::Send, Some(TIMEOUT)).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(CLIENT.of(is_v6), port)).unwrap();
    rustix::net::connect(&socket, &SocketAddr::new(VIP.of(is_v6), PORT)).unwrap();
    TcpStream::from(socket)
}

#[track_caller]
fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the condition did not come true within thirty seconds");
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    /// Both ends get what the other sends.
    fn works(&mut self) {
        exchange(&mut self.client, &mut self.server);
        exchange(&mut self.server, &mut self.client);
    }

    /// Each end sees the other's end.
    fn ends(mut self) {
        self.client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(self.server.read(&mut [0; 1]).unwrap(), 0);
        drop(self.server);
        assert_eq!(self.client.read(&mut [0; 1]).unwrap(), 0);
    }
}

fn exchange(from: &mut TcpStream, to: &mut TcpStream) {
    let sent = vec![0x5a; 5000];
    from.write_all(&sent).unwrap();
    let mut received = vec![0; sent.len()];
    to.read_exact(&mut received).unwrap();
    assert_eq!(received, sent);
}

#[test]
fn a_connection_lives_on_where_it_is_when_another_backend_is_in_charge() {
    if !root_or_skip("a_connection_lives_on_where_it_is_when_another_backend_is_in_charge") {
        return;
    }
    lives_on(&Net::new());
}

#[test]
fn through_taps_a_connection_lives_on_where_it_is() {
    if !root_or_skip("through_taps_a_connection_lives_on_where_it_is") {
        return;
    }
    lives_on(&Net::of(Kind::Tap));
}

fn lives_on(net: &Net) {
    for mode in ["native", "generic", "tc"] {
        let _agents = net.agents(mode);
        for (is_v6, outer_v6) in [(false, false), (true, false), (false, true), (true, true)] {
            let (at_a, at_b) = (net.server("a", is_v6), net.server("b", is_v6));
            net.send_to(B, &[], outer_v6);
            let mut old = net.connect(&at_b, 0);
            old.works();
            // The move: a is in charge, and b is named.
            net.send_to(A, &[B], outer_v6);
            old.works();
            let mut new = net.connect(&at_a, 0);
            new.works();
            old.works();
            new.ends();
            old.ends();
        }
        assert!(net.forwarded("a", "no_socket") > 0, "{mode}");
        assert_eq!(net.forwarded("b", "no_socket"), 0, "{mode}");
        assert_eq!((net.resets("a"), net.resets("b")), (0, 0), "{mode}");
    }
}

/// A to B to A: the chain names who had it, and each packet finds its socket.
#[test]
fn a_bucket_that_moved_back_finds_the_connections_of_both() {
    if !root_or_skip("a_bucket_that_moved_back_finds_the_connections_of_both") {
        return;
    }
    let net = Net::new();
    let _agents = net.agents("native");
    let (at_a, at_b) = (net.server("a", false), net.server("b", false));
    net.send_to(A, &[], false);
    let mut first = net.connect(&at_a, 0);
    net.send_to(B, &[A], false);
    let mut second = net.connect(&at_b, 0);
    first.works();
    net.send_to(A, &[B], false);
    let mut third = net.connect(&at_a, 0);
    for connection in [&mut first, &mut second, &mut third] {
        connection.works();
    }
    for connection in [first, second, third] {
        connection.ends();
    }
    assert_eq!((net.resets("a"), net.resets("b")), (0, 0));
}

/// A SYN that was forged, or came late, makes a socket at the backend in
/// charge; its kernel would answer the live connection's packets by RSTs.
#[test]
fn a_forged_syn_during_a_move_breaks_nothing() {
    if !root_or_skip("a_forged_syn_during_a_move_breaks_nothing") {
        return;
    }
    let net = Net::new();
    let _agents = net.agents("native");
    for is_v6 in [false, true] {
        let (_at_a, at_b) = (net.server("a", is_v6), net.server("b", is_v6));
        net.send_to(B, &[], false);
        let mut connection = net.connect(&at_b, 0);
        net.send_to(A, &[B], false);
        let port = connection.client.local_addr().unwrap().port();
        forge(&net, is_v6, port, SYN, &[B]);
        until(|| net.namespace("a").run("ss -Htan state syn-recv").contains(&format!(":{port}")));
        connection.works();
        connection.ends();
    }
    assert!(net.forwarded("a", "other_handshake") > 0);
    assert_eq!((net.resets("a"), net.resets("b")), (0, 0));
}

/// A segment with the client's address, by the load balancer's tunnel to a,
/// naming these agents.
fn forge(net: &Net, is_v6: bool, port: u16, flags: u8, names: &[Address]) {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let (source, vip) = (octets(CLIENT.of(is_v6)), octets(VIP.of(is_v6)));
    let mut segment = vec![0; 20];
    segment[..2].copy_from_slice(&port.to_be_bytes());
    segment[2..4].copy_from_slice(&PORT.to_be_bytes());
    segment[4..8].copy_from_slice(&1234_u32.to_be_bytes());
    segment[12..16].copy_from_slice(&[0x50, flags, 0xff, 0xff]);
    let sum = checksum::pseudo_header(&source, &vip, TCP, 20) + checksum::sum(&segment);
    segment[16..18].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    let packet = if is_v6 {
        v6_packet(TCP, &segment)
    } else {
        let header = wire::ipv4::Emit {
            packet_bytes: 40,
            traffic_class: 0,
            id: 0,
            flags: 0x4000,
            ttl: 60,
            protocol: Protocol(TCP),
            source: u32::from_be_bytes(source.try_into().unwrap()),
            destination: u32::from_be_bytes(vip.try_into().unwrap()),
        };
        [&header.to_bytes()[..], &segment].concat()
    };
    let addresses = names.iter().map(|name| name.of(false)).collect();
    let delivery = Delivery { to: A.of(false), addresses };
    let tunnel = net.namespace("lb").inside(|| UdpSocket::bind((LB.of(false), 0)).unwrap());
    tunnel.send_to(&encapsulated(&delivery, is_v6, &packet), (delivery.to, geneve::PORT)).unwrap();
}

/// The backend in charge has the port's last connection in TIME_WAIT; the
/// present one lives on the other.
#[test]
fn a_port_that_is_used_again_reaches_its_present_connection() {
    if !root_or_skip("a_port_that_is_used_again_reaches_its_present_connection") {
        return;
    }
    let net = Net::new();
    let _agents = net.agents("native");
    for is_v6 in [false, true] {
        let (at_a, at_b) = (net.server("a", is_v6), net.server("b", is_v6));
        net.send_to(A, &[], false);
        let Connection { mut client, server } = net.connect(&at_a, 30_000);
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        drop(client);
        until(|| net.namespace("a").run("ss -Htan state time-wait").contains(":30000"));
        // Linux moves on from the last connection's numbers by 2^24 a second.
        std::thread::sleep(Duration::from_millis(500));
        net.send_to(B, &[], false);
        let mut connection = net.connect(&at_b, 30_000);
        net.send_to(A, &[B], false);
        connection.works();
        connection.ends();
    }
    assert!(net.forwarded("a", "other_time_wait") > 0);
    assert_eq!((net.resets("a"), net.resets("b")), (0, 0));
}

/// What no backend has is reset by the last one that is named, and by no other.
#[test]
fn a_connection_that_lives_nowhere_is_reset_by_the_last_agent() {
    if !root_or_skip("a_connection_that_lives_nowhere_is_reset_by_the_last_agent") {
        return;
    }
    let net = Net::new();
    let _agents = net.agents("native");
    let _servers = ["a", "b"].map(|name| net.server(name, false));
    forge(&net, false, 40_000, ACK, &[B]);
    until(|| net.resets("b") == 1);
    assert_eq!(net.resets("a"), 0);
    assert_eq!(net.forwarded("a", "no_socket"), 1);
}

/// As of configs or load balancers that have gone wrong: each agent takes an address off,
/// so a packet ends after three more tunnels, wherever they lead.
#[test]
fn a_packet_for_agents_that_name_each_other_ends() {
    if !root_or_skip("a_packet_for_agents_that_name_each_other_ends") {
        return;
    }
    let net = Net::new();
    let _agents = net.agents("native");
    let _servers = ["a", "b"].map(|name| net.server(name, false));
    forge(&net, false, 40_000, ACK, &[B, A, B]);
    until(|| net.resets("b") == 1);
    assert_eq!((net.forwarded("a", "no_socket"), net.forwarded("b", "no_socket")), (2, 1));
    assert_eq!(net.resets("a"), 0);
}

/// The router drops SYN/ACKs of these backends, and of no others, until the next call.
fn lose_syn_acks(net: &Net, backends: &[&str]) {
    let rule = |backend: &&str| {
        let number = NAMES.iter().position(|known| known == backend).unwrap();
        format!("iifname port{number} tcp flags & (syn|ack) == (syn|ack) drop\n")
    };
    let rules: String = backends.iter().map(rule).collect();
    let file = net.folder.path().join("lossy");
    // One transaction: in between none would be dropped.
    let text = format!(
        "table inet lossy\ndelete table inet lossy\ntable inet lossy {{\nchain forward {{\n\
         type filter hook forward priority 0\n{rules}}}\n}}\n"
    );
    std::fs::write(&file, text).unwrap();
    net.router.run(&format!("nft -f {}", file.display()));
}

/// Trap: those of a listener that is closed stay until their next SYN/ACK would be due.
fn has_half_open(net: &Net, name: &str, is_v6: bool) -> bool {
    let family = if is_v6 { "-6" } else { "-4" };
    !net.namespace(name).run(&format!("ss -Htan {family} state syn-recv")).trim().is_empty()
}

/// A counter of a kernel's, by its name in nstat.
fn kernel_count(namespace: &Namespace, name: &str) -> u64 {
    let counters = namespace.run(&format!("nstat -asz {name}"));
    let mut words = counters.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).unwrap().parse().unwrap()
}

/// The client repeats its SYN, which opens the connection at the backend that is in charge
/// now; the former one's half-open socket repeats its SYN/ACK, which is nothing to the client
/// any more.
#[test]
fn a_syn_ack_lost_across_a_move_opens_the_connection_anew() {
    if !root_or_skip("a_syn_ack_lost_across_a_move_opens_the_connection_anew") {
        return;
    }
    let net = Net::new();
    let _agents = net.agents("native");
    for is_v6 in [false, true] {
        let (at_a, _at_b) = (net.server("a", is_v6), net.server("b", is_v6));
        net.send_to(B, &[], false);
        lose_syn_acks(&net, &["b"]);
        let mut connection = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| net.connect(&at_a, 0));
            until(|| has_half_open(&net, "b", is_v6));
            net.send_to(A, &[B], false);
            connecting.join().unwrap()
        });
        let challenged = || kernel_count(net.namespace("client"), "TcpExtTCPSYNChallenge");
        let before = challenged();
        lose_syn_acks(&net, &[]);
        connection.works();
        // b's SYN/ACK has come, and the client has answered it by an ACK.
        until(|| challenged() > before);
        connection.works();
        connection.ends();
    }
    assert_eq!((net.resets("a"), net.resets("b")), (0, 0));
}

/// Both backends have a half-open socket for the client's SYN, and the SYN/ACK of the one
/// that is not in charge any more comes first: the connection lives there.
#[test]
fn a_handshake_that_began_before_a_move_ends_where_it_began() {
    if !root_or_skip("a_handshake_that_began_before_a_move_ends_where_it_began") {
        return;
    }
    let net = Net::new();
    let _agents = net.agents("native");
    for is_v6 in [false, true] {
        let (_at_a, at_b) = (net.server("a", is_v6), net.server("b", is_v6));
        net.send_to(B, &[], false);
        lose_syn_acks(&net, &["a", "b"]);
        let before = net.forwarded("a", "other_handshake");
        let mut connection = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| net.connect(&at_b, 0));
            until(|| has_half_open(&net, "b", is_v6));
            net.send_to(A, &[B], false);
            until(|| has_half_open(&net, "a", is_v6));
            lose_syn_acks(&net, &["a"]);
            connecting.join().unwrap()
        });
        assert!(net.forwarded("a", "other_handshake") > before, "a has no socket of this SYN");
        lose_syn_acks(&net, &[]);
        connection.works();
        connection.ends();
    }
    assert_eq!((net.resets("a"), net.resets("b")), (0, 0));
}

/// A client's socket of UDP, whose flow each server answers by its own name.
fn flow_to(net: &Net, is_v6: bool) -> UdpSocket {
    let socket = net.namespace("client").inside(|| {
        let socket = UdpSocket::bind((CLIENT.of(is_v6), 0)).unwrap();
        socket.connect((VIP.of(is_v6), PORT)).unwrap();
        socket
    });
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// Who answers; a datagram may be lost where a neighbour is looked up.
fn answerer(flow: &UdpSocket) -> String {
    let mut bytes = [0; 16];
    for _ in 0..20 {
        flow.send(b"who?").unwrap();
        if let Ok(len) = flow.recv(&mut bytes) {
            return String::from_utf8(bytes[..len].to_vec()).unwrap();
        }
    }
    panic!("nobody answers {flow:?}");
}

/// The flows that a backend took are pinned: without them its agent would send a flow of its
/// own back to the one that is in charge.
#[test]
fn a_flow_of_udp_stays_where_it_is_when_its_agent_restarts_in_a_move() {
    if !root_or_skip("a_flow_of_udp_stays_where_it_is_when_its_agent_restarts_in_a_move") {
        return;
    }
    let net = Net::new();
    let pins = BpfFileSystem::mount(net.folder.path().join("bpf"));
    let pinned = |name: &str| {
        net.agent_with(name, "native", &format!("pin: {}", pins.0.join(name).display()))
    };
    let mut agents = ["a", "b"].map(pinned);
    net.wait_for_neighbours();
    let flows = [false, true].map(|is_v6| {
        for name in ["a", "b"] {
            serve_name(&net, name, is_v6);
        }
        net.send_to(B, &[], false);
        let flow = flow_to(&net, is_v6);
        assert_eq!(answerer(&flow), "b");
        flow
    });
    // The move: a is in charge, and b is named.
    net.send_to(A, &[B], false);
    for round in ["terminated", "killed"] {
        if round == "terminated" {
            testnet::run(&format!("kill {}", agents[1].child.id()));
        } else {
            agents[1].child.kill().unwrap();
        }
        agents[1].child.wait().unwrap();
        flows.iter().for_each(|flow| assert_eq!(answerer(flow), "b", "{round}: no agent"));
        agents[1] = pinned("b");
        net.wait_for_neighbours();
        flows.iter().for_each(|flow| assert_eq!(answerer(flow), "b", "{round}: the next agent"));
    }
    assert_eq!(net.forwarded("b", "no_flow"), 0);
    assert!(net.forwarded("a", "no_flow") >= 8);
    let new = flow_to(&net, false);
    assert_eq!(answerer(&new), "a", "a new flow is the one's in charge");
}

/// Answers every datagram to the VIP by this name, until the namespaces go.
fn serve_name(net: &Net, name: &'static str, is_v6: bool) {
    let socket = net.namespace(name).inside(|| UdpSocket::bind((VIP.of(is_v6), PORT)).unwrap());
    let stop = Arc::clone(&net.stop);
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 16];
        while !stop.load(Ordering::Relaxed) {
            if let Ok((_, client)) = socket.recv_from(&mut bytes) {
                socket.send_to(name.as_bytes(), client).unwrap();
            }
        }
    });
}
