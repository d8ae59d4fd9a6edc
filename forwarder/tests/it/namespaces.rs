//! The real program between real namespaces: client – load balancer – backend.
//!
//! ```text
//!  client 10.0.0.2 ──eth0── 10.0.0.1 balancer 10.0.1.1 ──eth1── 10.0.1.11, .12 backend
//!         VIP 203.0.113.10 and 2001:db8:a::10 by way of the balancer
//! ```

mod links;
mod zero_copy;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::Net;
use crate::program::{Forwarder, command};
use guideway_forwarder::proto::{
    CaptureRequest, CaptureResponse, CapturedPacket, FlowKey, GetConnectionsRequest,
};
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, sendto};
use serde_json::{Value, json};
use testnet::{raw_socket, receive, root_or_skip, sender_from};

const VIP: &str = "203.0.113.10";
const VIP6: &str = "2001:db8:a::10";

impl Net {
    /// With IPv6 beside IPv4.
    fn of_both_families() -> Net {
        let net = Net::new(2, 11..=12);
        net.client.run("ip addr add 2001:db8:0::2/64 dev eth0 nodad");
        net.balancer.run("ip addr add 2001:db8:0::1/64 dev eth0 nodad");
        net.balancer.run("ip addr add 2001:db8:1::1/64 dev eth1 nodad");
        for host in [11, 12] {
            net.backend.run(&format!("ip addr add 2001:db8:1::{host}/64 dev eth0 nodad"));
        }
        net.client.run(&format!("ip -6 route add {VIP6} via 2001:db8:0::1"));
        net
    }

    /// Sends one datagram from each port.
    fn send_udp(&self, vip: &str, ports: impl Iterator<Item = u16> + Send) {
        let vip = SocketAddr::new(vip.parse().unwrap(), 53);
        let any: IpAddr =
            if vip.is_ipv4() { "0.0.0.0".parse().unwrap() } else { "::".parse().unwrap() };
        self.client.inside(|| {
            for port in ports {
                let socket = sender_from(SocketAddr::new(any, port));
                socket.send_to(format!("datagram {port}").as_bytes(), vip).unwrap();
            }
        });
    }

    /// Listens for GRE packets at the backend.
    fn listen(&self, family: AddressFamily) -> Backend {
        let (sender, packets) = channel();
        let socket = self.backend.inside(|| raw_socket(family, 47));
        set_socket_recv_buffer_size_force(&socket, 8 << 20).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(50))).unwrap();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut bytes = vec![0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(length) = receive(&socket, &mut bytes) {
                    let v4 = family == AddressFamily::INET;
                    let _ = sender.send(Received::parse(&bytes[..length], v4));
                }
            }
        });
        Backend { packets, stop, thread: Some(thread) }
    }

    fn plan(&self, generation: u64, driver: &str, weights: &[(u8, u32)]) -> Value {
        let member = |family: &str, (host, weight): &(u8, u32)| {
            let state =
                if *weight == 0 { "BACKEND_STATE_DRAINING" } else { "BACKEND_STATE_ACTIVE" };
            json!({"backend": format!("{family}-{host}"), "weight": weight, "state": state})
        };
        let members =
            |family: &str| weights.iter().map(|entry| member(family, entry)).collect::<Vec<_>>();
        let address = |family: &str, host: u8| match family {
            "v4" => format!("10.0.1.{host}"),
            _ => format!("2001:db8:1::{host}"),
        };
        let backends: Vec<Value> = ["v4", "v6"]
            .iter()
            .flat_map(|family| weights.iter().map(move |(host, _)| (family, *host)))
            .map(|(family, host)| json!({"name": format!("{family}-{host}"), "address": address(family, host)}))
            .collect();
        json!({
            "generation": generation.to_string(),
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb", "addresses": ["10.0.1.1", "2001:db8:1::1"]},
            "backends": backends,
            "groups": [
                {"name": "v4", "members": members("v4")}, {"name": "v6", "members": members("v6")},
            ],
            "services": [
                {"name": "dns", "group": "v4", "vips": [
                    {"address": VIP, "protocol": "PROTOCOL_UDP", "ports": [{"first": 53, "last": 53}]},
                    {"address": VIP, "protocol": "PROTOCOL_TCP", "ports": [{"first": 80, "last": 80}]},
                ]},
                {"name": "dns6", "group": "v6", "vips": [
                    {"address": VIP6, "protocol": "PROTOCOL_UDP", "ports": [{"first": 53, "last": 53}]},
                ]},
            ],
            "forwarder": {
                "connectionsMax": "10000",
                "interfaces": [{"name": "eth0", "driver": driver}, {"name": "eth1", "driver": driver}],
            },
        })
    }
}

