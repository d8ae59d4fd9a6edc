//! The machine's links, as far as they carry our frames.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::Mac;
use crate::socket::Requests;

/// An interface of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's name of it.
    pub name: String,
    /// Its own address; None: not an Ethernet.
    pub mac: Option<Mac>,
    /// Largest IP packet.
    pub mtu: u32,
    /// Up, with a carrier.
    pub up: bool,
}

/// All links, by kernel index.
#[derive(Debug, Default)]
pub struct Links {
    links: BTreeMap<u32, Link>,
}

impl Links {
    /// As the kernel has them now.
    pub fn read(requests: &mut Requests) -> io::Result<Links> {
        let mut links = Links::default();
        for answer in requests.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
            links.note(&answer);
        }
        Ok(links)
    }

    /// Enters a message about a link; true if it was one.
    pub fn note(&mut self, message: &RouteNetlinkMessage) -> bool {
        match message {
            // A bridge reports its ports as links of its own family.
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link)
                if link.header.interface_family != AddressFamily::Unspec =>
            {
                true
            }
            RouteNetlinkMessage::NewLink(link) => {
                self.enter(link);
                true
            }
            RouteNetlinkMessage::DelLink(link) => {
                self.links.remove(&link.header.index);
                true
            }
            _ => false,
        }
    }

    /// The link of this index.
    pub fn get(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// Those that are up, with a carrier.
    pub fn up(&self) -> BTreeSet<u32> {
        self.links.iter().filter(|(_, link)| link.up).map(|(index, _)| *index).collect()
    }

    /// Ethernets that are up, but for our own devices: what answers come by.
    pub fn carrying(&self) -> impl Iterator<Item = u32> {
        let carries = |link: &Link| link.up && link.mac.is_some() && !link.name.starts_with("gw-");
        self.links.iter().filter(move |(_, link)| carries(link)).map(|(index, _)| *index)
    }

    /// What people call it.
    pub fn name(&self, index: u32) -> String {
        self.get(index).map_or_else(|| format!("interface {index}"), |link| link.name.clone())
    }

    fn enter(&mut self, message: &LinkMessage) {
        let header = &message.header;
        let mut link = Link { name: String::new(), mac: None, mtu: 0, up: is_up(header.flags) };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Address(bytes) if header.link_layer_type == LinkLayerType::Ether => {
                    link.mac = bytes.as_slice().try_into().ok();
                }
                _ => {}
            }
        }
        self.links.insert(header.index, link);
    }
}

/// RUNNING is administratively up with a carrier (RFC 2863 operational up).
fn is_up(flags: LinkFlags) -> bool {
    flags.contains(LinkFlags::Up | LinkFlags::Running)
}
