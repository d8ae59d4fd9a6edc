//! Two network namespaces and a cable between them.
//!
//! ```text
//!  client 10.77.0.1, fd77::1 ══ veth, two queues ══ 10.77.0.2, fd77::2 forwarder
//!         route to the VIPs via the forwarder
//! ```

use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nic::wait::{Waiter, Waker};
use nic::{Device, DeviceConfig, FilterCounters, QueueCounters, QueueOptions, WorkerIo};
use testnet::{Namespace, receive};
use wire::{Batch, Frame};

pub const VIP_V4: &str = "203.0.113.10";
pub const VIP_V6: &str = "2001:db8:a::10";
pub const PREFIXES: [&str; 2] = ["203.0.113.0/24", "2001:db8:a::/64"];
pub const ECHO_PORT: u16 = 7777;

/// The namespaces; gone when dropped.
pub struct Lab {
    pub client: Namespace,
    pub forwarder: Namespace,
}

impl Lab {
    /// One cable, `eth0` at both ends.
    pub fn new() -> Lab {
        let lab = Lab { client: Namespace::new("client"), forwarder: Namespace::new("forwarder") };
        lab.cable("eth0", 2, ["10.77.0.1/24", "10.77.0.2/24"], ["fd77::1/64", "fd77::2/64"]);
        lab.client.run("ip route add 203.0.113.0/24 via 10.77.0.2");
        lab.client.run("ip route add 2001:db8:a::/64 via fd77::2");
        lab
    }

    /// A further cable, of the same name at both ends.
    pub fn cable(&self, name: &str, queues: u32, v4: [&str; 2], v6: [&str; 2]) {
        testnet::cable([(&self.client, name), (&self.forwarder, name)], queues);
        for (end, namespace) in [&self.client, &self.forwarder].into_iter().enumerate() {
            namespace.run(&format!("ip addr add {} dev {name}", v4[end]));
            namespace.run(&format!("ip addr add {} dev {name} nodad", v6[end]));
        }
    }

    /// Trap: over veth a local sender leaves checksums to hardware.
    pub fn client_completes_checksums(&self) {
        self.client.run("ethtool -K eth0 tx off");
    }

    /// Whether the forwarder's kernel is reached by what is not to a VIP.
    pub fn kernel_answers(&self) -> bool {
        ["10.77.0.2", "fd77::2"].into_iter().all(|address| {
            let address: IpAddr = address.parse().unwrap();
            let kernel = self.forwarder.inside(|| UdpSocket::bind((address, 0)).unwrap());
            kernel.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            let bound = kernel.local_addr().unwrap();
            self.client.inside(|| {
                let any = if bound.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                UdpSocket::bind(any).unwrap().send_to(b"hello", bound).unwrap()
            });
            receive(&kernel, &mut [0; 100]).is_ok_and(|len| len == 5)
        })
    }

    pub fn mac(&self, namespace: &Namespace, name: &str) -> [u8; 6] {
        namespace.inside(|| nic::Interface::find(name).unwrap().mac.0)
    }
}

/// A forwarder that answers: what comes in goes back, or out of the last of
/// its interfaces, with its addresses swapped.
pub struct Echo {
    stop: Arc<AtomicBool>,
    wakers: Vec<Waker>,
    control: mpsc::Sender<Change>,
    thread: Option<JoinHandle<Vec<Counted>>>, // none: it was stopped
    pub description: String,
}