/// Collects what arrives.
struct Backend {
    packets: Receiver<Received>,
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Backend {
    /// The next `count` packets; fewer, if they do not come in time.
    fn take(&self, count: usize) -> Vec<Received> {
        let deadline = Instant::now() + Duration::from_secs(3);
        let next =
            || self.packets.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).take(count).collect()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A GRE packet, taken apart.
#[derive(Debug, Clone)]
struct Received {
    /// Outer source and destination; None over IPv6, where a raw socket does
    /// not show them.
    outer: Option<(Ipv4Addr, Ipv4Addr)>,
    gre: [u8; 4],
    source_port: u16,
    payload: Vec<u8>,
}

impl Received {
    fn parse(packet: &[u8], outer_v4: bool) -> Received {
        let v4 = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
        let (outer, start) = if outer_v4 { (Some((v4(12), v4(16))), 20) } else { (None, 0) };
        let inner = &packet[start + 4..];
        let transport = &inner[if inner[0] >> 4 == 4 { 20 } else { 40 }..];
        Received {
            outer,
            gre: packet[start..start + 4].try_into().unwrap(),
            source_port: u16::from_be_bytes([transport[0], transport[1]]),
            payload: transport.get(8..).unwrap_or_default().to_vec(),
        }
    }

    fn backend(&self) -> Ipv4Addr {
        self.outer.expect("over IPv4").1
    }
}

fn dropped(counters: &guideway_forwarder::proto::GetCountersResponse) -> Vec<(&str, u64)> {
    counters
        .dropped
        .iter()
        .filter(|drop| drop.packets > 0)
        .map(|drop| (drop.reason.as_str(), drop.packets))
        .collect()
}

/// A link comes up some time after it was told to, and neighbours are resolved then.
fn wait_until_resolved(net: &Net, vip: &str, backend: &Backend) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        net.send_udp(vip, 19_999..20_000);
        if backend.packets.recv_timeout(Duration::from_secs(1)).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "nothing arrives: {}", net.balancer.run("ip -s link"));
    }
    while backend.packets.recv_timeout(Duration::from_secs(1)).is_ok() {}
}

fn packets_reach_their_backends(drivers: [&str; 2]) {
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    let mut plan = net.plan(1, drivers[0], &[(11, 1), (12, 1)]);
    plan["forwarder"]["interfaces"][1]["driver"] = json!(drivers[1]);
    let answer = forwarder.set_plan(&plan).unwrap();
    assert_eq!((answer.generation, answer.warnings), (1, vec![]));
    for device in forwarder.status().devices {
        let expected = device.driver == "af_xdp" && testnet::has_zero_copy();
        assert_eq!(device.zero_copy, expected, "{}", device.interface);
    }
    let (v4, v6) = (net.listen(AddressFamily::INET), net.listen(AddressFamily::INET6));

    net.send_udp(VIP, 20_000..20_100);
    let received = v4.take(100);
    assert_eq!(received.len(), 100, "{:?}", dropped(&forwarder.counters()));
    let mut by_port = BTreeMap::new();
    for packet in &received {
        assert_eq!(packet.gre, [0, 0, 8, 0]);
        assert_eq!(packet.outer.unwrap().0, Ipv4Addr::new(10, 0, 1, 1));
        assert_eq!(packet.payload, format!("datagram {}", packet.source_port).into_bytes());
        by_port.insert(packet.source_port, packet.backend());
    }
    assert_eq!(by_port.len(), 100);
    assert_eq!(
        by_port,
        selected(&forwarder, &plan),
        "`select` and the workers agree on every flow"
    );

    net.send_udp(VIP6, 20_000..20_050);
    let received = v6.take(50);
    assert_eq!(received.len(), 50, "{:?}", dropped(&forwarder.counters()));
    assert!(received.iter().all(|packet| packet.gre == [0, 0, 0x86, 0xdd]));

    net.client.inside(|| {
        let vip = SocketAddr::new(VIP.parse().unwrap(), 80);
        TcpStream::connect_timeout(&vip, Duration::from_millis(100)).expect_err("no answer comes");
    });
    assert_eq!(v4.take(1).len(), 1, "the SYN");
    // A port that no service has.
    net.client.inside(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"?", (VIP, 54)).unwrap());
    check_what_is_counted(&mut forwarder);
    assert_eq!(forwarder.terminate(), Some(0));
    let neighbours = net.balancer.run("ip neigh");
    assert!(!neighbours.contains("managed"), "{neighbours}");
}

