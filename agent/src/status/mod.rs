//! The running agent's status, for `guideway-agent status` and `doctor`.
//!
//! It is served on a unix socket (socket.rs); nothing is read from its clients.

mod socket;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nexthops::Snapshot;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::attachment::Mode;
use crate::config::Config;
use crate::messages::{Exchange, Exchanges, Served};
use crate::outcome::OUTCOMES;
use crate::program::Program;
use crate::redirects;
use crate::responses::Summary;
use crate::timestamps;

/// How long the agent writes to one client.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a client waits for the agent, on a machine that has more to do.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// After a failure of the machine's own.
const AGAIN: Duration = Duration::from_secs(1);

/// All that an agent says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The config's file.
    pub config_file: PathBuf,
    /// Since its start.
    pub uptime_seconds: u64,
    /// How the program is attached: native, generic or tc.
    pub mode: String,
    /// All its programs are. Earlier agents do not say so.
    #[serde(default = "yes")]
    pub is_attached: bool,
    /// What the config says.
    pub configured: Configured,
    /// Segments of services with Multipath TCP, by what became of their timestamps.
    pub timestamps: BTreeMap<String, u64>,
    /// How other agents are reached.
    pub other_agents: Vec<OtherAgent>,
    /// What was said to controllers.
    pub controllers: Vec<Controller>,
    /// The stateless services' addresses and ports, as controllers name them.
    pub services: Vec<Served>,
    /// Of services with Multipath TCP; absent where there are none.
    pub multipath: Option<Multipath>,
    /// Redirect rules; absent where there are no such services.
    pub redirects: Option<redirects::State>,
    /// How services answered in the latest minute; nothing where that is not measured.
    #[serde(default)]
    pub responses: Vec<Summary>,
    /// Packets by what became of them: `passed`, `decapsulated`, `forwarded`, `dropped`.
    pub packets: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Handshakes of Multipath TCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multipath {
    /// Why connections become plain ones; absent where they do not.
    pub problem: Option<String>,
    /// Connections that live here, by their tokens.
    pub tokens: u64,
    /// How long SYN cookies were on for their handshakes; `status` of an older agent says 0.
    #[serde(default)]
    pub cookies_on_milliseconds: u64,
    /// What was done with segments.
    pub events: BTreeMap<String, u64>,
}

/// The config's fields that decide over packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    /// Where tunnelled packets arrive.
    pub interface: String,
    /// Where the program outlives the agent.
    pub pin: Option<PathBuf>,
    /// This agent among `agents`; empty where there are none.
    pub name: String,
    /// The agents of all backends.
    pub agents: BTreeMap<String, Vec<IpAddr>>,
    /// Whose tunnels are opened.
    pub load_balancers: Vec<String>,
    /// Where packets out of tunnels may go.
    pub vips: Vec<String>,
    /// Services whose connections of Multipath TCP get their keys from load balancers.
    pub mptcp: Vec<std::net::SocketAddr>,
}

/// Another agent, and how packets get there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherAgent {
    /// Its name in the config.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// The largest packet that is sent there; absent where none can be.
    pub mtu: Option<u32>,
    /// Why none can be.
    pub problem: Option<String>,
}

/// A load balancer's controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    /// Where its messages go.
    pub address: String,
    /// States sent to it.
    pub states_sent: u64,
    /// Since its last answer; absent where it never answered.
    pub answered_seconds_ago: Option<f64>,
    /// Connections in the latest state sent to it.
    pub connections: u64,
}

impl Configured {
    /// Of a config.
    #[must_use]
    pub fn of(config: &Config) -> Configured {
        let texts =
            |prefixes: &[wire::IpPrefix]| prefixes.iter().map(ToString::to_string).collect();
        Configured {
            interface: config.interface.clone(),
            pin: config.pin.clone(),
            name: config.name.clone(),
            agents: config.agents.clone(),
            load_balancers: texts(&config.load_balancers),
            vips: texts(&config.vips),
            mptcp: config.multipath.clone(),
        }
    }
}

