/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Sends a packet on to the first agent that its route option names, in place:
 *
 *   Ethernet | IP | UDP | Geneve | options up to the address | address | ...
 *      anew, from here to there ..................           '-- gone   '-- stays
 *
 * The first agent of a datagram's way adds its own address behind the others: what
 * no agent has comes back to it.
 *
 * At TC too it is one packet: load balancers send no joined segments that name agents.
 */
#ifndef GUIDEWAY_AGENT_ONWARD_H
#define GUIDEWAY_AGENT_ONWARD_H

#include "frame.h"
#include "route.h"

#define TTL 64
#define DONT_FRAGMENT 0x4000
#define GENEVE_HEADER_BYTES 8
/* Of Geneve: its header and the options up to the address. */
#define COPIED_BYTES_MIN (GENEVE_HEADER_BYTES + sizeof(struct route_option))
#define COPIED_BYTES_MAX (GENEVE_HEADER_BYTES + OPTIONS_BYTES_MAX)
#define COPIED_BYTES_ROOM 512 /* next power of two */
#define OUTER_BYTES_MIN (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define OUTER_BYTES_MAX (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr))

/* Of the addresses behind the first one. */
#define FURTHER_BYTES_MAX (2 * sizeof(struct in6_addr))
#define FURTHER_BYTES_ROOM (2 * FURTHER_BYTES_MAX) /* powers of two */

/* The begin of a frame while it is made, for each processor. */
struct front {
	__u8 bytes[OUTER_BYTES_MAX + COPIED_BYTES_ROOM + FURTHER_BYTES_ROOM +
		   sizeof(struct in6_addr)];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct front);
} fronts SEC(".maps");

/* True on the first agent of a datagram's way. */
static __always_inline int returns_here(const struct tunnel *t)
{
	return t->returns && !(t->options.route.flags & ROUTE_RETURNS);
}

/* True if it is known where frames for an agent go. */
static __always_inline int has_neighbour(const struct agent *agent)
{
	return agent->mac[0] | agent->mac[1] | agent->mac[2] | agent->mac[3] | agent->mac[4] |
	       agent->mac[5];
}

/* Lengths of the frame that is made. */
struct lengths {
	__u32 copied; /* of Geneve, from its header to the address */
	__u32 further; /* of the addresses behind it, if ours is added to them */
	__u32 geneve; /* what is made of it */
	__u32 kept_at; /* in the frame: what stays, to its end */
	__u32 bytes; /* from Geneve to the end */
};

static __always_inline void write_ethernet(void *to, const struct agent *agent, __u16 type)
{
	struct ethhdr *ethernet = to;

	__builtin_memcpy(ethernet->h_dest, agent->mac, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, agent->own_mac, ETH_ALEN);
	ethernet->h_proto = bpf_htons(type);
}

static __always_inline void write_ipv4(void *to, const struct tunnel *t,
				       const struct agent *agent, __u32 packet)
{
	struct iphdr *ip = to;
	const __u16 *words = to;
	__u32 sum = 0;

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = t->traffic_class;
	ip->tot_len = bpf_htons(packet);
	ip->frag_off = bpf_htons(DONT_FRAGMENT); /* so that ID means nothing (RFC 6864) */
	ip->ttl = TTL;
	ip->protocol = IPPROTO_UDP;
	ip->saddr = agent->source.in6_u.u6_addr32[3];
	ip->daddr = t->options.route.next.in6_u.u6_addr32[3];
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	ip->check = ~folded(sum);
}

static __always_inline void write_ipv6(void *to, const struct tunnel *t,
				       const struct agent *agent, __u32 packet)
{
	struct ipv6hdr *ip = to;

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->priority = t->traffic_class >> 4;
	ip->flow_lbl[0] = t->traffic_class << 4;
	ip->payload_len = bpf_htons(packet - sizeof(*ip));
	ip->hop_limit = TTL;
	ip->nexthdr = IPPROTO_UDP;
	ip->saddr = agent->source;
	ip->daddr = t->options.route.next;
}

/* The source port stays: networks spread flows by it. No checksum, over IPv6
 * either (RFC 6935). */
static __always_inline void write_udp(void *to, const struct tunnel *t, __u32 bytes)
{
	struct udphdr *udp = to;

	udp->source = t->outer_port;
	udp->dest = bpf_htons(GENEVE_PORT);
	udp->len = bpf_htons(bytes);
	udp->check = 0;
}

