//! What a worker enters into the cache and removes from it, packet by packet.
//!
//! A flow is in the cache while data packets change nothing in its connection's own entry: in
//! the tick in which that entry is made, so that the kernel sends most packets of short
//! connections; and from the packet that confirms it.

use plan::Matched;
use wire::{FlowKey, Frame, PacketMeta, Protocol, tunnel};

use super::{EntryWriter, EntryWriters, Validity};
use crate::decide::{ChosenMember, Signal, Why};
use crate::forward::Datapath;
use crate::send::headers_of;
use crate::table::{EntryClass, is_tcp};
use crate::view::View;

/// A packet whose backend was chosen, with what was written into the connection table.
pub(crate) struct ChosenPacket<'a, 'f> {
    pub view: &'a View,
    pub matched: &'a Matched,
    pub frame: &'a Frame<'f>,
    pub meta: &'a PacketMeta,
    pub hash: u64,
    pub chosen: ChosenMember,
    pub why: Why,
}

impl ChosenPacket<'_, '_> {
    fn key(&self) -> FlowKey {
        headers_of(self.frame, *self.meta).key
    }
}

impl Datapath<'_> {
    /// Enters the flows of SYNs, and of one in a number of data packets; takes out those
    /// that end or begin.
    #[inline]
    pub(crate) fn note_in_kernel_cache(
        &self,
        caches: &EntryWriters<'_>,
        packet: &ChosenPacket<'_, '_>,
    ) {
        if packet.meta.tcp_flags.has_any(Signal::FLAGS) {
            return self.note_border(caches, packet);
        }
        if let Some(cache) = caches.ingress()
            && cache.is_due()
            && let Some(validity) = self.validity(packet)
        {
            enter(cache, packet, validity);
        }
    }

    /// What is not confirmed, nothing has changed: a FIN does not end it yet. A flow that had
    /// no connection is in no cache: so a SYN of a flood costs no look-up.
    #[inline(never)]
    fn note_border(&self, caches: &EntryWriters<'_>, packet: &ChosenPacket<'_, '_>) {
        let is_unconfirmed = self.validity(packet) == Some(Validity::ThisTick);
        let opens = packet.meta.tcp_flags.opens();
        if packet.why != Why::Untracked && (opens || !is_unconfirmed) {
            caches.remove(&packet.key());
        }
        if let Some(cache) = caches.ingress()
            && opens
            && is_unconfirmed
            && cache.takes_unconfirmed()
        {
            enter(cache, packet, Validity::ThisTick);
        }
    }

    /// How long data of the flow goes where this packet goes and changes nothing; None: the
    /// next one may.
    #[inline]
    fn validity(&self, packet: &ChosenPacket<'_, '_>) -> Option<Validity> {
        let found = self.table.find(packet.hash, packet.matched.service)?;
        let entry = found.unchanged_by_data(&self.ticks, is_tcp(packet.meta.protocol))?;
        (entry.backend == packet.chosen.backend).then_some(match entry.class {
            EntryClass::Unconfirmed => Validity::ThisTick,
            _ => Validity::WhileUsed,
        })
    }
}

/// What may be a tunnel's packet is left to user space, which judges it by more than its
/// five-tuple.
fn enter(
    cache: &EntryWriter<'_>,
    packet @ ChosenPacket { view, matched, frame, hash, chosen, .. }: &ChosenPacket<'_, '_>,
    validity: Validity,
) {
    if frame.is_tunnelled() || frame.is_misdirected() {
        return;
    }
    let key = packet.key();
    let may_be_tunnel = key.protocol == Protocol::UDP && tunnel::is_port(key.destination_port);
    if let Some(target) = view.kernel_targets.of(matched.matched, chosen.member)
        && !may_be_tunnel
    {
        cache.enter(&key, *hash, matched.service, target, validity);
    }
}