/// Prefixes, own addresses, and where to say that they are set.
type Change = (Vec<&'static str>, Vec<IpAddr>, mpsc::Sender<()>);

/// What one interface counted: its filter, and each worker's queue.
pub struct Counted {
    pub filter: FilterCounters,
    pub queues: Vec<QueueCounters>,
}

impl Counted {
    pub fn sum(&self, field: impl Fn(&QueueCounters) -> u64) -> u64 {
        self.queues.iter().map(field).sum()
    }
}

impl Echo {
    pub fn start(lab: &Lab, configs: Vec<DeviceConfig>, destination: [u8; 6]) -> Echo {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let (control, changes) = mpsc::channel();
        let stopped = Arc::clone(&stop);
        let thread = lab.forwarder.spawn(move || {
            let (mut devices, lanes) = nic::open(&configs, &QueueOptions::default()).unwrap();
            set_filters(&mut devices, &PREFIXES, &[]);
            let mode = devices[0].mode().map(|mode| format!(" {mode}"));
            let copies = if devices[0].is_zero_copy() { ", zero-copy" } else { "" };
            let description =
                format!("{}{}{copies}", devices[0].driver(), mode.unwrap_or_default());
            let (workers, wakers): (Vec<_>, Vec<_>) = lanes
                .into_iter()
                .map(|lane| echo_worker(lane, destination, Arc::clone(&stopped)))
                .unzip();
            ready.send((wakers, description)).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                let change: Result<Change, _> = changes.recv_timeout(Duration::from_millis(20));
                if let Ok((prefixes, own, done)) = change {
                    set_filters(&mut devices, &prefixes, &own);
                    done.send(()).unwrap();
                }
            }
            let counted: Vec<Vec<QueueCounters>> =
                workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            let of_device = |index: usize| counted.iter().map(|queues| queues[index]).collect();
            let devices = devices.iter().enumerate();
            devices
                .map(|(index, device)| Counted {
                    filter: device.filter_ref().unwrap().reader().counters().unwrap(),
                    queues: of_device(index),
                })
                .collect()
        });
        let (wakers, description) =
            is_ready.recv_timeout(Duration::from_secs(20)).expect("the echo did not start");
        Echo { stop, wakers, control, thread: Some(thread), description }
    }

    /// Changes what is ours while traffic runs: all to the prefixes, and what
    /// is tunnelled to our own addresses.
    pub fn set(&self, prefixes: &[&'static str], own: &[&str]) {
        let (done, is_done) = mpsc::channel();
        let own = own.iter().map(|text| text.parse().unwrap()).collect();
        self.control.send((prefixes.to_vec(), own, done)).unwrap();
        is_done.recv().unwrap();
    }

    pub fn stop(mut self) -> Vec<Counted> {
        self.end().expect("it was not stopped").unwrap()
    }

    fn end(&mut self) -> Option<std::thread::Result<Vec<Counted>>> {
        self.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::wake);
        self.thread.take().map(JoinHandle::join)
    }
}

/// A test that fails gives back its interfaces, which in `make vms` the next one waits for.
impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

pub fn set_filters(devices: &mut [Device], prefixes: &[&str], own: &[IpAddr]) {
    let prefixes: Vec<_> = prefixes.iter().map(|text| text.parse().unwrap()).collect();
    let filters = devices.iter_mut().filter_map(Device::filter);
    filters.for_each(|filter| filter.set(&prefixes, own, !own.is_empty()).unwrap());
}

/// Receives on all queues, sends on the last. Nothing may be lost, so frames
/// that find the ring full are tried again.
fn echo_worker(
    mut lane: WorkerIo,
    destination: [u8; 6],
    stop: Arc<AtomicBool>,
) -> (JoinHandle<Vec<QueueCounters>>, Waker) {
    let mut waiter = Waiter::new(lane.queues.iter().filter_map(|queue| queue.fd())).unwrap();
    let waker = waiter.waker();
    let worker = std::thread::spawn(move || {
        let mut batch = Batch::new();
        while !stop.load(Ordering::Relaxed) {
            let last = lane.queues.len() - 1;
            for index in 0..=last {
                lane.queues[index].rx(&mut lane.pool, &mut batch);
                batch.iter_mut().for_each(|frame| answer(frame, destination));
                while !batch.is_empty() {
                    lane.queues[last].tx(&mut lane.pool, &mut batch);
                }
            }
            waiter.wait(Duration::from_millis(100)).unwrap();
        }
        lane.queues.iter().map(|queue| queue.meter().read()).collect()
    });
    (worker, waker)
}

