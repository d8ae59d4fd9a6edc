//! The same journey for a batch: the stages of [`crate::forward`], each done for all packets
//! before the next, so that cache misses overlap.
//!
//! ```text
//!  read all ─► hash all ─► match all ─► choose all ─► send all
//!  headers     AES, many                track,        encapsulate,
//!              at once                  select        count
//!   └ prefetches         └─ prefetch ────┤
//!     VIPs                  buckets      └ prefetches
//!                                          tunnels and counters
//! ```
//!
//! Unlike in the specification, hashing comes before matching, so that buckets have the time of
//! a whole stage to arrive from memory. Plain packets (see [`wire::plain`]) are read in one go,
//! all others by the functions of the specification. Nothing else differs. Within a stage
//! packets keep their order, so that a packet finds in the connection table what an earlier one
//! of its batch left there. And no stage looks at data that another one changes: reading
//! changes only its own frame, choosing the connection table, sending frames, limits and the
//! outbox. `sim/tests/it/batch.rs` checks this; `sim/tests/it/agreement.rs` checks that all
//! code that decides agrees.
//!
//! Successive batches are similar: if the previous one selected by Maglev tables or by buckets
//! ([`Needs`]), slots are prefetched and all packets are hashed with the key of buckets, too.
//!
//! Stages are separate functions in the binary, too, so that profilers show each.

mod state;

use std::ops::Range;

use arrayvec::ArrayVec;
use plan::{LookupKey, Matched, Tracking};
use wire::{BATCH_MAX, Batch, Frame, PacketMeta, plain};

use self::state::{BatchState, Kinds, Marked, PacketState, STATELESS, Stage};
use crate::agent_options::Route;
use crate::decide::{ChosenMember, Decision, Why, steady_member};
use crate::drop_reason::DropReason;
use crate::encapsulate::encapsulate;
use crate::forward::{Datapath, Destination, Remember, destination, match_service, receive};
use crate::kernel_cache::ChosenPacket;
use crate::outbox::Outbox;
use crate::packet::{Arrived, Packet};
use crate::prefetch::{prefetch, prefetch_at};
use crate::recorder::NoRecorder;
use crate::recursion_limit::RecursionLimit;
use crate::send::{headers_of, send};
use crate::table::{is_tcp, steady_backend};
use crate::trace;
use crate::verdict::Verdict;
use crate::view::{Traffic, View};
use crate::worker_evidence::Kind;

/// The verdicts of a batch's frames, in their order.
pub type Verdicts = ArrayVec<Verdict, BATCH_MAX>;

/// What many of the last batch's packets were selected by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    /// Slots of Maglev tables.
    slots: bool,
    /// The hash by the key of buckets.
    bucket_hashes: bool,
}

/// Packets of services with a connection table.
const TRACKED: Kind = Kind::of(Tracking::Tracked);
/// How many frames ahead of the one that is read are prefetched.
const FRAMES_AHEAD: usize = 8;
/// How many connections ahead of the one that is looked up are prefetched again: of the
/// prefetches that come all at once while matching, a processor drops some.
const HOMES_AHEAD: usize = 12;