fn yes() -> bool {
    true
}

/// Where an agent's status comes from.
pub struct Source<'a> {
    /// The config's file.
    pub file: PathBuf,
    /// What it says.
    pub config: &'a Config,
    /// How the program is attached.
    pub mode: Mode,
    /// When the agent started.
    pub started: Instant,
    /// The program, and what it counts.
    pub program: &'a Program,
    /// With the controllers.
    pub exchanges: Exchanges,
    /// How other agents are reached; None: there are none.
    pub next_hops: Option<watch::Receiver<Arc<Snapshot>>>,
    /// Redirect rules.
    pub rules: redirects::Shared,
}

impl Source<'_> {
    fn read(&self) -> Result<Status, String> {
        let exchanges = self.exchanges.read();
        let mut packets = BTreeMap::<String, BTreeMap<String, u64>>::new();
        for (outcome, count) in OUTCOMES.iter().zip(self.program.counters().read()?) {
            let group = packets.entry(outcome.kind.verb().to_string()).or_default();
            group.insert(outcome.name.to_string(), count);
        }
        Ok(Status {
            version: daemon::VERSION.to_string(),
            config_file: self.file.clone(),
            uptime_seconds: self.started.elapsed().as_secs(),
            mode: self.mode.to_string(),
            is_attached: self.program.is_attached(),
            configured: Configured::of(self.config),
            timestamps: timestamps::OUTCOMES
                .iter()
                .map(ToString::to_string)
                .zip(self.program.counters().timestamps.read()?)
                .collect(),
            other_agents: self.other_agents(),
            controllers: exchanges.iter().map(controller).collect(),
            services: services(&exchanges),
            multipath: self.multipath()?,
            responses: self.program.counters().responses.summaries()?,
            redirects: (!self.config.multipath.is_empty()).then(|| self.rules.read()),
            packets,
        })
    }

    fn multipath(&self) -> Result<Option<Multipath>, String> {
        if self.config.multipath.is_empty() {
            return Ok(None);
        }
        let counts = &self.program.counters().multipath;
        let events = counts.events()?.into_iter().map(|(name, count)| (name.to_string(), count));
        Ok(Some(Multipath {
            problem: counts.problem(),
            tokens: counts.tokens(),
            cookies_on_milliseconds: counts.cookies_on().as_millis() as u64,
            events: events.collect(),
        }))
    }

    fn other_agents(&self) -> Vec<OtherAgent> {
        let Some(next_hops) = &self.next_hops else { return Vec::new() };
        let snapshot = next_hops.borrow().clone();
        let mut others = Vec::new();
        for (name, addresses) in &self.config.agents {
            for address in addresses.iter().filter(|_| *name != self.config.name) {
                let (mtu, problem) = match snapshot.backends.get(address) {
                    Some(Ok(hops)) => (hops.first().map(|hop| hop.mtu), None),
                    Some(Err(problem)) => (None, Some(problem.to_string())),
                    None => (None, Some("not looked up yet".to_string())),
                };
                others.push(OtherAgent { name: name.clone(), address: *address, mtu, problem });
            }
        }
        others
    }
}

fn controller(exchange: &Exchange) -> Controller {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Controller {
        address: exchange.controller.to_string(),
        states_sent: exchange.states_sent,
        answered_seconds_ago: exchange.answered_at.map(|at| (now - at).max(0.0)),
        connections: exchange.connections,
    }
}

/// Of all controllers: where one is a config behind, both count.
fn services(exchanges: &[Exchange]) -> Vec<Served> {
    let mut services: Vec<Served> =
        exchanges.iter().flat_map(|exchange| exchange.services.iter().cloned()).collect();
    services.sort();
    services.dedup();
    services
}

