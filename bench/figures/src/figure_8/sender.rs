//! The other end of the cable: runs inside the sender's namespace, sends
//! frames to the VIP and, where asked to, waits for each to come back.
//!
//! What it found is one line of JSON on stdout.

use std::thread;
use std::time::{Duration, Instant};

use nic::{DeviceConfig, IpPrefix, QueueOptions, WorkerIo};
use serde_json::{Value, json};
use wire::{Batch, MacAddress};

use crate::traffic::{FRAME_BYTES, Template, shuffled};

/// Between two packets whose way is timed: low load.
const PING_INTERVAL: Duration = Duration::from_micros(300);
/// A packet that has not come back until then is lost.
const PING_TIMEOUT: Duration = Duration::from_millis(20);

/// What to send, to whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The interface to send on
    #[arg(long)]
    pub interface: String,
    /// Link address of the one under test, six bytes in hex with colons
    #[arg(long, value_parser = parse_mac)]
    pub to: MacAddress,
    /// Destinations of what comes back
    #[arg(long, value_delimiter = ',')]
    pub returns: Vec<IpPrefix>,
    /// How long
    #[arg(long)]
    pub seconds: f64,
    /// Connections
    #[arg(long)]
    pub connections: u32,
    /// One packet at a time, and how long until it is back
    #[arg(long)]
    pub ping: bool,
}

fn parse_mac(text: &str) -> Result<MacAddress, String> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    bytes.map(MacAddress).ok_or_else(|| format!("{text:?} is not like 02:00:00:00:00:01"))
}

/// Sends, and reports.
pub fn run(options: &Options) -> Result<Value, String> {
    let name = options.interface.clone();
    let source = nic::Interface::find(&name).map_err(|error| error.to_string())?.mac;
    let config = DeviceConfig { interface: name, ..DeviceConfig::default() };
    let (mut devices, lanes) =
        nic::open(&[config], &QueueOptions::default()).map_err(|error| error.to_string())?;
    let filter = devices[0].filter().ok_or("the device has no filter")?;
    filter.set(&options.returns, &[], false).map_err(|error| error.to_string())?;
    let sender = Sender {
        template: Template::udp().between(source.0, options.to.0),
        connections: options.connections,
        lanes,
        packets: 0,
    };
    let duration = Duration::from_secs_f64(options.seconds);
    Ok(if options.ping { sender.ping(duration) } else { sender.flood(duration) })
}

struct Sender {
    template: Template,
    connections: u32,
    lanes: Vec<WorkerIo>,
    packets: u64,
}

impl Sender {
    /// As fast as it goes, the same on every queue. What comes back is left
    /// on the ring, where it overflows: counting is the interface's job.
    fn flood(mut self, duration: Duration) -> Value {
        let mut batches: Vec<Batch<'static>> = self.lanes.iter().map(|_| Batch::new()).collect();
        let start = Instant::now();
        while start.elapsed() < duration {
            for (lane, batch) in batches.iter_mut().enumerate() {
                self.fill(lane, batch);
                let WorkerIo { pool, queues } = &mut self.lanes[lane];
                queues[0].tx(pool, batch);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let sent: u64 =
            self.lanes.iter().map(|lane| lane.queues[0].meter().read().transmitted).sum();
        json!({"sent": sent, "seconds": seconds})
    }

    fn fill(&mut self, lane: usize, batch: &mut Batch<'static>) {
        while !batch.is_full() {
            let Some(mut frame) = self.lanes[lane].pool.frame_of(&[0; FRAME_BYTES]) else { return };
            self.packets += 1;
            self.template.write(frame.bytes_mut(), shuffled(self.packets, self.connections));
            batch.push(frame);
        }
    }

    /// One packet at a time, over the queues in turns.
    fn ping(mut self, duration: Duration) -> Value {
        let mut times = Vec::new();
        let mut sent = 0u64;
        let start = Instant::now();
        while start.elapsed() < duration {
            let lane = sent as usize % self.lanes.len();
            sent += 1;
            self.drain();
            let mut batch = Batch::new();
            if let Some(mut frame) = self.lanes[lane].pool.frame_of(&[0; FRAME_BYTES]) {
                self.template.write(frame.bytes_mut(), shuffled(sent, self.connections));
                batch.push(frame);
            }
            let at = Instant::now();
            let WorkerIo { pool, queues } = &mut self.lanes[lane];
            queues[0].tx(pool, &mut batch);
            batch.drain(..).for_each(|frame| pool.give_frame(frame));
            times.extend(self.back_after(at));
            thread::sleep(PING_INTERVAL);
        }
        times.sort_by(f64::total_cmp);
        json!({"sent": sent, "returned": times.len(), "microseconds": times})
    }

    /// Microseconds until something comes back.
    fn back_after(&mut self, at: Instant) -> Option<f64> {
        while at.elapsed() < PING_TIMEOUT {
            if self.drain() > 0 {
                return Some(at.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
        None
    }

    /// Takes what came back; how many.
    fn drain(&mut self) -> usize {
        let mut frames = 0;
        for WorkerIo { pool, queues } in &mut self.lanes {
            let mut batch = Batch::new();
            queues[0].rx(pool, &mut batch);
            frames += batch.len();
            batch.drain(..).for_each(|frame| pool.give_frame(frame));
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_addresses_are_read_or_refused() {
        assert_eq!(parse_mac("02:00:00:00:00:fe"), Ok(MacAddress([2, 0, 0, 0, 0, 0xfe])));
        for wrong in ["02:00:00:00:00", "02:00:00:00:00:fg", ""] {
            assert!(parse_mac(wrong).unwrap_err().contains("is not like"), "{wrong}");
        }
    }
}