fn check_what_is_counted(forwarder: &mut Forwarder) {
    std::thread::sleep(Duration::from_millis(100));
    let counters = forwarder.at_rest();
    assert_eq!(counters.unaccounted, 0);
    assert_eq!((counters.received, counters.sent), (152, 151));
    assert_eq!(dropped(&counters), [("no_service", 1)]);
    let vip: u64 = counters.services.iter().map(|line| line.packets).sum();
    let backends: u64 = counters.backends.iter().map(|line| line.packets).sum();
    assert_eq!((vip, backends), (151, 151));
    let connections = forwarder.connections(GetConnectionsRequest::default());
    assert_eq!(connections.counts.iter().map(|count| count.connections).sum::<u64>(), 151);
    let lookup = FlowKey {
        source: "10.0.0.2".into(),
        destination: VIP.into(),
        protocol: 17,
        source_port: 20_000,
        destination_port: 53,
    };
    let found = forwarder.connections(GetConnectionsRequest { lookup: Some(lookup) }).found;
    assert_eq!(found.len(), 1, "one worker knows the flow");
    let status = forwarder.status();
    let names: Vec<&str> = status.threads.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!((names, status.devices.len()), (vec!["worker-0", "worker-1", "slow-path"], 2));
    assert!(
        status.threads.iter().all(|thread| thread.generation == 1 && thread.heartbeat_age_ms < 500)
    );
    let helpers: Vec<&str> = status.helpers.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!(helpers, ["next-hops", "punt", "take-over"]);
    assert!(status.helpers.iter().all(|thread| thread.heartbeat_age_ms < 5000), "{status:?}");
    let devices: Vec<(bool, u32)> =
        status.devices.iter().map(|device| (device.up, device.mtu)).collect();
    assert_eq!(devices, [(true, 1500), (true, 1600)]);
    assert!(status.unresolved.is_empty());
    let metrics = forwarder.metrics();
    for line in [
        "guideway_forwarder_up 1\n",
        "guideway_thread_heartbeat_age_seconds{thread=\"slow-path\"} ",
        "guideway_thread_heartbeat_age_seconds{thread=\"next-hops\"} ",
        "guideway_drop_packets_total{reason=\"no_service\"} 1\n",
        "guideway_unaccounted_packets 0\n",
        "guideway_frames_total{verdict=\"sent\"} 151\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
}

/// What the subcommand `select` says of the flows from ports 20000 to 20099.
fn selected(forwarder: &Forwarder, plan: &Value) -> BTreeMap<u16, Ipv4Addr> {
    let file = forwarder.folder.path().join("select.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_guideway-forwarder"))
        .args(["select", "--plan"])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for port in 20_000..20_100 {
        writeln!(stdin, "udp 10.0.0.2 {port} {VIP} 53").unwrap();
    }
    drop(stdin);
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let answer = |line: &str| -> (u16, Ipv4Addr) {
        let line: Value = serde_json::from_str(line).unwrap();
        let port = line["flow"].as_str().unwrap().split(' ').nth(2).unwrap().parse().unwrap();
        let host: u8 =
            line["backend"].as_str().unwrap().strip_prefix("v4-").unwrap().parse().unwrap();
        (port, Ipv4Addr::new(10, 0, 1, host))
    };
    output.lines().map(answer).collect()
}

#[test]
fn packets_reach_their_backends_over_af_xdp() {
    if root_or_skip("packets_reach_their_backends_over_af_xdp") {
        packets_reach_their_backends(["DRIVER_AF_XDP", "DRIVER_AF_XDP"]);
    }
}

#[test]
fn packets_reach_their_backends_over_af_packet() {
    if root_or_skip("packets_reach_their_backends_over_af_packet") {
        packets_reach_their_backends(["DRIVER_AF_PACKET", "DRIVER_AF_PACKET"]);
    }
}

/// As `driver: auto` has it where one interface is virtual.
#[test]
fn packets_reach_their_backends_over_one_of_each() {
    if root_or_skip("packets_reach_their_backends_over_one_of_each") {
        packets_reach_their_backends(["DRIVER_AF_PACKET", "DRIVER_AF_XDP"]);
        packets_reach_their_backends(["DRIVER_AF_XDP", "DRIVER_AF_PACKET"]);
    }
}

#[test]
fn plans_are_swapped_under_traffic_without_loss() {
    if !root_or_skip("plans_are_swapped_under_traffic_without_loss") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1), (12, 1)])).unwrap();
    let backend = net.listen(AddressFamily::INET);
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| net.client.inside(|| send_until(&stop)));
        for generation in 2..22 {
            // Now one backend, now both, now with a change of address lists.
            let weights: &[(u8, u32)] = match generation % 3 {
                0 => &[(11, 1)],
                1 => &[(11, 3), (12, 1)],
                _ => &[(12, 1), (11, 0)],
            };
            assert_eq!(
                forwarder
                    .set_plan(&net.plan(generation, "DRIVER_AF_XDP", weights))
                    .unwrap()
                    .generation,
                generation
            );
            std::thread::sleep(Duration::from_millis(30));
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    let received: BTreeSet<Vec<u8>> =
        backend.take(sent).into_iter().map(|packet| packet.payload).collect();
    let counters = forwarder.at_rest();
    assert!(sent > 500, "{sent}");
    assert_eq!(received.len(), sent, "{:?}", dropped(&counters));
    assert_eq!((counters.unaccounted, dropped(&counters)), (0, vec![]));
    let by_name: u64 = counters.services.iter().map(|line| line.packets).sum();
    assert_eq!(by_name, sent as u64, "counters by name go on over swaps");
}

/// Numbered datagrams from several ports, one a millisecond.
fn send_until(stop: &AtomicBool) -> usize {
    let sockets: Vec<UdpSocket> = (0..16).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        sockets[sent % 16].send_to(&(sent as u64).to_be_bytes(), (VIP, 53)).unwrap();
        sent += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    sent
}

