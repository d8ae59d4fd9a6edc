//! The tables of the kernel-side filters: which destinations are ours.
//!
//! Both filters (XDP, and the packet socket's) have the same tables. This module holds them,
//! and updates only the differences while traffic runs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray};
use ebpf::{ObjectError, table, with_causes};
use wire::{IpPrefix, MacAddress};

/// Limits of bpf/destination.h, for messages.
const PREFIXES_MAX: usize = 65_536;
const OWN_ADDRESSES_MAX: usize = 64;

/// A table of bpf/redirect.bpf.c.
const DEVICE_ADDRESS: &str = "device_address";

/// The tables of a loaded filter.
pub struct Filter {
    prefixes_v4: LpmTrie<MapData, [u8; 4], u32>,
    prefixes_v6: LpmTrie<MapData, [u8; 16], u32>,
    own_addresses: HashMap<MapData, [u8; 16], u32>,
    take_tunnelled: Array<MapData, u32>,
    /// None: the kernel tells the filter which frames are to the device.
    device_address: Option<Array<MapData, [u8; 8]>>,
    counters: FilterReader,
    prefixes: BTreeSet<IpPrefix>,
    own: BTreeSet<IpAddr>,
}

/// Reads what a filter did, also while its tables are changed.
#[derive(Clone)]
pub struct FilterReader(Arc<PerCpuArray<MapData, u64>>);

/// What the filter did with the frames it saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterCounters {
    /// Sent to a socket of ours.
    pub taken: u64,
    /// Left to the kernel.
    pub passed: u64,
    /// Ours, but without a socket at their queue: lost.
    pub no_socket: u64,
    /// In the kernel flow cache, and the kernel had no room for the headers: lost.
    pub unsent: u64,
    /// Sent by the kernel flow cache: handed to the device, over all targets.
    pub cached: u64,
}

/// Why the tables cannot be as asked.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The kernel refused an entry.
    #[error("the filter cannot {action} {entry}: {error} (it holds at most {limit} of a kind)")]
    Entry {
        /// "add" or "remove".
        action: &'static str,
        /// The prefix or address.
        entry: String,
        /// The kernel's reason.
        error: String,
        /// How many it can hold.
        limit: usize,
    },
    /// The kernel refused to read or write a table.
    #[error("a table of the filter cannot be used: {0}")]
    Table(String),
}

impl From<MapError> for FilterError {
    fn from(error: MapError) -> FilterError {
        FilterError::Table(with_causes(&error))
    }
}

impl Filter {
    pub(crate) fn take(object: &mut Ebpf) -> Result<Filter, ObjectError> {
        let device_address = match object.map(DEVICE_ADDRESS) {
            Some(_) => Some(table(object, DEVICE_ADDRESS)?),
            None => None,
        };
        Ok(Filter {
            prefixes_v4: table(object, "prefixes_v4")?,
            prefixes_v6: table(object, "prefixes_v6")?,
            own_addresses: table(object, "own_addresses")?,
            take_tunnelled: table(object, "take_tunnelled")?,
            device_address,
            counters: FilterReader(Arc::new(table(object, "counters")?)),
            prefixes: BTreeSet::new(),
            own: BTreeSet::new(),
        })
    }

    /// From now on frames to `prefixes` are ours, and with `tunnelled` also
    /// tunnelled packets to our `own` addresses. What stays is not touched;
    /// what is new comes before what is gone goes, so that no address that is
    /// in both is ever missing.
    pub fn set(
        &mut self,
        prefixes: &[IpPrefix],
        own: &[IpAddr],
        tunnelled: bool,
    ) -> Result<(), FilterError> {
        let prefixes: BTreeSet<IpPrefix> = prefixes.iter().copied().collect();
        let own: BTreeSet<IpAddr> = own.iter().copied().collect();
        for prefix in prefixes.difference(&self.prefixes.clone()) {
            self.add_prefix(*prefix).map_err(refused("add", prefix, PREFIXES_MAX))?;
            self.prefixes.insert(*prefix);
        }
        for address in own.difference(&self.own.clone()) {
            let added = self.own_addresses.insert(mapped(*address), 1, 0);
            added.map_err(refused("add", address, OWN_ADDRESSES_MAX))?;
            self.own.insert(*address);
        }
        self.take_tunnelled.set(0, u32::from(tunnelled), 0)?;
        for prefix in self.prefixes.clone().difference(&prefixes) {
            self.remove_prefix(*prefix).map_err(refused("remove", prefix, PREFIXES_MAX))?;
            self.prefixes.remove(prefix);
        }
        for address in self.own.clone().difference(&own) {
            let removed = self.own_addresses.remove(&mapped(*address));
            removed.map_err(refused("remove", address, OWN_ADDRESSES_MAX))?;
            self.own.remove(address);
        }
        Ok(())
    }

    /// From now on only frames to that Ethernet address can be ours: the device's. Before,
    /// none are.
    pub fn set_address(&mut self, mac: MacAddress) -> Result<(), FilterError> {
        let Some(table) = &mut self.device_address else { return Ok(()) };
        let mut value = [0; 8];
        value[..6].copy_from_slice(&mac.0);
        Ok(table.set(0, value, 0)?)
    }

    /// What reads its counters.
    #[must_use]
    pub fn reader(&self) -> FilterReader {
        self.counters.clone()
    }

    fn add_prefix(&mut self, prefix: IpPrefix) -> Result<(), MapError> {
        let bits = u32::from(prefix.len());
        match prefix.address() {
            IpAddr::V4(v4) => self.prefixes_v4.insert(&Key::new(bits, v4.octets()), 1, 0),
            IpAddr::V6(v6) => self.prefixes_v6.insert(&Key::new(bits, v6.octets()), 1, 0),
        }
    }

    fn remove_prefix(&mut self, prefix: IpPrefix) -> Result<(), MapError> {
        let bits = u32::from(prefix.len());
        match prefix.address() {
            IpAddr::V4(v4) => self.prefixes_v4.remove(&Key::new(bits, v4.octets())),
            IpAddr::V6(v6) => self.prefixes_v6.remove(&Key::new(bits, v6.octets())),
        }
    }
}

impl FilterReader {
    /// Sums over all CPUs.
    pub fn counters(&self) -> Result<FilterCounters, FilterError> {
        let sum = |index| -> Result<u64, MapError> { Ok(self.0.get(&index, 0)?.iter().sum()) };
        let [taken, passed, no_socket, unsent] = [sum(0)?, sum(1)?, sum(2)?, sum(3)?];
        Ok(FilterCounters { taken, passed, no_socket, unsent, cached: 0 })
    }
}

/// IPv4 as ::ffff:a.b.c.d, as the filter looks it up.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn refused(
    action: &'static str,
    entry: &impl ToString,
    limit: usize,
) -> impl FnOnce(MapError) -> FilterError {
    let entry = entry.to_string();
    move |error| FilterError::Entry { action, entry, error: with_causes(&error), limit }
}
