//! THE packet's journey: the specification of what Guideway does with a
//! packet. [`crate::batch`] does the same to many at once.

use std::cell::Cell;

use plan::{Found, Matched, Service, Tracking};
use wire::tunnel::OPTIONS_BYTES_MAX;
use wire::{Family, FlowKey, Fragment, Frame, Headers, PacketMeta, Protocol, headers};

use crate::agent_options::AgentOptions;
use crate::batch::Needs;
use crate::clock::{Clock, Now};
use crate::counters::Counters;
use crate::decapsulate::decapsulate;
use crate::decide::{ChosenMember, Decision, Effect, Evidence, Rules, Why, choose};
use crate::drop_reason::DropReason;
use crate::flow_hash::FlowHash;
use crate::kernel_cache::{CacheRegion, EntryWriters};
use crate::limiter::SecondChances;
use crate::multipath::is_requested;
use crate::outbox::Outbox;
use crate::packet::{Arrived, Packet};
use crate::recorder::{Journey, Lookup, Recorder};
use crate::recursion_limit::RecursionLimit;
use crate::secret::Secret;
use crate::send::{AnswerLimits, Answering, OuterHeaders, redirect, send};
use crate::table::{ConnectionTable, Entry, EntryClass, Expiry, FoundEntry, Ticks};
use crate::trace::{Mark, Reporter, Traced, Tracer};
use crate::verdict::{DeviceIndex, Verdict};
use crate::view::{View, WorkerCounters};
use crate::worker_evidence::{Kind, Undecided, WorkerEvidence};

/// What one worker forwards with.
#[derive(Debug)]
pub struct Datapath<'m> {
    pub(crate) hash: FlowHash,
    pub(crate) table: ConnectionTable<'m>,
    pub(crate) counters: &'m Counters,
    pub(crate) ticks: Ticks,
    tracer: Tracer,
    answers: AnswerLimits,
    pub(crate) second_chances: SecondChances,
    clock: Clock,
    worker: usize,
    /// What the last batch's packets were chosen by.
    pub(crate) needs: Cell<Needs>,
    /// Of the worker's queues; None: no device has one.
    pub(crate) kernel_cache: Option<EntryWriters<'m>>,
}