#[test]
fn after_kill_9_it_goes_on_from_disk_with_its_connections() {
    if !root_or_skip("after_kill_9_it_goes_on_from_disk_with_its_connections") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1), (12, 1)])).unwrap();
    let backend = net.listen(AddressFamily::INET);
    net.send_udp(VIP, 30_000..30_100);
    let before: BTreeMap<u16, Ipv4Addr> = by_port(backend.take(100));
    // Confirmed a tick later, so that the sweep leaves them.
    std::thread::sleep(Duration::from_millis(150));
    net.send_udp(VIP, 30_000..30_100);
    assert_eq!(by_port(backend.take(100)), before);
    forwarder.set_plan(&net.plan(2, "DRIVER_AF_XDP", &[(11, 0), (12, 1)])).unwrap();
    forwarder.kill_and_restart();
    assert_eq!(forwarder.status().generation, 2, "from disk");
    net.send_udp(VIP, 30_000..30_100);
    assert_eq!(
        by_port(backend.take(100)),
        before,
        "tracked connections stay with the draining backend"
    );
    net.send_udp(VIP, 31_000..31_050);
    let fresh = by_port(backend.take(50));
    assert_eq!(fresh.len(), 50);
    assert!(fresh.values().all(|address| *address == Ipv4Addr::new(10, 0, 1, 12)), "{fresh:?}");
    assert!(before.values().any(|address| *address == Ipv4Addr::new(10, 0, 1, 11)));
}

fn by_port(packets: Vec<Received>) -> BTreeMap<u16, Ipv4Addr> {
    packets.iter().map(|packet| (packet.source_port, packet.backend())).collect()
}

#[test]
fn a_second_forwarder_is_told_who_is_in_its_way() {
    if !root_or_skip("a_second_forwarder_is_told_who_is_in_its_way") {
        return;
    }
    let net = Net::of_both_families();
    let plan = net.plan(1, "DRIVER_AF_XDP", &[(11, 1)]);
    let mut first = Forwarder::start(&net.balancer);
    first.set_plan(&plan).unwrap();
    let mut second = Forwarder::start(&net.balancer);
    let refused = second.set_plan(&plan).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains(&format!("process {}", first.pid())), "{refused}");
    let output = command(&net.balancer.name, first.folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains(&first.pid().to_string()) && stderr.contains("--run-dir"), "{stderr}");
    first.terminate();
    second.set_plan(&plan).expect("the way is free");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    if !root_or_skip("what_does_not_fit_is_refused_and_changes_nothing") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    let refuse = |forwarder: &mut Forwarder, plan: &Value, code, word: &str| {
        let refused = forwarder.set_plan(plan).unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(word), "{refused}");
    };
    let good = net.plan(5, "DRIVER_AF_XDP", &[(11, 1)]);
    let with = |path: &str, value: Value| {
        let mut plan = good.clone();
        *plan.pointer_mut(path).unwrap() = value;
        plan
    };
    use tonic::Code::{FailedPrecondition, InvalidArgument};
    let missing = with("/forwarder/interfaces/0/name", json!("eth7"));
    refuse(&mut forwarder, &missing, FailedPrecondition, "eth7");
    let other_key = with("/cluster/keyId", json!("0011223344556677"));
    refuse(&mut forwarder, &other_key, FailedPrecondition, "--secret-file");
    let no_address = with("/backends/0/address", json!("10.0.1.999"));
    refuse(&mut forwarder, &no_address, InvalidArgument, "backends[0].address");
    let made_up = with("/generation", json!(u64::MAX.to_string()));
    refuse(&mut forwarder, &made_up, FailedPrecondition, "by steps");
    assert_eq!(forwarder.status().generation, 0);
    forwarder.set_plan(&good).unwrap();
    refuse(&mut forwarder, &made_up, FailedPrecondition, "by steps");
    refuse(&mut forwarder, &with("/generation", json!("4")), FailedPrecondition, "older");
    let other_device = with("/forwarder/interfaces/1/driver", json!("DRIVER_AF_PACKET"));
    refuse(&mut forwarder, &other_device, FailedPrecondition, "restart required");
    assert!(forwarder.status().restart_required.contains("AF_PACKET"));
    let other_name = with("/cluster/name", json!("other"));
    refuse(&mut forwarder, &other_name, FailedPrecondition, "hash key");
    forwarder.set_plan(&good).expect("the same plan again");
    let status = forwarder.status();
    assert_eq!((status.generation, status.restart_required.as_str()), (5, ""));
}

