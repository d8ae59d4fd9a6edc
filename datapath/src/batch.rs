//! The same journey for a batch: the stages of [`crate::forward`], each done
//! for all packets before the next, so that cache misses overlap.
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
//! Hashing comes before matching, other than in the specification, so that
//! buckets have the time of a whole stage to come from memory. Plain packets
//! (see [`wire::plain`]) are read in one go, all others by the functions of
//! the specification. Nothing else differs. Inside a stage packets go in their
//! order, so that a packet finds in the connection table what an earlier one
//! of its batch left there; and what one stage changes, no other looks at:
//! reading changes its own frame only, choosing the connection table, sending
//! frames, limits and the outbox. Held by `sim/tests/it/batch.rs`.
//!
//! Packets of stateless services are chosen for between matching and choosing,
//! for which nothing but their own buckets counts. Where the batch before had
//! some, all packets are hashed by the key of buckets, too.
//!
//! Stages are functions of their own in the binary too, so that profilers
//! show each.

use std::ops::Range;

use arrayvec::ArrayVec;
use plan::group::Selected;
use plan::{Affinity, LookupKey, LookupV4, Matched, Tracking};
use wire::tunnel::route_option::Emitted;
use wire::{
    BATCH_MAX, Batch, Family, Frame, PacketMeta, Protocol, SocketV4, plain, tcp, tcp_options,
    tunnel,
};

use crate::decide::{ChosenMember, Why, decide, decide_stateless, steady_member};
use crate::drop_reason::DropReason;
use crate::egress::BackendTunnel;
use crate::encapsulate::encapsulate;
use crate::flow_hash::Flows;
use crate::forward::{Datapath, Destination, Flow, Remember, destination, match_service, receive};
use crate::kernel_cache::EntryWriters;
use crate::multipath::{Opening, Selection};
use crate::outbox::Outbox;
use crate::packet::{Arrived, Packet};
use crate::prefetch::{prefetch, prefetch_at};
use crate::recorder::NoRecorder;
use crate::recursion_limit::RecursionLimit;
use crate::send::{OuterHeaders, headers_of, send};
use crate::table::{Home, is_tcp, steady_backend};
use crate::trace::{self, Mark};
use crate::verdict::Verdict;
use crate::view::{Traffic, View, WorkerCounters};

/// The verdicts of a batch's frames, in their order.
pub type Verdicts = ArrayVec<Verdict, BATCH_MAX>;

/// How far a frame's packet has come.
#[derive(Clone, Copy)]
struct PacketState<'v> {
    stage: Stage<'v>,
    /// The flow hash.
    hash: u64,
    meta: PacketMeta,
    recursion_limit: RecursionLimit,
}

