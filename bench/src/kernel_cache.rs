//! The cost of a packet sent by the kernel flow cache: runs the XDP filter in the kernel,
//! in a wrapper that varies flows and removes the outer header again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use datapath::counters::CacheCounters;
use datapath::kernel_cache::entries::BUCKET_ENTRIES;
use datapath::kernel_cache::{
    CacheRegion, EntryWriter, IS_SUPPORTED, TargetMemory, TargetWriter, Targets, Validity,
    write_hash,
};
use datapath::verdict::DeviceIndex;
use datapath::{Now, Secret};
use nic::filter_run::{FilterRun, Measured};
use nic::kernel_cache::{CacheConfig, CacheSize};
use plan::{Plan, Planner, ServiceId};
use serde_json::json;
use wire::ip::address_bits;
use wire::{EtherType, Family, FlowKey, Protocol};

use crate::clock::Samples;

/// Packets of a sample.
const REPETITIONS: u32 = 1 << 18;
const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0x0f1e_2d3c_4b5a_6978];
const VIP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const VIP_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 0x10);
const BACKEND: &str = "10.1.0.1";
const BACKEND_V6: &str = "2001:db8:1::1";
const PORTS: [u16; 2] = [1000, 443];
const BUCKETS: usize = 4096;

/// What goes through the cache.
struct Subject {
    /// In the report.
    name: &'static str,
    flows: u32,
    vip: IpAddr,
    encap: &'static str,
    backend: &'static str,
    /// Its packets go by buckets, and no flow is entered.
    is_stateless: bool,
    /// False: the wrapper alone.
    with_cache: bool,
}

/// One flow of IPv4, in GRE over IPv4.
const ONE_FLOW: Subject = Subject {
    name: "one_flow",
    flows: 1,
    vip: IpAddr::V4(VIP),
    encap: "ENCAP_GRE",
    backend: BACKEND,
    is_stateless: false,
    with_cache: true,
};

/// Any flow of a stateless service.
const STATELESS: Subject =
    Subject { name: "stateless", encap: "ENCAP_GENEVE", is_stateless: true, ..ONE_FLOW };

const SUBJECTS: [Subject; 10] = [
    Subject { name: "floor", with_cache: false, ..ONE_FLOW },
    ONE_FLOW,
    Subject { name: "flows_1m", flows: 1 << 20, ..ONE_FLOW },
    Subject { name: "ipip", encap: "ENCAP_IPIP", ..ONE_FLOW },
    Subject { name: "gue", encap: "ENCAP_GUE", ..ONE_FLOW },
    Subject { name: "geneve", encap: "ENCAP_GENEVE", ..ONE_FLOW },
    Subject { name: "ipv6", vip: IpAddr::V6(VIP_V6), ..ONE_FLOW },
    Subject { name: "over_ipv6", backend: BACKEND_V6, ..ONE_FLOW },
    STATELESS,
    Subject { name: "stateless_ipv6", vip: IpAddr::V6(VIP_V6), ..STATELESS },
];