/// A plan may leave the driver to the forwarder, which goes on with the one that runs.
#[test]
fn an_interface_has_the_driver_that_suits_it() {
    if !root_or_skip("an_interface_has_the_driver_that_suits_it") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    let auto = |generation: u64| {
        let mut plan = net.plan(generation, "DRIVER_AF_XDP", &[(11, 1)]);
        for interface in plan["forwarder"]["interfaces"].as_array_mut().unwrap() {
            interface["autoDriver"] = json!(true);
        }
        plan
    };
    let running = |forwarder: &mut Forwarder| {
        let device = forwarder.status().devices[0].clone();
        (device.driver, device.driver_reason)
    };
    let named = |driver: &str| (driver.to_owned(), "the config names it".to_owned());
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1)])).unwrap();
    assert_eq!(running(&mut forwarder), named("af_xdp"));
    forwarder.set_plan(&auto(2)).unwrap();
    assert_eq!(running(&mut forwarder), named("af_xdp"));
    forwarder.kill_and_restart();
    let suits =
        ("af_packet".to_owned(), "auto: veth would lose its offloads with af_xdp".to_owned());
    assert_eq!(running(&mut forwarder), suits);
    forwarder.set_plan(&net.plan(3, "DRIVER_AF_PACKET", &[(11, 1)])).unwrap();
    forwarder.set_plan(&net.plan(4, "DRIVER_AF_XDP", &[(11, 1)])).unwrap_err();
    assert!(forwarder.status().restart_required.contains("AF_XDP"));
    forwarder.set_plan(&auto(5)).unwrap();
    let status = forwarder.status();
    assert_eq!((status.generation, status.restart_required.as_str()), (5, ""));
}

/// The last plan on disk names the old devices; a start by it would need a
/// restart for ever.
#[test]
fn a_restart_cures_what_required_it() {
    if !root_or_skip("a_restart_cures_what_required_it") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1)])).unwrap();
    let other_driver = net.plan(2, "DRIVER_AF_PACKET", &[(11, 1)]);
    forwarder.set_plan(&other_driver).unwrap_err();
    forwarder.kill_and_restart();
    let running = |forwarder: &mut Forwarder| {
        let status = forwarder.status();
        (status.generation, status.devices[0].driver.clone(), status.restart_required)
    };
    let changed = (2, "af_packet".to_owned(), String::new());
    assert_eq!(running(&mut forwarder), changed);
    forwarder.set_plan(&other_driver).expect("the devices are the plan's");
    // It is the last plan now.
    forwarder.kill_and_restart();
    assert_eq!(running(&mut forwarder), changed);

    // One that cannot be used leaves the last plan in force.
    let mut missing = net.plan(3, "DRIVER_AF_PACKET", &[(11, 1)]);
    missing["forwarder"]["interfaces"][0]["name"] = json!("eth7");
    forwarder.set_plan(&missing).unwrap_err();
    forwarder.kill_and_restart();
    assert_eq!(running(&mut forwarder), changed);

    // One that a later plan made obsolete is not used.
    forwarder.set_plan(&net.plan(4, "DRIVER_AF_XDP", &[(11, 1)])).unwrap_err();
    forwarder.set_plan(&net.plan(5, "DRIVER_AF_PACKET", &[(11, 1)])).unwrap();
    forwarder.kill_and_restart();
    assert_eq!(running(&mut forwarder), (5, "af_packet".to_owned(), String::new()));
}

/// A full disk at the start: the older last plan would be all that is left.
#[test]
fn a_plan_that_a_restart_took_is_kept_until_it_is_the_last_plan_on_disk() {
    if !root_or_skip("a_plan_that_a_restart_took_is_kept_until_it_is_the_last_plan_on_disk") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1)])).unwrap();
    forwarder.set_plan(&net.plan(2, "DRIVER_AF_PACKET", &[(11, 1)])).unwrap_err();
    let in_the_way = forwarder.folder.path().join("state/plan.json.new");
    std::fs::create_dir(&in_the_way).unwrap();
    for _ in 0..2 {
        forwarder.kill_and_restart();
        assert_eq!(forwarder.status().generation, 2);
        assert!(forwarder.metrics().contains("guideway_plan_saved 0\n"));
    }
    std::fs::remove_dir(&in_the_way).unwrap();
    forwarder.kill_and_restart();
    assert!(forwarder.metrics().contains("guideway_plan_saved 1\n"));
    assert!(!forwarder.folder.path().join("state/plan.restart.json").exists());
}

/// A config without a secret forwards on a machine that has one (as installed),
/// one with it forwards once the file is there, and going from one to the other
/// is a restart of both, in the way that the refusal says.
#[test]
fn the_plan_says_whether_it_was_made_with_the_secret_file() {
    if !root_or_skip("the_plan_says_whether_it_was_made_with_the_secret_file") {
        return;
    }
    let net = Net::of_both_families();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("cluster.key");
    let content = b"0123456789abcdef";
    let key_id = datapath::Secret::from_file_content(content).unwrap().key_id();
    let mut forwarder = Forwarder::start_with_secret(&net.balancer, &secret);
    let derived = net.plan(1, "DRIVER_AF_XDP", &[(11, 1)]);
    let mut secure = net.plan(2, "DRIVER_AF_XDP", &[(11, 1)]);
    secure["cluster"]["keyId"] = json!(key_id);

    let refused = forwarder.set_plan(&secure).unwrap_err();
    assert!(refused.message().contains("No such file"), "{refused}");
    std::fs::write(&secret, content).unwrap();
    forwarder.set_plan(&derived).unwrap();
    let refused = forwarder.set_plan(&secure).unwrap_err();
    for word in ["restart required", "drain machine", "systemctl restart", "undrain"] {
        assert!(refused.message().contains(word), "{refused}");
    }
    // A successor has the plan, and needs no more for its key.
    forwarder.take_over(&["--secret-file", secret.to_str().unwrap()]);
    assert_eq!(forwarder.status().generation, 1);
    forwarder.kill_and_restart_with(&["--secret-file", secret.to_str().unwrap()]);
    assert_eq!(forwarder.status().generation, 2, "the plan that waited for this restart");
    forwarder.set_plan(&secure).unwrap();
    assert_eq!(forwarder.status().key_id, key_id);
    let refused = forwarder.refused_take_over(&[]);
    assert!(refused.contains("same --secret-file"), "{refused}");
    forwarder.kill_and_restart_with(&["--secret-file", secret.to_str().unwrap()]);
    assert_eq!(forwarder.status().generation, 2);
}