/// Serves the status, for ever.
pub async fn serve(source: &Source<'_>) {
    let listener = match socket::Listener::bind(&source.config.interface) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!("`guideway-agent status` does not reach this agent: {error}");
            return std::future::pending().await;
        }
    };
    loop {
        let Ok(mut stream) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        let text = match source.read() {
            Ok(status) => serde_json::to_string(&status).unwrap_or_default(),
            Err(problem) => {
                tracing::warn!("cannot read the status: {problem}");
                continue;
            }
        };
        // A client that is slow or gone is its own loss.
        let _ = timeout(WRITE_TIMEOUT, stream.write_all(text.as_bytes())).await;
    }
}

/// The status of the agent that runs for an interface of this network namespace.
pub fn read(interface: &str) -> Result<Status, String> {
    let text = socket::ask(interface, READ_TIMEOUT).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => format!(
            "no agent runs for {interface} in this network namespace: systemctl start guideway-agent"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("the agent for {interface} answers root alone: {error}")
        }
        io::ErrorKind::WouldBlock => format!(
            "the agent for {interface} does not answer within {} s: is this machine overloaded, or the agent stopped?",
            READ_TIMEOUT.as_secs()
        ),
        _ => format!("the agent for {interface} cannot be asked: {error}"),
    })?;
    serde_json::from_str(&text)
        .map_err(|error| format!("the agent for {interface} is of another version: {error}"))
}

/// For people.
#[must_use]
pub fn table(status: &Status) -> String {
    let configured = &status.configured;
    let mut lines = vec![
        row("version", &format!("{}, up {}", status.version, duration(status.uptime_seconds))),
        row("config", &status.config_file.display().to_string()),
        row("interface", &format!("{}, {}", configured.interface, status.mode)),
        row("VIPs", &configured.vips.join(" ")),
        row("tunnels from", &configured.load_balancers.join(" ")),
    ];
    lines.extend(configured.pin.as_ref().map(|pin| row("pinned in", &pin.display().to_string())));
    if !configured.name.is_empty() {
        lines.push(row("name", &configured.name));
    }
    for other in &status.other_agents {
        let reached = match (&other.mtu, &other.problem) {
            (Some(mtu), _) => format!("reached, packets of up to {mtu} bytes"),
            (None, problem) => format!("not reached: {}", problem.as_deref().unwrap_or("?")),
        };
        lines.push(row("agent", &format!("{} {} {reached}", other.name, other.address)));
    }
    for controller in &status.controllers {
        let answered = controller
            .answered_seconds_ago
            .map_or_else(|| "never answered".to_string(), |ago| format!("answered {ago:.1} s ago"));
        let Controller { address, states_sent, connections, .. } = controller;
        let text =
            format!("{address} {answered}, {states_sent} states sent, {connections} connections");
        lines.push(row("controller", &text));
    }
    lines.extend(status.responses.iter().map(|summary| row("answers", &answers(summary))));
    for (name, count) in status.timestamps.iter().filter(|(_, count)| **count > 0) {
        lines.push(row("timestamps", &format!("{name} {count}")));
    }
    for (verb, outcomes) in &status.packets {
        for (name, count) in outcomes.iter().filter(|(_, count)| **count > 0) {
            lines.push(row(verb, &format!("{name} {count}")));
        }
    }
    lines.concat()
}

fn answers(summary: &Summary) -> String {
    let Summary { service, answers, p50_ms, p99_ms, resets, connections, accept_queue } = summary;
    let times = match (p50_ms, p99_ms) {
        (Some(p50), Some(p99)) => format!("half within {p50} ms, 99 % within {p99} ms"),
        _ => "none measured".to_string(),
    };
    format!(
        "{service} in the latest minute: {answers} measured, {times}; {resets} RSTs, {connections} connections, {accept_queue} not accepted yet"
    )
}

fn row(name: &str, text: &str) -> String {
    format!("{name:<13} {text}\n")
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}
