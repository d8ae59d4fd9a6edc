//! Lowers the MSS that VIPs announce to clients, so that clients' packets fit into the load
//! balancers' tunnels.
//!
//! A program at the interface's egress does it (bpf/mss.h); this module computes the value
//! and follows the interface's MTU. Without it the backend's routes need `advmss`.

use std::time::Duration;

use aya::maps::{Array, MapData, PerCpuArray};
use ebpf::with_causes;
use tokio::time;

use crate::config::Config;

/// How often the interface's MTU is looked at.
const MTU_CHECK: Duration = Duration::from_secs(1);

/// Of UDP and Geneve without options.
const TUNNEL_BYTES: u32 = 8 + 8;

/// Of a Geneve tunnel's longest options: what load balancers leave room for.
pub const OPTIONS_BYTES: u32 = wire::tunnel::route_option::BYTES_MAX as u32;

/// IP and TCP headers of a segment inside, by family: IPv4, IPv6.
pub const SEGMENT_HEADERS_BYTES: [u32; 2] = [20 + 20, 40 + 20];

/// The smallest MSS that makes sense (RFC 791, and RFC 8200 for IPv6): where less would
/// fit, none is announced.
const MSS_MIN: [u32; 2] = [536, 1220];

/// Families, as metrics name them.
pub const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// The program's table of what may be announced.
pub struct Clamps {
    table: Array<MapData, u32>,
    /// That the table is for; zero: it is empty.
    mtu: u32,
}

/// How many SYN/ACKs were changed.
pub struct Clamped(pub(crate) PerCpuArray<MapData, u64>);

impl Clamped {
    /// By family.
    pub fn read(&self) -> Result<[u64; 2], String> {
        ebpf::sums(&self.0)
    }
}

impl Clamps {
    /// Of an empty table.
    pub fn new(table: Array<MapData, u32>) -> Clamps {
        Clamps { table, mtu: 0 }
    }

    /// Keeps the table true, for ever.
    pub async fn follow(&mut self, config: &Config) -> Result<(), String> {
        let mut ticks = time::interval(MTU_CHECK);
        loop {
            ticks.tick().await;
            self.update(config)?;
        }
    }

    /// Fills the table for the interface's present MTU.
    pub fn update(&mut self, config: &Config) -> Result<(), String> {
        // An interface that is gone ends the agent elsewhere.
        let mtu = ebpf::mtu_of(&config.interface).unwrap_or(self.mtu);
        if mtu == self.mtu {
            return Ok(());
        }
        self.mtu = mtu;
        self.set(config, mtu)
    }

    /// Fills the table for an MTU.
    pub fn set(&mut self, config: &Config, mtu: u32) -> Result<(), String> {
        let fitting = fitting(config, mtu);
        for (family, mss) in (0..).zip(fitting) {
            let entered = self.table.set(family, mss, 0);
            entered.map_err(|error| format!("cannot set the MSS: {}", with_causes(&error)))?;
        }
        let ([ipv4, ipv6], interface) = (fitting, &config.interface);
        if fitting.contains(&0) {
            tracing::warn!(
                interface,
                mtu,
                ipv4,
                ipv6,
                "the MTU is too small for an MSS to fit into tunnels: packets of clients will be fragmented or answered by ICMP; raise the MTU"
            );
        } else {
            tracing::info!(interface, mtu, ipv4, ipv6, "largest MSS that VIPs announce");
        }
        Ok(())
    }
}

/// The largest MSS of each family whose segments fit, in a tunnel, into this MTU; 0:
/// none does.
pub fn fitting(config: &Config, mtu: u32) -> [u32; 2] {
    let inside = mtu.saturating_sub(tunnel_bytes(config) + OPTIONS_BYTES);
    std::array::from_fn(|family| {
        let mss = inside.saturating_sub(SEGMENT_HEADERS_BYTES[family]).min(u16::MAX.into());
        if mss < MSS_MIN[family] { 0 } else { mss }
    })
}

/// Of a tunnel's headers, as long as they are here; its options not among them.
pub fn tunnel_bytes(config: &Config) -> u32 {
    let has_v6 = config.load_balancers.iter().any(|prefix| prefix.address().is_ipv6())
        || config.agents.values().flatten().any(|address| address.is_ipv6());
    let outer_ip = if has_v6 { 40 } else { 20 };
    outer_ip + TUNNEL_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(load_balancers: &str) -> Config {
        let text =
            format!("{{interface: eth0, vips: [203.0.113.10], load_balancers: {load_balancers}}}");
        Config::parse("agent.yaml", &text).unwrap()
    }

    #[test]
    fn a_segment_in_the_longest_tunnel_fits_the_mtu() {
        let v4 = config("[10.0.0.1]");
        assert_eq!(fitting(&v4, 1500), [1364, 1344]);
        assert_eq!(1364 + 40 + 60 + 16 + 20, 1500);
        assert_eq!(fitting(&config("[10.0.0.1, 2001:db8::1]"), 1600), [1444, 1424]);
    }

    #[test]
    fn where_nothing_fits_nothing_is_announced() {
        assert_eq!(fitting(&config("[2001:db8::1]"), 1280), [1124, 0]);
        assert_eq!(fitting(&config("[10.0.0.1]"), 0), [0, 0]);
    }
}
