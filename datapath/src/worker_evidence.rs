//! What a worker finds out about a packet when the decision needs it.
//!
//! All of it is inlined into the loops over a batch: passed by reference to a function, it
//! would be in memory, which costs some twenty instructions per packet.

use plan::{Affinity, Group, Matched, Tracking};
use wire::{FlowKey, Frame, Headers, PacketMeta, plain, tcp_options};

use crate::by_flow::ByFlow;
use crate::decide::{ChosenMember, Evidence, Signal};
use crate::forward::Datapath;
use crate::multipath::Selection;
use crate::recorder::Recorder;
use crate::send::headers_of;
use crate::table::{Entry, FoundEntry};
use crate::view::View;

/// Of which kind a packet is, as far as code differs for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Whether connections of its service are tracked.
    pub tracking: Tracking,
    /// It is a SYN of a service with Multipath TCP, which says more than others.
    pub opens: bool,
}

impl Kind {
    /// Of packets that say no more than others.
    pub const fn of(tracking: Tracking) -> Kind {
        Kind { tracking, opens: false }
    }

    /// That of a packet of a service that is tracked so.
    #[inline(always)]
    pub fn of_packet(tracking: Tracking, meta: &PacketMeta) -> Kind {
        let opens = tracking == Tracking::StatelessMultipath && meta.tcp_flags.opens();
        Kind { tracking, opens }
    }
}

/// A packet that is to be decided about.
#[derive(Clone, Copy)]
pub(crate) struct Undecided<'a, 'f> {
    /// The service that has it.
    pub matched: &'a Matched,
    /// Follows from the match and from what was read: a loop over packets of one kind
    /// knows it before.
    pub kind: Kind,
    /// The frame that it is in.
    pub frame: &'a Frame<'f>,
    /// What was read of it.
    pub meta: &'a PacketMeta,
    /// All its headers; None: they are read again where they are asked for.
    pub headers: Option<&'a Headers>,
    /// The flow hash.
    pub hash: u64,
    /// The hash by the key of buckets; None: it is made where it is asked for.
    pub bucket_hash: Option<u64>,
}

impl<'a> Undecided<'a, '_> {
    #[inline(always)]
    fn key(&self) -> FlowKey {
        key_of(self.frame, *self.meta, self.headers)
    }

    /// The TCP segment; None: there is none.
    #[inline(always)]
    pub(crate) fn tcp_segment(&self) -> Option<&'a [u8]> {
        let (bytes, meta) = (self.frame.bytes(), *self.meta);
        match self.headers {
            Some(headers) => headers.tcp_segment(bytes),
            None => match plain::tcp_segment(bytes, meta) {
                Some(segment) => Some(segment),
                None => headers_of(self.frame, meta).tcp_segment(bytes),
            },
        }
    }

    /// What a whole UDP datagram carries; None: it is none.
    #[inline(always)]
    fn udp_payload(&self) -> Option<&'a [u8]> {
        let (bytes, meta) = (self.frame.bytes(), *self.meta);
        match self.headers {
            Some(headers) => headers.udp_payload(bytes),
            None => match plain::udp_payload(bytes, meta) {
                Some(payload) => Some(payload),
                None => headers_of(self.frame, meta).udp_payload(bytes),
            },
        }
    }
}

#[inline]
fn key_of(frame: &Frame<'_>, meta: PacketMeta, headers: Option<&Headers>) -> FlowKey {
    match headers {
        Some(headers) => headers.key,
        None => plain::tcp_flow(frame.bytes(), meta).unwrap_or_else(|| headers_of(frame, meta).key),
    }
}

/// Finds it out, counts it, and keeps it for who records the journey.
pub(crate) struct WorkerEvidence<'a, 'f, 'm> {
    datapath: &'a Datapath<'m>,
    view: &'a View,
    packet: Undecided<'a, 'f>,
    /// The flow's entry.
    pub found: Option<FoundEntry<'a>>,
    named: Option<Result<ChosenMember, ByFlow>>,
    selection: Option<Selection>,
    /// Chosen for the connection that it opens; 0: none.
    pub key: u64,
    selector: Option<u64>,
}

impl<'a, 'f, 'm> WorkerEvidence<'a, 'f, 'm> {
    #[inline(always)]
    pub(crate) fn new(
        datapath: &'a Datapath<'m>,
        view: &'a View,
        packet: Undecided<'a, 'f>,
    ) -> WorkerEvidence<'a, 'f, 'm> {
        let (found, named, selection, key, selector) = (None, None, None, 0, None);
        WorkerEvidence { datapath, view, packet, found, named, selection, key, selector }
    }

    /// What was asked for until now.
    #[inline(always)]
    pub(crate) fn record(&self, recorder: &mut impl Recorder) {
        self.named.into_iter().for_each(|named| recorder.connection_id(named.map(|_| ())));
        self.selection.into_iter().for_each(|selection| recorder.multipath(selection));
        self.selector.into_iter().for_each(|selector| recorder.selects(selector));
    }
}

impl Evidence for WorkerEvidence<'_, '_, '_> {
    #[inline(always)]
    fn signal(&self) -> Signal {
        self.packet.meta.into()
    }

    #[inline(always)]
    fn entry(&mut self) -> Option<Entry> {
        let Undecided { hash, matched, .. } = self.packet;
        self.found = self.datapath.table.find(hash, matched.service);
        self.found.map(|found| found.entry())
    }

    #[inline(always)]
    fn connection_id(&mut self, group: &Group) -> Option<ChosenMember> {
        let service = self.view.plan.service_of(self.packet.matched);
        let quic_lb = service.quic_lb.as_ref()?;
        let payload = self.packet.udp_payload()?;
        let keys = &self.datapath.hash.connection_ids;
        let named = keys.member(quic_lb, group, payload);
        self.datapath.counters.connection_ids.count(named);
        self.named = Some(named);
        named.ok()
    }

    #[inline(always)]
    fn bits(&mut self) -> Option<u32> {
        let segment = self.packet.tcp_segment()?;
        let Datapath { hash, counters, .. } = self.datapath;
        // Nearly all packets.
        if let Some(echo) = tcp_options::usual_echo(segment) {
            counters.multipath[Selection::ECHO].add(1);
            self.selection = Some(Selection::Echo(echo));
            return Some(echo);
        }
        let Undecided { frame, meta, headers, .. } = self.packet;
        let selection = hash.multipath.selection(|| key_of(frame, *meta, headers), segment);
        counters.multipath[selection.index()].add(1);
        (self.selection, self.key) = (Some(selection), selection.key());
        selection.bits()
    }

    #[inline(always)]
    fn selector(&mut self) -> u64 {
        let Undecided { matched, kind, hash, bucket_hash, .. } = self.packet;
        let service = self.view.plan.service_of(matched);
        let selector = match (kind.tracking, service.affinity, bucket_hash) {
            (Tracking::Tracked, Affinity::Flow, _) => hash,
            (Tracking::Tracked, ..) | (_, Affinity::Client, _) | (.., None) => {
                self.datapath.hash.other_selector(service, &self.packet.key())
            }
            (_, Affinity::Flow, Some(selector)) => selector,
        };
        self.selector = Some(selector);
        selector
    }

    #[inline(always)]
    fn allows_second_chance(&mut self) -> bool {
        let Datapath { second_chances, ticks, counters, .. } = self.datapath;
        second_chances.allow(self.view, self.packet.matched, ticks.now(), counters)
    }
}
