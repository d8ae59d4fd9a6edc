//! Turns the message into the Plan: the only place that refuses one.
//!
//! ```text
//!  check ─► machine ─► ids ─► groups ─► counting ─► vips, services ─► Plan
//! ```

mod buckets;
mod check;
mod counting;
mod earlier;
mod groups;
mod ids;
mod join_ports;
mod machine;
mod probing;
mod quic_lb;
mod services;
mod vips;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use wire::{Encap, Family};

use check::{check_choices, check_features, check_limits};
use counting::Counting;
use groups::{GroupKey, GroupUse, MemberGroups};
use ids::backend_addresses;
use machine::{Sources, encapsulators, own_addresses, peers, routers, sources, tunnel};
use probing::probing;

use crate::group::Group;
use crate::ids::{BackendId, Ids, ServiceId};
use crate::matching::VipsBuilder;
use crate::peers::{Ingress, Peer};
use crate::plan::{Match, Plan};
use crate::service::L2;
use crate::service::{Backend, Service, TunnelProfile};
use crate::{limits, proto};

/// What this forwarder knows beyond the first version, sorted; `requires` may
/// name these.
#[must_use]
pub fn features() -> Vec<String> {
    let others = [
        "bucket-moves",
        "encapsulators",
        "fragments",
        "groups",
        "join-ports",
        "mptcp",
        // Required by plans of former versions, and ignored.
        "path-mtu-learn",
        "probing",
        "quic-lb",
        "second-chance",
        "source-prefix",
        "spill",
        "stateless",
        "steering-software",
        "tunnel-mtu",
        "udp6-checksum",
    ];
    let encaps = Encap::ALL.iter().filter(|encap| **encap != Encap::Gre).map(|encap| encap.name());
    let mut features: Vec<String> =
        encaps.chain([L2]).map(|name| format!("encap-{name}")).collect();
    features.extend(others.map(str::to_owned));
    features.sort_unstable();
    features
}

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

/// Makes Plans out of messages, and remembers between them what must be
/// stable (ids) or need not be built again (groups with their tables).
#[derive(Debug, Clone, Default)]
pub struct Planner {
    ids: Arc<Ids>,
    groups: HashMap<GroupKey, Weak<Group>>,
}

impl Planner {
    /// A planner that goes on with ids from before.
    #[must_use]
    pub fn with_ids(ids: Ids) -> Planner {
        Planner { ids: Arc::new(ids), ..Planner::default() }
    }

    /// The ids, which the caller keeps beside the connection tables; the same
    /// as long as they do not change.
    #[must_use]
    pub fn ids(&self) -> &Arc<Ids> {
        &self.ids
    }

    /// Frees the ids that plans up to `generation` retired. To be called when
    /// no connection table entry can hold one of them any more.
    pub fn release(&mut self, generation: u64) {
        if self.ids.backends.is_retired(generation) || self.ids.services.is_retired(generation) {
            let ids = Arc::make_mut(&mut self.ids);
            ids.backends.release(generation);
            ids.services.release(generation);
        }
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// If anything in it is wrong; the ids are unchanged then.
    pub fn plan(&mut self, message: proto::Plan) -> Result<Plan, PlanError> {
        // A refused plan must not retire what the running one uses.
        let ids = Arc::clone(&self.ids);
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
        let counting = Counting::new(&message, &groups)?;
        let mut decoding =
            Decoding::new(&message, sources, &addresses, &backend_ids, groups, self)?;
        for (index, service) in message.services.iter().enumerate() {
            decoding.service(index, service, ids[index], counting.of_service[index])?;
        }
        let probing = probing(&message, &backend_ids, &decoding.profiles)?;
        let plan = decoding.finish(&message)?;
        Ok(Plan { message, members: counting.members, probing, ..plan })
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
    services: Vec<Service>,
    profiles: Vec<TunnelProfile>,
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
            profiles: Vec::new(),
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

    fn finish(self, message: &proto::Plan) -> Result<Plan, PlanError> {
        let cluster = message.cluster.clone().unwrap_or_default();
        let mut distinct: HashMap<*const Group, u64> = HashMap::new();
        for service in &self.services {
            distinct.insert(Arc::as_ptr(&service.group), service.group.table_bytes());
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
            ingress: Ingress::new(&self.own, &self.peers, &encapsulators(message)?),
            peers: self.peers,
            vips: self.vips.build(),
            matches: self.matches,
            listed: listed(&self.services),
            services: self.services.into(),
            backends: self.backends,
            members: 0,
            profiles: self.profiles,
            groups: self.own_groups,
            probing: None,
            message: proto::Plan::default(),
        })
    }
}

/// By service id, where each of these services is.
fn listed(services: &[Service]) -> Box<[Option<u16>]> {
    let ids = services.iter().map(|service| service.id.index() + 1).max().unwrap_or(0);
    let mut listed = vec![None; ids];
    for (service, index) in services.iter().zip(0..) {
        listed[service.id.index()] = Some(index);
    }
    listed.into()
}

fn parse_address(text: &str, path: impl Fn() -> String) -> Result<IpAddr, PlanError> {
    text.parse().or_else(|_| refuse(path(), format!("`{text}` is not an IP address")))
}
