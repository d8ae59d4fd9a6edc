//! Turns a packet of the probe device into the frame for the backend.

use datapath::verdict::DeviceIndex;
use datapath::{FlowHash, View, encapsulate};
use wire::{
    EtherType, Fragment, Frame, HEADROOM_BYTES, Headers, MacAddress, Protocol, ethernet, headers,
};

/// Why a packet of the device was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Unsent {
    /// Not a whole TCP or UDP packet from this machine's address to a VIP.
    NoProbe,
    /// Its source port is assigned to no backend.
    PortUnassigned,
    /// No next hop to the backend is known, as for clients' packets.
    NoNeighbour,
    /// It does not fit the path to the backend.
    TooBig,
    /// The interface took it not: down, or its queue full.
    Failed,
}

impl Unsent {
    /// In order of their numbers.
    pub const ALL: [Unsent; 5] = [
        Unsent::NoProbe,
        Unsent::PortUnassigned,
        Unsent::NoNeighbour,
        Unsent::TooBig,
        Unsent::Failed,
    ];

    /// As metrics have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unsent::NoProbe => "no_probe",
            Unsent::PortUnassigned => "port_unassigned",
            Unsent::NoNeighbour => "no_neighbour",
            Unsent::TooBig => "too_big",
            Unsent::Failed => "failed",
        }
    }
}

/// Makes of a packet, which ends the chunk behind headroom and the room of an
/// Ethernet header, the frame that traffic's packet of this flow would be, had the
/// backend of its port been selected.
pub fn encapsulate<'c>(
    view: &View,
    hash: &FlowHash,
    chunk: &'c mut [u8],
) -> Result<(Frame<'c>, DeviceIndex), Unsent> {
    const PACKET: usize = HEADROOM_BYTES + ethernet::HEADER_BYTES;
    let ether_type = match chunk.get(PACKET).ok_or(Unsent::NoProbe)? >> 4 {
        4 => EtherType::IPV4,
        6 => EtherType::IPV6,
        _ => return Err(Unsent::NoProbe),
    };
    let nowhere = MacAddress([0; 6]);
    chunk[HEADROOM_BYTES..PACKET].copy_from_slice(&ethernet::emit(nowhere, nowhere, ether_type));
    let end = chunk.len();
    let mut frame = Frame::new(chunk, HEADROOM_BYTES, end);
    let headers = headers::parse(frame.bytes()).ok().flatten().ok_or(Unsent::NoProbe)?;
    if !is_probe(view, &headers) {
        return Err(Unsent::NoProbe);
    }
    let probing = view.plan.probing.as_ref();
    let tunnel = probing.and_then(|probing| probing.tunnel(headers.key.source_port));
    let tunnel = tunnel.ok_or(Unsent::PortUnassigned)?;
    let (key, hash) = (&headers.key, hash.flow(&headers.key));
    let template = view.egress.template_for(tunnel.profile, key.family, tunnel.backend, hash);
    let template = template.ok_or(Unsent::NoNeighbour)?;
    encapsulate::encapsulate(&mut frame, &headers.meta(), hash, template)
        .map_err(|_| Unsent::TooBig)?;
    Ok((frame, template.device))
}

/// Whatever else gets here is not to reach a backend as if it were a client's.
fn is_probe(view: &View, headers: &Headers) -> bool {
    let (key, plan) = (&headers.key, &view.plan);
    matches!(key.protocol, Protocol::TCP | Protocol::UDP)
        && headers.fragment == Fragment::Whole
        && plan.ingress.is_own(key.family, key.source)
        && plan.vips.address(key.family, key.destination).is_some()
}
