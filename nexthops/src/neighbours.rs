//! The kernel's neighbour table: its contents, and our managed entries in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage,
    NeighbourState,
};
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::Mac;
use crate::socket::Requests;

/// Marks the entries that we make (`ip neigh` shows `proto 71`), so that a
/// forwarder recognises those that a killed one left behind.
const OUR_PROTOCOL: u8 = b'G';

/// A neighbour: on which interface, which address.
pub type Key = (u32, IpAddr);

/// What the kernel knows of one neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    state: NeighbourState,
    mac: Option<Mac>,
    managed: bool,
    ours: bool,
}

impl Neighbour {
    /// The address to send to, where the kernel would use it too (its
    /// NUD_VALID): an entry under renewed probing still counts.
    pub fn mac(&self) -> Option<Mac> {
        match self.state {
            NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None => None,
            _ => self.mac,
        }
    }

    pub fn state(&self) -> &'static str {
        match self.state {
            NeighbourState::Incomplete => "incomplete (no answer yet)",
            NeighbourState::Failed => "failed (does not answer)",
            NeighbourState::None => "not probed yet",
            _ => "without an Ethernet address",
        }
    }

    /// Set by hand or needing no resolution: the kernel must not be asked to
    /// manage it, that would make it an ordinary entry.
    fn is_fixed(&self) -> bool {
        matches!(self.state, NeighbourState::Permanent | NeighbourState::Noarp)
    }
}

/// The neighbours of all interfaces.
#[derive(Debug, Default)]
pub struct Neighbours {
    known: BTreeMap<Key, Neighbour>,
    refused: BTreeMap<Key, String>,
}

impl Neighbours {
    pub fn read(requests: &mut Requests) -> io::Result<Neighbours> {
        let mut neighbours = Neighbours::default();
        for answer in
            requests.dump(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()))?
        {
            neighbours.note(&answer);
        }
        Ok(neighbours)
    }

    /// Enters a message about a neighbour.
    pub fn note(&mut self, message: &RouteNetlinkMessage) {
        match message {
            RouteNetlinkMessage::NewNeighbour(message) => {
                if let Some((key, neighbour)) = read(message) {
                    self.known.insert(key, neighbour);
                }
            }
            RouteNetlinkMessage::DelNeighbour(message) => {
                if let Some((key, _)) = read(message) {
                    self.known.remove(&key);
                }
            }
            _ => {}
        }
    }

    pub fn get(&self, key: &Key) -> Option<&Neighbour> {
        self.known.get(key)
    }

    /// Why the kernel would not manage it.
    pub fn refusal(&self, key: &Key) -> Option<&str> {
        self.refused.get(key).map(String::as_str)
    }

    /// True while the kernel refuses some: worth another try.
    pub fn has_refusals(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Has the kernel keep exactly `needed` resolved on our behalf.
    pub fn manage(&mut self, requests: &mut Requests, needed: &BTreeSet<Key>) {
        self.release(requests, |key| !needed.contains(key));
        self.refused.clear();
        for key in needed {
            if self.known.get(key).is_some_and(|known| known.managed || known.is_fixed()) {
                continue;
            }
            if let Err(error) = add(requests, key) {
                self.refused.insert(*key, explain(&error));
            }
        }
    }

    /// Takes our entries out of the kernel's table.
    pub fn release(&mut self, requests: &mut Requests, leaves: impl Fn(&Key) -> bool) {
        let ours = self.known.iter().filter(|(key, known)| known.ours && leaves(key));
        for key in ours.map(|(key, _)| *key).collect::<Vec<_>>() {
            // It may have gone with its interface in the meantime.
            if let Err(error) = remove(requests, &key) {
                tracing::debug!(neighbour = %key.1, interface = key.0, %error, "neighbour entry not removed");
            }
            self.known.remove(&key);
        }
    }
}

fn read(message: &NeighbourMessage) -> Option<(Key, Neighbour)> {
    let header = &message.header;
    if header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let mut address = None;
    let mut neighbour = Neighbour { state: header.state, mac: None, managed: false, ours: false };
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4))
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6))
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                neighbour.mac = bytes.as_slice().try_into().ok()
            }
            NeighbourAttribute::ExtFlags(flags) => {
                neighbour.managed = flags.contains(NeighbourExtFlags::Managed)
            }
            NeighbourAttribute::Protocol(protocol) => {
                neighbour.ours = u8::from(*protocol) == OUR_PROTOCOL
            }
            _ => {}
        }
    }
    Some(((header.ifindex, address?), neighbour))
}

/// As `ip neigh replace ADDRESS dev INTERFACE managed` does.
fn add(requests: &mut Requests, key: &Key) -> io::Result<()> {
    let mut message = entry(key);
    message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
    message.attributes.push(NeighbourAttribute::Protocol(RouteProtocol::from(OUR_PROTOCOL)));
    requests.ask(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE).map(drop)
}

fn remove(requests: &mut Requests, key: &Key) -> io::Result<()> {
    requests.ask(RouteNetlinkMessage::DelNeighbour(entry(key)), 0).map(drop)
}

fn entry((interface, address): &Key) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = *interface;
    let (family, destination) = match address {
        IpAddr::V4(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(*v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, NeighbourAddress::Inet6(*v6)),
    };
    message.header.family = family;
    message.attributes.push(NeighbourAttribute::Destination(destination));
    message
}

/// The default table holds 1,024 entries: a machine with more backends on its
/// own link meets this first.
fn explain(error: &io::Error) -> String {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOBUFS) => {
            "the kernel's neighbour table is full: raise net.ipv4.neigh.default.gc_thresh3 (net.ipv6 for IPv6)".into()
        }
        Some(Errno::PERM) => "entering a neighbour was not permitted: the forwarder needs CAP_NET_ADMIN".into(),
        _ => format!("entering the neighbour failed: {error}"),
    }
}
