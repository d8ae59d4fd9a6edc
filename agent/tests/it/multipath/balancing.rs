//! The load balancer's treatment of packets from clients.

use std::collections::VecDeque;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nic::Tun;
use sha2::{Digest, Sha256};
use wire::tcp_options::{self, Signal, Version};
use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;
use wire::tunnel::route_option::RouteOption;
use wire::{EtherType, checksum};

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;

/// The bucket of all five-tuples.
const BUCKET: u16 = 7;

/// Where its tunnels begin, and backends' agents are.
const OWN: &str = "10.66.0.1";
pub const BACKEND: &str = "10.66.0.2";
pub const OTHER_BACKEND: &str = "10.66.3.2";

/// A packet of more bytes is fragmented, where any is.
const FRAGMENT_BYTES: usize = 800;
const MORE_V4: u16 = 0x2000;
const MORE_V6: u16 = 1;

/// Decides over a client's packet: whether it is lost, by its TCP header and payload.
type Loss = Box<dyn FnMut(&[u8]) -> bool + Send>;

pub struct Balancing {
    pub loses: Loss,
    /// Changes a client's packet, whose checksum it leaves right.
    pub forges: fn(&mut [u8]),
    /// A fixed key in the place of one of the connection's own.
    pub key: Option<u64>,
    pub delay: Duration,
    /// Keys that it chose.
    pub chosen: Vec<u64>,
    /// Where it sends packets.
    pub to: IpAddr,
    /// The backend of the five-tuple's bucket, which gets what says no bits, and ICMP; None:
    /// that one, and ICMP is lost.
    pub owner: Option<IpAddr>,
    /// Other agents that it names.
    pub addresses: Vec<IpAddr>,
    /// Clients' packets of more than [`FRAGMENT_BYTES`] come in two fragments.
    pub fragments: bool,
}

impl Balancing {
    pub fn new() -> Balancing {
        Balancing {
            loses: Box::new(|_| false),
            forges: |_| {},
            key: None,
            delay: Duration::ZERO,
            chosen: Vec::new(),
            to: BACKEND.parse().unwrap(),
            owner: None,
            addresses: Vec::new(),
            fragments: false,
        }
    }

    /// A client's packet as a backend gets it, and which one; None: it is lost.
    fn tunnelled(&mut self, packet: &[u8]) -> Option<(IpAddr, Vec<Vec<u8>>)> {
        if is_icmp(packet) {
            return Some((self.owner?, vec![self.encapsulated(packet)]));
        }
        if (self.loses)(segment_of(packet)?) {
            return None;
        }
        let mut packet = packet.to_vec();
        (self.forges)(&mut packet);
        let to = match tcp_options::signal(segment_of(&packet)?) {
            Ok(Signal::None) => self.owner.unwrap_or(self.to),
            _ => self.to,
        };
        let packets = if self.fragments { fragments(&packet) } else { vec![packet] };
        Some((to, packets.iter().map(|packet| self.encapsulated(packet)).collect()))
    }

    /// A packet in a tunnel to the backend.
    pub fn encapsulated(&mut self, packet: &[u8]) -> Vec<u8> {
        let is_v6 = packet[0] >> 4 == 6;
        let mut options = Vec::new();
        if !self.addresses.is_empty() {
            let addresses = self.addresses.iter().copied().collect();
            let route = RouteOption {
                returns: false,
                hop_limit: 4,
                bucket: Some(BUCKET),
                generation: 1,
                addresses,
            };
            options.extend(route.emit());
        }
        if let Some(tcp) = segment_of(packet)
            && tcp[13] & (SYN | ACK) == SYN
        {
            let key = match tcp_options::signal(tcp) {
                Ok(Signal::Capable { version: Version::V1, .. }) => Some(self.key(tcp)),
                _ => None,
            };
            let address = self.owner.unwrap_or(self.to);
            options.extend(MultipathOption { key, bucket: BUCKET, address }.emit());
        }
        let mut header = geneve::emit(if is_v6 { EtherType::IPV6 } else { EtherType::IPV4 });
        if !options.is_empty() {
            geneve::announce_critical_options(&mut header, options.len());
        }
        [&header[..], &options, packet].concat()
    }

    /// The same for the same ports and sequence number.
    fn key(&mut self, tcp: &[u8]) -> u64 {
        let digest = Sha256::digest(&tcp[..8]);
        let own = u64::from_be_bytes(digest[..8].try_into().unwrap());
        let key = self.key.unwrap_or(own);
        if !self.chosen.contains(&key) {
            self.chosen.push(key);
        }
        key
    }
}

/// A packet of IPv4 or IPv6 without options, in two if it is long.
fn fragments(packet: &[u8]) -> Vec<Vec<u8>> {
    if packet.len() <= FRAGMENT_BYTES {
        return vec![packet.to_vec()];
    }
    let header_bytes = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let (header, payload) = packet.split_at(header_bytes);
    let (first, later) = payload.split_at(FRAGMENT_BYTES / 2);
    if header_bytes == 20 {
        let offset = u16::try_from(first.len() / 8).unwrap();
        return vec![fragment_v4(header, MORE_V4, first), fragment_v4(header, offset, later)];
    }
    let sequence = &first[4..8]; // other segments are other packets
    let offset = u16::try_from(first.len()).unwrap();
    vec![
        fragment_v6(header, MORE_V6, sequence, first),
        fragment_v6(header, offset, sequence, later),
    ]
}

