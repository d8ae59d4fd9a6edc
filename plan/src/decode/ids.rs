//! Backends and services by name, each once, and their ids.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::machine::Sources;
use super::{PlanError, Planner, parse_address, refuse, refuse_for_now};
use crate::ids::BackendId;
use crate::proto;

/// Ids by name, of backends and services.
pub(super) type AssignedIds<'m> = (HashMap<&'m str, BackendId>, HashMap<&'m str, u16>);

impl Planner {
    /// Ids for every backend and service, each name checked to be there once.
    pub(super) fn assign_ids<'m>(
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
        // Most plans name what the last one did.
        let found = self.ids.backends.ids_of(&keys);
        let assign = || Arc::make_mut(&mut self.ids).backends.assign(&keys, message.generation);
        let Some(backends) = found.or_else(assign) else {
            return refuse_for_now("backends");
        };
        let backends =
            keyed.iter().map(|(name, key)| (*name, BackendId(backends[key.as_str()]))).collect();
        let found = self.ids.services.ids_of(&services);
        let assign = || Arc::make_mut(&mut self.ids).services.assign(&services, message.generation);
        let Some(services) = found.or_else(assign) else {
            return refuse_for_now("services");
        };
        Ok((backends, services))
    }
}

pub(super) fn backend_addresses<'m>(
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
