//! The eBPF programs: the one that decapsulates, and those beside it. They are loaded,
//! their tables filled, attached and read here.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, MapData, PerCpuArray};
use ebpf::{Link, ObjectError, Record, with_causes};
use nexthops::NextHop;
use wire::IpPrefix;

use crate::attachment::{self, Classifier, Mode, Place};
use crate::config::Config;
use crate::flows::Flows;
use crate::multipath;
use crate::outcome::{self, Counts};
use crate::own::Own;
use crate::records::{Address, Agent, mapped};
use crate::redirects;
use crate::responses;
use crate::timestamps::{self, Clocks};

static XDP_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/agent.bpf.o"));
static TC_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/agent_tc.bpf.o"));

const PROGRAM: &str = "guideway_agent";
const IN_PROGRAM: &str = "gw_agent_in";
const OUT_PROGRAM: &str = "gw_agent_out";
const REQUESTS_PROGRAM: &str = "gw_agent_asked";
const ANSWERS_PROGRAM: &str = "gw_agent_told";

/// The program; detached when dropped, unless it is pinned.
pub struct Program {
    object: Ebpf,
    place: Place,
    counters: Arc<Counters>,
    /// Empty: not attached yet.
    links: Vec<Link>,
}

/// What the program counts.
pub struct Counters {
    decapsulated: PerCpuArray<MapData, u64>,
    reasons: PerCpuArray<MapData, u64>,
    /// Of those that look at timestamps.
    pub timestamps: timestamps::Counts,
    /// Of those that see services with Multipath TCP, and of the injector.
    pub multipath: multipath::Counts,
    /// Of those that measure how long clients wait.
    pub responses: responses::Counts,
}

impl Program {
    /// Loads the program; it does nothing yet. Tables that outlive the process are in
    /// the directory of the BPF file system.
    pub fn load(place: Place, pin: Option<&Path>) -> Result<Program, ObjectError> {
        let pinned = pin.map(attachment::tables).unwrap_or_default();
        let bytes = match place {
            Place::Xdp(_) => XDP_OBJECT,
            Place::Tc => TC_OBJECT,
        };
        let mut object = ebpf::load_with_tables(bytes, &pinned)?;
        let counters = Counters {
            decapsulated: ebpf::table(&mut object, "decapsulated")?,
            reasons: ebpf::table(&mut object, "reasons")?,
            timestamps: timestamps::Counts::new(&mut object)?,
            multipath: multipath::Counts::new(ebpf::table(&mut object, "multipath_events")?),
            responses: responses::Counts::new(&mut object)?,
        };
        for name in [PROGRAM, IN_PROGRAM, OUT_PROGRAM, REQUESTS_PROGRAM, ANSWERS_PROGRAM] {
            ebpf::load_program(&mut object, name)?;
        }
        Ok(Program { object, place, counters: Arc::new(counters), links: Vec::new() })
    }

    /// Opens tunnels as the config says.
    pub fn set(&mut self, config: &Config) -> Result<(), String> {
        let agents: Vec<IpPrefix> = config.other_agents().map(IpPrefix::from).collect();
        let mut sources = Prefixes::new(&mut self.object, "sources_v4", "sources_v6")?;
        sources.add(&config.load_balancers)?;
        sources.add(&agents)?;
        Prefixes::new(&mut self.object, "vips_v4", "vips_v6")?.add(&config.vips)?;
        let services = ebpf::table(&mut self.object, "multipath_services");
        multipath::Services::new(services.map_err(|error| error.to_string())?)
            .set(&config.multipath)
    }

    /// Says how far timestamps are shifted.
    pub fn shift_timestamps(&mut self, shift: u32) -> Result<(), String> {
        timestamps::set_shift(&mut self.object, shift)
    }

    /// The table of other agents, which is empty at first.
    pub fn agents(&mut self) -> Result<Agents, String> {
        ebpf::table(&mut self.object, "agents").map(Agents).map_err(|error| error.to_string())
    }

    /// The tables of what this host is addressed by, which are empty at first.
    pub fn own(&mut self) -> Result<Own, String> {
        let no_table = |error: ObjectError| error.to_string();
        let addresses = ebpf::table(&mut self.object, "own_addresses").map_err(no_table)?;
        let macs = ebpf::table(&mut self.object, "own_macs").map_err(no_table)?;
        Own::new(addresses, macs)
    }

    /// Which flows are measured: none at first.
    pub fn sampler(&mut self) -> Result<responses::Sampler, String> {
        responses::Sampler::new(&mut self.object)
    }

    /// The flows of datagrams that were taken here.
    pub fn flows(&mut self) -> Result<Flows, String> {
        ebpf::table(&mut self.object, "flows").map(Flows::new).map_err(|error| error.to_string())
    }

