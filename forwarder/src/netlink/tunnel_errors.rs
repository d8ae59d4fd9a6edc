//! ICMP errors that report that a packet of our tunnels was too big for a link (RFC 1191, RFC
//! 8201). They are counted for people, and change nothing.
//!
//! A path's MTU is the least of the egress link's MTU, the kernel route's and `tunnel.mtu`.
//! Errors are easily forged, so they do not change it; but if they arrive, one of the three may
//! be too large. Our packets bypass the kernel, so it cannot match such errors to a socket. Raw
//! sockets get a copy, only of those that report an MTU (`nic::too_big`). Errors that exceed a
//! socket's buffer between two reads are not counted.

use std::net::IpAddr;
use std::num::NonZero;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use plan::Plan;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketAddrAny, SocketFlags, SocketType, recvfrom,
    socket_with,
};
use wire::{Encap, Family, FlowKey, icmp, ip};

/// Errors of each family read at one call: a flood takes a bounded time.
const ERRORS_MAX: usize = 1000;

/// Longer than any error that routers send (RFC 1812: 576 bytes; ICMPv6: 1280).
const ERROR_BYTES: usize = 2048;

/// See the module.
#[derive(Debug)]
pub struct TunnelErrors {
    sockets: Vec<(Family, OwnedFd)>,
    seen: Mutex<Seen>,
}

/// Errors since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many.
    pub count: u64,
    /// The last one.
    pub last: Option<TunnelError>,
}

/// An error about a packet of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelError {
    /// Who sent it.
    pub from: IpAddr,
    /// The tunnel's remote end: a backend, a peer, or an address of another cluster.
    pub target: IpAddr,
    /// What it says fits.
    pub mtu: u32,
    /// When it was read.
    pub at: Instant,
}

impl TunnelErrors {
    /// Counts in the network namespace of the calling thread. Without the right to open raw
    /// sockets (`CAP_NET_RAW`) nothing is counted: the log says so.
    #[must_use]
    pub fn open() -> TunnelErrors {
        let sockets = [Family::V4, Family::V6].into_iter().filter_map(open).collect();
        TunnelErrors { sockets, seen: Mutex::default() }
    }

    /// Counts what came since the last call about tunnels of `plan`; it never waits.
    pub fn read(&self, plan: &Plan, now: Instant) {
        let mut bytes = [0; ERROR_BYTES];
        for (family, socket) in &self.sockets {
            for _ in 0..ERRORS_MAX {
                // Nothing more there (EAGAIN), or an error that the next call clears.
                let Ok((length, _, Some(from))) = recvfrom(socket, &mut bytes, RecvFlags::empty())
                else {
                    break;
                };
                let about = message(*family, &bytes[..length])
                    .and_then(|message| about_tunnel(plan, *family, message));
                let (Some((target, mtu)), Some(from)) = (about, address(&from)) else { continue };
                let mut seen = self.lock();
                seen.count += 1;
                seen.last = Some(TunnelError { from, target, mtu, at: now });
            }
        }
    }

    /// What was counted.
    #[must_use]
    pub fn seen(&self) -> Seen {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no holder of this lock panics")
    }
}

