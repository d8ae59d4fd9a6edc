//! What devices did not send of what the kernel flow cache handed to them
//! (bpf/losses.bpf.c).

use aya::maps::{HashMap, MapData, PerCpuArray};
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf};
use ebpf::{ObjectError, table, with_causes};

use crate::interface::{Interface, own_namespace};
use crate::kernel_cache::DEVICES_MAX;
use crate::statistics;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/losses.bpf.o"));

/// Programs, and the kernel's tracepoints that they count on; from the second on they are
/// of packets that leave by another device.
const PROGRAMS: [(&str, &str); 3] = [
    ("on_exception", "xdp_exception"),
    ("on_devmap", "xdp_devmap_xmit"),
    ("on_refused", "xdp_redirect_err"),
];

/// Counts them, until it is dropped.
pub struct Losses {
    /// Holds the programs.
    _object: Ebpf,
    counts: PerCpuArray<MapData, u64>,
    /// Names of devices, and what their drivers had counted before.
    drivers: Vec<(String, u64)>,
}

impl Losses {
    /// Of interfaces of the calling thread's network namespace: those of a
    /// [`CacheRequest`](crate::kernel_cache::CacheRequest), in that order.
    ///
    /// # Errors
    /// If the kernel has no types of its own (`CONFIG_DEBUG_INFO_BTF`), or allows no
    /// programs on tracepoints (CAP_BPF and CAP_PERFMON).
    pub fn count(devices: &[&Interface]) -> Result<Losses, ObjectError> {
        let namespace = own_namespace().map_err(|error| ObjectError::Load(error.to_string()))?;
        let namespace = namespace as u32; // as the kernel has it
        let mut object = ebpf::load_with(OBJECT, |loader| {
            loader.override_global("own_namespace", &namespace, true);
        })?;
        let counts = table(&mut object, "lost_packets")?;
        let name = "device_numbers";
        let mut numbers: HashMap<MapData, u32, u32> = table(&mut object, name)?;
        for (number, device) in (0..).zip(devices) {
            let entered = numbers.insert(device.index, number, 0);
            entered.map_err(|error| ObjectError::Table { name, error: with_causes(&error) })?;
        }
        let types = Btf::from_sys_fs().map_err(|error| ObjectError::Load(with_causes(&error)))?;
        let needed = if devices.len() > 1 { &PROGRAMS[..] } else { &PROGRAMS[..1] };
        for (name, tracepoint) in needed {
            let program: &mut BtfTracePoint = ebpf::program(&mut object, name)?;
            ebpf::verify(name, program.load(tracepoint, &types))?;
            ebpf::verify(name, program.attach().map(drop))?;
        }
        let before = |device: &&Interface| (device.name.clone(), counted_by_driver(&device.name));
        let drivers = devices.iter().map(before).collect();
        Ok(Losses { _object: object, counts, drivers })
    }

    /// Packets that each device did not send, in the order of the devices.
    pub fn packets(&self) -> [u64; DEVICES_MAX] {
        // What cannot be read is as if nothing was lost: it is one of many counters.
        let mut packets = ebpf::sums(&self.counts).unwrap_or([0; DEVICES_MAX]);
        for (packets, (name, before)) in packets.iter_mut().zip(&self.drivers) {
            *packets += counted_by_driver(name).saturating_sub(*before);
        }
        packets
    }
}

/// What veth did not send of its own programs' packets, of any process: the only driver
/// with counters of these names.
fn counted_by_driver(interface: &str) -> u64 {
    let is_meant = |name: &str| name.starts_with("rx_queue_") && name.ends_with("_xdp_tx_errors");
    statistics::sum(interface, is_meant).unwrap_or(0)
}
