//! The running forwarder's side: waits for a successor, and hands everything over to it.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::Duration;

use daemon::notify::Manager;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::control::{Control, Handover};
use crate::dataplane::threads::Heartbeat;
use crate::process::successor::{TAKE_OVER_FLAGS, THREAD};
use crate::takeover::channel::Channel;
use crate::takeover::messages::{Answer, Hello, Offer, PROTOCOL, Step};
use crate::takeover::process::Process;

/// The longest wait, so that who looks at the heartbeat sees that the thread lives.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// A successor says at once what it requires.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// To decode a large plan takes seconds. Meanwhile packets are forwarded, but
/// changes of the plan wait.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// What it still has to do while no process forwards takes milliseconds.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// The same for starting its threads; to be killed then, if it is not at work.
const START_TIMEOUT: Duration = Duration::from_secs(3);

/// What the kernel, or a lack of processors, may add to that: we would begin again behind
/// the same.
const START_TIMEOUTS: usize = 4;

/// How long a killed successor may take to be gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Of the thread that waits for successors.
    pub heartbeat: Heartbeat,
}

/// Another process forwards now.
#[derive(Debug, Clone, Copy)]
pub struct Handed {
    /// The successor's process.
    pub to: u32,
}

/// Waits for successors, on a thread of its own, until one has taken over.
pub fn serve(
    assets: Assets,
    control: Weak<Control>,
    handed: oneshot::Sender<Handed>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(THREAD.into()).spawn(move || {
        while let Ok(stream) = successor(&assets) {
            // Gone: we are ending.
            let Some(control) = control.upgrade() else { return };
            let done = Channel::new(stream)
                .map_err(Into::into)
                .and_then(|channel| hand_over(channel, &assets, &control));
            match done {
                Ok(done) => {
                    if handed.send(done).is_err() {
                        // Told to stop meanwhile: what there is to stop is
                        // another's now.
                        std::process::exit(0);
                    }
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "not handed over to a successor: going on");
                }
            }
        }
    })
}

/// Waits for one. While it is dealt with there is no heartbeat: each step has a timeout.
fn successor(assets: &Assets) -> io::Result<UnixStream> {
    let timeout = Timespec::try_from(WAIT_MAX).expect("some milliseconds");
    loop {
        assets.heartbeat.beat();
        match poll(&mut [PollFd::new(&assets.take_over, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
    }
    assets.heartbeat.end();
    Ok(assets.take_over.accept()?.0)
}

fn hand_over(mut channel: Channel, assets: &Assets, control: &Control) -> Result<Handed> {
    let (hello, descriptors) = channel.receive::<Hello>(HELLO_TIMEOUT)?;
    tracing::info!(pid = hello.pid, version = hello.version, "a successor is about to take over");
    let handover = match lend(control, &hello) {
        Ok(handover) => handover,
        Err(why) => {
            channel.send(&Answer::Refused(why.clone()), &[])?;
            return Err(why.into());
        }
    };
    let handle = descriptors.into_iter().next();
    let successor = Process::other(hello.pid, handle.ok_or("it sent no descriptor of itself")?);
    offer(&mut channel, assets, &handover)?;
    expect(&mut channel, PREPARE_TIMEOUT, |step| matches!(step, Step::Ready))?;
    control.announce(true);
    if let Err(error) = rest(&mut channel, &handover) {
        handover.resume();
        control.announce(false);
        return Err(error);
    }
    // No way back: what the successor does from here on is not known.
    if let Err(error) = forwards(&mut channel, &successor) {
        replace(channel, &successor, &assets.manager, &*error);
    }
    // Plans are the successor's now; the lock is never given back.
    std::mem::forget(handover);
    tracing::info!(pid = successor.pid, "the successor forwards: ending");
    Ok(Handed { to: successor.pid })
}

fn lend<'c>(control: &'c Control, hello: &Hello) -> std::result::Result<Handover<'c>, String> {
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "the running forwarder (version {}) hands over by protocol {PROTOCOL}, version {} by {}: restart it once \
             without --take-over; its connection tables are taken over all the same",
            daemon::VERSION,
            hello.version,
            hello.protocol
        ));
    }
    control.lend(&hello.requirements)
}

