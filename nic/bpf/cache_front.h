/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The outer headers of a packet in the kernel flow cache: a target's, and in them the
 * fields that depend on the packet, as datapath/src/encapsulate.rs fills them.
 */
#ifndef GUIDEWAY_CACHE_FRONT_H
#define GUIDEWAY_CACHE_FRONT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cache_plain.h"
#include "context.h"

/* Of Ethernet, IPv6, UDP, Geneve; of GRE over IPv4 in Ethernet. */
#define FRONT_WORDS 9
#define SHORT_FRONT_WORDS 5

/* Words of 4 bytes behind the outer IP header; of IPIP there are none. */
#define GRE_WORDS 1
#define GUE_WORDS 3
#define GENEVE_WORDS 4

/* Above the number of these words. */
#define SHAPE_V6 (1 << 3)
#define SHAPE_UDP (1 << 4)
/* No outer IP header: the frame gets the next hop's addresses, its packet a hop less. */
#define SHAPE_L2 7

#define ADDED_BYTES_V4(words) (sizeof(struct iphdr) + 4 * (words))
#define ADDED_BYTES_V6(words) (sizeof(struct ipv6hdr) + 4 * (words))

#define FLOW_LABEL_MASK 0xfffff

/* RFC 8085, section 5.1.1. */
#define DYNAMIC_PORTS 0xc000

/* What a packet is sent by, copied out of the maps. */
struct outer {
	__u64 front[FRONT_WORDS];
	__u32 flow_hash;
	__u32 source_host_mask;
	__u16 sum;
	__u16 packet_bytes_max; /* of the inner packet */
	__u8 class_mask;
	__u8 class_bits;
	__u8 shape;
	__u8 egress; /* 0: the device that the packet came in by; else its place in the map, plus one */
};

static __always_inline __u8 outer_class(const struct outer *outer, __u8 class)
{
	return (class & outer->class_mask) | outer->class_bits;
}

static __always_inline void fill_v4(struct iphdr *ip, const struct outer *outer, __u8 class, __u32 packet_bytes)
{
	__u32 host = outer->flow_hash & outer->source_host_mask;
	__u32 sum = outer->sum + class + packet_bytes + (host >> 16) + (host & 0xffff);

	ip->tos = class;
	ip->tot_len = bpf_htons(packet_bytes);
	ip->saddr |= bpf_htonl(host);
	ip->check = bpf_htons(~fold(sum) & 0xffff);
}

static __always_inline void fill_v6(struct ipv6hdr *ip, const struct outer *outer, __u8 class, __u32 payload_bytes)
{
	/* RFC 6438: the fabric spreads flows by the flow label. */
	__u32 start = 6U << 28 | (__u32)class << 20 | (outer->flow_hash & FLOW_LABEL_MASK);

	*(__be32 *)ip = bpf_htonl(start);
	ip->payload_len = bpf_htons(payload_bytes);
}

static __always_inline void fill_udp(struct udphdr *udp, const struct outer *outer, __u32 datagram_bytes)
{
	udp->source = bpf_htons(DYNAMIC_PORTS | (outer->flow_hash & ~DYNAMIC_PORTS & 0xffff));
	udp->len = bpf_htons(datagram_bytes);
}

/* What the kernel is to know of the headers. */
static __always_inline __u64 tunnel_of(const int is_v6, const __u32 words)
{
	return (is_v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4) |
	       (words >= GUE_WORDS ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : words ? BPF_F_ADJ_ROOM_ENCAP_L4_GRE : 0);
}

/* Makes room for the headers, the outer Ethernet header in the place of the inner one,
 * and writes what does not depend on the packet, by words wherever they lie: x86. */
static __always_inline void *put_front(void *ctx, const enum hook hook, const struct outer *outer,
				       const __u32 added_bytes, const __u64 tunnel)
{
	const __u32 bytes = ETH_HLEN + added_bytes, words = bytes / 8;
	const void *front = outer->front;
	void *data;

	if (make_room(ctx, hook, added_bytes, tunnel))
		return 0;
	data = frame_start(ctx, hook);
	if (data + bytes > frame_end(ctx, hook))
		return 0;
#pragma unroll
	for (__u32 i = 0; i < words; i++)
		((__u64 *)data)[i] = outer->front[i];
	/* What is left is 2 or 6 bytes. */
	if (bytes % 8 == 6)
		*(__u32 *)(data + 8 * words) = *(const __u32 *)(front + 8 * words);
	*(__u16 *)(data + bytes - 2) = *(const __u16 *)(front + bytes - 2);
	return data;
}

