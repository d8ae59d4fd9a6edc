//! The thread that serves `health.sock`: one packet in, one packet out. It holds at most
//! [`CLIENTS_MAX`] connections, answers one request of each in a round, and never waits for a
//! client.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use crate::observe::health::Health;
use crate::process::peer::{Peer, dispensable};
use crate::proto::HealthRequest;

/// Connections at a time: controller, speaker, and some to spare. One more takes
/// the place of the idlest connection of the user, and of that user's process,
/// that has the most.
pub const CLIENTS_MAX: usize = 16;

/// Between two rounds: bounds what clients that ask without end cost to
/// [`CLIENTS_MAX`] answers a millisecond, some tenth of a core.
const ROUND_PAUSE: Duration = Duration::from_millis(1);

/// A request has at most 11 bytes; a longer packet is none.
const REQUEST_BYTES_MAX: usize = 64;

struct Client {
    socket: OwnedFd,
    peer: Peer,
    asked: Instant,
}

/// Answers from now on, on a thread of its own.
pub fn answer(listener: OwnedFd, health: Arc<Health>) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("health".into());
    thread.spawn(move || {
        let mut clients = Vec::new();
        loop {
            round(&listener, &health, &mut clients);
            std::thread::sleep(ROUND_PAUSE);
        }
    })
}

/// Waits until anything comes, and deals with one request of each client.
fn round(listener: &OwnedFd, health: &Health, clients: &mut Vec<Client>) {
    let sockets = std::iter::once(listener).chain(clients.iter().map(|client| &client.socket));
    let mut polled: Vec<PollFd<'_>> =
        sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    if poll(&mut polled, None).is_err() {
        return; // interrupted
    }
    let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
    let mut of_clients = ready[1..].iter();
    clients.retain_mut(|client| {
        !*of_clients.next().expect("each was polled") || serve(client, health)
    });
    if ready[0] {
        accept(listener, clients);
    }
}

