//! The running forwarder: brings the parts up in order, and down again.
//!
//! ```text
//!  run dir (lock) ► state dir ► Control ► last plan ► socket ► READY=1 … SIGTERM ► workers stop
//! ```

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::control::Control;
use crate::metrics::http;
use crate::notify::{Notifier, watchdog_interval};
use crate::rundir::RunDir;
use crate::server;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the socket is.
    pub run_dir: PathBuf,
    /// Where the last plan is.
    pub state_dir: PathBuf,
    /// Where the connection tables are.
    pub tables_dir: PathBuf,
    /// The cluster's secret.
    pub secret_file: Option<PathBuf>,
    /// Where to serve metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// Workers with `steering: software`; None: one for each core but one.
    pub steered_workers: Option<usize>,
    /// Pin workers to cores.
    pub pin: bool,
    /// Never sleep.
    pub busy_poll: bool,
}

/// A worker that has not gone round for this long is not alive; the watchdog
/// then lets the service manager end us, so that BGP withdraws.
const HEARTBEAT_AGE_MAX: Duration = Duration::from_secs(2);

/// How often a plan that could not be saved is tried again.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// How often the clock is looked at.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// How long answers that are being made may take once we are told to stop.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// Forwards until told to stop.
pub fn run(options: Options) -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
    abort_on_panic();
    let run_dir = RunDir::take(&options.run_dir)?;
    let control = Arc::new(Control::new(&options)?);
    control.start_from_disk();
    let listener = run_dir.listen()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let served = runtime.block_on(serve(&options, listener, Arc::clone(&control)));
    control.stop();
    // Nobody must find a socket without a listener; the lock is still ours.
    let _ = std::fs::remove_file(run_dir.path().join("forwarder.sock"));
    served
}

/// A worker that is gone forwards nothing while the machine still attracts
/// traffic: better no process, which the controller sees at once.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}

async fn serve(
    options: &Options,
    listener: std::os::unix::net::UnixListener,
    control: Arc<Control>,
) -> Result<()> {
    if let Some(address) = options.metrics_listen {
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = listener.map_err(|error| format!("--metrics-listen {address}: {error}"))?;
        let control = Arc::clone(&control);
        tokio::spawn(http::serve(listener, Arc::new(move || control.metrics())));
    }
    tokio::spawn(follow_next_hops(Arc::clone(&control)));
    tokio::spawn(keep_time(Arc::clone(&control)));
    tokio::spawn(keep_saving(Arc::clone(&control)));
    let notifier = Notifier::from_env();
    if let Some(interval) = watchdog_interval() {
        tokio::spawn(watch_dog(notifier.clone(), interval, Arc::clone(&control)));
    }
    notifier.ready(&control.summary());
    tracing::info!(run_dir = %options.run_dir.display(), "listening");
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(server::serve(listener, control, async {
        // A sender that is gone means stop as well.
        let _ = stopped.await;
    }));
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    tracing::info!("stopping");
    notifier.stopping();
    let _ = stop.send(());
    // A client that keeps its connection open must not keep us.
    match tokio::time::timeout(STOP_PATIENCE, served).await {
        Ok(done) => done?.map_err(Into::into),
        Err(_) => Ok(()),
    }
}

/// Every change of a route, neighbour or path MTU becomes a new egress table.
async fn follow_next_hops(control: Arc<Control>) {
    let (mut snapshots, mut path_mtus) = (control.next_hops(), control.path_mtus());
    // Where nothing is learnt the sender is gone; that must not end this.
    let mut learning = true;
    loop {
        tokio::select! {
            news = snapshots.changed() => if news.is_err() { return },
            news = path_mtus.changed(), if learning => learning = news.is_ok(),
        }
        let control = Arc::clone(&control);
        // It waits for the workers: not on a thread of the runtime.
        let _ = tokio::task::spawn_blocking(move || control.adopt_next_hops()).await;
    }
}

/// Somebody may step the clock; marks of traced packets tell its time.
async fn keep_time(control: Arc<Control>) {
    let mut ticks = tokio::time::interval(CLOCK_INTERVAL);
    loop {
        ticks.tick().await;
        control.keep_time();
    }
}

/// A full disk may have room again.
async fn keep_saving(control: Arc<Control>) {
    let mut ticks = tokio::time::interval(SAVE_INTERVAL);
    loop {
        ticks.tick().await;
        let control = Arc::clone(&control);
        let _ = tokio::task::spawn_blocking(move || control.retry_saving()).await;
    }
}

async fn watch_dog(notifier: Notifier, interval: Duration, control: Arc<Control>) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        match control.heartbeat_age() {
            Some(age) if age > HEARTBEAT_AGE_MAX => {
                tracing::error!(?age, "a worker does not go round")
            }
            _ => notifier.alive(),
        }
    }
}
