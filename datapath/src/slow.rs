//! The slow path: what no single worker can decide, because it needs the
//! tables of all of them, or because there is one for the whole machine.
//! One thread; workers hand it their frames.
//!
//! - ICMP to a VIP: an echo request is answered; an error goes to the backend
//!   whose packet it quotes, found by the quoted five-tuple, reversed, in all
//!   workers' tables, then by hash. Where no table knows it every peer gets a
//!   copy, which forwards it only if its tables know better than the hash.
//! - Fragments of which this machine is in charge: the first is selected like
//!   any packet and remembered, later ones follow it, early ones wait.

use plan::{BackendId, Found, Matched, Service, Tracking};
use wire::tunnel::route_option::Emitted;
use wire::{FlowKey, Fragment, Frame, Headers, Protocol, ethernet, headers, icmp};

use crate::clock::{Clock, Now};
use crate::counters::Counters;
use crate::decapsulate::carry_congestion;
use crate::decide::{
    self, ServiceRules, Signal, Why, decide_by_bits, decide_by_tables, decide_untracked,
};
use crate::drop_reason::DropReason;
use crate::encapsulate::encapsulate;
use crate::flow_hash::FlowHash;
use crate::forward::spill;
use crate::fragment_table::{DatagramKey, Decision, FragmentTable, Held, Part, Room};
use crate::limiter::{FairLimiter, ServiceLimiters};
use crate::multipath::{Opening, Selection};
use crate::outbox::{Accounting, Kind, Outbox};
use crate::packet::{Arrived, Packet};
use crate::recorder::{Journey, Lookup, NoRecorder, Recorder};
use crate::recursion_limit::RecursionLimit;
use crate::reply;
use crate::secret::Secret;
use crate::send::{AnswerLimits, Answering, OuterHeaders, send};
use crate::table::TableReader;
use crate::trace::{Reporter, Traced, Tracer};
use crate::verdict::Verdict;
use crate::view::View;

/// Copies of ICMP errors a second, to all peers together.
const COPIES_PER_SECOND: u64 = 1000;

/// Echo requests answered in a second.
const ECHOES_PER_SECOND: u64 = 1000;

/// What the slow path decides with.
#[derive(Debug)]
pub struct SlowPath<'m> {
    hash: FlowHash,
    tables: Vec<TableReader<'m>>,
    fragments: FragmentTable,
    counters: &'m Counters,
    tracer: Tracer,
    answers: AnswerLimits,
    copies: FairLimiter,
    echoes: FairLimiter,
    second_chances: ServiceLimiters,
    clock: Clock,
    now: Now,
    /// Its place in a view's counters: behind those of the workers.
    worker: usize,
}

