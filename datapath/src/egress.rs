//! Where encapsulated packets go: for each backend its outer headers, except for fields that
//! depend on the packet, and its next hops.

use std::net::IpAddr;

use plan::{BackendId, Owners, Plan, Service};
use wire::{Family, FlowKey};

use crate::encapsulate::{EncapProfile, HeaderTemplate, has_source};
use crate::flow_hash::FlowHash;
use crate::next_hop::NextHop;
use crate::not_cached::NotCached;
use crate::recursion_limit::RecursionLimit;

/// The tunnels to all backends of a plan, to its peers, and to the clusters
/// that its services spill to.
#[derive(Debug, Default)]
pub struct Egress {
    /// For each of the plan's profiles: by family of the inner packet, then by
    /// backend id.
    tunnels: Box<[BackendTunnel]>,
    /// Backend ids there are, used or not.
    backend_ids: usize,
    /// Of tunnels with several next hops: headers for each, behind each other.
    further: Box<[HeaderTemplate]>,
    /// By index of the peer.
    peers: Box<[PeerTunnels]>,
    /// Which machine is in charge of which fragments.
    owners: Owners,
    /// By service id, then as the service lists them.
    spills: Box<[Box<[Vec<NextHop>]>]>,
    /// Makes the identification of outer headers; None: there are no tunnels.
    hash: Option<FlowHash>,
}

/// The tunnel to one backend: the headers in front of its packets. Of the
/// shortest, GRE over IPv4, everything is in the first cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct BackendTunnel {
    /// Next hops there are. None: the backend is not reached.
    hops: u16,
    /// If there are several: where their headers begin.
    first: u32,
    /// By the first one: for most there is no other.
    template: HeaderTemplate,
}

impl Egress {
    /// The tunnels of `plan`, whose next hops `resolve` names; none if it
    /// names none. It is called for each of [`Plan::tunnel_targets`].
    #[must_use]
    pub fn new(
        plan: &Plan,
        hash: &FlowHash,
        resolve: impl FnMut(IpAddr) -> Vec<NextHop>,
    ) -> Egress {
        let mut building = Building { plan, hash, resolve, further: Vec::new() };
        let tunnels = building.tunnels();
        let peers: Box<[PeerTunnels]> =
            plan.peers.iter().map(|peer| building.peer(&peer.addresses)).collect();
        let reaches = |peer: usize| peers[peer].is_reached();
        let owners = Owners::new(&plan.machine, &plan.peers, reaches);
        let mut spills = vec![Box::default(); plan.service_ids()].into_boxed_slice();
        for service in plan.services() {
            let spill = &service.spill;
            spills[service.id.index()] =
                spill.iter().map(|spill| building.hops(spill.address)).collect();
        }
        let (further, backend_ids) = (building.further.into(), plan.backend_ids());
        let hash = Some(hash.clone());
        Egress { tunnels, backend_ids, further, peers, owners, spills, hash }
    }

    /// The headers in front of a flow's packets of that family to a backend,
    /// in a service's profile; None if no next hop is known.
    #[inline]
    #[must_use]
    pub fn template_for(
        &self,
        profile: u16,
        family: Family,
        backend: BackendId,
        hash: u64,
    ) -> Option<&HeaderTemplate> {
        self.template_of(self.tunnel(profile, family, backend)?, hash)
    }

    /// The tunnel to a backend; None: the plan has no such backend.
    #[inline]
    pub(crate) fn tunnel(
        &self,
        profile: u16,
        family: Family,
        backend: BackendId,
    ) -> Option<&BackendTunnel> {
        let list = usize::from(profile) * FAMILIES.len() + family as usize;
        self.tunnels.get(list * self.backend_ids + backend.index())
    }

    /// The headers of a tunnel for this flow; None if no next hop is known.
    #[inline(always)]
    pub(crate) fn template_of<'v>(
        &'v self,
        tunnel: &'v BackendTunnel,
        hash: u64,
    ) -> Option<&'v HeaderTemplate> {
        match tunnel.hops {
            1 => Some(&tunnel.template),
            0 => None,
            hops => self.further.get(tunnel.first as usize + which(hops, hash)),
        }
    }

    /// The headers in front of all packets of that family to a backend, whatever their
    /// flow.
    ///
    /// # Errors
    /// If there is no next hop, or more than one.
    pub(crate) fn only_template(
        &self,
        profile: u16,
        family: Family,
        backend: BackendId,
    ) -> Result<&HeaderTemplate, NotCached> {
        match self.tunnel(profile, family, backend) {
            Some(BackendTunnel { hops: 1, template, .. }) => Ok(template),
            None | Some(BackendTunnel { hops: 0, .. }) => Err(NotCached::NoNextHop),
            Some(_) => Err(NotCached::SeveralNextHops),
        }
    }

    /// The peer in charge of the fragments whose three-tuple has that hash:
    /// one that is healthy and reached. None: this machine.
    #[must_use]
    pub fn owner(&self, hash: u64) -> Option<usize> {
        self.owners.owner(hash)
    }

    /// True if any of a peer's addresses has a next hop.
    #[must_use]
    pub fn reaches_peer(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(PeerTunnels::is_reached)
    }

    /// The headers in front of this flow's packets to a peer, which are
    /// `permitted` further encapsulations; None if none of its addresses has a next hop.
    #[must_use]
    pub fn template_for_peer(
        &self,
        peer: usize,
        permitted: RecursionLimit,
        family: Family,
        hash: u64,
    ) -> Option<&HeaderTemplate> {
        self.template_of(self.peers.get(peer)?.tunnel(permitted, family), hash)
    }

    /// The address in another cluster that has the suffix of the packet's
    /// destination, and the headers in front of packets to it. Of the service's clusters of that
    /// family it is the first with a next hop that answers the controller's
    /// probes, or else the first with a next hop.
    #[must_use]
    pub fn template_for_spill(
        &self,
        plan: &Plan,
        service: &Service,
        key: &FlowKey,
        hash: u64,
        permitted: RecursionLimit,
    ) -> Option<(IpAddr, HeaderTemplate)> {
        let hops = self.spills.get(service.id.index())?.iter();
        let reached = || {
            let all = service.spill.iter().zip(hops.clone());
            all.filter(|(spill, hops)| spill.family == key.family && !hops.is_empty())
        };
        let (spill, hops) =
            reached().find(|(spill, _)| !spill.down).or_else(|| reached().next())?;
        let hop = &hops[which(hops.len() as u16, hash)];
        let bits = spill.network | (key.destination & spill.host_mask);
        let there = wire::ip::address(key.family, bits);
        let profile = EncapProfile::to_balancer(permitted);
        let template =
            HeaderTemplate::new(plan, self.hash.as_ref()?, there, hop, profile, key.family)?;
        Some((there, template))
    }
}

