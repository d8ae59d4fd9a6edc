//! The datapath's explanations as API messages: for the running plan, or for a plan file.

use datapath::connection_id::Explained;
use datapath::explain::{self, Details, Tracked};
use datapath::multipath::Selection;
use datapath::table::TableReader;
use datapath::{DropReason, FlowHash, NextHop, NotCached, RecursionLimit, View};
use plan::{Affinity, BackendId, Matched, Plan, Service, Tracking};
use wire::FlowKey;

use crate::proto;

/// Explains a flow by a view, or a packet of it of which more is known; `devices` names
/// its devices.
#[must_use]
pub fn explained(
    view: &View,
    hash: &FlowHash,
    tables: &[TableReader<'_>],
    devices: &[&str],
    key: &FlowKey,
    details: Details<'_>,
) -> proto::ExplainResponse {
    let told = explain::explain(view, hash, tables, key, details);
    let plan = &view.plan;
    let mut response = proto::ExplainResponse {
        generation: plan.generation,
        hash: hex(&told.hash.to_be_bytes()),
        selector: hex(&told.selector.to_be_bytes()),
        slot: told.slot,
        backend_by_hash: told.by_hash.map_or_else(String::new, |id| backend_name(plan, id)),
        tracked: told.tracked.map(|tracked| tracked_flow(plan, &tracked)),
        next_hop: told.hop.map(|hop| next_hop(&hop, devices)),
        outer: hex(&told.outer),
        route_option: told
            .option
            .iter()
            .flat_map(|option| &option.addresses)
            .map(ToString::to_string)
            .collect(),
        second_chance: told.second_chance,
        connection_id: told.connection_id.as_ref().map(|id| explained_connection_id(plan, id)),
        multipath: told.multipath.map(|(by, bucket)| explained_multipath(by, bucket)),
        ..Default::default()
    };
    if let Some(backend) = told.backend.and_then(|id| plan.backend(id)) {
        response.backend.clone_from(&backend.name);
        response.backend_address = backend.address.to_string();
    }
    let service = told.matched.as_ref().map(|matched| plan.service_of(matched));
    if let (Some(matched), Some(service)) = (told.matched, service) {
        let entry = &plan.matches[matched.matched as usize];
        response.matched = format!("{} {} {}", entry.target, entry.protocol, entry.ports);
        describe_service(&mut response, service, matched.tracking);
        let is_stateless = matched.tracking == Tracking::Stateless;
        let is_moving = is_stateless && told.option.is_some();
        let cached = told.backend.and_then(|backend| cached(view, &matched, backend));
        let cached = cached.map(|of| if is_moving { Err(NotCached::Moving) } else { of });
        response.cached_by_bucket = is_stateless && cached == Some(Ok(()));
        let why = cached.and_then(Result::err);
        why.map_or("", NotCached::meaning).clone_into(&mut response.not_cached);
    }
    let spill = match told.end {
        Some(DropReason::NoBackend) => service.and_then(|service| spill(view, service, key)),
        _ => None,
    };
    response.verdict = verdict(&told, spill.is_some()).to_owned();
    response.end = told.end.filter(|_| spill.is_none()).map(drop_of);
    response.spill = spill.unwrap_or_default();
    response
}

/// Whether the kernel may send packets of that match to a backend by itself; None: it has
/// no cache.
fn cached(view: &View, matched: &Matched, backend: BackendId) -> Option<Result<(), NotCached>> {
    let members = view.plan.group_of(matched).members();
    let member = members.iter().position(|member| member.backend == backend)?;
    Some(view.kernel_targets.decision(matched.matched, member as u16)?.map(|_| ()))
}

fn explained_connection_id(plan: &Plan, told: &Explained) -> proto::ExplainedConnectionId {
    let config = told.config.as_ref();
    proto::ExplainedConnectionId {
        config: config.map(|config| config.id.into()),
        encrypted: config.is_some_and(|config| config.encrypted),
        server_id: config.map_or_else(String::new, |config| hex(&config.server_id)),
        backend: told.backend.map_or_else(String::new, |id| backend_name(plan, id)),
        by_flow: told.named.err().map_or_else(String::new, |reason| reason.name().to_owned()),
    }
}

fn explained_multipath(by: Selection, bucket: Option<u32>) -> proto::ExplainedMultipath {
    let key = match by {
        Selection::Key { key, .. } => hex(&key.to_be_bytes()),
        _ => String::new(),
    };
    let token = by.bits().map_or_else(String::new, |bits| hex(&bits.to_be_bytes()));
    proto::ExplainedMultipath { by: by.name().to_owned(), key, token, bucket }
}

fn verdict(told: &explain::Explanation, spilled: bool) -> &'static str {
    match told.end {
        Some(_) if spilled => "redirected",
        Some(_) => "dropped",
        None if told.matched.is_some() => "sent",
        None => "passed",
    }
}

fn describe_service(response: &mut proto::ExplainResponse, service: &Service, tracking: Tracking) {
    response.service.clone_from(&service.name);
    response.table_size = service.group.selector().map_or(0, |table| table.entries().len() as u32);
    let affinity = match service.affinity {
        Affinity::Flow => "flow",
        Affinity::Client => "client",
    };
    response.affinity = affinity.to_owned();
    let mode = match tracking {
        Tracking::Tracked => "stateful",
        Tracking::Stateless | Tracking::StatelessQuic | Tracking::StatelessMultipath => "stateless",
        Tracking::JoinPort => "join_port",
    };
    response.mode = mode.to_owned();
    response.encap = plan::encap_name(service.tunnel.encap).to_owned();
}

/// The address that a packet without a backend is spilled to (paper 4.2).
fn spill(view: &View, service: &Service, key: &FlowKey) -> Option<String> {
    // The same that forwarding asks; without a next hop it drops.
    let permitted = RecursionLimit::SPILLED;
    let (there, _) = view.egress.template_for_spill(&view.plan, service, key, 0, permitted)?;
    Some(there.to_string())
}

fn backend_name(plan: &Plan, id: BackendId) -> String {
    plan.backend(id).map_or_else(String::new, |backend| backend.name.clone())
}

fn tracked_flow(plan: &Plan, tracked: &Tracked) -> proto::TrackedFlow {
    proto::TrackedFlow {
        worker: tracked.worker as u32,
        backend: backend_name(plan, tracked.backend),
        class: tracked.class.name().to_owned(),
        idle_ms: tracked.idle_ms,
        decides: tracked.decides,
    }
}

fn next_hop(hop: &NextHop, devices: &[&str]) -> proto::NextHop {
    let index = usize::from(hop.device.0);
    proto::NextHop {
        device: devices.get(index).map_or_else(|| index.to_string(), |name| (*name).to_owned()),
        mac: hop.destination.to_string(),
        mtu: hop.mtu.into(),
    }
}

fn drop_of(reason: DropReason) -> proto::Drop {
    proto::Drop {
        reason: reason.name().to_owned(),
        packets: 0,
        meaning: reason.meaning().to_owned(),
        usual_cause: reason.usual_cause().to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