impl<'m> Datapath<'m> {
    /// A datapath for the worker of that index.
    #[must_use]
    pub fn new(
        secret: &Secret,
        table: ConnectionTable<'m>,
        counters: &'m Counters,
        clock: Clock,
        worker: usize,
    ) -> Datapath<'m> {
        Datapath {
            hash: FlowHash::new(secret),
            table,
            counters,
            ticks: Ticks::new(Now(0)),
            tracer: Tracer::new(secret),
            answers: AnswerLimits::default(),
            second_chances: SecondChances::default(),
            clock,
            worker,
            needs: Cell::default(),
            kernel_cache: None,
        }
    }

    /// From now on the kernel may send what the worker has entered there: a region for
    /// each device that has a cache.
    pub fn set_kernel_cache(
        &mut self,
        regions: impl IntoIterator<Item = (DeviceIndex, CacheRegion<'m>)>,
    ) {
        self.kernel_cache = Some(EntryWriters::new(regions, &self.counters.kernel_cache));
    }

    /// The next frames come in by that device.
    #[inline]
    pub fn receive_from(&mut self, device: DeviceIndex) {
        if let Some(cache) = &mut self.kernel_cache {
            cache.receive_from(device);
        }
    }

    /// The worker's connection table.
    #[must_use]
    pub fn table(&self) -> &ConnectionTable<'m> {
        &self.table
    }

    /// To be called once before each batch, and while idle: sets the time in
    /// milliseconds of a monotonic clock, and sweeps the connection table a
    /// little further.
    pub fn begin(&mut self, now_ms: u32, view: &View) {
        self.ticks = Ticks::new(self.clock.advance(now_ms));
        // First, so that no entry expires whose flow the kernel has sent packets of.
        if let Some(cache) = &mut self.kernel_cache {
            let (table, ticks) = (&self.table, &self.ticks);
            cache.begin(ticks.now(), |hash, service| table.refresh(hash, service, ticks));
        }
        self.table.sweep(&self.ticks, &view.plan, &view.lifetimes, &self.counters.connections);
    }

    /// Decides what becomes of a frame, and makes it ready for that. Frames
    /// originated on the way wait in `outbox`.
    pub fn forward(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Verdict {
        self.journey(view, frame, outbox, recorder).unwrap_or_else(Verdict::Drop)
    }

    fn journey(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let Some(arrived) = receive(view, frame)? else { return Ok(Verdict::Pass) };
        match self.recognise(view, frame, &arrived.headers) {
            Some(mark) => Ok(self.traced(view, frame, &arrived, &mark, outbox)),
            None => self.onward(view, frame, &arrived, Remember::of(frame), outbox, recorder),
        }
    }

    fn onward(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        arrived: &Arrived,
        remember: Remember,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let headers = &arrived.headers;
        recorder.parsed(&headers.key);

        let matched = match match_service(view, headers)? {
            Destination::Service(matched) => matched,
            Destination::Kernel if arrived.tunnelled => return Err(DropReason::NoService),
            Destination::Kernel => return Ok(Verdict::Pass),
            Destination::SlowPath => return Ok(Verdict::Slow(arrived.recursion_limit)),
            Destination::Owner => return self.to_owner(view, frame, arrived, outbox),
        };
        recorder.matched(matched);

        let (hash, meta) = (self.hash.flow(&headers.key), headers.meta());
        recorder.hashed(hash);
        let packet = Undecided {
            matched: &matched,
            kind: Kind::of_packet(matched.tracking, &meta),
            frame,
            meta: &meta,
            headers: Some(headers),
            hash,
            bucket_hash: None,
        };
        let (decision, options) = self.choose(view, packet, remember, recorder);
        match decision.why.lookup() {
            Lookup::Hit => self.counters.connections.hits.add(1),
            Lookup::Miss => self.counters.connections.misses.add(1),
            Lookup::None => {}
        }
        let Some(chosen) = decision.chosen else {
            return self.spill(view, frame, &matched, &arrived.packet(hash), outbox);
        };
        recorder.backend(chosen.backend);
        self.send_to(view, frame, (&meta, hash), &matched, (chosen, &options), outbox)
    }

    /// Sends a packet to the member that was chosen, with what it says to agents.
    pub(crate) fn send_to(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        (meta, hash): (&PacketMeta, u64),
        matched: &Matched,
        (ChosenMember { member, backend }, options): (ChosenMember, &AgentOptions),
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let template = view.egress.template_for(matched.profile, meta.family, backend, hash);
        let template = template.ok_or(DropReason::NoNeighbour)?;
        let (group, mut room) = (view.plan.group_of(matched), [0; OPTIONS_BYTES_MAX]);
        let options = options.bytes(&view.plan, group, backend, &mut room);
        let outer = OuterHeaders { template, options };
        let answering = |headers: &_| self.answering_about(view, hash, headers);
        let verdict = send(frame, meta, hash, outer, answering, outbox)?;
        self.counters_of(view).count(matched, member, meta.packet_bytes);
        Ok(verdict)
    }

    /// The packet's mark, if it is traced.
    #[inline]
    pub(crate) fn recognise(
        &self,
        view: &View,
        frame: &Frame<'_>,
        headers: &Headers,
    ) -> Option<Mark> {
        let now = self.ticks.now();
        self.tracer.recognise(frame, headers, now, || view.unix_ms(now))
    }

    /// Forwards a marked packet and reports on it (paper 4.4).
    #[cold]
    pub(crate) fn traced(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        arrived: &Arrived,
        mark: &Mark,
        outbox: &mut Outbox<'m>,
    ) -> Verdict {
        let mut journey = Journey::default();
        let traced = Traced::new(*mark, frame, arrived.recursion_limit);
        let verdict = self
            .onward(view, frame, arrived, Remember::Nothing, outbox, &mut journey)
            .unwrap_or_else(Verdict::Drop);
        let reporter = Reporter { view, worker: self.worker, counters: self.counters };
        reporter.report(&traced, verdict, &journey, frame, outbox);
        verdict
    }

    /// Decides which backend gets a packet and what it says to agents; and remembers it
    /// (paper 3.4).
    #[inline(always)]
    pub(crate) fn choose(
        &self,
        view: &View,
        packet: Undecided<'_, '_>,
        remember: Remember,
        recorder: &mut impl Recorder,
    ) -> (Decision, AgentOptions) {
        self.count_unserved(packet);
        let (group, tracking) = (view.plan.group_of(packet.matched), packet.kind.tracking);
        let rules = Rules { tracking, ..self.rules(view, packet.matched) };
        let mut evidence = WorkerEvidence::new(self, view, packet);
        let decision = choose(&rules, &mut evidence);
        evidence.record(recorder);
        recorder.tracked(decision.why.lookup());
        decision.slot.into_iter().for_each(|slot| recorder.selected(slot));
        if decision.why == Why::SecondChance {
            recorder.second_chance();
        }
        let options = match (packet.kind.opens, evidence.key) {
            (false, _) => AgentOptions::of(&decision),
            (true, key) => AgentOptions::of_opening(&decision, key, group, || evidence.selector()),
        };
        self.remember(view, packet, evidence.found, remember, &decision);
        (decision, options)
    }

    /// Counts a SYN that requests Multipath TCP of a service that has none, whose joins
    /// will find no way to its backend. A join port's SYNs are joins.
    #[inline(always)]
    fn count_unserved(&self, packet: Undecided<'_, '_>) {
        if !packet.meta.tcp_flags.opens() {
            return;
        }
        let is_served =
            matches!(packet.kind.tracking, Tracking::StatelessMultipath | Tracking::JoinPort);
        if !is_served && packet.tcp_segment().is_some_and(is_requested) {
            self.counters.multipath_unserved.add(1);
        }
    }

    /// Writes what was decided into the connection table.
    #[inline(always)]
    fn remember(
        &self,
        view: &View,
        Undecided { matched, hash, .. }: Undecided<'_, '_>,
        found: Option<FoundEntry<'_>>,
        remember: Remember,
        decision: &Decision,
    ) {
        match (decision.effect, found, decision.chosen) {
            (Effect::Update(entry), Some(found), _) if remember != Remember::Nothing => {
                let entry = self.within_share(view, hash, found.entry().class, entry);
                self.table.update(&found, hash, entry);
            }
            (Effect::Insert(entry), found, Some(chosen)) if remember == Remember::All => {
                let service = view.plan.service_of(matched);
                self.counters_of(view).count_new_connection(matched, chosen.member);
                let (expiry, counters) = (&self.expiry(view), &self.counters.connections);
                self.table.insert(hash, found, entry, service.quota, expiry, counters);
            }
            _ => {}
        }
    }

    /// The entry that is written where `entry` was decided: of a service that
    /// has its share of the table, beside others, it stays unconfirmed.
    #[inline]
    fn within_share(&self, view: &View, hash: u64, before: EntryClass, entry: Entry) -> Entry {
        let confirms = before == EntryClass::Unconfirmed && entry.class != EntryClass::Unconfirmed;
        let is_alone = || view.plan.services().nth(1).is_none();
        if !confirms || !self.table.is_at_share(hash, entry.service) || is_alone() {
            return entry;
        }
        self.counters.connections.unconfirmed_at_share.add(1);
        Entry {
            class: EntryClass::Unconfirmed,
            time: self.ticks.of(EntryClass::Unconfirmed),
            ..entry
        }
    }

    /// Sends a packet that no backend can serve to another cluster (paper
    /// 4.2); never one that was spilled already.
    #[cold]
    pub(crate) fn spill(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        matched: &Matched,
        packet: &Packet<'_>,
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let (service, answering) = (view.plan.service_of(matched), self.answering(view, None));
        spill(view, frame, service, packet, answering, outbox)
    }

    /// Sends a fragment to the machine in charge of its datagram (paper 4.3);
    /// never one that was redirected already.
    #[cold]
    pub(crate) fn to_owner(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        arrived: &Arrived,
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let Arrived { headers, recursion_limit, .. } = arrived;
        let hash = self.hash.flow(&three_tuple(&headers.key));
        let (Some(permitted), Some(peer)) = (recursion_limit.redirect(), view.egress.owner(hash))
        else {
            return Ok(Verdict::Slow(*recursion_limit));
        };
        let template = view.egress.template_for_peer(peer, permitted, headers.key.family, hash);
        let template = template.ok_or(DropReason::NoNeighbour)?;
        let answering = self.answering(view, None);
        let verdict = redirect(frame, &arrived.packet(hash), template, answering, outbox)?;
        self.counters.fragments.redirected.add(1);
        Ok(verdict)
    }

    /// What answers to packets of a flow need.
    #[cold]
    pub(crate) fn answering_about<'a>(
        &'a self,
        view: &'a View,
        hash: u64,
        headers: &Headers,
    ) -> Answering<'a> {
        let class = match match_service(view, headers) {
            Ok(Destination::Service(matched)) => self.table.find(hash, matched.service),
            _ => None,
        };
        self.answering(view, class.map(|slot| slot.entry().class))
    }

    fn answering<'a>(&'a self, view: &'a View, class: Option<EntryClass>) -> Answering<'a> {
        Answering {
            limiter: self.answers.of(class),
            hash: &self.hash,
            now: self.ticks.now(),
            return_paths: &view.return_paths,
            counters: self.counters,
        }
    }

    /// What a match's packets are decided by now.
    #[inline(always)]
    pub(crate) fn rules<'v>(&'v self, view: &'v View, matched: &Matched) -> Rules<'v> {
        let (service, tracking) = (matched.service, matched.tracking);
        let (group, expiry) = (view.plan.group_of(matched), self.expiry(view));
        Rules { service, tracking, group, expiry }
    }

    #[inline(always)]
    fn expiry<'v>(&'v self, view: &'v View) -> Expiry<'v> {
        Expiry { lifetimes: &view.lifetimes, ticks: &self.ticks }
    }

    #[inline]
    pub(crate) fn counters_of<'v>(&self, view: &'v View) -> &'v WorkerCounters {
        &view.counters[self.worker]
    }
}

