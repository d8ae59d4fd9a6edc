//! Planned restarts: the real program hands everything over to the real
//! program, under traffic.
//!
//! ```text
//!  client 10.0.0.2 ──eth0── 10.0.0.1 balancer 10.0.1.1 ──eth1── 10.0.1.11 … .14 backend
//! ```

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::Net;
use crate::program::{self, Forwarder};
use guideway_forwarder::proto::GetCountersResponse;
use guideway_forwarder::takeover::Channel;
use rustix::fd::AsFd;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use testnet::{Namespace, raw_socket, receive, root_or_skip};

const VIP: &str = "203.0.113.10";
const FLOWS: u16 = 40;
const FIRST_PORT: u16 = 20_000;

/// A plan with `backends` backends.
fn plan(generation: u64, setup: Setup, backends: u8) -> Value {
    let name = |host: u8| format!("b-{host}");
    let hosts = || 11..11 + backends;
    json!({
        "generation": generation.to_string(),
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb", "addresses": ["10.0.1.1"]},
        "backends": hosts().map(|host| json!({"name": name(host), "address": format!("10.0.1.{host}")})).collect::<Vec<_>>(),
        "groups": [{
            "name": "g",
            "members": hosts().map(|host| json!({"backend": name(host), "weight": 1, "state": "BACKEND_STATE_ACTIVE"})).collect::<Vec<_>>(),
        }],
        "services": [{
            "name": "dns",
            "vips": [{"address": VIP, "protocol": "PROTOCOL_UDP", "ports": [{"first": 53, "last": 53}]}],
            "group": "g",
        }],
        "forwarder": {
            "connectionsMax": "10000",
            "steering": setup.steering,
            "kernelCache": setup.kernel_cache,
            "interfaces": [{"name": "eth0", "driver": setup.driver}, {"name": "eth1", "driver": setup.driver}],
        },
    })
}

#[derive(Clone, Copy)]
struct Setup {
    driver: &'static str,
    steering: &'static str,
    kernel_cache: &'static str,
    /// A peer with a large MTU makes veth refuse native XDP.
    client_mtu: u32,
}

const NATIVE: Setup = Setup {
    driver: "DRIVER_AF_XDP",
    steering: "STEERING_RSS",
    kernel_cache: CACHE_AUTO,
    client_mtu: 1500,
};
const CACHE_AUTO: &str = "KERNEL_CACHE_AUTO";
const CACHE_OFF: &str = "KERNEL_CACHE_OFF";

