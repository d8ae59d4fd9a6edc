//! The other end of a veth pair, as far as the kernel flow cache hangs on it.
//!
//! What an XDP program sends by a veth interface is taken at the other end only if that
//! has an XDP program in its driver as well; without one it is lost. That end is mostly
//! in another network namespace, for which the kernel has a number in ours.

use std::error::Error;
use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp, XdpAttached,
};
use nexthops::socket::Requests;

/// Whether what an XDP program sends by the interface arrives, as far as that can be
/// known here: it is for all interfaces but veth.
///
/// # Errors
/// If it would be lost, or the other end cannot be seen: in words that follow "no kernel
/// flow cache".
pub fn takes_what_programs_send(interface: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut requests = Requests::open()?;
    let by_name = vec![LinkAttribute::IfName(interface.to_owned())];
    let link = get(&mut requests, 0, by_name)?;
    if !is_veth(&link) {
        return Ok(());
    }
    let unseen = |error| format!("the other end of veth {interface} cannot be seen: {error}");
    let other_end = other_end(&mut requests, &link).map_err(unseen)?;
    if has_program(&other_end) {
        return Ok(());
    }
    Err(format!("the other end of veth {interface} has no XDP program, so that what the kernel sends there would be lost").into())
}

fn other_end(requests: &mut Requests, link: &LinkMessage) -> io::Result<LinkMessage> {
    let (mut index, mut namespace) = (0, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Link(number) => index = *number,
            LinkAttribute::LinkNetNsId(number) => namespace = Some(*number),
            _ => {}
        }
    }
    get(requests, index, namespace.map(LinkAttribute::IfNetnsId).into_iter().collect())
}

fn get(
    requests: &mut Requests,
    index: u32,
    attributes: Vec<LinkAttribute>,
) -> io::Result<LinkMessage> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    let answers = requests.ask(RouteNetlinkMessage::GetLink(message), 0)?;
    let link = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    link.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn is_veth(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => info.contains(&LinkInfo::Kind(InfoKind::Veth)),
        _ => false,
    })
}

/// A program in the driver, not one that gets copies of frames (generic XDP).
fn has_program(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => xdp.iter().any(|part| {
            matches!(part, LinkXdp::Attached(XdpAttached::Driver) | LinkXdp::DrvProgId(1..))
        }),
        _ => false,
    })
}
