//! A load balancer of one worker and a slow path, in memory that is given
//! back, and the laws that hold whatever comes in.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use datapath::batch::Verdicts;
use datapath::outbox::ORIGINATED_MAX;
use datapath::table::{Identity, words_for};
use datapath::verdict::DeviceIndex;
use datapath::{
    Clock, ConnectionTable, Counters, Datapath, Egress, FlowHash, Journey, NextHop, Outbox, Secret,
    SlowPath, TableReader, Verdict, View,
};
use plan::{Planner, proto};
use wire::{BATCH_MAX, Batch, CHUNK_BYTES, FRAME_BYTES_MAX, Frame, MacAddress, headers};

/// Few, so that buckets fill up.
const CONNECTIONS: u64 = 16;
/// A batch's frames, and those that it can originate.
const CHUNKS: usize = BATCH_MAX + ORIGINATED_MAX;

/// What a machine needs that outlives it. To be used again and again: asking
/// the system for it costs more than forwarding.
pub struct Memory {
    words: Vec<AtomicU64>,
    counters: Counters,
    packets: Vec<u8>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            words: (0..words_for(CONNECTIONS)).map(|_| AtomicU64::new(0)).collect(),
            counters: Counters::default(),
            packets: vec![0; CHUNKS * CHUNK_BYTES],
        }
    }
}

/// How a batch is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By the specification, one frame after the other, with journeys.
    OneByOne,
    /// By the fast path.
    Batched,
}

/// What became of one frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The final verdict.
    pub verdict: Verdict,
    /// The frame, if it is emitted.
    pub frame: Option<Vec<u8>>,
    /// What was originated behind it.
    pub originated: Vec<Vec<u8>>,
}

/// A load balancer.
pub struct Machine<'m> {
    planner: Planner,
    view: View,
    mtu: u16,
    datapath: Datapath<'m>,
    slow: SlowPath<'m>,
    outbox: Outbox<'m>,
    counters: &'m Counters,
    chunks: Vec<&'m mut [u8]>,
    received: u64,
}

