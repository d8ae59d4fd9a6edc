//! Devices change hands under traffic, several times, and no frame is lost: here within one
//! process, in the forwarder's tests between two.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{ECHO_PORT, Lab, PREFIXES, VIP_V4, answer, set_filters};
use nic::driver::Held;
use nic::drivers::{af_packet, af_xdp};
use nic::take_over::{DeviceState, MemoryState, Successor};
use nic::{Device, DeviceConfig, Driver, ModePreference, QueueOptions, WorkerIo};
use testnet::root_or_skip;
use wire::Batch;

const HAND_OVERS: usize = 3;
/// Datagrams that come back before each hand-over, and after the last.
const BETWEEN: usize = 2000;
/// Datagrams on their way at most: fewer than any ring or buffer holds, so that
/// a machine with other work loses none by being late.
const ON_THE_WAY: usize = 200;

/// Workers that send everything back, and then give up what they own.
struct Workers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<WorkerIo>>,
}

impl Workers {
    fn start(lanes: Vec<WorkerIo>, destination: [u8; 6]) -> Workers {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |lane| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || echo(lane, destination, &stop))
        };
        let threads = lanes.into_iter().map(thread).collect();
        Workers { stop, threads }
    }

    fn stop(mut self) -> Vec<WorkerIo> {
        self.stop.store(true, Ordering::Relaxed);
        std::mem::take(&mut self.threads).into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

/// As of [`crate::support::Echo`].
impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn echo(mut lane: WorkerIo, destination: [u8; 6], stop: &AtomicBool) -> WorkerIo {
    let mut batch = Batch::new();
    while !stop.load(Ordering::Relaxed) {
        lane.queues[0].rx(&mut lane.pool, &mut batch);
        if batch.is_empty() {
            std::thread::sleep(Duration::from_micros(200));
        }
        batch.iter_mut().for_each(|frame| answer(frame, destination));
        while !batch.is_empty() {
            lane.queues[0].tx(&mut lane.pool, &mut batch);
        }
    }
    lane
}

/// Copies of everything, as a predecessor sends them.
fn handed_over(device: &Device, lanes: &[WorkerIo]) -> (Vec<MemoryState>, Vec<DeviceState>) {
    let memory = |lane: &WorkerIo| MemoryState {
        file: lane.pool.memory().file().try_clone_to_owned().unwrap(),
        chunks: lane.pool.memory().chunks(),
        pages: lane.pool.memory().pages(),
    };
    let (claim, link) = device.held();
    let socket = |socket: &Arc<OwnedFd>| -> OwnedFd { socket.try_clone().unwrap() };
    let state = DeviceState {
        kernel_cache: None,
        interface: "eth0".into(),
        driver: device.driver(),
        mode: device.mode(),
        held: Held {
            claim: claim.try_clone_to_owned().unwrap(),
            link: link.map(|link| link.try_clone_to_owned().unwrap()),
        },
        sockets: device.sockets().iter().map(socket).collect(),
        ring_entries: QueueOptions::default().ring_entries,
    };
    (lanes.iter().map(memory).collect(), vec![state])
}

/// The datagrams that were sent while the device changed hands, and those that came back.
fn echoed_through_hand_overs(driver: &'static Driver, mode: ModePreference) -> [usize; 2] {
    let lab = Lab::new();
    lab.client_completes_checksums();
    let destination = lab.mac(&lab.client, "eth0");
    lab.forwarder.inside(|| {
        let config = DeviceConfig {
            interface: "eth0".into(),
            driver,
            mode,
            queues: 2,
            ..DeviceConfig::default()
        };
        let (mut devices, lanes) = nic::open(&[config], &QueueOptions::default()).unwrap();
        set_filters(&mut devices, &PREFIXES, &[]);
        let mut lent = handed_over(&devices[0], &lanes);
        let mut workers = Workers::start(lanes, destination);
        let traffic = Traffic::start(&lab);
        for _ in 0..HAND_OVERS {
            traffic.let_come(BETWEEN);
            let mut successor = Successor::prepare(lent.0, lent.1).unwrap();
            set_filters(successor.devices(), &PREFIXES, &[]);
            drop(workers.stop());
            let quiesced = successor.quiesced().expect("all its workers have stopped");
            let (mut inherited, lanes) = quiesced.into_workers();
            lent = handed_over(&inherited[0], &lanes);
            workers = Workers::start(lanes, destination);
            inherited[0].switch().unwrap();
            drop(std::mem::replace(&mut devices, inherited));
        }
        traffic.let_come(BETWEEN);
        let echoed = traffic.stop();
        // The kernel has a ring of chunks to receive into, and with zero-copy the device too.
        let (least, most) = match (*driver == af_xdp::DRIVER, devices[0].is_zero_copy()) {
            (false, _) => (0, 64),
            (true, false) => (2048, 2048 + 64),
            (true, true) => (2048, 2 * 2048),
        };
        for lane in workers.stop() {
            let taken = lane.pool.memory().chunks() - lane.pool.free();
            // Some may be on their way back to the sender still.
            assert!((least..=most).contains(&taken), "{taken} chunks are not free");
        }
        echoed
    })
}

/// Datagrams of four flows, sent steadily until it is stopped.
struct Traffic {
    stop: Arc<AtomicBool>,
    came: Arc<AtomicUsize>,
    thread: JoinHandle<usize>,
}

impl Traffic {
    fn start(lab: &Lab) -> Traffic {
        let (stop, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&came));
        let thread = lab.client.spawn(move || echoes(&stopped, &counted));
        Traffic { stop, came, thread }
    }

    /// Waits until so many more have come back.
    fn let_come(&self, more: usize) {
        let (goal, end) =
            (self.came.load(Ordering::Relaxed) + more, Instant::now() + Duration::from_secs(60));
        while self.came.load(Ordering::Relaxed) < goal {
            let ended = self.thread.is_finished() || Instant::now() > end;
            assert!(!ended, "{} datagrams are back", self.came.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What was sent and what came back, when nothing comes any more.
    fn stop(self) -> [usize; 2] {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.thread.join().unwrap();
        [sent, self.came.load(Ordering::Relaxed)]
    }
}

/// Sends until it is stopped, and counts what comes back; returns how many it sent. It ends by
/// itself where nothing comes back.
fn echoes(stop: &AtomicBool, came: &AtomicUsize) -> usize {
    let sockets: Vec<UdpSocket> = (0..4).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
    for socket in &sockets {
        socket.connect((VIP_V4, ECHO_PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
    }
    let mut sent = 0;
    let mut last = Instant::now();
    loop {
        let on_the_way = sent - came.load(Ordering::Relaxed);
        let stopped = stop.load(Ordering::Relaxed);
        if (stopped && on_the_way == 0) || last.elapsed() > Duration::from_secs(5) {
            return sent;
        }
        for socket in &sockets {
            if !stopped && on_the_way < ON_THE_WAY && socket.send(&[0; 64]).is_ok() {
                sent += 1;
            }
            while socket.recv(&mut [0; 100]).is_ok() {
                came.fetch_add(1, Ordering::Relaxed);
                last = Instant::now();
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn af_xdp_sockets_change_hands_without_a_loss() {
    if root_or_skip("af_xdp_sockets_change_hands_without_a_loss") {
        for mode in [ModePreference::Native, ModePreference::Generic] {
            let [sent, came] = echoed_through_hand_overs(&af_xdp::DRIVER, mode);
            assert_eq!(came, sent, "{mode:?}");
        }
    }
}

#[test]
fn packet_sockets_change_hands_without_a_loss() {
    if root_or_skip("packet_sockets_change_hands_without_a_loss") {
        let [sent, came] = echoed_through_hand_overs(&af_packet::DRIVER, ModePreference::Auto);
        assert_eq!(came, sent);
    }
}
