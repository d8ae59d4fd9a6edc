//! Measures end to end over veth, next to a bare reflector: figure 8, of which the table
//! shows the ratio and the latencies.
//!
//! `guideway-figures`, the forwarder and the reflector are separate programs, built before;
//! namespaces need root.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What figure 8 found with one worker.
#[derive(Debug)]
pub struct Veth {
    /// The forwarder's rate over the reflector's, median of all rounds.
    pub ratio: f64,
    /// The same by processor time.
    pub cpu_ratio: f64,
    /// The forwarder past the kernel, the reflector, the forwarder through it.
    pub subjects: Vec<Subject>,
    /// As the report has it: nanoseconds per frame of the kernel's path and rates in a flood,
    /// on frames as a driver gives them; uploads and connections.
    pub more: serde_json::Map<String, Value>,
}

/// One of them.
#[derive(Debug)]
pub struct Subject {
    /// As people read it.
    pub name: String,
    /// Packets that came back, in millions a second.
    pub mpps: f64,
    /// Processor time of the whole machine for each, in nanoseconds.
    pub machine_cpu_ns: f64,
    /// There and back at low load, in microseconds: 50, 90, 99, 99.9 %.
    pub latency_us: [f64; 4],
}

/// Keys of the report, and what figure 8 calls these subjects.
const REPORTED: [(&str, &str); 5] = [
    ("xdp_reflector", "bare reflector, xdp"),
    ("kernel_cache", "forwarder, kernel cache"),
    ("tc_reflector", "bare reflector, tc"),
    ("kernel_cache_tc", "forwarder, af_packet, kernel cache"),
    ("af_xdp", "forwarder, af_xdp"),
];

impl Veth {
    /// Of each that the report has, by its key there.
    pub fn reported(&self, of: impl Fn(&Subject) -> f64) -> serde_json::Map<String, Value> {
        let value = |(key, name): &(&str, &str)| {
            let subject = self.subjects.iter().find(|subject| subject.name == *name)?;
            Some(((*key).to_owned(), of(subject).into()))
        };
        REPORTED.iter().filter_map(value).collect()
    }
}

/// The percentiles of [`Subject::latency_us`].
pub const PERCENTILES: [&str; 4] = ["p50", "p90", "p99", "p999"];

/// Measures; or says why that cannot be.
///
/// # Errors
/// Without root, where a program was not built, or if the figure fails.
pub fn measure(rounds: u32) -> Result<Veth, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root, for network namespaces".to_owned());
    }
    let here = std::env::current_exe().map_err(|error| format!("this program's file: {error}"))?;
    let program = |name| here.with_file_name(name);
    let (figures, forwarder) = (program("guideway-figures"), program("guideway-forwarder"));
    let agent = program("guideway-agent");
    let example = |name| here.with_file_name("examples").join(name);
    let (reflector, live_sender) = (example("reflector"), example("live_sender"));
    let missing = |program: &&PathBuf| !program.is_file();
    let programs = [&figures, &forwarder, &agent, &reflector, &live_sender];
    if let Some(program) = programs.into_iter().find(missing) {
        return Err(format!("{} was not built; `make bench` does", program.display()));
    }
    let rounds = rounds.to_string();
    let by_workers = ["8", "--workers", "1", "--rounds", &rounds];
    let of_figure_8 = [
        options("--forwarder", &forwarder),
        options("--reflector", &reflector),
        options("--live-sender", &live_sender),
    ];
    let figure_8 = figure(&figures, &by_workers, &of_figure_8)?;
    let of_paths = [options("--forwarder", &forwarder), options("--agent", &agent)];
    let paths = figure(&figures, &["paths", "--rounds", &rounds], &of_paths)?;
    read(&figure_8, &paths)
        .ok_or_else(|| format!("figures told something else: {figure_8} {paths}"))
}

/// What a figure wrote.
fn figure(figures: &Path, first: &[&str], programs: &[[&OsStr; 2]]) -> Result<Value, String> {
    let failed = |error: &dyn Display| format!("figure {}: {error}", first[0]);
    let json = tempfile::NamedTempFile::new().map_err(|error| failed(&error))?;
    let status = Command::new(figures)
        .args(first)
        .args(programs.as_flattened())
        .args(options("--json", json.path()))
        .stdout(Stdio::null())
        .status()
        .map_err(|error| failed(&error))?;
    if !status.success() {
        return Err(failed(&status));
    }
    let text = std::fs::read_to_string(json.path()).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

fn options<'a>(name: &'a str, file: &'a Path) -> [&'a OsStr; 2] {
    [name.as_ref(), file.as_ref()]
}

fn read(report: &Value, paths: &Value) -> Option<Veth> {
    let mut more = report["driver"].as_object()?.clone();
    more.extend(paths.as_object()?.clone());
    let workers = &report["by_workers"][0];
    let subject = |told: &Value| {
        let mut latency_us = [0.0; 4];
        for (percentile, name) in latency_us.iter_mut().zip(PERCENTILES) {
            *percentile = told["latency_us"][name].as_f64()?;
        }
        let name = told["subject"].as_str()?.to_owned();
        let mpps = told["forwarded_mpps"].as_f64()?;
        let machine_cpu_ns = told["machine_cpu_ns_per_packet"].as_f64()?;
        Some(Subject { name, mpps, machine_cpu_ns, latency_us })
    };
    Some(Veth {
        ratio: report["veth_ratio_to_reflector"].as_f64()?,
        cpu_ratio: workers["cpu_ratio_to_reflector"].as_f64()?,
        subjects: workers["subjects"].as_array()?.iter().map(subject).collect::<Option<_>>()?,
        more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figure_8s_report_is_read() {
        let latency = json!({"p50": 1.0, "p90": 2.0, "p99": 3.0, "p999": 4.0});
        let subject = json!({"subject": "forwarder, af_xdp", "forwarded_mpps": 1.5, "machine_cpu_ns_per_packet": 900.0, "latency_us": latency});
        let workers = json!({"cpu_ratio_to_reflector": 0.9, "subjects": [subject]});
        let driver = json!({"kernel_path_ns": {"flows_64": 300.0}});
        let report =
            json!({"veth_ratio_to_reflector": 0.97, "by_workers": [workers], "driver": driver});
        let veth = read(&report, &json!({"upload_gbps": {"nft": 15.0}})).unwrap();
        assert_eq!((veth.ratio, veth.cpu_ratio), (0.97, 0.9));
        assert_eq!(veth.subjects[0].latency_us, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(Value::from(veth.reported(|of| of.mpps)), json!({"af_xdp": 1.5}));
        assert_eq!(veth.reported(|of| of.machine_cpu_ns)["af_xdp"], 900.0);
        assert_eq!(veth.more["kernel_path_ns"]["flows_64"], 300.0);
        assert_eq!(veth.more["upload_gbps"]["nft"], 15.0);
        assert!(read(&json!({}), &json!({})).is_none());
    }
}