/* Bytes in front of Geneve, for the family of the next agent's address. */
static __always_inline __u32 outer_bytes_to(const struct tunnel *t)
{
	return sizeof(struct ethhdr) + sizeof(struct udphdr) +
	       (is_mapped(&t->options.route.next) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

/* Writes all in front of Geneve, which has this number of bytes with what is behind it. */
static __always_inline void write_outer(__u8 *front, const struct tunnel *t,
					const struct agent *agent, __u32 bytes)
{
	__u8 *ip = front + sizeof(struct ethhdr);

	bytes += sizeof(struct udphdr);
	if (is_mapped(&t->options.route.next)) {
		write_ethernet(front, agent, ETH_P_IP);
		write_ipv4(ip, t, agent, bytes + sizeof(struct iphdr));
		write_udp(ip + sizeof(struct iphdr), t, bytes);
	} else {
		write_ethernet(front, agent, ETH_P_IPV6);
		write_ipv6(ip, t, agent, bytes + sizeof(struct ipv6hdr));
		write_udp(ip + sizeof(struct ipv6hdr), t, bytes);
	}
}

/* Copies the addresses behind the first one, and adds ours, in the place of that. */
static __always_inline int write_addresses(frame_md *ctx, __u8 *to, const struct tunnel *t,
					   const struct agent *agent, __u32 further)
{
	__u32 at = t->options.route.at + sizeof(struct route_option) + address_bytes(t->options.route.flags);

	if (further > FURTHER_BYTES_MAX ||
	    (further && load(ctx, HOOK, at, to, within(further, FURTHER_BYTES_MAX))))
		return -1;
	to += within(further + 1, FURTHER_BYTES_ROOM) - 1; /* it may be 0 */
	if (t->options.route.flags & ROUTE_IS_V6)
		__builtin_memcpy(to, &agent->source, sizeof(agent->source));
	else
		__builtin_memcpy(to, &agent->source.in6_u.u6_addr32[3], sizeof(__be32));
	return 0;
}

/* Copies Geneve up to the address, and takes the address off in lengths, count
 * and hop limit; or puts ours behind the others. */
static __always_inline int write_geneve(frame_md *ctx, __u8 *to, const struct tunnel *t,
					const struct agent *agent, const struct lengths *lengths)
{
	__u32 words = address_bytes(t->options.route.flags) / 4, copied = lengths->copied;
	struct route_option *route;
	__u32 at = t->options.route.at - t->geneve_at;

	if (copied > COPIED_BYTES_MAX || copied < COPIED_BYTES_MIN ||
	    at > COPIED_BYTES_MAX - sizeof(*route))
		return -1;
	copied = within(copied, COPIED_BYTES_ROOM);
	if (load(ctx, HOOK, t->geneve_at, to, copied))
		return -1;
	route = (void *)to + at;
	route->hop_limit -= 1;
	if (returns_here(t)) {
		route->flags |= ROUTE_RETURNS;
		return write_addresses(ctx, to + copied, t, agent, lengths->further);
	}
	to[0] -= words; /* version 0, length of the options */
	route->option.length -= words;
	route->flags -= 1;
	return 0;
}

/* The frame's new begin, in place of the old one. */
static __always_inline int replace_front(frame_md *ctx, __u8 *front, __u32 front_bytes,
					 __u32 kept_at)
{
	if (front_bytes > COPIED_BYTES_ROOM || front_bytes < OUTER_BYTES_MIN)
		return -1;
	return replace_begin(ctx, HOOK, kept_at, (void *)front,
			     within(front_bytes - sizeof(struct ethhdr), COPIED_BYTES_ROOM));
}

static __always_inline struct lengths lengths_of(const struct tunnel *t)
{
	__u32 address = address_bytes(t->options.route.flags);
	__u32 addresses_at = t->options.route.at + sizeof(struct route_option);
	struct lengths lengths = {
		.copied = addresses_at - t->geneve_at,
		.geneve = addresses_at - t->geneve_at,
		.kept_at = addresses_at + address,
	};

	if (returns_here(t)) {
		lengths.further = ((t->options.route.flags & ROUTE_COUNT) - 1) * address;
		lengths.geneve += lengths.further + address;
		lengths.kept_at += lengths.further;
	}
	lengths.bytes = t->outer_bytes + sizeof(struct ethhdr) - lengths.kept_at + lengths.geneve;
	return lengths;
}

/* The reason that was given, if the packet is the next agent's now; else why
 * it cannot be. */
static __always_inline enum reason send_onward(frame_md *ctx, const struct tunnel *t,
					       enum reason reason)
{
	struct lengths lengths;
	struct agent *agent;
	struct front *front;
	__u32 zero = 0, outer_bytes = outer_bytes_to(t);

	if (!t->options.route.hop_limit)
		return HOP_LIMIT;
	agent = bpf_map_lookup_elem(&agents, &t->options.route.next);
	if (!agent)
		return NOT_AGENT;
	if (!has_neighbour(agent))
		return NO_NEIGHBOUR;
	front = bpf_map_lookup_elem(&fronts, &zero);
	if (!front)
		return NO_ROOM;
	if (t->outer_bytes + sizeof(struct ethhdr) > frame_bytes(ctx, HOOK) ||
	    t->outer_bytes < t->removed)
		return OUTER_HEADER;
	lengths = lengths_of(t);
	if (outer_bytes - sizeof(struct ethhdr) + lengths.bytes > agent->mtu)
		return TOO_BIG;
	write_outer(front->bytes, t, agent, lengths.bytes);
	if (write_geneve(ctx, front->bytes + outer_bytes, t, agent, &lengths) ||
	    replace_front(ctx, front->bytes, outer_bytes + lengths.geneve, lengths.kept_at))
		return NO_ROOM;
	return reason;
}

#endif
