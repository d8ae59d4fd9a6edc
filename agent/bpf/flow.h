/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What this agent remembers of packets that it took: datagrams' flows, which the
 * kernel has no sockets for, and of fragmented packets what became of the first
 * fragment, as later ones have no ports.
 *
 * Both tables are bounded, and displace what was used longest ago.
 */
#ifndef GUIDEWAY_AGENT_FLOW_H
#define GUIDEWAY_AGENT_FLOW_H

#include "frame.h"
#include "ip.h"

#define FLOWS_MAX 131072
#define FRAGMENTS_MAX 16384
#define FLOW_IDLE_SECONDS 120 /* flows.rs has it too */
#define FRAGMENT_IDLE_SECONDS 30 /* as the kernel waits for a packet's fragments */
#define NANOSECONDS 1000000000

/* As packets from the client have it; addresses of IPv4 are mapped. */
struct flow {
	struct in6_addr client;
	struct in6_addr vip;
	__be16 client_port;
	__be16 vip_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS_MAX);
	__type(key, struct flow);
	__type(value, __u32); /* when it was last taken, in seconds */
} flows SEC(".maps");

/* A packet that was fragmented (RFC 791; RFC 8200, section 4.5). */
struct fragmented {
	struct in6_addr source;
	struct in6_addr destination;
	__be32 id;
	__u32 protocol; /* of IPv4 */
};

struct first_fragment {
	__u32 seen; /* in seconds */
	__u16 reason; /* why it was sent on; NONE: it was taken here */
	__u8 returns; /* as struct tunnel has it */
	__u8 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTS_MAX);
	__type(key, struct fragmented);
	__type(value, struct first_fragment);
} fragments SEC(".maps");

static __always_inline int is_same_flow(const struct flow *one, const struct flow *other)
{
	const __u32 *a = (const void *)one, *b = (const void *)other;
	__u32 differing = 0;

#pragma unroll
	for (unsigned int i = 0; i < sizeof(*one) / sizeof(*a); i++)
		differing |= a[i] ^ b[i];
	return !differing;
}

/* No bit of it follows from few of the flow's. */
static __always_inline __u32 hash_of_flow(const struct flow *flow, __u32 seed)
{
	const __u32 *words = (const void *)flow;
	__u32 hash = seed;

#pragma unroll
	for (unsigned int i = 0; i < sizeof(*flow) / sizeof(*words); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b1;
		hash ^= hash >> 15;
	}
	return hash;
}

/* What the kernel has the socket by that gets the flow's packets; its bytes. */
static __always_inline __u32 socket_tuple_of(const struct flow *flow, struct bpf_sock_tuple *tuple)
{
	if (is_mapped(&flow->vip)) {
		tuple->ipv4.saddr = flow->client.in6_u.u6_addr32[3];
		tuple->ipv4.daddr = flow->vip.in6_u.u6_addr32[3];
		tuple->ipv4.sport = flow->client_port;
		tuple->ipv4.dport = flow->vip_port;
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(tuple->ipv6.saddr, &flow->client, sizeof(flow->client));
	__builtin_memcpy(tuple->ipv6.daddr, &flow->vip, sizeof(flow->vip));
	tuple->ipv6.sport = flow->client_port;
	tuple->ipv6.dport = flow->vip_port;
	return sizeof(tuple->ipv6);
}

/* The socket that gets the flow's packets, to be released; null: there is none. Of both
 * kinds of programs: their contexts differ. */
static __always_inline struct bpf_sock *find_socket(void *ctx, const struct flow *flow)
{
	struct bpf_sock_tuple tuple = {};
	__u32 bytes = socket_tuple_of(flow, &tuple);

	return bpf_skc_lookup_tcp(ctx, &tuple, bytes, BPF_F_CURRENT_NETNS, 0);
}

static __always_inline __u32 now_seconds(void)
{
	return bpf_ktime_get_coarse_ns() / NANOSECONDS;
}

/* NONE, if the flow is one that is taken here. */
static __always_inline enum reason place_by_flow(const struct flow *flow)
{
	__u32 *taken = bpf_map_lookup_elem(&flows, flow);

	return taken && now_seconds() - *taken < FLOW_IDLE_SECONDS ? NONE : NO_FLOW;
}

static __always_inline void remember_flow(const struct flow *flow)
{
	__u32 now = now_seconds(), *taken = bpf_map_lookup_elem(&flows, flow);

	if (!taken)
		bpf_map_update_elem(&flows, flow, &now, BPF_ANY);
	else if (*taken != now)
		*taken = now;
}

/* Which packet this is a fragment of. Later fragments of IPv6 may name another protocol (RFC
 * 8200, section 4.5). */
static __always_inline struct fragmented fragmented_of(const struct ip_packet *ip)
{
	return (struct fragmented){
		.source = ip->source,
		.destination = ip->destination,
		.id = ip->id,
		.protocol = ip->type == ETH_P_IP ? ip->protocol : 0,
	};
}

/* Where the packet's first fragment went. */
static __always_inline enum reason place_by_fragment(const struct ip_packet *ip, struct tunnel *t)
{
	struct fragmented packet = fragmented_of(ip);
	struct first_fragment *first = bpf_map_lookup_elem(&fragments, &packet);

	if (!first || now_seconds() - first->seen >= FRAGMENT_IDLE_SECONDS)
		return INNER_FRAGMENT;
	t->returns = first->returns;
	return first->reason;
}

static __always_inline void remember_fragment(const struct ip_packet *ip, const struct tunnel *t,
					      enum reason reason)
{
	struct fragmented packet = fragmented_of(ip);
	struct first_fragment first = {
		.seen = now_seconds(),
		.reason = reason,
		.returns = t->returns,
	};

	bpf_map_update_elem(&fragments, &packet, &first, BPF_ANY);
}

#endif