impl<'m> Machine<'m> {
    /// A load balancer with that plan, whose egress link has that MTU.
    pub fn new(memory: &'m mut Memory, message: proto::Plan, mtu: u16) -> Machine<'m> {
        for word in &mut memory.words {
            *word.get_mut() = 0;
        }
        memory.counters = Counters::default();
        let Memory { words, counters, packets } = memory;
        let counters: &'m Counters = counters;
        let identity = Identity { key: 0, ids_epoch: 0, worker: 0, workers: 1 };
        let words: &'m [AtomicU64] = words;
        let table = ConnectionTable::open(words, &identity).0;
        let secret = Secret::derived("fuzz");
        let mut planner = Planner::default();
        let view = view(&mut planner, message, mtu);
        Machine {
            planner,
            view,
            mtu,
            slow: SlowPath::new(&secret, vec![TableReader::new(words)], counters, Clock::default()),
            datapath: Datapath::new(&secret, table, counters, Clock::default(), 0),
            outbox: Outbox::default(),
            counters,
            chunks: packets.chunks_exact_mut(CHUNK_BYTES).collect(),
            received: 0,
        }
    }

    /// Swaps the plan.
    pub fn set(&mut self, message: proto::Plan) {
        self.view = view(&mut self.planner, message, self.mtu);
    }

    /// Forwards frames that came at the same moment; at most [`BATCH_MAX`].
    pub fn forward(&mut self, now_ms: u32, inputs: &[impl AsRef<[u8]>], how: How) -> Vec<Outcome> {
        self.datapath.begin(now_ms, &self.view);
        self.slow.begin(now_ms);
        self.received += inputs.len() as u64;
        let mut batch: Batch<'m> = inputs
            .iter()
            .map(|bytes| {
                let bytes = bytes.as_ref();
                let chunk = self.chunks.pop().expect("chunks for a batch");
                Frame::copy_of(chunk, &bytes[..bytes.len().min(FRAME_BYTES_MAX)])
                    .expect("cut to fit")
            })
            .collect();
        while !self.outbox.chunks.is_full() {
            self.outbox.chunks.push(self.chunks.pop().expect("chunks for an outbox"));
        }
        let verdicts = self.decide(&mut batch, how);
        let mut outcomes: Vec<Outcome> = batch
            .into_iter()
            .zip(verdicts)
            .map(|(frame, verdict)| self.outcome(frame, verdict))
            .collect();
        self.collect_originated(&mut outcomes);
        assert_eq!(self.chunks.len() + self.outbox.chunks.len(), CHUNKS, "a chunk was lost");
        assert_eq!(self.counters.totals().unaccounted(self.received), 0);
        outcomes
    }

    fn decide(&mut self, batch: &mut Batch<'m>, how: How) -> Verdicts {
        let mut verdicts = Verdicts::new();
        match how {
            How::OneByOne => {
                for (index, frame) in batch.iter_mut().enumerate() {
                    self.outbox.at = index;
                    let mut journey = Journey::default();
                    verdicts.push(self.datapath.forward(
                        &self.view,
                        frame,
                        &mut self.outbox,
                        &mut journey,
                    ));
                }
            }
            How::Batched => {
                self.datapath.forward_batch(&self.view, batch, &mut self.outbox, &mut verdicts)
            }
        }
        for (index, (frame, verdict)) in batch.iter_mut().zip(&mut verdicts).enumerate() {
            let Verdict::Slow(recursion_limit) = *verdict else { continue };
            self.outbox.at = index;
            *verdict = self.slow.forward(
                &self.view,
                frame,
                recursion_limit,
                &mut self.outbox,
                &mut Journey::default(),
            );
        }
        verdicts
    }

    fn outcome(&mut self, frame: Frame<'m>, verdict: Verdict) -> Outcome {
        assert!(!matches!(verdict, Verdict::Slow(_)), "a verdict of the slow path is final");
        self.counters.count(verdict);
        let bytes = match verdict {
            Verdict::Send(_) | Verdict::Redirect(_) => Some(checked(&frame, self.mtu)),
            // It goes back where a packet of its length, or a longer one, came from.
            Verdict::Reply | Verdict::ReplyBy(_) => Some(checked(&frame, u16::MAX)),
            _ => None,
        };
        self.chunks.push(frame.into_chunk());
        Outcome { verdict, frame: bytes, originated: Vec::new() }
    }

    fn collect_originated(&mut self, outcomes: &mut [Outcome]) {
        for originated in std::mem::take(&mut self.outbox.frames) {
            let bytes = checked(&originated.frame, self.mtu);
            outcomes[originated.after].originated.push(bytes);
            self.counters.count_taken(originated.counts);
            self.chunks.push(originated.frame.into_chunk());
        }
    }
}

/// What we emit is well-formed and fits the link.
fn checked(frame: &Frame<'_>, mtu: u16) -> Vec<u8> {
    let headers = headers::parse(frame.bytes()).expect("well-formed").expect("and IP");
    let packet_bytes = headers.packet_bytes;
    assert_eq!(frame.len(), 14 + usize::from(packet_bytes), "no padding goes out");
    assert!(packet_bytes <= mtu, "{packet_bytes} bytes do not fit {mtu}");
    frame.bytes().to_vec()
}

fn view(planner: &mut Planner, message: proto::Plan, mtu: u16) -> View {
    let plan = Arc::new(planner.plan(message).expect("plans() makes valid ones"));
    let hop = NextHop {
        device: DeviceIndex(0),
        source: MacAddress([2, 0, 0, 0, 0, 1]),
        destination: MacAddress([2, 0, 0, 0, 0, 0xfe]),
        mtu,
        path_mtu: None,
    };
    let egress = Egress::new(&plan, &FlowHash::new(&Secret::derived("fuzz")), |_| vec![hop]);
    View::new(plan, egress, 1)
}
