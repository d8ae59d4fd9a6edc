//! Replay: the same forwarding code on capture files. Deterministic, without
//! root or devices; the runner of the golden tests, and what a bug report
//! needs.
//!
//! Time is the capture's. A batch ends where the millisecond changes; time
//! never goes back. Every next hop is 02:00:00:00:00:fe, our own address
//! 02:00:00:00:00:01.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use datapath::batch::Verdicts;
use datapath::verdict::DeviceIndex;
use datapath::{
    Clock, ConnectionTable, Counters, Datapath, DropReason, Egress, FlowHash, Journey, NextHop, Secret, Totals,
    Verdict, View,
};
use nic::pcap::{Packet, Reader, Writer};
use plan::{Plan, Planner};
use serde_json::{Value, json};
use wire::{BATCH_MAX, Batch, CHUNK_BYTES, FRAME_BYTES_MAX, Frame, MacAddress};

use crate::{offline, secret};

/// Our own Ethernet address.
pub const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x01]);
/// That of every next hop.
pub const NEXT_HOP: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);

/// What to replay, and where to write what.
#[derive(Debug, Clone)]
pub struct Options {
    /// The plan, as proto JSON.
    pub plan: PathBuf,
    /// The capture: pcap or pcapng.
    pub input: PathBuf,
    /// Everything emitted, in order.
    pub output: PathBuf,
    /// Frames passed to the kernel, in order.
    pub passed: Option<PathBuf>,
    /// Verdicts by kind.
    pub counters: Option<PathBuf>,
    /// One object for each frame.
    pub journeys: Option<PathBuf>,
    /// The cluster's secret.
    pub secret_file: Option<PathBuf>,
    /// The longest IP packet that fits the egress link.
    pub egress_mtu: u16,
    /// Frames handled together, 1 to 64.
    pub batch: usize,
}

type Failure = Box<dyn std::error::Error>;

/// Replays a capture; gives the counters.
///
/// # Errors
/// If a file cannot be read or written, or the plan is refused.
pub fn replay(options: &Options) -> Result<Value, Failure> {
    let plan = offline::read_plan(&mut Planner::default(), &options.plan)?;
    let secret = secret::for_plan(&plan, options.secret_file.as_deref())?;
    let mut outputs = Outputs::create(options)?;
    let mut replay = Replay::new(plan, &secret, options.egress_mtu);
    let mut batch: Vec<Packet> = Vec::with_capacity(BATCH_MAX);
    for packet in Reader::open(&options.input)? {
        let packet = packet?;
        replay.received += 1;
        let goes_on = batch.first().is_none_or(|first| millisecond(first) == millisecond(&packet));
        if !goes_on || batch.len() == options.batch {
            replay.run(&mut batch, &mut outputs)?;
        }
        batch.push(packet);
    }
    replay.run(&mut batch, &mut outputs)?;
    outputs.finish(&replay)
}

fn millisecond(packet: &Packet) -> u64 {
    packet.timestamp_ns / 1_000_000
}

/// A forwarder of one worker, with the time at which it stands.
struct Replay {
    view: View,
    datapath: Datapath<'static>,
    counters: &'static Counters,
    chunks: Vec<&'static mut [u8]>,
    received: u64,
    /// The latest time seen, in nanoseconds.
    now_ns: u64,
}

impl Replay {
    fn new(plan: Plan, secret: &Secret, egress_mtu: u16) -> Replay {
        /// The default of `connections_max` in the plan.
        const CONNECTIONS: u64 = 1_000_000;
        let configured = plan.message.forwarder.as_ref().map_or(0, |forwarder| forwarder.connections_max);
        let connections = if configured == 0 { CONNECTIONS } else { configured };
        let hop = NextHop { device: DeviceIndex(0), source: OWN, destination: NEXT_HOP, mtu: egress_mtu };
        let egress = Egress::new(&plan, |_, _| vec![hop]);
        let counters: &Counters = Box::leak(Box::default());
        let table = ConnectionTable::in_memory(connections);
        Replay {
            view: View::new(plan.into(), egress, 1),
            datapath: Datapath::new(FlowHash::new(secret), table, counters, Clock::default(), 0),
            counters,
            chunks: (0..BATCH_MAX).map(|_| Vec::leak(vec![0; CHUNK_BYTES])).collect(),
            received: 0,
            now_ns: 0,
        }
    }

    /// Forwards a batch of one millisecond and writes what comes of it.
    fn run(&mut self, batch: &mut Vec<Packet>, outputs: &mut Outputs) -> Result<(), Failure> {
        let Some(first) = batch.first() else { return Ok(()) };
        self.now_ns = self.now_ns.max(first.timestamp_ns);
        self.datapath.begin((self.now_ns / 1_000_000) as u32, &self.view);
        let refused: Vec<Option<DropReason>> = batch.iter().map(refusal).collect();
        let mut frames: Batch<'static> =
            batch.iter().zip(&refused).filter(|(_, refused)| refused.is_none()).map(|(packet, _)| self.frame(packet)).collect();
        let mut journeys = Vec::new();
        let mut verdicts = Verdicts::new();
        if outputs.journeys.is_some() {
            for frame in &mut frames {
                let mut journey = Journey::default();
                verdicts.push(self.datapath.forward(&self.view, frame, &mut journey));
                journeys.push(journey);
            }
        } else {
            self.datapath.forward_batch(&self.view, &mut frames, &mut verdicts);
        }
        let mut forwarded = frames.into_iter().zip(verdicts);
        let mut journeys = journeys.into_iter();
        for (packet, refused) in batch.drain(..).zip(refused) {
            self.now_ns = self.now_ns.max(packet.timestamp_ns);
            let (frame, verdict) = match refused {
                Some(reason) => (None, Verdict::Drop(reason)),
                None => forwarded.next().map(|(frame, verdict)| (Some(frame), verdict)).expect("one for each"),
            };
            self.counters.count(verdict);
            let journey = if refused.is_some() { Journey::default() } else { journeys.next().unwrap_or_default() };
            outputs.write(&self.view.plan, self.now_ns, &packet, frame.as_ref(), verdict, &journey)?;
            self.chunks.extend(frame.map(Frame::into_chunk));
        }
        Ok(())
    }

