//! The TCP connections and listening sockets in this network namespace, as listed by the
//! kernel (sock_diag(7)).

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use wire::ip::{self, AddressBits};
use wire::{Family, FlowKey, Protocol};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// States whose packets the kernel has use for: all but TIME_WAIT, SYN_SENT (which a
/// server has not), CLOSE and LISTEN, as bits of `enum tcp_state`.
const STATES: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12;

/// Of these, connections that both ends may use.
const ESTABLISHED: u32 = 1 << 1;

/// Where the state is in `struct inet_diag_msg`, and what it is of a handshake that the
/// client has not answered.
const STATE_AT: usize = 1;
const SYN_RECV: u8 = 3;

/// A socket that clients' first packets go to: TCP_LISTEN, and for UDP TCP_CLOSE, which
/// the kernel has for sockets without a peer.
const LISTENING: [(Protocol, u32); 2] = [(Protocol::TCP, 1 << 10), (Protocol::UDP, 1 << 7)];

/// Sockets are listed again after this many times what it took: a half of a hundredth of a
/// processor.
pub const PAUSE: u32 = 2 * 100;

/// Bytes of `struct nlmsghdr` and `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 16 + 56;

/// Where the addresses are in `struct inet_diag_msg`, and how far they reach.
const PORTS_AT: usize = 4;
const LOCAL_AT: usize = 8;
const REMOTE_AT: usize = 24;
const MESSAGE_BYTES: usize = 40;

/// Of a socket that listens: the connections that wait there to be accepted, and the most.
const QUEUED_AT: usize = 56;
const QUEUE_MAX_AT: usize = 60;

/// What the kernel is to say of a socket beside its addresses, as bits of
/// `1 << (INET_DIAG_... - 1)`. Trap: without INET_DIAG_INFO it says nothing of the upper
/// layer either (Linux 6.18).
const NOTHING_MORE: u8 = 0;
const INET_DIAG_INFO: u8 = 1 << 1;

/// Of linux/inet_diag.h and linux/mptcp.h: attributes behind `struct inet_diag_msg`, the
/// upper layer of a socket, and there the token of Multipath TCP.
const INFO_AT: usize = 72;
const INET_DIAG_ULP_INFO: u16 = 19;
const INET_ULP_INFO_MPTCP: u16 = 3;
const MPTCP_SUBFLOW_ATTR_TOKEN_LOC: u16 = 2;
const NLA_TYPE_MASK: u16 = 0x3fff;

/// A socket that waits for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// What it is bound to; unspecified: all of this machine's. Of IPv6 that is all of
    /// IPv4, too, unless the program chose otherwise.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

/// All sockets that wait for clients.
pub fn listeners() -> io::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for (protocol, states) in LISTENING {
        let listener = |flow: FlowKey| {
            let at = destination(&flow);
            Listener { protocol, address: at.ip(), port: at.port() }
        };
        listeners.extend(list(protocol, states)?.into_iter().map(listener));
    }
    Ok(listeners)
}

/// All connections, each as the flow of its client's packets, and whether the client has
/// answered its handshake.
pub fn connections() -> io::Result<Vec<(FlowKey, bool)>> {
    let mut connections = Vec::new();
    dump(Protocol::TCP, STATES, NOTHING_MORE, |body| {
        connections.extend(flow(body).map(|flow| (flow, body[STATE_AT] != SYN_RECV)));
    })?;
    Ok(connections)
}

/// The tokens of all connections of Multipath TCP, which their subflows have.
pub fn tokens() -> io::Result<HashSet<u32>> {
    let mut tokens = HashSet::new();
    dump(Protocol::TCP, STATES, INET_DIAG_INFO, |body| tokens.extend(token(body)))?;
    Ok(tokens)
}

/// Where clients of established connections reached this machine.
pub fn open() -> io::Result<Vec<std::net::SocketAddr>> {
    let mut open = Vec::new();
    dump(Protocol::TCP, ESTABLISHED, NOTHING_MORE, |body| {
        open.extend(flow(body).map(|flow| destination(&flow)));
    })?;
    Ok(open)
}

/// What listens for TCP, with the connections that wait to be accepted, and how many may.
pub fn accept_queues() -> io::Result<Vec<(std::net::SocketAddr, u32, u32)>> {
    let mut queues = Vec::new();
    let [(protocol, states), _] = LISTENING;
    dump(protocol, states, NOTHING_MORE, |body| {
        let number = |at: usize| body.get(at..)?.first_chunk().map(|n| u32::from_ne_bytes(*n));
        if let (Some(flow), Some(waiting), Some(most)) =
            (flow(body), number(QUEUED_AT), number(QUEUE_MAX_AT))
        {
            queues.push((destination(&flow), waiting, most));
        }
    })?;
    Ok(queues)
}

/// Where the client's packets go.
pub fn destination(flow: &FlowKey) -> std::net::SocketAddr {
    std::net::SocketAddr::new(ip::address(flow.family, flow.destination), flow.destination_port)
}

fn list(protocol: Protocol, states: u32) -> io::Result<Vec<FlowKey>> {
    let mut flows = Vec::new();
    dump(protocol, states, NOTHING_MORE, |body| flows.extend(flow(body)))?;
    flows.iter_mut().for_each(|flow| flow.protocol = protocol);
    Ok(flows)
}

/// Calls `each` with every socket's message.
fn dump(
    protocol: Protocol,
    states: u32,
    extensions: u8,
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    for family in [AF_INET, AF_INET6] {
        socket.send(&request(family, protocol, states, extensions), 0)?;
        while !read(&socket.recv_from_full()?.0, &mut each)? {}
    }
    Ok(())
}

