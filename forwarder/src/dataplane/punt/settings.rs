//! The kernel settings of a TAP, by which the kernel treats packets from it like those from the
//! interface.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nic::Interface;

use crate::netlink::next_hops::socket::Requests;

const SYSCTL: &str = "/proc/sys/net";

/// Decided by the interface that a packet came from: taken over from there.
const TAKEN_OVER: [(&str, &str); 8] = [
    ("ipv4", "forwarding"),
    ("ipv4", "accept_local"),
    ("ipv4", "route_localnet"),
    ("ipv4", "src_valid_mark"),
    ("ipv4", "log_martians"),
    ("ipv4", "accept_source_route"),
    ("ipv6", "disable_ipv6"),
    ("ipv6", "forwarding"),
];

/// Never a real host's (RFC 7600).
const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// Makes the settings of a TAP that is not up yet; what could not be done.
///
/// Source validation: replies leave by the interface and not by the TAP, so
/// strict (1) would drop everything; where the interface validates at all, the
/// TAP does loosely (2: any route back will do). And from an interface without
/// an IPv4 address the kernel takes nothing while it validates: hence one of
/// host scope, which is never chosen as a source.
#[must_use]
pub fn adopt(tap: &str, interface: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (family, key) in TAKEN_OVER {
        // A kernel without the family has no such settings.
        if let Some(value) = read(family, interface, key) {
            problems.extend(write(family, tap, key, &value));
        }
    }
    let strictest = ["all", interface].map(|name| read("ipv4", name, "rp_filter"));
    let validates = strictest.iter().flatten().any(|value| value.trim() != "0");
    problems.extend(write("ipv4", tap, "rp_filter", if validates { "2" } else { "0" }));
    if read("ipv6", tap, "disable_ipv6").is_some() {
        // No address of its own (1: none), and no router's advice.
        problems.extend(write("ipv6", tap, "addr_gen_mode", "1"));
        problems.extend(write("ipv6", tap, "accept_ra", "0"));
    }
    problems.extend(give_address(tap).err());
    problems
}

fn path(family: &str, interface: &str, key: &str) -> PathBuf {
    // Not by formatting: a name like `eth0.100` is one component.
    Path::new(SYSCTL).join(family).join("conf").join(interface).join(key)
}

fn read(family: &str, interface: &str, key: &str) -> Option<String> {
    std::fs::read_to_string(path(family, interface, key)).ok()
}

/// A value that is there already needs no right to write.
fn write(family: &str, interface: &str, key: &str, value: &str) -> Option<String> {
    if read(family, interface, key).is_some_and(|present| present.trim() == value.trim()) {
        return None;
    }
    let path = path(family, interface, key);
    let error = std::fs::write(&path, value.trim()).err()?;
    Some(format!("{} cannot be set to {}: {error}", path.display(), value.trim()))
}

/// As `ip addr replace 192.0.0.8/32 dev TAP scope host` does.
fn give_address(tap: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("it gets no IPv4 address: {error}");
    let interface = Interface::find(tap).map_err(|error| failed(&error))?;
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = 32;
    message.header.scope = AddressScope::Host;
    message.header.index = interface.index;
    let address = IpAddr::V4(DUMMY);
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    let mut requests = Requests::open().map_err(|error| failed(&error))?;
    let request = RouteNetlinkMessage::NewAddress(message);
    requests.ask(request, NLM_F_CREATE | NLM_F_REPLACE).map(drop).map_err(|error| failed(&error))
}