/// Root's capture and look are as good as a member's of the groups; its plan is
/// as bad as anybody's but the controller's.
#[test]
fn plans_come_from_the_controllers_user_alone_and_viewers_change_nothing() {
    if !root_or_skip("plans_come_from_the_controllers_user_alone_and_viewers_change_nothing") {
        return;
    }
    use tonic::Code::PermissionDenied;
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    let plan = net.plan(1, "DRIVER_AF_XDP", &[(11, 1)]);
    forwarder.set_plan(&plan).unwrap();
    let viewers = forwarder.folder.path().join("run/forwarder-view.sock");
    forwarder.connect_to(viewers.clone());
    assert_eq!(forwarder.status().generation, 1);
    let refused = forwarder.set_plan(&net.plan(2, "DRIVER_AF_XDP", &[(11, 1)])).unwrap_err();
    assert_eq!(refused.code(), PermissionDenied, "{refused}");
    let refused = forwarder.capture(CaptureRequest::default()).unwrap_err();
    assert!(refused.message().contains("guideway-operate"), "{refused}");

    forwarder.kill_and_restart_with(&["--controller-user", "4711"]);
    let refused = forwarder.set_plan(&net.plan(2, "DRIVER_AF_XDP", &[(11, 1)])).unwrap_err();
    assert_eq!(refused.code(), PermissionDenied, "{refused}");
    assert!(refused.message().contains("user id 4711, not 0"), "{refused}");
    forwarder.capture(CaptureRequest { sample: 1, ..Default::default() }).unwrap();
    // A successor takes the place of the socket for viewers, too.
    forwarder.take_over(&["--controller-user", "root"]);
    forwarder.connect_to(viewers);
    assert_eq!(forwarder.status().generation, 1);
    forwarder.reconnect();
    forwarder.set_plan(&net.plan(2, "DRIVER_AF_XDP", &[(11, 1)])).unwrap();
}

#[test]
fn a_corrupt_plan_on_disk_means_an_empty_start() {
    if !root_or_skip("a_corrupt_plan_on_disk_means_an_empty_start") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    let plan = net.plan(1, "DRIVER_AF_XDP", &[(11, 1)]);
    forwarder.set_plan(&plan).unwrap();
    std::fs::write(
        forwarder.folder.path().join("state/plan.json"),
        "{\"generation\": \"1\", \"serv",
    )
    .unwrap();
    forwarder.kill_and_restart();
    assert_eq!(forwarder.status().generation, 0);
    forwarder.set_plan(&plan).unwrap();
    forwarder.kill_and_restart();
    assert_eq!(forwarder.status().generation, 1);
}

#[test]
fn a_plan_that_cannot_be_saved_is_served_with_a_warning() {
    if !root_or_skip("a_plan_that_cannot_be_saved_is_served_with_a_warning") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    // A folder in the way of the file stands for a full disk.
    std::fs::create_dir(forwarder.folder.path().join("state/plan.json.new")).unwrap();
    let answer = forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1)])).unwrap();
    assert!(
        answer.warnings.iter().any(|warning| warning.contains("not saved")),
        "{:?}",
        answer.warnings
    );
    assert!(forwarder.metrics().contains("guideway_plan_saved 0\n"));
    let why = forwarder.status().plan_unsaved;
    assert!(why.contains("plan.json"), "{why}");
    let backend = net.listen(AddressFamily::INET);
    net.send_udp(VIP, 20_000..20_010);
    assert_eq!(backend.take(10).len(), 10);
    // Room again.
    std::fs::remove_dir(forwarder.folder.path().join("state/plan.json.new")).unwrap();
    let start = Instant::now();
    while !forwarder.status().plan_unsaved.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is tried again");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(forwarder.metrics().contains("guideway_plan_saved 1\n"));
    assert!(forwarder.folder.path().join("state/plan.json").is_file());
}

