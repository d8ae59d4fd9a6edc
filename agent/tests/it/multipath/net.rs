//! The namespaces, the programs in them, and their kernels' counters.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nic::Tun;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use tempfile::TempDir;
use testnet::Namespace;

use super::balancing::{self, BACKEND, Balancing, OTHER_BACKEND};
use crate::support::Agent;
use crate::support::pass::pass;

pub const PORT: u16 = 443;
pub const TIMEOUT: Duration = Duration::from_secs(30);
pub const MIB: usize = 1 << 20;
pub const MPTCP: u32 = 262;
pub const TCP: u32 = 6;
pub const BOTH_FAMILIES: [bool; 2] = [false, true];

pub struct Net {
    pub client: Namespace,
    pub lb: Namespace,
    pub backend: Namespace,
    pub other: Option<Namespace>,
    pub folder: TempDir,
    pub balancing: Arc<Mutex<Balancing>>,
    far_ends: Vec<ebpf::Link>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Of a service, whose connections the client opens.
pub fn vip(is_v6: bool) -> IpAddr {
    if is_v6 { "2001:db8:a::10" } else { "203.0.113.10" }.parse().unwrap()
}

/// Of a service at another address.
pub fn second_vip(is_v6: bool) -> IpAddr {
    if is_v6 { "2001:db8:a::11" } else { "203.0.113.11" }.parse().unwrap()
}

/// Of the client's second link.
pub fn second_address(is_v6: bool) -> &'static str {
    if is_v6 { "fd66:2::2" } else { "10.66.2.2" }
}

fn vips() -> [IpAddr; 4] {
    [vip(false), vip(true), second_vip(false), second_vip(true)]
}

