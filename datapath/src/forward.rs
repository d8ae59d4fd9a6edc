//! THE packet's journey: the specification of what Guideway does with a
//! packet. [`crate::batch`] does the same to many at once.

use plan::{Affinity, BackendId, Found, Matched, Service};
use wire::{Family, FlowKey, Fragment, Frame, Headers, Protocol, headers};

use crate::clock::{Clock, Now};
use crate::counters::Counters;
use crate::decapsulate::{Budget, decapsulate};
use crate::drop_reason::DropReason;
use crate::encapsulate::Style;
use crate::flow_hash::FlowHash;
use crate::limiter::Limiter;
use crate::outbox::Outbox;
use crate::recorder::{Lookup, Recorder};
use crate::send::{ANSWERS_PER_SECOND, Answering, Way, redirect, send};
use crate::table::{ConnectionTable, Ticks};
use crate::track::track;
use crate::verdict::Verdict;
use crate::view::{View, WorkerCounters};

/// What one worker forwards with.
#[derive(Debug)]
pub struct Datapath<'m> {
    pub(crate) hash: FlowHash,
    pub(crate) table: ConnectionTable<'m>,
    pub(crate) counters: &'m Counters,
    pub(crate) ticks: Ticks,
    limiter: Limiter,
    clock: Clock,
    worker: usize,
}

impl<'m> Datapath<'m> {
    /// A datapath for the worker of that index.
    #[must_use]
    pub fn new(
        hash: FlowHash,
        table: ConnectionTable<'m>,
        counters: &'m Counters,
        clock: Clock,
        worker: usize,
    ) -> Datapath<'m> {
        let limiter = Limiter::new(ANSWERS_PER_SECOND);
        Datapath { hash, table, counters, ticks: Ticks::new(Now(0)), limiter, clock, worker }
    }

    /// The worker's connection table.
    #[must_use]
    pub fn table(&self) -> &ConnectionTable<'m> {
        &self.table
    }

    /// To be called once before each batch, and while idle: tells the time in
    /// milliseconds of a monotonic clock, and sweeps the connection table a
    /// little further.
    pub fn begin(&mut self, now_ms: u32, view: &View) {
        self.ticks = Ticks::new(self.clock.advance(now_ms));
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
        let Some(headers) = headers::parse(frame.bytes())? else { return Ok(Verdict::Pass) };
        let tunnelled = view.takes_tunnel(&headers.key);
        let (headers, budget) = match tunnelled {
            true => decapsulate(frame, &headers, &view.plan.ingress)?,
            false => (headers, Budget::FRESH),
        };
        recorder.parsed(&headers.key);

        let matched = match match_service(view, &headers)? {
            Destination::Service(matched) => matched,
            Destination::Kernel if tunnelled => return Err(DropReason::NoService),
            Destination::Kernel => return Ok(Verdict::Pass),
            Destination::SlowPath => return Ok(Verdict::Slow(budget)),
            Destination::Owner => return self.to_owner(view, frame, &headers, budget, outbox),
        };
        recorder.matched(matched);
        let service = view.plan.service(matched.service).expect("a match names a service of its plan");

        let hash = self.hash.flow(&headers.key);
        let chosen = self.track(view, service, &headers, hash, recorder);
        let chosen = chosen.or_else(|| self.select(view, service, &headers, hash, recorder));
        let Some((member, backend)) = chosen else {
            return self.spill(view, frame, service, &headers, (hash, budget), outbox);
        };
        recorder.backend(backend);

        let (tunnel, hop) = view.egress.toward(backend, hash).ok_or(DropReason::NoNeighbour)?;
        let way = Way { tunnel, hop, style: Style::to_backend(service) };
        let verdict = send(frame, &headers, hash, way, self.answering(view), outbox)?;

        self.count(view, matched, service, member, &headers);
        Ok(verdict)
    }

    /// The backend that the connection keeps.
    #[inline]
    pub(crate) fn track(
        &self,
        view: &View,
        service: &Service,
        headers: &Headers,
        hash: u64,
        recorder: &mut impl Recorder,
    ) -> Option<(u16, BackendId)> {
        let counters = &self.counters.connections;
        let kept = track(&self.table, service, headers, hash, &self.ticks, &view.lifetimes, counters);
        recorder.tracked(if kept.is_some() { Lookup::Hit } else { Lookup::Miss });
        kept.map(|kept| (kept.member, kept.backend))
    }

    /// The backend in charge of the flow, by Maglev hashing (paper 3.4), and
    /// remembers it; None: no backend takes new connections.
    #[inline]
    pub(crate) fn select(
        &self,
        view: &View,
        service: &Service,
        headers: &Headers,
        hash: u64,
        recorder: &mut impl Recorder,
    ) -> Option<(u16, BackendId)> {
        let selector = match service.affinity {
            Affinity::Flow => hash,
            Affinity::Client => self.hash.client(&headers.key),
        };
        recorder.hashed(hash, selector);
        let selected = service.group.select(selector)?;
        recorder.selected(selected.slot);
        self.counters_of(view).members[service.first_member as usize + usize::from(selected.member)].new_connections.add(1);
        self.table.insert(
            hash,
            service.id,
            selected.backend,
            service.quota,
            &self.ticks,
            &view.lifetimes,
            &self.counters.connections,
        );
        Some((selected.member, selected.backend))
    }

    /// Sends a packet that no backend can serve to another cluster (paper
    /// 4.2); never one that was spilled already.
    #[cold]
    pub(crate) fn spill(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        service: &Service,
        headers: &Headers,
        (hash, budget): (u64, Budget),
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        spill(view, frame, service, headers, (hash, budget), (self.counters, self.answering(view)), outbox)
    }

    /// Sends a fragment to the machine in charge of its datagram (paper 4.3);
    /// never one that was redirected already.
    #[cold]
    pub(crate) fn to_owner(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        headers: &Headers,
        budget: Budget,
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let hash = self.hash.flow(&three_tuple(&headers.key));
        let owner = view.plan.owners.owner(hash).filter(|_| budget > Budget::REDIRECTED);
        let Some(peer) = owner else { return Ok(Verdict::Slow(budget)) };
        let (tunnel, hop) = view.egress.toward_peer(peer, hash).ok_or(DropReason::NoNeighbour)?;
        let way = Way { tunnel, hop, style: Style::to_balancer(Budget::REDIRECTED) };
        let verdict = redirect(frame, headers, hash, way, self.answering(view), outbox)?;
        self.counters.fragments.redirected.add(1);
        Ok(verdict)
    }

    #[inline]
    pub(crate) fn count(&self, view: &View, matched: Matched, service: &Service, member: u16, headers: &Headers) {
        let counters = self.counters_of(view);
        counters.matches[matched.matched as usize].count(headers.packet_bytes);
        counters.members[service.first_member as usize + usize::from(member)].traffic.count(headers.packet_bytes);
    }

    #[inline]
    pub(crate) fn answering(&self, view: &View) -> Answering<'_> {
        Answering { limiter: &self.limiter, now: self.ticks.now(), link: view.reply_link }
    }

    #[inline]
    fn counters_of<'v>(&self, view: &'v View) -> &'v WorkerCounters {
        &view.counters[self.worker]
    }
}

