//! The same journey for a batch: the stages of [`crate::forward`], each done
//! for all packets before the next, so that cache misses overlap.
//!
//! ```text
//!  read all ─► hash all ─► match all ─► choose all ─► send all
//!  headers     AES, many                track,        encapsulate,
//!              at once                  select        count
//!   └ asks for              └─ ask for ──┤
//!     VIPs                     buckets   └ asks for
//!                                          tunnels and counters
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

use std::ops::Range;

use arrayvec::ArrayVec;
use plan::{LookupKey, LookupV4, Matched};
use wire::{BATCH_MAX, Batch, Facts, Family, Frame, Protocol, SocketV4, plain, tcp};

use crate::decide::{ChosenMember, Why, steady_member};
use crate::drop_reason::DropReason;
use crate::egress::Tunnel;
use crate::encapsulate::encapsulate;
use crate::flow_hash::Flows;
use crate::forward::{Datapath, Destination, Flow, Remember, destination, match_service, receive};
use crate::outbox::Outbox;
use crate::packet::{Arrived, Packet};
use crate::prefetch::{prefetch, prefetch_at};
use crate::recorder::NoRecorder;
use crate::recursion_limit::RecursionLimit;
use crate::send::{headers_of, send};
use crate::table::{Home, is_tcp, steady_backend};
use crate::trace::{self, Mark};
use crate::verdict::Verdict;
use crate::view::{Traffic, View};

/// The verdicts of a batch's frames, in their order.
pub type Verdicts = ArrayVec<Verdict, BATCH_MAX>;

/// A frame whose packet's journey goes on.
#[derive(Clone, Copy)]
struct Traveller<'v> {
    to: To<'v>,
    /// The flow hash.
    hash: u64,
    facts: Facts,
    recursion_limit: RecursionLimit,
}

/// Who is to deal with a packet.
#[derive(Clone, Copy)]
enum To<'v> {
    /// Nobody: it has its verdict.
    Nobody,
    /// Whoever has this address and port.
    SocketV4(SocketV4, LookupV4<'v>),
    /// The same; they wait in a list.
    SocketV6,
    /// The service of this match.
    Matched(&'v Matched),
    /// The same; and where its connection is, most likely.
    Service(&'v Matched, &'v Home),
    /// A backend: where its member is counted, and the match if apart.
    Backend(&'v Tunnel, &'v Traffic, Option<&'v Traffic>),
    /// The machine in charge of its datagram.
    Owner,
}

/// A packet that somebody traces: it goes its way alone, behind those before it
/// and in front of those after it, because it looks at the connection table.
struct Marked {
    at: usize,
    arrived: Arrived,
    mark: Mark,
}

/// A batch's travellers, each at its frame's index, and what they are hashed
/// by.
struct Travellers<'v> {
    all: [Traveller<'v>; BATCH_MAX],
    flows: Flows,
    /// Where those to a [`To::SocketV6`] are to, in their order.
    targets_v6: ArrayVec<LookupKey, BATCH_MAX>,
    marked: ArrayVec<Marked, BATCH_MAX>,
}

impl Travellers<'_> {
    #[inline(always)]
    fn none() -> Travellers<'static> {
        Travellers {
            all: [Traveller::NOBODY; BATCH_MAX],
            flows: Flows::default(),
            targets_v6: ArrayVec::new(),
            marked: ArrayVec::new(),
        }
    }
}

impl<'v> Traveller<'v> {
    /// Zeros throughout, so that a batch of them is quickly made.
    const NOBODY: Traveller<'static> = Traveller {
        to: To::Nobody,
        hash: 0,
        facts: Facts {
            family: Family::V4,
            protocol: Protocol(0),
            tcp_flags: tcp::Flags(0),
            traffic_class: 0,
            packet_bytes: 0,
        },
        recursion_limit: RecursionLimit(0),
    };

    #[inline(always)]
    fn begin(&mut self, facts: Facts, recursion_limit: RecursionLimit, to: To<'v>) {
        (self.facts, self.recursion_limit, self.to) = (facts, recursion_limit, to);
    }
}

