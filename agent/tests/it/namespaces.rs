//! The agent between two real kernels: one sends tunnelled packets, the other
//! has the VIP and answers directly. Needs root.
//!
//! ```text
//!  lb: tunnels from 10.66.0.1, fd66::1   ══ veth ══   backend: 10.66.0.2, fd66::2
//!      clients on lo: 198.51.100.1, 2001:db8:c::1     VIPs on lo
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::support::Agent;
use crate::support::bpf_file_system::BpfFileSystem;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, SendFlags, sendto};
use tempfile::TempDir;
use testnet::{Namespace, raw_socket, root_or_skip};
use wire::tunnel::{geneve, gre, gue};
use wire::{EtherType, Protocol, checksum, ipv4, ipv6, udp};

/// The ports of one datagram: the client's, and the VIP's.
#[derive(Clone, Copy)]
struct Ports {
    client: u16,
    vip: u16,
}

impl Ports {
    /// Ports that no socket of this process has had. Trap: the tests of one
    /// process run at once, and a child that one of them forks holds every
    /// socket of all of them until it calls exec: a port that was just closed
    /// can still be in use.
    fn unused() -> Ports {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < 10_000, "the ports of clients would be those of VIPs");
        Ports { client: 20_000 + number, vip: 10_000 + number }
    }
}

/// Both namespaces; gone when dropped.
struct Lab {
    lb: Namespace,
    backend: Namespace,
    config: TempDir,
}

impl Lab {
    fn new() -> Lab {
        let config = TempDir::new().unwrap();
        let lab = Lab { lb: Namespace::new("lb"), backend: Namespace::new("backend"), config };
        lab.lb.run(&format!("ip link add eth0 type veth peer eth0 netns {}", lab.backend));
        for (number, namespace) in [&lab.lb, &lab.backend].into_iter().enumerate() {
            let number = number + 1;
            namespace.run(&format!("ip addr add 10.66.0.{number}/24 dev eth0"));
            namespace.run(&format!("ip addr add fd66::{number}/64 dev eth0 nodad"));
            namespace.run("ip link set eth0 up");
            // Trap: without this the checksums of replies stay undone.
            namespace.run("ethtool -K eth0 tx off");
        }
        lab.addresses();
        lab
    }

    fn addresses(&self) {
        for (namespace, v4, v6) in [
            (&self.lb, "198.51.100.1/32", "2001:db8:c::1/128"),
            (&self.backend, "203.0.113.10/32", "2001:db8:a::10/128"),
        ] {
            namespace.run(&format!("ip addr add {v4} dev lo"));
            namespace.run(&format!("ip addr add {v6} dev lo nodad"));
        }
        self.lb.run("ip addr add 10.66.0.99/24 dev eth0");
        self.backend.run("ip route add default via 10.66.0.1");
        self.backend.run("ip route add default via fd66::1");
        for setting in ["all", "default", "eth0"] {
            self.backend.run(&format!("sysctl -qw net.ipv4.conf.{setting}.rp_filter=0"));
        }
    }

    /// Clients' packets come without a tunnel.
    fn route_vips(&self) {
        self.lb.run("ip route add 203.0.113.10 via 10.66.0.2");
        self.lb.run("ip route add 2001:db8:a::10 via fd66::2");
    }