/// What is known of a packet, and so what is next.
#[derive(Clone, Copy)]
enum Stage<'v> {
    /// It has its verdict.
    Done,
    /// Its address and port, to be matched by this lookup.
    SocketV4(SocketV4, LookupV4<'v>),
    /// The same of IPv6: the lookup's key is in [`BatchState::keys_v6`].
    SocketV6,
    /// Its match.
    Matched(&'v Matched),
    /// Its match, and the home of its connection's entry.
    Service(&'v Matched, &'v Home),
    /// Its match, of a stateless service.
    Stateless(&'v Matched),
    /// The same, of one with QUIC connection ids.
    StatelessQuic(&'v Matched),
    /// The same, of one with Multipath TCP.
    StatelessMultipath(&'v Matched),
    /// Its backend: the tunnel, where its member is counted, and the match if
    /// apart.
    Backend(&'v BackendTunnel, &'v Traffic, Option<&'v Traffic>),
    /// Its match, its backend and its route option.
    Routed(&'v Matched, ChosenMember, &'v Emitted),
    /// Its match, its backend and that one's bucket, and what it says to agents: a SYN of
    /// a service with Multipath TCP.
    Opening(&'v Matched, ChosenMember, u16, Opening),
    /// It goes to the machine in charge of its datagram.
    Owner,
}

// All of a batch's are made, and lie in the first-level cache with its frames' headers.
const _: () = assert!(size_of::<PacketState<'_>>() == 48);

/// A packet with a mark of the tracer: it is forwarded alone, behind those before
/// it and in front of those after it, because it reads the connection table.
struct Marked {
    at: usize,
    arrived: Arrived,
    mark: Mark,
}

/// The packets of a batch, each at its frame's index, and what they are hashed
/// by.
struct BatchState<'v> {
    packets: [PacketState<'v>; BATCH_MAX],
    flows: Flows,
    /// Hashed by the key of buckets, too, at their frames' indices.
    bucket_hashes: Option<[u64; BATCH_MAX]>,
    /// Of packets at [`Stage::SocketV6`], in their order.
    keys_v6: ArrayVec<LookupKey, BATCH_MAX>,
    marked: ArrayVec<Marked, BATCH_MAX>,
}

impl BatchState<'_> {
    #[inline(always)]
    fn new() -> BatchState<'static> {
        BatchState {
            packets: [PacketState::DONE; BATCH_MAX],
            flows: Flows::default(),
            bucket_hashes: None,
            keys_v6: ArrayVec::new(),
            marked: ArrayVec::new(),
        }
    }
}

impl<'v> PacketState<'v> {
    /// Zeros throughout, so that a batch of them is quickly made.
    const DONE: PacketState<'static> = PacketState {
        stage: Stage::Done,
        hash: 0,
        meta: PacketMeta {
            family: Family::V4,
            protocol: Protocol(0),
            tcp_flags: tcp::Flags(0),
            traffic_class: 0,
            packet_bytes: 0,
        },
        recursion_limit: RecursionLimit(0),
    };

    #[inline(always)]
    fn begin(&mut self, meta: PacketMeta, recursion_limit: RecursionLimit, stage: Stage<'v>) {
        (self.meta, self.recursion_limit, self.stage) = (meta, recursion_limit, stage);
    }

    /// To be sent to that member, if there is a tunnel; prefetches what that
    /// needs.
    #[inline(always)]
    fn choose(
        &mut self,
        view: &'v View,
        counters: &'v WorkerCounters,
        matched: &'v Matched,
        ChosenMember { member, backend }: ChosenMember,
    ) {
        let tunnel = view.egress.tunnel(matched.profile, self.meta.family, backend);
        let Some(tunnel) = tunnel else { return };
        prefetch(tunnel);
        let traffic = counters.member(matched, member);
        prefetch(traffic);
        self.stage = Stage::Backend(tunnel, traffic, counters.of_match(matched));
    }
}

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
        if self.uses_buckets.replace(false) {
            state.bucket_hashes = Some(self.hash.bucket_flows(&state.flows, frames.len()));
        }
        self.hash.flows(&mut state.flows, frames.len());
        self.uses_connections.set(false);
        self.match_all(view, &mut state, verdicts);
        if self.uses_connection_ids.replace(false) {
            self.choose_by_connection_ids(view, frames, &mut state);
        }
        if self.uses_buckets.get() {
            self.choose_by_buckets(view, frames, &mut state);
        }
        if self.uses_multipath.replace(false) {
            self.choose_by_multipath(view, frames, &mut state);
        }
        let mut begin = 0;
        for marked in &state.marked {
            let run = begin..marked.at;
            self.finish(view, run, frames, &mut state.packets, outbox, verdicts);
            self.send_marked(view, frames, marked, outbox, verdicts);
            begin = marked.at + 1;
        }
        let run = begin..frames.len();
        self.finish(view, run, frames, &mut state.packets, outbox, verdicts);
    }

    /// The last stages, of a part of the batch.
    #[inline]
    fn finish<'v>(
        &'v self,
        view: &'v View,
        run: Range<usize>,
        frames: &mut [Frame<'_>],
        packets: &mut [PacketState<'v>; BATCH_MAX],
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        let begin = run.start;
        let (frames, packets) = (&mut frames[run.clone()], &mut packets[run.clone()]);
        // Apart, so that without a cache no packet tests for one.
        match &self.kernel_cache {
            _ if !self.uses_connections.get() => {}
            None => self.choose_all(view, frames, packets, |_, _, _, _| {}),
            Some(cache) => {
                self.choose_all(view, frames, packets, |frame, packet, matched, chosen| {
                    self.note_in_kernel_cache(cache, view, matched, frame, packet, chosen);
                });
            }
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
        BatchState { packets, flows, keys_v6, .. }: &mut BatchState<'v>,
        verdicts: &mut Verdicts,
    ) {
        let (vips, selects) = (&view.plan.vips, self.selects.get());
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
                    packet.stage = self.of_service(matched, home);
                    continue;
                }
                _ => continue,
            };
            let Some(matched) = found else {
                packet.stage = self.match_rest(view, packet.stage, key_v6, home, verdict);
                continue;
            };
            if selects && let Some(entry) = view.plan.group_of(matched).prefetch_slot(hash) {
                prefetch_at(entry);
            }
            packet.stage = self.of_service(matched, home);
        }
    }

    /// What is next for a packet whose match is found, with the home of its
    /// connection's entry.
    #[inline(always)]
    fn of_service<'v>(&self, matched: &'v Matched, home: &'v Home) -> Stage<'v> {
        match matched.tracking {
            Tracking::Tracked => {
                self.uses_connections.set(true);
                Stage::Service(matched, home)
            }
            Tracking::Stateless | Tracking::JoinPort => {
                self.uses_buckets.set(true);
                Stage::Stateless(matched)
            }
            Tracking::StatelessQuic => {
                self.uses_connection_ids.set(true);
                Stage::StatelessQuic(matched)
            }
            Tracking::StatelessMultipath => {
                self.uses_multipath.set(true);
                Stage::StatelessMultipath(matched)
            }
        }
    }

    /// Matches what no single port was found for, or sets its verdict.
    #[inline(never)]
    fn match_rest<'v>(
        &self,
        view: &'v View,
        stage: Stage<'v>,
        key_v6: Option<&LookupKey>,
        home: &'v Home,
        verdict: &mut Verdict,
    ) -> Stage<'v> {
        let target = match (stage, key_v6) {
            (Stage::SocketV4(socket, _), _) => socket.target(),
            (Stage::SocketV6, Some(key)) => key.target(),
            _ => unreachable!("all others are matched"),
        };
        match destination(view.plan.vips.lookup_rest(&target)) {
            Ok(Destination::Service(matched)) => {
                return self.of_service(of_plan(view, &matched), home);
            }
            Ok(_) => {}
            Err(reason) => *verdict = Verdict::Drop(reason),
        }
        Stage::Done
    }

    /// The backends of all: tracked, or else selected. `note` sees each.
    #[inline(never)]
    fn choose_all<'v>(
        &'v self,
        view: &'v View,
        frames: &[Frame<'_>],
        packets: &mut [PacketState<'v>],
        note: impl Fn(&Frame<'_>, &PacketState<'v>, &'v Matched, ChosenMember),
    ) {
        let (counters, connections) = (self.counters_of(view), &self.counters.connections);
        let (mut served, misses) = (0, connections.misses.get());
        for (at, frame) in frames.iter().enumerate() {
            if let Some(PacketState { stage: Stage::Service(_, home), .. }) =
                packets.get(at + HOMES_AHEAD)
            {
                prefetch(*home);
            }
            let packet = &mut packets[at];
            let Stage::Service(matched, home) = packet.stage else { continue };
            served += 1;
            let (meta, hash, service) = (&packet.meta, packet.hash, matched.service);
            let steady = steady_member(view.plan.group_of(matched), meta, || {
                steady_backend(home, hash, service, &self.ticks, is_tcp(meta.protocol))
            });
            let chosen = match steady {
                Some(chosen) => chosen,
                None => {
                    self.count_unserved(matched, *meta, || segment_of(frame, *meta));
                    let chosen = match view.plan.group_of(matched).has_earlier_slots() {
                        false => self.choose_other(view, matched, frame, meta, hash),
                        true => self.choose_with_second_chance(view, matched, frame, packet),
                    };
                    let Some(chosen) = chosen else { continue };
                    chosen
                }
            };
            note(frame, packet, matched, chosen);
            packet.choose(view, counters, matched, chosen);
        }
        let misses = connections.misses.get() - misses;
        connections.hits.add(served - misses);
        // Batches are alike: where one often selects by Maglev tables, so will
        // the next.
        if served > 0 {
            self.selects.set(misses > served / 8);
        }
    }

    /// The backends that QUIC connection ids name. Packets that have none go on to be
    /// chosen for by buckets.
    #[inline(never)]
    fn choose_by_connection_ids<'v>(
        &'v self,
        view: &'v View,
        frames: &[Frame<'_>],
        BatchState { packets, .. }: &mut BatchState<'v>,
    ) {
        let counters = self.counters_of(view);
        for (packet, frame) in packets.iter_mut().zip(frames) {
            let Stage::StatelessQuic(matched) = packet.stage else { continue };
            let payload = || match plain::udp_payload(frame.bytes(), packet.meta) {
                Some(payload) => Some(payload),
                None => headers_of(frame, packet.meta).udp_payload(frame.bytes()),
            };
            match self.named_member(view, matched, payload, &mut NoRecorder) {
                Some(named) => packet.choose(view, counters, matched, named),
                None => {
                    self.uses_buckets.set(true);
                    packet.stage = Stage::Stateless(matched);
                }
            }
        }
    }

    /// The backends of stateless services' packets, which nothing else looks at.
    #[inline(never)]
    fn choose_by_buckets<'v>(
        &'v self,
        view: &'v View,
        frames: &[Frame<'_>],
        BatchState { packets, bucket_hashes, .. }: &mut BatchState<'v>,
    ) {
        let counters = self.counters_of(view);
        for (at, (packet, frame)) in packets.iter_mut().zip(frames).enumerate() {
            let Stage::Stateless(matched) = packet.stage else { continue };
            self.count_unserved(matched, packet.meta, || segment_of(frame, packet.meta));
            let selector = match (view.plan.service_of(matched).affinity, &*bucket_hashes) {
                (Affinity::Flow, Some(hashes)) => hashes[at],
                (affinity, _) => self.hash.bucket(affinity, &headers_of(frame, packet.meta).key),
            };
            let group = view.plan.group_of(matched);
            let Some(selected) = decide_stateless(group, selector) else { continue };
            let Selected { member, backend, slot, has_route_option } = selected;
            let chosen = ChosenMember { member, backend };
            let option = has_route_option.then(|| group.route_option(slot, backend)).flatten();
            match option {
                Some(option) => packet.stage = Stage::Routed(matched, chosen, option),
                None => packet.choose(view, counters, matched, chosen),
            }
        }
    }

    /// The backends of packets of services with Multipath TCP.
    #[inline(never)]
    fn choose_by_multipath<'v>(
        &'v self,
        view: &'v View,
        frames: &[Frame<'_>],
        BatchState { packets, bucket_hashes, .. }: &mut BatchState<'v>,
    ) {
        let counters = self.counters_of(view);
        let (mut served, mut by_flow) = (0, 0);
        for (at, (packet, frame)) in packets.iter_mut().zip(frames).enumerate() {
            let Stage::StatelessMultipath(matched) = packet.stage else { continue };
            served += 1;
            let meta = packet.meta;
            let group = view.plan.group_of(matched);
            let plain = plain::tcp_segment(frame.bytes(), meta);
            // Nearly all packets, and those without a move.
            if let Some(echo) = plain.and_then(tcp_options::usual_echo)
                && let Some(selected) = group.select_bucket(echo)
                && !selected.has_route_option
            {
                self.counters.multipath[Selection::ECHO].add(1);
                let Selected { member, backend, .. } = selected;
                packet.choose(view, counters, matched, ChosenMember { member, backend });
                continue;
            }
            let segment = || plain.or_else(|| headers_of(frame, meta).tcp_segment(frame.bytes()));
            let key = || {
                plain::tcp_flow(frame.bytes(), meta).unwrap_or_else(|| headers_of(frame, meta).key)
            };
            let selection = self.selection(matched, key, segment, &mut NoRecorder);
            let select_by_flow = || {
                group.select(match &*bucket_hashes {
                    Some(hashes) => hashes[at],
                    None => self.hash.bucket(Affinity::Flow, &key()),
                })
            };
            let opening = selection.filter(|_| meta.tcp_flags.opens());
            let bits = selection.and_then(Selection::bits);
            by_flow += u32::from(opening.is_some() || bits.is_none());
            let selected = match bits {
                Some(bits) => group.select_bucket(bits),
                None => select_by_flow(),
            };
            let Some(selected) = selected else { continue };
            let Selected { member, backend, slot, has_route_option } = selected;
            let chosen = ChosenMember { member, backend };
            if let Some(selection) = opening {
                let by_flow = if bits.is_none() { Some(selected) } else { select_by_flow() };
                let Some(by_flow) = by_flow else { continue };
                let opening = Opening { key: selection.key(), bucket: by_flow.slot as u16 };
                packet.stage = Stage::Opening(matched, chosen, slot as u16, opening);
                continue;
            }
            let option = has_route_option.then(|| group.route_option(slot, backend)).flatten();
            match option {
                Some(option) => packet.stage = Stage::Routed(matched, chosen, option),
                None => packet.choose(view, counters, matched, chosen),
            }
        }
        // Batches are alike.
        self.uses_buckets.set(self.uses_buckets.get() || by_flow > served / 8);
    }

    /// The backend of a packet whose connection is not as most are, or new;
    /// None: no backend takes it.
    // Into the loop: in a flood nearly all packets are such.
    #[inline(always)]
    fn choose_other(
        &self,
        view: &View,
        matched: &Matched,
        frame: &Frame<'_>,
        meta: &PacketMeta,
        hash: u64,
    ) -> Option<ChosenMember> {
        let found = self.table.find(hash, matched.service);
        let steady = steady_member(view.plan.group_of(matched), meta, || {
            found?.steady_backend(&self.ticks, is_tcp(meta.protocol))
        });
        if steady.is_some() {
            return steady;
        }
        let flow = Flow { hash, found, remember: Remember::of(frame) };
        let key = || headers_of(frame, *meta).key;
        let never = |_, _| false;
        let decision = self.decide(view, matched, meta, flow, key, never, &mut NoRecorder);
        if decision.why != Why::Tracked {
            self.counters.connections.misses.add(1);
        }
        decision.chosen
    }

    /// The same where earlier tables differ from the present one; None also: it is
    /// to be sent with the backends that these have. A function of its own, so that
    /// new connections of other services do not carry the code along.
    #[inline(never)]
    fn choose_with_second_chance<'v>(
        &self,
        view: &'v View,
        matched: &'v Matched,
        frame: &Frame<'_>,
        packet: &mut PacketState<'v>,
    ) -> Option<ChosenMember> {
        let PacketState { hash, meta, .. } = *packet;
        let rules = self.rules(view, matched);
        let entry = self.table.find(hash, matched.service).map(|found| found.entry());
        let service = view.plan.service_of(matched);
        let selector = || self.hash.selector(service, hash, || headers_of(frame, meta).key);
        let second_chance = |slot, why| self.gets_second_chance(view, matched, &meta, slot, why);
        let decision = decide(&rules, entry, &meta, selector, second_chance);
        let option = decision.option(view.plan.group_of(matched));
        let (Why::SecondChance, Some(option)) = (decision.why, option) else {
            return self.choose_other(view, matched, frame, &meta, hash);
        };
        self.counters.connections.misses.add(1);
        packet.stage = Stage::Routed(matched, decision.chosen?, option);
        None
    }

    /// Enters the flow of one in a number of data packets into the kernel flow cache, if its
    /// connection is steady; takes out one that ends or begins. What may be a tunnel's packet is left
    /// to user space, which judges it by more than its five-tuple.
    #[inline]
    fn note_in_kernel_cache(
        &self,
        caches: &EntryWriters<'_>,
        view: &View,
        matched: &Matched,
        frame: &Frame<'_>,
        PacketState { meta, hash, .. }: &PacketState<'_>,
        ChosenMember { member, backend }: ChosenMember,
    ) {
        const BORDERS: tcp::Flags =
            tcp::Flags(tcp::Flags::SYN.0 | tcp::Flags::FIN.0 | tcp::Flags::RST.0);
        if meta.tcp_flags.has_any(BORDERS) {
            return caches.remove(&headers_of(frame, *meta).key);
        }
        let Some(cache) = caches.ingress() else { return };
        if !cache.is_due() {
            return;
        }
        let found = self.table.find(*hash, matched.service);
        let steady =
            found.and_then(|entry| entry.steady_backend(&self.ticks, is_tcp(meta.protocol)));
        if steady != Some(backend) || frame.is_tunnelled() || frame.is_misdirected() {
            return;
        }
        let key = headers_of(frame, *meta).key;
        let may_be_tunnel = key.protocol == Protocol::UDP && tunnel::is_port(key.destination_port);
        if let Some(target) = view.kernel_targets.of(matched.matched, member)
            && !may_be_tunnel
        {
            cache.enter(&key, *hash, matched.service, target);
        }
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
            Stage::Routed(matched, chosen, option) => {
                self.send_with(view, frame, (meta, *hash), matched, (*chosen, option), outbox)
            }
            Stage::Opening(matched, chosen, slot, opening) => {
                let group = view.plan.group_of(matched);
                let route = group.route_option((*slot).into(), chosen.backend);
                let options = opening.options(&view.plan, group, route);
                self.send_with(view, frame, (meta, *hash), matched, (*chosen, &options), outbox)
            }
            Stage::Service(matched, _)
            | Stage::Stateless(matched)
            | Stage::StatelessQuic(matched)
            | Stage::StatelessMultipath(matched) => {
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

    /// Sends a packet with its options.
    fn send_with(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        (meta, hash): (&PacketMeta, u64),
        matched: &Matched,
        (ChosenMember { member, backend }, options): (ChosenMember, &[u8]),
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let template = view.egress.template_for(matched.profile, meta.family, backend, hash);
        let template = template.ok_or(DropReason::NoNeighbour)?;
        let outer = OuterHeaders { template, options: Some(options) };
        let answering = |headers: &_| self.answering_about(view, hash, headers);
        let verdict = send(frame, meta, hash, outer, answering, outbox)?;
        self.counters_of(view).count(matched, member, meta.packet_bytes);
        Ok(verdict)
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

/// The same match where the plan has it.
fn of_plan<'v>(view: &'v View, matched: &Matched) -> &'v Matched {
    &view.plan.matches[matched.matched as usize].matched
}

/// The TCP segment in a frame that was read before; None: there is none.
#[inline]
fn segment_of<'f>(frame: &'f Frame<'_>, meta: PacketMeta) -> Option<&'f [u8]> {
    plain::tcp_segment(frame.bytes(), meta)
        .or_else(|| headers_of(frame, meta).tcp_segment(frame.bytes()))
}

/// False for a packet that may have a mark of the tracer.
#[inline(always)]
fn is_unmarked(meta: PacketMeta) -> bool {
    meta.packet_bytes != trace::PACKET_BYTES
}
