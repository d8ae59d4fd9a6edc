//! The same journey for a batch: the stages of [`crate::forward`], each done
//! for all packets before the next, so that cache misses overlap.
//!
//! ```text
//!  read all ─► hash all ─► choose all ─► send all
//!              AES, many   track,        encapsulate,
//!              at once     select        count
//!   └ asks for   └ asks for   └ asks for tunnels
//!     headers      buckets      and counters
//! ```
//!
//! Plain packets (see [`wire::plain`]) are read and matched in one go, all
//! others by the functions of the specification. Nothing else differs. Inside
//! a stage packets go in their order, so that a packet finds in the
//! connection table what an earlier one of its batch left there; and what one
//! stage changes, no other looks at: reading changes its own frame only,
//! choosing the connection table, sending frames, limits and the outbox. Held
//! by `tests/batch.rs`.
//!
//! Stages are functions of their own in the binary too, so that profilers
//! tell them apart.

use arrayvec::ArrayVec;
use plan::{Matched, Service, Target};
use wire::plain::{self, Plain};
use wire::{BATCH_MAX, Batch, Facts, Frame};

use crate::decapsulate::Budget;
use crate::drop_reason::DropReason;
use crate::egress::Tunnel;
use crate::flow_hash::Flows;
use crate::forward::{
    Arrived, Datapath, Destination, Remember, destination, match_service, receive,
};
use crate::outbox::Outbox;
use crate::prefetch::prefetch;
use crate::recorder::NoRecorder;
use crate::send::{headers_of, send};
use crate::trace::{self, Mark};
use crate::track::track;
use crate::verdict::Verdict;
use crate::view::{MemberTraffic, Traffic, View};

/// The verdicts of a batch's frames, in their order.
pub type Verdicts = ArrayVec<Verdict, BATCH_MAX>;

/// A packet whose journey goes on.
struct Traveller<'v> {
    /// Which frame of the batch.
    at: usize,
    facts: Facts,
    budget: Budget,
    /// None: for the machine in charge of its datagram.
    wanted: Option<Wanted<'v>>,
    /// The flow hash.
    hash: u64,
    /// None: no backend takes it.
    chosen: Option<Chosen<'v>>,
}

/// The service that wants a packet, and where its match is counted.
#[derive(Clone, Copy)]
struct Wanted<'v> {
    service: &'v Service,
    traffic: &'v Traffic,
}

/// The backend that takes a packet, and where that is counted.
#[derive(Clone, Copy)]
struct Chosen<'v> {
    tunnel: &'v Tunnel,
    traffic: &'v MemberTraffic,
}

/// A packet that somebody traces: it goes its way alone, behind the others.
struct Marked {
    at: usize,
    arrived: Arrived,
    mark: Mark,
}

/// The packets of a batch whose journey goes on, and what they are hashed by.
#[derive(Default)]
struct Travellers<'v> {
    all: ArrayVec<Traveller<'v>, BATCH_MAX>,
    /// In the same order.
    flows: Flows,
    marked: ArrayVec<Marked, BATCH_MAX>,
}

/// Given to those that travel on: the last stage replaces it.
const NOT_YET: Verdict = Verdict::Pass;

impl<'m> Datapath<'m> {
    /// Decides what becomes of each frame, and makes it ready for that.
    pub fn forward_batch(
        &self,
        view: &View,
        batch: &mut Batch<'_>,
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        let mut travellers = Travellers::default();
        self.read_all(view, batch, &mut travellers, verdicts);
        self.hash_all(&mut travellers);
        self.choose_all(view, batch, &mut travellers.all);
        self.send_all(view, batch, &travellers.all, outbox, verdicts);
        for Marked { at, arrived, mark } in &travellers.marked {
            outbox.at = *at;
            verdicts[*at] = self.traced(view, &mut batch[*at], arrived, mark, outbox);
        }
    }