/// Nanoseconds per packet, by name.
pub type CacheTimes = Vec<(&'static str, Samples)>;

/// Measures; or says why that cannot be.
///
/// # Errors
/// Without root, and on other processors than x86.
pub fn measure(rounds: u32) -> Result<CacheTimes, String> {
    if !IS_SUPPORTED || !rustix::process::geteuid().is_root() {
        return Err("needs x86, and root to load a BPF program".to_owned());
    }
    let runs: Vec<FilterRun> = SUBJECTS.iter().map(Subject::load).collect::<Result<_, _>>()?;
    let mut times: CacheTimes =
        SUBJECTS.iter().map(|subject| (subject.name, Samples::default())).collect();
    for _ in 0..rounds {
        for ((subject, run), (_, samples)) in SUBJECTS.iter().zip(&runs).zip(&mut times) {
            let time = run.time(&subject.frame(), REPETITIONS);
            samples.push(time.map_err(|error| error.to_string())?.as_nanos() as f64);
        }
    }
    Ok(times)
}

impl Subject {
    /// A filter whose cache holds its flows, and is half full of them.
    fn load(&self) -> Result<FilterRun, String> {
        let buckets = (2 * self.flows).div_ceil(BUCKET_ENTRIES as u32).next_power_of_two();
        let size = CacheSize { queues: 1, buckets, targets: 1, service_buckets: BUCKETS as u32 };
        let config = CacheConfig { size, key: KEY, devices: Vec::new() };
        let measured = Measured {
            flow_mask: self.flows - 1,
            is_v6: self.vip.is_ipv6(),
            with_cache: self.with_cache,
        };
        let run =
            FilterRun::load_to_measure(config, measured).map_err(|error| error.to_string())?;
        let targets = Targets::new(run.cache.targets());
        let service_buckets = run.cache.service_buckets();
        let secret = Secret::derived("test");
        let view = sim::view::view(Arc::new(self.plan()?), &secret, 1, |_| {
            vec![sim::view::next_hop(1500)]
        });
        let (device, sends_by) = (DeviceIndex(0), [true].into());
        let memory = TargetMemory { targets, service_buckets, device, sends_by };
        let kernel_targets = TargetWriter::new(vec![memory]).follow(&view.plan, &view.egress);
        write_hash(run.cache.hash(), &secret);
        run.cache.set_services(kernel_targets.services.iter().copied())?;
        if self.is_stateless {
            return Ok(run);
        }
        let target = kernel_targets.of(0, 0).ok_or("no target")?;
        let (entries, line) = (run.cache.region(0), run.cache.line(0));
        let counters: &'static CacheCounters = Box::leak(Box::default());
        let mut writer =
            EntryWriter::new(CacheRegion { entries, line, targets, key: KEY }, counters);
        writer.begin(Now(10_000), |_, _| true);
        for flow in 0..self.flows {
            writer.enter(&self.key(flow), flow.into(), ServiceId(1), target, Validity::WhileUsed);
        }
        println!("{}: {} of {} flows found a place", self.name, counters.entered.get(), self.flows);
        Ok(run)
    }

    fn plan(&self) -> Result<Plan, String> {
        let mut message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1", "2001:db8::1"]},
            "backends": [{"name": "b1", "address": self.backend}],
            "groups": [{"name": "g", "members": [{"backend": "b1", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
            "services": [{
                "name": "web",
                "vips": [{"address": self.vip}],
                "group": "g",
                "tableSize": 251,
                "encap": self.encap,
            }],
        });
        if self.is_stateless {
            let service = &mut message["services"][0];
            service["mode"] = json!("MODE_STATELESS");
            service["bucketMap"] =
                json!({"generation": "1", "backends": ["b1"], "byBucket": vec![0; BUCKETS]});
        }
        let message = serde_json::from_value(message).map_err(|error| error.to_string())?;
        Planner::default().plan(message).map_err(|error| error.to_string())
    }

    /// The flow of that number: its bytes are the source address, or its end.
    fn key(&self, flow: u32) -> FlowKey {
        FlowKey {
            family: if self.vip.is_ipv4() { Family::V4 } else { Family::V6 },
            protocol: Protocol::TCP,
            source: u32::from_be_bytes(flow.to_ne_bytes()).into(),
            destination: address_bits(self.vip),
            source_port: PORTS[0],
            destination_port: PORTS[1],
        }
    }

    /// A segment without data.
    fn frame(&self) -> Vec<u8> {
        const TCP_BYTES: u8 = 20;
        let (ether_type, header) = match self.vip {
            IpAddr::V4(vip) => {
                let mut header = vec![0; 20];
                header[0] = 0x45;
                header[3] = 20 + TCP_BYTES;
                header[8..10].copy_from_slice(&[60, Protocol::TCP.0]);
                header[16..].copy_from_slice(&vip.octets());
                (EtherType::IPV4, header)
            }
            IpAddr::V6(vip) => {
                let mut header = vec![0; 40];
                header[0] = 0x60;
                header[5..8].copy_from_slice(&[TCP_BYTES, Protocol::TCP.0, 60]);
                header[24..].copy_from_slice(&vip.octets());
                (EtherType::IPV6, header)
            }
        };
        let mut tcp = [0; TCP_BYTES as usize];
        tcp[..2].copy_from_slice(&PORTS[0].to_be_bytes());
        tcp[2..4].copy_from_slice(&PORTS[1].to_be_bytes());
        tcp[12..14].copy_from_slice(&[0x50, 0x10]);
        [&[0; 12][..], &ether_type.0.to_be_bytes(), &header, &tcp].concat()
    }
}
