//! The minimum that a forwarder can do: frames to a prefix are sent back, with their MAC
//! addresses swapped. It is the lower bound for measurements of the real forwarder.
//!
//! `reflector INTERFACE native|generic|auto|af_packet PREFIX...`; prints one
//! line when ready, and one with its counters when its standard input ends.
//!
//! `reflector INTERFACE xdp|tc ADDRESS` does it in the kernel: the interface's program, in the
//! driver or in traffic control, sends each IPv4 packet back in the same tunnel header, to that
//! address.

use std::error::Error;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ebpf::{Hook, Link};
use nic::drivers::{af_packet, af_xdp};
use nic::wait::{Waiter, Waker};
use nic::{DeviceConfig, IpPrefix, ModePreference, QueueCounters, QueueOptions, WorkerIo};
use wire::Batch;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/reflect.bpf.o"));

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reflector: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [interface, how, prefixes @ ..] = arguments else {
        return Err(
            "usage: reflector INTERFACE native|generic|auto|af_packet|xdp|tc PREFIX...".into()
        );
    };
    if how == "xdp" || how == "tc" {
        let [address] = prefixes else {
            return Err(format!("usage: reflector INTERFACE {how} ADDRESS").into());
        };
        return reflect_in_kernel(interface, how, address.parse()?);
    }
    let (driver, mode) = match how.as_str() {
        "native" => (&af_xdp::DRIVER, ModePreference::Native),
        "generic" => (&af_xdp::DRIVER, ModePreference::Generic),
        "auto" => (&af_xdp::DRIVER, ModePreference::Auto),
        "af_packet" => (&af_packet::DRIVER, ModePreference::Auto),
        other => {
            return Err(format!("{other:?} is none of native, generic, auto, af_packet").into());
        }
    };
    let prefixes: Vec<IpPrefix> =
        prefixes.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let config = DeviceConfig {
        interface: interface.clone(),
        driver,
        queues: 0,
        mode,
        ..DeviceConfig::default()
    };
    let (mut devices, lanes) = nic::open(&[config], &QueueOptions::default())?;
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<(JoinHandle<_>, Waker)> =
        lanes.into_iter().map(|lane| start(lane, Arc::clone(&stop))).collect::<Result<_, _>>()?;
    devices[0].filter().ok_or("the device has no filter")?.set(&prefixes, &[], false)?;
    println!("ready: {interface} {} queues={}", devices[0].driver(), workers.len());
    io::stdin().read_to_end(&mut Vec::new())?;
    stop.store(true, Ordering::Relaxed);
    for (worker, (thread, waker)) in workers.into_iter().enumerate() {
        waker.wake();
        let counters: QueueCounters = thread.join().map_err(|_| "a worker panicked")?;
        println!("worker {worker}: {counters:?}");
    }
    Ok(())
}

fn reflect_in_kernel(interface: &str, how: &str, to: Ipv4Addr) -> Result<(), Box<dyn Error>> {
    // Without checksum and length, which the sender does not look at.
    let mut outer = [0; 24];
    (outer[0], outer[8], outer[9], outer[22]) = (0x45, 64, 47, 8);
    outer[16..20].copy_from_slice(&to.octets());
    let name = if how == "xdp" { "guideway_reflect" } else { "guideway_reflect_skb" };
    let mut object = ebpf::load_with(OBJECT, |loader| {
        loader.override_global("reflected", &outer[..], true);
    })?;
    ebpf::load_program(&mut object, name)?;
    let program = ebpf::program_fd(&object, name)?;
    let index = nic::Interface::find(interface)?.index;
    let _link = if how == "xdp" {
        ebpf::xdp::attach(program, interface, index, ModePreference::Native)?.0
    } else {
        Link::create(program, index, Hook::TcIngress)?
    };
    println!("ready: {interface} {how}");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn start(
    mut lane: WorkerIo,
    stop: Arc<AtomicBool>,
) -> io::Result<(JoinHandle<QueueCounters>, Waker)> {
    let mut waiter = Waiter::new(lane.queues.iter().filter_map(|queue| queue.fd()))?;
    let waker = waiter.waker();
    let reflect = move || {
        while !stop.load(Ordering::Relaxed) {
            if !reflect_batch(&mut lane) && waiter.wait(Duration::from_secs(1)).is_err() {
                break;
            }
        }
        lane.queues[0].meter().read()
    };
    Ok((thread::Builder::new().spawn(reflect)?, waker))
}

/// One batch there and back; false if there was none.
fn reflect_batch(lane: &mut WorkerIo) -> bool {
    let mut batch = Batch::new();
    let queue = &mut lane.queues[0];
    queue.rx(&mut lane.pool, &mut batch);
    let any = !batch.is_empty();
    for frame in &mut batch {
        let (destination, source) = frame.bytes_mut()[..12].split_at_mut(6);
        destination.swap_with_slice(source);
    }
    queue.tx(&mut lane.pool, &mut batch);
    // A full ring drops.
    batch.drain(..).for_each(|frame| lane.pool.give_frame(frame));
    any
}
