//! Real sockets of a namespace, in each state of a connection: the program finds them when the
//! kernel runs it there.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};
use testnet::{Namespace, raw_socket, receive};
use wire::checksum;

use super::{Family, V4, V6};

const PORT: u16 = 80;
const TCP: u32 = 6;
const SYN_AND_ACK: u8 = 0x12;

/// Of a server's buffer for what it receives.
const WIDE_BYTES: usize = 64 << 20;

/// What the backend knows of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Established,
    /// A SYN was answered.
    Handshake,
    /// TIME_WAIT.
    Closed,
    /// A SYN was answered by a cookie.
    Cookie,
    /// Nothing.
    Unknown,
    /// With a window of tens of megabytes.
    Wide,
    /// A SYN with data was answered (RFC 7413).
    FastOpen,
}
pub use State::{Closed, Cookie, Established, FastOpen, Handshake, Unknown, Wide};

/// Those that the model knows.
pub const STATES: [State; 5] = [Established, Handshake, Closed, Cookie, Unknown];

/// A connection to the VIP, and the numbers that its next segment has.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub family: Family,
    pub state: State,
    pub client_port: u16,
    pub sequence: u32,
    pub acknowledged: u32,
}

/// A connection of each state and family; of those that the model does not know, apart.
pub struct Sockets {
    pub connections: Vec<Connection>,
    pub unmodelled: Vec<Connection>,
    _open: Vec<(TcpListener, Vec<TcpStream>)>,
}

impl Connection {
    /// The ports of a segment from the client.
    pub fn ports(&self) -> (u16, u16) {
        (self.client_port, PORT)
    }
}

/// A namespace with the VIPs and a client's addresses on lo. The client has no
/// sockets for the SYNs that it sends by hand: its RSTs are dropped.
pub fn namespace() -> Namespace {
    let namespace = Namespace::new("sockets");
    for family in [V4, V6] {
        for address in [client(family), vip(family)] {
            namespace.add_own(address);
        }
    }
    namespace.run("nft add table inet test");
    namespace.run("nft add chain inet test output { type filter hook output priority 0 ; }");
    namespace.run("nft add rule inet test output tcp flags rst drop");
    namespace
}

fn client(family: Family) -> IpAddr {
    if family == V4 { "10.0.0.77" } else { "2001:db8::4d" }.parse().unwrap()
}

pub fn vip(family: Family) -> IpAddr {
    if family == V4 { "10.0.0.200" } else { "2001:db8::c8" }.parse().unwrap()
}

impl Sockets {
    /// Makes them, in the namespace of the calling thread.
    pub fn new(namespace: &Namespace) -> Sockets {
        let mut sockets =
            Sockets { connections: Vec::new(), unmodelled: Vec::new(), _open: Vec::new() };
        // Without a cookie, and for all listeners.
        namespace.run("sysctl -qw net.ipv4.tcp_fastopen=1539");
        for family in [V4, V6] {
            let heard = raw(family);
            // As many programs have it.
            let listener = multipath_listener(family);
            let (near, far) = connect(family, &listener);
            let (closed_near, closed_far) = connect(family, &listener);
            sockets.enter(family, Established, near.local_addr().unwrap().port(), &heard);
            let port = closed_near.local_addr().unwrap().port();
            sockets.enter(family, Closed, port, &heard);
            close(closed_far, closed_near);
            // Of a forged or late SYN, and by a cookie: by hand.
            namespace.run("sysctl -qw net.ipv4.tcp_syncookies=1");
            send_syn(family, 5001, b"");
            sockets.enter(family, Handshake, 5001, &heard);
            namespace.run("sysctl -qw net.ipv4.tcp_syncookies=2");
            send_syn(family, 5002, b"");
            sockets.enter(family, Cookie, 5002, &heard);
            namespace.run("sysctl -qw net.ipv4.tcp_syncookies=1");
            set_socket_recv_buffer_size_force(&listener, WIDE_BYTES).unwrap();
            let wide = connect(family, &listener);
            sockets.enter(family, Wide, wide.0.local_addr().unwrap().port(), &heard);
            // Nobody accepts this one.
            send_syn(family, 5004, b"request");
            sockets.enter(family, FastOpen, 5004, &heard);
            let (sequence, acknowledged) = (1_000_000, 2_000_000);
            let state = Unknown;
            sockets.connections.push(Connection {
                family,
                state,
                client_port: 5003,
                sequence,
                acknowledged,
            });
            sockets._open.push((listener, vec![near, far, wide.0, wide.1]));
        }
        sockets
    }

