//! Makes the kernel pass the controller's probes to the forwarder's device, and accept their
//! answers.
//!
//! ```text
//!  rule 26487: mark 26487                               ─► table 26487: by the device; or unreachable
//!  rule 26488: from our IPv4 address, reserved ports    ─► table 26488: by any link, to nobody
//!              from our IPv6 address, reserved ports    ─► table 26487
//! ```
//!
//! The first rule is for packets sent. Its table ends in `unreachable`: without the device a
//! probe fails at once, and does not reach the VIP by another path.
//!
//! The second rule is for answers from the VIP to our address. With `rp_filter`, the kernel
//! looks up the route to the VIP, and drops the answer if that is a blackhole or, with 1,
//! another link. It looks up the reversed packet, so our address and port are the lookup's
//! source: no packet of another program has these.
//!
//! IPv6 has no `rp_filter`. There the rule is for packets that the kernel sends without a
//! socket, and so without a mark: it resets segments that arrive after a probe has closed its
//! connection. By the route to the VIP such a packet would be client traffic for some load
//! balancer. With IPv4 these packets must leave by a link, as the answers need that route: to a
//! gateway that does not exist. Without a gateway the VIP's owner would answer, if it is on the
//! link (VRRP), and get packets of connections that it does not know.
//!
//! Rules stay when the process ends; the first then lets no probe out.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteNextHop, RouteNextHopFlags,
    RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use crate::netlink::next_hops::links::Links;
use crate::netlink::next_hops::socket::Requests;

/// The mark (SO_MARK) of probes, the table that they are routed by, and the
/// preference of the rule that says so: the bytes of "gw".
pub const MARK: u32 = 0x6777;

/// The table for their answers, and the preference of the rules for our ports.
const ANSWERS: u32 = MARK + 1;

/// An address that no machine has (RFC 1112 reserves it).
const NOBODY: Ipv4Addr = Ipv4Addr::new(240, 0, 0, 1);

/// Behind every other route of the table, of either family.
const LAST: u32 = 4_278_198_272;

/// What the rules depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Where IPv4 probes come from; None: there are none.
    pub source_v4: Option<Ipv4Addr>,
    /// Where IPv6 probes come from; None: there are none.
    pub source_v6: Option<Ipv6Addr>,
    /// First and last of the reserved ports.
    pub ports: (u16, u16),
}

/// The rules and routes as they were made last.
#[derive(Debug, Default)]
pub struct ProbeRoutes {
    made: Option<Settings>,
    links: BTreeSet<u32>,
}

impl ProbeRoutes {
    /// Makes what is missing: other programs remove rules that they do not know.
    pub fn keep(&mut self, settings: &Settings, device: u32) -> io::Result<()> {
        let mut requests = Requests::open()?;
        let v4 = settings.source_v4.map(|_| AddressFamily::Inet);
        let v6 = settings.source_v6.map(|_| AddressFamily::Inet6);
        for family in v4.into_iter().chain(v6) {
            add(&mut requests, RouteNetlinkMessage::NewRoute(by_device(family, device)))?;
            add(&mut requests, RouteNetlinkMessage::NewRoute(unreachable(family)))?;
            add(&mut requests, RouteNetlinkMessage::NewRule(marked(family)))?;
        }
        if self.made != Some(*settings) {
            // With other ports or another source; also another process's.
            remove_rules(&mut requests, &rule(AddressFamily::Inet, ANSWERS, ANSWERS));
            remove_rules(&mut requests, &rule(AddressFamily::Inet6, ANSWERS, MARK));
        }
        if let Some(source) = settings.source_v4 {
            self.keep_answers(&mut requests, from(source.into(), settings.ports, ANSWERS))?;
        }
        if let Some(source) = settings.source_v6 {
            let resets = from(source.into(), settings.ports, MARK);
            add(&mut requests, RouteNetlinkMessage::NewRule(resets))?;
        }
        self.made = Some(*settings);
        Ok(())
    }

