//! Writes `ebpf/tunnels.h`, by which the eBPF programs recognise tunnels and route options,
//! from their descriptions: `make generate`.

use wire::tunnel::{Carrier, route_option};
use wire::{Encap, Protocol};

fn main() {
    let (mut protocols, mut ports) = (String::new(), String::new());
    let mut constants = String::new();
    for &encap in Encap::ALL {
        let name = encap.name();
        match encap.description().carrier {
            Carrier::Ip { v4, v6 } => {
                protocols += &case(v4, name);
                if v6 != v4 {
                    protocols += &case(v6, name);
                }
            }
            Carrier::Udp { port } => {
                constants += &format!("#define {}_PORT {port}\n", name.to_uppercase());
                ports += &format!("\tcase bpf_htons({port}): /* {name} */\n");
            }
        }
    }
    let option = format!(
        "#define GUIDEWAY_OPTION_CLASS {:#06x}
#define ROUTE_OPTION_TYPE {:#04x}
#define ROUTE_OPTION_ADDRESSES_MAX {}
#define ROUTE_OPTION_BYTES_MAX {}
#define ROUTE_OPTION_HOP_LIMIT {}
",
        route_option::CLASS,
        route_option::KIND,
        route_option::ADDRESSES_MAX,
        route_option::BYTES_MAX,
        route_option::HOP_LIMIT,
    );
    print!(
        "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What tunnels are recognised by, and their route option. Generated from
 * wire/src/tunnel by `make generate`: do not edit.
 */
#ifndef GUIDEWAY_TUNNELS_H
#define GUIDEWAY_TUNNELS_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

{constants}
/* The route option of Geneve: its header and body are in docs/formats.md. */
{option}
/* The outer header's protocol, of tunnels without UDP. */
static __always_inline int is_tunnel_protocol(__u8 protocol)
{{
\tswitch (protocol) {{
{protocols}\t\treturn 1;
\t}}
\treturn 0;
}}

/* The UDP destination port, in network order. */
static __always_inline int is_tunnel_port(__be16 port)
{{
\tswitch (port) {{
{ports}\t\treturn 1;
\t}}
\treturn 0;
}}

#endif
"
    );
}

fn case(protocol: Protocol, name: &str) -> String {
    format!("\tcase {}: /* {name} */\n", protocol.0)
}
