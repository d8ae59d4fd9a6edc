//! What a packet costs that the kernel flow cache sends: the XDP filter's own wrapper in
//! the kernel, which goes through flows and takes the outer header off again.

use std::sync::Arc;

use datapath::counters::CacheCounters;
use datapath::kernel_cache::entries::BUCKET_ENTRIES;
use datapath::kernel_cache::{
    CacheRegion, EntryWriter, IS_SUPPORTED, TargetMemory, TargetWriter, Targets,
};
use datapath::verdict::DeviceIndex;
use datapath::{Now, Secret};
use nic::drivers::af_xdp::{FilterRun, Measured};
use nic::kernel_cache::{CacheConfig, CacheSize};
use plan::{Planner, ServiceId};
use serde_json::json;
use wire::{Family, FlowKey, Protocol};

use crate::clock::Samples;

/// Packets of a sample.
const REPETITIONS: u32 = 1 << 18;
const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0x0f1e_2d3c_4b5a_6978];
const VIP: u32 = 0xcb00_710a;
const PORTS: [u16; 2] = [1000, 443];
/// Ethernet, IPv4, TCP.
const FRAME_BYTES: usize = 14 + 20 + 20;

/// Nanoseconds per packet.
#[derive(Debug, Default)]
pub struct CacheTimes {
    /// The wrapper alone.
    pub floor: Samples,
    /// With the cache, of one flow.
    pub one_flow: Samples,
    /// With the cache, of 2^20 flows.
    pub flows_1m: Samples,
}

/// Measures; or says why that cannot be.
///
/// # Errors
/// Without root, and on other processors than x86.
pub fn measure(rounds: u32) -> Result<CacheTimes, String> {
    if !IS_SUPPORTED || !rustix::process::geteuid().is_root() {
        return Err("needs x86, and root to load a BPF program".to_owned());
    }
    let floor = load(1, false)?;
    let one_flow = load(1, true)?;
    let flows_1m = load(1 << 20, true)?;
    let mut times = CacheTimes::default();
    for _ in 0..rounds {
        times.floor.push(sample(&floor)?);
        times.one_flow.push(sample(&one_flow)?);
        times.flows_1m.push(sample(&flows_1m)?);
    }
    Ok(times)
}

fn sample(run: &FilterRun) -> Result<f64, String> {
    let time = run.time(&frame(), REPETITIONS).map_err(|error| error.to_string())?;
    Ok(time.as_nanos() as f64)
}

/// A filter whose cache holds that many flows, half full.
fn load(flows: u32, with_cache: bool) -> Result<FilterRun, String> {
    let buckets = (2 * flows).div_ceil(BUCKET_ENTRIES as u32).next_power_of_two();
    let size = CacheSize { queues: 1, buckets, targets: 1 };
    let config = CacheConfig { size, key: KEY, devices: Vec::new() };
    let measured = Measured { flow_mask: flows - 1, with_cache };
    let run = FilterRun::load_to_measure(config, measured).map_err(|error| error.to_string())?;
    let targets = Targets::new(run.cache.targets());
    let message = json!({
        "generation": "1",
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
        "backends": [{"name": "b1", "address": "10.1.0.1"}],
        "groups": [{"name": "g", "members": [{"backend": "b1", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
        "services": [{"name": "web", "vips": [{"address": "203.0.113.10"}], "group": "g", "tableSize": 251}],
    });
    let message = serde_json::from_value(message).map_err(|error| error.to_string())?;
    let plan = Planner::default().plan(message).map_err(|error| error.to_string())?;
    let secret = Secret::derived("test");
    let view = sim::view::view(Arc::new(plan), &secret, 1, |_| vec![sim::view::next_hop(1500)]);
    let (device, sends_by) = (DeviceIndex(0), [true].into());
    let memory = TargetMemory { targets, device, sends_by };
    let target = TargetWriter::new(vec![memory]).follow(&view.plan, &view.egress).of(0, 0);
    let target = target.ok_or("no target")?;
    let (entries, line) = (run.cache.region(0), run.cache.line(0));
    let counters: &'static CacheCounters = Box::leak(Box::default());
    let mut writer = EntryWriter::new(CacheRegion { entries, line, targets, key: KEY }, counters);
    writer.begin(Now(10_000), |_, _| true);
    for flow in 0..flows {
        writer.enter(&key(flow), flow.into(), ServiceId(1), target);
    }
    println!("{} of {flows} flows found a place", counters.entered.get());
    Ok(run)
}

/// The flow of that number: its bytes are the source address.
fn key(flow: u32) -> FlowKey {
    FlowKey {
        family: Family::V4,
        protocol: Protocol::TCP,
        source: u32::from_be_bytes(flow.to_ne_bytes()).into(),
        destination: VIP.into(),
        source_port: PORTS[0],
        destination_port: PORTS[1],
    }
}

fn frame() -> Vec<u8> {
    let mut frame = vec![0; FRAME_BYTES];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[17] = (FRAME_BYTES - 14) as u8;
    frame[22] = 60;
    frame[23] = Protocol::TCP.0;
    frame[30..34].copy_from_slice(&VIP.to_be_bytes());
    frame[34..36].copy_from_slice(&PORTS[0].to_be_bytes());
    frame[36..38].copy_from_slice(&PORTS[1].to_be_bytes());
    frame[46] = 0x50;
    frame[47] = 0x10;
    frame
}
