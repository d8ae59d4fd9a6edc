//! From the message to the Plan: the only place that refuses.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use wire::ip::{self, AddressBits};
use wire::{Family, Protocol};

use crate::group::{Group, Member, Standing};
use crate::ids::{BackendId, Ids, ServiceId};
use crate::load::Load;
use crate::maglev::{self, Candidate, Table};
use crate::peers::{Ingress, Peer};
use crate::service::{Affinity, Backend, Dscp, Encap, Service, SpillTo, Timeouts};
use crate::vips::{AddressInfo, Matched, Place, Ports, Vips, VipsBuilder, low_mask};
use crate::{limits, proto};

/// What this forwarder knows beyond the first version; `requires` may name
/// these.
pub const FEATURES: &[&str] = &[
    "encap-geneve",
    "encap-gue",
    "encap-ipip",
    "encapsulators",
    "fragments",
    "groups",
    "path-mtu-learn",
    "source-prefix",
    "spill",
    "steering-software",
    "udp6-checksum",
];

/// Plans decoded so far, and one.
static DECODED: AtomicU64 = AtomicU64::new(1);

/// Why a plan is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct PlanError {
    /// The field, as in `services[0].vips[1].address`.
    pub path: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
    /// Nothing is wrong with it: the same plan will be taken later.
    pub later: bool,
}

fn refuse<T>(path: impl Into<String>, problem: impl Into<String>) -> Result<T, PlanError> {
    Err(PlanError { path: path.into(), problem: problem.into(), later: false })
}

/// Refuses because ids of what earlier plans had are not yet free.
fn refuse_for_now<T>(path: &str) -> Result<T, PlanError> {
    let problem = "no id is left until those of removed ones are free, which takes up to some \
                   minutes: no connection table may hold them any more";
    Err(PlanError { path: path.into(), problem: problem.into(), later: true })
}

/// What a forwarder forwards by. Immutable.
#[derive(Debug)]
pub struct Plan {
    /// Tells this plan from every other that the process ever decoded; never
    /// zero.
    pub serial: u64,
    /// Counts plans; never goes back.
    pub generation: u64,
    /// Name of the cluster; the flow hash of a cluster without a secret is
    /// derived from it.
    pub cluster: String,
    /// `derived`, or the id of the cluster key.
    pub key_id: String,
    /// Name of this machine.
    pub machine: String,
    /// Outer source address for IPv4 backends.
    pub source_v4: Option<u32>,
    /// Outer source address for IPv6 backends.
    pub source_v6: Option<u128>,
    /// Routers that packets come from.
    pub routers: Vec<IpAddr>,
    /// Options of the outer headers.
    pub tunnel: Tunnel,
    /// Learn path MTUs from ICMP errors.
    pub learn_path_mtu: bool,
    /// The other load balancers.
    pub peers: Vec<Peer>,
    /// Whose tunnelled packets are accepted.
    pub ingress: Ingress,
    /// Which service a packet is for.
    pub vips: Vips,
    /// One for each matched index: whose it is and what it matches.
    pub matches: Vec<Match>,
    /// Services by id.
    services: Box<[Option<Service>]>,
    /// Services as the plan lists them.
    order: Vec<ServiceId>,
    /// Backends by id.
    backends: Box<[Option<Backend>]>,
    /// Members over all that count apart, groups or services: the size of
    /// counters with a place for each.
    pub members: u32,
    /// The ways to encapsulate that services have, each once.
    pub styles: Vec<(Encap, Dscp)>,
    /// The groups that services have, each once.
    pub groups: Vec<Arc<Group>>,
    /// The message this was decoded from.
    pub message: proto::Plan,
}

/// Options of the outer headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tunnel {
    /// Compute the UDP checksum over IPv6.
    pub udp6_checksum: bool,
    /// Draw outer IPv4 sources from this network; and the mask of the bits
    /// that the flow hash fills.
    pub source_prefix: Option<(u32, u32)>,
}

/// One Vip with one protocol and port range, as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// What its packets go by, wherever it was found.
    pub matched: Matched,
    /// Index of the Vip in the service.
    pub vip: u32,
    /// Address, or group and suffix.
    pub target: String,
    /// tcp, udp or any.
    pub protocol: &'static str,
    /// `80`, `8000-8100` or `all`.
    pub ports: String,
}

impl Plan {
    /// The service with that id.
    #[inline]
    #[must_use]
    pub fn service(&self, id: ServiceId) -> Option<&Service> {
        self.services.get(id.index())?.as_ref()
    }