    /// An agent with these fields beside the VIPs in its config.
    fn command(&self, fields: &str) -> Command {
        let config = self.config.path().join("agent.yaml");
        let vips = "vips: [203.0.113.10, '2001:db8:a::10']";
        std::fs::write(&config, format!("{{{vips}, {fields}}}")).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.backend.name, env!("CARGO_BIN_EXE_guideway-agent")]);
        command.arg("--config").arg(config);
        command
    }

    /// What an agent that cannot start says.
    fn refusal(&self, fields: &str) -> String {
        let output = self.command(fields).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Ends it as systemd does; whether it ended well.
fn terminate(mut agent: Agent) -> bool {
    let pid = rustix::process::Pid::from_child(&agent.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    agent.child.wait().unwrap().success()
}

/// The client's datagram to the VIP, whole and with its checksums.
fn client_packet(v6: bool, ports: Ports, text: &[u8]) -> Vec<u8> {
    let (client, vip) = addresses(v6);
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let bytes = text.len() as u16 + 8;
    let unsummed = [&udp::emit(ports.client, ports.vip, bytes, 0)[..], text].concat();
    let sum = checksum::pseudo_header(&octets(client), &octets(vip), 17, unsummed.len())
        + checksum::sum(&unsummed);
    let sum = checksum::finish(sum);
    let datagram = [&udp::emit(ports.client, ports.vip, bytes, sum)[..], text].concat();
    let header = match (client, vip) {
        (IpAddr::V4(client), IpAddr::V4(vip)) => ipv4::Emit {
            packet_bytes: bytes + 20,
            traffic_class: 0,
            id: 0,
            flags: 0x4000,
            ttl: 60,
            protocol: Protocol(17),
            source: client.to_bits(),
            destination: vip.to_bits(),
        }
        .to_bytes()
        .to_vec(),
        (IpAddr::V6(client), IpAddr::V6(vip)) => ipv6::Emit {
            payload_bytes: bytes,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 60,
            protocol: Protocol(17),
            source: client.to_bits(),
            destination: vip.to_bits(),
        }
        .to_bytes()
        .to_vec(),
        _ => unreachable!("both are of one family"),
    };
    [header, datagram].concat()
}

/// The client's address and the VIP.
fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    let texts =
        if v6 { ("2001:db8:c::1", "2001:db8:a::10") } else { ("198.51.100.1", "203.0.113.10") };
    (texts.0.parse().unwrap(), texts.1.parse().unwrap())
}

/// Sends a packet through a tunnel: the kernel makes the outer header.
fn send_tunnelled(tunnel: &str, source: &str, inner_v6: bool, inner: &[u8]) {
    let source: IpAddr = source.parse().unwrap();
    let backend: IpAddr = if source.is_ipv6() { "fd66::2" } else { "10.66.0.2" }.parse().unwrap();
    let (ether_type, protocol) =
        if inner_v6 { (EtherType::IPV6, 41) } else { (EtherType::IPV4, 4) };
    let wrapped = |header: &[u8]| [header, inner].concat();
    match tunnel {
        "gre" => send_raw(
            47,
            source,
            backend,
            &wrapped(&gre::Header { recursion: 0, ether_type }.to_bytes()),
        ),
        "ipip" => send_raw(protocol, source, backend, inner),
        "gue" => send_udp(gue::PORT, source, backend, &wrapped(&gue::emit(Protocol(protocol)))),
        _ => send_udp(geneve::PORT, source, backend, &wrapped(&geneve::emit(ether_type))),
    }
}

fn send_raw(protocol: u8, source: IpAddr, to: IpAddr, payload: &[u8]) {
    let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let raw = raw_socket(family, u32::from(protocol));
    rustix::net::bind(&raw, &SocketAddr::new(source, 0)).unwrap();
    sendto(&raw, payload, SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
}

fn send_udp(port: u16, source: IpAddr, to: IpAddr, payload: &[u8]) {
    UdpSocket::bind((source, 0)).unwrap().send_to(payload, (to, port)).unwrap();
}

/// Whether a client's packet reaches the VIP's server through the tunnel, and
/// the answer the client.
fn served(lab: &Lab, tunnel: &str, source: &str, inner_v6: bool, timeout: Duration) -> bool {
    let (client, vip) = addresses(inner_v6);
    let bound = |namespace: &Namespace, address: IpAddr, port| {
        let socket = namespace.inside(|| UdpSocket::bind((address, port)).unwrap());
        socket.set_read_timeout(Some(timeout)).unwrap();
        socket
    };
    let ports = Ports::unused();
    let server = bound(&lab.backend, vip, ports.vip);
    let client = bound(&lab.lb, client, ports.client);
    let text = format!("{tunnel} from {source}");
    let packet = client_packet(inner_v6, ports, text.as_bytes());
    lab.lb.inside(|| send_tunnelled(tunnel, source, inner_v6, &packet));
    let mut buffer = [0; 2000];
    let Ok((len, from)) = uninterrupted(|| server.recv_from(&mut buffer)) else { return false };
    assert_eq!(buffer[..len], *text.as_bytes());
    assert_eq!(from.port(), ports.client);
    server.send_to(&buffer[..len], from).unwrap();
    uninterrupted(|| client.recv(&mut buffer)).is_ok_and(|len| buffer[..len] == *text.as_bytes())
}

/// Trap: a child of the process that ends interrupts a call that has a timeout.
fn uninterrupted<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

const LONG: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn clients_are_served_through_every_tunnel_and_answered_directly() {
    if !root_or_skip("clients_are_served_through_every_tunnel_and_answered_directly") {
        return;
    }
    for mode in ["native", "generic", "tc"] {
        let lab = Lab::new();
        let arguments =
            format!("interface: eth0, load_balancers: [10.66.0.1, 'fd66::/64'], mode: {mode}");
        assert!(
            !served(&lab, "gre", "10.66.0.1", false, SHORT),
            "without the agent no tunnel is opened"
        );
        let agent = Agent::start(lab.command(&arguments));
        assert_eq!(agent.ready, format!("ready: eth0 {mode}\n"));
        for tunnel in ["gre", "ipip", "gue", "geneve"] {
            for source in ["10.66.0.1", "fd66::1"] {
                for inner_v6 in [false, true] {
                    assert!(
                        served(&lab, tunnel, source, inner_v6, LONG),
                        "{mode} {tunnel} {source} {inner_v6}"
                    );
                }
            }
        }
        assert!(
            !served(&lab, "gre", "10.66.0.99", false, SHORT),
            "the tunnel of an unknown source was opened"
        );
        assert!(terminate(agent));
        assert!(!served(&lab, "gre", "10.66.0.1", false, SHORT), "the program outlived its agent");
    }
}

/// Children inherit every descriptor and close them at exec: a test that asks
/// again at once must not meet its own sockets of before.
#[test]
fn a_vip_is_served_again_while_other_tests_start_programs() {
    if !root_or_skip("a_vip_is_served_again_while_other_tests_start_programs") {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::start(lab.command("interface: eth0, load_balancers: [10.66.0.1]"));
    let stop = AtomicBool::new(false);
    let served = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let again = || served(&lab, "gre", "10.66.0.1", false, LONG);
        let served = std::panic::catch_unwind(AssertUnwindSafe(|| (0..100).all(|_| again())));
        stop.store(true, Ordering::Relaxed);
        served
    });
    assert!(served.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    assert!(terminate(agent));
}

#[test]
fn counters_are_served_and_systemd_is_notified() {
    if !root_or_skip("counters_are_served_and_systemd_is_notified") {
        return;
    }
    let lab = Lab::new();
    let name = std::env::temp_dir().join(format!("gw-agent-{}.sock", std::process::id()));
    let systemd = UnixDatagram::bind(&name).unwrap();
    systemd.set_read_timeout(Some(LONG)).unwrap();
    let mut command =
        lab.command("interface: eth0, load_balancers: [10.66.0.1], metrics_listen: 127.0.0.1:9479");
    let agent = Agent::start({
        command.env("NOTIFY_SOCKET", &name);
        command
    });
    let mut notified = [0; 64];
    let len = uninterrupted(|| systemd.recv(&mut notified)).unwrap();
    assert_eq!(&notified[..len], b"READY=1\nSTATUS=eth0 tc\n");
    std::fs::remove_file(&name).unwrap();

    assert!(served(&lab, "gre", "10.66.0.1", false, LONG));
    let of_unknown_source = client_packet(false, Ports::unused(), b"unknown source");
    lab.lb.inside(|| send_tunnelled("gre", "10.66.0.99", false, &of_unknown_source));
    let backend: IpAddr = "10.66.0.2".parse().unwrap();
    lab.lb.inside(|| {
        send_raw(47, "10.66.0.1".parse().unwrap(), backend, &[0x80, 0, 8, 0, 0, 0, 0, 0])
    });
    let page = lab.backend.inside(|| get("/metrics"));
    for line in [
        "guideway_agent_decapsulated_packets_total{encap=\"gre\"} 1\n",
        "guideway_agent_pass_packets_total{reason=\"unknown_source\"} 1\n",
        "guideway_agent_drop_packets_total{reason=\"gre_flags\"} 1\n",
        "guideway_agent_drop_packets_total{reason=\"ecn\"} 0\n",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    assert!(lab.backend.inside(|| get("/other")).starts_with("HTTP/1.1 404"));
    assert!(terminate(agent));
}

/// Beside many that say nothing, say half, or do not read.
#[test]
fn slow_clients_keep_no_other_from_the_metrics() {
    if !root_or_skip("slow_clients_keep_no_other_from_the_metrics") {
        return;
    }
    let lab = Lab::new();
    let fields = "interface: eth0, load_balancers: [10.66.0.1], metrics_listen: 127.0.0.1:9479";
    let agent = Agent::start(lab.command(fields));
    let request = b"GET /metrics HTTP/1.1\r\n\r\n";
    let slow: Vec<TcpStream> = (0..90)
        .map(|number| {
            let mut stream = lab.backend.inside(|| TcpStream::connect("127.0.0.1:9479").unwrap());
            let said = [0, request.len() / 2, request.len()][number % 3];
            stream.write_all(&request[..said]).unwrap();
            stream
        })
        .collect();
    let asked = Instant::now();
    assert!(lab.backend.inside(|| get_once("/metrics")).starts_with("HTTP/1.1 200"));
    assert!(asked.elapsed() < LONG, "{:?}", asked.elapsed());
    drop(slow);
    assert!(terminate(agent));
}

fn get(path: &str) -> String {
    let deadline = Instant::now() + LONG;
    loop {
        // Counters follow the packets at once; what was just sent may still
        // be on its way.
        std::thread::sleep(Duration::from_millis(50));
        let answer = get_once(path);
        if !answer.contains("reason=\"gre_flags\"} 0") || Instant::now() > deadline {
            return answer;
        }
    }
}

fn get_once(path: &str) -> String {
    let mut stream = TcpStream::connect("127.0.0.1:9479").unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_cannot_work_is_refused_with_a_cure() {
    if !root_or_skip("what_cannot_work_is_refused_with_a_cure") {
        return;
    }
    let lab = Lab::new();
    let missing = lab.refusal("interface: eth7, load_balancers: [10.66.0.1]");
    assert!(missing.contains("no interface eth7") && missing.contains("lo, eth0"), "{missing}");
    let fields = "interface: eth0, load_balancers: [10.66.0.1], mode: native";
    let agent = Agent::start(lab.command(fields));
    let second = lab.refusal(fields);
    assert!(second.contains("eth0 already has an XDP program"), "{second}");
    assert!(terminate(agent));
    lab.lb.run("ip link set eth0 mtu 9000");
    let native = lab.refusal(fields);
    assert!(native.contains("interface eth0 in native mode"), "{native}");
    let agent = Agent::start(lab.command("interface: eth0, load_balancers: [10.66.0.1]"));
    assert_eq!(agent.ready, "ready: eth0 tc\n");
}

/// An interface that goes takes the program along: systemd starts the agent
/// anew until there is one again.
#[test]
fn an_agent_ends_with_its_interface() {
    if !root_or_skip("an_agent_ends_with_its_interface") {
        return;
    }
    let lab = Lab::new();
    let mut agent = Agent::start(lab.command("interface: eth0, load_balancers: [10.66.0.1]"));
    lab.lb.run("ip link del eth0");
    let deadline = Instant::now() + 5 * LONG;
    while agent.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it runs on without its interface");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(agent.child.wait().unwrap().code(), Some(1));
}

/// What the unit of systemd leaves it: CAP_NET_ADMIN, CAP_BPF, and
/// CAP_PERFMON for the verifier to allow arithmetic on packet pointers.
#[test]
fn three_capabilities_are_enough() {
    if !root_or_skip("three_capabilities_are_enough") {
        return;
    }
    let lab = Lab::new();
    let files = BpfFileSystem::mount(lab.config.path().join("bpf"));
    let pin = files.0.join("agent");
    let fields = format!("interface: eth0, load_balancers: [10.66.0.1], pin: {}", pin.display());
    let whole = lab.command(&fields);
    let mut words = whole.get_args();
    let mut command = Command::new("ip");
    command.args(words.by_ref().take(3));
    command.args(["setpriv", "--inh-caps=-all", "--bounding-set=-all,+net_admin,+bpf,+perfmon"]);
    command.args(words);
    let agent = Agent::start(command);
    assert_eq!(agent.ready, "ready: eth0 tc\n");
    assert!(served(&lab, "gre", "10.66.0.1", true, LONG));
}

/// Answers each request by one byte: `s` after a fifth of a second, `r` by an RST.
fn answer(mut connection: TcpStream) {
    let mut request = [0; 2];
    while connection.read_exact(&mut request[..1]).is_ok() {
        match request[0] {
            // What is not read makes it an RST.
            b'r' => {
                while connection.peek(&mut request).is_ok_and(|bytes| bytes == 0) {}
                return;
            }
            b's' => std::thread::sleep(Duration::from_millis(200)),
            _ => {}
        }
        connection.write_all(b"x").unwrap();
    }
}

/// A service's sample on the agent's page.
fn sample_of(page: &str, name: &str, service: &str) -> Option<f64> {
    let name = format!("guideway_agent_{name}{{service=\"{service}}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.map(|value| value.parse().unwrap())
}

/// Connections to that port of the backend.
struct Clients<'l> {
    lab: &'l Lab,
    port: u16,
}

impl Clients<'_> {
    fn connect(&self, address: &str) -> TcpStream {
        let server = SocketAddr::new(address.parse().unwrap(), self.port);
        self.lab.lb.inside(|| TcpStream::connect_timeout(&server, LONG).unwrap())
    }

    fn page(&self) -> String {
        self.lab.backend.inside(|| get_once("/metrics"))
    }

    fn wait_for(&self, limit: Duration, holds: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + limit;
        while !holds(&self.page()) {
            assert!(Instant::now() < deadline, "{}", self.page());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// By the times that answers took, and by service; of VIPs only.
    fn are_measured(&self) {
        let v4 = format!("203.0.113.10:{}\"", self.port);
        let v6 = format!("[2001:db8:a::10]:{}\"", self.port);
        let asking = |address: &str, requests: usize, request: u8| {
            let mut connection = self.connect(address);
            (0..requests).for_each(|_| ask(&mut connection, request));
        };
        asking("203.0.113.10", 20, b'q');
        asking("203.0.113.10", 2, b's');
        asking("2001:db8:a::10", 3, b'q');
        asking("10.66.0.2", 1, b'q');
        let mut refused = self.connect("203.0.113.10");
        refused.write_all(b"rest").unwrap();
        refused.read_exact(&mut [0]).unwrap_err();

        let page = self.page();
        assert_eq!(sample_of(&page, "response_seconds_count", &v4), Some(22.0));
        let below = sample_of(&page, "response_seconds_bucket", &format!("{v4},le=\"0.131072\""));
        assert!((18.0..=20.0).contains(&below.unwrap()), "{page}");
        assert!(sample_of(&page, "response_seconds_sum", &v4) >= Some(0.4), "{page}");
        assert_eq!(sample_of(&page, "response_seconds_count", &v6), Some(3.0));
        assert_eq!(sample_of(&page, "resets_total", &v4), Some(1.0));
        assert!(!page.contains(&format!("10.66.0.2:{}", self.port)), "no VIP: {page}");
    }

    /// What the kernel says of sockets is there some seconds later.
    fn are_counted(&self, stop: &AtomicBool) {
        let v4 = format!("203.0.113.10:{}\"", self.port);
        stop.store(true, Ordering::Relaxed);
        let _last = self.connect("203.0.113.10");
        let _waiting: Vec<TcpStream> = (0..3).map(|_| self.connect("203.0.113.10")).collect();
        self.wait_for(Duration::from_secs(25), |page| {
            sample_of(page, "accept_queue", &v4) == Some(3.0)
                && sample_of(page, "service_connections", &v4) == Some(4.0)
        });
        assert!(sample_of(&self.page(), "accept_queue_max", &v4) >= Some(3.0));
    }
}

fn ask(connection: &mut TcpStream, request: u8) {
    connection.write_all(&[request]).unwrap();
    connection.read_exact(&mut [0]).unwrap();
}

#[test]
fn how_long_clients_wait_is_measured_by_service() {
    if !root_or_skip("how_long_clients_wait_is_measured_by_service") {
        return;
    }
    let lab = Lab::new();
    let files = BpfFileSystem::mount(lab.config.path().join("bpf"));
    let pin = files.0.join("agent");
    lab.route_vips();
    let fields = format!(
        "interface: eth0, load_balancers: [10.66.0.1], metrics_listen: '127.0.0.1:9479', pin: {}",
        pin.display()
    );
    let measuring = format!("{fields}, response_times: auto");
    let agent = Agent::start(lab.command(&measuring));
    let listener = lab.backend.inside(|| TcpListener::bind("[::]:0").unwrap());
    let clients = Clients { lab: &lab, port: listener.local_addr().unwrap().port() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (connection, _) = listener.accept().unwrap();
                scope.spawn(move || answer(connection));
            }
        });
        // Flows are chosen right after the start.
        clients.wait_for(LONG, |page| page.contains("measured_one_in 1\n"));
        let mut kept = clients.connect("203.0.113.10");
        clients.are_measured();

        // A restart measures on; without the field the programs go.
        assert!(terminate(agent));
        let agent = Agent::start(lab.command(&measuring));
        let deadline = Instant::now() + LONG;
        while !clients.page().contains("response_seconds_count") {
            assert!(Instant::now() < deadline, "nothing is measured after a restart");
            ask(&mut kept, b'q');
        }
        drop(kept);
        clients.are_counted(&stop);
        assert!(terminate(agent));
        let agent = Agent::start(lab.command(&fields));
        assert!(!clients.page().contains("response"), "{}", clients.page());
        for link in ["tcx-requests", "tcx-answers"] {
            assert!(!pin.join(link).exists(), "{link}");
        }
        assert!(terminate(agent));
    });
}

/// The program is replaced in one step, at XDP and at traffic control, and stays while no
/// agent runs.
#[test]
fn a_restart_under_load_loses_no_packet() {
    if !root_or_skip("a_restart_under_load_loses_no_packet") {
        return;
    }
    let lab = Lab::new();
    let files = BpfFileSystem::mount(lab.config.path().join("bpf"));
    let pin = files.0.join("agent");
    let fields = format!("interface: eth0, load_balancers: [10.66.0.1], pin: {}", pin.display());
    let ports = Ports::unused();
    let (_, vip) = addresses(false);
    let server = lab.backend.inside(|| UdpSocket::bind((vip, ports.vip)).unwrap());
    set_socket_recv_buffer_size_force(&server, 64 << 20).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let command = |mode| lab.command(&format!("{fields}, mode: {mode}"));
    let first = Agent::start(command("native"));

    let stop = AtomicBool::new(false);
    let (sent, agent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            lab.lb.enter();
            let mut sent = 0_u32;
            // Ends also where the other thread has panicked.
            while !stop.load(Ordering::Relaxed) && sent < 30_000 {
                let packet = client_packet(false, ports, &sent.to_be_bytes());
                send_tunnelled("gre", "10.66.0.1", false, &packet);
                sent += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        let mut agent = first;
        for (round, mode) in ["native", "tc", "tc", "native", "tc", "tc"].iter().enumerate() {
            if round % 2 == 0 {
                assert!(terminate(agent), "round {round}");
            } else {
                // Killed.
                drop(agent);
            }
            std::thread::sleep(Duration::from_millis(50));
            agent = Agent::start(command(mode));
            assert_eq!(agent.ready, format!("ready: eth0 {mode}\n"));
        }
        stop.store(true, Ordering::Relaxed);
        (sender.join().unwrap(), agent)
    });
    let mut received = std::collections::BTreeSet::new();
    let mut buffer = [0; 4];
    while received.len() < sent as usize && uninterrupted(|| server.recv(&mut buffer)).is_ok() {
        received.insert(u32::from_be_bytes(buffer));
    }
    let lost: Vec<u32> = (0..sent).filter(|number| !received.contains(number)).collect();
    assert!(lost.is_empty(), "of {sent} packets were lost: {lost:?}");

    // Another mode, or none: the pinned program goes.
    assert!(terminate(agent));
    let generic = Agent::start(command("generic"));
    assert_eq!(generic.ready, "ready: eth0 generic\n");
    assert!(terminate(generic));
    assert!(served(&lab, "gre", "10.66.0.1", false, LONG), "the program stays");
    let detached = command("generic").arg("--detach").output();
    assert_eq!(detached.unwrap().stdout, b"detached\n");
    assert!(!served(&lab, "gre", "10.66.0.1", false, SHORT), "it was detached");
    assert!(!pin.exists(), "nothing of it is left");
    let again = lab.command(&fields).arg("--detach").output();
    assert_eq!(again.unwrap().stdout, b"no program is pinned\n");
    let elsewhere = lab.refusal("interface: eth0, load_balancers: [10.66.0.1], pin: /tmp");
    assert!(elsewhere.contains("cannot keep tables in /tmp"), "{elsewhere}");
}