/// The tunnels to a peer: by family of the inner packet, for each number of
/// further encapsulations that its packets are permitted.
#[derive(Debug, Default)]
struct PeerTunnels {
    redirect: [BackendTunnel; 2],
    /// Of spilled fragments and of copies.
    last: [BackendTunnel; 2],
}

impl PeerTunnels {
    fn is_reached(&self) -> bool {
        self.last[0].hops > 0
    }

    fn tunnel(&self, permitted: RecursionLimit, family: Family) -> &BackendTunnel {
        match permitted {
            RecursionLimit::REDIRECTED => &self.redirect[family as usize],
            _ => &self.last[family as usize],
        }
    }
}

/// Which of `hops` next hops a flow takes. Bits between those of the
/// connection table's bucket and tag would do as well; any fixed choice keeps
/// a flow on its path.
#[inline]
fn which(hops: u16, hash: u64) -> usize {
    (((hash & 0xffff) as u32 * u32::from(hops)) >> 16) as usize
}

/// Tunnels being made.
struct Building<'p, R> {
    plan: &'p Plan,
    hash: &'p FlowHash,
    resolve: R,
    further: Vec<HeaderTemplate>,
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl<R: FnMut(IpAddr) -> Vec<NextHop>> Building<'_, R> {
    /// The tunnels to all backends.
    fn tunnels(&mut self) -> Box<[BackendTunnel]> {
        let plan = self.plan;
        let mut hops = vec![Vec::new(); plan.backend_ids()];
        for backend in plan.backends() {
            hops[backend.id.index()] = self.hops(backend.address);
        }
        let mut tunnels = Vec::new();
        for profile in &plan.profiles {
            for family in FAMILIES {
                let first = tunnels.len();
                tunnels.resize(first + hops.len(), BackendTunnel::default());
                for backend in plan.backends() {
                    let index = backend.id.index();
                    tunnels[first + index] = self.tunnel(
                        backend.address,
                        &hops[index],
                        EncapProfile::to_backend(*profile),
                        family,
                    );
                }
            }
        }
        tunnels.into()
    }

    fn tunnel(
        &mut self,
        address: IpAddr,
        hops: &[NextHop],
        profile: EncapProfile,
        family: Family,
    ) -> BackendTunnel {
        let template =
            |hop| HeaderTemplate::new(self.plan, self.hash, address, hop, profile, family);
        let templates: Vec<HeaderTemplate> = hops.iter().filter_map(template).collect();
        match templates[..] {
            [] => BackendTunnel::default(),
            [template] => BackendTunnel { hops: 1, first: 0, template },
            [template, ..] => {
                let first = self.further.len() as u32;
                self.further.extend(&templates);
                BackendTunnel { hops: templates.len() as u16, first, template }
            }
        }
    }

    /// The next hops towards that address. Without an own address of its
    /// family there are none: decoding refuses that for backends, and peers
    /// and spills are then not reached.
    fn hops(&mut self, address: IpAddr) -> Vec<NextHop> {
        let mut hops = match has_source(self.plan, address) {
            true => (self.resolve)(address),
            false => Vec::new(),
        };
        hops.truncate(u16::MAX.into());
        hops
    }

    /// The tunnels to the first of a peer's addresses that has a next hop.
    fn peer(&mut self, addresses: &[IpAddr]) -> PeerTunnels {
        let reached = addresses.iter().find_map(|address| {
            let hops = self.hops(*address);
            (!hops.is_empty()).then_some((*address, hops))
        });
        let Some((address, hops)) = reached else { return PeerTunnels::default() };
        let mut permitting = |recursion_limit| {
            let profile = EncapProfile::to_balancer(recursion_limit);
            FAMILIES.map(|family| self.tunnel(address, &hops, profile, family))
        };
        PeerTunnels {
            redirect: permitting(RecursionLimit::REDIRECTED),
            last: permitting(RecursionLimit::COPY),
        }
    }
}