    /// Services as the plan lists them.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.order
            .iter()
            .map(|id| self.services[id.index()].as_ref().expect("listed services exist"))
    }

    /// The backend with that id.
    #[inline]
    #[must_use]
    pub fn backend(&self, id: BackendId) -> Option<&Backend> {
        self.backends.get(id.index())?.as_ref()
    }

    /// Services that have an IPv6 VIP, or one in a group with IPv6 prefixes.
    pub fn ipv6_services(&self) -> impl Iterator<Item = &Service> {
        let groups: BTreeMap<&str, bool> = self
            .message
            .prefix_groups
            .iter()
            .map(|group| (group.name.as_str(), group.prefixes.iter().any(|text| is_v6(text))))
            .collect();
        let has_v6 = move |vip: &proto::Vip| match &vip.target {
            Some(proto::vip::Target::Address(address)) => is_v6(address),
            Some(proto::vip::Target::PrefixSuffix(target)) => {
                is_v6(&target.suffix) && groups.get(target.prefix_group.as_str()) == Some(&true)
            }
            None => false,
        };
        let listed = self.services().zip(&self.message.services);
        listed
            .filter(move |(_, message)| message.vips.iter().any(&has_v6))
            .map(|(service, _)| service)
    }

    /// Backends by id.
    pub fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.backends.iter().flatten()
    }

    /// One more than the highest backend id: the size of arrays by id.
    #[must_use]
    pub fn backend_ids(&self) -> usize {
        self.backends.len()
    }

    /// One more than the highest service id: the size of arrays by id.
    #[must_use]
    pub fn service_ids(&self) -> usize {
        self.services.len()
    }

    /// Every address that packets are tunnelled to: backends, peers, and
    /// one in each prefix that services spill to.
    #[must_use]
    pub fn tunnel_targets(&self) -> Vec<IpAddr> {
        let backends = self.backends().map(|backend| backend.address);
        let peers = self.peers.iter().flat_map(|peer| peer.addresses.iter().copied());
        let spills =
            self.services().flat_map(|service| service.spill.iter().map(|spill| spill.address));
        let all: std::collections::BTreeSet<IpAddr> = backends.chain(peers).chain(spills).collect();
        all.into_iter().collect()
    }

    /// Every prefix that may hold a VIP: what devices must let through.
    #[must_use]
    pub fn vip_prefixes(&self) -> Vec<(IpAddr, u8)> {
        let groups: HashMap<&str, &proto::PrefixGroup> =
            self.message.prefix_groups.iter().map(|group| (group.name.as_str(), group)).collect();
        let mut prefixes = std::collections::BTreeSet::new();
        for target in self
            .message
            .services
            .iter()
            .flat_map(|service| &service.vips)
            .filter_map(|vip| vip.target.as_ref())
        {
            match target {
                proto::vip::Target::Address(address) => {
                    let address: IpAddr = address.parse().expect("checked when decoded");
                    prefixes.insert((address, Family::of(address).address_bits() as u8));
                }
                proto::vip::Target::PrefixSuffix(suffix) => {
                    let group = groups[suffix.prefix_group.as_str()];
                    prefixes.extend(
                        group
                            .prefixes
                            .iter()
                            .map(|prefix| parse_prefix(prefix).expect("checked when decoded")),
                    );
                }
            }
        }
        prefixes.into_iter().collect()
    }
}

/// Makes Plans out of messages, and remembers between them what must be
/// stable (ids) or need not be built again (groups with their tables).
#[derive(Debug, Default)]
pub struct Planner {
    /// Ids, which the caller keeps beside the connection tables.
    pub ids: Ids,
    groups: HashMap<GroupKey, Weak<Group>>,
    load: Load,
}

/// Ids by name, of backends and services.
type AssignedIds<'m> = (HashMap<&'m str, BackendId>, HashMap<&'m str, u16>);

/// All that a group depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    table_size: u32,
    members: Vec<(String, BackendId, u32, Standing)>,
}

/// A group of the message, as some services use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct GroupUse {
    index: usize,
    table_size: u32,
    on_down: proto::OnDown,
    open: bool,
}

impl Planner {
    /// A planner that goes on with ids from before.
    #[must_use]
    pub fn with_ids(ids: Ids) -> Planner {
        Planner { ids, ..Planner::default() }
    }

    /// Tells what services got, in packets, since the last call. The next
    /// plan is laid out by it.
    pub fn saw_traffic(&mut self, packets: impl Iterator<Item = (ServiceId, u64)>) {
        self.load.add(packets);
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// If anything in it is wrong; the ids are unchanged then.
    pub fn plan(&mut self, message: proto::Plan) -> Result<Plan, PlanError> {
        // A refused plan must not retire what the running one uses.
        let ids = self.ids.clone();
        let plan = self.decode(message);
        if plan.is_err() {
            self.ids = ids;
        }
        self.groups.retain(|_, group| group.strong_count() > 0);
        plan
    }

    fn decode(&mut self, message: proto::Plan) -> Result<Plan, PlanError> {
        check_features(&message)?;
        check_limits(&message)?;
        check_choices(&message)?;
        let sources = sources(&message)?;
        let addresses = backend_addresses(&message, &sources)?;
        let (backend_ids, service_ids) = self.assign_ids(&message, &addresses)?;
        let id = |service: &proto::Service| ServiceId(service_ids[service.name.as_str()]);
        let ids: Vec<ServiceId> = message.services.iter().map(id).collect();
        let groups = MemberGroups::new(&message, &backend_ids)?;
        let counting = Counting::new(&message, &groups, self.load.order(&ids))?;
        let quiet = self.load.quiet(&ids);
        let mut decoding =
            Decoding::new(&message, sources, &addresses, &backend_ids, groups, self)?;
        decoding.vips.set_quiet(quiet);
        for (index, service) in message.services.iter().enumerate() {
            decoding.service(index, service, ids[index], counting.of_service[index])?;
        }
        let plan = decoding.finish(&message)?;
        Ok(Plan { message, members: counting.members, ..plan })
    }

    /// Ids for every backend and service, each name checked to be there once.
    fn assign_ids<'m>(
        &mut self,
        message: &'m proto::Plan,
        addresses: &BTreeMap<&'m str, IpAddr>,
    ) -> Result<AssignedIds<'m>, PlanError> {
        let mut names = std::collections::HashSet::new();
        for (index, service) in message.services.iter().enumerate() {
            if service.name.is_empty() || !names.insert(service.name.as_str()) {
                return refuse(
                    format!("services[{index}].name"),
                    format!("`{}` is empty or there twice", service.name),
                );
            }
        }
        let keyed: Vec<(&str, String)> =
            addresses.iter().map(|(name, address)| (*name, format!("{name} {address}"))).collect();
        let keys: Vec<&str> = keyed.iter().map(|(_, key)| key.as_str()).collect();
        let services: Vec<&str> =
            message.services.iter().map(|service| service.name.as_str()).collect();
        let Some(backends) = self.ids.backends.assign(&keys, message.generation) else {
            return refuse_for_now("backends");
        };
        let backends =
            keyed.iter().map(|(name, key)| (*name, BackendId(backends[key.as_str()]))).collect();
        let Some(services) = self.ids.services.assign(&services, message.generation) else {
            return refuse_for_now("services");
        };
        Ok((backends, services))
    }

    /// The group with these members: an earlier one, or a new one.
    fn group(&mut self, key: GroupKey) -> Arc<Group> {
        if let Some(group) = self.groups.get(&key).and_then(Weak::upgrade) {
            return group;
        }
        let group = Arc::new(build_group(&key));
        self.groups.insert(key, Arc::downgrade(&group));
        group
    }
}

