/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What tunnels are recognised by, and their route option. Generated from
 * wire/src/tunnel by `make generate`: do not edit.
 */
#ifndef GUIDEWAY_TUNNELS_H
#define GUIDEWAY_TUNNELS_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define GUE_PORT 6080
#define GENEVE_PORT 6081

/* The route option of Geneve: its header and body are in docs/formats.md. */
#define GUIDEWAY_OPTION_CLASS 0xff47
#define ROUTE_OPTION_TYPE 0x81
#define ROUTE_OPTION_ADDRESSES_MAX 3
#define ROUTE_OPTION_BYTES_MAX 60
#define ROUTE_OPTION_HOP_LIMIT 4

/* The outer header's protocol, of tunnels without UDP. */
static __always_inline int is_tunnel_protocol(__u8 protocol)
{
	switch (protocol) {
	case 47: /* gre */
	case 4: /* ipip */
	case 41: /* ipip */
		return 1;
	}
	return 0;
}

/* The UDP destination port, in network order. */
static __always_inline int is_tunnel_port(__be16 port)
{
	switch (port) {
	case bpf_htons(6080): /* gue */
	case bpf_htons(6081): /* geneve */
		return 1;
	}
	return 0;
}

#endif
