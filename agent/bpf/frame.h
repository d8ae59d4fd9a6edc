/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What all parts of the programs share: addresses, their tables, and a tunnel packet while
 * it is read.
 */
#ifndef GUIDEWAY_AGENT_FRAME_H
#define GUIDEWAY_AGENT_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "context.h"
#include "outcome.h"
#include "tunnels.h"

#define ADDRESSES_MAX 4096 /* config/mod.rs has it too */
#define IPV4_MORE_AND_OFFSET 0x3fff

struct prefix_v4 {
	__u32 bits;
	__u32 address;
};

struct prefix_v6 {
	__u32 bits;
	struct in6_addr address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v4);
	__type(value, __u32);
} sources_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v6);
	__type(value, __u32);
} sources_v6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v4);
	__type(value, __u32);
} vips_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v6);
	__type(value, __u32);
} vips_v6 SEC(".maps");

/* Of this host, on any interface. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES_MAX);
	__type(key, struct in6_addr); /* IPv4 is mapped */
	__type(value, __u32);
} own_addresses SEC(".maps");

/* An Ethernet address, as frames have it. */
struct mac {
	__u16 words[3];
	__u16 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES_MAX);
	__type(key, struct mac);
	__type(value, __u32);
} own_macs SEC(".maps");

/* How another agent is reached, from here. */
struct agent {
	__u8 mac[ETH_ALEN]; /* of the next hop; zero: not known */
	__u8 own_mac[ETH_ALEN];
	__u32 mtu;
	struct in6_addr source; /* ours, of the same family; IPv4 is mapped */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES_MAX);
	__type(key, struct in6_addr); /* IPv4 is mapped */
	__type(value, struct agent);
} agents SEC(".maps");

/* The route option of a Geneve header (wire/src/tunnel/route_option.rs). */
struct route {
	__u16 at;        /* in the frame; 0: there is none */
	__u8 flags;
	__u8 hop_limit;
	struct in6_addr next; /* the first address to try; IPv4 is mapped */
};

/* The options of a Geneve header that are ours. */
struct options {
	struct route route;
	__u32 multipath_at; /* of Multipath TCP, in the frame; 0: there is none */
};

/* A tunnel packet while it is read: where the next header begins, how much of
 * the frame is left behind by then, and what is needed of it later. */
struct tunnel {
	void *next;
	const void *end;
	__u32 removed; /* behind the Ethernet header */
	__u32 outer_bytes; /* of the outer packet, its IP header included */
	__u16 geneve_at; /* in the frame */
	__u16 inner_type; /* of Ethernet, host order */
	__be16 outer_port; /* the source port of UDP */
	__u8 protocol;
	__u8 traffic_class;
	__u8 kind;
	/* A datagram: if no agent has its flow, it comes back to its first one. */
	__u8 returns;
	struct options options;
};

static __always_inline void advance(struct tunnel *t, __u32 bytes)
{
	t->next += bytes;
	t->removed += bytes;
}

/* Where the packet inside begins in the frame, when its tunnel was read. */
static __always_inline __u32 inner_at(const struct tunnel *t)
{
	return sizeof(struct ethhdr) + t->removed;
}

/* The traffic class of IPv6, which straddles two bytes. */
static __always_inline __u8 traffic_class_v6(const struct ipv6hdr *ip)
{
	return ip->priority << 4 | ip->flow_lbl[0] >> 4;
}

/* IPv4 among IPv6 addresses (RFC 4291, section 2.5.5.2). */
static __always_inline struct in6_addr mapped(__be32 address)
{
	return (struct in6_addr){ .in6_u.u6_addr32 = { 0, 0, bpf_htonl(0xffff), address } };
}

static __always_inline int is_mapped(const struct in6_addr *address)
{
	const __be32 *words = address->in6_u.u6_addr32;

	return !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
}

#endif
