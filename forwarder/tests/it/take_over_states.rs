//! Take-overs in which either side is killed, in every state: the real program on both sides,
//! and between them this test, which passes messages and descriptors on until that moment.
//!
//! ```text
//!  client 10.0.0.2 ──eth0── 10.0.0.1 balancer 10.0.1.1 ──eth1── 10.0.1.11 backend
//! ```

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::Net;
use crate::program::{self, Client};
use guideway_forwarder::takeover::Channel;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, socket};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use testnet::root_or_skip;

const VIP: &str = "203.0.113.10";
const LIMIT: Duration = Duration::from_secs(20);

/// A datagram, where packets may be lost.
const ARRIVES_WITHIN: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Predecessor,
    Successor,
}

/// Who says what, in order. A state is: this was said, and not heard yet.
const CONVERSATION: [(Side, &str); 7] = [
    (Side::Successor, "protocol"),
    (Side::Predecessor, "Offer"),
    (Side::Successor, "Ready"),
    (Side::Predecessor, "Quiesced"),
    (Side::Successor, "Taking"),
    (Side::Predecessor, "Go"),
    (Side::Successor, "Running"),
];

fn plan() -> Value {
    json!({
        "generation": "1",
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb", "addresses": ["10.0.1.1"]},
        "backends": [{"name": "b", "address": "10.0.1.11"}],
        "groups": [{
            "name": "g",
            "members": [{"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}],
        }],
        "services": [{
            "name": "dns",
            "vips": [{"address": VIP, "protocol": "PROTOCOL_UDP", "ports": [{"first": 53, "last": 53}]}],
            "group": "g",
        }],
        "forwarder": {
            "connectionsMax": "10000",
            "interfaces": [{"name": "eth0", "driver": "DRIVER_AF_XDP"}, {"name": "eth1", "driver": "DRIVER_AF_XDP"}],
        },
    })
}

/// A machine on which at any time one process is to forward.
pub struct Machine {
    pub net: Net,
    folder: tempfile::TempDir,
    children: Vec<Child>,
    /// Hears what arrives at the backend.
    backend: OwnedFd,
    probe: UdpSocket,
    sent: u32,
}

impl Machine {
    pub fn start() -> Machine {
        let net = Net::new(2, 11..=11);
        let backend = net.backend.inside(|| {
            let gre = rustix::net::Protocol::from_raw(std::num::NonZero::new(47).unwrap());
            socket(AddressFamily::INET, SocketType::RAW, Some(gre)).unwrap()
        });
        let probe = net.client.inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let folder = tempfile::tempdir().unwrap();
        let mut machine = Machine { net, folder, children: Vec::new(), backend, probe, sent: 0 };
        machine.wait_for_each(ARRIVES_WITHIN);
        machine.spawn(&[]);
        machine.client().set_plan(&plan()).unwrap();
        machine.assert_one_forwards();
        machine
    }

    fn spawn(&mut self, arguments: &[&str]) {
        let mut command = program::command(&self.net.balancer.name, self.folder.path());
        let child = command.args(arguments).stdout(Stdio::null()).spawn().unwrap();
        self.children.push(child);
    }

    pub fn client(&self) -> Client {
        Client::connect(self.folder.path())
    }

    fn socket(&self) -> PathBuf {
        program::take_over_socket(self.folder.path())
    }

    /// The processes of this machine's forwarders, but for those that only wait
    /// for a detached one.
    fn processes(&mut self) -> BTreeSet<u32> {
        self.children.retain_mut(|child| child.try_wait().unwrap().is_none());
        let ours = self.folder.path().display().to_string();
        let pid = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(pid);
        pids.filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains(&ours) && !line.contains("--detach")
        })
        .collect()
    }

    /// Waits until one process is left; its number.
    fn survivor(&mut self) -> u32 {
        let start = Instant::now();
        loop {
            let processes = self.processes();
            if processes.len() == 1 {
                return *processes.first().unwrap();
            }
            assert!(start.elapsed() < LIMIT, "forwarders: {processes:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Packets flow, by one process, which has the plan; its number.
    pub fn assert_one_forwards(&mut self) -> u32 {
        let survivor = self.survivor();
        let start = Instant::now();
        while !self.arrives() {
            assert!(start.elapsed() < LIMIT, "nothing arrives");
        }
        // Others have the processors now and then: only what does not come at all is lost.
        self.wait_for_each(LIMIT);
        for _ in 0..50 {
            assert!(self.arrives(), "it arrives now and then");
        }
        self.wait_for_each(ARRIVES_WITHIN);
        let status = self.client().status();
        assert_eq!((status.pid, status.generation), (survivor, 1));
        assert_eq!(self.processes(), BTreeSet::from([survivor]));
        // Also of one that executed itself anew.
        let name = std::fs::read_to_string(format!("/proc/{survivor}/comm")).unwrap();
        assert_eq!(name, "guideway-forwar\n");
        let line = std::fs::read_to_string(format!("/proc/{survivor}/cmdline")).unwrap();
        let program = line.split('\0').next().unwrap();
        assert!(program.ends_with("/guideway-forwarder"), "{program}");
        survivor
    }

    fn wait_for_each(&self, timeout: Duration) {
        set_socket_timeout(&self.backend, Timeout::Recv, Some(timeout)).unwrap();
    }

    /// Whether a datagram to the VIP arrives at the backend.
    fn arrives(&mut self) -> bool {
        self.sent += 1;
        self.probe.send_to(&self.sent.to_be_bytes(), (VIP, 53)).unwrap();
        let mut bytes = [0; 256];
        // Outer header, GRE, inner header, UDP header.
        while let Ok((length, _)) = recv(&self.backend, &mut bytes, RecvFlags::empty()) {
            if length >= 56 && bytes[52..56] == self.sent.to_be_bytes() {
                return true;
            }
        }
        false
    }

    /// A take-over until that message was said and not heard; then one side
    /// is killed, and the other hears the message, and no more. The successor's
    /// process.
    fn kill_in(&mut self, state: usize, killed: Side, arguments: &[&str]) -> u32 {
        let predecessor = self.survivor();
        let (mut successor, mut to_predecessor) = self.between(arguments);
        let mut pid = 0;
        for (index, (side, what)) in CONVERSATION.into_iter().enumerate() {
            let (from, to) = match side {
                Side::Successor => (&mut successor, &mut to_predecessor),
                Side::Predecessor => (&mut to_predecessor, &mut successor),
            };
            let (message, descriptors): (Value, Vec<OwnedFd>) = from.receive(LIMIT).unwrap();
            let named = message.as_str() == Some(what) || message.get(what).is_some();
            assert!(named, "{what} is expected, and it says {message}");
            if index == 0 {
                pid = message["pid"].as_u64().unwrap() as u32;
            }
            if index == state {
                kill(if killed == Side::Successor { pid } else { predecessor });
            }
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let passed = to.send(&message, &borrowed);
            if index == state {
                return pid;
            }
            passed.unwrap();
        }
        panic!("there is no state {state}");
    }

    /// Ends of a successor that was started just now, and of the predecessor.
    fn between(&mut self, arguments: &[&str]) -> (Channel, Channel) {
        let (public, real) = (self.socket(), self.socket().with_extension("real"));
        std::fs::rename(&public, &real).unwrap();
        let listener = UnixListener::bind(&public).unwrap();
        self.spawn(arguments);
        let (successor, _) = listener.accept().unwrap();
        let predecessor = UnixStream::connect(&real).unwrap();
        std::fs::rename(&real, &public).unwrap();
        (Channel::new(successor).unwrap(), Channel::new(predecessor).unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.processes().into_iter().for_each(kill);
        self.children.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// Returns when it is gone.
fn kill(pid: u32) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    kill_process(pid, Signal::KILL).unwrap();
    let mut descriptors = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut descriptors, None).unwrap();
}

/// Each case begins with who survived the one before: so they also show that
/// survivors can be taken over from.
#[test]
fn whichever_side_dies_in_whichever_state_one_process_forwards() {
    if !root_or_skip("whichever_side_dies_in_whichever_state_one_process_forwards") {
        return;
    }
    let mut machine = Machine::start();
    for (state, (_, said)) in CONVERSATION.into_iter().enumerate() {
        for killed in [Side::Successor, Side::Predecessor] {
            let predecessor = machine.assert_one_forwards();
            // A detached one does not start where nothing was handed over yet:
            // a service manager does.
            let is_alone = (state, killed) == (0, Side::Predecessor);
            let arguments: &[&str] =
                if is_alone { &["--take-over"] } else { &["--take-over", "--detach"] };
            println!("{killed:?} is killed when {said} was said");
            let successor = machine.kill_in(state, killed, arguments);
            let expected = if killed == Side::Successor { predecessor } else { successor };
            assert_eq!(machine.assert_one_forwards(), expected, "{killed:?}, {state}");
        }
    }
}