    /// Reads the headers of all, and finds the service that wants each.
    #[inline(never)]
    fn read_all<'v>(
        &self,
        view: &'v View,
        batch: &mut Batch<'_>,
        travellers: &mut Travellers<'v>,
        verdicts: &mut Verdicts,
    ) {
        batch.iter().filter_map(|frame| frame.bytes().first()).for_each(prefetch);
        verdicts.clear();
        for (at, frame) in batch.iter_mut().enumerate() {
            if let Some(there) = frame.byte_in_front() {
                prefetch(there);
            }
            let read = if let Some(plain) = plain::read_v4(frame.bytes())
                && is_unmarked(plain.facts)
            {
                self.begin_plain(view, at, &plain, travellers)
            } else if let Some(plain) = plain::read_v6(frame.bytes())
                && is_unmarked(plain.facts)
            {
                self.begin_plain(view, at, &plain, travellers)
            } else {
                self.begin_other(view, at, frame, travellers)
            };
            verdicts.push(read.unwrap_or_else(Verdict::Drop));
        }
    }

    #[inline(always)]
    fn begin_plain<'v, const BLOCKS: usize>(
        &self,
        view: &'v View,
        at: usize,
        plain: &Plain<BLOCKS>,
        travellers: &mut Travellers<'v>,
    ) -> Result<Verdict, DropReason> {
        let target = Target {
            family: plain.facts.family,
            address: plain.destination,
            protocol: plain.facts.protocol,
            port: plain.destination_port,
        };
        let Destination::Service(matched) = destination(view.plan.vips.find_at(target))? else {
            return Ok(Verdict::Pass);
        };
        travellers.flows.push(&plain.blocks);
        let wanted = Some(self.wanted(view, matched));
        let (facts, budget) = (plain.facts, Budget::FRESH);
        travellers.all.push(Traveller { at, facts, budget, wanted, hash: 0, chosen: None });
        Ok(NOT_YET)
    }

    /// As the specification begins.
    #[inline(never)]
    fn begin_other<'v>(
        &self,
        view: &'v View,
        at: usize,
        frame: &mut Frame<'_>,
        travellers: &mut Travellers<'v>,
    ) -> Result<Verdict, DropReason> {
        let Some(arrived) = receive(view, frame)? else { return Ok(Verdict::Pass) };
        if let Some(mark) = self.recognise(view, frame, &arrived.headers) {
            travellers.marked.push(Marked { at, arrived, mark });
            return Ok(NOT_YET);
        }
        let Arrived { headers, budget, tunnelled } = arrived;
        let wanted = match match_service(view, &headers)? {
            Destination::Service(matched) => Some(self.wanted(view, matched)),
            Destination::Owner => None,
            Destination::Kernel if tunnelled => return Err(DropReason::NoService),
            Destination::Kernel => return Ok(Verdict::Pass),
            Destination::SlowPath => return Ok(Verdict::Slow(budget)),
        };
        travellers.flows.push_key(&headers.key);
        let facts = headers.facts();
        travellers.all.push(Traveller { at, facts, budget, wanted, hash: 0, chosen: None });
        Ok(NOT_YET)
    }

    #[inline(always)]
    fn wanted<'v>(&self, view: &'v View, matched: Matched) -> Wanted<'v> {
        let service =
            view.plan.service(matched.service).expect("a match names a service of its plan");
        Wanted { service, traffic: &self.counters_of(view).matches[matched.matched as usize] }
    }

    /// The flow hashes of all; asks for their buckets.
    #[inline(never)]
    fn hash_all(&self, travellers: &mut Travellers<'_>) {
        self.hash.flows(&mut travellers.flows);
        for (traveller, hash) in travellers.all.iter_mut().zip(travellers.flows.hashes()) {
            traveller.hash = hash;
            prefetch(self.table.bucket(hash));
        }
    }

    /// The backends of all: tracked, or else selected.
    #[inline(never)]
    fn choose_all<'v>(&self, view: &'v View, batch: &Batch<'_>, travellers: &mut [Traveller<'v>]) {
        let counters = self.counters_of(view);
        let (mut hits, mut misses) = (0, 0);
        for traveller in travellers {
            let Some(Wanted { service, .. }) = traveller.wanted else { continue };
            let (facts, hash) = (traveller.facts, traveller.hash);
            let kept = track(&self.table, service, facts, hash, &self.ticks, &view.lifetimes);
            let chosen = match kept {
                Some(kept) => {
                    hits += 1;
                    Some((kept.member, kept.backend))
                }
                None => {
                    misses += 1;
                    let frame = &batch[traveller.at];
                    let selector = self.selector(service, hash, || headers_of(frame, facts).key);
                    let remember = Remember::of(frame);
                    self.select(view, service, (hash, selector), remember, &mut NoRecorder)
                }
            };
            traveller.chosen = chosen.and_then(|(member, backend)| {
                let tunnel = view.egress.tunnel(service.id, facts.family, backend)?;
                let traffic = counters.member(service, member);
                prefetch(tunnel);
                prefetch(traffic);
                Some(Chosen { tunnel, traffic })
            });
        }
        self.counters.connections.hits.add(hits);
        self.counters.connections.misses.add(misses);
    }

    #[inline(never)]
    fn send_all(
        &self,
        view: &View,
        batch: &mut Batch<'_>,
        travellers: &[Traveller<'_>],
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        for traveller in travellers {
            let at = traveller.at;
            outbox.at = at;
            let sent = self.send_one(view, &mut batch[at], traveller, outbox);
            verdicts[at] = sent.unwrap_or_else(Verdict::Drop);
        }
    }

    #[inline(always)]
    fn send_one(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        traveller: &Traveller<'_>,
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let Traveller { facts, hash, budget, .. } = *traveller;
        let Some(wanted) = traveller.wanted else {
            let headers = headers_of(frame, facts);
            return self.to_owner(view, frame, &headers, budget, outbox);
        };
        let Some(chosen) = traveller.chosen else {
            let headers = headers_of(frame, facts);
            return self.spill(view, frame, wanted.service, &headers, (hash, budget), outbox);
        };
        let way = view.egress.way(chosen.tunnel, hash).ok_or(DropReason::NoNeighbour)?;
        let verdict = send(frame, facts, hash, way, || self.answering(view), outbox)?;
        wanted.traffic.count(facts.packet_bytes);
        chosen.traffic.traffic.count(facts.packet_bytes);
        Ok(verdict)
    }
}

/// False for a packet that may have a mark of the tracer.
#[inline(always)]
fn is_unmarked(facts: Facts) -> bool {
    facts.packet_bytes != trace::PACKET_BYTES
}