fn offer(channel: &mut Channel, assets: &Assets, handover: &Handover<'_>) -> Result<()> {
    let running = handover.running();
    let own = Process::own()?;
    let mut descriptors: Vec<BorrowedFd<'_>> =
        vec![own.handle(), assets.lock.as_fd(), assets.listener.as_fd(), assets.take_over.as_fd()];
    let (running, taps) = match running {
        Some((running, taps)) => (Some(running), taps),
        None => (None, Vec::new()),
    };
    descriptors.extend(handover.descriptors());
    descriptors.extend(taps.iter().map(AsFd::as_fd));
    let offer = Offer {
        version: daemon::VERSION.to_owned(),
        pid: std::process::id(),
        notify_socket: assets.manager.socket.clone(),
        watchdog_usec: assets.manager.watchdog_usec.clone(),
        running,
    };
    Ok(channel.send(&Answer::Offer(Box::new(offer)), &descriptors)?)
}

/// Everything comes to rest; when this returns Ok, the successor was told to
/// go on.
fn rest(channel: &mut Channel, handover: &Handover<'_>) -> Result<()> {
    let quiesced = match handover.rest() {
        Ok(quiesced) => quiesced,
        Err(error) => {
            let _ = channel.send(&Step::Failed(error.to_string()), &[]);
            return Err(error.into());
        }
    };
    channel.send(&Step::Quiesced(quiesced), &[])?;
    expect(channel, REST_TIMEOUT, |step| matches!(step, Step::Taking))?;
    Ok(channel.send(&Step::Go, &[])?)
}

fn expect(
    channel: &mut Channel,
    timeout: Duration,
    is_wanted: impl Fn(&Step) -> bool,
) -> Result<()> {
    expected(channel.receive(timeout)?.0, is_wanted)
}

fn expected(said: Step, is_wanted: impl Fn(&Step) -> bool) -> Result<()> {
    match said {
        step if is_wanted(&step) => Ok(()),
        Step::Failed(why) => Err(why.into()),
        step => Err(format!("it said {step:?} out of turn").into()),
    }
}

/// Returns when the successor forwards, and lives.
fn forwards(channel: &mut Channel, successor: &Process) -> Result<()> {
    let may_wait =
        |error: &io::Error| error.kind() == io::ErrorKind::TimedOut && successor.is_at_work();
    let mut said = channel.receive::<Step>(START_TIMEOUT);
    for _ in 1..START_TIMEOUTS {
        match said {
            Err(error) if may_wait(&error) => said = channel.receive(START_TIMEOUT),
            _ => break,
        }
    }
    expected(said?.0, |step| matches!(step, Step::Running))?;
    match successor.is_gone(Duration::ZERO) {
        true => Err("it ended as soon as it forwarded".into()),
        false => Ok(()),
    }
}

/// The successor got stuck or died when it had everything: no process must use
/// the sockets any more, and we begin again with new ones.
fn replace(
    channel: Channel,
    successor: &Process,
    manager: &Manager,
    error: &(dyn std::error::Error + 'static),
) -> ! {
    tracing::error!(%error, "the successor failed after it was told to go on: starting anew");
    // With it go its descriptors.
    successor.kill();
    if !successor.is_gone(GONE_TIMEOUT) {
        tracing::error!(pid = successor.pid, "the successor does not end");
    }
    drop(channel);
    let error = start_anew(manager);
    tracing::error!(%error, "starting anew failed: ending, for the service manager to start us");
    std::process::exit(1)
}

/// Executes this program in this process, as after a kill: new sockets, the tables taken
/// over. Returns why that cannot be done.
pub fn start_anew(manager: &Manager) -> io::Error {
    command_anew(std::env::args_os().skip(1), manager).exec()
}

/// This program as it was started, but not in anybody's place, and under the
/// service manager whose service it is: a process that took over was not
/// started by that one.
fn command_anew(arguments: impl Iterator<Item = OsString>, manager: &Manager) -> Command {
    // Its file may have been replaced.
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command.args(arguments.filter(|argument| !TAKE_OVER_FLAGS.iter().any(|flag| argument == flag)));
    manager.hand_on(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_starts_anew_has_no_flag_of_a_successor_and_knows_its_manager() {
        let arguments = ["run", "--take-over", "--no-pin", "--announce", "--run-dir", "/r"];
        let manager = Manager { socket: Some("/n".into()), watchdog_usec: Some("5000000".into()) };
        let command = command_anew(arguments.iter().map(OsString::from), &manager);
        assert!(command.get_args().eq(["run", "--no-pin", "--run-dir", "/r"]));
        let variable = |name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == name);
            found.expect("it is set, or removed").1.map(|value| value.to_str().unwrap())
        };
        assert_eq!(variable("NOTIFY_SOCKET"), Some("/n"));
        assert_eq!(variable("WATCHDOG_USEC"), Some("5000000"));
        assert_eq!(variable("WATCHDOG_PID"), None);
    }
}
