//! Network namespaces for tests: made by name, entered by a thread, and gone
//! with the value, also when a test panics.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// True if namespaces can be made; else says by name what is skipped, past the
/// harness's capture: a skipped test must not look like one that passed.
pub fn root_or_skip(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let line = format!("SKIPPED {test}: needs root for network namespaces\n");
        std::io::stderr().write_all(line.as_bytes()).expect("stderr can be written");
    }
    root
}

/// A network namespace.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    /// A fresh one; the process id in its name lets test programs coexist.
    pub fn new(role: &str) -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gw-fwd-{}-{count}-{role}", std::process::id());
        run(&format!("ip netns add {name}"));
        let namespace = Namespace { name };
        namespace.run("ip link set lo up");
        for family in ["all", "default"] {
            namespace.run(&format!("sysctl -qw net.ipv6.conf.{family}.accept_dad=0"));
        }
        namespace
    }

    /// Runs a command in it; a failure fails the test.
    pub fn run(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.name))
    }

    /// Runs a closure on a thread that lives in it.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into it.
    pub fn enter(&self) {
        let file =
            File::open(format!("/var/run/netns/{}", self.name)).expect("the namespace's file");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("entering the namespace");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// A raw socket of the calling thread's namespace. Programs that tests start
/// do not inherit it.
pub fn raw_socket(family: AddressFamily, protocol: u32) -> OwnedFd {
    let protocol = Protocol::from_raw(protocol.try_into().expect("a protocol"));
    socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))
        .expect("a raw socket")
}

/// The next datagram of a socket, as far as there is room for it; an error
/// when the socket's timeout is over. Trap: a child of the process that ends
/// interrupts a call that has a timeout.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> std::io::Result<usize> {
    let received = retry_on_intr(|| recv(&socket, &mut *bytes, RecvFlags::empty()));
    Ok(received?.0)
}

/// A socket that sends from this address, also when it did so a moment ago.
/// Trap: the tests of one process run at once, and a child that one of them
/// forks holds every socket of all of them until it calls exec.
pub fn sender_from(address: SocketAddr) -> UdpSocket {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .expect("a datagram socket");
    set_socket_reuseaddr(&socket, true).expect("an address used again");
    bind(&socket, &address).unwrap_or_else(|error| panic!("bind {address}: {error}"));
    UdpSocket::from(socket)
}

/// A veth pair between two namespaces, both ends up, checksums complete
/// (through AF_XDP a partial one would arrive wrong).
pub fn link(a: &Namespace, a_name: &str, b: &Namespace, b_name: &str, queues: u32) {
    run(&format!(
        "ip -n {} link add {a_name} numrxqueues {queues} numtxqueues {queues} type veth \
         peer name {b_name} netns {} numrxqueues {queues} numtxqueues {queues}",
        a.name, b.name
    ));
    for (namespace, name) in [(a, a_name), (b, b_name)] {
        namespace.run(&format!("ip link set {name} up"));
        namespace.run(&format!("ethtool -K {name} tx off"));
    }
}

/// ```text
///  client 10.0.0.2 ──eth0── 10.0.0.1 balancer 10.0.1.1 ──eth1── 10.0.1.11, .12, … backend
/// ```
/// Room for tunnels behind the balancer; both its links have queues.
pub struct Net {
    pub client: Namespace,
    pub balancer: Namespace,
    pub backend: Namespace,
}

impl Net {
    /// With so many queues towards the client, two towards the backend, which
    /// has the addresses of `hosts`.
    pub fn new(client_queues: u32, hosts: std::ops::RangeInclusive<u8>) -> Net {
        let (client, balancer) = (Namespace::new("client"), Namespace::new("lb"));
        let net = Net { client, balancer, backend: Namespace::new("backend") };
        link(&net.client, "eth0", &net.balancer, "eth0", client_queues);
        link(&net.balancer, "eth1", &net.backend, "eth0", 2);
        net.balancer.run("ip link set eth1 mtu 1600");
        net.backend.run("ip link set eth0 mtu 1600");
        net.client.run("ip addr add 10.0.0.2/24 dev eth0");
        net.balancer.run("ip addr add 10.0.0.1/24 dev eth0");
        net.balancer.run("ip addr add 10.0.1.1/24 dev eth1");
        for host in hosts {
            net.backend.run(&format!("ip addr add 10.0.1.{host}/24 dev eth0"));
        }
        net.client.run("ip route add 203.0.113.10 via 10.0.0.1");
        net
    }
}

fn run(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .output()
        .unwrap_or_else(|error| panic!("{command}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
