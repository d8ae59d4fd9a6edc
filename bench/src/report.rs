//! The report that other programs read.

use std::error::Error;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::clock::Samples;
use crate::measure::Measurement;
use crate::tables::Builds;

/// Writes the medians as JSON.
///
/// # Errors
/// If the file cannot be written; the message names it.
pub fn write(
    path: &Path,
    measurements: &[Measurement],
    floor: &Samples,
    builds: &[Builds],
) -> Result<(), Box<dyn Error>> {
    let mut ns: Map<String, Value> = measurements
        .iter()
        .map(|measurement| (measurement.name.to_owned(), json!(measurement.ns.median())))
        .collect();
    ns.insert("floor".into(), json!(floor.median()));
    let table_ms: Map<String, Value> =
        builds.iter().map(|build| (build.size.to_string(), json!(build.ms.median()))).collect();
    let bytes = measurements
        .iter()
        .find(|measurement| measurement.name == "flows_1m")
        .map(|measurement| measurement.table_bytes as f64 / measurement.setup.connections as f64);
    let report = json!({
        "ns_per_packet": ns,
        "table_ms": table_ms,
        "bytes_per_connection": bytes,
        // Measured by another program, between two namespaces.
        "veth_ratio_to_reflector": null,
    });
    std::fs::write(path, serde_json::to_vec_pretty(&report)?)
        .map_err(|error| format!("cannot write the report {}: {error}", path.display()).into())
}
