//! The other load balancers, and the sources from which tunnelled packets are accepted.

use std::net::IpAddr;

use wire::ip::{self, AddressBits};
use wire::{Encap, Family, Protocol};

use crate::matching::low_mask;
use crate::select::Selector;
use crate::select::maglev::{self, Candidate};

/// Another load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub addresses: Vec<IpAddr>,
    /// The controller's probes reach it.
    pub healthy: bool,
}

/// Who sent a tunnelled packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// Another load balancer.
    Peer,
    /// A router's encapsulator, or a load balancer of another cluster.
    Encapsulator,
}

/// Tunnelled ingress: own addresses and trusted senders.
#[derive(Debug, Clone, Default)]
pub struct Ingress {
    own: Vec<(Family, AddressBits)>,
    peers: Vec<(Family, AddressBits)>,
    encapsulators: Vec<(Family, AddressBits, u32)>,
}

impl Ingress {
    /// For a machine with these addresses.
    #[must_use]
    pub fn new(own: &[IpAddr], peers: &[Peer], encapsulators: &[(IpAddr, u8)]) -> Ingress {
        let pair = |address: &IpAddr| (Family::of(*address), ip::address_bits(*address));
        Ingress {
            own: own.iter().map(pair).collect(),
            peers: peers.iter().flat_map(|peer| &peer.addresses).map(pair).collect(),
            encapsulators: encapsulators
                .iter()
                .map(|(address, bits)| {
                    let (family, network) = pair(address);
                    (family, network, family.address_bits() - u32::from(*bits))
                })
                .collect(),
        }
    }

    /// True if any tunnelled packet is accepted.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.peers.is_empty() || !self.encapsulators.is_empty()
    }

    /// True for packets that may be a tunnel to this machine: by protocol,
    /// or to an address of its own by UDP port.
    #[inline]
    #[must_use]
    pub fn is_tunnel(&self, key: &wire::FlowKey) -> bool {
        Encap::of(key).is_some()
            && (key.protocol != Protocol::UDP || self.is_own(key.family, key.destination))
    }

    /// True for an address of this machine.
    #[must_use]
    pub fn is_own(&self, family: Family, address: AddressBits) -> bool {
        self.own.contains(&(family, address))
    }

    /// Who that is; None: a stranger.
    #[must_use]
    pub fn sender(&self, family: Family, address: AddressBits) -> Option<Sender> {
        if self.peers.contains(&(family, address)) {
            return Some(Sender::Peer);
        }
        let covers = |(of, network, host): &(Family, AddressBits, u32)| {
            *of == family && address & !low_mask(*host) == *network
        };
        self.encapsulators.iter().any(covers).then_some(Sender::Encapsulator)
    }
}

/// Which machine is in charge of a datagram's fragments (paper 4.3): Maglev
/// hashing over this machine and the healthy peers that it reaches.
#[derive(Debug, Default)]
pub struct Owners {
    /// None: this machine.
    machines: Vec<Option<usize>>,
    table: Option<Selector>,
}

impl Owners {
    /// Entries of the table: far more than 100 for each of 64 machines.
    const TABLE_SIZE: u32 = 65_537;

    /// Of this machine and its healthy peers, of which `reaches` says, by
    /// index, whether a next hop to them is known.
    #[must_use]
    pub fn new(own: &str, peers: &[Peer], reaches: impl Fn(usize) -> bool) -> Owners {
        let healthy = peers.iter().enumerate().filter(|(_, peer)| peer.healthy);
        let reached = healthy.filter(|(index, _)| reaches(*index));
        let mut machines: Vec<(&str, Option<usize>)> = reached
            .map(|(index, peer)| (peer.name.as_str(), Some(index)))
            .chain([(own, None)])
            .collect();
        machines.sort_unstable();
        let candidate = |(name, _): &(&str, _)| Candidate { name: (*name).to_owned(), weight: 1 };
        let table = (machines.len() > 1).then(|| {
            let machines: Vec<Candidate> = machines.iter().map(candidate).collect();
            maglev::selector(&machines, Owners::TABLE_SIZE)
        });
        Owners { machines: machines.into_iter().map(|(_, index)| index).collect(), table }
    }

    /// The index of the peer in charge; None: this machine.
    #[must_use]
    pub fn owner(&self, hash: u64) -> Option<usize> {
        self.table.as_ref().and_then(|table| self.machines[usize::from(table.select(hash))])
    }
}