/// Where services count what their members get: together with all of their
/// group, or each in a place of its own if the plan wants it.
struct Counting {
    of_service: Vec<Counted>,
    members: u32,
}

/// Of one service.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    first_member: u32,
    /// No other service counts there.
    alone: bool,
}

impl Counting {
    /// Places behind each other, in that order of services.
    fn new(
        message: &proto::Plan,
        groups: &MemberGroups<'_>,
        order: Vec<usize>,
    ) -> Result<Counting, PlanError> {
        let group_of =
            |index: usize| groups.of(&format!("services[{index}]"), &message.services[index]);
        let mut services_of = vec![0; groups.groups.len()];
        for index in 0..order.len() {
            services_of[group_of(index)?] += 1;
        }
        let mut first_of = vec![None; groups.groups.len()];
        let (mut of_service, mut members) = (vec![Counted::default(); order.len()], 0);
        for index in order {
            let group = group_of(index)?;
            let alone = message.counters_by_service || services_of[group] == 1;
            let first_member = match first_of[group] {
                Some(first) if !alone => first,
                _ => {
                    let first = members;
                    members += groups.groups[group].members.len() as u32;
                    first
                }
            };
            first_of[group] = Some(first_member);
            of_service[index] = Counted { first_member, alone };
        }
        Ok(Counting { of_service, members })
    }
}

fn build_group(key: &GroupKey) -> Group {
    let members = key
        .members
        .iter()
        .map(|(_, backend, _, standing)| Member { backend: *backend, standing: *standing });
    let active = |(_, (_, _, _, standing)): &(u16, &(String, BackendId, u32, Standing))| {
        *standing == Standing::Active
    };
    let indices: Vec<u16> =
        (0..).zip(&key.members).filter(active).map(|(index, _)| index).collect();
    let candidates: Vec<Candidate> = indices
        .iter()
        .map(|index| &key.members[usize::from(*index)])
        .map(|(name, _, weight, _)| Candidate { name: name.clone(), weight: *weight })
        .collect();
    let table = (!candidates.is_empty()).then(|| Table::build(&candidates, key.table_size));
    Group::new(members.collect(), table, indices)
}

fn check_features(message: &proto::Plan) -> Result<(), PlanError> {
    let unknown =
        (0..).zip(&message.requires).find(|(_, feature)| !FEATURES.contains(&feature.as_str()));
    match unknown {
        Some((index, feature)) => refuse(
            format!("requires[{index}]"),
            format!(
                "this forwarder does not know `{feature}`; it knows [{}]: upgrade it",
                FEATURES.join(", ")
            ),
        ),
        None => Ok(()),
    }
}

/// Refuses choices of a newer version, which protobuf hands on as numbers and
/// whose meaning nobody here knows: they must not be taken for the default.
fn check_choices(message: &proto::Plan) -> Result<(), PlanError> {
    fn check<E: TryFrom<i32>>(path: impl FnOnce() -> String, number: i32) -> Result<(), PlanError> {
        match E::try_from(number) {
            Ok(_) => Ok(()),
            Err(_) => {
                refuse(path(), format!("this forwarder does not know choice {number}: upgrade it"))
            }
        }
    }
    for (index, service) in message.services.iter().enumerate() {
        let path = |field: &'static str| move || format!("services[{index}].{field}");
        check::<proto::Mode>(path("mode"), service.mode)?;
        check::<proto::Affinity>(path("affinity"), service.affinity)?;
        check::<proto::Encap>(path("encap"), service.encap)?;
        check::<proto::OnDown>(path("on_down"), service.on_down)?;
        check::<proto::WhenNone>(path("when_none"), service.when_none)?;
        check::<proto::Fragments>(path("fragments"), service.fragments)?;
        check::<proto::Unmatched>(path("unmatched"), service.unmatched)?;
        for (at, vip) in service.vips.iter().enumerate() {
            check::<proto::Protocol>(
                || format!("services[{index}].vips[{at}].protocol"),
                vip.protocol,
            )?;
        }
    }
    for (index, group) in message.groups.iter().enumerate() {
        for (at, member) in group.members.iter().enumerate() {
            check::<proto::BackendState>(
                || format!("groups[{index}].members[{at}].state"),
                member.state,
            )?;
        }
    }
    let Some(forwarder) = &message.forwarder else { return Ok(()) };
    check::<proto::Steering>(|| "forwarder.steering".into(), forwarder.steering)?;
    for (index, interface) in forwarder.interfaces.iter().enumerate() {
        check::<proto::Driver>(
            || format!("forwarder.interfaces[{index}].driver"),
            interface.driver,
        )?;
    }
    Ok(())
}

