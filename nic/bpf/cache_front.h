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
};

struct front_v4 {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp; /* if the shape has it */
} __attribute__((packed));

struct front_v6 {
	struct ethhdr ethernet;
	struct ipv6hdr ip;
	struct udphdr udp;
} __attribute__((packed));

static __always_inline __u8 outer_class(const struct outer *outer, __u8 class)
{
	return (class & outer->class_mask) | outer->class_bits;
}

static __always_inline void fill_v4(struct front_v4 *front, const struct outer *outer, __u8 class, __u32 packet_bytes)
{
	__u32 host = outer->flow_hash & outer->source_host_mask;
	__u32 sum = outer->sum + class + packet_bytes + (host >> 16) + (host & 0xffff);

	front->ip.tos = class;
	front->ip.tot_len = bpf_htons(packet_bytes);
	front->ip.saddr |= bpf_htonl(host);
	front->ip.check = bpf_htons(~fold(sum) & 0xffff);
}

static __always_inline __be16 source_port(const struct outer *outer)
{
	return bpf_htons(DYNAMIC_PORTS | (outer->flow_hash & ~DYNAMIC_PORTS & 0xffff));
}

/* Makes room for the headers, the outer Ethernet header in the place of the inner one. */
static __always_inline void *make_room(struct xdp_md *ctx, const __u32 added_bytes)
{
	void *data;

	if (bpf_xdp_adjust_head(ctx, -(int)added_bytes))
		return 0;
	data = (void *)(long)ctx->data;
	return data + ETH_HLEN + added_bytes > (void *)(long)ctx->data_end ? 0 : data;
}

/* The outer headers of IPv4 with that many words behind it; false: there is no room. */
static __always_inline int wrap_v4(struct xdp_md *ctx, struct outer *outer, __u8 class, __u32 packet_bytes,
				   const __u32 words)
{
	struct front_v4 *front = (void *)outer->front;
	void *data = make_room(ctx, ADDED_BYTES_V4(words));

	if (!data)
		return 0;
	fill_v4(front, outer, outer_class(outer, class), packet_bytes + ADDED_BYTES_V4(words));
	if (words >= GUE_WORDS) {
		front->udp.source = source_port(outer);
		front->udp.len = bpf_htons(packet_bytes + 4 * words);
	}
	__builtin_memcpy(data, front, ETH_HLEN + ADDED_BYTES_V4(words));
	return 1;
}

/* The same of IPv6. */
static __always_inline int wrap_v6(struct xdp_md *ctx, struct outer *outer, __u8 class, __u32 packet_bytes,
				   const __u32 words)
{
	struct front_v6 *front = (void *)outer->front;
	void *data = make_room(ctx, ADDED_BYTES_V6(words));
	__be16 payload_bytes = bpf_htons(packet_bytes + 4 * words);
	__be32 start;

	if (!data)
		return 0;
	/* RFC 6438: the fabric spreads flows by the flow label. */
	start = bpf_htonl(6U << 28 | (__u32)outer_class(outer, class) << 20 | (outer->flow_hash & FLOW_LABEL_MASK));
	__builtin_memcpy((void *)front + ETH_HLEN, &start, sizeof(start));
	front->ip.payload_len = payload_bytes;
	if (words >= GUE_WORDS) {
		front->udp.source = source_port(outer);
		front->udp.len = payload_bytes;
	}
	__builtin_memcpy(data, front, ETH_HLEN + ADDED_BYTES_V6(words));
	return 1;
}

static __always_inline int wrap(struct xdp_md *ctx, struct outer *outer, __u8 class, __u32 packet_bytes)
{
	switch (outer->shape) {
	case 0:
		return wrap_v4(ctx, outer, class, packet_bytes, 0);
	case SHAPE_UDP | GUE_WORDS:
		return wrap_v4(ctx, outer, class, packet_bytes, GUE_WORDS);
	case SHAPE_UDP | GENEVE_WORDS:
		return wrap_v4(ctx, outer, class, packet_bytes, GENEVE_WORDS);
	case SHAPE_V6 | GRE_WORDS:
		return wrap_v6(ctx, outer, class, packet_bytes, GRE_WORDS);
	case SHAPE_V6:
		return wrap_v6(ctx, outer, class, packet_bytes, 0);
	case SHAPE_V6 | SHAPE_UDP | GUE_WORDS:
		return wrap_v6(ctx, outer, class, packet_bytes, GUE_WORDS);
	case SHAPE_V6 | SHAPE_UDP | GENEVE_WORDS:
		return wrap_v6(ctx, outer, class, packet_bytes, GENEVE_WORDS);
	default:
		return 0;
	}
}

/* Makes the packet of a frame a tunnel's; false: it stays as it is, but for padding. */
static __always_inline int encapsulate(struct xdp_md *ctx, struct outer *outer, __u8 class, __u32 packet_bytes)
{
	__u32 frame_bytes = ctx->data_end - ctx->data;
	__u32 used_bytes = ETH_HLEN + packet_bytes;

	if (frame_bytes > used_bytes && bpf_xdp_adjust_tail(ctx, (int)used_bytes - (int)frame_bytes))
		return 0;
	/* First what is most. */
	if (outer->shape == GRE_WORDS)
		return wrap_v4(ctx, outer, class, packet_bytes, GRE_WORDS);
	return wrap(ctx, outer, class, packet_bytes);
}

#endif
