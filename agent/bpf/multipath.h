/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Services with Multipath TCP (RFC 8684) whose connections load balancers choose the keys
 * of: which these are, and their segments at the interface's ingress and egress.
 *
 *   client ─► XDP: out of the tunnel ─► ingress ─► the kernel's TCP ─► egress ─► client
 */
#ifndef GUIDEWAY_AGENT_MULTIPATH_H
#define GUIDEWAY_AGENT_MULTIPATH_H

#include "frame.h"
#include "segment.h"

#define SERVICES_MAX 4096 /* config/multipath.rs has it too */

/* Where clients reach such a service. */
struct service {
	struct in6_addr address; /* IPv4 is mapped */
	__be16 port;
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, struct service);
	__type(value, __u32);
} multipath_services SEC(".maps");

static __always_inline struct service service_of(const struct segment *s)
{
	return (struct service){ .address = s->flow.vip, .port = s->flow.vip_port };
}

static __always_inline int is_of_multipath_service(const struct segment *s)
{
	struct service service = service_of(s);

	return bpf_map_lookup_elem(&multipath_services, &service) != 0;
}

/* True if the frame at TC has a segment of such a service. */
static __always_inline int read_multipath_segment(struct __sk_buff *skb, enum direction direction,
						  struct segment *s)
{
	return read_frames_segment(skb, direction, s) && is_of_multipath_service(s);
}

#endif