fn check_limits(message: &proto::Plan) -> Result<(), PlanError> {
    let check = |path: &str, count: usize, max: usize| {
        if count > max {
            refuse(path, format!("{count} of them, at most {max} fit"))
        } else {
            Ok(())
        }
    };
    check("services", message.services.len(), limits::SERVICES_MAX)?;
    check("backends", message.backends.len(), limits::BACKENDS_MAX)?;
    let matches = message
        .services
        .iter()
        .flat_map(|service| &service.vips)
        .map(|vip| vip.ports.len().max(1) * 2)
        .sum();
    check("services[].vips[].ports", matches, limits::MATCHES_MAX)?;
    let connections_max = message.forwarder.as_ref().map_or(0, |own| own.connections_max);
    if connections_max > limits::CONNECTIONS_MAX {
        return refuse(
            "forwarder.connections_max",
            format!("{connections_max} is more than {}", limits::CONNECTIONS_MAX),
        );
    }
    Ok(())
}

/// The outer source addresses, one per family.
#[derive(Debug, Clone, Copy, Default)]
struct Sources {
    v4: Option<u32>,
    v6: Option<u128>,
}

fn sources(message: &proto::Plan) -> Result<Sources, PlanError> {
    let mut sources = Sources::default();
    for address in own_addresses(message)? {
        match address {
            IpAddr::V4(address) => sources.v4 = sources.v4.or(Some(address.to_bits())),
            IpAddr::V6(address) => sources.v6 = sources.v6.or(Some(address.to_bits())),
        }
    }
    Ok(sources)
}

fn own_addresses(message: &proto::Plan) -> Result<Vec<IpAddr>, PlanError> {
    let addresses = message.machine.iter().flat_map(|machine| &machine.addresses).enumerate();
    addresses
        .map(|(index, text)| parse_address(text, || format!("machine.addresses[{index}]")))
        .collect()
}

fn routers(message: &proto::Plan) -> Result<Vec<IpAddr>, PlanError> {
    let routers = message.machine.iter().flat_map(|machine| &machine.routers).enumerate();
    routers
        .map(|(index, text)| parse_address(text, || format!("machine.routers[{index}]")))
        .collect()
}

fn peers(message: &proto::Plan) -> Result<Vec<Peer>, PlanError> {
    let mut peers: Vec<Peer> = Vec::new();
    for (index, peer) in message.peers.iter().enumerate() {
        let addresses = peer.addresses.iter().enumerate();
        let addresses: Result<Vec<IpAddr>, PlanError> = addresses
            .map(|(at, text)| parse_address(text, || format!("peers[{index}].addresses[{at}]")))
            .collect();
        let own = message.machine.as_ref().is_some_and(|machine| machine.name == peer.name);
        if peer.name.is_empty() || own || peers.iter().any(|other| other.name == peer.name) {
            let problem = format!("`{}` is empty, there twice, or this machine's own", peer.name);
            return refuse(format!("peers[{index}].name"), problem);
        }
        peers.push(Peer { name: peer.name.clone(), addresses: addresses?, healthy: peer.healthy });
    }
    Ok(peers)
}

fn encapsulators(message: &proto::Plan) -> Result<Vec<(IpAddr, u8)>, PlanError> {
    let prefixes = message.encapsulators.iter().enumerate();
    prefixes
        .map(|(index, text)| match parse_prefix(text) {
            Some(prefix) => Ok(prefix),
            None => refuse(
                format!("encapsulators[{index}]"),
                format!("`{text}` is not a prefix like 10.0.9.0/24"),
            ),
        })
        .collect()
}

/// Each prefix with the suffix of the service's first Vip of its family.
fn spill(path: &str, message: &proto::Service) -> Result<Vec<SpillTo>, PlanError> {
    let spills = message.spill.iter().enumerate();
    spills
        .map(|(index, spill)| {
            let path = format!("{path}.spill[{index}].prefix");
            let Some((network, bits)) = parse_prefix(&spill.prefix) else {
                return refuse(
                    path,
                    format!("`{}` is not a prefix like 198.51.100.0/24", spill.prefix),
                );
            };
            let family = Family::of(network);
            let host_mask = low_mask(family.address_bits() - u32::from(bits));
            let suffix =
                message.vips.iter().find_map(|vip| suffix_of(vip, family)).unwrap_or(1) & host_mask;
            let network = ip::address_bits(network);
            Ok(SpillTo {
                family,
                network,
                host_mask,
                address: ip::address(family, network | suffix),
                down: spill.down,
            })
        })
        .collect()
}

fn suffix_of(vip: &proto::Vip, family: Family) -> Option<AddressBits> {
    let text = match vip.target.as_ref()? {
        proto::vip::Target::Address(address) => address,
        proto::vip::Target::PrefixSuffix(target) => &target.suffix,
    };
    let address: IpAddr = text.parse().ok()?;
    (Family::of(address) == family).then(|| ip::address_bits(address))
}

fn tunnel(message: &proto::Plan) -> Result<Tunnel, PlanError> {
    let tunnel = message.tunnel.clone().unwrap_or_default();
    let source_prefix = match (tunnel.source_prefix.as_str(), parse_prefix(&tunnel.source_prefix)) {
        ("", _) => None,
        (_, Some((IpAddr::V4(network), bits))) => {
            Some((network.to_bits(), low_mask(32 - u32::from(bits)) as u32))
        }
        (text, _) => {
            return refuse(
                "tunnel.source_prefix",
                format!("`{text}` is not an IPv4 prefix like 10.0.64.0/18"),
            );
        }
    };
    Ok(Tunnel { udp6_checksum: tunnel.udp6_checksum, source_prefix })
}