impl<'m> SlowPath<'m> {
    /// A slow path beside workers with these tables.
    #[must_use]
    pub fn new(
        secret: &Secret,
        tables: Vec<TableReader<'m>>,
        counters: &'m Counters,
        clock: Clock,
    ) -> SlowPath<'m> {
        let worker = tables.len();
        SlowPath {
            hash: FlowHash::new(secret),
            tracer: Tracer::new(secret),
            tables,
            fragments: FragmentTable::default(),
            counters,
            answers: AnswerLimits::default(),
            copies: FairLimiter::new(COPIES_PER_SECOND),
            echoes: FairLimiter::new(ECHOES_PER_SECOND),
            second_chances: ServiceLimiters::default(),
            clock,
            now: Now(0),
            worker,
        }
    }

    /// Sets the time, as [`crate::Datapath::begin`] does, and forgets
    /// fragments that are too old.
    pub fn begin(&mut self, now_ms: u32) {
        self.now = self.clock.advance(now_ms);
        let expired = self.fragments.expire(self.now);
        self.counters.fragments.expired.add(expired);
        self.counters.waits_ended.add(expired);
        self.counters.held.add(expired);
    }

    /// What it counts.
    #[must_use]
    pub fn counters(&self) -> &'m Counters {
        self.counters
    }

    /// Decides what becomes of a frame for which a worker's verdict was
    /// [`Verdict::Slow`] with that recursion_limit.
    pub fn forward(
        &mut self,
        view: &View,
        frame: &mut Frame<'_>,
        recursion_limit: RecursionLimit,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Verdict {
        self.journey(view, frame, recursion_limit, outbox, recorder).unwrap_or_else(Verdict::Drop)
    }

    fn journey(
        &mut self,
        view: &View,
        frame: &mut Frame<'_>,
        recursion_limit: RecursionLimit,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let mut headers = headers::parse(frame.bytes())?.expect("a worker parsed it");
        headers.traffic_class = carry_congestion(frame, headers.traffic_class)?;
        let arrived = Arrived { headers, recursion_limit, tunnelled: frame.is_tunnelled() };
        let Some(mark) =
            self.tracer.recognise(frame, &headers, self.now, || view.unix_ms(self.now))
        else {
            return self.onward(view, frame, &arrived, outbox, recorder);
        };
        let mut journey = Journey::default();
        let traced = Traced::new(mark, frame, recursion_limit);
        let verdict =
            self.onward(view, frame, &arrived, outbox, &mut journey).unwrap_or_else(Verdict::Drop);
        let reporter = Reporter { view, worker: self.worker, counters: self.counters };
        reporter.report(&traced, verdict, &journey, frame, outbox);
        Ok(verdict)
    }

    fn onward(
        &mut self,
        view: &View,
        frame: &mut Frame<'_>,
        arrived: &Arrived,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let headers = &arrived.headers;
        recorder.parsed(&headers.key);
        if let Some(datagram) = DatagramKey::of(headers) {
            return match headers.fragment {
                Fragment::Later { .. } => {
                    self.later(view, frame, arrived, datagram, outbox, recorder)
                }
                _ => self.first(view, frame, arrived, datagram, outbox, recorder),
            };
        }
        match icmp::kind(headers.key.family, message(frame, headers))
            .ok_or(DropReason::TransportHeader)?
        {
            icmp::Kind::EchoRequest => self.echo(view, frame, headers),
            icmp::Kind::Error => self.error(view, frame, arrived, outbox, recorder),
            icmp::Kind::Other => Err(DropReason::Icmp),
        }
    }

    fn echo(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        headers: &Headers,
    ) -> Result<Verdict, DropReason> {
        if !reply::may_answer(headers) {
            return Err(DropReason::MartianSource);
        }
        if reply::is_source_routed(frame, headers) {
            return Err(DropReason::SourceRoute);
        }
        if !self.echoes.allows(self.now, self.hash.source_prefix(&headers.key)) {
            return Err(DropReason::EchoLimit);
        }
        let back = view.return_paths.of(frame, headers.key.family);
        reply::echo(frame, headers, back.link);
        Ok(back.verdict())
    }

    /// An error about a packet that one of our backends sent from the VIP.
    fn error(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        arrived: &Arrived,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let headers = &arrived.headers;
        let quoted =
            icmp::quoted(headers.key.family, message(frame, headers)).ok_or(DropReason::Icmp)?;
        let key = quoted.reversed();
        // An error goes to the sender of what it quotes, or it is forged.
        let is_ours = key.destination == headers.key.destination
            && !matches!(key.protocol, Protocol::ICMP | Protocol::ICMPV6);
        let Found::Service(matched) = view.plan.vips.find(&key.target()) else {
            return Err(DropReason::Icmp);
        };
        if !is_ours {
            return Err(DropReason::Icmp);
        }
        recorder.matched(matched);
        let service = view.plan.service_of(&matched);
        let hash = self.hash.flow(&key);
        recorder.hashed(hash);
        let tracked = self.tracked(view, &matched, hash, Signal::Data);
        recorder.tracked(lookup(&matched, tracked));
        // Agents take it where the connection is whose segment it quotes.
        let signal = match key.protocol {
            Protocol::TCP => Signal::Data,
            _ => Signal::Datagram,
        };
        let decision = self.select(view, &matched, (&key, signal), hash, recorder);
        let selected = decision.chosen.map(|chosen| chosen.backend);
        let packet = arrived.packet(hash);
        match arrived.recursion_limit.copy() {
            // No peer knows more.
            Some(_) if matched.tracking.is_stateless() => {}
            None if tracked.is_none() || tracked == selected => {
                return Err(DropReason::IcmpCopyRedundant);
            }
            Some(permitted) if tracked.is_none() => {
                self.copy_to_peers(view, frame, &packet, permitted, outbox);
            }
            _ => {}
        }
        let second_chance = tracked.is_none()
            && decision.why == Why::SecondChance
            && self.allows_second_chance(service);
        let (backend, slot) = (tracked.or(selected), decision.slot);
        let chosen = Chosen { matched, backend, slot, second_chance, opening: None };
        self.deliver(view, frame, &packet, &chosen, outbox, recorder)
    }

    fn copy_to_peers(
        &self,
        view: &View,
        frame: &Frame<'_>,
        Packet { headers, hash, .. }: &Packet<'_>,
        permitted: RecursionLimit,
        outbox: &mut Outbox<'m>,
    ) {
        let source = self.hash.source_prefix(&headers.key);
        if !reply::may_answer(headers) {
            return;
        }
        for peer in 0..view.plan.peers.len() {
            let template =
                view.egress.template_for_peer(peer, permitted, headers.key.family, *hash);
            let Some(template) = template else { continue };
            if !self.copies.allows(self.now, source) {
                return;
            }
            let Some(mut copy) = outbox.copy_of(&[frame.bytes()]) else {
                self.counters.originated_lost.add(1);
                continue;
            };
            match encapsulate(&mut copy, &headers.meta(), *hash, template) {
                Ok(()) => outbox.push(Kind::Copy.into(), Some(template.device), copy),
                Err(_) => outbox.take_back(copy),
            }
        }
    }

    /// A first fragment: selected like any packet, and remembered.
    fn first(
        &mut self,
        view: &View,
        frame: &mut Frame<'_>,
        arrived: &Arrived,
        datagram: DatagramKey,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let headers = &arrived.headers;
        let Found::Service(matched) = view.plan.vips.find(&headers.key.target()) else {
            return Err(DropReason::NoService);
        };
        recorder.matched(matched);
        let hash = self.hash.flow(&headers.key);
        recorder.hashed(hash);
        let tracked = self.tracked(view, &matched, hash, (&headers.meta()).into());
        recorder.tracked(lookup(&matched, tracked));
        let selection = self.selection(&matched, frame, headers, recorder);
        let (backend, slot) = match (tracked, selection.and_then(Selection::bits)) {
            (Some(_), _) => (tracked, None),
            (None, Some(bits)) => {
                let selected = decide_by_bits(view.plan.group_of(&matched), bits);
                selected.slot.into_iter().for_each(|slot| recorder.selected(slot));
                (selected.chosen.map(|chosen| chosen.backend), selected.slot)
            }
            // No second chance: later fragments have no ports, so agents send none on.
            (None, None) => {
                let packet = (&headers.key, Signal::Datagram);
                let selected = self.select(view, &matched, packet, hash, recorder);
                (selected.chosen.map(|chosen| chosen.backend), selected.slot)
            }
        };
        let opening = selection.filter(|_| headers.tcp_flags.opens());
        let opening = opening
            .and_then(|by| self.hash.opening(view.plan.group_of(&matched), &headers.key, by));
        let decision = Decision { target: headers.key.target(), backend, slot, hash };
        self.fragments.remember(datagram, Part::of(frame, headers), decision, self.now);
        self.counters.fragments.first.add(1);
        let chosen = Chosen { matched, backend, slot, second_chance: false, opening: None };
        let first = Chosen { opening, ..chosen };
        let verdict = self.deliver(view, frame, &arrived.packet(hash), &first, outbox, recorder);
        while let Some(held) = self.fragments.release(&datagram) {
            self.release(view, &held, &chosen, hash, outbox);
        }
        verdict
    }

    /// A later fragment: follows its first one, or waits for it.
    fn later(
        &mut self,
        view: &View,
        frame: &mut Frame<'_>,
        arrived: &Arrived,
        datagram: DatagramKey,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let part = Part::of(frame, &arrived.headers);
        let Some(decision) = self.fragments.follow(&datagram, part) else {
            return self.hold(datagram, frame, arrived);
        };
        let Decision { target, backend, slot, hash } = decision;
        recorder.hashed(hash);
        self.counters.fragments.followed.add(1);
        let Found::Service(matched) = view.plan.vips.find(&target) else {
            return Err(DropReason::NoService);
        };
        recorder.matched(matched);
        let chosen = Chosen { matched, backend, slot, second_chance: false, opening: None };
        self.deliver(view, frame, &arrived.packet(hash), &chosen, outbox, recorder)
    }

    fn hold(
        &mut self,
        datagram: DatagramKey,
        frame: &Frame<'_>,
        arrived: &Arrived,
    ) -> Result<Verdict, DropReason> {
        match self.fragments.hold(datagram, frame, arrived, &self.hash, self.now) {
            Room::None => return Err(DropReason::FragmentBuffer),
            Room::OfAnother => self.drop_held(DropReason::FragmentBuffer),
            Room::Free => {}
        }
        self.counters.fragments.held.add(1);
        Ok(Verdict::Hold)
    }

    /// Sends on a fragment that was held, or does what else becomes of it:
    /// that is its final verdict.
    fn release(
        &self,
        view: &View,
        held: &Held,
        chosen: &Chosen,
        hash: u64,
        outbox: &mut Outbox<'m>,
    ) {
        let Some(mut frame) = outbox.copy_of(&[&held.bytes]) else {
            return self.drop_held(DropReason::FragmentBuffer);
        };
        if held.tunnelled {
            frame.set_tunnelled();
        }
        let headers =
            headers::parse(frame.bytes()).ok().flatten().expect("it was parsed before it was held");
        let headers = Headers { traffic_class: held.traffic_class, ..headers };
        let packet = Packet { headers: &headers, hash, recursion_limit: held.recursion_limit };
        // Where it is cut, its first piece goes first.
        let at = outbox.frames.len();
        let (verdict, device) =
            match self.deliver(view, &mut frame, &packet, chosen, outbox, &mut NoRecorder) {
                Ok(verdict @ (Verdict::Send(to) | Verdict::Redirect(to))) => (verdict, Some(to)),
                Ok(verdict @ Verdict::ReplyBy(to)) => (verdict, Some(to)),
                Ok(verdict @ Verdict::Reply) => (verdict, None),
                other => {
                    outbox.take_back(frame);
                    let reason = other.expect_err("what is delivered is emitted or dropped");
                    return self.drop_held(reason);
                }
            };
        self.counters.waits_ended.add(1);
        let actions = &self.counters.fragments;
        let is_sent_on = matches!(verdict, Verdict::Send(_) | Verdict::Redirect(_));
        if is_sent_on { &actions.released } else { &actions.dropped }.add(1);
        outbox.insert(at, Accounting::Released(verdict), device, frame);
    }

    /// A fragment that waited goes nowhere in the end.
    fn drop_held(&self, reason: DropReason) {
        self.counters.waits_ended.add(1);
        self.counters.fragments.dropped.add(1);
        self.counters.count(Verdict::Drop(reason));
    }

    /// Sends a packet where it was decided that it goes.
    fn deliver(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        packet: &Packet<'_>,
        Chosen { matched, backend, slot, second_chance, opening }: &Chosen,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let Packet { headers, hash, .. } = *packet;
        let (service, group) = (view.plan.service_of(matched), view.plan.group_of(matched));
        let class = self.tables.iter().find_map(|table| table.find(hash, service.id));
        let answering = Answering {
            limiter: self.answers.of(class.map(|(entry, _)| entry.class)),
            hash: &self.hash,
            now: self.now,
            return_paths: &view.return_paths,
            counters: self.counters,
        };
        let Some(backend) = *backend else {
            return spill(view, frame, service, packet, answering, outbox);
        };
        recorder.backend(backend);
        let (member, _) = group.member(backend).ok_or(DropReason::NoBackend)?;
        let template = view.egress.template_for(matched.profile, headers.key.family, backend, hash);
        let template = template.ok_or(DropReason::NoNeighbour)?;
        let route = slot.and_then(|slot| match second_chance {
            true => group.earlier_option(slot),
            false => group.route_option(slot, backend),
        });
        let opening = opening.map(|opening| opening.options(&view.plan, group, route));
        let options = opening.as_deref().or(route.map(Emitted::as_slice));
        let outer = OuterHeaders { template, options };
        let verdict = send(frame, &headers.meta(), hash, outer, |_| answering, outbox)?;
        view.counters[self.worker].count(matched, member, headers.packet_bytes);
        Ok(verdict)
    }

    /// The backend that some worker's table names for the flow, if its entry
    /// still decides.
    fn tracked(
        &self,
        view: &View,
        matched: &Matched,
        hash: u64,
        signal: Signal,
    ) -> Option<BackendId> {
        let rules = ServiceRules::of_match(view, matched);
        let (decision, _) = decide_by_tables(&self.tables, rules, hash, signal, hash);
        decision.chosen.filter(|_| decision.why == Why::Tracked).map(|chosen| chosen.backend)
    }

    /// What is decided about a packet of a flow that no table knows.
    fn select(
        &self,
        view: &View,
        matched: &Matched,
        (key, signal): (&FlowKey, Signal),
        hash: u64,
        recorder: &mut impl Recorder,
    ) -> decide::Decision {
        let selector = self.hash.selector(view.plan.service_of(matched), hash, || *key);
        recorder.selects(selector);
        let decision = decide_untracked(ServiceRules::of_match(view, matched), signal, selector);
        if let Some(slot) = decision.slot {
            recorder.selected(slot);
        }
        decision
    }

    /// What selects a TCP packet's bucket, if its service has Multipath TCP.
    fn selection(
        &self,
        matched: &Matched,
        frame: &Frame<'_>,
        headers: &Headers,
        recorder: &mut impl Recorder,
    ) -> Option<Selection> {
        if matched.tracking != Tracking::StatelessMultipath {
            return None;
        }
        let segment = headers.tcp_segment(frame.bytes())?;
        let selection = self.hash.multipath.selection(|| headers.key, segment);
        recorder.multipath(selection);
        self.counters.multipath[selection.index()].add(1);
        Some(selection)
    }

    /// Takes from the service's limit on second chances, and counts.
    fn allows_second_chance(&self, service: &Service) -> bool {
        let limit = service.second_chance.map_or(0, |limit| limit.packets_per_second.get());
        let allows = self.second_chances.allow(service.id, limit, self.now);
        let counters = &self.counters.second_chances;
        if allows { &counters.sent } else { &counters.limited }.add(1);
        allows
    }
}

/// What the tables said.
fn lookup(matched: &Matched, tracked: Option<BackendId>) -> Lookup {
    match tracked {
        _ if matched.tracking.is_stateless() => Lookup::None,
        None => Lookup::Miss,
        Some(_) => Lookup::Hit,
    }
}

/// Where a packet goes.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    matched: Matched,
    /// None: where the service spills.
    backend: Option<BackendId>,
    /// The slot that selected it.
    slot: Option<u32>,
    /// The packet names the backends that earlier tables had in that slot.
    second_chance: bool,
    /// What the packet says to agents, a SYN of a service with Multipath TCP.
    opening: Option<Opening>,
}

/// What follows the IP header.
fn message<'f>(frame: &'f Frame<'_>, headers: &Headers) -> &'f [u8] {
    &frame.bytes()[ethernet::HEADER_BYTES..]
        [usize::from(headers.transport_offset)..usize::from(headers.packet_bytes)]
}