fn request(family: u8, protocol: Protocol, states: u32, extensions: u8) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes[16..19].copy_from_slice(&[family, protocol.0, extensions]);
    bytes[20..24].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// Reads the messages of a datagram; true if it was the last.
fn read(mut datagram: &[u8], each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    while let Ok(message) = NetlinkBuffer::new_checked(datagram) {
        let len = message.length() as usize;
        let body = &datagram[16..len];
        match message.message_type() {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(error(body)),
            _ => each(body),
        }
        datagram = &datagram[len.next_multiple_of(4).min(datagram.len())..];
    }
    Ok(false)
}

fn error(body: &[u8]) -> io::Error {
    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    io::Error::from_raw_os_error(-code)
}

/// The flow of a connection; None: the message is cut off.
fn flow(body: &[u8]) -> Option<FlowKey> {
    let body = body.get(..MESSAGE_BYTES)?;
    let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let bits = |at: usize| AddressBits::from_be_bytes(body[at..at + 16].try_into().expect("16"));
    let (family, destination, source) = match body[0] {
        AF_INET => (Family::V4, bits(LOCAL_AT) >> 96, bits(REMOTE_AT) >> 96),
        // A socket of IPv6 may have a connection of IPv4: its addresses are mapped.
        _ if bits(LOCAL_AT) >> 32 == 0xffff => {
            let low = |bits: AddressBits| bits & 0xffff_ffff;
            (Family::V4, low(bits(LOCAL_AT)), low(bits(REMOTE_AT)))
        }
        _ => (Family::V6, bits(LOCAL_AT), bits(REMOTE_AT)),
    };
    Some(FlowKey {
        family,
        protocol: Protocol::TCP,
        source,
        destination,
        source_port: port(PORTS_AT + 2),
        destination_port: port(PORTS_AT),
    })
}

/// The token of a subflow's connection here; None: it is another socket.
fn token(body: &[u8]) -> Option<u32> {
    let layer = attribute(body.get(INFO_AT..)?, INET_DIAG_ULP_INFO)?;
    let subflow = attribute(layer, INET_ULP_INFO_MPTCP)?;
    let token = attribute(subflow, MPTCP_SUBFLOW_ATTR_TOKEN_LOC)?;
    token.first_chunk().map(|token| u32::from_ne_bytes(*token))
}

/// The first netlink attribute of a kind.
fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some(([l0, l1, k0, k1], _)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        if u16::from_ne_bytes([*k0, *k1]) & NLA_TYPE_MASK == kind {
            return bytes.get(4..length);
        }
        bytes = bytes.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::time::Duration;

    use testnet::{Namespace, root_or_skip};

    use super::*;

    /// As sockets have it.
    fn ends(flow: &FlowKey) -> (SocketAddr, SocketAddr) {
        let source = ip::address(flow.family, flow.source);
        assert_eq!(ip::address_bits(source), flow.source);
        (SocketAddr::new(source, flow.source_port), destination(flow))
    }

    #[test]
    fn what_waits_for_clients_is_listed() {
        for address in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
            let address: IpAddr = address.parse().unwrap();
            let stream = TcpListener::bind((address, 0)).unwrap();
            let datagrams = UdpSocket::bind((address, 0)).unwrap();
            let connected = TcpStream::connect(stream.local_addr().unwrap()).unwrap();
            let listeners = listeners().unwrap();
            let has = |protocol, at: SocketAddr| {
                listeners.contains(&Listener { protocol, address: at.ip(), port: at.port() })
            };
            assert!(has(Protocol::TCP, stream.local_addr().unwrap()), "{address}");
            assert!(has(Protocol::UDP, datagrams.local_addr().unwrap()), "{address}");
            assert!(!has(Protocol::TCP, connected.local_addr().unwrap()), "{address}");
        }
    }

    #[test]
    fn connections_are_listed_from_the_clients_side_until_they_end() {
        for (listen, connect) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            let listener = TcpListener::bind(listen).unwrap();
            let server =
                SocketAddr::new(connect.parse().unwrap(), listener.local_addr().unwrap().port());
            let client = TcpStream::connect(server).unwrap();
            let accepted = listener.accept().unwrap();
            let expected = (client.local_addr().unwrap(), server);
            let count =
                || connections().unwrap().iter().filter(|(flow, _)| ends(flow) == expected).count();
            assert_eq!(count(), 1, "{listen}");
            drop(client);
            assert_eq!(count(), 1, "{listen}: half closed");
            drop(accepted);
            let open = |(flow, _): &(FlowKey, bool)| ends(flow).1 == server;
            assert!(!connections().unwrap().iter().any(open), "{listen}: listening only");
        }
    }

    #[test]
    fn a_handshake_that_its_client_has_not_answered_is_listed_apart() {
        if !root_or_skip("a_handshake_that_its_client_has_not_answered_is_listed_apart") {
            return;
        }
        let [server, client] = ["server", "client"].map(Namespace::new);
        testnet::link(&server, "eth0", &client, "eth0", 1);
        server.run("ip addr add 10.66.0.1/24 dev eth0");
        client.run("ip addr add 10.66.0.2/24 dev eth0");
        let listener = server.inside(|| TcpListener::bind("10.66.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let counts = || {
            let mut listed = server.inside(|| connections().unwrap());
            listed.retain(|(flow, _)| ends(flow).1 == address);
            [listed.len(), listed.iter().filter(|(_, is_answered)| *is_answered).count()]
        };
        let _stream = client.inside(|| TcpStream::connect(address).unwrap());
        assert_eq!(counts(), [1, 1]);
        // The next client does not get what it would answer.
        server.run("ip neigh replace 10.66.0.2 lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
        let timeout = Duration::from_millis(100);
        client.inside(|| TcpStream::connect_timeout(&address, timeout).unwrap_err());
        assert_eq!(counts(), [2, 1]);
    }
}
