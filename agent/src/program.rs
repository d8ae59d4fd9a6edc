//! The XDP program: loaded, its tables filled, attached, read.

use std::net::IpAddr;
use std::os::fd::AsFd;

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, MapData, PerCpuArray};
use aya::programs::{SchedClassifier, Xdp};
use ebpf::xdp::Mode;
use ebpf::{Link, ObjectError, with_causes};
use nexthops::NextHop;
use wire::IpPrefix;

use crate::attachment;
use crate::config::Config;
use crate::flows::Flows;
use crate::mss::{Clamped, Clamps};
use crate::outcome::{Counts, OUTCOMES};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/agent.bpf.o"));

const PROGRAM: &str = "guideway_agent";
const MSS_PROGRAM: &str = "gw_agent_mss";

/// The program; detached when dropped, unless it is pinned.
pub struct Program {
    object: Ebpf,
    counters: Counters,
    /// Empty: not attached yet.
    links: Vec<Link>,
}

/// What the program counts.
pub struct Counters {
    outcomes: PerCpuArray<MapData, u64>,
    /// Of the program at the egress.
    pub clamped: Clamped,
}

impl Program {
    /// Loads the program; it does nothing yet.
    pub fn load() -> Result<Program, ObjectError> {
        let mut object = ebpf::load(OBJECT)?;
        let clamped = Clamped(ebpf::table(&mut object, "clamped")?);
        let counters = Counters { outcomes: ebpf::table(&mut object, "outcomes")?, clamped };
        ebpf::verify(PROGRAM, ebpf::program::<Xdp>(&mut object, PROGRAM)?.load())?;
        let mss = ebpf::program::<SchedClassifier>(&mut object, MSS_PROGRAM)?;
        ebpf::verify(MSS_PROGRAM, mss.load())?;
        Ok(Program { object, counters, links: Vec::new() })
    }

    /// Opens tunnels as the config says.
    pub fn set(&mut self, config: &Config) -> Result<(), String> {
        let agents: Vec<IpPrefix> = config.other_agents().map(IpPrefix::from).collect();
        let mut sources = Prefixes::new(&mut self.object, "sources_v4", "sources_v6")?;
        sources.add(&config.load_balancers)?;
        sources.add(&agents)?;
        Prefixes::new(&mut self.object, "vips_v4", "vips_v6")?.add(&config.vips)
    }

    /// The table of other agents, which is empty at first.
    pub fn agents(&mut self) -> Result<Agents, String> {
        ebpf::table(&mut self.object, "agents").map(Agents).map_err(|error| error.to_string())
    }

    /// The table of what the program at the egress announces, which is empty at first.
    pub fn clamps(&mut self) -> Result<Clamps, String> {
        ebpf::table(&mut self.object, "clamps").map(Clamps::new).map_err(|error| error.to_string())
    }

    /// The flows of datagrams that were taken here.
    pub fn flows(&mut self) -> Result<Flows, String> {
        ebpf::table(&mut self.object, "flows").map(Flows::new).map_err(|error| error.to_string())
    }

    /// Attaches the program at the egress, if the config says so; else takes a
    /// predecessor's off.
    pub fn attach_mss(&mut self, config: &Config) -> Result<(), String> {
        let pin = config.pin.as_deref();
        if !config.clamps_mss {
            return pin.map_or(Ok(()), |pin| attachment::detach_egress(pin).map(drop));
        }
        let program = ebpf::program::<SchedClassifier>(&mut self.object, MSS_PROGRAM);
        let program = program.map_err(|error| error.to_string())?.fd();
        let program = program.map_err(|error| with_causes(&error))?.as_fd();
        self.links.push(attachment::attach_egress(program, &config.interface, pin)?);
        Ok(())
    }

    /// Attaches the program as the config says; how it is attached.
    pub fn attach(&mut self, config: &Config) -> Result<Mode, String> {
        let program = ebpf::program::<Xdp>(&mut self.object, PROGRAM);
        let program = program.map_err(|error| error.to_string())?.fd();
        let program = program.map_err(|error| with_causes(&error))?.as_fd();
        let pin = config.pin.as_deref();
        let (link, mode) = attachment::attach(program, &config.interface, config.mode, pin)?;
        self.links.push(link);
        Ok(mode)
    }

    /// What it counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Counters {
    /// How often each outcome was, over all CPUs.
    pub fn read(&self) -> Result<Counts, String> {
        let mut counts = [0; OUTCOMES.len()];
        for (index, count) in counts.iter_mut().enumerate() {
            let per_cpu = self.outcomes.get(&(index as u32), 0);
            let per_cpu = per_cpu
                .map_err(|error| format!("cannot read counters: {}", with_causes(&error)))?;
            *count = per_cpu.iter().sum();
        }
        Ok(counts)
    }
}

/// How other agents are reached.
pub struct Agents(HashMap<MapData, [u8; 16], [u8; REACHED_BYTES]>);

/// Of `struct agent` in bpf/frame.h.
const REACHED_BYTES: usize = 32;

impl Agents {
    /// Enters an agent. Without a next hop packets for it are dropped as
    /// `no_neighbour`; those for agents that are not entered, as `not_agent`.
    pub fn set(
        &mut self,
        agent: IpAddr,
        source: IpAddr,
        hop: Option<&NextHop>,
    ) -> Result<(), String> {
        let entered = self.0.insert(mapped(agent), reached(source, hop), 0);
        entered.map_err(|error| format!("cannot add agent {agent}: {}", with_causes(&error)))
    }
}

fn reached(source: IpAddr, hop: Option<&NextHop>) -> [u8; REACHED_BYTES] {
    let mut bytes = [0; REACHED_BYTES];
    if let Some(hop) = hop {
        bytes[..6].copy_from_slice(&hop.destination);
        bytes[6..12].copy_from_slice(&hop.source);
        bytes[12..16].copy_from_slice(&hop.mtu.to_ne_bytes());
    }
    bytes[16..].copy_from_slice(&mapped(source));
    bytes
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A set of prefixes: a table for each family.
struct Prefixes {
    v4: LpmTrie<MapData, [u8; 4], u32>,
    v6: LpmTrie<MapData, [u8; 16], u32>,
}

impl Prefixes {
    fn new(object: &mut Ebpf, v4: &'static str, v6: &'static str) -> Result<Prefixes, String> {
        let no_table = |error: ObjectError| error.to_string();
        Ok(Prefixes {
            v4: ebpf::table(object, v4).map_err(no_table)?,
            v6: ebpf::table(object, v6).map_err(no_table)?,
        })
    }

    fn add(&mut self, prefixes: &[IpPrefix]) -> Result<(), String> {
        for prefix in prefixes {
            let bits = u32::from(prefix.len());
            let added = match prefix.address() {
                IpAddr::V4(address) => self.v4.insert(&Key::new(bits, address.octets()), 1, 0),
                IpAddr::V6(address) => self.v6.insert(&Key::new(bits, address.octets()), 1, 0),
            };
            added.map_err(|error| format!("cannot add {prefix}: {}", with_causes(&error)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