fn backend_addresses<'m>(
    message: &'m proto::Plan,
    sources: &Sources,
) -> Result<BTreeMap<&'m str, IpAddr>, PlanError> {
    let mut addresses = BTreeMap::new();
    for (index, backend) in message.backends.iter().enumerate() {
        let address = parse_address(&backend.address, || format!("backends[{index}].address"))?;
        let (source, family) = match address {
            IpAddr::V4(_) => (sources.v4.is_some(), "IPv4"),
            IpAddr::V6(_) => (sources.v6.is_some(), "IPv6"),
        };
        if !source {
            return refuse(
                format!("backends[{index}].address"),
                format!(
                    "`{address}` is {family}, but machine.addresses has no {family} address to send from: add one"
                ),
            );
        }
        if backend.name.is_empty() || addresses.insert(backend.name.as_str(), address).is_some() {
            return refuse(
                format!("backends[{index}].name"),
                format!("`{}` is empty or there twice", backend.name),
            );
        }
    }
    Ok(addresses)
}

/// Of an address or prefix that was parsed.
fn is_v6(text: &str) -> bool {
    text.contains(':')
}

fn parse_address(text: &str, path: impl Fn() -> String) -> Result<IpAddr, PlanError> {
    text.parse().or_else(|_| refuse(path(), format!("`{text}` is not an IP address")))
}

/// A prefix as its address and length; the bits behind the length are zero.
fn parse_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let host = Family::of(address).address_bits().checked_sub(u32::from(bits))?;
    (ip::address_bits(address) & low_mask(host) == 0).then_some((address, bits))
}

/// The message's groups, each checked once, by name; and one without members
/// for services that name none.
struct MemberGroups<'m> {
    by_name: HashMap<&'m str, usize>,
    groups: Vec<MemberGroup<'m>>,
}

/// One of them.
struct MemberGroup<'m> {
    /// In order of the backends' names.
    members: Vec<(&'m proto::Member, BackendId)>,
    has_active: bool,
}

impl<'m> MemberGroups<'m> {
    fn new(
        message: &'m proto::Plan,
        backend_ids: &HashMap<&'m str, BackendId>,
    ) -> Result<MemberGroups<'m>, PlanError> {
        // Members stood in the services once, where we would not see them.
        if message.groups.is_empty() && !message.backends.is_empty() {
            return refuse("groups", "is missing, but there are backends: upgrade the controller");
        }
        let mut by_name = HashMap::new();
        let mut groups = Vec::with_capacity(message.groups.len() + 1);
        for (index, group) in message.groups.iter().enumerate() {
            let path = format!("groups[{index}]");
            if group.name.is_empty() || by_name.insert(group.name.as_str(), index).is_some() {
                let problem = format!("`{}` is empty or there twice", group.name);
                return refuse(format!("{path}.name"), problem);
            }
            groups.push(MemberGroup::new(&path, group, backend_ids)?);
        }
        by_name.insert("", groups.len());
        groups.push(MemberGroup { members: Vec::new(), has_active: false });
        Ok(MemberGroups { by_name, groups })
    }

    /// The index of the service's group.
    fn of(&self, path: &str, service: &proto::Service) -> Result<usize, PlanError> {
        match self.by_name.get(service.group.as_str()) {
            Some(index) => Ok(*index),
            None => {
                refuse(format!("{path}.group"), format!("there is no group `{}`", service.group))
            }
        }
    }
}

impl<'m> MemberGroup<'m> {
    fn new(
        path: &str,
        message: &'m proto::Group,
        backend_ids: &HashMap<&'m str, BackendId>,
    ) -> Result<MemberGroup<'m>, PlanError> {
        let mut members = Vec::with_capacity(message.members.len());
        for (at, member) in message.members.iter().enumerate() {
            let path = || format!("{path}.members[{at}]");
            let Some(id) = backend_ids.get(member.backend.as_str()) else {
                let problem = format!("there is no backend `{}`", member.backend);
                return refuse(format!("{}.backend", path()), problem);
            };
            if member.weight > limits::WEIGHT_MAX {
                let problem = format!("{} is above {}", member.weight, limits::WEIGHT_MAX);
                return refuse(format!("{}.weight", path()), problem);
            }
            if member.state() == proto::BackendState::Unspecified {
                return refuse(format!("{}.state", path()), "is missing or unknown");
            }
            members.push((member, *id));
        }
        members.sort_by_key(|(member, _)| member.backend.as_str());
        if let Some(twice) = members.windows(2).find(|pair| pair[0].0.backend == pair[1].0.backend)
        {
            let problem = format!("backend `{}` is there twice", twice[0].0.backend);
            return refuse(format!("{path}.members"), problem);
        }
        let has_active = message.members.iter().any(is_active);
        Ok(MemberGroup { members, has_active })
    }
}

/// A plan half decoded.
struct Decoding<'m, 'p> {
    planner: &'p mut Planner,
    sources: Sources,
    backends: Box<[Option<Backend>]>,
    /// The classes of each prefix group: family, prefix length, class.
    groups: HashMap<&'m str, Vec<(Family, u32, u32)>>,
    vips: VipsBuilder,
    matches: Vec<Match>,
    services: Vec<Option<Service>>,
    order: Vec<ServiceId>,
    styles: Vec<(Encap, Dscp)>,
    own_groups: Vec<Arc<Group>>,
    group_indices: HashMap<*const Group, u32>,
    member_groups: MemberGroups<'m>,
    /// Those that services had already: services of one group that treat it
    /// alike share the decoded one.
    decoded_groups: HashMap<GroupUse, Arc<Group>>,
    own: Vec<IpAddr>,
    peers: Vec<Peer>,
}

