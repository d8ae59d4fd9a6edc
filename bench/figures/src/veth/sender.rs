//! The other end of the cable. It runs in the sender's namespace, sends frames to the VIP
//! and, if requested, waits for each to come back.
//!
//! It prints its result as one line of JSON.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nic::{DeviceConfig, IpPrefix, QueueOptions, WorkerIo};
use serde_json::{Value, json};
use wire::{Batch, Frame, HEADROOM_BYTES, MacAddress};

use guideway_bench::traffic::Segment;

use crate::traffic::{SHORT_PACKETS, Template, shuffled};

/// Between two packets whose way is timed: low load.
const PING_INTERVAL: Duration = Duration::from_micros(300);
/// A packet that has not come back until then is lost.
const PING_TIMEOUT: Duration = Duration::from_millis(20);

/// Between two packets of many whose way is timed.
const PROBE_INTERVAL: Duration = Duration::from_millis(1);
/// What is still on a ring when the last packet has been sent.
const LINGER: Duration = Duration::from_millis(50);
/// A paced sender sleeps that long when it is ahead of its rate: what is then due fits
/// a ring.
const PACE: Duration = Duration::from_micros(100);
/// At the end of a packet whose way is timed, before its number.
const PROBE_MARK: [u8; 4] = *b"PRBE";

/// Kinds of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Packets {
    /// The shortest UDP.
    Udp,
    /// TCP in flows of 20 packets, as many at once as there are connections.
    Short,
    /// SYNs with MP_CAPABLE.
    Capable,
    /// Data of connections of Multipath TCP, with timestamps.
    Data,
}

impl Packets {
    /// On the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Packets::Udp => "udp",
            Packets::Short => "short",
            Packets::Capable => "capable",
            Packets::Data => "data",
        }
    }

    fn template(self, frame_bytes: usize) -> Result<Template, String> {
        match self {
            Packets::Udp => Ok(Template::udp()),
            Packets::Short => Ok(Template::tcp(false)),
            Packets::Capable => Template::segment(Segment::SynV1, frame_bytes),
            Packets::Data => Template::segment(Segment::TimestampFirst, frame_bytes),
        }
    }
}

/// What to send, to whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The interface to send on
    #[arg(long)]
    pub interface: String,
    /// Link address of the one under test, six bytes in hex with colons
    #[arg(long)]
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
    /// Kind of packets
    #[arg(long, default_value = "udp")]
    pub packets: Packets,
    /// Bytes of each frame, except those of the shortest kinds
    #[arg(long, default_value_t = 86)]
    pub frame_bytes: usize,
    /// Packets a second; 0: as many as go
    #[arg(long, default_value_t = 0)]
    pub rate: u32,
    /// One packet at a time, and how long until it is back
    #[arg(long)]
    pub ping: bool,
    /// Time one packet in a while, at the rate that is given
    #[arg(long)]
    pub probe: bool,
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
        template: options.packets.template(options.frame_bytes)?.between(source.0, options.to.0),
        kind: options.packets,
        first_short: unix_ms() % 1_000_000 * u64::from(options.connections) * SHORT_PACKETS,
        connections: options.connections,
        rate: options.rate,
        lanes,
        packets: 0,
    };
    let duration = Duration::from_secs_f64(options.seconds);
    Ok(match (options.ping, options.probe) {
        (true, _) => sender.ping(duration),
        (_, true) => sender.probe(duration),
        _ => sender.flood(duration),
    })
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

struct Sender {
    template: Template,
    kind: Packets,
    /// Short flows go on here: an earlier sender's have ended.
    first_short: u64,
    connections: u32,
    rate: u32,
    lanes: Vec<WorkerIo>,
    packets: u64,
}

impl Sender {
    /// As fast as it goes or at its rate, the same on every queue. What comes back is
    /// left on the ring, where it overflows: counting is the interface's job.
    fn flood(mut self, duration: Duration) -> Value {
        let mut batches: Vec<Batch<'static>> = self.lanes.iter().map(|_| Batch::new()).collect();
        let start = Instant::now();
        while start.elapsed() < duration {
            if self.due(start) == 0 {
                thread::sleep(PACE);
            }
            for (lane, batch) in batches.iter_mut().enumerate() {
                self.fill(lane, batch, self.due(start));
                let WorkerIo { pool, queues } = &mut self.lanes[lane];
                queues[0].tx(pool, batch);
            }
        }
        json!({"sent": self.sent(), "seconds": start.elapsed().as_secs_f64()})
    }

