//! `guideway-agent doctor` and `status` on a backend in a namespace. The backend is healthy at
//! first; then each fault is made for real, found, and cured as doctor says. Needs root.
//!
//! ```text
//!  network: load balancer 10.66.0.1, agent b 10.66.0.3  ══ veth ══  backend: agent a 10.66.0.2
//!                                                                   VIPs on lo
//! ```

use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::Agent;
use crate::support::bpf_file_system::BpfFileSystem;
use serde_json::Value;
use tempfile::TempDir;
use testnet::{Namespace, root_or_skip};

const CONFIG: &str = "
interface: eth0
load_balancers: [10.66.0.1, 'fd66::1']
vips: [203.0.113.10, '2001:db8:a::10']
name: a
agents: {a: [10.66.0.2, 'fd66::2'], b: [10.66.0.3, 'fd66::3']}
";

struct Backend {
    network: Namespace,
    namespace: Namespace,
    // Unmounted before its folder goes.
    bpf: BpfFileSystem,
    folder: TempDir,
    _sockets: Vec<(TcpListener, UdpSocket)>,
}

impl Backend {
    fn new() -> Backend {
        let (network, namespace) = (Namespace::new("network"), Namespace::new("backend"));
        network.run(&format!(
            "ip link add eth0 mtu 1620 type veth peer eth0 mtu 1620 netns {namespace}"
        ));
        for (namespace, addresses) in [
            (&network, &["10.66.0.1/24", "10.66.0.3/24", "fd66::1/64", "fd66::3/64"][..]),
            (&namespace, &["10.66.0.2/24", "fd66::2/64"]),
        ] {
            namespace.run("ip link set eth0 up");
            for address in addresses {
                let nodad = if address.contains(':') { "nodad" } else { "" };
                namespace.run(&format!("ip addr add {address} dev eth0 {nodad}"));
            }
        }
        for command in [
            "ip route add default via 10.66.0.1",
            "ip route add default via fd66::1",
            "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        ] {
            namespace.run(command);
        }
        for vip in ["203.0.113.10", "2001:db8:a::10"] {
            namespace.add_own(vip.parse().unwrap());
        }
        let sockets = namespace.inside(|| {
            ["203.0.113.10", "2001:db8:a::10"]
                .map(|vip| {
                    (TcpListener::bind((vip, 80)).unwrap(), UdpSocket::bind((vip, 53)).unwrap())
                })
                .into()
        });
        let folder = TempDir::new().unwrap();
        let bpf = BpfFileSystem::mount(folder.path().join("bpf"));
        let backend = Backend { network, namespace, bpf, folder, _sockets: sockets };
        backend.wait_for_addresses();
        backend.configure(CONFIG);
        backend
    }

    /// With this config, which pins the program unless it says otherwise.
    fn configure(&self, text: &str) {
        let pin = match text.contains("pin:") {
            true => String::new(),
            false => format!("pin: {}\n", self.bpf.0.join("agent").display()),
        };
        std::fs::write(self.file(), format!("{text}{pin}")).unwrap();
    }