impl<'m, 'p> Decoding<'m, 'p> {
    fn new(
        message: &'m proto::Plan,
        sources: Sources,
        addresses: &BTreeMap<&'m str, IpAddr>,
        backend_ids: &HashMap<&'m str, BackendId>,
        member_groups: MemberGroups<'m>,
        planner: &'p mut Planner,
    ) -> Result<Decoding<'m, 'p>, PlanError> {
        let highest = backend_ids.values().map(|id| id.index()).max().unwrap_or(0);
        let mut backends = vec![None; highest + 1].into_boxed_slice();
        for (name, address) in addresses {
            let id = backend_ids[name];
            backends[id.index()] =
                Some(Backend { id, name: (*name).to_owned(), address: *address });
        }
        let mut decoding = Decoding {
            planner,
            sources,
            backends,
            groups: HashMap::new(),
            vips: VipsBuilder::default(),
            matches: Vec::new(),
            services: Vec::new(),
            order: Vec::new(),
            styles: Vec::new(),
            own_groups: Vec::new(),
            group_indices: HashMap::new(),
            member_groups,
            decoded_groups: HashMap::new(),
            own: own_addresses(message)?,
            peers: peers(message)?,
        };
        for (index, group) in message.prefix_groups.iter().enumerate() {
            decoding.prefix_group(index, group)?;
        }
        Ok(decoding)
    }

    /// Makes a class for each family and prefix length of the group.
    fn prefix_group(
        &mut self,
        index: usize,
        group: &'m proto::PrefixGroup,
    ) -> Result<(), PlanError> {
        let mut classes: BTreeMap<(Family, u32), u32> = BTreeMap::new();
        for (at, text) in group.prefixes.iter().enumerate() {
            let path = || format!("prefix_groups[{index}].prefixes[{at}]");
            let Some((address, bits)) = parse_prefix(text) else {
                return refuse(
                    path(),
                    format!("`{text}` is not a prefix like 203.0.113.0/24 with zeros behind it"),
                );
            };
            let (family, bits) = (Family::of(address), u32::from(bits));
            let class = *classes.entry((family, bits)).or_insert_with(|| self.vips.class());
            if !self.vips.prefix(family, ip::address_bits(address), bits, class) {
                return refuse(
                    path(),
                    format!("`{text}` is in a prefix group already; a prefix has one class"),
                );
            }
        }
        let classes =
            classes.into_iter().map(|((family, bits), class)| (family, bits, class)).collect();
        if self.groups.insert(group.name.as_str(), classes).is_some() {
            return refuse(
                format!("prefix_groups[{index}].name"),
                format!("`{}` is there twice", group.name),
            );
        }
        Ok(())
    }

    fn service(
        &mut self,
        index: usize,
        message: &'m proto::Service,
        id: ServiceId,
        counted: Counted,
    ) -> Result<(), PlanError> {
        let path = format!("services[{index}]");
        refuse_unsupported(message, &path)?;
        let info = AddressInfo {
            unmatched_pass: message.unmatched() == proto::Unmatched::Pass,
            fragments: match message.fragments() {
                proto::Fragments::On => true,
                proto::Fragments::Off => false,
                proto::Fragments::Auto => self.peers.is_empty(),
            },
        };
        let group = self.members(&path, message)?;
        let service = Service {
            id,
            name: message.name.clone(),
            first_member: counted.first_member,
            affinity: match message.affinity() {
                proto::Affinity::Flow => Affinity::Flow,
                proto::Affinity::Client => Affinity::Client,
            },
            encap: encap(message),
            timeouts: timeouts(&path, message.idle_timeouts.unwrap_or_default())?,
            // Zero is none; more than are counted is none, too.
            quota: match message.connections_quota {
                0 => u32::MAX,
                quota => quota.try_into().unwrap_or(u32::MAX),
            },
            dscp: dscp(&path, message.dscp)?,
            spill: spill(&path, message)?,
            group,
        };
        let mut wants = Vec::new();
        for (at, vip) in message.vips.iter().enumerate() {
            let path = format!("{path}.vips[{at}]");
            let ports = ports(&path, vip)?;
            wants.push((path, vip, ports));
        }
        let matched = Matched {
            service: id,
            style: self.style(service.encap, service.dscp),
            matched: 0,
            first_member: counted.first_member,
            group: self.group(&service.group),
            alone: counted.alone
                && wants.iter().map(|(_, _, ports)| ports.len()).sum::<usize>() == 1,
        };
        for ((path, vip, ports), index) in wants.into_iter().zip(0..) {
            self.vip(&path, (index, vip), ports, matched, info)?;
        }
        if self.services.len() <= id.index() {
            self.services.resize_with(id.index() + 1, || None);
        }
        self.services[id.index()] = Some(service);
        self.order.push(id);
        Ok(())
    }

    /// The index of that way to encapsulate. There are fewer than 300.
    fn style(&mut self, encap: Encap, dscp: Dscp) -> u16 {
        let known = self.styles.iter().position(|style| *style == (encap, dscp));
        known.unwrap_or_else(|| {
            self.styles.push((encap, dscp));
            self.styles.len() - 1
        }) as u16
    }

    /// The index of that group.
    fn group(&mut self, group: &Arc<Group>) -> u32 {
        *self.group_indices.entry(Arc::as_ptr(group)).or_insert_with(|| {
            self.own_groups.push(Arc::clone(group));
            self.own_groups.len() as u32 - 1
        })
    }

    /// Adds a Vip of a service: one match for each range of its ports.
    fn vip(
        &mut self,
        path: &str,
        (index, vip): (u32, &proto::Vip),
        ports: Vec<Ports>,
        of_service: Matched,
        info: AddressInfo,
    ) -> Result<(), PlanError> {
        let (target, places) = self.places(path, vip)?;
        for ports in ports {
            let matched = Matched { matched: self.matches.len() as u32, ..of_service };
            let (protocol, text) = ports_text(ports);
            let target = target.clone();
            self.matches.push(Match { matched, vip: index, target, protocol, ports: text });
            for place in &places {
                if let Err(conflict) = self.vips.add(*place, ports, matched, info) {
                    return self.refuse_conflict(path, &conflict.with);
                }
            }
        }
        Ok(())
    }