    fn keep_answers(&mut self, requests: &mut Requests, answers: RuleMessage) -> io::Result<()> {
        let links: BTreeSet<u32> = Links::read(requests)?.carrying().collect();
        let route = RouteNetlinkMessage::NewRoute(by_links(&links));
        if links == self.links {
            add(requests, route)?;
        } else {
            requests.ask(route, NLM_F_CREATE | NLM_F_REPLACE)?;
            self.links = links;
        }
        add(requests, RouteNetlinkMessage::NewRule(answers))
    }

    /// Removes them all; also what an earlier process left.
    pub fn remove(&mut self) {
        let Ok(mut requests) = Requests::open() else { return };
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            remove_rules(&mut requests, &marked(family));
            let _ = requests.ask(RouteNetlinkMessage::DelRoute(unreachable(family)), 0);
        }
        remove_rules(&mut requests, &rule(AddressFamily::Inet, ANSWERS, ANSWERS));
        remove_rules(&mut requests, &rule(AddressFamily::Inet6, ANSWERS, MARK));
        let _ = requests.ask(RouteNetlinkMessage::DelRoute(by_links(&self.links)), 0);
        *self = ProbeRoutes::default();
    }
}

/// That it is there already is as good. (To replace it would be news of a route
/// for all who listen.)
fn add(requests: &mut Requests, message: RouteNetlinkMessage) -> io::Result<()> {
    match requests.ask(message, NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if error.raw_os_error() != Some(Errno::EXIST.raw_os_error()) => Err(error),
        _ => Ok(()),
    }
}

/// All that are like this one, in what it says.
fn remove_rules(requests: &mut Requests, rule: &RuleMessage) {
    while requests.ask(RouteNetlinkMessage::DelRule(rule.clone()), 0).is_ok() {}
}

fn marked(family: AddressFamily) -> RuleMessage {
    let mut message = rule(family, MARK, MARK);
    message.attributes.push(RuleAttribute::FwMark(MARK));
    message
}

/// For what our address sends by the reserved ports.
fn from(source: IpAddr, (start, end): (u16, u16), table: u32) -> RuleMessage {
    let (family, bits) = match source {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    let mut message = rule(family, ANSWERS, table);
    message.header.src_len = bits;
    message.attributes.push(RuleAttribute::Source(source));
    message.attributes.push(RuleAttribute::SourcePortRange(RulePortRange { start, end }));
    message
}

/// A rule of that preference.
fn rule(family: AddressFamily, preference: u32, table: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family;
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![RuleAttribute::Priority(preference), RuleAttribute::Table(table)];
    message
}

fn by_device(family: AddressFamily, device: u32) -> RouteMessage {
    route(family, RouteType::Unicast, MARK, vec![RouteAttribute::Oif(device)])
}

fn unreachable(family: AddressFamily) -> RouteMessage {
    route(family, RouteType::Unreachable, MARK, vec![RouteAttribute::Priority(LAST)])
}

fn by_links(links: &BTreeSet<u32>) -> RouteMessage {
    let hop = |index: &u32| {
        let mut hop = RouteNextHop::default();
        hop.interface_index = *index;
        hop.flags = RouteNextHopFlags::Onlink;
        hop.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet(NOBODY))];
        hop
    };
    let hops = RouteAttribute::MultiPath(links.iter().map(hop).collect());
    let mut message = route(AddressFamily::Inet, RouteType::Unicast, ANSWERS, vec![hops]);
    message.header.scope = RouteScope::Universe;
    message
}

/// A default route.
fn route(
    family: AddressFamily,
    kind: RouteType,
    table: u32,
    attributes: Vec<RouteAttribute>,
) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family,
        protocol: RouteProtocol::Static,
        scope: if kind == RouteType::Unicast { RouteScope::Link } else { RouteScope::Universe },
        kind,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Table(table)];
    message.attributes.extend(attributes);
    message
}
