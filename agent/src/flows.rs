//! The flows of datagrams that this agent took, as its program remembers them
//! (bpf/flow.h): the kernel has no sockets of them that could be listed.

use std::net::{Ipv4Addr, Ipv6Addr};

use aya::maps::{HashMap, MapData, MapError};
use ebpf::with_causes;
use rustix::time::{ClockId, clock_gettime};
use wire::{Family, FlowKey, Protocol};

/// A flow of which nothing was taken for so long is of no account: `FLOW_IDLE_SECONDS`
/// in bpf/flow.h.
const IDLE_SECONDS: u32 = 120;

/// Of `struct flow`: two addresses, two ports.
pub const FLOW_BYTES: usize = 36;

/// The program's table of flows.
pub struct Flows(HashMap<MapData, [u8; FLOW_BYTES], u32>);

impl Flows {
    /// Of the program's table.
    pub fn new(table: HashMap<MapData, [u8; FLOW_BYTES], u32>) -> Flows {
        Flows(table)
    }

    /// Those of which something was taken lately, as packets of their clients.
    pub fn recent(&self) -> Result<Vec<FlowKey>, String> {
        let now = now_seconds();
        let mut flows = Vec::new();
        for entry in self.0.iter() {
            match entry {
                Ok((key, taken)) if now.wrapping_sub(taken) < IDLE_SECONDS => {
                    flows.push(flow(&key))
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
        let keys: Vec<[u8; FLOW_BYTES]> = self.0.keys().map(Result::unwrap).collect();
        for key in keys.iter().filter(|key| flow(key).source_port == client_port) {
            self.0.insert(key, now_seconds().wrapping_sub(IDLE_SECONDS), 0).unwrap();
        }
    }
}

/// The programs' clock: since the machine's start.
pub fn now_seconds() -> u32 {
    clock_gettime(ClockId::Monotonic).tv_sec as u32
}

/// As the programs' tables have it.
pub fn key(flow: &FlowKey) -> [u8; FLOW_BYTES] {
    let address = |bits: u128| match flow.family {
        Family::V4 => Ipv4Addr::from_bits(bits as u32).to_ipv6_mapped().octets(),
        Family::V6 => bits.to_be_bytes(),
    };
    let mut key = [0; FLOW_BYTES];
    key[..16].copy_from_slice(&address(flow.source));
    key[16..32].copy_from_slice(&address(flow.destination));
    key[32..34].copy_from_slice(&flow.source_port.to_be_bytes());
    key[34..].copy_from_slice(&flow.destination_port.to_be_bytes());
    key
}

/// The flow of a key there.
pub fn flow(key: &[u8; FLOW_BYTES]) -> FlowKey {
    let address = |at: usize| -> Ipv6Addr {
        <[u8; 16]>::try_from(&key[at..at + 16]).expect("16 bytes").into()
    };
    let port = |at: usize| u16::from_be_bytes([key[at], key[at + 1]]);
    let (client, vip) = (address(0), address(16));
    let (family, source, destination) = match (client.to_ipv4_mapped(), vip.to_ipv4_mapped()) {
        (Some(client), Some(vip)) => {
            (Family::V4, u128::from(client.to_bits()), u128::from(vip.to_bits()))
        }
        _ => (Family::V6, client.to_bits(), vip.to_bits()),
    };
    FlowKey {
        family,
        protocol: Protocol::UDP,
        source,
        destination,
        source_port: port(32),
        destination_port: port(34),
    }
}

#[cfg(test)]
mod tests {
    use wire::ip;

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
            assert_eq!(flow(&key(&of)), of);
        }
    }
}
