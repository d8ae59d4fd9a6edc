//! Network namespaces for tests: created by name, entered by a thread, and removed with the
//! value, also when a test panics.
//!
//! A dev-dependency only (`make lint` checks it). Does not know what a test does in its
//! namespaces.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// A network namespace, shown as its name.
pub struct Namespace {
    /// As `ip netns` has it.
    pub name: String,
}

impl Namespace {
    /// A fresh one, with its loopback interface up; the process id in its name lets test programs coexist.
    pub fn new(role: &str) -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gw-test-{}-{count}-{role}", std::process::id());
        run(&format!("ip netns add {name}"));
        let namespace = Namespace { name };
        namespace.run("ip link set lo up");
        // Trap: until its own address is no longer tentative, IPv6 resolves no
        // other.
        for family in ["all", "default"] {
            namespace.run(&format!("sysctl -qw net.ipv6.conf.{family}.accept_dad=0"));
        }
        namespace
    }

    /// Runs a command in it; a failure fails the test.
    pub fn run(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.name))
    }

    /// Gives an address to the loopback interface. When it returns, sockets can have it: those of
    /// IPv6 the kernel enters in a worker of its own, `nodad` or not; on a busy machine it has
    /// been seen to take more than ten seconds for it.
    pub fn add_own(&self, address: IpAddr) {
        self.run(&format!("ip addr add {address} dev lo"));
        let end = Instant::now() + Duration::from_secs(60);
        let is_usable = || {
            let socket = UdpSocket::bind((address, 0))?;
            socket.connect((address, 9))
        };
        while let Err(error) = self.inside(is_usable) {
            assert!(Instant::now() < end, "{address} on lo: {error}");
            std::thread::sleep(Duration::from_millis(1));
        }
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

    /// Runs a closure on a thread of its own that lives in it.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let file = self.file();
        std::thread::spawn(move || {
            enter(&file);
            work()
        })
    }

    /// Moves the calling thread into it.
    pub fn enter(&self) {
        enter(&self.file());
    }

    fn file(&self) -> File {
        File::open(format!("/var/run/netns/{}", self.name)).expect("the namespace's file")
    }
}

fn enter(file: &File) {
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("entering the namespace");
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
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

/// A [`cable`], its checksums complete (through AF_XDP a partial one would arrive wrong).
pub fn link(a: &Namespace, a_name: &str, b: &Namespace, b_name: &str, queues: u32) {
    cable([(a, a_name), (b, b_name)], queues);
    for (namespace, name) in [(a, a_name), (b, b_name)] {
        namespace.run(&format!("ethtool -K {name} tx off"));
    }
}

/// Connects two namespaces by interfaces of these names, with so many queues, both up: a veth
/// pair, or one of the machine's own [`CABLES`].
pub fn cable(ends: [(&Namespace, &str); 2], queues: u32) {
    match std::env::var(CABLES) {
        Ok(cables) => plug_in(&cables, ends, queues),
        Err(_) => {
            let [(a, a_name), (b, b_name)] = ends;
            let queues = format!("numrxqueues {queues} numtxqueues {queues}");
            run(&format!(
                "ip -n {a} link add {a_name} mtu 1500 {queues} type veth \
                 peer name {b_name} mtu 1500 netns {b} {queues}"
            ));
        }
    }
    for (namespace, name) in ends {
        namespace.run(&format!("ip link set {name} up"));
    }
}

/// Environment variable: pairs of interfaces of the first namespace that are connected to each
/// other, by their hardware addresses: `52:54:00:00:01:00=52:54:00:00:01:01 ...`. With it tests
/// use these, one test at a time.
pub const CABLES: &str = "GUIDEWAY_TEST_CABLES";

/// Whether the ends of [`CABLES`] are to have AF_XDP's zero-copy: the environment variable
/// `GUIDEWAY_TEST_ZERO_COPY` is there.
pub fn has_zero_copy() -> bool {
    std::env::var_os("GUIDEWAY_TEST_ZERO_COPY").is_some()
}

/// Takes the first cable that is free. The kernel gives interfaces back some time after their
/// namespace is gone, as the last test left them.
fn plug_in(cables: &str, ends: [(&Namespace, &str); 2], queues: u32) {
    let end = Instant::now() + Duration::from_secs(60);
    let found = loop {
        let shown = run("ip -o link");
        let named = |address: &str| {
            let line = shown.lines().find(|line| line.contains(address))?;
            Some(line.split(": ").nth(1)?.to_owned())
        };
        let mut pairs = cables.split_whitespace().filter_map(|cable| cable.split_once('='));
        match pairs.find_map(|(a, b)| Some([named(a)?, named(b)?])) {
            Some(found) => break found,
            None => assert!(Instant::now() < end, "no cable of {CABLES} is free: {shown}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    for ((namespace, name), found) in ends.into_iter().zip(found) {
        run(&format!("ip link set {found} down"));
        run(&format!("ip link set {found} netns {namespace} name {name} mtu 1500"));
        namespace.run(&format!("ethtool -L {name} combined {queues}"));
        namespace.run(&format!("ethtool -K {name} tx on"));
    }
}

/// Runs a command; a failure fails the test. Gives its standard output.
pub fn run(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .output()
        .unwrap_or_else(|error| panic!("{command}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
