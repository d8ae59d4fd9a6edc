//! Explains where a packet goes and why, for any five-tuple without a packet: by the same
//! stages, without changing anything.

use plan::{BackendId, Found, Matched, Service, Tracking};
use wire::tunnel::route_option::RouteOption;
use wire::tunnel::{OPTIONS_BYTES_MAX, geneve};
use wire::{CHUNK_BYTES, FlowKey, Frame, PacketMeta, Protocol, ethernet, tcp};

use crate::agent_options::AgentOptions;
use crate::connection_id;
use crate::decide::{
    Known, ServiceRules, Signal, TrackedBy, Why, choose_by_tables, choose_untracked,
};
use crate::drop_reason::DropReason;
use crate::encapsulate::Unsendable;
use crate::flow_hash::FlowHash;
use crate::multipath::{FLAGS_OFFSET, Selection};
use crate::next_hop::NextHop;
use crate::send::OuterHeaders;
use crate::table::{EntryClass, TableReader};
use crate::view::View;

/// Everything that decides about a flow.
#[derive(Debug, Clone, Default)]
pub struct Explanation {
    /// The service, and by which match. None: see `end`.
    pub matched: Option<Matched>,
    /// The flow hash.
    pub hash: u64,
    /// What selects: the flow hash, or the client's, or a stateless service's.
    pub selector: u64,
    /// The selector's slot: the Maglev table's, or the bucket.
    pub slot: Option<u32>,
    /// The backend in that slot.
    pub by_hash: Option<BackendId>,
    /// What a connection table knows.
    pub tracked: Option<Tracked>,
    /// The backend that the next packet (no SYN) of the flow goes to.
    pub backend: Option<BackendId>,
    /// The next hop.
    pub hop: Option<NextHop>,
    /// The route option that the packet carries.
    pub option: Option<RouteOption>,
    /// It has the backends of earlier tables.
    pub second_chance: bool,
    /// What the QUIC connection id says; None: none was given, or it counts for nothing.
    pub connection_id: Option<connection_id::Explained>,
    /// What the TCP header selects by, and its bucket; None: none was given, or the
    /// service goes by the five-tuple alone.
    pub multipath: Option<(Selection, Option<u32>)>,
    /// The outer headers of a packet of 40 bytes (60 for IPv6), from Ethernet
    /// on.
    pub outer: Vec<u8>,
    /// Why the flow goes nowhere; None: it goes to the backend, or, without a
    /// match, to the kernel.
    pub end: Option<DropReason>,
}

/// An entry of a connection table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    /// The worker whose table it is.
    pub worker: usize,
    /// The backend.
    pub backend: BackendId,
    /// The class.
    pub class: EntryClass,
    /// Since it was written, in milliseconds.
    pub idle_ms: u64,
    /// It decides: it has not expired, and the plan lets its backend keep it.
    pub decides: bool,
}

/// What of a packet is known, beside its flow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Details<'d> {
    /// Its QUIC connection id.
    pub connection_id: Option<&'d [u8]>,
    /// Its TCP header.
    pub tcp_header: Option<&'d [u8]>,
}

