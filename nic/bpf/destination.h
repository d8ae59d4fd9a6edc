/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Which frames are ours: shared by the XDP filter and the packet-socket one.
 *
 * A frame to the device's own Ethernet address (what a switch floods, and broadcasts,
 * are the kernel's) is ours by its destination prefix alone; nothing beyond the fixed
 * IP header is looked at, so fragments, options, extension headers and lying
 * lengths all reach the forwarder, which judges and counts them. For the
 * machine's own addresses the tunnel protocol (or UDP port) is looked at too,
 * so that BGP, ssh and probe replies stay with the kernel: behind the IP
 * header, or behind one IPv6 Destination Options header, which Linux's ip6gre
 * writes before GRE (the Tunnel Encapsulation Limit of RFC 2473). Behind any
 * other extension header, and behind a second one, all is the kernel's.
 *
 * Neighbour solicitations (RFC 4861) are the kernel's, and by it the speaker's: who
 * owns a VIP on the segment answers them, and who only forwards does not.
 */
#ifndef GUIDEWAY_DESTINATION_H
#define GUIDEWAY_DESTINATION_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "tunnels.h"

/* Every exact VIP is a prefix of full length: as many as services may have. */
#define PREFIXES_MAX 65536
#define OWN_ADDRESSES_MAX 64

struct prefix_v4 {
	__u32 bits;
	__u8 address[4];
};

struct prefix_v6 {
	__u32 bits;
	__u8 address[16];
};

struct own_address {
	__u8 address[16]; /* IPv4 as ::ffff:a.b.c.d */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, PREFIXES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v4);
	__type(value, __u32);
} prefixes_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, PREFIXES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v6);
	__type(value, __u32);
} prefixes_v6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_ADDRESSES_MAX);
	__type(key, struct own_address);
	__type(value, __u32);
} own_addresses SEC(".maps");

/* One word: whether tunnelled packets to our own addresses are ours. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} take_tunnelled SEC(".maps");

enum counter {
	COUNTER_TAKEN,     /* went to the forwarder */
	COUNTER_PASSED,    /* left to the kernel */
	COUNTER_NO_SOCKET, /* ours, but no socket at its queue: lost */
	COUNTER_UNSENT,    /* the cache holds it, and the kernel had no room for the headers: lost */
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		++*value;
}

/* What is looked at of a frame; the programs differ in how they read it. */
struct summary {
	__u16 ether_type; /* network order */
	__u8 protocol;
	__u8 has_port;
	__u16 port; /* destination, network order */
	__u8 destination[16];
	__u8 is_solicitation;
};

/* Of an IPv6 packet with that next header: neighbour discovery has no extension headers in
 * practice, and a hop limit of 255 (RFC 4861, 7.1.1). */
#define NEIGHBOR_SOLICITATION 135
#define NEIGHBOR_HOP_LIMIT 255

static __always_inline int may_be_neighbors(const struct ipv6hdr *ip)
{
	return ip->nexthdr == IPPROTO_ICMPV6 && ip->hop_limit == NEIGHBOR_HOP_LIMIT;
}

/* The fields of an IPv6 Destination Options header that say what follows it
 * (RFC 8200, section 4.6). */
struct destination_options {
	__u8 next_header;
	__u8 units; /* of eight bytes, beyond the first eight */
};

static __always_inline __u32 options_bytes(const struct destination_options *options)
{
	return (options->units + 1) * 8;
}

static __always_inline int is_tunnel(const struct summary *s)
{
	if (s->protocol == IPPROTO_UDP)
		return s->has_port && is_tunnel_port(s->port);
	return is_tunnel_protocol(s->protocol);
}

static __always_inline int is_own(const struct own_address *address)
{
	__u32 zero = 0;
	__u32 *take = bpf_map_lookup_elem(&take_tunnelled, &zero);

	return take && *take && bpf_map_lookup_elem(&own_addresses, address);
}

static __always_inline int is_ours_v4(const struct summary *s)
{
	struct prefix_v4 key = { .bits = 32 };
	struct own_address own = { .address = { [10] = 0xff, [11] = 0xff } };

	__builtin_memcpy(key.address, s->destination, 4);
	if (bpf_map_lookup_elem(&prefixes_v4, &key))
		return 1;
	__builtin_memcpy(&own.address[12], s->destination, 4);
	return is_tunnel(s) && is_own(&own);
}

static __always_inline int is_ours_v6(const struct summary *s)
{
	struct prefix_v6 key = { .bits = 128 };
	struct own_address own;

	if (s->is_solicitation)
		return 0;
	__builtin_memcpy(key.address, s->destination, 16);
	if (bpf_map_lookup_elem(&prefixes_v6, &key))
		return 1;
	__builtin_memcpy(own.address, s->destination, 16);
	return is_tunnel(s) && is_own(&own);
}

/* ARP, VLAN-tagged and all other frames are the kernel's. */
static __always_inline int is_ours(const struct summary *s)
{
	if (s->ether_type == bpf_htons(ETH_P_IP))
		return is_ours_v4(s);
	if (s->ether_type == bpf_htons(ETH_P_IPV6))
		return is_ours_v6(s);
	return 0;
}

#endif