/* The outer headers of IPv4 with that many words behind it; false: there is no room. */
static __always_inline int wrap_v4(void *ctx, const enum hook hook, const struct outer *outer, __u8 class,
				   __u32 packet_bytes, const __u32 words)
{
	const __u32 added_bytes = ADDED_BYTES_V4(words);
	void *data = put_front(ctx, hook, outer, added_bytes, tunnel_of(0, words));
	struct iphdr *ip = data + ETH_HLEN;

	if (!data)
		return 0;
	fill_v4(ip, outer, outer_class(outer, class), packet_bytes + added_bytes);
	if (words >= GUE_WORDS)
		fill_udp((void *)(ip + 1), outer, packet_bytes + 4 * words);
	sum_room(ctx, hook, ip, added_bytes);
	return 1;
}

/* The same of IPv6. */
static __always_inline int wrap_v6(void *ctx, const enum hook hook, const struct outer *outer, __u8 class,
				   __u32 packet_bytes, const __u32 words)
{
	const __u32 added_bytes = ADDED_BYTES_V6(words);
	void *data = put_front(ctx, hook, outer, added_bytes, tunnel_of(1, words));
	struct ipv6hdr *ip = data + ETH_HLEN;

	if (!data)
		return 0;
	fill_v6(ip, outer, outer_class(outer, class), packet_bytes + 4 * words);
	if (words >= GUE_WORDS)
		fill_udp((void *)(ip + 1), outer, packet_bytes + 4 * words);
	sum_room(ctx, hook, ip, added_bytes);
	return 1;
}

/* Takes a hop from the packet, which is plain: it has one. What is taken from the sum of IPv4's
 * header is added to its complement (RFC 1141), so that a sum over all of it stays. */
static __always_inline int take_hop(void *ctx, const enum hook hook, struct ethhdr *eth)
{
	void *end = frame_end(ctx, hook);
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	__u32 sum;

	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip + 1) > end)
			return 0;
		ip->ttl--;
		sum = (__u32)bpf_ntohs(ip->check) + 0x100;
		ip->check = bpf_htons(sum + (sum >= 0xffff));
		return 1;
	}
	if ((void *)(ip6 + 1) > end)
		return 0;
	ip6->hop_limit--;
	if (hook == TC)
		bpf_csum_update(ctx, bpf_htons(0xfffe));
	return 1;
}

/* Addresses the frame to the next hop. */
static __always_inline int readdress(void *ctx, const enum hook hook, const struct outer *outer)
{
	struct ethhdr *eth = frame_start(ctx, hook);

	if ((void *)(eth + 1) > frame_end(ctx, hook) || !take_hop(ctx, hook, eth))
		return 0;
	*(__u64 *)eth = outer->front[0];
	*(__u32 *)((void *)eth + 8) = (__u32)outer->front[1];
	return 1;
}

static __always_inline int wrap(void *ctx, const enum hook hook, const struct outer *outer, __u8 class,
				__u32 packet_bytes)
{
	switch (outer->shape) {
	case SHAPE_L2:
		return readdress(ctx, hook, outer);
	case 0:
		return wrap_v4(ctx, hook, outer, class, packet_bytes, 0);
	case SHAPE_UDP | GUE_WORDS:
		return wrap_v4(ctx, hook, outer, class, packet_bytes, GUE_WORDS);
	case SHAPE_UDP | GENEVE_WORDS:
		return wrap_v4(ctx, hook, outer, class, packet_bytes, GENEVE_WORDS);
	case SHAPE_V6 | GRE_WORDS:
		return wrap_v6(ctx, hook, outer, class, packet_bytes, GRE_WORDS);
	case SHAPE_V6:
		return wrap_v6(ctx, hook, outer, class, packet_bytes, 0);
	case SHAPE_V6 | SHAPE_UDP | GUE_WORDS:
		return wrap_v6(ctx, hook, outer, class, packet_bytes, GUE_WORDS);
	case SHAPE_V6 | SHAPE_UDP | GENEVE_WORDS:
		return wrap_v6(ctx, hook, outer, class, packet_bytes, GENEVE_WORDS);
	default:
		return 0;
	}
}

/* Makes the packet of a frame a tunnel's; false: it stays as it is, but for padding. */
static __always_inline int encapsulate(void *ctx, const enum hook hook, const struct outer *outer, __u8 class,
				       __u32 packet_bytes)
{
	if (cut_frame(ctx, hook, ETH_HLEN + packet_bytes))
		return 0;
	/* First what is most. */
	if (outer->shape == GRE_WORDS)
		return wrap_v4(ctx, hook, outer, class, packet_bytes, GRE_WORDS);
	return wrap(ctx, hook, outer, class, packet_bytes);
}

#endif