/// A claim by a name that anybody can bind, and what a group that could write
/// the state directory could lay in the way.
#[test]
fn what_others_prepare_stops_nothing() {
    if !root_or_skip("what_others_prepare_stops_nothing") {
        return;
    }
    let net = Net::of_both_families();
    let _claims = net.balancer.inside(|| {
        ["eth0", "eth1"].map(|interface| {
            let name = format!("guideway/interface/{interface}");
            UnixListener::bind_addr(&UnixAddress::from_abstract_name(name).unwrap()).unwrap()
        })
    });
    let mut forwarder = Forwarder::start(&net.balancer);
    let pipe = forwarder.folder.path().join("state/plan.json.new");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let answer = forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1)])).unwrap();
    let is_told = answer.warnings.iter().any(|warning| warning.contains("is a named pipe"));
    assert!(is_told, "{:?}", answer.warnings);
    // A plan that cannot be saved is not in the way of a take-over either.
    forwarder.take_over(&[]);
    assert_eq!(forwarder.status().generation, 1);
    forwarder.terminate();
    for name in ["state", "run", "run/tables"] {
        let path = forwarder.folder.path().join(name);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o022, 0, "{name}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o1770)).unwrap();
        let output = command(&net.balancer.name, forwarder.folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let cure = format!("chmod go-w {}", path.display());
        assert!(!output.status.success() && said.contains(&cure), "{said}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    }
}

fn udp_flow(source_port: u32, destination_port: u32) -> FlowKey {
    FlowKey {
        source: "10.0.0.2".into(),
        destination: VIP.into(),
        protocol: 17,
        source_port,
        destination_port,
    }
}

/// So many echo requests to the VIP.
fn echo_requests(count: usize) {
    let raw = raw_socket(AddressFamily::INET, 1);
    // Type 8, checksum, id 1, sequence number 1.
    let message = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
    let vip = SocketAddr::new(VIP.parse().unwrap(), 0);
    for _ in 0..count {
        sendto(&raw, &message, SendFlags::empty(), &vip).unwrap();
    }
}

fn source_port(packet: &CapturedPacket) -> u32 {
    u16::from_be_bytes([packet.frame[34], packet.frame[35]]).into()
}

#[test]
fn a_limit_says_how_much_it_refused() {
    if !root_or_skip("a_limit_says_how_much_it_refused") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    assert!(forwarder.status().limits.is_empty(), "no plan yet");
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1)])).unwrap();
    let documented = include_str!("../../../docs/events.md");
    for limit in forwarder.status().limits {
        assert_eq!(limit.count, 0, "{limit:?}");
        assert!(documented.contains(&format!("`{}`", limit.name)), "{limit:?}");
    }
    let start = Instant::now();
    while !forwarder
        .status()
        .limits
        .iter()
        .any(|limit| limit.name == "echo_limit" && limit.count > 0)
    {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", forwarder.status().limits);
        net.client.inside(|| echo_requests(500));
    }
    // A slow machine reaches others, too.
    let counters = forwarder.at_rest();
    let limits = forwarder.status().limits;
    for (reason, packets) in dropped(&counters) {
        let limit = limits.iter().find(|limit| limit.name == reason);
        assert_eq!(limit.map(|limit| limit.count), Some(packets), "{reason}: {limits:?}");
    }
}

