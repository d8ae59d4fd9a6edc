//! This machine, its tunnels, and the machines that it exchanges packets with.

use std::net::IpAddr;

use super::{PlanError, parse_address, refuse};
use crate::matching::low_mask;
use crate::peers::Peer;
use crate::plan::TunnelOptions;
use crate::text::parse_prefix;
use crate::{limits, proto};

/// The outer source addresses, one per family.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sources {
    pub v4: Option<u32>,
    pub v6: Option<u128>,
}

pub(super) fn sources(message: &proto::Plan) -> Result<Sources, PlanError> {
    let mut sources = Sources::default();
    for address in own_addresses(message)? {
        match address {
            IpAddr::V4(address) => sources.v4 = sources.v4.or(Some(address.to_bits())),
            IpAddr::V6(address) => sources.v6 = sources.v6.or(Some(address.to_bits())),
        }
    }
    Ok(sources)
}

pub(super) fn own_addresses(message: &proto::Plan) -> Result<Vec<IpAddr>, PlanError> {
    let addresses = message.machine.iter().flat_map(|machine| &machine.addresses).enumerate();
    addresses
        .map(|(index, text)| parse_address(text, || format!("machine.addresses[{index}]")))
        .collect()
}

pub(super) fn routers(message: &proto::Plan) -> Result<Vec<IpAddr>, PlanError> {
    let routers = message.machine.iter().flat_map(|machine| &machine.routers).enumerate();
    routers
        .map(|(index, text)| parse_address(text, || format!("machine.routers[{index}]")))
        .collect()
}

pub(super) fn peers(message: &proto::Plan) -> Result<Vec<Peer>, PlanError> {
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

pub(super) fn encapsulators(message: &proto::Plan) -> Result<Vec<(IpAddr, u8)>, PlanError> {
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

pub(super) fn tunnel(message: &proto::Plan) -> Result<TunnelOptions, PlanError> {
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
    let mtu = match (tunnel.mtu, u16::try_from(tunnel.mtu)) {
        (0, _) => None,
        (_, Ok(mtu)) if mtu >= limits::TUNNEL_MTU_MIN => Some(mtu),
        (mtu, _) => {
            let range = format!("{} to {}", limits::TUNNEL_MTU_MIN, u16::MAX);
            return refuse("tunnel.mtu", format!("{mtu} is not within {range}"));
        }
    };
    Ok(TunnelOptions { udp6_checksum: tunnel.udp6_checksum, source_prefix, mtu })
}