/// Datagrams at a steady rate, over many flows, each with a number.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Load {
    fn start(net: &Net) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let bind = |port| UdpSocket::bind(("0.0.0.0", port)).unwrap();
        let sockets: Vec<UdpSocket> =
            net.client.inside(|| (FIRST_PORT..FIRST_PORT + FLOWS).map(bind).collect());
        resolve_the_balancer(&net.client);
        let thread = std::thread::spawn(move || {
            let mut sent = 0_u32;
            while !stopped.load(Ordering::Relaxed) {
                for socket in &sockets {
                    socket.send_to(&sent.to_be_bytes(), (VIP, 53)).unwrap();
                }
                sent += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        Load { stop, thread }
    }

    /// Datagrams sent by each flow.
    fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// While ARP is asked, the client's kernel keeps some of the first datagrams, and drops others
/// where no counter here sees it: four of each flow on a busy machine.
fn resolve_the_balancer(client: &Namespace) {
    let socket = client.inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    while !client.run("ip neigh show 10.0.0.1").contains("lladdr") {
        assert!(Instant::now() < end, "the balancer's address is not resolved");
        socket.send_to(&[0], "10.0.0.1:9").unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What each flow's datagrams were, in order: number, and backend.
type Arrivals = BTreeMap<u16, Vec<(u32, [u8; 4])>>;

/// Collects what arrives at the backends.
struct Collector {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Arrivals>,
}

impl Collector {
    fn start(net: &Net) -> Collector {
        let socket = net.backend.inside(|| raw_socket(AddressFamily::INET, 47));
        set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(300))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut bytes, mut arrivals) = (vec![0; 2048], Arrivals::new());
            loop {
                match receive(&socket, &mut bytes) {
                    // Outer header, GRE, inner header, UDP header.
                    Ok(length) if length >= 20 + 4 + 20 + 8 + 4 => {
                        let port = u16::from_be_bytes([bytes[44], bytes[45]]);
                        let number = u32::from_be_bytes(bytes[52..56].try_into().unwrap());
                        let backend = bytes[16..20].try_into().unwrap();
                        arrivals.entry(port).or_default().push((number, backend));
                    }
                    Ok(_) => {}
                    Err(_) if stopped.load(Ordering::Relaxed) => return arrivals,
                    Err(_) => {}
                }
            }
        });
        Collector { stop, thread }
    }

    /// Everything, when nothing comes any more.
    fn stop(self) -> Arrivals {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// The datagrams of all flows that did not arrive.
fn lost(arrivals: &Arrivals, sent: u32) -> u64 {
    let arrived: usize = arrivals.values().map(Vec::len).sum();
    u64::from(sent) * u64::from(FLOWS) - arrived as u64
}

/// Each flow's datagrams arrived once, all at one backend.
fn assert_whole_flows(arrivals: &Arrivals) {
    for (port, datagrams) in arrivals {
        let mut numbers = numbers_of(datagrams);
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "flow {port}: twice");
        let first = datagrams[0].1;
        assert!(datagrams.iter().all(|datagram| datagram.1 == first), "flow {port} moved");
    }
}

/// What the kernel flow cache sends may overtake what waits for a worker that gets no processor.
fn assert_order(arrivals: &Arrivals, kernel_cache: &str) {
    for (port, datagrams) in arrivals {
        let overtaken = numbers_of(datagrams).windows(2).filter(|pair| pair[0] > pair[1]).count();
        if overtaken > 0 {
            println!("flow {port}: {overtaken} of {} were overtaken", datagrams.len());
        }
        assert!(overtaken == 0 || kernel_cache != CACHE_OFF, "nothing else overtakes");
    }
}

fn numbers_of(datagrams: &[(u32, [u8; 4])]) -> Vec<u32> {
    datagrams.iter().map(|datagram| datagram.0).collect()
}

fn dropped(counters: &GetCountersResponse) -> u64 {
    counters.dropped.iter().map(|drop| drop.packets).sum()
}

/// Frames that a namespace's end of a veth pair could not hand to the other
/// end: the kernel's queue between them was full.
fn refused_by_the_other_end(namespace: &Namespace, interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_dropped");
    namespace.run(&format!("cat {path}")).trim().parse().unwrap()
}

/// What the kernel had no room for. Its count goes on when a socket of AF_XDP changes hands; that of
/// AF_PACKET begins anew whenever somebody reads it.
fn rx_lost(metrics: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with("guideway_rx_lost_packets_total{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Hands over twice under traffic, and changes the backends in between.
fn nothing_is_lost(setup: Setup, mode: &str) {
    let net = Net::new(2, 11..=14);
    net.client.run(&format!("ip link set eth0 mtu {}", setup.client_mtu));
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&plan(1, setup, 2)).unwrap();
    let device = forwarder.status().devices[0].clone();
    assert_eq!(
        (device.mode.as_str(), device.zero_copy),
        (mode, mode == "native" && testnet::has_zero_copy())
    );
    let (collector, load) = (Collector::start(&net), Load::start(&net));
    // Long enough that connections are confirmed.
    std::thread::sleep(Duration::from_millis(400));
    let (mut predecessor, mut told) = (forwarder.pid(), 0);
    for round in 0..2 {
        let (counters, metrics) = forwarder.take_over(&[]);
        told += dropped(&counters);
        if setup.driver == "DRIVER_AF_PACKET" {
            told += rx_lost(&metrics);
        }
        let status = forwarder.status();
        let note = status.taken_over.clone().expect("it says so");
        assert_eq!((note.predecessor_pid, status.pid), (predecessor, forwarder.pid()));
        assert_eq!(note.emptied, Vec::<String>::new());
        assert_eq!((status.generation, status.devices[0].mode.as_str()), (1 + round, mode));
        println!("{mode} {}: no process forwarded for {} us", setup.steering, note.pause_us);
        predecessor = forwarder.pid();
        // At the same moment the backends change; what is known stays.
        forwarder.set_plan(&plan(2 + round, setup, 3 + round as u8)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    let sent = load.stop();
    let counters = forwarder.at_rest();
    let arrivals = collector.stop();
    assert_whole_flows(&arrivals);
    assert_order(&arrivals, setup.kernel_cache);
    assert_eq!(counters.unaccounted, 0);
    let metrics = forwarder.metrics();
    // On a busy machine a ring may be found full, at any time; which is told.
    told += dropped(&counters) + rx_lost(&metrics);
    told += refused_by_the_other_end(&net.client, "eth0");
    told += refused_by_the_other_end(&net.balancer, "eth1");
    let lost = lost(&arrivals, sent);
    println!("lost {lost} of {sent} of each flow, {told} of them at full rings");
    assert!(lost <= told, "{lost} are lost, and only {told} are told of");
    // Machines with zero-copy are emulated, and slow.
    let is_short = metrics.contains("guideway_take_over_pause_seconds 0.0");
    assert!(is_short || testnet::has_zero_copy(), "{metrics}");
    assert_eq!(forwarder.terminate(), Some(0));
    let left = net.balancer.run("ip -d link show eth0");
    assert!(!left.contains("xdp"), "the filter is gone with the last of them: {left}");
}

#[test]
fn native_af_xdp_is_handed_over_without_a_loss() {
    if root_or_skip("native_af_xdp_is_handed_over_without_a_loss") {
        nothing_is_lost(NATIVE, "native");
    }
}

#[test]
fn generic_af_xdp_is_handed_over_without_a_loss() {
    if root_or_skip("generic_af_xdp_is_handed_over_without_a_loss") {
        nothing_is_lost(Setup { client_mtu: 9000, ..NATIVE }, "generic");
    }
}

#[test]
fn af_packet_is_handed_over_without_a_loss() {
    if root_or_skip("af_packet_is_handed_over_without_a_loss") {
        nothing_is_lost(Setup { driver: "DRIVER_AF_PACKET", ..NATIVE }, "-");
    }
}

#[test]
fn steered_workers_are_handed_over_without_a_loss() {
    if root_or_skip("steered_workers_are_handed_over_without_a_loss") {
        let setup = Setup { steering: "STEERING_SOFTWARE", kernel_cache: CACHE_OFF, ..NATIVE };
        nothing_is_lost(setup, "native");
    }
}

/// A running forwarder that must not notice what a failed take-over tries.
struct Steady {
    forwarder: Forwarder,
    collector: Collector,
    load: Load,
    pid: u32,
    // Last: the namespaces go when no process is in them any more.
    _net: Net,
}

impl Steady {
    fn start() -> Steady {
        let net = Net::new(2, 11..=14);
        let mut forwarder = Forwarder::start(&net.balancer);
        forwarder.set_plan(&plan(1, NATIVE, 2)).unwrap();
        let (collector, load) = (Collector::start(&net), Load::start(&net));
        std::thread::sleep(Duration::from_millis(300));
        let pid = forwarder.pid();
        Steady { forwarder, collector, load, pid, _net: net }
    }

    fn folder(&self) -> &std::path::Path {
        self.forwarder.folder.path()
    }

    fn tables(&self) -> std::path::PathBuf {
        self.folder().join("run/tables")
    }

    /// The same process took every datagram and still takes plans.
    fn assert_it_went_on(mut self) {
        let status = self.forwarder.status();
        assert_eq!((status.pid, status.taken_over), (self.pid, None));
        self.forwarder.set_plan(&plan(2, NATIVE, 3)).unwrap();
        let sent = self.load.stop();
        assert_eq!(self.forwarder.at_rest().unaccounted, 0);
        let arrivals = self.collector.stop();
        assert_whole_flows(&arrivals);
        assert_eq!(lost(&arrivals, sent), 0, "of {sent} of each flow");
    }
}

/// Speaks the successor's part as far as a test needs it, for a process that
/// the predecessor may kill.
struct Successor {
    channel: Channel,
    process: Child,
}

impl Successor {
    fn connect(folder: &std::path::Path) -> Successor {
        let stream = UnixStream::connect(program::take_over_socket(folder)).unwrap();
        let process = Command::new("sleep").arg("60").spawn().unwrap();
        Successor { channel: Channel::new(stream).unwrap(), process }
    }

    fn say(&mut self, message: &Value) {
        self.channel.send(message, &[]).unwrap();
    }

    /// What it answers; the descriptors that come with it are let go.
    fn hear(&mut self) -> std::io::Result<Value> {
        Ok(self.channel.receive(Duration::from_secs(10))?.0)
    }

    fn greet(&mut self, protocol: u32, tables_dir: &std::path::Path) -> Value {
        let pid = rustix::process::Pid::from_child(&self.process);
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let hello = json!({
            "protocol": protocol, "version": "9.9.9", "pid": self.process.id(), "requirements": {
                "key_id": "derived", "tables_dir": tables_dir.canonicalize().unwrap(),
                "busy_poll": false, "steered_workers": null, "chunk_bytes": 2048,
            },
        });
        self.channel.send(&hello, &[handle.as_fd()]).unwrap();
        self.hear().unwrap()
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_successor_that_does_not_fit_is_refused_and_the_predecessor_goes_on() {
    if !root_or_skip("a_successor_that_does_not_fit_is_refused_and_the_predecessor_goes_on") {
        return;
    }
    let steady = Steady::start();
    let folder = tempfile::tempdir().unwrap();
    let tables = folder.path().join("tables");
    let tables = tables.to_str().unwrap();
    for (arguments, words) in [
        (&["--tables-dir", tables][..], ["connection tables: it has", "same --tables-dir"]),
        (&["--steered-workers", "3"], ["the successor 3", "without --take-over"]),
        (&["--busy-poll"], ["--busy-poll", "without --take-over"]),
    ] {
        let said = steady.forwarder.refused_take_over(arguments);
        let pid = format!("process id {} goes on", steady.pid);
        assert!(words.iter().all(|word| said.contains(word)) && said.contains(&pid), "{said}");
    }
    // A version that speaks another protocol.
    let answer = Successor::connect(steady.folder()).greet(77, &steady.tables());
    let why = answer["Refused"].as_str().unwrap();
    assert!(why.contains("protocol 4, version 9.9.9 by 77") && why.contains("without"), "{why}");
    steady.assert_it_went_on();
}

#[test]
fn where_a_successor_dies_before_it_may_go_on_the_predecessor_does() {
    if !root_or_skip("where_a_successor_dies_before_it_may_go_on_the_predecessor_does") {
        return;
    }
    let mut steady = Steady::start();
    let mut watch = steady.forwarder.watch();
    assert!(!steady.forwarder.next(&mut watch).unwrap().handing_over);
    let (folder, tables) = (steady.folder().to_owned(), steady.tables());
    // While it gets ready.
    assert!(Successor::connect(&folder).greet(4, &tables)["Offer"]["running"].is_object());
    // While everything rests.
    let mut successor = Successor::connect(&folder);
    successor.greet(4, &tables);
    successor.say(&json!("Ready"));
    let quiesced = successor.hear().unwrap();
    assert_eq!(quiesced["Quiesced"]["connections"].as_array().unwrap().len(), 2, "{quiesced}");
    assert!(steady.forwarder.next(&mut watch).unwrap().handing_over);
    drop(successor);
    assert!(!steady.forwarder.next(&mut watch).unwrap().handing_over, "called off");
    // It gives up by itself.
    let mut successor = Successor::connect(&folder);
    successor.greet(4, &tables);
    successor.say(&json!({"Failed": "no memory"}));
    assert!(successor.hear().is_err(), "nothing more is said");
    // It says nothing at all: soon others are served again.
    let silent = Successor::connect(&folder);
    let mut later = Successor::connect(&folder);
    assert!(later.greet(4, &tables)["Offer"].is_object());
    drop((silent, later));
    steady.assert_it_went_on();
}

/// It is not known how far the successor came: new sockets, the same tables.
#[test]
fn where_a_successor_dies_after_it_was_to_go_on_the_predecessor_starts_anew() {
    if !root_or_skip("where_a_successor_dies_after_it_was_to_go_on_the_predecessor_starts_anew") {
        return;
    }
    let mut steady = Steady::start();
    let mut watch = steady.forwarder.watch();
    let (folder, tables) = (steady.folder().to_owned(), steady.tables());
    let mut successor = Successor::connect(&folder);
    successor.greet(4, &tables);
    successor.say(&json!("Ready"));
    successor.hear().unwrap();
    successor.say(&json!("Taking"));
    assert_eq!(successor.hear().unwrap(), json!("Go"));
    drop(successor);
    let start = Instant::now();
    while steady.forwarder.next(&mut watch).is_some() {}
    // What listens closes a moment after what is connected.
    std::thread::sleep(Duration::from_millis(200));
    steady.forwarder.reconnect();
    println!("it served again after {:?}", start.elapsed());
    let status = steady.forwarder.status();
    assert_eq!((status.pid, status.generation), (steady.pid, 1), "the same process, the same plan");
    // Everything is remembered, though the backends change.
    steady.forwarder.set_plan(&plan(2, NATIVE, 4)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let sent = steady.load.stop();
    let arrivals = steady.collector.stop();
    assert_whole_flows(&arrivals);
    assert!(lost(&arrivals, sent) > 0, "packets were lost, as after a kill");
    assert_eq!(arrivals.len(), usize::from(FLOWS));
    // It can still be taken over from.
    steady.forwarder.take_over(&[]);
    assert_eq!(steady.forwarder.status().taken_over.unwrap().predecessor_pid, steady.pid);
}

#[test]
fn a_predecessor_that_hangs_is_left_alone() {
    if !root_or_skip("a_predecessor_that_hangs_is_left_alone") {
        return;
    }
    let steady = Steady::start();
    let pid = rustix::process::Pid::from_raw(steady.pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let said = steady.forwarder.refused_take_over(&[]);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let process = format!("process id {} does not hand over", steady.pid);
    assert!(said.contains(&process) && said.contains("kill -9"), "{said}");
    let Steady { mut forwarder, load, collector, .. } = steady;
    assert_eq!(forwarder.status().generation, 1);
    load.stop();
    assert_whole_flows(&collector.stop());
}

#[test]
fn a_table_that_does_not_fit_is_emptied_and_never_misread() {
    if !root_or_skip("a_table_that_does_not_fit_is_emptied_and_never_misread") {
        return;
    }
    let mut steady = Steady::start();
    // Word 1 of the header: the version of its layout.
    let table = steady.tables().join("connections-0");
    let table = std::fs::OpenOptions::new().write(true).open(table).unwrap();
    table.write_all_at(&99_u64.to_ne_bytes(), 8).unwrap();
    steady.forwarder.take_over(&[]);
    let note = steady.forwarder.status().taken_over.unwrap();
    assert_eq!(note.emptied, ["worker 0: it was laid out by another version"]);
    assert!(steady.forwarder.metrics().contains("guideway_take_over_emptied_tables 1\n"));
    std::thread::sleep(Duration::from_millis(200));
    let sent = steady.load.stop();
    let arrivals = steady.collector.stop();
    assert_eq!(lost(&arrivals, sent), 0, "sockets and memory are taken over all the same");
    assert_whole_flows(&arrivals);
}

#[test]
fn without_a_forwarder_that_runs_a_successor_just_starts() {
    if !root_or_skip("without_a_forwarder_that_runs_a_successor_just_starts") {
        return;
    }
    let mut steady = Steady::start();
    steady.forwarder.kill_and_restart_with(&["--take-over"]);
    let status = steady.forwarder.status();
    assert_eq!((status.generation, status.taken_over), (1, None));
    // Beside a service manager, which starts one anyway, it does not.
    let said = Steady::start_detached(&tempfile::tempdir().unwrap());
    assert!(said.contains("no forwarder that could be taken over from"), "{said}");
    steady.load.stop();
    assert_whole_flows(&steady.collector.stop());
}

impl Steady {
    /// A detached successor without a predecessor: what it said.
    fn start_detached(folder: &tempfile::TempDir) -> String {
        let net = Namespace::new("alone");
        let output = program::command(&net.name, folder.path())
            .args(["--take-over", "--detach"])
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// As `systemctl reload` does it: the manager's reload command returns when
/// packets flow, and the manager hears which process is the service.
#[test]
fn the_service_manager_is_told_which_process_goes_on() {
    if !root_or_skip("the_service_manager_is_told_which_process_goes_on") {
        return;
    }
    let net = Net::new(2, 11..=14);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let heard = || {
        let mut bytes = [0; 256];
        let length = receive(&manager, &mut bytes).expect("a message to the manager");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut service = program::command(&net.balancer.name, folder.path())
        .env("NOTIFY_SOCKET", &socket)
        .spawn()
        .unwrap();
    assert!(heard().starts_with("READY=1"));
    let mut pid = service.id();
    for _ in 0..2 {
        // The reload command does not get the socket: NotifyAccess=main.
        let reload = program::command(&net.balancer.name, folder.path())
            .args(["--take-over", "--detach"])
            .env_remove("NOTIFY_SOCKET")
            .status()
            .unwrap();
        assert!(reload.success(), "{reload}");
        let (mut main, mut ready) = (None, false);
        while main.is_none() || !ready {
            let message = heard();
            ready |= message.starts_with("READY=1");
            main = main.or(message.strip_prefix("MAINPID=").map(|pid| pid.trim().parse().unwrap()));
        }
        assert_ne!(main, Some(pid), "it is another process");
        pid = main.unwrap();
    }
    assert!(service.wait().unwrap().success());
    let last = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(last, rustix::process::Signal::TERM).unwrap();
    assert!(heard().starts_with("STOPPING=1"));
}
