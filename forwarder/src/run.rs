//! The running forwarder: starts its parts in order, and stops them.
//!
//! ```text
//!  run dir (lock) ► state dir ► Control ► last plan ► socket ► READY=1 … SIGTERM ► workers stop
//!  --take-over: all of it from a running forwarder       … a successor has it all ► just ends
//! ```

use std::ffi::CString;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use daemon::logging;
use daemon::notify::Manager;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::api::server;
use crate::control::Control;
use crate::observe::health;
use crate::observe::metrics::{SharedPage, http};
use crate::options::Options;
use crate::process::rundir;
use crate::process::rundir::RunDir;
use crate::process::successor::FORWARDING;
use crate::takeover;
use crate::takeover::{Assets, Handed, Predecessor};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How often a plan that could not be saved is tried again.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// How often interfaces are looked at for packets without checksums.
const CHECKSUMS_INTERVAL: Duration = Duration::from_secs(1);

/// How often the clock is looked at.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// How long answers that are being made may take once we are told to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// A predecessor's listener is free when it has ended.
const METRICS_TRIES: u32 = 100;
const METRICS_PAUSE: Duration = Duration::from_millis(50);

/// Forwards until told to stop, or until a successor does.
pub fn run(options: Options) -> Result<()> {
    take_name();
    logging::start(options.log_format);
    abort_on_panic();
    let controller = controller_uid(options.controller_user.as_deref())?;
    let up = match predecessor(&options)? {
        Some(predecessor) => Up::take_over(&options, predecessor)?,
        None => Up::start(&options)?,
    };
    let Up { run_dir, control, listener, viewers, take_over, manager } = up;
    let assets = Assets {
        lock: run_dir.lock()?,
        listener: listener.try_clone()?.into(),
        take_over,
        manager: manager.clone(),
        heartbeat: control.health().helpers.take_over.clone(),
    };
    let health = control.health();
    health::answer(run_dir.listen_for_health()?, Arc::clone(health))?;
    if let Some(interval) = manager.watchdog_interval() {
        health::watch(manager.notifier(), interval, Arc::clone(health))?;
    }
    let (hand, handed) = oneshot::channel();
    takeover::serve(assets, Arc::downgrade(&control), hand)?;
    if options.announce {
        // Who started us may be gone; we forward all the same.
        let _ = writeln!(std::io::stdout(), "{FORWARDING}");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut sockets = vec![(listener, server::Access::Operate { controller })];
    sockets.extend(viewers.map(|viewers| (viewers, server::Access::View)));
    let served = runtime.block_on(serve(&options, sockets, Arc::clone(&control), &manager, handed));
    match served? {
        Ended::Stopped => {
            control.stop();
            // The lock is still ours.
            run_dir.remove_sockets();
            Ok(())
        }
        // What we have is also our successor's: nothing is to be undone.
        Ended::HandedOver => std::process::exit(0),
        Ended::Anew => {
            tracing::warn!("interfaces that were gone are there again: starting anew");
            control.stop();
            Err(takeover::start_anew(&manager).into())
        }
    }
}

/// One that starts anew is executed by a name in /proc, which `ps` and systemd would
/// show.
fn take_name() {
    let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let name = program.file_name().map(|name| CString::new(name.as_bytes()));
    if let Some(Ok(name)) = name {
        // All works without.
        let _ = rustix::thread::set_name(&name);
    }
}

/// A user that is not there could never send a plan.
fn controller_uid(name: Option<&str>) -> Result<u32> {
    let Some(name) = name else { return Ok(rustix::process::geteuid().as_raw()) };
    rundir::user_id(name).ok_or_else(|| {
        format!("--controller-user {name}: no such user: `make install` makes it (systemd-sysusers), or name another").into()
    })
}

/// What is there when packets can flow.
struct Up {
    run_dir: RunDir,
    control: Arc<Control>,
    listener: UnixListener,
    viewers: Option<UnixListener>,
    take_over: UnixListener,
    manager: Manager,
}

impl Up {
    fn start(options: &Options) -> Result<Up> {
        let run_dir = RunDir::take(&options.run_dir)?;
        let control = Arc::new(Control::new(options)?);
        control.start_from_disk();
        let (listener, take_over) = (run_dir.listen()?, run_dir.listen_for_successors()?);
        let viewers = Some(run_dir.listen_for_viewers()?);
        Ok(Up { run_dir, control, listener, viewers, take_over, manager: Manager::from_env() })
    }

    fn take_over(options: &Options, mut predecessor: Predecessor) -> Result<Up> {
        // Not before the predecessor holds changes of ids back.
        let control = Arc::new(Control::new(options)?);
        let note = predecessor.take(&control)?;
        tracing::info!(
            predecessor = note.predecessor_pid,
            version = note.predecessor_version,
            pause_us = note.pause_us,
            "took over"
        );
        control.note_taken_over(note);
        let mut run_dir = RunDir::inherit(&options.run_dir, predecessor.lock);
        run_dir.sign();
        let Predecessor { listener, take_over, manager, .. } = predecessor;
        run_dir.share_inherited();
        // Packets flow already: without it one still forwards.
        let viewers = run_dir.listen_for_viewers().inspect_err(
            |error| tracing::error!(%error, "no socket for those who look; forwarder.sock serves"),
        );
        Ok(Up { run_dir, control, listener, viewers: viewers.ok(), take_over, manager })
    }
}

/// What a running forwarder offers, if one is to be taken over from.
fn predecessor(options: &Options) -> Result<Option<Predecessor>> {
    if !options.take_over {
        return Ok(None);
    }
    let requirements = Control::requirements(options)?;
    let predecessor = takeover::ask(&options.run_dir, requirements)?;
    match predecessor {
        Some(predecessor) => Ok(Some(predecessor)),
        // Beside a service manager that starts one too, two would get in
        // each other's way.
        None if options.announce => Err(format!(
            "--take-over --detach: no forwarder that could be taken over from runs with {}: start one",
            options.run_dir.display()
        )
        .into()),
        None => {
            tracing::info!("no forwarder that could be taken over from: starting afresh");
            Ok(None)
        }
    }
}

/// Starts the same in the background, and returns when that forwards.
pub fn detach() -> Result<()> {
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let mut child = std::process::Command::new(std::env::current_exe()?)
        .args(arguments)
        .arg("--announce")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    std::io::BufReader::new(output).read_line(&mut line)?;
    if line.trim() == FORWARDING {
        return Ok(());
    }
    // It has said why.
    Err(format!("the successor ended with {}", child.wait()?).into())
}

/// How a forwarder ends.
enum Ended {
    /// It was told to.
    Stopped,
    /// A successor forwards.
    HandedOver,
    /// Its interfaces are others now.
    Anew,
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
    sockets: Vec<(UnixListener, server::Access)>,
    control: Arc<Control>,
    manager: &Manager,
    handed: oneshot::Receiver<Handed>,
) -> Result<Ended> {
    let metrics = Arc::clone(&control);
    let page = SharedPage::new(move || metrics.metrics());
    if let Some(address) = options.metrics_listen {
        serve_metrics(address, options.take_over, page.clone()).await?;
    }
    tokio::spawn(follow_next_hops(Arc::clone(&control)));
    let mut anew = tokio::spawn(keep_time(Arc::clone(&control)));
    tokio::spawn(keep_saving(Arc::clone(&control)));
    tokio::spawn(watch_checksums(Arc::clone(&control)));
    let notifier = manager.notifier();
    // What hears that we are ready may order us to stop.
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    notifier.ready(&control.summary());
    tracing::info!(run_dir = %options.run_dir.display(), "listening");
    let (stop, stopped) = watch::channel(());
    let mut served = JoinSet::new();
    for (listener, access) in sockets {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let mut stopped = stopped.clone();
        // A sender that is gone means stop.
        let stopped = async move { while stopped.changed().await.is_ok() {} };
        served.spawn(server::serve(listener, Arc::clone(&control), page.clone(), access, stopped));
    }
    let ended = tokio::select! {
        _ = term.recv() => Ended::Stopped,
        _ = int.recv() => Ended::Stopped,
        _ = &mut anew => Ended::Anew,
        Ok(handed) = handed => {
            notifier.main_process(handed.to);
            Ended::HandedOver
        }
    };
    if matches!(ended, Ended::Stopped) {
        tracing::info!("stopping");
        notifier.stopping();
    }
    drop(stop);
    // A client that keeps its connection open must not keep us.
    if let Ok(done) = tokio::time::timeout(STOP_TIMEOUT, served.join_all()).await {
        done.into_iter().collect::<std::result::Result<(), _>>()?;
    }
    Ok(ended)
}

/// Serves scrapers. A predecessor has the address until it has ended, so that
/// a successor tries for a while.
async fn serve_metrics(address: SocketAddr, wait: bool, page: SharedPage) -> Result<()> {
    let serve = move |listener| http::serve(listener, page);
    let failed = move |error: std::io::Error| format!("--metrics-listen {address}: {error}");
    match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => drop(tokio::spawn(serve(listener))),
        // A successor forwards: that must not end for want of metrics.
        Err(error) if wait => {
            tracing::debug!(%error, "--metrics-listen {address}: trying again");
            drop(tokio::spawn(async move {
                for _ in 0..METRICS_TRIES {
                    tokio::time::sleep(METRICS_PAUSE).await;
                    if let Ok(listener) = tokio::net::TcpListener::bind(address).await {
                        return serve(listener).await;
                    }
                }
                tracing::error!("{}: no metrics are served there", failed(error));
            }))
        }
        Err(error) => return Err(failed(error).into()),
    }
    Ok(())
}

/// Every change of a route or neighbour becomes a new egress table.
async fn follow_next_hops(control: Arc<Control>) {
    let mut snapshots = control.next_hops();
    while snapshots.changed().await.is_ok() {
        let control = Arc::clone(&control);
        // It waits for the workers: not on a thread of the runtime.
        let _ = tokio::task::spawn_blocking(move || control.adopt_next_hops()).await;
    }
}

/// An administrator may step the clock; marks of traced packets carry its time. And a
/// controller may go away, which the log has to say. ICMP errors wait in their sockets.
/// Ends when interfaces that were gone are there again.
async fn keep_time(control: Arc<Control>) {
    let mut ticks = tokio::time::interval(CLOCK_INTERVAL);
    loop {
        ticks.tick().await;
        control.keep_time();
        control.count_tunnel_errors();
        control.log_controller();
        if control.is_to_start_anew() {
            return;
        }
    }
}

/// Says when an interface's packets begin to come without checksums, and when they end to.
async fn watch_checksums(control: Arc<Control>) {
    let mut ticks = tokio::time::interval(CHECKSUMS_INTERVAL);
    let mut told = Vec::new();
    loop {
        ticks.tick().await;
        control.tell_checksums(&mut told);
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
