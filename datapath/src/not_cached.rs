//! Why the kernel does not send packets of a match to a member by itself: see
//! [`crate::kernel_cache`].

use std::collections::BTreeMap;

use plan::ServiceId;

/// What stands in the way: user space sends these packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotCached {
    /// The member gets no packets, which stands in no way.
    NoTraffic,
    /// The service is stateless, and its packets say more than which bucket they are in; or
    /// the port is a backend's own.
    MoreThanBucket,
    /// The service is stateless, and its VIP a prefix's, a range of ports, or an address with
    /// further services.
    SeveralSockets,
    /// The service is stateless, and there are as many buckets as there may be.
    BucketsFull,
    /// The bucket is being moved: its packets tell agents where their connection may be.
    Moving,
    /// Some packets carry an option behind the tunnel's header.
    SecondChance,
    /// The sweep comes by too rarely.
    IdleTimeout,
    /// A checksum over each packet is to be computed.
    Udp6Checksum,
    /// The backend is not reached.
    NoNextHop,
    /// The flow hash would choose one.
    SeveralNextHops,
    /// From some of the interfaces that packets come in by, or from all.
    Egress,
    /// There are as many targets as there may be.
    TargetsFull,
}

impl NotCached {
    /// For people: what to look at.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            NotCached::NoTraffic => "the backend gets no packets",
            NotCached::MoreThanBucket => "connection ids, tokens or join ports decide too",
            NotCached::SeveralSockets => {
                "its VIP is no single port, and no address without other services"
            }
            NotCached::BucketsFull => "there are no more buckets",
            NotCached::Moving => "its bucket is being moved",
            NotCached::SecondChance => "it has a second chance",
            NotCached::IdleTimeout => "an idle timeout is shorter than 40 s",
            NotCached::Udp6Checksum => "udp6_checksum is on",
            NotCached::NoNextHop => "the backend has no next hop",
            NotCached::SeveralNextHops => "the backend has several next hops",
            NotCached::Egress => "the kernel cannot send from every interface to its next hop's",
            NotCached::TargetsFull => "there are no more targets",
        }
    }
}

/// For each service the backends, at its match with the most, whose packets are not the
/// kernel's, by reason.
#[derive(Debug, Default)]
pub(crate) struct NotCachedCounts(BTreeMap<(ServiceId, NotCached), u32>);

impl NotCachedCounts {
    /// Counts those of one match.
    pub(crate) fn add(&mut self, service: ServiceId, members: impl Iterator<Item = NotCached>) {
        let mut counts = BTreeMap::<NotCached, u32>::new();
        for reason in members.filter(|reason| *reason != NotCached::NoTraffic) {
            *counts.entry(reason).or_default() += 1;
        }
        for (reason, count) in counts {
            let most = self.0.entry((service, reason)).or_default();
            *most = count.max(*most);
        }
    }

    /// Service, reason, backends.
    pub(crate) fn into_list(self) -> Box<[(ServiceId, NotCached, u32)]> {
        let lines = self.0.into_iter();
        lines.map(|((service, reason), backends)| (service, reason, backends)).collect()
    }
}