/// Explains what becomes of a flow's packets, or of one of which more is known.
#[must_use]
pub fn explain(
    view: &View,
    hash: &FlowHash,
    tables: &[TableReader<'_>],
    key: &FlowKey,
    details: Details<'_>,
) -> Explanation {
    let flow = hash.flow(key);
    let mut told = Explanation { hash: flow, selector: flow, ..Explanation::default() };
    let matched = match view.plan.vips.find(&key.target()) {
        Found::Service(matched) => matched,
        Found::NoService { pass: false } => {
            return Explanation { end: Some(DropReason::NoService), ..told };
        }
        Found::NoService { pass: true } | Found::NotVip => return told,
    };
    told.matched = Some(matched);
    let service = view.plan.service_of(&matched);
    told.selector = hash.selector(service, flow, || *key);
    let rules = ServiceRules::of_match(view, &matched);
    let signal = details.tcp_header.and_then(signal_of).unwrap_or_else(|| data_of(key));
    let by_flow = Known::selector(signal, told.selector);
    let by_hash = choose_untracked(rules, by_flow);
    told.slot = by_hash.slot;
    told.by_hash = by_hash.slot.and(by_hash.chosen).map(|chosen| chosen.backend);
    told.connection_id = details.connection_id.and_then(|id| read(hash, service, key, id));
    let connection_id = told.connection_id.as_ref().and_then(|said| said.named.ok());
    let selection = details.tcp_header.and_then(|header| select(hash, &matched, key, header));
    let bits = selection.and_then(Selection::bits);
    let known = Known { connection_id, bits, ..by_flow };
    let (decision, tracked) = choose_by_tables(tables, rules, flow, known);
    told.multipath = selection.map(|selection| (selection, decision.slot));
    told.tracked = tracked.map(|TrackedBy { worker, entry, idle_ms }| {
        let decides = decision.why == Why::Tracked;
        Tracked { worker, backend: entry.backend, class: entry.class, idle_ms, decides }
    });
    told.backend = decision.chosen.map(|chosen| chosen.backend);
    let Some(backend) = told.backend else {
        return Explanation { end: Some(DropReason::NoBackend), ..told };
    };
    let Some(template) = view.egress.template_for(matched.profile, key.family, backend, flow)
    else {
        return Explanation { end: Some(DropReason::NoNeighbour), ..told };
    };
    told.hop = Some(template.next_hop());
    let mut chunk = [0; CHUNK_BYTES];
    let (mut frame, meta) = small_packet(key, &mut chunk);
    told.second_chance = decision.why == Why::SecondChance;
    let (group, mut room) = (rules.group, [0; OPTIONS_BYTES_MAX]);
    let opening = selection.filter(|_| signal == Signal::Syn);
    let options = AgentOptions::of_packet(&decision, opening, group, told.selector);
    let options = options.bytes(&view.plan, group, backend, &mut room);
    told.option = options
        .into_iter()
        .flat_map(geneve::options)
        .flatten()
        .find_map(|option| RouteOption::parse(&option)?.ok());
    match (OuterHeaders { template, options }).encapsulate(&mut frame, &meta, flow) {
        Ok(()) => {
            told.outer = frame.bytes()[..frame.len() - usize::from(meta.packet_bytes)].to_vec();
        }
        Err(Unsendable::HopLimit) => told.end = Some(DropReason::HopLimit),
        Err(Unsendable::TooBig { .. }) => told.end = Some(DropReason::TooBig),
    }
    told
}

/// A packet without content, for the headers that are put in front of it.
fn small_packet<'c>(key: &FlowKey, chunk: &'c mut [u8; CHUNK_BYTES]) -> (Frame<'c>, PacketMeta) {
    let packet_bytes = if key.family == wire::Family::V4 { 40 } else { 60 };
    let meta = PacketMeta {
        family: key.family,
        protocol: key.protocol,
        tcp_flags: tcp::Flags::default(),
        traffic_class: 0,
        packet_bytes,
    };
    let mut packet = [0; 74];
    packet[21..23].fill(64); // the hop limit of IPv6, the TTL of IPv4
    let packet = &packet[..ethernet::HEADER_BYTES + usize::from(packet_bytes)];
    (Frame::copy_of(chunk, packet).expect("a chunk holds a small frame"), meta)
}

/// What a connection id says, if the service follows any for this flow.
fn read(
    hash: &FlowHash,
    service: &Service,
    key: &FlowKey,
    id: &[u8],
) -> Option<connection_id::Explained> {
    let quic_lb = service.quic_lb.as_ref().filter(|_| key.protocol == Protocol::UDP)?;
    Some(hash.connection_ids.explain(quic_lb, &service.group, id))
}

/// What a TCP header selects by, if the service goes by more than the flow.
fn select(hash: &FlowHash, matched: &Matched, key: &FlowKey, header: &[u8]) -> Option<Selection> {
    let reads = matched.tracking == Tracking::StatelessMultipath && key.protocol == Protocol::TCP;
    reads.then(|| hash.multipath.selection(|| *key, header))
}

/// What a segment with that TCP header says about its connection.
fn signal_of(header: &[u8]) -> Option<Signal> {
    Some(Signal::of_tcp(tcp::Flags(*header.get(FLAGS_OFFSET)?)))
}

/// What a packet that opens nothing says.
fn data_of(key: &FlowKey) -> Signal {
    match key.protocol {
        Protocol::TCP => Signal::Data,
        _ => Signal::Datagram,
    }
}