    fn refuse_conflict(&self, path: &str, with: &Matched) -> Result<(), PlanError> {
        let other = &self.matches[with.matched as usize];
        let position = self
            .order
            .iter()
            .position(|id| *id == other.matched.service)
            .unwrap_or(self.order.len());
        refuse(
            path,
            format!(
                "claims packets that services[{position}].vips[{}] ({} {} {}) claims already",
                other.vip, other.target, other.protocol, other.ports
            ),
        )
    }

    /// Where a Vip is, and how people write that.
    fn places(&self, path: &str, vip: &proto::Vip) -> Result<(String, Vec<Place>), PlanError> {
        match &vip.target {
            Some(proto::vip::Target::Address(text)) => {
                let address = parse_address(text, || format!("{path}.address"))?;
                Ok((
                    address.to_string(),
                    vec![Place::Exact(Family::of(address), ip::address_bits(address))],
                ))
            }
            Some(proto::vip::Target::PrefixSuffix(target)) => {
                self.suffix_places(&format!("{path}.prefix_suffix"), target)
            }
            None => refuse(path, "has neither an address nor a prefix group with a suffix"),
        }
    }

    fn suffix_places(
        &self,
        path: &str,
        target: &proto::PrefixSuffix,
    ) -> Result<(String, Vec<Place>), PlanError> {
        let Some(classes) = self.groups.get(target.prefix_group.as_str()) else {
            return refuse(
                format!("{path}.prefix_group"),
                format!("there is no `{}`", target.prefix_group),
            );
        };
        let address = parse_address(&target.suffix, || format!("{path}.suffix"))?;
        let (family, suffix) = (Family::of(address), ip::address_bits(address));
        let mut places = Vec::new();
        for (_, prefix_bits, class) in classes.iter().filter(|(other, _, _)| *other == family) {
            let host = family.address_bits() - prefix_bits;
            let bits = if target.suffix_bits == 0 { host } else { target.suffix_bits };
            check_suffix(path, suffix, bits, family, *prefix_bits)?;
            places.push(Place::Suffix { class: *class, bits, suffix });
        }
        if places.is_empty() {
            return refuse(
                format!("{path}.suffix"),
                format!("no prefix of `{}` has its family", target.prefix_group),
            );
        }
        Ok((format!("{}:{address}", target.prefix_group), places))
    }

    /// The members of a service, as it treats those that are down.
    fn members(&mut self, path: &str, message: &proto::Service) -> Result<Arc<Group>, PlanError> {
        let index = self.member_groups.of(path, message)?;
        let group = &self.member_groups.groups[index];
        let table_size = table_size(path, message, group.members.len())?;
        // When nobody is active, fail_open selects among those that are down;
        // but another cluster that is named to spill to comes first.
        let open = message.when_none() == proto::WhenNone::FailOpen
            && message.spill.is_empty()
            && !group.has_active;
        let key = GroupUse { index, table_size, on_down: message.on_down(), open };
        if let Some(group) = self.decoded_groups.get(&key) {
            return Ok(Arc::clone(group));
        }
        let members = group.members.iter().map(|(member, id)| {
            (member.backend.clone(), *id, member.weight, standing(member, key.on_down, open))
        });
        let group = self.planner.group(GroupKey { table_size, members: members.collect() });
        self.decoded_groups.insert(key, Arc::clone(&group));
        Ok(group)
    }

    fn finish(self, message: &proto::Plan) -> Result<Plan, PlanError> {
        let cluster = message.cluster.clone().unwrap_or_default();
        let mut distinct: HashMap<*const Group, u64> = HashMap::new();
        for service in self.services.iter().flatten() {
            distinct
                .insert(Arc::as_ptr(&service.group), service.group.table().map_or(0, Table::bytes));
        }
        let table_bytes: u64 = distinct.values().sum();
        if table_bytes > limits::TABLE_BYTES_MAX {
            return refuse(
                "services[].table_size",
                format!(
                    "the {} distinct tables take {table_bytes} bytes, more than {}: use smaller tables or fewer different pools",
                    distinct.len(),
                    limits::TABLE_BYTES_MAX
                ),
            );
        }
        Ok(Plan {
            serial: DECODED.fetch_add(1, Ordering::Relaxed),
            generation: message.generation,
            cluster: cluster.name,
            key_id: cluster.key_id,
            machine: message
                .machine
                .as_ref()
                .map(|machine| machine.name.clone())
                .unwrap_or_default(),
            source_v4: self.sources.v4,
            source_v6: self.sources.v6,
            routers: routers(message)?,
            tunnel: tunnel(message)?,
            learn_path_mtu: message.path_mtu.and_then(|path_mtu| path_mtu.learn).unwrap_or(true),
            ingress: Ingress::new(&self.own, &self.peers, &encapsulators(message)?),
            peers: self.peers,
            vips: self.vips.build(),
            matches: self.matches,
            services: self.services.into(),
            order: self.order,
            backends: self.backends,
            members: 0,
            styles: self.styles,
            groups: self.own_groups,
            message: proto::Plan::default(),
        })
    }
}

/// What is in the contract but not in this forwarder yet.
fn refuse_unsupported(message: &proto::Service, path: &str) -> Result<(), PlanError> {
    let refused = |field: &str, what: &str| {
        refuse(format!("{path}.{field}"), format!("{what} is not yet supported"))
    };
    if message.mode() == proto::Mode::Stateless {
        return refused("mode", "stateless");
    }
    Ok(())
}

