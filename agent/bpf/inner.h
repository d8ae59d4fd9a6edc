/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The packet inside a tunnel: whether it may leave it, and its ECN field when
 * it does.
 */
#ifndef GUIDEWAY_AGENT_INNER_H
#define GUIDEWAY_AGENT_INNER_H

#include "frame.h"

static __always_inline __u32 read_inner_v4(const struct tunnel *t)
{
	const struct iphdr *ip = t->next;
	struct prefix_v4 vip = { .bits = 32 };

	if ((const void *)(ip + 1) > t->end || ip->version != 4 || ip->ihl < 5)
		return INNER_HEADER;
	vip.address = ip->daddr;
	return bpf_map_lookup_elem(&vips_v4, &vip) ? t->kind : NOT_VIP;
}

static __always_inline __u32 read_inner_v6(const struct tunnel *t)
{
	const struct ipv6hdr *ip = t->next;
	struct prefix_v6 vip = { .bits = 128 };

	if ((const void *)(ip + 1) > t->end || ip->version != 6)
		return INNER_HEADER;
	vip.address = ip->daddr;
	return bpf_map_lookup_elem(&vips_v6, &vip) ? t->kind : NOT_VIP;
}

/* The kind of tunnel, or why the packet inside may not leave it. */
static __always_inline __u32 read_inner(const struct tunnel *t)
{
	if (t->inner_type == ETH_P_IP)
		return read_inner_v4(t);
	if (t->inner_type == ETH_P_IPV6)
		return read_inner_v6(t);
	return INNER_PROTOCOL;
}

/* RFC 6040, figure 4: the ECN field that leaves, or -1 for a drop. */
static __always_inline int combined(__u8 outer, __u8 inner)
{
	enum { NOT_ECT, ECT_1, ECT_0, CE };

	if (outer == CE)
		return inner == NOT_ECT ? -1 : CE;
	if (outer == ECT_1 && inner == ECT_0)
		return ECT_1;
	return inner;
}

static __always_inline __u32 finish_inner_v4(const struct tunnel *t)
{
	struct iphdr *ip = t->next;
	__u16 before, after;
	int ecn;

	if ((const void *)(ip + 1) > t->end)
		return INNER_HEADER;
	ecn = combined(t->traffic_class & 3, ip->tos & 3);
	if (ecn < 0)
		return ECN;
	if (ecn == (ip->tos & 3))
		return t->kind;
	/* RFC 1624, equation 3, over the word that the field is in. */
	before = *(__u16 *)ip;
	ip->tos = (ip->tos & ~3) | ecn;
	after = *(__u16 *)ip;
	ip->check = ~folded((__u16)~ip->check + (__u16)~before + after);
	return t->kind;
}

static __always_inline __u32 finish_inner_v6(const struct tunnel *t)
{
	struct ipv6hdr *ip = t->next;
	int ecn;

	if ((const void *)(ip + 1) > t->end)
		return INNER_HEADER;
	ecn = combined(t->traffic_class & 3, traffic_class_v6(ip) & 3);
	if (ecn < 0)
		return ECN;
	ip->flow_lbl[0] = (ip->flow_lbl[0] & ~0x30) | ecn << 4;
	return t->kind;
}

/* Brings the outer ECN field in; the kind of tunnel, or ECN. */
static __always_inline __u32 finish_inner(const struct tunnel *t)
{
	return t->inner_type == ETH_P_IP ? finish_inner_v4(t) : finish_inner_v6(t);
}

#endif