fn fragment_v4(header: &[u8], field: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = [header, payload].concat();
    let length = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[6..8].copy_from_slice(&field.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&packet[..20]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn fragment_v6(header: &[u8], field: u16, id: &[u8], payload: &[u8]) -> Vec<u8> {
    const FRAGMENT: u8 = 44;
    let [high, low] = field.to_be_bytes();
    let mut packet = [header, &[header[6], 0, high, low], id, payload].concat();
    let length = u16::try_from(packet.len() - header.len()).unwrap();
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet[6] = FRAGMENT;
    packet
}

/// TCP's header and payload; None: the packet has none, or is a fragment that does not begin
/// with it.
fn segment_of(packet: &[u8]) -> Option<&[u8]> {
    match packet[0] >> 4 {
        4 if packet[9] == 6 && (packet[6] & 0x1f, packet[7]) == (0, 0) => {
            Some(&packet[usize::from(packet[0] & 15) * 4..])
        }
        6 if packet[6] == 6 => Some(&packet[40..]),
        _ => None,
    }
}

/// True for ICMP from a host to a host.
fn is_icmp(packet: &[u8]) -> bool {
    const MULTICAST: u8 = 0xff;
    match packet[0] >> 4 {
        4 => packet[9] == 1,
        _ => packet[6] == 58 && packet[24] != MULTICAST,
    }
}

/// In the namespace of the calling thread, of which the TUN device is.
pub fn tunnel() -> UdpSocket {
    UdpSocket::bind((OWN, 0)).unwrap()
}

/// Sends on what the TUN device gives, in its order, until it is stopped.
pub fn start(
    tun: Tun,
    tunnel: UdpSocket,
    balancing: Arc<Mutex<Balancing>>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut waiting: VecDeque<(Instant, IpAddr, Vec<u8>)> = VecDeque::new();
        let mut bytes = [0; 2000];
        while !stop.load(Ordering::Relaxed) {
            let read = tun.read(&mut bytes);
            if let Ok(length) = read {
                let mut balancing = balancing.lock().unwrap();
                let due = Instant::now() + balancing.delay;
                let tunnelled = balancing.tunnelled(&bytes[..length]);
                let (to, sent) = tunnelled.unzip();
                waiting.extend(sent.into_iter().flatten().map(|sent| (due, to.unwrap(), sent)));
            }
            while waiting.front().is_some_and(|(due, ..)| *due <= Instant::now()) {
                let (_, to, sent) = waiting.pop_front().unwrap();
                tunnel.send_to(&sent, (to, geneve::PORT)).unwrap();
            }
            if read.is_err() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    })
}

/// True for the first that the closure is true for.
pub fn first(mut is_it: impl FnMut(&[u8]) -> bool) -> impl FnMut(&[u8]) -> bool {
    let mut is_over = false;
    move |tcp| {
        let now = !is_over && is_it(tcp);
        is_over |= now;
        now
    }
}

/// True for a SYN from a client that requests several paths.
pub fn is_capable_syn(tcp: &[u8]) -> bool {
    tcp[13] & (SYN | ACK) == SYN && matches!(tcp_options::signal(tcp), Ok(Signal::Capable { .. }))
}

/// Exchanges two words of an option of Multipath TCP that begins with these bytes, its
/// length at least, which leaves the checksum right.
fn swap(packet: &mut [u8], subtype: u8, lengths: std::ops::RangeInclusive<u8>, words_at: usize) {
    let found = packet.windows(3).position(|bytes| {
        bytes[0] == 30 && lengths.contains(&bytes[1]) && bytes[2] >> 4 == subtype
    });
    if let Some(at) = found {
        let (first, second) = packet[at + words_at..at + words_at + 4].split_at_mut(2);
        first.swap_with_slice(second);
    }
}

/// ACKs of MP_CAPABLE echo another key than they got.
pub fn forge_echo(packet: &mut [u8]) {
    swap(packet, 0, 20..=24, 12);
}

/// SYNs that join have another token.
pub fn forge_token(packet: &mut [u8]) {
    swap(packet, 1, 12..=12, 4);
}

/// ACKs that join have another HMAC.
pub fn forge_hmac(packet: &mut [u8]) {
    swap(packet, 1, 24..=24, 4);
}

/// RSTs have no timestamps, as other kernels than Linux send them.
pub fn take_timestamps_off_resets(packet: &mut [u8]) {
    const RST: u8 = 0x04;
    const NOP: u8 = 1;
    let (addresses, tcp_at) = match packet[0] >> 4 {
        4 => (12..20, usize::from(packet[0] & 15) * 4),
        _ => (8..40, 40),
    };
    let (ip, tcp) = packet.split_at_mut(tcp_at);
    if tcp[13] & RST == 0 {
        return;
    }
    let timestamps = tcp.windows(2).position(|option| option == [8, 10]);
    tcp[timestamps.unwrap()..][..10].fill(NOP);
    tcp[16..18].fill(0);
    let (source, destination) = ip[addresses.clone()].split_at(addresses.len() / 2);
    let sum = checksum::pseudo_header(source, destination, 6, tcp.len()) + checksum::sum(tcp);
    tcp[16..18].copy_from_slice(&checksum::finish(sum).to_be_bytes());
}
