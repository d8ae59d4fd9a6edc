//! A model of backends: their agents, which parse the load balancers' packets, and their
//! kernels' sockets.

use std::collections::HashMap;
use std::net::IpAddr;

use etherparse::PacketBuilder;
use plan::proto;
use wire::tunnel::geneve;
use wire::tunnel::route_option::RouteOption;

use super::VIP;

/// A client's address and port.
pub type Flow = (u32, u16);

/// What a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet {
    Syn,
    Data { ack: u32 },
    Fin { ack: u32 },
    Datagram,
}

/// What it gets for it, and from which backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    SynAck { isn: u32 },
    Taken { by: usize },
    Reset,
}

/// What a backend's kernel and its agent have on a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    SynReceived {
        isn: u32,
    },
    Established,
    /// UDP: the agent has seen the flow here.
    Seen,
}

/// Backends with their agents.
#[derive(Default)]
pub struct Backends {
    pub addresses: Vec<IpAddr>,
    pub sockets: Vec<HashMap<Flow, Socket>>,
    /// Of the next SYN/ACK.
    isn: u32,
    pub passed_on: u64,
}

impl Backends {
    pub fn new(message: &proto::Plan) -> Backends {
        let addresses: Vec<IpAddr> =
            message.backends.iter().map(|backend| backend.address.parse().unwrap()).collect();
        let sockets = vec![HashMap::new(); addresses.len()];
        Backends { addresses, sockets, ..Backends::default() }
    }

    fn index(&self, address: IpAddr) -> usize {
        self.addresses.iter().position(|own| *own == address).expect("an agent's address")
    }

    /// A frame of a load balancer, from agent to agent until one delivers it.
    pub fn receive(&mut self, frame: &[u8]) -> Answer {
        let (to, mut option, inner) = decode(frame);
        let (flow, packet) = read(inner);
        let mut at = self.index(to);
        while !self.is_here(at, flow, packet, option.as_ref()) {
            let passed = option.as_mut().expect("without one it is here");
            assert!(passed.hop_limit > 0, "a chain is longer than its hop limit");
            let next = passed.addresses.remove(0);
            passed.hop_limit -= 1;
            if packet == Packet::Datagram && !passed.returns {
                passed.addresses.push(self.addresses[at]);
                passed.returns = true;
            }
            option = parse_only(&passed.emit());
            self.passed_on += 1;
            at = self.index(next);
        }
        self.deliver(at, flow, packet)
    }

    /// Whether the agent delivers the packet, rather than passing it on.
    fn is_here(&self, at: usize, flow: Flow, packet: Packet, option: Option<&RouteOption>) -> bool {
        if packet == Packet::Syn || option.is_none_or(|option| option.addresses.is_empty()) {
            return true;
        }
        match (self.sockets[at].get(&flow), packet) {
            (Some(Socket::SynReceived { isn }), Packet::Data { ack } | Packet::Fin { ack }) => {
                ack == isn + 1
            }
            (socket, _) => socket.is_some(),
        }
    }

    fn deliver(&mut self, at: usize, flow: Flow, packet: Packet) -> Answer {
        let sockets = &mut self.sockets[at];
        match (packet, sockets.get(&flow).copied()) {
            (Packet::Syn, None) => {
                self.isn += 1000;
                sockets.insert(flow, Socket::SynReceived { isn: self.isn });
                Answer::SynAck { isn: self.isn }
            }
            (Packet::Syn, Some(Socket::SynReceived { isn })) => Answer::SynAck { isn },
            // A challenge ACK.
            (Packet::Syn, Some(_)) => Answer::Taken { by: at },
            (Packet::Datagram, _) => {
                sockets.insert(flow, Socket::Seen);
                Answer::Taken { by: at }
            }
            (Packet::Data { ack } | Packet::Fin { ack }, Some(Socket::SynReceived { isn }))
                if ack != isn + 1 =>
            {
                Answer::Reset
            }
            (Packet::Data { .. }, Some(_)) => {
                sockets.insert(flow, Socket::Established);
                Answer::Taken { by: at }
            }
            (Packet::Fin { .. }, Some(_)) => {
                sockets.remove(&flow);
                Answer::Taken { by: at }
            }
            (Packet::Data { .. } | Packet::Fin { .. }, None) => Answer::Reset,
        }
    }
}

/// Outer destination, route option and inner packet.
fn decode(frame: &[u8]) -> (IpAddr, Option<RouteOption>, &[u8]) {
    let (to, datagram): (IpAddr, _) = match frame[14] >> 4 {
        4 => (<[u8; 4]>::try_from(&frame[30..34]).unwrap().into(), &frame[34..]),
        _ => (<[u8; 16]>::try_from(&frame[38..54]).unwrap().into(), &frame[54..]),
    };
    let header = geneve::parse_with_options(&datagram[8..]).unwrap();
    let inner = &datagram[8 + geneve::HEADER_BYTES + header.options.len()..];
    (to, parse_only(header.options), inner)
}

fn parse_only(options: &[u8]) -> Option<RouteOption> {
    let option = geneve::options(options).next()?.unwrap();
    Some(RouteOption::parse(&option).unwrap().unwrap())
}

/// Whose an inner packet is, and what it is: IPv4 without options.
fn read(inner: &[u8]) -> (Flow, Packet) {
    let word = |at: usize| u32::from_be_bytes(inner[at..at + 4].try_into().unwrap());
    let flow = (word(12), u16::from_be_bytes([inner[20], inner[21]]));
    let packet = match (inner[9], inner[33]) {
        (17, _) => Packet::Datagram,
        (_, 0x02) => Packet::Syn,
        (_, 0x11) => Packet::Fin { ack: word(28) },
        _ => Packet::Data { ack: word(28) },
    };
    (flow, packet)
}

pub fn frame((client, port): Flow, packet: Packet) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(client.to_be_bytes(), VIP, 60);
    let mut frame = Vec::new();
    let tcp = match packet {
        Packet::Datagram => {
            ip.udp(port, 80).write(&mut frame, b"question").unwrap();
            return frame;
        }
        Packet::Syn => ip.tcp(port, 80, 1, 1024).syn(),
        Packet::Data { ack } => ip.tcp(port, 80, 2, 1024).ack(ack),
        Packet::Fin { ack } => ip.tcp(port, 80, 2, 1024).ack(ack).fin(),
    };
    tcp.write(&mut frame, b"x").unwrap();
    frame
}
