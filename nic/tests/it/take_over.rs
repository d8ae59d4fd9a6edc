//! Devices change hands under traffic, several times, and no frame is lost: here within one
//! process, in the forwarder's tests between two.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
const DATAGRAMS: usize = 20_000;
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

    fn stop(self) -> Vec<WorkerIo> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
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

/// The number of datagrams that came back while the device changed hands.
fn echoed_through_hand_overs(driver: &'static Driver, mode: ModePreference) -> usize {
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
        let traffic = lab.client.spawn(echoes);
        for _ in 0..HAND_OVERS {
            std::thread::sleep(Duration::from_millis(60));
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
        assert!(!traffic.is_finished(), "all datagrams were back before the last hand-over");
        let came = traffic.join().unwrap();
        for lane in workers.stop() {
            let chunks = lane.pool.memory().chunks();
            let in_rings = if *driver == af_xdp::DRIVER { 2048 } else { 0 };
            // Some may be on their way back to the sender still.
            assert!(lane.pool.free() <= chunks - in_rings);
            assert!(lane.pool.free() + in_rings + 64 >= chunks, "chunks were lost");
        }
        came
    })
}

/// Sends steadily from four flows, and counts what comes back.
fn echoes() -> usize {
    let sockets: Vec<UdpSocket> = (0..4).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
    for socket in &sockets {
        socket.connect((VIP_V4, ECHO_PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
    }
    let (mut sent, mut came) = (0, 0);
    let mut last = Instant::now();
    while came < DATAGRAMS && last.elapsed() < Duration::from_secs(5) {
        for socket in &sockets {
            let may_send = sent < DATAGRAMS && sent - came < ON_THE_WAY;
            if may_send && socket.send(&[0; 64]).is_ok() {
                sent += 1;
            }
            while socket.recv(&mut [0; 100]).is_ok() {
                came += 1;
                last = Instant::now();
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    came
}

#[test]
fn af_xdp_sockets_change_hands_without_a_loss() {
    if root_or_skip("af_xdp_sockets_change_hands_without_a_loss") {
        for mode in [ModePreference::Native, ModePreference::Generic] {
            assert_eq!(echoed_through_hand_overs(&af_xdp::DRIVER, mode), DATAGRAMS, "{mode:?}");
        }
    }
}

#[test]
fn packet_sockets_change_hands_without_a_loss() {
    if root_or_skip("packet_sockets_change_hands_without_a_loss") {
        let came = echoed_through_hand_overs(&af_packet::DRIVER, ModePreference::Auto);
        assert_eq!(came, DATAGRAMS);
    }
}