/// What of a decision is written into the connection table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remember {
    All,
    /// Updates only: of a packet at another worker than its flow's.
    Known,
    /// Of a traced packet, which only looks.
    Nothing,
}

impl Remember {
    #[inline]
    pub(crate) fn of(frame: &Frame<'_>) -> Remember {
        if frame.is_misdirected() { Remember::Known } else { Remember::All }
    }
}

/// Parses the frame, and takes it out of its tunnel if it came in one; None:
/// not an IP packet.
#[inline]
pub(crate) fn receive(view: &View, frame: &mut Frame<'_>) -> Result<Option<Arrived>, DropReason> {
    let Some(headers) = headers::parse(frame.bytes())? else { return Ok(None) };
    if !view.takes_tunnel(&headers.key) {
        return Ok(Some(Arrived {
            headers,
            recursion_limit: RecursionLimit::FRESH,
            tunnelled: false,
        }));
    }
    let (headers, recursion_limit) = decapsulate(frame, &headers, &view.plan.ingress)?;
    Ok(Some(Arrived { headers, recursion_limit, tunnelled: true }))
}

/// Sends a packet to the cluster that its service spills to.
pub(crate) fn spill<'m>(
    view: &View,
    frame: &mut Frame<'_>,
    service: &Service,
    packet: &Packet<'_>,
    answering: Answering<'_>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    let Packet { headers, hash, recursion_limit } = packet;
    let has_cluster = service.spill.iter().any(|spill| spill.family == headers.key.family);
    let Some(permitted) = recursion_limit.spill().filter(|_| has_cluster) else {
        return Err(DropReason::NoBackend);
    };
    let spilled =
        view.egress.template_for_spill(&view.plan, service, &headers.key, *hash, permitted);
    let (_, template) = spilled.ok_or(DropReason::NoNeighbour)?;
    let verdict = redirect(frame, packet, &template, answering, outbox)?;
    answering.counters.spilled.add(1);
    Ok(verdict)
}

