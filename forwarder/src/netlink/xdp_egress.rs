//! Whether packets that an XDP program sends on an interface arrive, as far as the other end of
//! a veth pair or the driver decides it.
//!
//! A veth interface's other end accepts such packets only if it also has an XDP program in its
//! driver; otherwise they are lost. That end is usually in another network namespace, for which
//! the kernel has a number in ours.

use std::error::Error;
use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp, XdpAttached,
};
use nexthops::socket::Requests;

/// Whether what an XDP program sends by the interface arrives, as far as that can be
/// known here: by veth and virtio_net.
///
/// # Errors
/// If it would be lost, or the other end cannot be seen: in words that follow "no kernel
/// flow cache".
pub fn takes_what_programs_send(interface: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut requests = Requests::open()?;
    let link = by_name(&mut requests, interface)?;
    if !is_veth(&link) {
        return has_queues_for_programs(interface);
    }
    let unseen = |error| format!("the other end of veth {interface} cannot be seen: {error}");
    let other_end = other_end(&mut requests, &link).map_err(unseen)?;
    if has_program(&other_end) {
        return Ok(());
    }
    Err(format!("the other end of veth {interface} has no XDP program, so that what the kernel sends there would be lost").into())
}

/// Trap: virtio_net takes more queues than processors for a sign that the device has others
/// for what programs send, one for each processor (`virtnet_xdp_get_sq`, also in Linux 7.2).
/// An interface of ours has none of these, and the kernel would write past its queues.
fn has_queues_for_programs(interface: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    if nic::driver_of(interface).unwrap_or_default() != "virtio_net" {
        return Ok(());
    }
    let queues = nic::Interface::find(interface)?.rx_queues;
    let processors = nic::kernel_cache::possible_processors();
    if queues as usize <= processors {
        return Ok(());
    }
    Err(format!("{interface} has {queues} queues for {processors} processors, where virtio_net fails when a program sends: ethtool -L {interface} combined {processors}").into())
}

/// Drivers that send what programs of other interfaces redirect to theirs, where these have
/// a program themselves (`ndo_xdp_xmit`, wherever they have XDP from Linux 6.1 on). What is
/// redirected to a driver without it is lost, and the program does not learn of it.
const TAKE_REDIRECTED: [&str; 17] = [
    "bnxt_en",
    "ena",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "idpf",
    "igb",
    "igc",
    "ixgbe",
    "mana",
    "mlx5_core",
    "mvneta",
    "sfc",
    "vif", // xen-netfront's name for its devices
    "virtio_net",
    "vmxnet3",
];

/// Whether the driver of an interface, by which programs of its own can send, also sends
/// what those of other interfaces redirect there.
///
/// # Errors
/// If that is not known: in words that stand alone.
pub fn takes_what_is_redirected(interface: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    if is_veth(&by_name(&mut Requests::open()?, interface)?) {
        return Ok(());
    }
    let name = nic::driver_of(interface).unwrap_or_else(|_| "unknown".to_owned());
    if TAKE_REDIRECTED.contains(&name.as_str()) {
        return Ok(());
    }
    Err(format!("the driver of {interface} ({name}) is not known to send what is redirected from other interfaces").into())
}

fn by_name(requests: &mut Requests, interface: &str) -> io::Result<LinkMessage> {
    get(requests, 0, vec![LinkAttribute::IfName(interface.to_owned())])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_redirected_to_a_driver_that_is_not_known_to_send_it() {
        takes_what_programs_send("lo").unwrap();
        let refused = takes_what_is_redirected("lo").unwrap_err().to_string();
        assert!(refused.starts_with("the driver of lo (unknown) is not known"), "{refused}");
    }
}