    fn sent(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.queues[0].meter().read().transmitted).sum()
    }

    /// How many more are to be sent by now.
    fn due(&self, start: Instant) -> u64 {
        match self.rate {
            0 => u64::MAX,
            rate => {
                let by_now = start.elapsed().as_secs_f64() * f64::from(rate);
                (by_now as u64).saturating_sub(self.packets)
            }
        }
    }

    fn fill(&mut self, lane: usize, batch: &mut Batch<'static>, count: u64) {
        for _ in 0..count {
            if batch.is_full() {
                return;
            }
            let Some(frame) = self.next_frame(lane) else { return };
            batch.push(frame);
        }
    }

    fn next_frame(&mut self, lane: usize) -> Option<Frame<'static>> {
        let WorkerIo { pool, .. } = &mut self.lanes[lane];
        let chunk = pool.take()?;
        self.packets += 1;
        let end = HEADROOM_BYTES + self.template.frame_bytes();
        let bytes = &mut chunk[HEADROOM_BYTES..end];
        match self.kind {
            Packets::Short => {
                let packet = self.first_short + self.packets - 1;
                self.template.write_short(bytes, packet, self.connections);
            }
            _ => self.template.write(bytes, shuffled(self.packets, self.connections)),
        }
        Some(Frame::new(chunk, HEADROOM_BYTES, end))
    }

    /// At its rate on the first queue, and one packet in a while is timed there and back
    /// among the others. It never sleeps: it would be late for what comes back.
    fn probe(mut self, duration: Duration) -> Value {
        let mut times = Vec::new();
        let mut sent_at = Vec::new();
        let mut batch = Batch::new();
        let mut received = 0;
        let start = Instant::now();
        while start.elapsed() < duration + LINGER {
            self.receive(|bytes| {
                received += 1;
                let number = probe_number(bytes).and_then(|number| sent_at.get(number as usize));
                times.extend(number.map(|at: &Instant| at.elapsed().as_nanos() as f64 / 1000.0));
            });
            if start.elapsed() >= duration {
                continue;
            }
            self.fill(0, &mut batch, self.due(start));
            if start.elapsed() >= PROBE_INTERVAL * sent_at.len() as u32
                && let Some(frame) = batch.last_mut()
            {
                let (_, end) = frame.bytes_mut().split_last_chunk_mut::<8>().expect("a header");
                end[..4].copy_from_slice(&PROBE_MARK);
                end[4..].copy_from_slice(&(sent_at.len() as u32).to_be_bytes());
                sent_at.push(Instant::now());
            }
            let WorkerIo { pool, queues } = &mut self.lanes[0];
            queues[0].tx(pool, &mut batch);
            batch.drain(..).for_each(|frame| pool.give_frame(frame));
        }
        json!({
            "sent": self.sent(),
            "seconds": duration.as_secs_f64(),
            "received": received,
            "probes": sent_at.len(),
            "microseconds": times,
        })
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
            batch.extend(self.next_frame(lane));
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
        self.receive(|_| frames += 1);
        frames
    }

    fn receive(&mut self, mut each: impl FnMut(&[u8])) {
        for WorkerIo { pool, queues } in &mut self.lanes {
            let mut batch = Batch::new();
            queues[0].rx(pool, &mut batch);
            batch.iter().for_each(|frame| each(frame.bytes()));
            batch.drain(..).for_each(|frame| pool.give_frame(frame));
        }
    }
}

/// Of a frame whose way is timed.
fn probe_number(bytes: &[u8]) -> Option<u32> {
    let (_, end) = bytes.split_last_chunk::<8>()?;
    let number = end.strip_prefix(&PROBE_MARK)?;
    Some(u32::from_be_bytes(number.try_into().ok()?))
}
