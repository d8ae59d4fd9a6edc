//! The packets of a batch between its stages.

use arrayvec::ArrayVec;
use plan::{LookupKey, LookupV4, Matched, Tracking};
use wire::{BATCH_MAX, Family, Frame, PacketMeta, Protocol, SocketV4, tcp};

use crate::agent_options::AgentOptions;
use crate::decide::ChosenMember;
use crate::egress::BackendTunnel;
use crate::flow_hash::Flows;
use crate::packet::Arrived;
use crate::prefetch::prefetch;
use crate::recursion_limit::RecursionLimit;
use crate::table::Home;
use crate::trace::Mark;
use crate::view::{Traffic, View, WorkerCounters};
use crate::worker_evidence::{Kind, Undecided};

/// How far a frame's packet has come.
#[derive(Clone, Copy)]
pub(super) struct PacketState<'v> {
    pub(super) stage: Stage<'v>,
    /// The flow hash.
    pub(super) hash: u64,
    pub(super) meta: PacketMeta,
    pub(super) recursion_limit: RecursionLimit,
}

/// What is known of a packet, and so what is next.
#[derive(Clone, Copy)]
pub(super) enum Stage<'v> {
    /// It has its verdict.
    Done,
    /// Its address and port, to be matched by this lookup.
    SocketV4(SocketV4, LookupV4<'v>),
    /// The same of IPv6: the lookup's key is in [`BatchState::keys_v6`].
    SocketV6,
    /// Its match.
    Matched(&'v Matched),
    /// Its match, and the home of its connection's entry.
    Tracked(&'v Matched, &'v Home),
    /// Its backend: the tunnel, where its member is counted, and the match if
    /// apart.
    Backend(&'v BackendTunnel, &'v Traffic, Option<&'v Traffic>),
    /// Its match, its backend and what it says to agents.
    WithOptions(&'v Matched, ChosenMember, AgentOptions),
    /// It goes to the machine in charge of its datagram.
    Owner,
}

// All of a batch's are made, and lie in the first-level cache with its frames' headers.
const _: () = assert!(size_of::<PacketState<'_>>() == 48);

/// A packet with a mark of the tracer: it is forwarded alone, behind those before
/// it and in front of those after it, because it reads the connection table.
pub(super) struct Marked {
    pub(super) at: usize,
    pub(super) arrived: Arrived,
    pub(super) mark: Mark,
}

/// The packets of a batch, each at its frame's index, and what they are hashed
/// by.
pub(super) struct BatchState<'v> {
    pub(super) packets: [PacketState<'v>; BATCH_MAX],
    pub(super) flows: Flows,
    /// Hashed by the key of buckets, too, at their frames' indices.
    pub(super) bucket_hashes: Option<[u64; BATCH_MAX]>,
    /// Of packets at [`Stage::SocketV6`], in their order.
    pub(super) keys_v6: ArrayVec<LookupKey, BATCH_MAX>,
    pub(super) marked: ArrayVec<Marked, BATCH_MAX>,
    /// Which kinds of service they are of.
    pub(super) kinds: Kinds,
}

impl BatchState<'_> {
    #[inline(always)]
    pub(super) fn new() -> BatchState<'static> {
        BatchState {
            packets: [PacketState::DONE; BATCH_MAX],
            flows: Flows::default(),
            bucket_hashes: None,
            keys_v6: ArrayVec::new(),
            marked: ArrayVec::new(),
            kinds: Kinds::default(),
        }
    }
}

/// The kinds that go through no connection table. Only those of the Multipath kind are
/// looked at for SYNs, so that others do not pay for it: that kind comes first.
pub(super) const STATELESS: [Kind; 5] = [
    Kind::of(Tracking::Stateless),
    Kind::of(Tracking::StatelessQuic),
    Kind::of(Tracking::StatelessMultipath),
    Kind { tracking: Tracking::StatelessMultipath, opens: true },
    Kind::of(Tracking::JoinPort),
];

/// Which kinds of packets a batch has: a bit for each [`Tracking`], and one for SYNs.
#[derive(Clone, Copy, Default)]
pub(super) struct Kinds(u8);

impl Kinds {
    const OPENS: u8 = 1 << 7;

    fn bit(kind: Kind) -> u8 {
        if kind.opens { Kinds::OPENS } else { 1 << kind.tracking as u8 }
    }

    pub(super) fn has(self, kind: Kind) -> bool {
        self.0 & Kinds::bit(kind) != 0
    }

    pub(super) fn add(&mut self, kind: Kind) {
        self.0 |= Kinds::bit(kind);
    }

    /// What is next for a packet whose match is found, with the home that its
    /// connection's entry has.
    #[inline(always)]
    pub(super) fn stage<'v>(&mut self, matched: &'v Matched, home: &'v Home) -> Stage<'v> {
        self.add(Kind::of(matched.tracking));
        match matched.tracking {
            Tracking::Tracked => Stage::Tracked(matched, home),
            _ => Stage::Matched(matched),
        }
    }
}

impl<'v> PacketState<'v> {
    /// Zeros throughout, so that a batch of them is quickly made.
    pub(super) const DONE: PacketState<'static> = PacketState {
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
    pub(super) fn begin(
        &mut self,
        meta: PacketMeta,
        recursion_limit: RecursionLimit,
        stage: Stage<'v>,
    ) {
        (self.meta, self.recursion_limit, self.stage) = (meta, recursion_limit, stage);
    }

    /// What is known of it when its member is to be chosen.
    #[inline(always)]
    pub(super) fn undecided<'a, 'f>(
        &'a self,
        kind: Kind,
        matched: &'a Matched,
        frame: &'a Frame<'f>,
        bucket_hash: Option<u64>,
    ) -> Undecided<'a, 'f> {
        let PacketState { hash, meta, .. } = self;
        Undecided { matched, kind, frame, meta, headers: None, hash: *hash, bucket_hash }
    }

    /// To be sent to that member, if there is a tunnel; prefetches what that
    /// needs.
    #[inline(always)]
    pub(super) fn choose(
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
