//! The agent's life: from its start to the signal that ends it.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use daemon::notify::Manager;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time;

use crate::attachment::Place;
use crate::config::Config;
use crate::messages::Messages;
use crate::multipath::{self, Injector};
use crate::neighbours::Neighbours;
use crate::program::{Counters, Program};
use crate::redirects::Redirects;
use crate::{doctor, metrics, outcome, status};

/// How often the interface is looked for.
const INTERFACE_CHECK: Duration = Duration::from_secs(1);

/// Takes packets out of tunnels until a signal ends it; `file` is the config's, and
/// `timestamp_shift` is 13 but in tests.
pub async fn run(file: &Path, config: &Config, timestamp_shift: u32) -> Result<(), String> {
    // The handlers come first: a signal during the start must not be lost.
    let mut end = End::new()?;
    let listener = listen(config.metrics_listen).await?;
    if config.pin.is_none() && !config.unpinned {
        tracing::warn!("{}", doctor::UNPINNED);
    }
    let place = Place::of(config.mode, &config.interface);
    let mut program = load(place, config.pin.as_deref())?;
    program.set(config)?;
    program.shift_timestamps(timestamp_shift)?;
    let agents = program.agents()?;
    let interface = &config.interface;
    // The table of agents comes first: it may take a predecessor's place.
    let mut neighbours = Neighbours::start(config, agents).await?;
    let mut own = program.own()?;
    own.update()?; // before the program may take a predecessor's place
    let mut sampler = program.sampler()?;
    let flows = program.flows()?;
    let clocks = program.clocks(config)?;
    let redirects = Redirects::new(config, program.redirects(config)?)?;
    let _injector = injector(config, &mut program)?; // before SYNs are handed over
    let measures = measures_responses(config);
    program.attach_classifiers(config, measures)?;
    let mode = program.attach(config)?;
    println!("ready: {interface} {mode}");
    Manager::from_env().notifier().ready(&format!("{interface} {mode}"));

    let counters = program.counters();
    let messages = Messages::new(config, flows, clocks, redirects.living(), counters);
    let rules = redirects.shared();
    let exchanges = messages.exchanges();
    multipath::report_problems(config);
    let source = status::Source {
        file: file.to_path_buf(),
        config,
        mode,
        started: Instant::now(),
        program: &program,
        exchanges: exchanges.clone(),
        next_hops: neighbours.next_hops(),
        rules: rules.clone(),
    };
    tokio::select! {
        () = metrics::serve(listener, Arc::clone(counters), exchanges, rules) => {}
        () = status::serve(&source) => {}
        result = messages.run() => return result,
        result = redirects.run() => return result,
        result = own.follow() => return result,
        result = counters.responses.follow(&mut sampler), if measures => return result,
        () = report_every(config.stats_interval, counters) => {}
        problem = interface_goes(interface) => return Err(problem),
        result = neighbours.follow() => return result,
        () = end.comes() => {}
    }
    let state = if config.pin.is_some() { "the program stays" } else { "detached" };
    tracing::info!(interface, "{state}");
    Ok(())
}

/// Loads the program; with the tables of a predecessor, if it left some.
fn load(place: Place, pin: Option<&Path>) -> Result<Program, String> {
    let Some(pin) = pin else {
        return Program::load(place, None).map_err(|error| error.to_string());
    };
    let problem = |error: &dyn Display| {
        let cure = "is it in a BPF file system (`mount -t bpf bpf /sys/fs/bpf`)?";
        format!("cannot keep tables in {}: {error}; {cure}", pin.display())
    };
    std::fs::create_dir_all(pin).map_err(|error| problem(&error))?;
    Program::load(place, Some(pin)).map_err(|error| problem(&error))
}

/// Whether it is measured how long clients wait: where the config has it and the kernel can.
fn measures_responses(config: &Config) -> bool {
    let measures = config.measures_responses && ebpf::has_tc_links();
    if config.measures_responses && !measures {
        tracing::warn!("how long clients wait is not measured: that takes Linux 6.6");
    }
    measures
}

/// Takes SYNs of services with Multipath TCP, if there are some.
fn injector(config: &Config, program: &mut Program) -> Result<Option<Injector>, String> {
    if config.multipath.is_empty() {
        return Ok(None);
    }
    let tables = program.multipath()?;
    Injector::start(config, tables, &program.counters().multipath).map(Some)
}

/// Why the program does nothing any more: with its interface it is gone,
/// also when another one comes by the same name.
async fn interface_goes(interface: &str) -> String {
    let attached = ebpf::index_of(interface).ok();
    let mut ticks = time::interval(INTERFACE_CHECK);
    loop {
        ticks.tick().await;
        match ebpf::index_of(interface) {
            Err(error) => return error.to_string(),
            Ok(index) if Some(index) != attached => {
                return format!("interface {interface} was removed and made anew");
            }
            Ok(_) => {}
        }
    }
}

async fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, String> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await;
    listener.map(Some).map_err(|error| format!("cannot serve metrics on {address}: {error}"))
}

/// The signals that end the agent.
struct End {
    terminate: Signal,
    interrupt: Signal,
}

impl End {
    fn new() -> Result<End, String> {
        let handler =
            |kind| signal(kind).map_err(|error| format!("cannot handle signals: {error}"));
        Ok(End {
            terminate: handler(SignalKind::terminate())?,
            interrupt: handler(SignalKind::interrupt())?,
        })
    }

    async fn comes(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Logs the counters that are not zero; never, for an interval of zero.
async fn report_every(interval: Duration, counters: &Counters) {
    if interval.is_zero() {
        return std::future::pending().await;
    }
    let mut ticks = time::interval(interval);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match counters.read() {
            Ok(counts) => tracing::info!("{}", outcome::line(&counts)),
            Err(problem) => tracing::warn!("{problem}"),
        }
    }
}
