//! The slow path: decisions that no single worker can make, because they need the tables of all
//! workers, or state that exists once for the machine. One thread; workers pass their frames to
//! it.
//!
//! - ICMP to a VIP: an echo request is answered. An error goes to the backend whose packet it
//!   quotes: found by the quoted five-tuple, reversed, in all workers' tables, then by hash. If
//!   no table knows it, every peer gets a copy, which it forwards only if its tables know
//!   better than the hash.
//! - Fragments that this machine is in charge of: the first is selected like any packet and
//!   remembered, later ones follow it, early ones wait.

use plan::{BackendId, Found, Matched, Tracking};
use wire::tunnel::OPTIONS_BYTES_MAX;
use wire::{Fragment, Frame, Headers, Protocol, ethernet, headers, icmp};

use crate::agent_options::AgentOptions;
use crate::clock::{Clock, Now};
use crate::counters::Counters;
use crate::decapsulate::carry_congestion;
use crate::decide::{self, Known, ServiceRules, Signal, Why, choose_by_tables, choose_untracked};
use crate::drop_reason::DropReason;
use crate::encapsulate::encapsulate;
use crate::flow_hash::FlowHash;
use crate::forward::spill;
use crate::fragment_table::{DatagramKey, Decision, FragmentTable, Held, Part, Room};
use crate::limiter::{FairLimiter, SecondChances};
use crate::multipath::Selection;
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
    second_chances: SecondChances,
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
            second_chances: SecondChances::default(),
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
        let hash = self.hash.flow(&key);
        recorder.hashed(hash);
        // Agents take it where the connection is whose segment it quotes.
        let signal = match key.protocol {
            Protocol::TCP => Signal::Data,
            _ => Signal::Datagram,
        };
        let selector = self.hash.selector(view.plan.service_of(&matched), hash, || key);
        recorder.selects(selector);
        let known = Known::selector(signal, selector);
        let rules = ServiceRules::of_match(view, &matched);
        let by_hash = choose_untracked(rules, known);
        by_hash.slot.into_iter().for_each(|slot| recorder.selected(slot));
        let (decision, _) = choose_by_tables(&self.tables, rules, hash, known);
        let lookup = decision.why.lookup();
        recorder.tracked(lookup);
        let packet = arrived.packet(hash);
        match arrived.recursion_limit.copy() {
            None if lookup != Lookup::Hit || decision.chosen == by_hash.chosen => {
                return Err(DropReason::IcmpCopyRedundant);
            }
            // Of others no peer knows more.
            Some(permitted) if lookup == Lookup::Miss => {
                self.copy_to_peers(view, frame, &packet, permitted, outbox);
            }
            _ => {}
        }
        let options = match decision.why {
            Why::SecondChance if !self.allows_second_chance(view, &matched) => AgentOptions::NONE,
            _ => AgentOptions::of(&decision),
        };
        let chosen = Chosen { matched, backend: backend_of(&decision), options };
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
        let selector = self.hash.selector(view.plan.service_of(&matched), hash, || headers.key);
        let selection = self.selection(&matched, frame, headers, recorder);
        let signal = (&headers.meta()).into();
        let bits = selection.and_then(Selection::bits);
        let known = Known { bits, ..Known::selector(signal, selector) };
        let rules = ServiceRules::of_match(view, &matched);
        let (decision, _) = choose_by_tables(&self.tables, rules, hash, known);
        recorder.tracked(decision.why.lookup());
        if let Some(slot) = decision.slot {
            recorder.selected(slot);
        }
        if !matches!(decision.why, Why::Tracked | Why::Multipath) {
            recorder.selects(selector);
        }
        let (backend, slot) = (backend_of(&decision), decision.slot);
        let remembered = Decision { target: headers.key.target(), backend, slot, hash };
        self.fragments.remember(datagram, Part::of(frame, headers), remembered, self.now);
        self.counters.fragments.first.add(1);
        let options = match decision.why {
            // Later fragments have no ports, so agents send none on.
            Why::SecondChance => AgentOptions::NONE,
            _ => {
                let opening = selection.filter(|_| headers.tcp_flags.opens());
                AgentOptions::of_packet(&decision, opening, rules.group, selector)
            }
        };
        let first = Chosen { matched, backend, options };
        let verdict = self.deliver(view, frame, &arrived.packet(hash), &first, outbox, recorder);
        let chosen = Chosen { options: AgentOptions::of_slot(slot), ..first };
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
        let chosen = Chosen { matched, backend, options: AgentOptions::of_slot(slot) };
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
        Chosen { matched, backend, options }: &Chosen,
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
        let mut room = [0; OPTIONS_BYTES_MAX];
        let options = options.bytes(&view.plan, group, backend, &mut room);
        let outer = OuterHeaders { template, options };
        let verdict = send(frame, &headers.meta(), hash, outer, |_| answering, outbox)?;
        view.counters[self.worker].count(matched, member, headers.packet_bytes);
        Ok(verdict)
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

    fn allows_second_chance(&self, view: &View, matched: &Matched) -> bool {
        self.second_chances.allow(view, matched, self.now, self.counters)
    }
}

fn backend_of(decision: &decide::Decision) -> Option<BackendId> {
    decision.chosen.map(|chosen| chosen.backend)
}

/// Where a packet goes.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    matched: Matched,
    /// None: where the service spills.
    backend: Option<BackendId>,
    /// What it says to agents.
    options: AgentOptions,
}

/// What follows the IP header.
fn message<'f>(frame: &'f Frame<'_>, headers: &Headers) -> &'f [u8] {
    &frame.bytes()[ethernet::HEADER_BYTES..]
        [usize::from(headers.transport_offset)..usize::from(headers.packet_bytes)]
}
