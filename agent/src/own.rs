//! This host's own addresses. Tunnels to other addresses are left to the kernel, although
//! the interface receives them: frames that a switch floods, and packets that a host routes
//! for others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use aya::Pod;
use aya::maps::{HashMap, MapData};
use ebpf::{Record, with_causes};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use nexthops::socket::Requests;
use tokio::time;

use crate::records::{Address, Mac, mapped};

/// How often addresses are looked at.
const CHECK: Duration = Duration::from_secs(1);

/// The program's tables, kept as the kernel has its addresses.
pub struct Own {
    addresses: Table<Address>,
    macs: Table<Record<Mac>>,
    requests: Requests,
}

/// A table, and what it has.
struct Table<K: Pod + Ord> {
    table: HashMap<MapData, K, u32>,
    has: BTreeSet<K>,
}

impl Own {
    /// Of empty tables, in the network namespace of the calling thread.
    pub fn new(
        addresses: HashMap<MapData, Address, u32>,
        macs: HashMap<MapData, Record<Mac>, u32>,
    ) -> Result<Own, String> {
        let requests =
            Requests::open().map_err(|error| format!("cannot ask for addresses: {error}"))?;
        let (addresses, macs) = (Table::new(addresses), Table::new(macs));
        Ok(Own { addresses, macs, requests })
    }

    /// Keeps the tables true, for ever.
    pub async fn follow(&mut self) -> Result<(), String> {
        let mut ticks = time::interval(CHECK);
        loop {
            ticks.tick().await;
            self.update()?;
        }
    }

    /// Fills the tables with the present addresses of all interfaces.
    pub fn update(&mut self) -> Result<(), String> {
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let addresses = self.ask(addresses)?.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(message) => address_of(&message),
            _ => None,
        });
        let addresses: Vec<IpAddr> = addresses.collect();
        let links = self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        let macs = links.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(message) => mac_of(&message),
            _ => None,
        });
        let macs: Vec<[u8; 6]> = macs.collect();
        self.set(&addresses, &macs)
    }

    /// Fills the tables with these.
    pub fn set(&mut self, addresses: &[IpAddr], macs: &[[u8; 6]]) -> Result<(), String> {
        self.addresses.set(addresses.iter().map(|address| mapped(*address)).collect())?;
        self.macs.set(macs.iter().map(|mac| Record(Mac { words: *mac, unused: 0 })).collect())
    }

    fn ask(&mut self, what: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, String> {
        self.requests.dump(what).map_err(|error| format!("cannot list addresses: {error}"))
    }
}

impl<K: Pod + Ord> Table<K> {
    fn new(table: HashMap<MapData, K, u32>) -> Table<K> {
        Table { table, has: BTreeSet::new() }
    }

    /// What is new comes before what is gone goes.
    fn set(&mut self, wanted: BTreeSet<K>) -> Result<(), String> {
        for key in wanted.difference(&self.has) {
            let entered = self.table.insert(key, 1, 0);
            entered.map_err(|error| {
                format!("cannot enter one of {} addresses: {}", wanted.len(), with_causes(&error))
            })?;
        }
        for key in self.has.difference(&wanted) {
            let removed = self.table.remove(key);
            removed
                .map_err(|error| format!("cannot remove an address: {}", with_causes(&error)))?;
        }
        self.has = wanted;
        Ok(())
    }
}

/// The interface's own; `Address` is the other end's where the two differ.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let attributes = &message.attributes;
    let local = attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

fn mac_of(message: &LinkMessage) -> Option<[u8; 6]> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    })
}