impl Net {
    pub fn new() -> Net {
        let [client, lb, backend] = ["client", "lb", "backend"].map(Namespace::new);
        for (namespace, name, number) in
            [(&backend, "eth0", 0), (&client, "eth1", 1), (&client, "eth2", 2)]
        {
            connect(&lb, namespace, name, number);
        }
        for setting in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            lb.run(&format!("sysctl -qw net.{setting}=1"));
        }
        be_client(&client);
        be_backend(&backend, 0);
        let mut net = Net {
            client,
            lb,
            backend,
            other: None,
            folder: TempDir::new().unwrap(),
            balancing: Arc::new(Mutex::new(Balancing::new())),
            far_ends: Vec::new(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        net.balance();
        net
    }

    /// One with the other backend, too; agents send packets on to one another.
    pub fn with_two_backends() -> Net {
        let mut net = Net::new();
        let other = Namespace::new("other");
        connect(&net.lb, &other, "eth0", 3);
        be_backend(&other, 3);
        for (namespace, name, far_end) in [(&net.backend, "eth0", "to0"), (&other, "eth0", "to3")] {
            net.far_ends.push(pass(&net.lb, far_end));
            // So that tunnels with route options have room for full segments.
            namespace.run(&format!("ip link set {name} mtu 1700"));
            net.lb.run(&format!("ip link set {far_end} mtu 1700"));
        }
        net.other = Some(other);
        net
    }

    fn balance(&mut self) {
        let tun = self.lb.inside(|| {
            let tun = Tun::open("lb0", 1500).unwrap();
            tun.set_up().unwrap();
            tun
        });
        // Room for all that connections send at once while the thread waits for a processor.
        self.lb.run("ip link set lb0 txqueuelen 10000");
        for vip in vips() {
            self.lb.run(&format!("ip route add {vip} dev lb0"));
        }
        let tunnel = self.lb.inside(balancing::tunnel);
        let (balancing, stop) = (Arc::clone(&self.balancing), Arc::clone(&self.stop));
        self.threads.push(balancing::start(tun, tunnel, balancing, stop));
    }

    /// Has the client open a second subflow from its other link, also of connections that
    /// there are.
    pub fn joins(&self) {
        for is_v6 in [false, true] {
            let address = second_address(is_v6);
            self.client.run(&format!("ip mptcp endpoint add {address} dev eth2 subflow"));
        }
    }

    /// The backend's agent.
    pub fn agent(&self) -> Agent {
        self.agent_with("", "")
    }

    /// With more fields in its config, in the form `, name: value`, and a shell command
    /// before its start.
    pub fn agent_with(&self, fields: &str, before: &str) -> Agent {
        self.agent_at(&self.backend, fields, before)
    }

    pub fn agent_at(&self, namespace: &Namespace, fields: &str, before: &str) -> Agent {
        let services = vips().map(|vip| format!("{{address: '{vip}', port: {PORT}}}")).join(", ");
        let addresses = vips().map(|vip| format!("'{vip}'")).join(", ");
        let text = format!(
            "{{interface: eth0, load_balancers: [10.66.0.1], vips: [{addresses}], mptcp: [{services}]{fields}}}",
        );
        let config = self.config_of(namespace);
        std::fs::write(&config, text).unwrap();
        let agent = env!("CARGO_BIN_EXE_guideway-agent");
        let script = format!("{before}\nexec {agent} --config {config}");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace.name, "sh", "-ec", &script]);
        let agent = Agent::start(command);
        assert!(agent.ready.starts_with("ready: eth0"), "{}", agent.ready);
        self.wait_until("the injector is there", || {
            namespace.run("ip -o link show up").contains("gw-mptcp")
        });
        agent
    }

    fn config_of(&self, namespace: &Namespace) -> String {
        format!("{}/{}.yaml", self.folder.path().display(), namespace.name)
    }

    /// What the running agent says of itself.
    pub fn status(&self, namespace: &Namespace) -> serde_json::Value {
        let agent = env!("CARGO_BIN_EXE_guideway-agent");
        let config = self.config_of(namespace);
        let text = namespace.run(&format!("{agent} --config {config} status -o json"));
        serde_json::from_str(&text).unwrap()
    }

    /// What doctor finds on the backend, as text.
    pub fn doctor(&self) -> String {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.backend.name, env!("CARGO_BIN_EXE_guideway-agent")]);
        command.args(["--config", &self.config_of(&self.backend), "doctor"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    /// What the backend's agent counted, by event.
    pub fn event(&self, name: &str) -> u64 {
        let status = self.status(&self.backend);
        status["multipath"]["events"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status}"))
    }

    pub fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.wait_within(TIMEOUT, what, is_so);
    }

    pub fn wait_within(&self, timeout: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + timeout;
        while !is_so() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Changes what the load balancer does.
    pub fn balances(&self, change: impl FnOnce(&mut Balancing)) {
        change(&mut self.balancing.lock().unwrap());
    }

    pub fn loses(&self, loses: impl FnMut(&[u8]) -> bool + Send + 'static) {
        self.balances(|balancing| balancing.loses = Box::new(loses));
    }

    pub fn chosen(&self) -> Vec<u64> {
        self.balancing.lock().unwrap().chosen.clone()
    }

    pub fn at_backend(&self, name: &str) -> u64 {
        kernel(&self.backend, "MPTcpExt", name)
    }

    /// Nothing that any kernel counts where packets or their order are wrong.
    /// What the kernels know, for whoever reads that a test failed.
    fn tell(&self) {
        for namespace in [Some(&self.client), Some(&self.backend), self.other.as_ref()] {
            let Some(namespace) = namespace else { continue };
            let sockets = namespace.run("ss -tiMan");
            eprintln!("{namespace}:\n{sockets}{}", namespace.run("nstat -as"));
        }
    }

    pub fn assert_no_complaints(&self) {
        for namespace in [Some(&self.client), Some(&self.backend), self.other.as_ref()] {
            for (group, name) in [
                ("MPTcpExt", "MPJoinAckHMacFailure"),
                ("MPTcpExt", "MPJoinNoTokenFound"),
                ("MPTcpExt", "MPCapableDataFallback"),
                ("MPTcpExt", "MPCapableFallbackACK"),
                ("MPTcpExt", "MPFallbackTokenInit"),
                ("MPTcpExt", "DataCsumErr"),
                ("TcpExt", "PAWSEstab"),
                ("TcpExt", "TSEcrRejected"),
                ("TcpExt", "SyncookiesFailed"),
                ("Tcp", "InCsumErrors"),
            ] {
                let Some(namespace) = namespace else { continue };
                assert_eq!(kernel(namespace, group, name), 0, "{name} of {namespace}");
            }
        }
    }

    /// A listener at a VIP of a backend, whose connections are echoed, or greeted first.
    pub fn serve(&self, is_v6: bool, greets: bool) {
        self.serve_at(&self.backend, vip(is_v6), greets);
    }

    pub fn serve_at(&self, namespace: &Namespace, address: IpAddr, greets: bool) {
        echo_by(listener_at(namespace, address), greets);
    }

    pub fn connect(&self, is_v6: bool, protocol: u32) -> TcpStream {
        let stream = self.client.inside(|| {
            let socket = socket(is_v6, protocol);
            rustix::net::connect(&socket, &SocketAddr::new(vip(is_v6), PORT)).unwrap();
            TcpStream::from(socket)
        });
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// The backend's subflows of several paths.
    pub fn subflows(&self) -> Vec<Subflow> {
        subflows_at(&self.backend)
    }

    /// Of these subflows.
    pub fn tokens(&self) -> Vec<u32> {
        self.subflows().iter().map(|subflow| subflow.token).collect()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A link of the router's.
fn connect(lb: &Namespace, namespace: &Namespace, name: &str, number: usize) {
    testnet::link(lb, &format!("to{number}"), namespace, name, 1);
    for (side, namespace, name) in [(1, lb, format!("to{number}")), (2, namespace, name.into())] {
        namespace.run(&format!("ip addr add 10.66.{number}.{side}/24 dev {name}"));
        namespace.run(&format!("ip addr add fd66:{number}::{side}/64 dev {name} nodad"));
        // Trap: without NAPI, which comes with GRO, a veth pair has a queue for each
        // processor, and changes the order of what two of them send of a connection. What
        // is a millisecond late then looks like an old segment (PAWS).
        namespace.run(&format!("ethtool -K {name} gro on"));
    }
}

fn be_client(client: &Namespace) {
    client.run("sysctl -qw net.mptcp.enabled=1");
    for is_v6 in [false, true] {
        let (via1, via2) =
            if is_v6 { ("fd66:1::1", "fd66:2::1") } else { ("10.66.1.1", "10.66.2.1") };
        client.run(&format!("ip route add default via {via1} dev eth1"));
        let family = if is_v6 { "-6" } else { "-4" };
        client.run(&format!("ip {family} route add default via {via2} dev eth2 table 2"));
        client.run(&format!("ip {family} rule add from {} table 2", second_address(is_v6)));
    }
}

fn be_backend(backend: &Namespace, number: usize) {
    backend.run("sysctl -qw net.mptcp.enabled=1 net.ipv4.conf.all.rp_filter=0");
    for vip in vips() {
        backend.add_own(vip);
    }
    for via in [format!("10.66.{number}.1"), format!("fd66:{number}::1")] {
        backend.run(&format!("ip route add default via {via}"));
    }
    // As `guideway config backend` has it: what clients send fits into tunnels.
    for rest in [
        "table inet guideway",
        "chain inet guideway output { type filter hook output priority 10 ; }",
        "rule inet guideway output tcp flags & (syn | rst) == syn tcp option maxseg size set 1344",
    ] {
        backend.run(&format!("nft add {rest}"));
    }
}

/// Fields of both agents' configs.
pub fn agents(name: &str) -> String {
    let (a, b) = (BACKEND, OTHER_BACKEND);
    format!(", name: {name}, agents: {{a: [{a}, 'fd66::2'], b: [{b}, 'fd66:3::2']}}")
}

/// A counter of a kernel's, such as `MPTcpExt MPJoinAckRx`.
pub fn kernel(namespace: &Namespace, group: &str, name: &str) -> u64 {
    let text = namespace.inside(|| {
        let read = |file| std::fs::read_to_string(file).unwrap();
        read("/proc/thread-self/net/netstat") + &read("/proc/thread-self/net/snmp")
    });
    let group = format!("{group}: ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group.as_str()));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|known| known == name);
    let at = at.unwrap_or_else(|| panic!("{name} is no counter"));
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// The window scales of a backend's connections, both ways, as `ss` shows them.
pub fn window_scales(namespace: &Namespace) -> Vec<String> {
    let text = namespace.run("ss -tinOH state established");
    let scale = |line: &str| {
        let (_, scale) = line.split_once(" wscale:")?;
        Some(scale.split(' ').next()?.to_string())
    };
    text.lines().map(|line| scale(line).unwrap_or_else(|| "none".to_string())).collect()
}

/// One at a backend, as `ss` shows it.
#[derive(Debug, Clone, Copy)]
pub struct Subflow {
    /// The connection's, which the server chose.
    pub token: u32,
    /// True if it joined the connection.
    pub is_joined: bool,
    pub sent: u64,
    pub received: u64,
}

pub fn subflows_at(namespace: &Namespace) -> Vec<Subflow> {
    let text = namespace.run("ss -tinOH state established");
    let read = |line: &str| {
        // As 0000(id:0)/c0a0fb6c(id:0), the server's last.
        let (_, token) = line.split_once("token:")?.1.split_whitespace().next()?.split_once('/')?;
        let bytes = |name: &str| {
            let value = line.split_once(name).and_then(|(_, rest)| rest.split(' ').next());
            value.map_or(0, |value| value.parse().unwrap())
        };
        Some(Subflow {
            token: u32::from_str_radix(token.split('(').next()?, 16).ok()?,
            is_joined: line.contains("flags:J"),
            sent: bytes(" bytes_acked:"),
            received: bytes(" bytes_received:"),
        })
    };
    text.lines().filter_map(read).collect()
}

pub fn socket(is_v6: bool, protocol: u32) -> OwnedFd {
    let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let protocol = Protocol::from_raw(protocol.try_into().unwrap());
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(protocol)).unwrap()
}

pub fn listener_at(namespace: &Namespace, address: IpAddr) -> TcpListener {
    namespace.inside(|| {
        let socket = socket(address.is_ipv6(), MPTCP);
        rustix::net::bind(&socket, &SocketAddr::new(address, PORT)).unwrap();
        rustix::net::listen(&socket, 1024).unwrap();
        TcpListener::from(socket)
    })
}

/// Accepts from now on.
pub fn echo_by(listener: TcpListener, greets: bool) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || echo(stream, greets));
        }
    });
}