/// How far ahead frames are asked for.
const FRAMES_AHEAD: usize = 8;
/// How far ahead connections are asked for. A processor forgets what it is
/// asked for all at once: work between the questions is what makes them
/// answered. So matching asks for the first ones only, and choosing for the
/// others, one with each that it looks at.
const HOMES_AHEAD: usize = 24;

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
        self.match_cache.follow(&view.plan);
        let frames = batch.as_mut_slice();
        let mut travellers = Travellers::none();
        self.read_all(view, frames, &mut travellers, verdicts);
        self.hash.flows(&mut travellers.flows, frames.len());
        self.match_all(view, &mut travellers, verdicts);
        let mut begin = 0;
        for marked in &travellers.marked {
            let run = begin..marked.at;
            self.finish(view, run, frames, &mut travellers.all, outbox, verdicts);
            self.send_marked(view, frames, marked, outbox, verdicts);
            begin = marked.at + 1;
        }
        let run = begin..frames.len();
        self.finish(view, run, frames, &mut travellers.all, outbox, verdicts);
    }

    /// The last stages, of a part of the batch.
    #[inline]
    fn finish<'v>(
        &'v self,
        view: &'v View,
        run: Range<usize>,
        frames: &mut [Frame<'_>],
        travellers: &mut [Traveller<'v>; BATCH_MAX],
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        let begin = run.start;
        let (frames, travellers) = (&mut frames[run.clone()], &mut travellers[run.clone()]);
        self.choose_all(view, frames, travellers);
        self.send_all(view, (begin, frames), travellers, outbox, &mut verdicts[run]);
    }

    /// Reads the headers of all; asks for what is known of their targets.
    #[inline(never)]
    fn read_all<'v>(
        &self,
        view: &'v View,
        frames: &mut [Frame<'_>],
        travellers: &mut Travellers<'v>,
        verdicts: &mut Verdicts,
    ) {
        *verdicts = Verdicts::from([NOT_YET; BATCH_MAX]);
        verdicts.truncate(frames.len());
        let (vips, uses_match_cache) = (&view.plan.vips, self.uses_match_cache.get());
        for at in 0..frames.len().min(BATCH_MAX) {
            if let Some(ahead) = frames.get(at + FRAMES_AHEAD) {
                // Where the outer header will end, and where it will begin.
                prefetch_at((ahead.chunk(), ahead.start()));
                prefetch_at((ahead.chunk(), ahead.start().wrapping_sub(1)));
            }
            let frame = &mut frames[at];
            if let Some(plain) = plain::read_v4(frame.bytes())
                && is_unmarked(plain.facts)
            {
                travellers.flows.set(at, &plain.blocks());
                let socket = plain.target();
                let lookup = vips.lookup_v4(socket);
                prefetch(lookup.bucket());
                if uses_match_cache {
                    prefetch_at(self.match_cache.prefetch_v4(socket));
                }
                travellers.all[at].begin(
                    plain.facts,
                    RecursionLimit::FRESH,
                    To::SocketV4(socket, lookup),
                );
            } else if let Some(plain) = plain::read_v6(frame.bytes())
                && is_unmarked(plain.facts)
            {
                travellers.flows.set(at, &plain.blocks());
                let target = LookupKey::of(&plain.target());
                prefetch_at(vips.prefetch_v6(&target));
                if uses_match_cache {
                    prefetch_at(self.match_cache.prefetch_v6(&target));
                }
                travellers.targets_v6.push(target);
                travellers.all[at].begin(plain.facts, RecursionLimit::FRESH, To::SocketV6);
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
        let Arrived { headers, recursion_limit, tunnelled } = arrived;
        let to = match match_service(view, &headers)? {
            Destination::Service(matched) => To::Matched(of_plan(view, &matched)),
            Destination::Owner => To::Owner,
            Destination::Kernel if tunnelled => return Err(DropReason::NoService),
            Destination::Kernel => return Ok(Verdict::Pass),
            Destination::SlowPath => return Ok(Verdict::Slow(recursion_limit)),
        };
        travellers.flows.set_key(at, &headers.key);
        travellers.all[at].begin(headers.facts(), recursion_limit, to);
        Ok(NOT_YET)
    }

    /// The services of all, and their flow hashes; asks for the first
    /// connections.
    #[inline(never)]
    fn match_all<'v>(
        &'v self,
        view: &'v View,
        Travellers { all, flows, targets_v6, .. }: &mut Travellers<'v>,
        verdicts: &mut Verdicts,
    ) {
        let (vips, selects) = (&view.plan.vips, self.selects.get());
        let (mut targets_v6, mut target_v6) = (targets_v6.iter(), None);
        let mut rest = 0;
        for (at, ((traveller, hash), verdict)) in
            all.iter_mut().zip(flows.hashes()).zip(verdicts).enumerate()
        {
            let home = self.table.home(hash);
            if at < HOMES_AHEAD {
                prefetch(home);
            }
            traveller.hash = hash;
            let found = match traveller.to {
                To::SocketV4(_, lookup) => lookup.matched(),
                To::SocketV6 => {
                    target_v6 = targets_v6.next();
                    target_v6.and_then(|target| vips.lookup_v6(target))
                }
                To::Matched(matched) => {
                    traveller.to = To::Service(matched, home);
                    continue;
                }
                _ => continue,
            };
            let Some(matched) = found else {
                rest += 1;
                traveller.to = self.match_rest(view, traveller.to, target_v6, home, verdict);
                continue;
            };
            if selects && let Some(entry) = view.plan.group_of(matched).first_look(hash) {
                prefetch_at(entry);
            }
            traveller.to = To::Service(matched, home);
        }
        // Batches are alike.
        self.uses_match_cache.set(rest > 0);
    }

    /// Matches what no port of its own is for, or says its verdict.
    #[inline(never)]
    fn match_rest<'v>(
        &self,
        view: &'v View,
        to: To<'v>,
        target_v6: Option<&LookupKey>,
        home: &'v Home,
        verdict: &mut Verdict,
    ) -> To<'v> {
        let found = match (to, target_v6) {
            (To::SocketV4(socket, _), _) => self.match_cache.find_v4(&view.plan, socket),
            (To::SocketV6, Some(target)) => self.match_cache.find_v6(&view.plan, target),
            _ => unreachable!("all others are matched"),
        };
        match destination(found) {
            Ok(Destination::Service(matched)) => return To::Service(of_plan(view, &matched), home),
            Ok(_) => {}
            Err(reason) => *verdict = Verdict::Drop(reason),
        }
        To::Nobody
    }

    /// The backends of all: tracked, or else selected. Asks for the further
    /// connections.
    #[inline(never)]
    fn choose_all<'v>(
        &'v self,
        view: &'v View,
        frames: &[Frame<'_>],
        travellers: &mut [Traveller<'v>],
    ) {
        let (counters, connections) = (self.counters_of(view), &self.counters.connections);
        let (mut packets, misses) = (0, connections.misses.get());
        for (at, frame) in frames.iter().enumerate() {
            if let Some(Traveller { to: To::Service(_, home), .. }) =
                travellers.get(at + HOMES_AHEAD)
            {
                prefetch(*home);
            }
            let traveller = &mut travellers[at];
            let To::Service(matched, home) = traveller.to else { continue };
            packets += 1;
            let (facts, hash, service) = (&traveller.facts, traveller.hash, matched.service);
            let steady = steady_member(view.plan.group_of(matched), facts, || {
                steady_backend(home, hash, service, &self.ticks, is_tcp(facts.protocol))
            });
            let ChosenMember { member, backend } = match steady {
                Some(chosen) => chosen,
                None => match self.choose_other(view, matched, frame, (facts, hash)) {
                    Some(chosen) => chosen,
                    None => continue,
                },
            };
            let Some(tunnel) = view.egress.tunnel(matched.style, facts.family, backend) else {
                continue;
            };
            prefetch(tunnel);
            let traffic = counters.member(matched, member);
            prefetch(traffic);
            traveller.to = To::Backend(tunnel, traffic, counters.of_match(matched));
        }
        let misses = connections.misses.get() - misses;
        connections.hits.add(packets - misses);
        // Batches are alike: where one asks Maglev tables often, the next will.
        if packets > 0 {
            self.selects.set(misses > packets / 8);
        }
    }

    /// The backend of a packet whose connection is not as most are, or new;
    /// None: no backend takes it.
    #[inline(never)]
    fn choose_other(
        &self,
        view: &View,
        matched: &Matched,
        frame: &Frame<'_>,
        (facts, hash): (&Facts, u64),
    ) -> Option<ChosenMember> {
        let found = self.table.find(hash, matched.service);
        let steady = steady_member(view.plan.group_of(matched), facts, || {
            found?.steady_backend(&self.ticks, is_tcp(facts.protocol))
        });
        if steady.is_some() {
            return steady;
        }
        let flow = Flow { hash, found, remember: Remember::of(frame) };
        let key = || headers_of(frame, *facts).key;
        let decision = self.decide(view, matched, facts, flow, key, &mut NoRecorder);
        if decision.why != Why::Tracked {
            self.counters.connections.misses.add(1);
        }
        decision.chosen
    }

    #[inline(never)]
    fn send_all(
        &self,
        view: &View,
        (begin, frames): (usize, &mut [Frame<'_>]),
        travellers: &[Traveller<'_>],
        outbox: &mut Outbox<'m>,
        verdicts: &mut [Verdict],
    ) {
        for (at, ((frame, traveller), verdict)) in
            frames.iter_mut().zip(travellers).zip(verdicts).enumerate()
        {
            let hash = traveller.hash;
            if let To::Backend(tunnel, member, matched) = traveller.to
                && let Some(outer) = view.egress.way(tunnel, hash)
                && encapsulate(frame, &traveller.facts, hash, outer).is_ok()
            {
                count(member, matched, &traveller.facts);
                *verdict = Verdict::Send(outer.device);
            } else {
                outbox.at = begin + at;
                if let Some(sent) = self.send_other(view, frame, traveller, outbox) {
                    *verdict = sent.unwrap_or_else(Verdict::Drop);
                }
            }
        }
    }

    /// Whatever is not simply sent. None: it has its verdict.
    #[cold]
    #[inline(never)]
    fn send_other(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        Traveller { facts, hash, recursion_limit, to }: &Traveller<'_>,
        outbox: &mut Outbox<'m>,
    ) -> Option<Result<Verdict, DropReason>> {
        let headers = |frame: &_| headers_of(frame, *facts);
        Some(match to {
            To::Backend(tunnel, member, matched) => {
                let Some(outer) = view.egress.way(tunnel, *hash) else {
                    return Some(Err(DropReason::NoNeighbour));
                };
                let answering = |headers: &_| self.answering_about(view, *hash, headers);
                let sent = send(frame, facts, *hash, outer, answering, outbox);
                if sent.is_ok() {
                    count(member, *matched, facts);
                }
                sent
            }
            To::Service(matched, _) => {
                let (headers, hash, recursion_limit) = (&headers(frame), *hash, *recursion_limit);
                let packet = Packet { headers, hash, recursion_limit };
                self.spill(view, frame, matched, &packet, outbox)
            }
            To::Owner => {
                let (headers, recursion_limit) = (headers(frame), *recursion_limit);
                let arrived = Arrived { headers, recursion_limit, tunnelled: frame.is_tunnelled() };
                self.to_owner(view, frame, &arrived, outbox)
            }
            _ => return None,
        })
    }

    #[cold]
    fn send_marked(
        &self,
        view: &View,
        frames: &mut [Frame<'_>],
        Marked { at, arrived, mark }: &Marked,
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        outbox.at = *at;
        verdicts[*at] = self.traced(view, &mut frames[*at], arrived, mark, outbox);
    }
}

/// As [`crate::view::WorkerCounters::count`] does, by places found before.
#[inline(always)]
fn count(member: &Traffic, matched: Option<&Traffic>, facts: &Facts) {
    member.count(facts.packet_bytes);
    if let Some(matched) = matched {
        matched.count(facts.packet_bytes);
    }
}

/// The same match where the plan has it.
fn of_plan<'v>(view: &'v View, matched: &Matched) -> &'v Matched {
    &view.plan.matches[matched.matched as usize].matched
}

/// False for a packet that may have a mark of the tracer.
#[inline(always)]
fn is_unmarked(facts: Facts) -> bool {
    facts.packet_bytes != trace::PACKET_BYTES
}
