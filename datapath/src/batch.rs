//! The same journey for a batch: the stages of [`crate::forward`], each done
//! for all packets before the next, so that cache misses overlap.
//!
//! ```text
//!  read all ─► hash all ─► match all ─► choose all ─► send all
//!  headers     AES, many                track,        encapsulate,
//!              at once                  select        count
//!   └ asks for              └ asks for   └ asks for
//!     VIPs                    services,    tunnels and counters
//!                             buckets
//! ```
//!
//! Hashing comes before matching, other than in the specification, so that
//! buckets have the time of a whole stage to come from memory. Plain packets
//! (see [`wire::plain`]) are read in one go, all others by the functions of
//! the specification. Nothing else differs. Inside a stage packets go in their
//! order, so that a packet finds in the connection table what an earlier one
//! of its batch left there; and what one stage changes, no other looks at:
//! reading changes its own frame only, choosing the connection table, sending
//! frames, limits and the outbox. Held by `tests/batch.rs`.
//!
//! Stages are functions of their own in the binary too, so that profilers
//! tell them apart.

use arrayvec::ArrayVec;
use plan::{Found, Matched, Service, Whereabouts};
use wire::plain::{self, Plain};
use wire::{BATCH_MAX, Batch, Facts, Frame};

use crate::decapsulate::Budget;
use crate::drop_reason::DropReason;
use crate::egress::Tunnel;
use crate::flow_hash::Flows;
use crate::forward::{
    Arrived, Datapath, Destination, Remember, Untracked, destination, match_service, receive,
};
use crate::outbox::Outbox;
use crate::prefetch::prefetch;
use crate::recorder::NoRecorder;
use crate::send::{headers_of, send};
use crate::trace::{self, Mark};
use crate::track::{Kept, track};
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
    /// The flow hash.
    hash: u64,
    to: To<'v>,
    /// None: no backend takes it.
    chosen: Option<Chosen<'v>>,
}

/// Who is to deal with a packet.
#[derive(Clone, Copy)]
enum To<'v> {
    /// Its address and port will tell.
    Unmatched(Whereabouts),
    /// A service; and where its match is counted.
    Service(&'v Service, &'v Traffic),
    /// The machine in charge of its datagram.
    Owner,
    /// Nobody: it has its verdict.
    Nobody,
}

/// The backend that takes a packet, and where that is counted.
#[derive(Clone, Copy)]
struct Chosen<'v> {
    tunnel: &'v Tunnel,
    traffic: &'v MemberTraffic,
}

/// A packet that somebody traces: it goes its way alone, behind those before it
/// and in front of those after it, because it looks at the connection table.
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

impl Travellers<'_> {
    #[inline(always)]
    fn push<const BLOCKS: usize>(&mut self, view: &View, at: usize, plain: &Plain<BLOCKS>) {
        let whereabouts = Whereabouts::of(&plain.target);
        prefetch(view.plan.vips.first_look(&whereabouts));
        self.flows.push(&plain.blocks);
        let (facts, budget, to) = (plain.facts, Budget::FRESH, To::Unmatched(whereabouts));
        self.all.push(Traveller { at, facts, budget, hash: 0, to, chosen: None });
    }
}

/// How far ahead frames are asked for.
const FRAMES_AHEAD: usize = 8;

