//! What devices did not send of what the kernel flow cache handed to them
//! (bpf/losses.bpf.c).

use std::io;
use std::os::unix::fs::MetadataExt;

use aya::maps::{HashMap, MapData, PerCpuArray};
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf};
use ebpf::{ObjectError, table, with_causes};

use crate::kernel_cache::DEVICES_MAX;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/losses.bpf.o"));

/// Programs, and the kernel's tracepoints that they count on.
const PROGRAMS: [(&str, &str); 4] = [
    ("on_bulk", "xdp_bulk_tx"),
    ("on_exception", "xdp_exception"),
    ("on_devmap", "xdp_devmap_xmit"),
    ("on_refused", "xdp_redirect_err"),
];

/// Counts them, until it is dropped.
pub struct Losses {
    /// Holds the programs.
    _object: Ebpf,
    counts: PerCpuArray<MapData, u64>,
}

impl Losses {
    /// Of devices of the calling thread's network namespace, by the kernel's numbers for
    /// them: those of a [`CacheRequest`](crate::kernel_cache::CacheRequest), in that order.
    ///
    /// # Errors
    /// If the kernel has no types of its own (`CONFIG_DEBUG_INFO_BTF`), or allows no
    /// programs on tracepoints (CAP_BPF and CAP_PERFMON).
    pub fn count(devices: &[u32]) -> Result<Losses, ObjectError> {
        let namespace = own_namespace().map_err(|error| ObjectError::Load(error.to_string()))?;
        let mut object = ebpf::load_with(OBJECT, |loader| {
            loader.override_global("own_namespace", &namespace, true);
        })?;
        let counts = table(&mut object, "lost_packets")?;
        let name = "device_numbers";
        let mut numbers: HashMap<MapData, u32, u32> = table(&mut object, name)?;
        for (number, device) in (0..).zip(devices) {
            let entered = numbers.insert(device, number, 0);
            entered.map_err(|error| ObjectError::Table { name, error: with_causes(&error) })?;
        }
        let types = Btf::from_sys_fs().map_err(|error| ObjectError::Load(with_causes(&error)))?;
        for (name, tracepoint) in PROGRAMS {
            let program: &mut BtfTracePoint = ebpf::program(&mut object, name)?;
            ebpf::verify(name, program.load(tracepoint, &types))?;
            ebpf::verify(name, program.attach().map(drop))?;
        }
        Ok(Losses { _object: object, counts })
    }

    /// Packets that each device did not send, in the order of the devices.
    pub fn packets(&self) -> [u64; DEVICES_MAX] {
        // What cannot be read is as if nothing was lost: it is one of many counters.
        ebpf::sums(&self.counts).unwrap_or([0; DEVICES_MAX])
    }
}

/// The kernel's number of the network namespace.
fn own_namespace() -> io::Result<u32> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino() as u32)
}