    fn frame(&mut self, packet: &Packet) -> Frame<'static> {
        let chunk = self.chunks.pop().expect("as many chunks as frames in a batch");
        Frame::copy_of(chunk, &packet.bytes).expect("refusal() checked the length")
    }
}

/// What a device would not have received whole.
fn refusal(packet: &Packet) -> Option<DropReason> {
    if packet.original_len as usize > packet.bytes.len() {
        Some(DropReason::Truncated)
    } else if packet.bytes.len() > FRAME_BYTES_MAX {
        Some(DropReason::FrameTooLong)
    } else {
        None
    }
}

/// The files written.
struct Outputs {
    output: Writer<BufWriter<File>>,
    passed: Option<Writer<BufWriter<File>>>,
    counters: Option<PathBuf>,
    journeys: Option<(PathBuf, Vec<Value>)>,
    frames: u64,
}

impl Outputs {
    fn create(options: &Options) -> Result<Outputs, Failure> {
        let writer = |path: &Path| Writer::create(path).map_err(|error| format!("{}: {error}", path.display()));
        Ok(Outputs {
            output: writer(&options.output)?,
            passed: options.passed.as_deref().map(writer).transpose()?,
            counters: options.counters.clone(),
            journeys: options.journeys.clone().map(|path| (path, Vec::new())),
            frames: 0,
        })
    }

    fn write(
        &mut self,
        plan: &Plan,
        now_ns: u64,
        packet: &Packet,
        frame: Option<&Frame<'_>>,
        verdict: Verdict,
        journey: &Journey,
    ) -> Result<(), Failure> {
        self.frames += 1;
        let emit = |writer: &mut Writer<BufWriter<File>>, bytes: &[u8]| writer.write(now_ns, bytes.len() as u32, bytes);
        match (verdict, frame) {
            (Verdict::Send(_), Some(frame)) => emit(&mut self.output, frame.bytes())?,
            (Verdict::Pass, _) => {
                if let Some(passed) = &mut self.passed {
                    emit(passed, &packet.bytes)?;
                }
            }
            _ => {}
        }
        if let Some((_, journeys)) = &mut self.journeys {
            journeys.push(journey_json(plan, self.frames, verdict, journey));
        }
        Ok(())
    }

    fn finish(self, replay: &Replay) -> Result<Value, Failure> {
        self.output.finish()?;
        self.passed.map(Writer::finish).transpose()?;
        let counters = counters_json(replay.received, &replay.counters.totals());
        if let Some(path) = &self.counters {
            write_text(path, &format!("{counters:#}\n"))?;
        }
        if let Some((path, journeys)) = &self.journeys {
            let lines: Vec<String> = journeys.iter().map(Value::to_string).collect();
            write_text(path, &format!("[\n{}\n]\n", lines.join(",\n")))?;
        }
        Ok(counters)
    }
}

fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Verdicts by kind; reasons that did not occur are left out.
#[must_use]
pub fn counters_json(received: u64, totals: &Totals) -> Value {
    let dropped: BTreeMap<&str, u64> = DropReason::ALL
        .iter()
        .map(|reason| (reason.name(), totals.dropped[reason.index()]))
        .filter(|(_, count)| *count > 0)
        .collect();
    json!({
        "received": received,
        "sent": totals.sent,
        "passed": totals.passed,
        "replied": totals.replied,
        "redirected": totals.redirected,
        "held": totals.held,
        "dropped": dropped,
        "originated": {},
        "unaccounted": totals.unaccounted(received),
    })
}

/// One frame's journey; frames are counted from 1, as Wireshark does.
fn journey_json(plan: &Plan, frame: u64, verdict: Verdict, journey: &Journey) -> Value {
    let service = journey.service().and_then(|id| plan.service(id)).map(|service| service.name.as_str());
    let backend = journey.backend.and_then(|id| plan.backend(id)).map(|backend| backend.name.as_str());
    let reason = match verdict {
        Verdict::Drop(reason) => Some(reason.name()),
        _ => None,
    };
    let matched = journey.matched.map(|matched| {
        let entry = &plan.matches[matched.matched as usize];
        format!("{} {} {}", entry.target, entry.protocol, entry.ports)
    });
    json!({
        "frame": frame,
        "verdict": verdict.name(),
        "reason": reason,
        "service": service,
        "backend": backend,
        "table": journey.lookup.name(),
        "slot": journey.slot,
        "matched": matched,
        "hash": journey.hash.map(|hash| format!("{hash:016x}")),
    })
}
