//! A route netlink socket: requests with their answers, and notifications.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket as Netlink, SocketAddr};
use rustix::fd::{AsFd, BorrowedFd};

/// Multicast groups of the kernel's `enum rtnetlink_groups`: everything that
/// can change where a frame goes. Addresses and rules are among them because
/// routes vanish with them without a notification of their own.
const GROUPS: [u32; 9] = [
    1,  // RTNLGRP_LINK
    3,  // RTNLGRP_NEIGH
    5,  // RTNLGRP_IPV4_IFADDR
    7,  // RTNLGRP_IPV4_ROUTE
    8,  // RTNLGRP_IPV4_RULE
    9,  // RTNLGRP_IPV6_IFADDR
    11, // RTNLGRP_IPV6_ROUTE
    19, // RTNLGRP_IPV6_RULE
    32, // RTNLGRP_NEXTHOP
];

/// Bytes of notifications the kernel may hold for us: a reload of a full
/// routing table is some hundred thousand messages, and after an overrun we
/// read everything anew anyway.
const NOTIFICATION_BYTES: i32 = 4 << 20;

/// Asks, one request at a time.
pub struct Requests {
    socket: Netlink,
    sequence: u32,
}

impl Requests {
    /// In the network namespace of the calling thread.
    pub fn open() -> io::Result<Requests> {
        let mut socket = Netlink::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Requests { socket, sequence: 0 })
    }

    /// Everything of a kind.
    pub fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.exchange(message, NLM_F_DUMP)
    }

    /// One request, answered by messages (for a get) or by success alone.
    pub fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.exchange(message, flags | NLM_F_ACK)
    }

    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        self.collect()
    }

    /// Reads until the answer to the latest request is complete.
    fn collect(&self) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for message in messages(&datagram) {
                if message.sequence_number() != self.sequence {
                    continue;
                }
                match parse(&message)? {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Error(_) => return Ok(answers),
                    _ => {}
                }
            }
        }
    }
}

/// What a notification says, as far as it is of interest.
pub enum Notification {
    /// About a link or a neighbour: to be entered in what is known of them.
    Message(Box<RouteNetlinkMessage>),
    /// Routes, rules, addresses: to be read anew.
    RoutesChanged,
    /// Notifications were lost, or one could not be read: start afresh.
    Lost,
}

/// Listens to the kernel's multicast groups.
pub struct Notifications {
    socket: Netlink,
}

impl Notifications {
    pub(crate) fn open() -> io::Result<Notifications> {
        let mut socket = Netlink::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(NOTIFICATION_BYTES)?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        Ok(Notifications { socket })
    }

    /// To wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// All that has come, in order.
    pub fn drain(&self, mut take: impl FnMut(Notification)) -> io::Result<()> {
        loop {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => {
                    messages(&datagram).for_each(|message| take(classify(&message)))
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_overrun(&error) => take(Notification::Lost),
                Err(error) => return Err(error),
            }
        }
    }
}

/// ENOBUFS: the socket's buffer was full and messages are gone.
fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

fn classify(message: &NetlinkBuffer<&[u8]>) -> Notification {
    match message.message_type() {
        // RTM_NEWLINK, RTM_DELLINK, RTM_NEWNEIGH, RTM_DELNEIGH
        16 | 17 | 28 | 29 => match parse(message) {
            Ok(NetlinkPayload::InnerMessage(message)) => Notification::Message(Box::new(message)),
            _ => Notification::Lost,
        },
        _ => Notification::RoutesChanged,
    }
}

fn parse(message: &NetlinkBuffer<&[u8]>) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
    let bytes = &message.clone().into_inner()[..message.length() as usize];
    let parsed = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes);
    parsed
        .map(|message| message.payload)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

/// The messages of one datagram, each padded to four bytes.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        let padded = (message.length() as usize).next_multiple_of(4);
        datagram = &datagram[padded.min(datagram.len())..];
        Some(message)
    })
}
