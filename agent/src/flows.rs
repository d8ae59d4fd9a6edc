//! The UDP flows that this agent accepted, as its program records them (bpf/flow.h): the
//! kernel has no sockets for them that could be listed.

use aya::maps::{HashMap, MapData, MapError};
use ebpf::{Record, with_causes};
use rustix::time::{ClockId, clock_gettime};
use wire::{Family, FlowKey, Protocol, ip};

use crate::records::{Address, Flow, mapped, unmapped};

/// A flow of which nothing was taken for so long is of no account: `FLOW_IDLE_SECONDS`
/// in bpf/flow.h.
const IDLE_SECONDS: u32 = 120;

/// The program's table of flows, with when something was last taken of each, in seconds.
pub struct Flows(HashMap<MapData, Record<Flow>, u32>);

impl Flows {
    /// Of the program's table.
    pub fn new(table: HashMap<MapData, Record<Flow>, u32>) -> Flows {
        Flows(table)
    }

    /// Those of which something was taken lately, as packets of their clients.
    pub fn recent(&self) -> Result<Vec<FlowKey>, String> {
        let now = now_seconds();
        let mut flows = Vec::new();
        for entry in self.0.iter() {
            match entry {
                Ok((Record(flow), taken)) if now.wrapping_sub(taken) < IDLE_SECONDS => {
                    flows.push(key_of(&flow, Protocol::UDP));
                }
                // One that was displaced meanwhile is gone.
                Ok(_) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(format!("cannot list flows: {}", with_causes(&error))),
            }
        }
        Ok(flows)
    }

    /// Makes those of a client's port idle.
    #[cfg(test)]
    pub fn age(&mut self, client_port: u16) {
        let keys: Vec<Record<Flow>> = self.0.keys().map(Result::unwrap).collect();
        for key in keys.iter().filter(|key| key.0.client_port == client_port) {
            // The programs' clock may be behind for a moment, in another second.
            self.0.insert(key, now_seconds().wrapping_sub(IDLE_SECONDS + 1), 0).unwrap();
        }
    }
}

/// The programs' clock: since the machine's start.
pub fn now_seconds() -> u32 {
    clock_gettime(ClockId::Monotonic).tv_sec as u32
}

/// As the programs' tables have it.
pub fn flow_of(key: &FlowKey) -> Flow {
    let address = |bits: u128| mapped(ip::address(key.family, bits));
    Flow {
        client: address(key.source),
        vip: address(key.destination),
        client_port: key.source_port.into(),
        vip_port: key.destination_port.into(),
    }
}

/// As load balancers have it.
pub fn key_of(flow: &Flow, protocol: Protocol) -> FlowKey {
    let is_v4 = flow.is_v4();
    let bits = |address: Address| match is_v4 {
        true => ip::address_bits(unmapped(address)),
        false => u128::from_be_bytes(address),
    };
    FlowKey {
        family: if is_v4 { Family::V4 } else { Family::V6 },
        protocol,
        source: bits(flow.client),
        destination: bits(flow.vip),
        source_port: flow.client_port.get(),
        destination_port: flow.vip_port.get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_one_key() {
        for (client, vip) in [("192.0.2.1", "203.0.113.10"), ("2001:db8:c::1", "2001:db8:a::10")] {
            let bits = |text: &str| ip::address_bits(text.parse().unwrap());
            let of = FlowKey {
                family: Family::of(vip.parse().unwrap()),
                protocol: Protocol::UDP,
                source: bits(client),
                destination: bits(vip),
                source_port: 40000,
                destination_port: 443,
            };
            assert_eq!(key_of(&flow_of(&of), Protocol::UDP), of);
        }
    }
}
