//! `guideway-agent doctor`: finds common faults of a backend, and their cures.
//!
//! ```text
//!  config ──┐
//!           ├─► network, multipath, agents, service, firewall (pure) ─► findings
//!  kernel, running agent ─► machine ─┘
//! ```
//!
//! A finding fails if packets are lost, or would be. It warns if a setting may be right for
//! this backend. A healthy backend has neither.

mod agents;
mod firewall;
mod machine;
mod multipath;
mod network;
mod service;

use std::path::Path;
use std::process::ExitCode;

use daemon::say;
use serde::Serialize;

use crate::arguments::Format;
use crate::config::Config;
use machine::Machine;

/// What is lost without a pin, and how to have one.
pub const UNPINNED: &str = "not pinned: when the agent is restarted or ends, packets in tunnels are dropped, and connections that live here break; mount -t bpf bpf /sys/fs/bpf (in a namespace: write `pin` with a directory of its own there)";

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// It may be right here.
    Warn,
    /// Packets are lost, or would be.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub grade: Grade,
    /// What it is about.
    pub what: &'static str,
    /// What was found; for what is wrong: the culprit and the cure.
    pub text: String,
}

/// Findings on their way.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, what: &'static str, text: impl Into<String>) {
        self.0.push(Finding { grade: Grade::Ok, what, text: text.into() });
    }

    fn warn(&mut self, what: &'static str, text: impl Into<String>) {
        self.0.push(Finding { grade: Grade::Warn, what, text: text.into() });
    }

    fn fail(&mut self, what: &'static str, text: impl Into<String>) {
        self.0.push(Finding { grade: Grade::Fail, what, text: text.into() });
    }

    /// How many are not as they should be.
    fn problems(&self) -> usize {
        self.0.iter().filter(|finding| finding.grade != Grade::Ok).count()
    }
}

/// Looks at everything, prints what it found, and ends with 1 if anything fails.
#[must_use]
pub fn run(file: &Path, format: Format) -> ExitCode {
    let findings = examine(file);
    match format {
        Format::Table => {
            for Finding { grade, what, text } in &findings {
                let grade = match grade {
                    Grade::Ok => "ok",
                    Grade::Warn => "warn",
                    Grade::Fail => "fail",
                };
                say!("{grade:<4}  {what:<11} {text}");
            }
        }
        Format::Json => {
            say!("{}", serde_json::to_string(&findings).expect("findings are JSON"));
        }
    }
    ExitCode::from(u8::from(findings.iter().any(|finding| finding.grade == Grade::Fail)))
}

/// Prints what is to be said of this machine's firewall.
pub fn print_firewall() {
    let chains = machine::ruleset().and_then(|text| firewall::dropping_chains(&text));
    match chains {
        Ok(chains) if chains.is_empty() => {}
        Ok(chains) => say!("{}", firewall::to_be_checked(&chains)),
        Err(problem) => say!("the firewall is not examined: {problem}"),
    }
}

fn examine(file: &Path) -> Vec<Finding> {
    let mut findings = Findings::default();
    let config = match Config::load(file) {
        Ok(config) => config,
        Err(error) => {
            error.problems().iter().for_each(|problem| findings.fail("config", problem));
            return findings.0;
        }
    };
    findings.ok("config", format!("{} is good", file.display()));
    match &config.pin {
        Some(pin) => {
            findings.ok("pin", format!("the program outlives the agent in {}", pin.display()))
        }
        None => findings.warn("pin", UNPINNED),
    }
    match Machine::read(&config) {
        Ok(machine) => {
            agents::check(&config, &machine, &mut findings);
            network::check(&config, &machine, &mut findings);
            multipath::check(&config, &machine, &mut findings);
            service::check(&config, &machine, &mut findings);
            firewall::check(&machine, &mut findings);
        }
        Err(error) => findings.fail("machine", format!("cannot query the kernel: {error}")),
    }
    findings.0
}
