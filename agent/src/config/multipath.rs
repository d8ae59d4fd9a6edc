//! Config of services with Multipath TCP: `mptcp: [{address: 203.0.113.10, port: 443}]`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use wire::IpPrefix;

use super::fields::{Node, Reader};

/// Entries of the program's table: `SERVICES_MAX` in bpf/multipath.h, as many as addresses.
const SERVICES_MAX: usize = 4096;

/// Reads the list, each service once.
pub fn read(reader: &mut Reader, node: &Node, vips: &[IpPrefix]) -> Vec<SocketAddr> {
    let elements = reader.list(node);
    if elements.len() > SERVICES_MAX {
        let count = elements.len();
        reader.refuse(node, &format!("has {count} services, more than {SERVICES_MAX}"));
    }
    let mut services = BTreeSet::new();
    for element in &elements {
        let Some(service) = service(reader, element) else { continue };
        if !vips.iter().any(|vip| vip.contains(service.ip())) {
            let problem = format!("{} is none of `vips`: add it there", service.ip());
            reader.refuse(element, &problem);
        }
        if !services.insert(service) {
            reader.refuse(element, &format!("{service} is there twice: remove one"));
        }
    }
    services.into_iter().collect()
}

fn service(reader: &mut Reader, node: &Node) -> Option<SocketAddr> {
    let mut fields = reader.fields(node)?;
    let address = fields.required("address", "the VIP, like 203.0.113.10");
    let port = fields.required("port", "the service's, like 443");
    fields.finish();
    let address: Option<IpAddr> =
        address.and_then(|node| reader.parsed(&node, "an address", "203.0.113.10 or 2001:db8::10"));
    let port = port.and_then(|node| reader.port(&node));
    Some(SocketAddr::new(address?, port?))
}
