//! A forwarder's worker alone, with rings of any size: `Datapath::forward_batch` forwards
//! its packets, and they are sent back. The forwarder itself has rings of one size.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use guideway_bench::{setup, worker};
use nic::wait::Waiter;
use nic::{DeviceConfig, IpPrefix, QueueOptions, WorkerIo};
use plan::{Planner, proto};
use sim::LoadBalancer;
use wire::Batch;

use crate::veth::Service;

/// What it is started with.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The interface, of one queue
    pub interface: String,
    /// Prefixes that it receives packets to
    pub prefix: IpPrefix,
    /// Frames that each ring holds
    #[arg(long)]
    pub ring: u32,
}

/// Says when it is ready; runs until its standard input ends.
///
/// # Errors
/// If the interface cannot be opened.
pub fn run(options: &Options) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let plan = Service::Multipath.plan("DRIVER_AF_XDP", 0);
    let plan: proto::Plan = serde_json::from_value(plan).map_err(|error| error.to_string())?;
    let plan = Planner::default().plan(plan).map_err(|error| error.to_string())?;
    let view = std::sync::Arc::new(setup::view(std::sync::Arc::new(plan), 1));
    let balancer = worker::new(view, 0, 1 << 10)?;
    let config = DeviceConfig { interface: options.interface.clone(), ..DeviceConfig::default() };
    let queues = QueueOptions { ring_entries: options.ring, ..QueueOptions::default() };
    let (mut devices, mut lanes) =
        nic::open(&[config], &queues).map_err(|error| error.to_string())?;
    let filter = devices[0].filter().ok_or("the device has no filter")?;
    filter.set(&[options.prefix], &[], false).map_err(|error| error.to_string())?;
    let lane = lanes.pop().ok_or("the device has no queue")?;
    let waiter = Waiter::new(lane.queues.iter().filter_map(|queue| queue.fd())).map_err(failed)?;
    std::thread::spawn(move || forward(lane, waiter, balancer));
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).map_err(failed)?;
    // The thread ends with the process.
    Ok(())
}

fn forward(mut lane: WorkerIo, mut waiter: Waiter, mut balancer: LoadBalancer) {
    let start = Instant::now();
    loop {
        let mut batch = Batch::new();
        lane.queues[0].rx(&mut lane.pool, &mut batch);
        if batch.is_empty() && waiter.wait(Duration::from_secs(1)).is_err() {
            return;
        }
        balancer.forward_in_place(start.elapsed().as_millis() as u32, &mut batch);
        lane.queues[0].tx(&mut lane.pool, &mut batch);
        // A full ring drops.
        batch.drain(..).for_each(|frame| lane.pool.give_frame(frame));
    }
}
