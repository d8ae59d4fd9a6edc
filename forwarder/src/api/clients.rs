//! The connections of the gRPC socket. Limits what clients can cost, however many there are and
//! whatever they do.
//!
//! New connections are accepted at once, and the kernel identifies the user. If there are too
//! many, one of the user with the most is closed, so that nobody can keep others out.
//!
//! The answers of a client that does not read them occupy memory: their bytes are counted from
//! when an answer is made until the kernel has taken them ([`Client::add`], [`Limits`]).

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::server::Connected;

use crate::process::peer::{Peer, dispensable};

/// Connections at a time over one socket. Each takes some 50 KiB, and its
/// requests at most their HTTP/2 window.
const CONNECTIONS_MAX: usize = 256;

/// Of all answers not yet taken; one that is larger is sent alone.
const ANSWERS_BYTES_MAX: usize = 64 << 20;

/// A connection whose client has not taken its answers by then is closed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often that is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What all connections share.
#[derive(Debug, Default)]
struct Limits {
    /// Of answers not yet taken.
    bytes: AtomicUsize,
    places: Mutex<Vec<Place>>,
}

/// A connection's place. It ends with its sender.
#[derive(Debug)]
struct Place {
    client: Arc<Client>,
    _end: oneshot::Sender<()>,
}

/// One connection's client, as its requests know it.
#[derive(Debug)]
pub struct Client {
    limits: Arc<Limits>,
    peer: Peer,
    owed: Mutex<Owed>,
    /// When it sent or took anything last.
    used: Mutex<Instant>,
}

#[derive(Debug, Default)]
struct Owed {
    bytes: usize,
    since: Option<Instant>,
    closed: bool,
}

impl Client {
    fn new(limits: &Arc<Limits>, peer: Peer) -> Client {
        let used = Mutex::new(Instant::now());
        Client { limits: Arc::clone(limits), peer, owed: Mutex::default(), used }
    }

    /// The user that connected, by the kernel's word.
    pub fn user(&self) -> u32 {
        self.peer.user
    }

