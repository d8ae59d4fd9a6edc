//! The agent's life, from its start to the signal that ends it.

use std::net::SocketAddr;
use std::time::Duration;

use daemon::notify::Manager;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time;

use crate::arguments::Arguments;
use crate::program::{Counters, Program};
use crate::{metrics, outcome};

/// Takes packets out of tunnels until a signal ends it.
pub async fn run(arguments: Arguments) -> Result<(), String> {
    // The handlers come first: a signal during the start must not be lost.
    let mut end = End::new()?;
    let listener = listen(arguments.metrics_listen).await?;
    let mut program = Program::load().map_err(|error| error.to_string())?;
    program.allow(&arguments.sources)?;
    let mode = program.attach(&arguments.interface, arguments.mode.into())?;
    println!("ready: {} {mode}, {} sources", arguments.interface, arguments.sources.len());
    Manager::from_env().notifier().ready(&format!("{} {mode}", arguments.interface));

    let counters = program.counters();
    let report = report_every(Duration::from_secs(arguments.stats_interval), counters);
    tokio::select! {
        () = metrics::serve(listener, counters) => {}
        () = report => {}
        () = end.comes() => {}
    }
    tracing::info!(interface = arguments.interface, "detached");
    Ok(())
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