/// Sends a packet to the cluster that its service spills to.
pub(crate) fn spill<'m>(
    view: &View,
    frame: &mut Frame<'_>,
    service: &Service,
    headers: &Headers,
    (hash, budget): (u64, Budget),
    (counters, answering): (&Counters, Answering<'_>),
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    if service.spill.is_empty() || budget <= Budget::SPILLED {
        return Err(DropReason::NoBackend);
    }
    let there = view.egress.toward_spill(&view.plan, service, &headers.key, hash);
    let (tunnel, hop) = there.ok_or(DropReason::NoNeighbour)?;
    let way = Way { tunnel: &tunnel, hop, style: Style::to_balancer(Budget::SPILLED) };
    let verdict = redirect(frame, headers, hash, way, answering, outbox)?;
    counters.spilled.add(1);
    Ok(verdict)
}

/// What all fragments of a datagram share: no ports; and no protocol for
/// IPv6, whose first fragment may name another header than the later ones.
fn three_tuple(key: &FlowKey) -> FlowKey {
    const FRAGMENT_HEADER: Protocol = Protocol(44);
    let protocol = match key.family {
        Family::V4 => key.protocol,
        Family::V6 => FRAGMENT_HEADER,
    };
    FlowKey { protocol, source_port: 0, destination_port: 0, ..*key }
}

/// Who is to deal with a packet.
pub(crate) enum Destination {
    /// A service wants it.
    Service(Matched),
    /// No VIP has its address.
    Kernel,
    /// It needs more than one worker knows.
    SlowPath,
    /// The machine in charge of its datagram.
    Owner,
}

/// Who is to deal with the packet (paper 4.2).
#[inline]
pub(crate) fn match_service(view: &View, headers: &Headers) -> Result<Destination, DropReason> {
    if headers.fragment != Fragment::Whole || matches!(headers.key.protocol, Protocol::ICMP | Protocol::ICMPV6) {
        return match_address(view, headers);
    }
    match view.plan.vips.find(&headers.key) {
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
