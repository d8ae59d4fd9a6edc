//! Computes next hops from routes, links and neighbours. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::links::Links;
use crate::neighbours::{Key, Neighbours};
use crate::routes::Hop;
use crate::{NextHop, Snapshot, Unresolved, Wanted};

/// What the route lookup of each backend gave.
pub type Routes = BTreeMap<IpAddr, Result<Vec<Hop>, Unresolved>>;

/// The neighbours through which the backends are reached by our devices.
pub fn needed(wanted: &Wanted, routes: &Routes, links: &Links) -> BTreeSet<Key> {
    let hops = routes.iter().filter_map(|(backend, hops)| Some((backend, hops.as_ref().ok()?)));
    hops.flat_map(|(backend, hops)| hops.iter().map(|hop| key(*backend, hop)))
        .filter(|(interface, _)| wanted.devices.contains(interface))
        .filter(|(interface, _)| links.get(*interface).is_some_and(|link| link.up))
        .collect()
}

/// The state of every backend.
pub fn snapshot(
    wanted: &Wanted,
    routes: &Routes,
    links: &Links,
    neighbours: &Neighbours,
) -> Snapshot {
    let resolve = |backend: &IpAddr| match routes.get(backend) {
        Some(Ok(hops)) => resolve_hops(*backend, hops, wanted, links, neighbours),
        Some(Err(why)) => Err(why.clone()),
        None => Err(Unresolved::NoRoute),
    };
    Snapshot {
        backends: wanted.backends.iter().map(|backend| (*backend, resolve(backend))).collect(),
        links: wanted
            .devices
            .iter()
            .filter_map(|index| Some((*index, links.get(*index)?.clone())))
            .collect(),
    }
}

/// Those of the next hops that work; if none does, why the first does not.
fn resolve_hops(
    backend: IpAddr,
    hops: &[Hop],
    wanted: &Wanted,
    links: &Links,
    neighbours: &Neighbours,
) -> Result<Vec<NextHop>, Unresolved> {
    let (mut found, mut missing) = (Vec::new(), None);
    for hop in hops {
        match resolve_hop(backend, hop, wanted, links, neighbours) {
            Ok(next_hop) => found.push(next_hop),
            Err(why) => missing = missing.or(Some(why)),
        }
    }
    if found.is_empty() { Err(missing.unwrap_or(Unresolved::NoRoute)) } else { Ok(found) }
}

fn resolve_hop(
    backend: IpAddr,
    hop: &Hop,
    wanted: &Wanted,
    links: &Links,
    neighbours: &Neighbours,
) -> Result<NextHop, Unresolved> {
    let interface = || links.name(hop.interface);
    let device = wanted.devices.iter().position(|index| *index == hop.interface);
    let device = device.ok_or_else(|| Unresolved::NotOurs(interface()))? as u32;
    let link = links
        .get(hop.interface)
        .filter(|link| link.up)
        .ok_or_else(|| Unresolved::LinkDown(interface()))?;
    let source =
        link.mac.ok_or_else(|| Unresolved::Kernel(format!("{} is not an Ethernet", link.name)))?;
    let key = key(backend, hop);
    let neighbour = neighbours.get(&key);
    let destination = neighbour.and_then(|known| known.mac()).ok_or_else(|| {
        if let Some(refusal) = neighbours.refusal(&key) {
            return Unresolved::Kernel(refusal.to_owned());
        }
        let state = neighbour.map_or("not known", |known| known.state());
        Unresolved::Neighbour { address: key.1, interface: interface(), state }
    })?;
    let route_mtu = hop.mtu.filter(|_| !(hop.is_default && wanted.ignores_default_mtu));
    let mtu = route_mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu));
    Ok(NextHop {
        device,
        source,
        destination,
        mtu,
        weight: hop.weight,
        is_backend: hop.gateway.is_none(),
    })
}

/// A backend without a gateway is its own neighbour.
fn key(backend: IpAddr, hop: &Hop) -> Key {
    (hop.interface, hop.gateway.unwrap_or(backend))
}