/// A raw socket that gets a copy of every ICMP error that reports an MTU.
fn open(family: Family) -> Option<(Family, OwnedFd)> {
    let (domain, protocol) = match family {
        Family::V4 => (AddressFamily::INET, wire::Protocol::ICMP),
        Family::V6 => (AddressFamily::INET6, wire::Protocol::ICMPV6),
    };
    let protocol =
        Protocol::from_raw(NonZero::new(u32::from(protocol.0)).expect("neither is zero"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let opened = socket_with(domain, SocketType::RAW, flags, Some(protocol))
        .map_err(std::io::Error::from)
        .and_then(|socket| nic::too_big::attach(socket.as_fd(), family).map(|()| socket));
    let warn = |error: &std::io::Error| {
        tracing::warn!(%error, ?family, "no raw ICMP socket (it needs CAP_NET_RAW): errors about tunnels are not counted");
    };
    opened.inspect_err(warn).ok().map(|socket| (family, socket))
}

/// The ICMP message of what a raw socket reads: over IPv4 the IP header comes
/// with it, and the checksum is not looked at by the kernel.
fn message(family: Family, read: &[u8]) -> Option<&[u8]> {
    if family == Family::V6 {
        return Some(read);
    }
    let header_bytes = usize::from(read.first()? & 0x0f) * 4;
    read.get(header_bytes..).filter(|message| wire::checksum::is_valid(message))
}

fn address(from: &SocketAddrAny) -> Option<IpAddr> {
    std::net::SocketAddr::try_from(from.clone()).ok().map(|from| from.ip())
}

/// The tunnel's remote end and the MTU that an error about a packet from here reports;
/// None: it is about something else.
fn about_tunnel(plan: &Plan, family: Family, message: &[u8]) -> Option<(IpAddr, u32)> {
    let mtu = icmp::reported_mtu(family, message)?;
    let quoted = icmp::quoted(family, message)?;
    Encap::of(&quoted)?;
    let target = ip::address(family, quoted.destination);
    (is_from_here(plan, &quoted) && is_target(plan, &quoted, target)).then_some((target, mtu))
}

fn is_from_here(plan: &Plan, quoted: &FlowKey) -> bool {
    match ip::address(quoted.family, quoted.source) {
        IpAddr::V4(source) => match plan.tunnel.source_prefix {
            Some((network, host_mask)) => source.to_bits() & !host_mask == network & !host_mask,
            None => Some(source.to_bits()) == plan.source_v4,
        },
        IpAddr::V6(source) => Some(source.to_bits()) == plan.source_v6,
    }
}

/// What is spilled goes to any address of another cluster's prefix.
fn is_target(plan: &Plan, quoted: &FlowKey, target: IpAddr) -> bool {
    let mut spills = plan.services().flat_map(|service| &service.spill);
    plan.tunnel_targets().contains(&target)
        || spills.any(|spill| {
            spill.family == quoted.family && quoted.destination & !spill.host_mask == spill.network
        })
}

#[cfg(test)]
mod tests {
    use plan::Planner;
    use serde_json::json;
    use wire::{Protocol, ipv4};

    use super::*;

    const OWN: u32 = 0x0a00_0001;
    const BACKEND: u32 = 0x0a01_000b;

    fn plan(tunnel: serde_json::Value) -> Plan {
        let message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
            "backends": [{"name": "a", "address": "10.1.0.11"}],
            "groups": [{"name": "a", "members": [{"backend": "a", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
            "services": [{
                "name": "web", "vips": [{"address": "203.0.113.10"}], "group": "a",
                "spill": [{"prefix": "198.51.100.0/24"}],
            }],
            "tunnel": tunnel,
        });
        Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap()
    }

    /// "Fragmentation needed" with a quote of eight bytes behind the IP header.
    fn error(protocol: Protocol, (source, destination): (u32, u32), start: [u8; 8]) -> Vec<u8> {
        let header = ipv4::Emit {
            packet_bytes: 1524,
            traffic_class: 0,
            id: 0,
            flags: ipv4::DONT_FRAGMENT,
            ttl: 60,
            protocol,
            source,
            destination,
        };
        [&icmp::too_big(Family::V4, 1400)[..], &header.to_bytes(), &start].concat()
    }

    #[test]
    fn only_errors_about_tunnels_from_here_count() {
        let gue = [0x12, 0x34, 0x17, 0xc0, 0, 0, 0, 0];
        let dns = [0x12, 0x34, 0, 53, 0, 0, 0, 0];
        let plan = plan(json!({}));
        for (protocol, addresses, start, counts) in [
            (Protocol::GRE, (OWN, BACKEND), [0; 8], true),
            (Protocol::UDP, (OWN, BACKEND), gue, true),
            (Protocol::IPIP, (OWN, BACKEND), [0; 8], true),
            (Protocol::UDP, (OWN, BACKEND), dns, false),
            (Protocol::TCP, (OWN, BACKEND), gue, false),
            (Protocol::GRE, (OWN + 1, BACKEND), [0; 8], false),
            (Protocol::GRE, (OWN, BACKEND + 1), [0; 8], false),
            // Another cluster's prefix.
            (Protocol::GRE, (OWN, 0xc633_640a), [0; 8], true),
        ] {
            let error = error(protocol, addresses, start);
            let expected = counts.then(|| (IpAddr::V4(addresses.1.into()), 1400));
            assert_eq!(about_tunnel(&plan, Family::V4, &error), expected, "{error:?}");
            assert_eq!(about_tunnel(&plan, Family::V4, &error[..20]), None);
        }
    }

    #[test]
    fn sources_drawn_from_a_prefix_are_ours() {
        let plan = plan(json!({"sourcePrefix": "10.64.0.0/24"}));
        for (source, counts) in [(0x0a40_0077, true), (0x0a40_0177, false)] {
            let error = error(Protocol::GRE, (source, BACKEND), [0; 8]);
            assert_eq!(about_tunnel(&plan, Family::V4, &error).is_some(), counts);
        }
    }
}