/// A capture whose client hung up ends a moment later.
fn capture_soon(
    forwarder: &mut Forwarder,
    asked: &CaptureRequest,
) -> tonic::Streaming<CaptureResponse> {
    let start = Instant::now();
    loop {
        match forwarder.capture(asked.clone()) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(2), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn packets_are_captured_with_what_became_of_them() {
    if !root_or_skip("packets_are_captured_with_what_became_of_them") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    let asked = CaptureRequest::default();
    let early = forwarder.capture(asked.clone()).unwrap_err();
    assert!(early.message().contains("no plan yet"), "{early}");
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1), (12, 1)])).unwrap();
    let backend = net.listen(AddressFamily::INET);

    let mut stream = forwarder.capture(asked.clone()).unwrap();
    let second = forwarder.capture(asked).unwrap_err();
    assert!(second.message().contains("another capture is under way"), "{second}");
    net.send_udp(VIP, 20_000..20_010);
    let packets = forwarder.captured(&mut stream, 10);
    assert_eq!(packets.len(), 10);
    let went: BTreeMap<u32, String> = backend
        .take(10)
        .iter()
        .map(|packet| (packet.source_port.into(), format!("v4-{}", packet.backend().octets()[3])))
        .collect();
    for packet in &packets {
        assert_eq!(
            (&*packet.verdict, &*packet.service, &*packet.interface),
            ("sent", "dns", "eth0")
        );
        assert_eq!(packet.backend, went[&source_port(packet)]);
        let datagram = format!("datagram {}", source_port(packet));
        assert_eq!(packet.frame[42..], *datagram.as_bytes(), "as it was received");
    }
    // The slow path's decisions come later.
    net.client.inside(|| echo_requests(1));
    let echo = forwarder.captured(&mut stream, 1);
    assert_eq!((&*echo[0].verdict, echo[0].as_left), ("replied", true));
    drop(stream);

    // A capture that ended makes room for another.
    let reasons = vec!["no_service".to_owned()];
    let asked = CaptureRequest { reasons, ..Default::default() };
    let mut stream = capture_soon(&mut forwarder, &asked);
    net.send_udp(VIP, 20_000..20_010);
    net.client.inside(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"?", (VIP, 54)).unwrap());
    let packets = forwarder.captured(&mut stream, 1);
    assert_eq!((&*packets[0].verdict, &*packets[0].reason), ("dropped", "no_service"));
    drop(stream);

    let samples = forwarder.drop_samples();
    assert_eq!(samples.len(), 1, "{samples:?}");
    assert_eq!((&*samples[0].reason, &samples[0].start), ("no_service", &packets[0].frame));
    assert_eq!(samples[0].frame_bytes as usize, packets[0].frame.len());
    assert_eq!(forwarder.at_rest().unaccounted, 0);
    // An open capture does not keep it from stopping.
    let _stream = capture_soon(&mut forwarder, &CaptureRequest::default());
    let start = Instant::now();
    assert_eq!(forwarder.terminate(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn what_is_explained_is_what_happens() {
    if !root_or_skip("what_is_explained_is_what_happens") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    let plan = net.plan(1, "DRIVER_AF_XDP", &[(11, 1), (12, 1)]);
    forwarder.set_plan(&plan).unwrap();
    let backend = net.listen(AddressFamily::INET);
    net.send_udp(VIP, 20_000..20_001);
    let received = backend.take(1);
    let told = forwarder.explain(udp_flow(20_000, 53));
    assert_eq!((&*told.verdict, &*told.service), ("sent", "dns"));
    assert_eq!((&*told.matched, told.table_size), ("203.0.113.10 udp 53", 65_537));
    assert_eq!(told.backend_address, received[0].backend().to_string());
    assert_eq!(told.backend, told.backend_by_hash);
    assert!(told.tracked.as_ref().is_some_and(|tracked| tracked.decides), "{told:?}");
    let hop = told.next_hop.as_ref().unwrap();
    assert_eq!((&*hop.device, hop.mtu), ("eth1", 1600));
    assert!(told.outer.starts_with(&hop.mac.replace(':', "")), "{told:?}");
    assert!(told.outer.contains(&hex(&received[0].backend().octets())), "{told:?}");

    // The same of the plan file, but for what only a running one knows.
    let offline = explained_offline(&forwarder, &plan, "udp 10.0.0.2 20000 203.0.113.10 53");
    for (field, running) in [
        ("hash", &told.hash),
        ("backend", &told.backend),
        ("matched", &told.matched),
        ("encap", &told.encap),
    ] {
        assert_eq!(offline[field], **running, "{field}");
    }
    assert_eq!((&offline["slot"], &offline["tracked"]), (&json!(told.slot), &Value::Null));

    let unmatched = forwarder.explain(udp_flow(20_000, 54));
    assert_eq!((&*unmatched.verdict, &*unmatched.end.unwrap().reason), ("dropped", "no_service"));
    let passed = FlowKey { destination: "10.0.0.1".into(), ..udp_flow(20_000, 53) };
    assert_eq!(forwarder.explain(passed).verdict, "passed");
    // A tracked connection stays with a backend that drains.
    let (host, other) = if received[0].backend().octets()[3] == 11 { (11, 12) } else { (12, 11) };
    let drained: Vec<(u8, u32)> = vec![(11, u32::from(host != 11)), (12, u32::from(host != 12))];
    forwarder.set_plan(&net.plan(2, "DRIVER_AF_XDP", &drained)).unwrap();
    let told = forwarder.explain(udp_flow(20_000, 53));
    assert_eq!((told.backend, told.backend_by_hash), (format!("v4-{host}"), format!("v4-{other}")));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn explained_offline(forwarder: &Forwarder, plan: &Value, flow: &str) -> Value {
    let file = forwarder.folder.path().join("explain.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_guideway-forwarder"))
        .args(["explain", "--plan"])
        .arg(&file)
        .args(flow.split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A client that leaves checksums to its device, which a veth pair's is not.
#[test]
fn packets_that_come_without_checksums_are_told() {
    if !root_or_skip("packets_that_come_without_checksums_are_told") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1), (12, 1)])).unwrap();
    let is_told = |forwarder: &mut Forwarder| {
        let devices = forwarder.status().devices;
        let told = |name: &str| {
            devices.iter().find(|device| device.interface == name).unwrap().checksums_incomplete
        };
        assert!(!told("eth1"));
        told("eth0")
    };
    for (is_off, vip) in [(false, VIP), (true, VIP), (false, VIP6), (true, VIP6)] {
        net.client.run(&format!("ethtool -K eth0 tx {}", if is_off { "off" } else { "on" }));
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_told(&mut forwarder) == is_off {
            assert!(Instant::now() < deadline, "{vip}, tx {is_off}");
            net.send_udp(vip, 20_000..20_001);
            std::thread::sleep(Duration::from_millis(60));
        }
    }
    let metrics = forwarder.metrics();
    let samples = r#"guideway_checksum_samples_total{interface="eth1",state="incomplete"} 0"#;
    assert!(metrics.contains(samples), "{metrics}");
}
