//! The kernel's route to a destination: all next hops of the matching entry, not only the one
//! that the kernel would choose for a packet.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHop,
    RouteNextHopFlags, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use crate::Unresolved;
use crate::socket::Requests;

/// One next hop of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The kernel's index of the device it leaves by.
    pub interface: u32,
    /// None: the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Share among the next hops of a multipath route; at least 1.
    pub weight: u16,
    /// The route's own limit.
    pub mtu: Option<u32>,
    /// The route is taken where no other fits.
    pub is_default: bool,
}

/// The next hops towards `destination`; never empty.
pub fn lookup(requests: &mut Requests, destination: IpAddr) -> Result<Vec<Hop>, Unresolved> {
    let answers = requests
        .ask(RouteNetlinkMessage::GetRoute(request(destination)), 0)
        .map_err(|error| refusal(&error))?;
    let route = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    hops(&route.ok_or(Unresolved::NoRoute)?)
}

/// FIB_MATCH requests the matching entry as it was configured; without it the
/// answer is a single next hop, already chosen.
fn request(destination: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    (message.header.address_family, message.header.destination_prefix_length) = match destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.flags = RouteFlags::LookupTable | RouteFlags::FibMatch;
    message.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination)));
    message
}

/// The kernel answers routes that forbid by an error (`fib_props` in
/// fib_semantics.c): the errno says which.
fn refusal(error: &io::Error) -> Unresolved {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NETUNREACH) => Unresolved::NoRoute,
        Some(Errno::HOSTUNREACH) => Unresolved::Refused("unreachable"),
        Some(Errno::INVAL) => Unresolved::Refused("blackhole"),
        Some(Errno::ACCESS) => Unresolved::Refused("prohibit"),
        _ => Unresolved::Kernel(format!("route lookup: {error}")),
    }
}

fn hops(route: &RouteMessage) -> Result<Vec<Hop>, Unresolved> {
    match route.header.kind {
        RouteType::Unicast => {}
        RouteType::Local => return Err(Unresolved::Local),
        RouteType::BlackHole => return Err(Unresolved::Refused("blackhole")),
        RouteType::Unreachable => return Err(Unresolved::Refused("unreachable")),
        RouteType::Prohibit => return Err(Unresolved::Refused("prohibit")),
        _ => return Err(Unresolved::Refused("not unicast")),
    }
    let mut hops: Vec<Hop> = match multipath(&route.attributes) {
        Some(legs) => legs.iter().filter(|leg| is_usable(leg)).map(hop_of_leg).collect(),
        None => single(&route.attributes).into_iter().collect(),
    };
    let mtu = mtu(&route.attributes);
    for hop in &mut hops {
        hop.mtu = mtu;
        hop.is_default = route.header.destination_prefix_length == 0;
    }
    if hops.is_empty() { Err(Unresolved::NoRoute) } else { Ok(hops) }
}

fn multipath(attributes: &[RouteAttribute]) -> Option<&[RouteNextHop]> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(legs) => Some(legs.as_slice()),
        _ => None,
    })
}

fn is_usable(leg: &RouteNextHop) -> bool {
    !leg.flags.intersects(RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown)
}

/// `rtnh_hops` is the weight less one.
fn hop_of_leg(leg: &RouteNextHop) -> Hop {
    let (interface, gateway) = (leg.interface_index, gateway(&leg.attributes));
    Hop { interface, gateway, weight: u16::from(leg.hops) + 1, mtu: None, is_default: false }
}

fn single(attributes: &[RouteAttribute]) -> Option<Hop> {
    let interface = attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })?;
    let gateway = gateway(attributes);
    Some(Hop { interface, gateway, weight: 1, mtu: None, is_default: false })
}

/// Via: an IPv4 route through an IPv6 gateway (RFC 5549 set-ups).
fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Gateway(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

fn mtu(attributes: &[RouteAttribute]) -> Option<u32> {
    let metrics = attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    })?;
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
        _ => None,
    })
}