/// Of packets that are not [`Stage::Done`]: a later stage replaces it.
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
        let frames = batch.as_mut_slice();
        let mut state = BatchState::new();
        self.read_all(view, frames, &mut state, verdicts);
        if self.needs.get().bucket_hashes {
            state.bucket_hashes = Some(self.hash.bucket_flows(&state.flows, frames.len()));
        }
        self.hash.flows(&mut state.flows, frames.len());
        self.match_all(view, &mut state, verdicts);
        // Of each kind in `STATELESS`.
        let by_bucket = self.choose_stateless::<0>(view, frames, &mut state)
            + self.choose_stateless::<1>(view, frames, &mut state)
            + self.choose_stateless::<2>(view, frames, &mut state)
            + self.choose_stateless::<3>(view, frames, &mut state)
            + self.choose_stateless::<4>(view, frames, &mut state);
        self.needs.set(Needs { bucket_hashes: by_bucket > frames.len() / 8, slots: false });
        let BatchState { packets, marked, kinds, .. } = &mut state;
        let mut begin = 0;
        for marked in marked.iter() {
            let run = begin..marked.at;
            self.finish(view, run, frames, (packets, *kinds), outbox, verdicts);
            self.send_marked(view, frames, marked, outbox, verdicts);
            begin = marked.at + 1;
        }
        let run = begin..frames.len();
        self.finish(view, run, frames, (packets, *kinds), outbox, verdicts);
    }

    /// The last stages, of a part of the batch.
    #[inline]
    fn finish<'v>(
        &'v self,
        view: &'v View,
        run: Range<usize>,
        frames: &mut [Frame<'_>],
        (packets, kinds): (&mut [PacketState<'v>; BATCH_MAX], Kinds),
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        let begin = run.start;
        let (frames, packets) = (&mut frames[run.clone()], &mut packets[run.clone()]);
        // Apart, so that without a cache no packet tests for one.
        match &self.kernel_cache {
            _ if !kinds.has(TRACKED) => {}
            None => self.choose_tracked(view, frames, packets, |_| {}),
            Some(cache) => self.choose_tracked(view, frames, packets, |packet| {
                self.note_in_kernel_cache(cache, packet);
            }),
        }
        self.send_all(view, begin, frames, packets, outbox, &mut verdicts[run]);
    }

    /// Reads the headers of all; prefetches the lookups of their targets.
    #[inline(never)]
    fn read_all<'v>(
        &self,
        view: &'v View,
        frames: &mut [Frame<'_>],
        state: &mut BatchState<'v>,
        verdicts: &mut Verdicts,
    ) {
        *verdicts = Verdicts::from([NOT_YET; BATCH_MAX]);
        verdicts.truncate(frames.len());
        let vips = &view.plan.vips;
        for at in 0..frames.len().min(BATCH_MAX) {
            if let Some(ahead) = frames.get(at + FRAMES_AHEAD) {
                // Where the outer header will end, and where it will begin.
                prefetch_at((ahead.chunk(), ahead.start()));
                prefetch_at((ahead.chunk(), ahead.start().wrapping_sub(1)));
            }
            let frame = &mut frames[at];
            if let Some(plain) = plain::read_v4(frame.bytes())
                && is_unmarked(plain.meta)
            {
                state.flows.set(at, &plain.blocks());
                let socket = plain.target();
                let lookup = vips.lookup_v4(socket);
                prefetch(lookup.bucket());
                state.packets[at].begin(
                    plain.meta,
                    RecursionLimit::FRESH,
                    Stage::SocketV4(socket, lookup),
                );
            } else if let Some(plain) = plain::read_v6(frame.bytes())
                && is_unmarked(plain.meta)
            {
                state.flows.set(at, &plain.blocks());
                let key = LookupKey::of(&plain.target());
                prefetch_at(vips.prefetch_v6(&key));
                state.keys_v6.push(key);
                state.packets[at].begin(plain.meta, RecursionLimit::FRESH, Stage::SocketV6);
            } else {
                let read = self.read_other(view, at, frame, state);
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
        state: &mut BatchState<'v>,
    ) -> Result<Verdict, DropReason> {
        let Some(arrived) = receive(view, frame)? else { return Ok(Verdict::Pass) };
        if let Some(mark) = self.recognise(view, frame, &arrived.headers) {
            state.marked.push(Marked { at, arrived, mark });
            return Ok(NOT_YET);
        }
        let Arrived { headers, recursion_limit, tunnelled } = arrived;
        let stage = match match_service(view, &headers)? {
            Destination::Service(matched) => Stage::Matched(of_plan(view, &matched)),
            Destination::Owner => Stage::Owner,
            Destination::Kernel if tunnelled => return Err(DropReason::NoService),
            Destination::Kernel => return Ok(Verdict::Pass),
            Destination::SlowPath => return Ok(Verdict::Slow(recursion_limit)),
        };
        state.flows.set_key(at, &headers.key);
        state.packets[at].begin(headers.meta(), recursion_limit, stage);
        Ok(NOT_YET)
    }

    /// The services of all, and their flow hashes; prefetches their connections.
    #[inline(never)]
    fn match_all<'v>(
        &'v self,
        view: &'v View,
        BatchState { packets, flows, keys_v6, kinds, .. }: &mut BatchState<'v>,
        verdicts: &mut Verdicts,
    ) {
        let (vips, needs) = (&view.plan.vips, self.needs.get());
        let (mut keys_v6, mut key_v6) = (keys_v6.iter(), None);
        for ((packet, hash), verdict) in packets.iter_mut().zip(flows.hashes()).zip(verdicts) {
            let home = self.table.home(hash);
            prefetch(home);
            packet.hash = hash;
            let found = match packet.stage {
                Stage::SocketV4(_, lookup) => lookup.matched(),
                Stage::SocketV6 => {
                    key_v6 = keys_v6.next();
                    key_v6.and_then(|key| vips.lookup_v6(key))
                }
                Stage::Matched(matched) => {
                    packet.stage = kinds.stage(matched, home);
                    continue;
                }
                _ => continue,
            };
            let Some(matched) = found else {
                packet.stage = match_rest(view, packet.stage, key_v6, verdict)
                    .map_or(Stage::Done, |matched| kinds.stage(matched, home));
                continue;
            };
            if needs.slots
                && let Some(entry) = view.plan.group_of(matched).prefetch_slot(hash)
            {
                prefetch_at(entry);
            }
            packet.stage = kinds.stage(matched, home);
        }
    }

    /// The backends of packets of tracked services. `note` sees each.
    #[inline(never)]
    fn choose_tracked<'v>(
        &'v self,
        view: &'v View,
        frames: &[Frame<'_>],
        packets: &mut [PacketState<'v>],
        note: impl Fn(&ChosenPacket<'_, '_>),
    ) {
        let counters = self.counters_of(view);
        let (mut served, mut misses) = (0, 0);
        for (at, frame) in frames.iter().enumerate() {
            if let Some(PacketState { stage: Stage::Tracked(_, home), .. }) =
                packets.get(at + HOMES_AHEAD)
            {
                prefetch(*home);
            }
            let packet = &mut packets[at];
            let Stage::Tracked(matched, home) = packet.stage else { continue };
            served += 1;
            let (meta, hash, service) = (&packet.meta, packet.hash, matched.service);
            let steady = steady_member(view.plan.group_of(matched), meta, || {
                steady_backend(home, hash, service, &self.ticks, is_tcp(meta.protocol))
            });
            let (chosen, why) = match steady {
                Some(chosen) => (chosen, Why::Tracked),
                None => {
                    let (chosen, why) = self.choose_unsteady(view, packet, matched, frame);
                    misses += u64::from(why != Why::Tracked);
                    let Some(chosen) = chosen else { continue };
                    (chosen, why)
                }
            };
            let meta = &packet.meta;
            note(&ChosenPacket { view, matched, frame, meta, hash, chosen, why });
            packet.choose(view, counters, matched, chosen);
        }
        let connections = &self.counters.connections;
        connections.hits.add(served - misses);
        connections.misses.add(misses);
        let Needs { bucket_hashes, slots } = self.needs.get();
        self.needs.set(Needs { bucket_hashes, slots: slots || misses > served / 8 });
    }

    /// The backend of a packet that is not steady, and why; no backend where its stage says
    /// all already. Apart, so that steady packets do not carry what it needs.
    #[inline(never)]
    fn choose_unsteady<'v>(
        &self,
        view: &View,
        packet: &mut PacketState<'v>,
        matched: &'v Matched,
        frame: &Frame<'_>,
    ) -> (Option<ChosenMember>, Why) {
        let undecided = packet.undecided(TRACKED, matched, frame, None);
        let (decision, options) =
            self.choose(view, undecided, Remember::of(frame), &mut NoRecorder);
        let Decision { chosen, why, route, .. } = decision;
        match chosen {
            Some(chosen) if route != Route::None => {
                packet.stage = Stage::WithOptions(matched, chosen, options);
                (None, why)
            }
            _ => (chosen, why),
        }
    }

    /// The backends of packets of one kind in `STATELESS`; how many went by their buckets'
    /// hash. For each kind a function of its own, so that it carries nothing of the others.
    #[inline(never)]
    fn choose_stateless<'v, const KIND: usize>(
        &'v self,
        view: &'v View,
        frames: &[Frame<'_>],
        BatchState { packets, bucket_hashes, kinds, .. }: &mut BatchState<'v>,
    ) -> usize {
        let (counters, kind) = (self.counters_of(view), STATELESS[KIND]);
        let mut by_bucket = 0;
        if !kinds.has(kind) {
            return by_bucket;
        }
        let bucket_hashes = bucket_hashes.as_ref();
        for (at, (packet, frame)) in packets.iter_mut().zip(frames).enumerate() {
            let Stage::Matched(matched) = packet.stage else { continue };
            if matched.tracking != kind.tracking {
                continue;
            }
            let its_kind = Kind::of_packet(kind.tracking, &packet.meta);
            if its_kind != kind {
                kinds.add(its_kind);
                continue;
            }
            let bucket_hash = bucket_hashes.map(|hashes| hashes[at]);
            let undecided = packet.undecided(kind, matched, frame, bucket_hash);
            let (decision, options) =
                self.choose(view, undecided, Remember::Nothing, &mut NoRecorder);
            by_bucket += usize::from(decision.why == Why::Stateless || options.opens);
            let Some(chosen) = decision.chosen else { continue };
            match decision.route != Route::None || options.opens {
                true => packet.stage = Stage::WithOptions(matched, chosen, options),
                false => packet.choose(view, counters, matched, chosen),
            }
        }
        by_bucket
    }

    #[inline(never)]
    fn send_all(
        &self,
        view: &View,
        begin: usize,
        frames: &mut [Frame<'_>],
        packets: &[PacketState<'_>],
        outbox: &mut Outbox<'m>,
        verdicts: &mut [Verdict],
    ) {
        for (at, ((frame, packet), verdict)) in
            frames.iter_mut().zip(packets).zip(verdicts).enumerate()
        {
            let hash = packet.hash;
            if let Stage::Backend(tunnel, member, matched) = packet.stage
                && let Some(template) = view.egress.template_of(tunnel, hash)
                && encapsulate(frame, &packet.meta, hash, template).is_ok()
            {
                count(member, matched, &packet.meta);
                *verdict = Verdict::Send(template.device);
            } else {
                outbox.at = begin + at;
                if let Some(sent) = self.send_other(view, frame, packet, outbox) {
                    *verdict = sent.unwrap_or_else(Verdict::Drop);
                }
            }
        }
    }

    /// What is not simply sent. None: it has its verdict.
    #[cold]
    #[inline(never)]
    fn send_other(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        PacketState { meta, hash, recursion_limit, stage }: &PacketState<'_>,
        outbox: &mut Outbox<'m>,
    ) -> Option<Result<Verdict, DropReason>> {
        let headers = |frame: &_| headers_of(frame, *meta);
        Some(match stage {
            Stage::Backend(tunnel, member, matched) => {
                let Some(template) = view.egress.template_of(tunnel, *hash) else {
                    return Some(Err(DropReason::NoNeighbour));
                };
                let answering = |headers: &_| self.answering_about(view, *hash, headers);
                let sent = send(frame, meta, *hash, template.into(), answering, outbox);
                if sent.is_ok() {
                    count(member, *matched, meta);
                }
                sent
            }
            Stage::WithOptions(matched, chosen, options) => {
                self.send_to(view, frame, (meta, *hash), matched, (*chosen, options), outbox)
            }
            Stage::Matched(matched) | Stage::Tracked(matched, _) => {
                let (headers, hash, recursion_limit) = (&headers(frame), *hash, *recursion_limit);
                let packet = Packet { headers, hash, recursion_limit };
                self.spill(view, frame, matched, &packet, outbox)
            }
            Stage::Owner => {
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
fn count(member: &Traffic, matched: Option<&Traffic>, meta: &PacketMeta) {
    member.count(meta.packet_bytes);
    if let Some(matched) = matched {
        matched.count(meta.packet_bytes);
    }
}

/// Matches what no single port was found for, or sets its verdict.
#[inline(never)]
fn match_rest<'v>(
    view: &'v View,
    stage: Stage<'v>,
    key_v6: Option<&LookupKey>,
    verdict: &mut Verdict,
) -> Option<&'v Matched> {
    let target = match (stage, key_v6) {
        (Stage::SocketV4(socket, _), _) => socket.target(),
        (Stage::SocketV6, Some(key)) => key.target(),
        _ => unreachable!("all others are matched"),
    };
    match destination(view.plan.vips.lookup_rest(&target)) {
        Ok(Destination::Service(matched)) => return Some(of_plan(view, &matched)),
        Ok(_) => {}
        Err(reason) => *verdict = Verdict::Drop(reason),
    }
    None
}

/// The same match where the plan has it.
fn of_plan<'v>(view: &'v View, matched: &Matched) -> &'v Matched {
    &view.plan.matches[matched.matched as usize].matched
}

/// False for a packet that may have a mark of the tracer.
#[inline(always)]
fn is_unmarked(meta: PacketMeta) -> bool {
    meta.packet_bytes != trace::PACKET_BYTES
}
