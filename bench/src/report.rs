//! The report for other programs.

use std::error::Error;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::clock::Samples;
use crate::kernel_cache::CacheTimes;
use crate::keys::Search;
use crate::measure::Measurement;
use crate::tables::Builds;
use crate::veth::Veth;

/// The measurements that it has, by name.
pub const NS_PER_PACKET: [&str; 18] = [
    "one_flow",
    "flows_64k",
    "flows_1m",
    "flows_8m",
    "syn_insert",
    "hash_only_1m",
    "flows_1m_measured_rate",
    "flows_8m_measured_rate",
    "syn_insert_measured_rate",
    "stateless_one_flow",
    "stateless_8m",
    "quic_plain",
    "quic_encrypted",
    "mptcp_syn_v0",
    "mptcp_syn_v1",
    "mptcp_join",
    "mptcp_timestamp",
    "ipv6_one_flow",
];

/// Everything that was measured, in medians. What was not is left out.
#[must_use]
pub fn report(
    measurements: &[Measurement],
    floor: &Samples,
    builds: &[Builds],
    searches: &[Search],
    cache: Option<&CacheTimes>,
    veth: Option<&Veth>,
) -> Value {
    let mut ns: Map<String, Value> = measurements
        .iter()
        .filter(|measurement| NS_PER_PACKET.contains(&measurement.subject.name))
        .map(|measurement| (measurement.subject.name.to_owned(), json!(measurement.ns.median())))
        .collect();
    ns.insert("floor".into(), json!(floor.median()));
    let table_ms: Map<String, Value> =
        builds.iter().map(|build| (build.size.to_string(), json!(build.ms.median()))).collect();
    let key_search_us: Map<String, Value> =
        searches.iter().map(|search| (search.name.into(), json!(search.us.median()))).collect();
    let mut report =
        json!({"ns_per_packet": ns, "table_ms": table_ms, "key_search_us": key_search_us});
    if let Some((median, _)) = services_ratio(measurements) {
        report["services_ratio"] = json!(median);
    }
    let one_million = measurements.iter().find(|of| of.subject.name == "flows_1m");
    if let Some(of) = one_million {
        let connections = of.subject.setup.connections as f64;
        report["bytes_per_connection"] = json!(of.table_bytes as f64 / connections);
    }
    if let Some(times) = cache {
        let medians = times.iter().map(|(name, of)| (name.to_string(), json!(of.median())));
        report["cache_ns"] = medians.collect::<Map<_, _>>().into();
    }
    if let Some(veth) = veth {
        report["veth_ratio_to_reflector"] = json!(veth.ratio);
        report["veth_mpps"] = veth.reported(|subject| subject.mpps).into();
        report["veth_cpu_ns"] = veth.reported(|subject| subject.machine_cpu_ns).into();
        veth.more.iter().for_each(|(name, value)| report[name] = value.clone());
    }
    report
}

/// What many services, of which some are busy, cost in proportion to one: the
/// median of all rounds, because others disturb whole rounds, and that of the
/// best ones.
#[must_use]
pub fn services_ratio(measurements: &[Measurement]) -> Option<(f64, f64)> {
    ratio(measurements, "services_many_some_busy_1m", "flows_1m")
}

/// What segments of Multipath TCP may cost in proportion to a packet of a stateless
/// service.
pub const MULTIPATH_GOALS: [(&str, f64); 2] = [("mptcp_join", 1.3), ("mptcp_timestamp", 1.15)];

/// What one row is in proportion to another: the median of all rounds, and that of the
/// best ones.
#[must_use]
pub fn ratio(measurements: &[Measurement], row: &str, to: &str) -> Option<(f64, f64)> {
    let ns = |name| {
        let found = measurements.iter().find(|of| of.subject.name == name);
        found.map(|of| &of.ns)
    };
    let (row, to) = (ns(row)?, ns(to)?);
    Some((row.over(to).median(), row.best() / to.best()))
}

/// Writes it.
///
/// # Errors
/// If the file cannot be written; the message names it.
pub fn write(path: &Path, report: &Value) -> Result<(), Box<dyn Error>> {
    std::fs::write(path, format!("{report:#}\n"))
        .map_err(|error| format!("cannot write the report {}: {error}", path.display()).into())
}