fn echo(mut stream: TcpStream, greets: bool) {
    if greets && stream.write_all(b"220 hello\n").is_err() {
        return;
    }
    let mut bytes = vec![0; 65536];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// Bytes that say where they are: words that count.
pub fn payload(bytes: usize) -> Vec<u8> {
    (0..).flat_map(u32::to_be_bytes).take(bytes).collect()
}

/// Sends bytes through the echo, all of which come back as they were.
///
/// Trap: piece by piece. Where both ends send much at once over several subflows, Linux 6.18
/// by itself (no agent, no load balancer) paused for 1 to 10 s in 1 of 20 transfers of
/// 8 MiB, and gave other bytes in 3 of 10,000. By pieces it paused in 12 of 4,320.
pub fn transfer(mut stream: &TcpStream, bytes: usize) {
    const PIECE: usize = 64 << 10;
    let mut received = [0; PIECE];
    for (number, sent) in payload(bytes).chunks(PIECE).enumerate() {
        let received = &mut received[..sent.len()];
        stream.write_all(sent).unwrap();
        stream.read_exact(received).unwrap();
        if let Some(at) = (0..sent.len()).find(|&at| sent[at] != received[at]) {
            let end = sent.len().min(at + 16);
            panic!("in piece {number} at {at} came back {:x?}", &received[at..end]);
        }
    }
}

/// Tries all cases at once.
pub fn each<T: Send + Sync>(cases: &[T], test: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| test(case));
        }
    });
}
