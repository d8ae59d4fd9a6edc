//! A load balancer with one worker, reused for each input, and the laws that hold for any
//! input.

use std::sync::Arc;

use datapath::{Secret, Verdict, View};
use plan::{Planner, proto};
pub use sim::Path;
use sim::view::next_hop;
use sim::{LoadBalancer, Setup};
use wire::{FRAME_BYTES_MAX, headers};

use crate::{Bytes, plans};

/// Few, so that buckets fill up.
const CONNECTIONS: u64 = 16;

fn secret() -> Secret {
    Secret::derived("fuzz")
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
pub struct Machine {
    planner: Planner,
    balancer: LoadBalancer,
    mtu: u16,
}

impl Machine {
    /// A load balancer that decides that way, before its first input. Asking the
    /// system for its memory costs more than forwarding, so it is kept.
    pub fn new(path: Path) -> Machine {
        let mut planner = Planner::default();
        let view = view(&mut planner, plans::plan(&mut Bytes(&[]), 1), 0);
        let setup =
            Setup { workers: 0..1, devices: 1, connections: CONNECTIONS, secret: secret(), path };
        let balancer = LoadBalancer::new(view, setup).expect("memory for a small machine");
        Machine { planner, balancer, mtu: 0 }
    }

    /// Starts anew with that plan; its egress link has that MTU.
    pub fn restart(&mut self, message: proto::Plan, mtu: u16) {
        self.mtu = mtu;
        self.planner = Planner::default();
        self.balancer.restart(view(&mut self.planner, message, mtu));
    }

    /// Swaps the plan.
    pub fn set(&mut self, message: proto::Plan) {
        self.balancer.view = view(&mut self.planner, message, self.mtu);
    }

    /// Forwards frames that came at the same moment, in one batch.
    pub fn forward(&mut self, now_ms: u64, inputs: &[impl AsRef<[u8]>]) -> Vec<Outcome> {
        self.balancer.set_time(now_ms);
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(FRAME_BYTES_MAX)].to_vec();
        let frames: Vec<Vec<u8>> = inputs.iter().map(|bytes| cut(bytes.as_ref())).collect();
        let outcomes = self.balancer.forward(0, 0, &frames);
        outcomes.into_iter().map(|outcome| self.checked(outcome)).collect()
    }

    fn checked(&self, outcome: sim::Outcome) -> Outcome {
        let sim::Outcome { verdict, frame, originated, .. } = outcome;
        let frame = match verdict {
            Verdict::Send(_) | Verdict::Redirect(_) => Some(checked(frame, self.mtu)),
            // It goes back where a packet of its length, or a longer one, came from.
            Verdict::Reply | Verdict::ReplyBy(_) => Some(checked(frame, u16::MAX)),
            Verdict::Slow(_) => panic!("a verdict of the slow path is final"),
            Verdict::Pass | Verdict::Hold | Verdict::Drop(_) => None,
        };
        let originated = originated.into_iter().map(|made| checked(made.bytes, self.mtu)).collect();
        Outcome { verdict, frame, originated }
    }
}

/// What we emit is well-formed and fits the link.
fn checked(frame: Vec<u8>, mtu: u16) -> Vec<u8> {
    let headers = headers::parse(&frame).expect("well-formed").expect("and IP");
    let packet_bytes = headers.packet_bytes;
    assert_eq!(frame.len(), 14 + usize::from(packet_bytes), "no padding goes out");
    assert!(packet_bytes <= mtu, "{packet_bytes} bytes do not fit {mtu}");
    frame
}

fn view(planner: &mut Planner, message: proto::Plan, mtu: u16) -> Arc<View> {
    let plan = Arc::new(planner.plan(message).expect("plans() makes valid ones"));
    Arc::new(sim::view::view(plan, &secret(), 1, |_| vec![next_hop(mtu)]))
}
