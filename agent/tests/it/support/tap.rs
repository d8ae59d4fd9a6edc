//! Two TAP devices instead of a veth pair, as of a virtual machine or of a network in user
//! space.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nic::{Interface, Tap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testnet::Namespace;
use wire::MacAddress;

/// Carries frames between both devices until it is dropped, and they go with it.
pub struct Cable {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cable {
    /// A device in each namespace, both up; `number` distinguishes their addresses.
    pub fn new(a: (&Namespace, &str), b: (&Namespace, &str), number: u8) -> Cable {
        let stop = Arc::<AtomicBool>::default();
        let ends = [(a, 1), (b, 2)].map(|((namespace, name), side)| {
            Arc::new(device(namespace, name, MacAddress([2, 0x7a, 0, 0, number, side])))
        });
        let copier = |from: &Arc<Tap>, to: &Arc<Tap>| {
            let (from, to, stop) = (Arc::clone(from), Arc::clone(to), Arc::clone(&stop));
            std::thread::spawn(move || copy(&from, &to, &stop))
        };
        let threads = vec![copier(&ends[0], &ends[1]), copier(&ends[1], &ends[0])];
        Cable { stop, threads }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Its panic has been shown; a second one here would end the process.
            let _ = thread.join();
        }
    }
}

/// A TAP is named after an interface beside it; there is none here, and it gets the name.
fn device(namespace: &Namespace, name: &str, mac: MacAddress) -> Tap {
    let like =
        Interface { name: name.to_owned(), index: 0, mac, mtu: 1500, rx_queues: 1, up: true };
    let tap = namespace.inside(|| Tap::open(&like).unwrap());
    namespace.run(&format!("ip link set {} name {name}", tap.name()));
    namespace.run(&format!("ip link set {name} up"));
    tap
}

fn copy(from: &Tap, to: &Tap, stop: &AtomicBool) {
    let mut reader = File::from(from.copy().unwrap());
    let timeout = Timespec::try_from(Duration::from_millis(50)).unwrap();
    let mut frame = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        // Interrupted, or the timeout is over: there may be nothing to read.
        let _ = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&timeout));
        loop {
            match reader.read(&mut frame) {
                // An error: the device is down, or its program drops the frame.
                Ok(bytes) => drop(to.give(&frame[..bytes])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
}
