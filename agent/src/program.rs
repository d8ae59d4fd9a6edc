//! The XDP program: loaded, told its sources, attached, read.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Map, MapData, MapError, PerCpuArray};
use aya::programs::xdp::XdpMode;
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfLoader};
use wire::IpPrefix;

use crate::Mode;
use crate::outcome::{Counts, OUTCOMES};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/decapsulate.bpf.o"));

/// A predecessor's program goes some milliseconds after its process.
const ATTACH_TRIES: u32 = 25;
const ATTACH_PAUSE: Duration = Duration::from_millis(20);

/// The program; detached when dropped.
pub struct Program {
    object: Ebpf,
    counters: Counters,
}

/// What the program counts.
pub struct Counters {
    outcomes: PerCpuArray<MapData, u64>,
}

impl Program {
    /// Loads the program; it does nothing yet.
    pub fn load() -> Result<Program, String> {
        let loaded = EbpfLoader::new().load(OBJECT);
        let mut object = loaded.map_err(|error| {
            format!(
                "cannot load the XDP program: {}; it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN",
                with_causes(&error)
            )
        })?;
        let counters = Counters { outcomes: table(&mut object, "outcomes")? };
        let verified = xdp(&mut object)?.load();
        verified.map_err(|error| {
            format!("the kernel refuses the XDP program (it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN): {}", with_causes(&error))
        })?;
        Ok(Program { object, counters })
    }

    /// Opens the tunnels of these sources.
    pub fn allow(&mut self, sources: &[IpPrefix]) -> Result<(), String> {
        let mut v4: LpmTrie<MapData, [u8; 4], u32> = table(&mut self.object, "sources_v4")?;
        let mut v6: LpmTrie<MapData, [u8; 16], u32> = table(&mut self.object, "sources_v6")?;
        for source in sources {
            let bits = u32::from(source.len());
            let added = match source.address() {
                IpAddr::V4(address) => v4.insert(&Key::new(bits, address.octets()), 1, 0),
                IpAddr::V6(address) => v6.insert(&Key::new(bits, address.octets()), 1, 0),
            };
            added
                .map_err(|error| format!("cannot add source {source}: {}", with_causes(&error)))?;
        }
        Ok(())
    }

    /// Attaches the program; how it was attached.
    pub fn attach(&mut self, interface: &str, mode: Mode) -> Result<Mode, String> {
        let xdp = xdp(&mut self.object)?;
        let attached = match mode {
            Mode::Native | Mode::Generic => attach_in(xdp, interface, mode),
            Mode::Auto => match attach_in(xdp, interface, Mode::Native) {
                Err(Refusal::Other(problem)) => {
                    tracing::warn!("{problem}; trying generic mode, which is slower");
                    attach_in(xdp, interface, Mode::Generic)
                }
                result => result,
            },
        };
        attached.map_err(|refusal| match refusal {
            Refusal::Occupied => format!(
                "interface {interface} already has an XDP program, of another agent or another product; \
                 see `ip link show {interface}`, stop what put it there or `ip link set {interface} xdp off` (`xdpgeneric off`)"
            ),
            Refusal::Other(problem) => problem,
        })
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

fn xdp(object: &mut Ebpf) -> Result<&mut Xdp, String> {
    let program = object.program_mut("guideway_agent").and_then(|program| program.try_into().ok());
    program.ok_or_else(|| "the object lacks its program: rebuild".to_string())
}

fn table<T: TryFrom<Map, Error = MapError>>(object: &mut Ebpf, name: &str) -> Result<T, String> {
    let map = object.take_map(name).ok_or_else(|| format!("the object lacks {name}: rebuild"))?;
    T::try_from(map).map_err(|error| format!("{name}: {}", with_causes(&error)))
}

/// Why the program cannot be attached.
enum Refusal {
    /// The place is taken, in this mode or the other.
    Occupied,
    /// Anything else, told.
    Other(String),
}

fn attach_in(xdp: &mut Xdp, interface: &str, mode: Mode) -> Result<Mode, Refusal> {
    let flags = if mode == Mode::Generic { XdpMode::Skb } else { XdpMode::Driver };
    for _ in 0..ATTACH_TRIES {
        match xdp.attach(interface, flags) {
            Ok(_) => return Ok(mode),
            Err(error) if is_occupied(&error) => thread::sleep(ATTACH_PAUSE),
            Err(error) => return Err(Refusal::Other(explained(interface, mode, &error))),
        }
    }
    Err(Refusal::Occupied)
}

fn explained(interface: &str, mode: Mode, error: &ProgramError) -> String {
    let reason = match (error, os_error(error)) {
        (ProgramError::UnknownInterface { .. }, _) => {
            return format!(
                "there is no interface {interface}; there are: {}",
                interfaces().join(", ")
            );
        }
        (_, Some(ERANGE)) => {
            format!("its MTU is too large for XDP: ip link set {interface} mtu 1600")
        }
        (_, Some(EOPNOTSUPP)) => "its driver has no native XDP: use --mode generic".to_string(),
        (_, Some(EPERM)) => "not permitted: it needs CAP_NET_ADMIN".to_string(),
        _ => with_causes(error),
    };
    format!("cannot attach to interface {interface} in {mode} mode: {reason}")
}

// The system's error codes on Linux, on all processors that run BPF.
const EPERM: i32 = 1;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;

/// Busy: by a program in the same mode; exists: in the other one.
fn is_occupied(error: &ProgramError) -> bool {
    matches!(os_error(error), Some(EBUSY | EEXIST))
}

/// The names of this network namespace's interfaces.
fn interfaces() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_string()).collect()
}

/// The system's error code somewhere below an error.
fn os_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
}

/// An error with all its causes, which aya's own text leaves out.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests;