/// Answers one request; false: the connection is of no more use.
fn serve(client: &mut Client, health: &Health) -> bool {
    let mut packet = [0; REQUEST_BYTES_MAX];
    let length = match recv(&client.socket, &mut packet, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
        Ok((_, length)) => length,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
        Err(_) => return false,
    };
    let request = packet.get(..length).filter(|request| !request.is_empty());
    let Some(Ok(request)) = request.map(HealthRequest::decode) else { return false };
    client.asked = Instant::now();
    let answer = health.report(request.sequence).encode_to_vec();
    // Who lets answers pile up until there is no room is hung up on.
    send(&client.socket, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}

fn accept(listener: &OwnedFd, clients: &mut Vec<Client>) {
    let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
        return; // it went away again, or descriptors are short: the next round tries again
    };
    let Some(peer) = Peer::of(&socket) else { return };
    if clients.len() >= CLIENTS_MAX {
        let used = clients.iter().map(|client| (client.peer, client.asked));
        clients.swap_remove(dispensable(used).expect("there are clients"));
    }
    clients.push(Client { socket, peer, asked: Instant::now() });
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket_with,
    };

    use super::*;
    use crate::netlink::next_hops::LinksUp;
    use crate::observe::health::Helpers;
    use crate::proto;

    fn seqpacket() -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    struct Served {
        folder: tempfile::TempDir,
        health: Arc<Health>,
    }

    fn served() -> Served {
        let folder = tempfile::tempdir().unwrap();
        let listener = seqpacket();
        bind(&listener, &SocketAddrUnix::new(folder.path().join("health.sock")).unwrap()).unwrap();
        listen(&listener, 64).unwrap();
        let health = Arc::new(Health::new(LinksUp::default(), Helpers::default()));
        answer(listener, Arc::clone(&health)).unwrap();
        Served { folder, health }
    }

    impl Served {
        fn connect(&self) -> OwnedFd {
            let socket = seqpacket();
            let path = self.folder.path().join("health.sock");
            connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
            socket
        }
    }

    fn say(socket: &OwnedFd, sequence: u64) -> bool {
        let request = HealthRequest { sequence }.encode_to_vec();
        send(socket, &request, SendFlags::NOSIGNAL).is_ok()
    }

    /// None: hung up.
    fn hear(socket: &OwnedFd) -> Option<proto::Health> {
        let mut packet = [0; 4096];
        let length = recv(socket, &mut packet, RecvFlags::empty()).ok()?.1;
        (length > 0).then(|| proto::Health::decode(&packet[..length]).unwrap())
    }

    fn ask(socket: &OwnedFd, sequence: u64) -> Option<proto::Health> {
        say(socket, sequence).then(|| hear(socket))?
    }

    #[test]
    fn what_is_known_is_answered_with_the_requests_number() {
        let served = served();
        let client = served.connect();
        let first = ask(&client, 5).unwrap();
        assert_eq!((first.sequence, first.pid), (5, std::process::id()));
        assert_eq!((first.generation, first.phase()), (0, proto::HealthPhase::Running));
        assert!(first.threads.is_empty() && first.devices.is_empty(), "{first:?}");
        served.health.set_generation(42);
        served.health.set_interfaces([("eth9".to_owned(), 9)].into_iter());
        served.health.set_handing_over(true);
        let second = ask(&client, 6).unwrap();
        assert_eq!((second.generation, second.phase()), (42, proto::HealthPhase::HandingOver));
        // No test has seen that link.
        let down = proto::DeviceHealth { interface: "eth9".into(), up: false };
        assert_eq!(second.devices, [down]);
        served.health.set_stopping();
        assert_eq!(ask(&client, 7).unwrap().phase(), proto::HealthPhase::Stopping);
    }

    #[test]
    fn rubbish_ends_its_own_connection_only() {
        let served = served();
        let good = served.connect();
        for packet in [&[0xff; 8][..], &[0; REQUEST_BYTES_MAX + 1], &[]] {
            let bad = served.connect();
            send(&bad, packet, SendFlags::NOSIGNAL).unwrap();
            assert_eq!(hear(&bad), None, "{packet:?}");
        }
        assert!(ask(&good, 1).is_some());
    }

    /// Asks without end, and reads nothing.
    fn flood(socket: &OwnedFd) {
        let mut sequence = 0;
        while say(socket, sequence + 1) {
            sequence += 1;
        }
    }

    #[test]
    fn a_client_that_reads_nothing_is_hung_up_on_while_others_are_answered() {
        let served = served();
        let (deaf, good) = (served.connect(), served.connect());
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&deaf));
            for sequence in 1..=50 {
                assert!(ask(&good, sequence).is_some());
            }
            flood.join().unwrap();
        });
    }

    #[test]
    fn one_process_cannot_take_all_connections_from_another() {
        let served = served();
        // Another process with one connection, that asks when it is told to.
        let script = "import socket,sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])
for line in sys.stdin:
    s.send(b'\\x08\\x01'); print(len(s.recv(4096)), flush=True)";
        let mut other = Command::new("python3")
            .args(["-c", script])
            .arg(served.folder.path().join("health.sock"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut orders, answers) = (other.stdin.take().unwrap(), other.stdout.take().unwrap());
        let mut answers = io::BufRead::lines(io::BufReader::new(answers));
        let mut its_answer = || {
            io::Write::write_all(&mut orders, b"\n").unwrap();
            answers.next().unwrap().unwrap()
        };
        assert_ne!(its_answer(), "0");
        let mut ours: Vec<OwnedFd> = Vec::new();
        for _ in 0..5 * CLIENTS_MAX {
            ours.push(served.connect());
            assert!(ask(ours.last().unwrap(), 1).is_some());
        }
        assert_ne!(its_answer(), "0");
        let alive = ours.iter().filter(|socket| ask(socket, 2).is_some()).count();
        assert_eq!(alive, CLIENTS_MAX - 1);
        drop(orders);
        other.wait().unwrap();
    }
}
