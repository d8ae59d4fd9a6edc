//! The new process's side: gets everything from a running forwarder, prepares, and continues in
//! its place.

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use daemon::notify::Manager;
use rustix::fd::OwnedFd;

use crate::control::Control;
use crate::control::handover::{QuiescedState, Requirements, Running};
use crate::dataplane::threads::monotonic_ns;
use crate::process::rundir;
use crate::proto::TakenOver;
use crate::takeover::channel::Channel;
use crate::takeover::messages::{Answer, Hello, Offer, PROTOCOL, Step};
use crate::takeover::process::Process;

/// A predecessor answers at once, but for a change of the plan that it is
/// about to make.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Its threads come to rest within this time, or it says that they do not.
const REST_TIMEOUT: Duration = Duration::from_secs(6);

/// Between the end of a conversation and that of the process behind it.
const GONE_TIMEOUT: Duration = Duration::from_secs(2);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What a predecessor offers.
pub struct Predecessor {
    channel: Channel,
    version: String,
    predecessor: Process,
    running: Option<Running>,
    descriptors: Vec<OwnedFd>,
    /// The run directory's lock.
    pub lock: File,
    /// The gRPC socket.
    pub listener: UnixListener,
    /// The socket that our own successor will come to.
    pub take_over: UnixListener,
    /// Who started the service.
    pub manager: Manager,
}

/// Asks the forwarder in the run directory; None: there is none.
pub fn ask(run_dir: &Path, requirements: Requirements) -> Result<Option<Predecessor>> {
    let path = run_dir.join(rundir::TAKE_OVER_SOCKET);
    let stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(refused(&path, &error)),
    };
    let mut channel = Channel::new(stream)?;
    let pid = rundir::holder_of(run_dir);
    let own = Process::own()?;
    let silent = |error: io::Error| -> Box<dyn std::error::Error> {
        format!(
            "{pid} does not hand over: {error}. It was left alone; if it hangs, `kill -9` it and start without --take-over: \
             the connection tables are taken over all the same"
        )
        .into()
    };
    let version = daemon::VERSION.to_owned();
    let hello = Hello { protocol: PROTOCOL, version, pid: own.pid, requirements };
    let sent = channel.send(&hello, &[own.handle()]);
    let (answer, descriptors) = match sent.and_then(|()| channel.receive(ANSWER_TIMEOUT)) {
        Ok(answer) => answer,
        // If it has not ended it holds the run directory, which says so.
        Err(error) if is_end(&error) => {
            tracing::warn!("{pid} ended when it was asked");
            return Ok(None);
        }
        Err(error) => return Err(silent(error)),
    };
    match answer {
        Answer::Refused(why) => Err(format!("--take-over: {why}; {pid} goes on").into()),
        Answer::Offer(offer) => Predecessor::new(channel, *offer, descriptors).map(Some),
    }
}

/// The other end is closed.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

fn refused(path: &Path, error: &io::Error) -> Box<dyn std::error::Error> {
    let cure = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; only the user that the running forwarder runs as may take over from it"
        }
        _ => "",
    };
    format!("--take-over: {}: {error}{cure}", path.display()).into()
}

impl Predecessor {
    fn new(channel: Channel, offer: Offer, descriptors: Vec<OwnedFd>) -> Result<Predecessor> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or("the predecessor left descriptors out");
        let (process, lock) = (next()?, File::from(next()?));
        let (listener, take_over) = (UnixListener::from(next()?), UnixListener::from(next()?));
        let Offer { version, pid, notify_socket, watchdog_usec, running } = offer;
        let descriptors = descriptors.collect();
        Ok(Predecessor {
            channel,
            version,
            predecessor: Process::other(pid, process),
            running,
            descriptors,
            lock,
            listener,
            take_over,
            manager: Manager { socket: notify_socket, watchdog_usec },
        })
    }

    /// Goes on in the predecessor's place: when that says that it may, or when
    /// that has ended. On an error before, the predecessor goes on itself, and
    /// the error says so.
    pub fn take(&mut self, control: &Control) -> Result<TakenOver> {
        let descriptors = std::mem::take(&mut self.descriptors);
        let running = self.running.take();
        let prepared = match control.prepare(running, descriptors) {
            Ok(prepared) => prepared,
            Err(why) => return Err(self.give_up(&*why)),
        };
        let quiesced = match self.negotiate() {
            Ok(quiesced) => quiesced,
            Err(error) if self.predecessor.is_gone(GONE_TIMEOUT) => {
                tracing::warn!(%error, "the running forwarder has ended: going on in its place");
                QuiescedState { since_ns: monotonic_ns(), connections: None }
            }
            Err(error) => return Err(error),
        };
        // If we fail from here on, the predecessor starts anew.
        let (pause, emptied) = prepared.go(quiesced)?;
        if let Err(error) = self.channel.send(&Step::Running, &[]) {
            tracing::warn!(%error, "the former forwarder did not hear that this one forwards");
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(TakenOver {
            time_ms: now.unwrap_or_default().as_millis() as u64,
            predecessor_pid: self.predecessor.pid,
            predecessor_version: std::mem::take(&mut self.version),
            pause_us: pause.as_micros() as u64,
            emptied,
        })
    }

    /// Until the predecessor uses nothing any more.
    fn negotiate(&mut self) -> Result<QuiescedState> {
        self.say(&Step::Ready)?;
        let quiesced = match self.hear(REST_TIMEOUT)? {
            Step::Quiesced(quiesced) => quiesced,
            step => return Err(self.give_up(&*unexpected(&step))),
        };
        self.say(&Step::Taking)?;
        match self.hear(ANSWER_TIMEOUT)? {
            Step::Go => Ok(quiesced),
            step => Err(self.give_up(&*unexpected(&step))),
        }
    }

    fn say(&mut self, step: &Step) -> Result<()> {
        self.channel.send(step, &[]).map_err(|error| self.left(&error))
    }

    fn hear(&mut self, timeout: Duration) -> Result<Step> {
        let heard = self.channel.receive::<Step>(timeout);
        heard.map(|(step, _)| step).map_err(|error| self.left(&error))
    }

    fn left(&self, error: &io::Error) -> Box<dyn std::error::Error> {
        let pid = self.predecessor.pid;
        format!("--take-over: the running forwarder (process {pid}): {error}").into()
    }

    fn give_up(&mut self, why: &dyn std::error::Error) -> Box<dyn std::error::Error> {
        let _ = self.channel.send(&Step::Failed(why.to_string()), &[]);
        let pid = self.predecessor.pid;
        format!("--take-over: {why}; the running forwarder (process {pid}) goes on").into()
    }
}

fn unexpected(step: &Step) -> Box<dyn std::error::Error> {
    match step {
        Step::Failed(why) => why.clone().into(),
        step => format!("it said {step:?} out of turn").into(),
    }
}