    /// Counts an answer of `bytes` bytes; an error: there is no room for it.
    pub fn add(&self, bytes: usize) -> Result<(), Status> {
        let mut owed = self.owed.lock().expect("no holder of this lock panics");
        let fits = |all: usize| {
            (all == 0 || all.saturating_add(bytes) <= ANSWERS_BYTES_MAX).then(|| all + bytes)
        };
        let added = self.limits.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if owed.closed || added.is_err() {
            if added.is_ok() {
                self.limits.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            return Err(Status::resource_exhausted(
                "other clients do not read their answers, which fill the memory set aside for that: try again",
            ));
        }
        owed.bytes += bytes;
        owed.since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Takes off what the kernel has. Headers count as well, so that the rest
    /// of an answer may be missing from the count while the last of it is sent.
    fn take(&self, bytes: usize) {
        let mut owed = self.owed.lock().expect("no holder of this lock panics");
        let taken = bytes.min(owed.bytes);
        owed.bytes -= taken;
        self.limits.bytes.fetch_sub(taken, Ordering::Relaxed);
        if owed.bytes == 0 {
            owed.since = None;
        }
    }

    fn close(&self) {
        self.owed.lock().expect("no holder of this lock panics").closed = true;
        self.take(usize::MAX);
    }

    fn is_too_slow(&self) -> bool {
        let owed = self.owed.lock().expect("no holder of this lock panics");
        owed.since.is_some_and(|since| since.elapsed() > ANSWER_TIMEOUT)
    }

    fn use_now(&self) {
        *self.used.lock().expect("no holder of this lock panics") = Instant::now();
    }

    fn used(&self) -> Instant {
        *self.used.lock().expect("no holder of this lock panics")
    }
}

impl Limits {
    /// Gives a client a place, and takes another's where there are too many.
    fn enter(&self, client: &Arc<Client>) -> oneshot::Receiver<()> {
        let mut places = self.places.lock().expect("no holder of this lock panics");
        if places.len() >= CONNECTIONS_MAX {
            let used = places.iter().map(|place| (place.client.peer, place.client.used()));
            let dispensable = dispensable(used).expect("there are places");
            places.swap_remove(dispensable);
        }
        let (end, ended) = oneshot::channel();
        places.push(Place { client: Arc::clone(client), _end: end });
        ended
    }

    fn leave(&self, client: &Arc<Client>) {
        let mut places = self.places.lock().expect("no holder of this lock panics");
        places.retain(|place| !Arc::ptr_eq(&place.client, client));
    }
}

/// Accepts connections; a bounded number live at a time.
pub fn accept(listener: UnixListener) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let limits = Arc::default();
        loop {
            let connection = tokio::select! {
                accepted = listener.accept() => {
                    accepted.and_then(|(stream, _)| Connection::new(stream, &limits))
                }
                () = sender.closed() => return,
            };
            let failed = connection.is_err();
            if sender.send(connection).await.is_err() {
                return;
            }
            if failed {
                // Out of file descriptors: others may be closed meanwhile.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// A connection that counts what its client has not taken yet.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    client: Arc<Client>,
    looks: Interval,
    /// Another client has its place.
    ended: oneshot::Receiver<()>,
}

impl Connection {
    fn new(stream: UnixStream, limits: &Arc<Limits>) -> io::Result<Connection> {
        let peer = Peer::of(&stream).ok_or(io::ErrorKind::NotConnected)?;
        let client = Arc::new(Client::new(limits, peer));
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = limits.enter(&client);
        Ok(Connection { stream, client, looks, ended })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.client.close();
        self.client.limits.leave(&self.client);
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<Client>;

    fn connect_info(&self) -> Arc<Client> {
        Arc::clone(&self.client)
    }
}

impl AsyncRead for Connection {
    /// HTTP/2 always waits for the next frame: here a client that is too slow is
    /// found, and one that has lost its place.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.looks.poll_tick(context).is_ready() {
            if self.client.is_too_slow() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        if Pin::new(&mut self.ended).poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.client.use_now();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connection {
    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.client.take(bytes);
            self.client.use_now();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_of(limits: &Arc<Limits>, user: u32) -> Client {
        Client::new(limits, Peer { user, process: 1 })
    }

    #[test]
    fn idle_connections_of_one_user_keep_no_other_user_out() {
        let limits: Arc<Limits> = Arc::default();
        let enter = |user| {
            let client = Arc::new(client_of(&limits, user));
            let ended = limits.enter(&client);
            (client, ended)
        };
        let is_open = |ended: &mut oneshot::Receiver<()>| {
            matches!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        let (controller, mut ended) = enter(998);
        let mut idle: Vec<_> = (0..2 * CONNECTIONS_MAX).map(|_| enter(1000)).collect();
        assert!(is_open(&mut ended), "the controller's connection ended");
        let open = idle.iter_mut().filter_map(|(_, ended)| is_open(ended).then_some(())).count();
        assert_eq!(open, CONNECTIONS_MAX - 1);
        limits.leave(&controller);
        let (_, mut ended) = enter(998);
        assert!(is_open(&mut ended), "a new controller is kept out");
        let places = limits.places.lock().unwrap();
        assert_eq!(places.iter().filter(|place| place.client.user() == 998).count(), 1);
    }

    fn client(limits: &Arc<Limits>) -> Client {
        client_of(limits, 0)
    }

    #[test]
    fn what_is_not_read_is_bounded_for_all_together() {
        let limits = Arc::default();
        let (one, other) = (client(&limits), client(&limits));
        one.add(ANSWERS_BYTES_MAX - 10).unwrap();
        other.add(10).unwrap();
        assert!(other.add(1).is_err());
        one.take(5);
        other.add(5).unwrap();
        one.close();
        assert!(one.add(1).is_err(), "there is no reader");
        other.take(20);
        assert_eq!(limits.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_answer_that_is_larger_than_all_is_sent_alone() {
        let limits = Arc::default();
        let (one, other) = (client(&limits), client(&limits));
        one.add(2 * ANSWERS_BYTES_MAX).unwrap();
        assert!(other.add(1).is_err());
        one.take(2 * ANSWERS_BYTES_MAX + 9);
        other.add(1).unwrap();
    }

    #[test]
    fn a_client_is_too_slow_by_its_oldest_answer() {
        let slow = client(&Arc::default());
        slow.add(10).unwrap();
        slow.owed.lock().unwrap().since = Instant::now().checked_sub(2 * ANSWER_TIMEOUT);
        assert!(slow.is_too_slow());
        slow.take(10);
        assert!(!slow.is_too_slow());
    }
}
