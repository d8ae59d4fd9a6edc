//! The running forwarder's side: waits for a successor, and hands everything
//! over to it.

use std::io;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use super::channel::Channel;
use super::messages::{Answer, Hello, Offer, PROTOCOL, Step};
use crate::control::{Control, Lending};
use crate::notify::Manager;

/// A successor says at once what it wants.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);

/// To decode a large plan takes seconds. Meanwhile packets are forwarded, but
/// changes of the plan wait.
const PREPARE_PATIENCE: Duration = Duration::from_secs(30);

/// What it still has to do while nobody forwards takes milliseconds.
const REST_PATIENCE: Duration = Duration::from_secs(1);

/// The same for starting its threads; to be killed then.
const START_PATIENCE: Duration = Duration::from_secs(3);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What a successor gets beside what control has.
pub struct Assets {
    /// The run directory's lock.
    pub lock: OwnedFd,
    /// The gRPC socket.
    pub listener: OwnedFd,
    /// The socket that successors come to.
    pub take_over: UnixListener,
    /// Who started the service.
    pub manager: Manager,
}

/// Somebody else forwards now.
#[derive(Debug, Clone, Copy)]
pub struct Handed {
    /// The successor.
    pub to: Pid,
}

/// Waits for successors, on a thread of its own, until one has taken over.
pub fn serve(
    assets: Assets,
    control: Weak<Control>,
    handed: oneshot::Sender<Handed>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("take-over".into()).spawn(move || {
        while let Ok((stream, _)) = assets.take_over.accept() {
            // Gone: we are ending.
            let Some(control) = control.upgrade() else { return };
            let done = Channel::new(stream)
                .map_err(Into::into)
                .and_then(|channel| hand_over(channel, &assets, &control));
            match done {
                Ok(done) => {
                    let _ = handed.send(done);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "not handed over to a successor: going on");
                }
            }
        }
    })
}

fn hand_over(mut channel: Channel, assets: &Assets, control: &Control) -> Result<Handed> {
    let to = channel.peer()?;
    let (hello, _) = channel.receive::<Hello>(HELLO_PATIENCE)?;
    tracing::info!(
        pid = to.as_raw_nonzero(),
        version = hello.version,
        "a successor wants to take over"
    );
    let lending = match lend(control, &hello) {
        Ok(lending) => lending,
        Err(why) => {
            channel.send(&Answer::Refused(why.clone()), &[])?;
            return Err(why.into());
        }
    };
    offer(&mut channel, assets, &lending)?;
    expect(&mut channel, PREPARE_PATIENCE, |step| matches!(step, Step::Ready))?;
    control.announce(true);
    if let Err(error) = rest(&mut channel, &lending) {
        lending.resume();
        control.announce(false);
        return Err(error);
    }
    // No way back: what the successor does from here on is not known.
    if let Err(error) = expect(&mut channel, START_PATIENCE, |step| matches!(step, Step::Running)) {
        start_anew(channel, to, &*error);
    }
    // Plans are the successor's now; the lock is never given back.
    std::mem::forget(lending);
    tracing::info!(pid = to.as_raw_nonzero(), "the successor forwards: ending");
    Ok(Handed { to })
}

fn lend<'c>(control: &'c Control, hello: &Hello) -> std::result::Result<Lending<'c>, String> {
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "the running forwarder (version {}) hands over by protocol {PROTOCOL}, version {} by {}: restart it once \
             without --take-over; its connection tables are taken over all the same",
            env!("CARGO_PKG_VERSION"),
            hello.version,
            hello.protocol
        ));
    }
    control.lend(&hello.wants)
}

fn offer(channel: &mut Channel, assets: &Assets, lending: &Lending<'_>) -> Result<()> {
    let running = lending.running();
    let mut descriptors: Vec<BorrowedFd<'_>> =
        vec![assets.lock.as_fd(), assets.listener.as_fd(), assets.take_over.as_fd()];
    let (running, taps) = match running {
        Some((running, taps)) => (Some(running), taps),
        None => (None, Vec::new()),
    };
    descriptors.extend(lending.descriptors());
    descriptors.extend(taps.iter().map(AsFd::as_fd));
    let offer = Offer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        notify_socket: assets.manager.socket.clone(),
        watchdog_usec: assets.manager.watchdog_usec.clone(),
        running,
    };
    Ok(channel.send(&Answer::Offer(Box::new(offer)), &descriptors)?)
}

/// Everything comes to rest; when this returns Ok, the successor was told to
/// go on.
fn rest(channel: &mut Channel, lending: &Lending<'_>) -> Result<()> {
    let rested = match lending.rest() {
        Ok(rested) => rested,
        Err(error) => {
            let _ = channel.send(&Step::Failed(error.to_string()), &[]);
            return Err(error.into());
        }
    };
    channel.send(&Step::Rested(rested), &[])?;
    expect(channel, REST_PATIENCE, |step| matches!(step, Step::Taking))?;
    Ok(channel.send(&Step::Go, &[])?)
}

fn expect(
    channel: &mut Channel,
    patience: Duration,
    is_wanted: impl Fn(&Step) -> bool,
) -> Result<()> {
    match channel.receive::<Step>(patience)?.0 {
        step if is_wanted(&step) => Ok(()),
        Step::Failed(why) => Err(why.into()),
        step => Err(format!("it said {step:?} out of turn").into()),
    }
}

/// The successor got stuck or died when it had everything: nobody must use
/// the sockets any more, and we begin again with new ones.
fn start_anew(channel: Channel, successor: Pid, error: &(dyn std::error::Error + 'static)) -> ! {
    tracing::error!(%error, "the successor failed after it was told to go on: starting anew");
    let is_gone = error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof);
    if !is_gone {
        // With it go its descriptors.
        let _ = kill_process(successor, Signal::KILL);
    }
    drop(channel);
    let arguments = std::env::args_os().skip(1);
    let ours = arguments.filter(|argument| argument != "--take-over" && argument != "--detach");
    let error = Command::new("/proc/self/exe").args(ours).exec();
    tracing::error!(%error, "starting anew failed: ending, for the service manager to start us");
    std::process::exit(1)
}