/// Turns a packet round: its addresses, and a datagram's ports. Swapping leaves
/// every checksum as it was.
pub fn answer(frame: &mut Frame, destination: [u8; 6]) {
    const DESTINATION_OPTIONS: u8 = 60;
    const GRE: u8 = 47;
    let bytes = frame.bytes_mut();
    let (addresses, len, protocol, header) = match bytes[12..14] {
        [0x08, 0x00] => (26, 4, bytes[23], 34),
        _ if bytes[20] == DESTINATION_OPTIONS => {
            (22, 16, bytes[54], 62 + usize::from(bytes[55]) * 8)
        }
        _ => (22, 16, bytes[20], 54),
    };
    bytes.copy_within(0..6, 6);
    bytes[..6].copy_from_slice(&destination);
    for at in 0..len {
        bytes.swap(addresses + at, addresses + len + at);
    }
    if protocol != GRE && bytes.len() >= header + 4 {
        bytes.swap(header, header + 2);
        bytes.swap(header + 1, header + 3);
    }
}

/// Sends datagrams to a VIP from several ports, a burst at a time, and
/// returns how many came back whole.
pub fn echoes(
    lab: &Lab,
    vip: &'static str,
    flows: usize,
    bursts: usize,
    burst: usize,
    size: usize,
) -> usize {
    echoes_of_port(lab, vip, ECHO_PORT, [flows, bursts, burst, size])
}

/// The same, to any port.
pub fn echoes_of_port(lab: &Lab, vip: &'static str, port: u16, counts: [usize; 4]) -> usize {
    let vip: IpAddr = vip.parse().unwrap();
    let any = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    echoes_of_sockets(lab, counts, move || {
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect((vip, port)).unwrap();
        socket
    })
}

/// The same behind an IPv6 Destination Options header, as Linux's ip6gre
/// writes it; GRE packets where there is no port.
pub fn echoes_behind_options(
    lab: &Lab,
    own: &'static str,
    port: Option<u16>,
    counts: [usize; 4],
) -> usize {
    let own: IpAddr = own.parse().unwrap();
    echoes_of_sockets(lab, counts, move || {
        let socket = if port.is_some() { UdpSocket::bind("[::]:0").unwrap() } else { gre_socket() };
        write_options(&socket);
        socket.connect((own, port.unwrap_or(0))).unwrap();
        socket
    })
}

/// A socket of GRE packets over IPv6, with the calls of a datagram socket.
#[allow(unsafe_code, reason = "std has no raw sockets")]
fn gre_socket() -> UdpSocket {
    // SAFETY: a call without pointers; the result is checked.
    let fd = unsafe {
        libc::socket(libc::AF_INET6, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_GRE)
    };
    assert!(fd >= 0, "a raw socket: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }.into()
}

/// Has the kernel write a Tunnel Encapsulation Limit of 4 (RFC 2473) and
/// padding before what the socket sends.
#[allow(unsafe_code, reason = "std has no such option")]
fn write_options(socket: &UdpSocket) {
    // The kernel fills in the first byte, the next header.
    let options: [u8; 8] = [0, 0, 4, 1, 4, 1, 1, 0];
    let len = options.len() as libc::socklen_t;
    // SAFETY: the options live through the call and are as long as said.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_DSTOPTS,
            options.as_ptr().cast(),
            len,
        )
    };
    assert_eq!(set, 0, "IPV6_DSTOPTS: {}", std::io::Error::last_os_error());
}

fn echoes_of_sockets(
    lab: &Lab,
    [flows, bursts, burst, size]: [usize; 4],
    open: impl Fn() -> UdpSocket + Send,
) -> usize {
    lab.client.inside(move || {
        let one_flow = || {
            let socket = open();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            (0..bursts).map(|_| echoed(&socket, burst, size)).sum::<usize>()
        };
        (0..flows).map(|_| one_flow()).sum()
    })
}

fn echoed(socket: &UdpSocket, burst: usize, size: usize) -> usize {
    let datagram = |number: usize| -> Vec<u8> { (0..size).map(|at| (at + number) as u8).collect() };
    for number in 0..burst {
        // The kernel had the one before, without a socket of its port or protocol.
        if let Err(error) = socket.send(&datagram(number)) {
            let refused = matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EPROTO));
            assert!(refused, "{error}");
        }
    }
    let mut buffer = vec![0; size + 1];
    let mut came = 0;
    while came < burst {
        let Ok(len) = receive(socket, &mut buffer) else { break };
        let number = usize::from(buffer[0]);
        assert_eq!(buffer[..len], datagram(number), "a datagram came back changed");
        came += 1;
    }
    came
}