    /// Enters a connection whose SYN/ACK was heard.
    fn enter(&mut self, family: Family, state: State, client_port: u16, heard: &OwnedFd) {
        let (theirs, ours) = syn_ack(heard, family, client_port);
        // Both have sent a FIN, which counts as a byte.
        let fin = u32::from(state == Closed);
        let sequence = ours.wrapping_add(fin);
        let acknowledged = theirs.wrapping_add(1 + fin);
        let connections = match STATES.contains(&state) {
            true => &mut self.connections,
            false => &mut self.unmodelled,
        };
        connections.push(Connection { family, state, client_port, sequence, acknowledged });
    }
}

/// With Multipath TCP, as Go's are by default: its handshakes are sockets of another kind.
fn multipath_listener(family: Family) -> TcpListener {
    const IPPROTO_MPTCP: u32 = 262;
    let protocol = rustix::net::Protocol::from_raw(IPPROTO_MPTCP.try_into().unwrap());
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = socket_with(raw_family(family), kind, flags, Some(protocol)).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(vip(family), PORT)).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    socket.into()
}

fn connect(family: Family, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let socket = socket_with(raw_family(family), SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.unwrap();
    // Else the kernel takes the VIP itself as the source.
    rustix::net::bind(&socket, &SocketAddr::new(client(family), 0)).unwrap();
    rustix::net::connect(&socket, &SocketAddr::new(vip(family), PORT)).unwrap();
    let near = TcpStream::from(socket);
    let (far, from) = listener.accept().unwrap();
    assert_eq!(from, near.local_addr().unwrap());
    (near, far)
}

/// The backend closes first: its socket stays in TIME_WAIT.
fn close(backend: TcpStream, mut client: TcpStream) {
    drop(backend);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut client, &mut rest).unwrap();
}

fn raw_family(family: Family) -> AddressFamily {
    if family == V4 { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn raw(family: Family) -> OwnedFd {
    let socket = raw_socket(raw_family(family), TCP);
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(3))).unwrap();
    socket
}

/// Sequence number and acknowledgement of the SYN/ACK to this port.
fn syn_ack(heard: &OwnedFd, family: Family, client_port: u16) -> (u32, u32) {
    let mut bytes = [0; 200];
    loop {
        let len = receive(heard, &mut bytes).expect("a SYN/ACK");
        // Raw sockets of IPv4 give the IP header, too.
        let tcp = if family == V4 { &bytes[20..len] } else { &bytes[..len] };
        let ports = (u16::from_be_bytes([tcp[0], tcp[1]]), u16::from_be_bytes([tcp[2], tcp[3]]));
        if ports == (PORT, client_port) && tcp[13] == SYN_AND_ACK {
            let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
            return (number(4), number(8));
        }
    }
}

fn send_syn(family: Family, port: u16, data: &[u8]) {
    let (source, to) = (client(family), vip(family));
    let mut segment = vec![0; 20];
    segment[..2].copy_from_slice(&port.to_be_bytes());
    segment[2..4].copy_from_slice(&PORT.to_be_bytes());
    segment[4..8].copy_from_slice(&7_000_000_u32.to_be_bytes());
    segment[12..16].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    segment.extend(data);
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let sum = checksum::pseudo_header(&octets(source), &octets(to), TCP as u8, segment.len())
        + checksum::sum(&segment);
    segment[16..18].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    let socket = raw(family);
    rustix::net::bind(&socket, &SocketAddr::new(source, 0)).unwrap();
    sendto(&socket, &segment, SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
}