    fn file(&self) -> String {
        self.folder.path().join("agent.yaml").display().to_string()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace.name, env!("CARGO_BIN_EXE_guideway-agent")]);
        command.args(["--config", &self.file()]).args(arguments.split_whitespace());
        command
    }

    /// An agent that has resolved the other one.
    fn agent(&self) -> Agent {
        let agent = Agent::start(self.command(""));
        assert!(agent.ready.starts_with("ready: eth0"), "{}", agent.ready);
        let deadline = Instant::now() + Duration::from_secs(20);
        // It is ready a moment before it answers `status`.
        while !self.command("status").output().unwrap().status.success() {
            assert!(Instant::now() < deadline, "it does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        while self.status()["other_agents"].as_array().unwrap().iter().any(|o| o["mtu"].is_null()) {
            assert!(Instant::now() < deadline, "{}", self.status());
            std::thread::sleep(Duration::from_millis(50));
        }
        agent
    }

    fn status(&self) -> Value {
        let output = self.command("status -o json").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What is not as it should be: grade, what, text. It ends with 1 if any fails.
    /// No controller runs here, which is a finding ten seconds after the agent's start.
    fn problems(&self) -> Vec<[String; 3]> {
        let output = self.command("doctor -o json").output().unwrap();
        let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!findings.is_empty());
        let findings = findings.iter().map(|finding| {
            ["grade", "what", "text"].map(|field| finding[field].as_str().unwrap().to_string())
        });
        let mut problems: Vec<[String; 3]> = findings.filter(|[grade, ..]| grade != "ok").collect();
        let fails = problems.iter().any(|[grade, ..]| grade == "fail");
        assert_eq!(output.status.code(), Some(i32::from(fails)), "{problems:?}");
        problems.retain(|[_, what, _]| what != "controllers");
        problems
    }

    /// The only problem is this one, and its text has all of these.
    fn has(&self, grade: &str, what: &str, texts: &[&str]) {
        let problems = self.problems();
        let is_it = |[g, w, text]: &[String; 3]| {
            g == grade && w == what && texts.iter().all(|part| text.contains(part))
        };
        assert!(problems.iter().any(is_it), "{grade} {what} {texts:?} in {problems:#?}");
        assert!(problems.iter().all(|[_, w, _]| w == what), "more than {what}: {problems:#?}");
    }

    fn is_well(&self, after: &str) {
        let problems = self.problems();
        assert!(problems.is_empty(), "{after}: {problems:#?}");
    }

    /// Makes something wrong, which doctor finds, and whose cure it names; then it is well.
    fn fault(&self, make: &str, what: &str, texts: &[&str], cure: &str) {
        self.namespace.run(make);
        self.has("fail", what, &[texts, &[cure]].concat());
        cure.split(" && ").for_each(|command| drop(self.namespace.run(command)));
        self.wait_for_addresses();
        self.is_well(cure);
    }

    /// Trap: the kernel delivers to a new IPv6 address only when a work queue of its own
    /// has come round to it, also without duplicate address detection.
    fn wait_for_addresses(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.namespace.run("ip -6 route show table local").contains("local 2001:db8:a::10 ")
        {
            assert!(Instant::now() < deadline, "the address is not taken in");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_backend_that_is_well_has_no_finding_and_each_fault_has_one() {
    if !root_or_skip("a_backend_that_is_well_has_no_finding_and_each_fault_has_one") {
        return;
    }
    let backend = Backend::new();
    backend.has("fail", "agent", &["no agent runs for eth0", "systemctl start guideway-agent"]);
    let _agent = backend.agent();
    backend.is_well("an agent");

    backend.fault(
        "ip addr del 203.0.113.10/32 dev lo",
        "vips",
        &["203.0.113.10/32 is no address of this machine"],
        "ip address replace 203.0.113.10/32 dev lo",
    );
    backend.fault(
        "ip addr del 2001:db8:a::10/128 dev lo",
        "vips",
        &["2001:db8:a::10/128 is no address of this machine"],
        "ip address replace 2001:db8:a::10/128 dev lo",
    );
    backend.namespace.run("ip addr del 203.0.113.10/32 dev lo");
    backend.fault(
        "ip addr add 203.0.113.10/32 dev eth0",
        "vips",
        &["is on eth0, which answers"],
        "ip address del 203.0.113.10/32 dev eth0 && ip address replace 203.0.113.10/32 dev lo",
    );
    let setting = |name: &str| format!("sysctl -w net.ipv4.conf.all.{name}");
    for (make, texts, cure) in [
        ("arp_ignore=0", "arp_ignore is 0", "arp_ignore=1"),
        ("arp_announce=0", "arp_announce is 0", "arp_announce=2"),
    ] {
        backend.fault(&setting(make), "arp", &[texts], &setting(cure));
    }
}

#[test]
fn routes_and_mtus_that_lose_packets_are_found() {
    if !root_or_skip("routes_and_mtus_that_lose_packets_are_found") {
        return;
    }
    let backend = Backend::new();
    let run = |command: &str| drop(backend.namespace.run(command));
    let _agent = backend.agent();

    // Answers leave by another device, as of a machine with two networks.
    run("sysctl -qw net.ipv4.conf.all.rp_filter=1");
    backend.is_well("strict filtering where answers leave by the same interface");
    run(&format!("ip link add eth1 type veth peer eth1 netns {}", backend.network));
    run("ip addr add 10.67.0.2/24 dev eth1");
    run("ip link set eth1 up");
    backend.network.run("ip link set eth1 up");
    backend.fault(
        "ip route replace default via 10.67.0.1 dev eth1",
        "rp_filter",
        &["answers leave by eth1"],
        "sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0",
    );
    run("ip route replace default via 10.66.0.1 dev eth0");
    run("ip link del eth1");

    run("ip link set eth0 mtu 1500");
    let too_narrow =
        || backend.has("warn", "mtu", &["1500: full segments", "config backend", "mtu 1616"]);
    too_narrow();
    run("nft add table inet guideway");
    run("nft add chain inet guideway output { type filter hook output priority 10 ; }");
    run("nft add rule inet guideway output ip saddr 203.0.113.10 tcp option maxseg size set 1344");
    too_narrow();
    run(
        "nft add rule inet guideway output ip6 saddr 2001:db8:a::10 tcp option maxseg size set 1325",
    );
    too_narrow();
    run("nft flush chain inet guideway output");
    run("nft add rule inet guideway output tcp flags syn tcp option maxseg size set 1324");
    backend.is_well("mtu");
    run("nft delete table inet guideway");
    run("ip route replace default via 10.66.0.1 advmss 1344");
    run("ip route replace default via fd66::1 advmss 1324");
    backend.is_well("advmss");
    run("ip route replace default via 10.66.0.1");
    run("ip route replace default via fd66::1");
    run("ip link set eth0 mtu 1620");

    run("ip route add 10.66.0.3 dev eth0 mtu 1500");
    backend.has("warn", "agents", &["the route to 10.66.0.3 has mtu 1500, and eth0 has 1620"]);
    run("ip route del 10.66.0.3");

    run("ip link set eth0 down");
    let problems = backend.problems();
    assert!(
        problems
            .iter()
            .any(|[_, what, text]| what == "interface" && text.contains("ip link set eth0 up")),
        "{problems:?}"
    );
}

#[test]
fn a_config_that_is_wrong_for_this_machine_is_found() {
    if !root_or_skip("a_config_that_is_wrong_for_this_machine_is_found") {
        return;
    }
    let backend = Backend::new();
    let agent = backend.agent();
    for (text, expected) in [
        (CONFIG.replace("vips: [", "vips: [203.0.113.11, "), "203.0.113.11/32 is no address"),
        (CONFIG.replace("name: a", "name: b"), "this machine has the address of a: write name: a"),
        (
            CONFIG.replace("10.66.0.2,", "10.66.0.9,"),
            "10.66.0.9 is none of this machine's: write this machine's address",
        ),
        (CONFIG.replace("10.66.0.3", "10.66.0.33"), "another config"),
        (CONFIG.replace("name: a", "name: c"), "\"c\" is none of the agents"),
        (CONFIG.replace("eth0", "eth9"), "there is no eth9"),
    ] {
        backend.configure(&text);
        let problems = backend.problems();
        assert!(
            problems.iter().any(|[grade, _, text]| grade == "fail" && text.contains(expected)),
            "{expected} in {problems:#?}"
        );
    }
    backend.configure(CONFIG);
    backend.is_well("the config is back");
    drop(agent);

    // An agent that is named and not there.
    backend.configure(&CONFIG.replace("10.66.0.3", "10.66.0.44"));
    let _agent = Agent::start(backend.command(""));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !backend
        .problems()
        .iter()
        .any(|[_, what, text]| what == "agents" && text.contains("b (10.66.0.44)"))
    {
        assert!(Instant::now() < deadline);
    }
}

/// Each setting that handshakes of Multipath TCP need, made wrong and cured.
#[test]
fn settings_that_multipath_tcp_needs_are_found() {
    if !root_or_skip("settings_that_multipath_tcp_needs_are_found") {
        return;
    }
    let backend = Backend::new();
    let services = format!("{CONFIG}mptcp: [{{address: 203.0.113.10, port: 80}}]\n");
    backend.configure(&services);
    backend.namespace.run("sysctl -qw net.mptcp.enabled=1 net.ipv4.conf.all.rp_filter=0");
    let agent = backend.agent();
    backend.has("warn", "mptcp", &["no key for messages to b", "config backend NAME --keys"]);
    drop(agent);
    let keys = backend.folder.path().join("agent.key");
    let key = "00112233445566778899aabbccddeeff";
    std::fs::write(
        &keys,
        format!(
            "agent: a\nkey_id: \"0123456789abcdef\"\nmessage_key: \"{key}{key}\"\nbucket_key: \"{key}\"\npeers:\n  b: \"{key}{key}\"\n"
        ),
    )
    .unwrap();
    backend.configure(&format!("{services}key_file: {}\n", keys.display()));
    let _agent = backend.agent();
    backend.is_well("as it should be");
    for (make, text, cure) in [
        ("net.mptcp.enabled=0", "connections are plain TCP", "net.mptcp.enabled=1"),
        ("net.ipv4.tcp_syncookies=0", "tcp_syncookies is 0", "net.ipv4.tcp_syncookies=1"),
        ("net.ipv4.conf.all.rp_filter=2", "is 2", "net.ipv4.conf.all.rp_filter=0"),
    ] {
        let command = |setting: &str| format!("sysctl -w {setting}");
        backend.namespace.run(&command(make));
        backend.has("fail", "mptcp", &[text, &command(cure)]);
        backend.namespace.run(&command(cure));
        backend.is_well(cure);
    }
    backend.namespace.run("sysctl -qw net.ipv4.tcp_timestamps=0");
    backend.has("warn", "mptcp", &["tcp_timestamps is 0", "net.ipv4.tcp_timestamps=1"]);
}

#[test]
fn a_program_that_goes_with_its_agent_is_found() {
    if !root_or_skip("a_program_that_goes_with_its_agent_is_found") {
        return;
    }
    let backend = Backend::new();
    backend.configure(&format!("{CONFIG}pin: off\n"));
    let _agent = backend.agent();
    backend.has("warn", "pin", &["not pinned", "mount -t bpf bpf /sys/fs/bpf"]);
}

/// A generic program meets what the kernel has merged.
#[test]
fn merged_packets_are_found() {
    if !root_or_skip("merged_packets_are_found") {
        return;
    }
    let backend = Backend::new();
    backend.configure(&format!("{CONFIG}mode: generic\n"));
    backend.namespace.run("ethtool -K eth0 gro off");
    let _agent = backend.agent();
    backend.is_well("generic without GRO");
    backend.fault("ethtool -K eth0 gro on", "offload", &["GRO"], "ethtool -K eth0 gro off");
}

#[test]
fn a_chain_whose_policy_drops_is_a_warning_and_none_is_said_to_accept() {
    if !root_or_skip("a_chain_whose_policy_drops_is_a_warning_and_none_is_said_to_accept") {
        return;
    }
    let backend = Backend::new();
    let _agent = backend.agent();
    let firewall = |rules: &str| {
        let file = backend.folder.path().join("rules");
        std::fs::write(&file, format!("flush ruleset\n{rules}\n")).unwrap();
        backend.namespace.run(&format!("nft -f {}", file.display()));
    };
    let chain = |hook: &str, policy: &str| {
        format!(
            "table inet filter {{\nchain web {{\ntcp dport 80 accept\n}}\n\
             chain {hook} {{ type filter hook {hook} priority 0; policy {policy};\njump web\n}}\n}}"
        )
    };
    for hook in ["prerouting", "input", "output"] {
        firewall(&chain(hook, "drop"));
        backend.has("warn", "firewall", &[&format!("policy drop: inet filter {hook}:")]);
    }
    // Packets of services are not forwarded.
    for rules in [chain("forward", "drop"), chain("input", "accept"), String::new()] {
        firewall(&rules);
        backend.is_well(&rules);
    }
}

/// As of a container with a network of its own.
#[test]
fn a_service_in_another_namespace_is_found() {
    if !root_or_skip("a_service_in_another_namespace_is_found") {
        return;
    }
    let mut backend = Backend::new();
    let _agent = backend.agent();
    backend.is_well("sockets here");
    backend._sockets.clear();
    backend.has("fail", "sockets", &["nothing listens on 203.0.113.10 in this network namespace"]);
    let container = Namespace::new("container");
    let mut server = Command::new("ip");
    server.args(["netns", "exec", &container.name, env!("CARGO_BIN_EXE_guideway-agent")]);
    let config = backend.folder.path().join("server.yaml");
    // Any program that listens will do.
    std::fs::write(&config, "{interface: lo, mode: generic, load_balancers: [10.66.0.1], vips: [203.0.113.10], metrics_listen: '0.0.0.0:8080'}").unwrap();
    server.arg("--config").arg(config);
    let _server = Agent::start(server);
    backend.has("fail", "sockets", &["port 8080 in that of process"]);
}

/// As `doctor | head -n 1`: whoever reads no more is no fault of the program's.
#[test]
fn a_reader_that_goes_is_no_panic() {
    if !root_or_skip("a_reader_that_goes_is_no_panic") {
        return;
    }
    let backend = Backend::new();
    for arguments in ["doctor", "doctor -o json", "--check"] {
        let mut command = backend.command(arguments);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code < 2), "{arguments}: {said}");
        assert!(!said.contains("panicked"), "{arguments}: {said}");
    }
}

#[test]
fn status_shows_what_the_agent_does() {
    if !root_or_skip("status_shows_what_the_agent_does") {
        return;
    }
    let backend = Backend::new();
    let output = backend.command("status").output().unwrap();
    assert!(!output.status.success());
    let problem = String::from_utf8(output.stderr).unwrap();
    assert!(problem.contains("no agent runs for eth0"), "{problem}");
    let _agent = backend.agent();
    let status = backend.status();
    assert_eq!(status["mode"], "tc");
    assert_eq!(status["configured"]["name"], "a");
    assert_eq!(
        status["configured"]["vips"],
        serde_json::json!(["203.0.113.10/32", "2001:db8:a::10/128"])
    );
    assert_eq!(status["other_agents"][0]["name"], "b");
    assert_eq!(status["other_agents"][0]["mtu"], 1620);
    assert_eq!(status["config_file"], backend.file());
    assert_eq!(status["packets"]["dropped"]["not_vip"], 0);
    let output = backend.command("status").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in
        ["interface     eth0, tc", "agent         b 10.66.0.3 reached, packets of up to 1620 bytes"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

/// Where a former agent is asked, whose name any user can take.
fn former_listener(namespace: &Namespace) -> UnixListener {
    let name = SocketAddr::from_abstract_name("guideway-agent/eth0").unwrap();
    namespace.inside(|| UnixListener::bind_addr(&name).unwrap())
}

#[test]
fn nobody_can_take_the_socket_of_status() {
    if !root_or_skip("nobody_can_take_the_socket_of_status") {
        return;
    }
    let backend = Backend::new();
    let _squatter = former_listener(&backend.namespace);
    let agent = backend.agent();
    let socket = socket_of(&backend);
    let directory = std::fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!((directory.permissions().mode() & 0o7777, directory.uid()), (0o700, 0));
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    // Trap: `ip netns exec` is root's.
    other.args(["test", "-e"]).arg(&socket);
    assert!(!other.status().unwrap().success(), "others reach it");
    drop(agent); // killed: its socket may be left, and nobody listens there
    assert!(!backend.command("status").output().unwrap().status.success());
    let mut agent = backend.agent();
    let next = Agent::start(backend.command("")); // in its place, as by an upgrade
    testnet::run(&format!("kill {}", agent.child.id()));
    agent.child.wait().unwrap();
    assert_eq!(backend.status()["configured"]["interface"], "eth0", "the next one answers");
    testnet::run(&format!("kill {}", next.child.id()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while socket.exists() {
        assert!(Instant::now() < deadline, "it is left");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Of the agent for eth0 of this namespace.
fn socket_of(backend: &Backend) -> std::path::PathBuf {
    let namespace =
        backend.namespace.inside(|| std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino());
    format!("/run/guideway/agent/{namespace}-eth0.sock").into()
}

#[test]
fn an_agent_of_the_version_before_is_asked_by_its_former_name() {
    if !root_or_skip("an_agent_of_the_version_before_is_asked_by_its_former_name") {
        return;
    }
    let backend = Backend::new();
    let agent = backend.agent();
    let said = backend.status().to_string();
    drop(agent);
    let listener = former_listener(&backend.namespace);
    let answering =
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(said.as_bytes()));
    assert_eq!(backend.status()["configured"]["interface"], "eth0");
    answering.join().unwrap().unwrap();
}

/// What attached a program can be told to take it off, by who may do so.
#[test]
fn a_program_that_was_taken_off_is_found() {
    if !root_or_skip("a_program_that_was_taken_off_is_found") {
        return;
    }
    let backend = Backend::new();
    for (mode, link) in [("tc", "tcx-ingress"), ("native", "xdp-native")] {
        backend.configure(&format!("{CONFIG}mode: {mode}\n"));
        let _agent = backend.agent();
        backend.is_well(mode);
        ebpf::Link::pinned(&backend.bpf.0.join("agent").join(link)).unwrap().detach().unwrap();
        backend.has("fail", "interface", &["was taken off eth0", "systemctl restart"]);
    }
}