/// Given to those that travel on: a later stage replaces it.
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
        self.hash.flows(&mut travellers.flows);
        self.match_all(view, &mut travellers, verdicts);
        let mut rest = travellers.all.as_mut_slice();
        for marked in &travellers.marked {
            let before = rest.partition_point(|traveller| traveller.at < marked.at);
            let (run, after) = rest.split_at_mut(before);
            self.choose_all(view, batch, run);
            self.send_all(view, batch, run, outbox, verdicts);
            self.send_marked(view, batch, marked, outbox, verdicts);
            rest = after;
        }
        self.choose_all(view, batch, rest);
        self.send_all(view, batch, rest, outbox, verdicts);
    }

    /// Reads the headers of all; asks for what is known of their targets.
    #[inline(never)]
    fn read_all<'v>(
        &self,
        view: &'v View,
        batch: &mut Batch<'_>,
        travellers: &mut Travellers<'v>,
        verdicts: &mut Verdicts,
    ) {
        verdicts.clear();
        verdicts.extend(batch.iter().map(|_| NOT_YET));
        for at in 0..batch.len() {
            if let Some(ahead) = batch.get(at + FRAMES_AHEAD) {
                ahead.bytes_at_front().for_each(prefetch);
            }
            let frame = &mut batch[at];
            if let Some(plain) = plain::read_v4(frame.bytes())
                && is_unmarked(plain.facts)
            {
                travellers.push(view, at, &plain);
            } else if let Some(plain) = plain::read_v6(frame.bytes())
                && is_unmarked(plain.facts)
            {
                travellers.push(view, at, &plain);
            } else {
                let read = self.read_other(view, at, frame, travellers);
                verdicts[at] = read.unwrap_or_else(Verdict::Drop);
            }
        }
    }

    /// As the specification begins.
    #[inline(never)]
    fn read_other<'v>(
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
        let to = match match_service(view, &headers)? {
            Destination::Service(matched) => self.service(view, matched),
            Destination::Owner => To::Owner,
            Destination::Kernel if tunnelled => return Err(DropReason::NoService),
            Destination::Kernel => return Ok(Verdict::Pass),
            Destination::SlowPath => return Ok(Verdict::Slow(budget)),
        };
        travellers.flows.push_key(&headers.key);
        let facts = headers.facts();
        travellers.all.push(Traveller { at, facts, budget, hash: 0, to, chosen: None });
        Ok(NOT_YET)
    }

    /// The services of all, and their flow hashes; asks for both their memory.
    /// A processor forgets what it is asked for all at once: work between the
    /// questions is what makes them answered.
    #[inline(never)]
    fn match_all<'v>(
        &self,
        view: &'v View,
        Travellers { all, flows, .. }: &mut Travellers<'v>,
        verdicts: &mut Verdicts,
    ) {
        for (traveller, hash) in all.iter_mut().zip(flows.hashes()) {
            traveller.hash = hash;
            prefetch(self.table.bucket(hash));
            if let To::Unmatched(whereabouts) = &traveller.to {
                traveller.to = match destination(self.find(view, whereabouts)) {
                    Ok(Destination::Service(matched)) => self.service(view, matched),
                    Ok(_) => To::Nobody,
                    Err(reason) => {
                        verdicts[traveller.at] = Verdict::Drop(reason);
                        To::Nobody
                    }
                };
            }
            if self.selects.get()
                && let To::Service(service, _) = traveller.to
                && let Some(entry) = service.group.first_look(hash)
            {
                prefetch(entry);
            }
        }
    }

    /// The service of a match; asks for the match's counters.
    #[inline(always)]
    fn service<'v>(&self, view: &'v View, Matched { service, matched }: Matched) -> To<'v> {
        let service = view.plan.service(service).expect("a match names a service of its plan");
        let traffic = &self.counters_of(view).matches[matched as usize];
        prefetch(traffic);
        To::Service(service, traffic)
    }

    #[inline(always)]
    fn find(&self, view: &View, whereabouts: &Whereabouts) -> Found {
        match view.plan.vips.find_socket(whereabouts) {
            Some(matched) => Found::Service(matched),
            None => self.resolved.find(&view.plan, whereabouts),
        }
    }

    /// The backends of all: tracked, or else selected.
    #[inline(never)]
    fn choose_all<'v>(&self, view: &'v View, batch: &Batch<'_>, travellers: &mut [Traveller<'v>]) {
        let counters = self.counters_of(view);
        let (mut hits, mut misses) = (0, 0);
        for traveller in travellers {
            let To::Service(service, _) = traveller.to else { continue };
            let (facts, hash) = (traveller.facts, traveller.hash);
            let kept = track(&self.table, service, facts, hash, &self.ticks, &view.lifetimes);
            let kept = match kept {
                Ok(kept) => {
                    hits += 1;
                    Some(kept)
                }
                Err(stale) => {
                    misses += 1;
                    let frame = &batch[traveller.at];
                    let key = || headers_of(frame, facts).key;
                    let selector = self.hash.selector(service.affinity, hash, key);
                    let flow = Untracked { hash, selector, stale };
                    self.select(view, service, flow, Remember::of(frame), &mut NoRecorder)
                }
            };
            traveller.chosen = kept.and_then(|Kept { member, backend }| {
                let tunnel = view.egress.tunnel(service.id, facts.family, backend)?;
                let traffic = counters.member(service, member);
                prefetch(tunnel);
                prefetch(traffic);
                Some(Chosen { tunnel, traffic })
            });
        }
        // Batches are alike: where one asks Maglev tables often, the next will.
        self.selects.set(misses > hits / 8);
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
            let frame = &mut batch[at];
            let sent = if let To::Service(service, traffic) = traveller.to {
                self.send_one(view, frame, traveller, (service, traffic), outbox)
            } else if let To::Owner = traveller.to {
                let headers = headers_of(frame, traveller.facts);
                self.to_owner(view, frame, &headers, traveller.budget, outbox)
            } else {
                continue;
            };
            verdicts[at] = sent.unwrap_or_else(Verdict::Drop);
        }
    }

    #[cold]
    fn send_marked(
        &self,
        view: &View,
        batch: &mut Batch<'_>,
        Marked { at, arrived, mark }: &Marked,
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        outbox.at = *at;
        verdicts[*at] = self.traced(view, &mut batch[*at], arrived, mark, outbox);
    }

    #[inline(always)]
    fn send_one(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        traveller: &Traveller<'_>,
        (service, traffic): (&Service, &Traffic),
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let Traveller { facts, hash, budget, .. } = *traveller;
        let Some(chosen) = traveller.chosen else {
            let headers = headers_of(frame, facts);
            return self.spill(view, frame, service, &headers, (hash, budget), outbox);
        };
        let way = view.egress.way(chosen.tunnel, hash).ok_or(DropReason::NoNeighbour)?;
        let verdict = send(frame, facts, hash, way, || self.answering(view), outbox)?;
        traffic.count(facts.packet_bytes);
        chosen.traffic.traffic.count(facts.packet_bytes);
        Ok(verdict)
    }
}

/// False for a packet that may have a mark of the tracer.
#[inline(always)]
fn is_unmarked(facts: Facts) -> bool {
    facts.packet_bytes != trace::PACKET_BYTES
}