/// What all fragments of a datagram share: no ports; and no protocol for
/// IPv6, whose first fragment may name another header than the later ones.
pub(crate) fn three_tuple(key: &FlowKey) -> FlowKey {
    const FRAGMENT_HEADER: Protocol = Protocol(44);
    let protocol = match key.family {
        Family::V4 => key.protocol,
        Family::V6 => FRAGMENT_HEADER,
    };
    FlowKey { protocol, source_port: 0, destination_port: 0, ..*key }
}

/// Where a packet goes on.
pub(crate) enum Destination {
    /// A service has it.
    Service(Matched),
    /// No VIP has its address.
    Kernel,
    /// It needs more than one worker knows.
    SlowPath,
    /// The machine in charge of its datagram.
    Owner,
}

/// Who is to deal with the packet (paper 4.2).
#[inline(always)]
pub(crate) fn match_service(view: &View, headers: &Headers) -> Result<Destination, DropReason> {
    if headers.fragment != Fragment::Whole
        || matches!(headers.key.protocol, Protocol::ICMP | Protocol::ICMPV6)
    {
        return match_address(view, headers);
    }
    destination(view.plan.vips.find(&headers.key.target()))
}

/// Who is to deal with a packet whose ports were looked up.
#[inline(always)]
pub(crate) fn destination(found: Found) -> Result<Destination, DropReason> {
    match found {
        Found::Service(matched) => Ok(Destination::Service(matched)),
        Found::NoService { pass: false } => Err(DropReason::NoService),
        Found::NoService { pass: true } | Found::NotVip => Ok(Destination::Kernel),
    }
}

/// Who is to deal with a packet whose ports say nothing.
#[cold]
fn match_address(view: &View, headers: &Headers) -> Result<Destination, DropReason> {
    let is_icmp = matches!(headers.key.protocol, Protocol::ICMP | Protocol::ICMPV6);
    match view.plan.vips.address(headers.key.family, headers.key.destination) {
        None => Ok(Destination::Kernel),
        Some(_) if headers.fragment == Fragment::Whole => Ok(Destination::SlowPath),
        Some(info) if info.fragments && !is_icmp => Ok(Destination::Owner),
        Some(_) => Err(DropReason::Fragment),
    }
}