    /// Connections with bits in their timestamps.
    pub fn clocks(&mut self, config: &Config) -> Result<Clocks, String> {
        Clocks::new(&mut self.object, &config.multipath).map_err(|error| error.to_string())
    }

    /// The tables that handshakes of Multipath TCP are made by.
    pub fn multipath(&mut self) -> Result<multipath::Tables, String> {
        let no_table = |error: ObjectError| error.to_string();
        let object = &mut self.object;
        Ok(multipath::Tables {
            syns: ebpf::table(object, "syns").map_err(no_table)?,
            injected: ebpf::table(object, "injected_syn").map_err(no_table)?,
            handshakes: ebpf::table(object, "keyed_handshakes").map_err(no_table)?,
            injector: ebpf::table(object, "injector").map_err(no_table)?,
            tokens: multipath::Tokens::new(ebpf::table(object, "tokens").map_err(no_table)?),
        })
    }

    /// The tables of redirect rules.
    pub fn redirects(&mut self, config: &Config) -> Result<redirects::Tables, String> {
        let no_table = |error: ObjectError| error.to_string();
        let object = &mut self.object;
        Ok(redirects::Tables {
            events: ebpf::table(object, "rule_events").map_err(no_table)?,
            away: ebpf::table(object, "away").map_err(no_table)?,
            agents: ebpf::table(object, "rule_agents").map_err(no_table)?,
            takes_rules: ebpf::table(object, "takes_rules").map_err(no_table)?,
            rules: redirects::Rules::new(
                ebpf::table(object, "redirects").map_err(no_table)?,
                ebpf::table(object, "half_redirects").map_err(no_table)?,
                config,
            ),
        })
    }

    /// Attaches the programs of traffic control that the config has use for; takes a
    /// predecessor's others off.
    pub fn attach_classifiers(&mut self, config: &Config, measures: bool) -> Result<(), String> {
        let is_multipath = !config.multipath.is_empty();
        for (which, name, is_used) in [
            (Classifier::MultipathOut, OUT_PROGRAM, is_multipath),
            (Classifier::MultipathIn, IN_PROGRAM, is_multipath),
            (Classifier::Requests, REQUESTS_PROGRAM, measures),
            (Classifier::Answers, ANSWERS_PROGRAM, measures),
        ] {
            match (is_used, config.pin.as_deref()) {
                (true, pin) => self.attach_classifier(which, name, &config.interface, pin)?,
                (false, Some(pin)) => drop(attachment::detach_classifier(which, pin)?),
                (false, None) => {}
            }
        }
        Ok(())
    }

    fn attach_classifier(
        &mut self,
        which: Classifier,
        name: &'static str,
        interface: &str,
        pin: Option<&Path>,
    ) -> Result<(), String> {
        let program = ebpf::program_fd(&self.object, name).map_err(|error| error.to_string())?;
        self.links.push(attachment::attach_classifier(which, program, interface, pin)?);
        Ok(())
    }

    /// Attaches the program as the config says; how it is attached.
    pub fn attach(&mut self, config: &Config) -> Result<Mode, String> {
        let program = ebpf::program_fd(&self.object, PROGRAM);
        let program = program.map_err(|error| error.to_string())?;
        let pin = config.pin.as_deref();
        let (link, mode) = attachment::attach(program, &config.interface, self.place, pin)?;
        self.links.push(link);
        Ok(mode)
    }

    /// False if one of its programs was taken off.
    pub fn is_attached(&self) -> bool {
        self.links.iter().all(|link| link.interface_index().is_ok_and(|index| index != 0))
    }

    /// What it counts.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Counters {
    /// How often each outcome was, over all CPUs.
    pub fn read(&self) -> Result<Counts, String> {
        outcome::read(&self.decapsulated, &self.reasons)
    }
}

/// How other agents are reached.
pub struct Agents(HashMap<MapData, Address, Record<Agent>>);

impl Agents {
    /// Enters an agent. Without a next hop packets for it are dropped as
    /// `no_neighbour`; those for agents that are not entered, as `not_agent`.
    pub fn set(
        &mut self,
        agent: IpAddr,
        source: IpAddr,
        hop: Option<&NextHop>,
    ) -> Result<(), String> {
        let mut reached = Agent { source: mapped(source), ..Agent::default() };
        if let Some(hop) = hop {
            (reached.mac, reached.own_mac, reached.mtu) = (hop.destination, hop.source, hop.mtu);
        }
        let entered = self.0.insert(mapped(agent), Record(reached), 0);
        entered.map_err(|error| format!("cannot add agent {agent}: {}", with_causes(&error)))
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
mod at_tc;
#[cfg(test)]
mod at_xdp;