fn is_active(member: &proto::Member) -> bool {
    member.state() == proto::BackendState::Active && member.weight > 0
}

fn table_size(path: &str, message: &proto::Service, members: usize) -> Result<u32, PlanError> {
    let size =
        if message.table_size == 0 { limits::TABLE_SIZE_DEFAULT } else { message.table_size };
    let path = || format!("{path}.table_size");
    if !maglev::is_table_size(size) {
        let max = limits::TABLE_SIZE_MAX;
        let problem = format!("{size} is not a prime from 3 to {max}: 65537 and 655373 are");
        return refuse(path(), problem);
    }
    if members > size as usize {
        return refuse(path(), format!("{size} entries are fewer than the {members} members"));
    }
    Ok(size)
}

fn standing(member: &proto::Member, on_down: proto::OnDown, open: bool) -> Standing {
    use proto::BackendState::{Active, Disabled, Down, Draining, Unspecified};
    match member.state() {
        Active if member.weight > 0 => Standing::Active,
        Active | Draining => Standing::Keeps,
        Down if open && member.weight > 0 => Standing::Active,
        Down if on_down == proto::OnDown::Keep => Standing::KeepsDown,
        // Unspecified: refused where groups are read.
        Down | Disabled | Unspecified => Standing::Gone,
    }
}

fn check_suffix(
    path: &str,
    suffix: AddressBits,
    bits: u32,
    family: Family,
    prefix_bits: u32,
) -> Result<(), PlanError> {
    if bits > family.address_bits() {
        return refuse(
            format!("{path}.suffix_bits"),
            format!("{bits} is more than an address has"),
        );
    }
    if suffix & !low_mask(bits) != 0 {
        return refuse(
            format!("{path}.suffix"),
            format!("has bits set above the {bits} that a /{prefix_bits} prefix leaves to it"),
        );
    }
    Ok(())
}

/// The protocol and port combinations of a Vip.
fn ports(path: &str, vip: &proto::Vip) -> Result<Vec<Ports>, PlanError> {
    let protocols: &[Protocol] = match vip.protocol() {
        proto::Protocol::Any => &[Protocol::TCP, Protocol::UDP],
        proto::Protocol::Tcp => &[Protocol::TCP],
        proto::Protocol::Udp => &[Protocol::UDP],
    };
    if vip.ports.is_empty() {
        return Ok(match vip.protocol() {
            proto::Protocol::Any => vec![Ports::Any],
            _ => vec![Ports::All(protocols[0])],
        });
    }
    let mut all = Vec::new();
    for (at, range) in vip.ports.iter().enumerate() {
        let bounds = (u16::try_from(range.first), u16::try_from(range.last));
        let (Ok(first @ 1..), Ok(last)) = bounds else {
            return refuse(
                format!("{path}.ports[{at}]"),
                format!("{}-{} is not within 1-65535", range.first, range.last),
            );
        };
        if last < first {
            return refuse(
                format!("{path}.ports[{at}]"),
                format!("{first}-{last} ends before it begins"),
            );
        }
        all.extend(protocols.iter().map(|protocol| Ports::Range(*protocol, first, last)));
    }
    Ok(all)
}

fn ports_text(ports: Ports) -> (&'static str, String) {
    let name = |protocol| if protocol == Protocol::TCP { "tcp" } else { "udp" };
    match ports {
        Ports::Any => ("any", "all".to_owned()),
        Ports::All(protocol) => (name(protocol), "all".to_owned()),
        Ports::Range(protocol, first, last) if first == last => (name(protocol), first.to_string()),
        Ports::Range(protocol, first, last) => (name(protocol), format!("{first}-{last}")),
    }
}

fn timeouts(path: &str, message: proto::IdleTimeouts) -> Result<Timeouts, PlanError> {
    let default = Timeouts::default();
    let check = |field: &str, value: u32, default: u32, max: u32| match value {
        0 => Ok(default),
        value if (1_000..=max).contains(&value) => Ok(value),
        value => refuse(
            format!("{path}.idle_timeouts.{field}"),
            format!("{value} ms is not within 1000 to {max}"),
        ),
    };
    Ok(Timeouts {
        tcp_ms: check("tcp_ms", message.tcp_ms, default.tcp_ms, limits::ESTABLISHED_IDLE_MS_MAX)?,
        unconfirmed_ms: check(
            "tcp_unconfirmed_ms",
            message.tcp_unconfirmed_ms,
            default.unconfirmed_ms,
            limits::UNCONFIRMED_IDLE_MS_MAX,
        )?,
        closing_ms: check(
            "tcp_closing_ms",
            message.tcp_closing_ms,
            default.closing_ms,
            limits::CLOSING_IDLE_MS_MAX,
        )?,
        udp_ms: check("udp_ms", message.udp_ms, default.udp_ms, limits::ESTABLISHED_IDLE_MS_MAX)?,
    })
}

fn encap(message: &proto::Service) -> Encap {
    match message.encap() {
        proto::Encap::Gre => Encap::Gre,
        proto::Encap::Ipip => Encap::Ipip,
        proto::Encap::Gue => Encap::Gue,
        proto::Encap::Geneve => Encap::Geneve,
    }
}

fn dscp(path: &str, value: Option<u32>) -> Result<Dscp, PlanError> {
    match value {
        None => Ok(Dscp::Copy),
        Some(value @ 0..=63) => Ok(Dscp::Set(value as u8)),
        Some(value) => refuse(format!("{path}.dscp"), format!("{value} is not within 0 to 63")),
    }
}
