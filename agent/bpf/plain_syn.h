/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * SYNs with MP_CAPABLE of clients without timestamps (RFC 7323). The load balancer sends
 * such a SYN by its key's token, and what follows, in which nothing says the token, by the
 * five-tuple. There the connection has to be, as a plain one: the SYN goes on to the backend
 * of the five-tuple's bucket, which its tunnel's option names (opening.h), without
 * MP_CAPABLE, and in a tunnel without options, so that it goes no further.
 *
 *   client ─ SYN ─► load balancer ─► here, by the token ─► there, by the five-tuple
 *   client ─ ACK ─► load balancer ───────────────────────► there
 */
#ifndef GUIDEWAY_AGENT_PLAIN_SYN_H
#define GUIDEWAY_AGENT_PLAIN_SYN_H

#include "frame.h"
#include "handshake.h"
#include "onward.h"
#include "options.h"
#include "route.h"

/* A SYN while it is sent on, for each processor. */
struct plain_syn {
	struct in6_addr owner; /* the agent of the five-tuple's bucket; IPv4 is mapped */
	__u8 front[OUTER_BYTES_MAX + GENEVE_HEADER_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plain_syn);
} plain_syns SEC(".maps");

static __always_inline int read_owner(struct xdp_md *ctx, __u32 option_at, struct in6_addr *owner)
{
	struct multipath_option option;
	__be32 address;

	if (bpf_xdp_load_bytes(ctx, option_at, &option, sizeof(option)))
		return -1;
	option_at += sizeof(option);
	if (option.flags & ROUTE_IS_V6)
		return bpf_xdp_load_bytes(ctx, option_at, owner, sizeof(*owner));
	if (bpf_xdp_load_bytes(ctx, option_at, &address, sizeof(address)))
		return -1;
	*owner = mapped(address);
	return 0;
}

/* True for a SYN that goes on to the owner of its five-tuple's bucket; it has lost
 * MP_CAPABLE then. Its address is in the processor's `plain_syns`. */
__noinline int goes_to_owner(struct xdp_md *ctx, __u32 packet_at, __u32 option_at)
{
	struct tcp_options *options;
	struct plain_syn *plain;
	struct syn_at syn = {};
	__u32 zero = 0;

	plain = bpf_map_lookup_elem(&plain_syns, &zero);
	if (!plain || !find_syn(ctx, packet_at, &syn) || read_owner(ctx, option_at, &plain->owner) ||
	    !bpf_map_lookup_elem(&agents, &plain->owner)) /* it is this one */
		return 0;
	options = load_syn_options(ctx, &syn);
	if (!options || find_multipath(options, MULTIPATH_CAPABLE) < 0 ||
	    find_option(options, TCP_OPTION_TIMESTAMPS, 0) >= 0)
		return 0;
	strip_syn(ctx, &syn, SYN_STRIPPED_TIMESTAMPS);
	return 1;
}

static __always_inline void write_geneve_header(void *to, __u32 type)
{
	const __be32 header[2] = { bpf_htonl(type), 0 }; /* no options, network 0 */

	__builtin_memcpy(to, header, sizeof(header));
}

/* Sends the packet inside on to the owner; PLAIN_SYN, or why it cannot be. `end` is the
 * frame's, `fields` the traffic class and the source port of the outer headers. */
__noinline __u32 send_to_owner(struct xdp_md *ctx, __u32 packet_at, __u32 type, __u32 end,
			       __u32 fields)
{
	const __u32 v4_bytes = sizeof(struct ethhdr) + sizeof(struct iphdr);
	const __u32 v6_bytes = sizeof(struct ethhdr) + sizeof(struct ipv6hdr);
	struct tunnel t = { .traffic_class = fields >> 16, .outer_port = fields & 0xffff };
	__u32 udp_at, front_bytes, bytes, zero = 0;
	struct plain_syn *plain;
	struct agent *agent;

	plain = bpf_map_lookup_elem(&plain_syns, &zero);
	if (!plain)
		return NO_ROOM;
	agent = bpf_map_lookup_elem(&agents, &plain->owner);
	if (!agent)
		return NOT_AGENT;
	if (!has_neighbour(agent))
		return NO_NEIGHBOUR;
	if (end > bpf_xdp_get_buff_len(ctx) || end < packet_at)
		return OUTER_HEADER;
	t.route.next = plain->owner;
	bytes = sizeof(struct udphdr) + GENEVE_HEADER_BYTES + end - packet_at;
	if (is_mapped(&plain->owner)) {
		udp_at = v4_bytes;
		write_ethernet(plain->front, agent, ETH_P_IP);
		write_ipv4(plain->front + sizeof(struct ethhdr), &t, agent,
			   bytes + sizeof(struct iphdr));
		write_udp(plain->front + v4_bytes, &t, bytes);
		write_geneve_header(plain->front + v4_bytes + sizeof(struct udphdr), type);
	} else {
		udp_at = v6_bytes;
		write_ethernet(plain->front, agent, ETH_P_IPV6);
		write_ipv6(plain->front + sizeof(struct ethhdr), &t, agent,
			   bytes + sizeof(struct ipv6hdr));
		write_udp(plain->front + v6_bytes, &t, bytes);
		write_geneve_header(plain->front + v6_bytes + sizeof(struct udphdr), type);
	}
	if (udp_at - sizeof(struct ethhdr) + bytes > agent->mtu)
		return TOO_BIG;
	front_bytes = udp_at + sizeof(struct udphdr) + GENEVE_HEADER_BYTES;
	if (bpf_xdp_adjust_head(ctx, (int)packet_at - (int)front_bytes) ||
	    bpf_xdp_store_bytes(ctx, 0, plain->front, front_bytes))
		return NO_ROOM;
	return PLAIN_SYN;
}

#endif
