/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The packet inside a tunnel: whether it may leave it, and its ECN field when
 * it does.
 */
#ifndef GUIDEWAY_AGENT_INNER_H
#define GUIDEWAY_AGENT_INNER_H

#include "frame.h"
#include "ip.h"

/* Reads the IP header of the packet inside. NONE, if it may leave the tunnel. */
static __always_inline enum reason read_inner(frame_md *ctx, const struct tunnel *t,
					      struct ip_packet *ip)
{
	if (t->inner_type != ETH_P_IP && t->inner_type != ETH_P_IPV6)
		return INNER_PROTOCOL;
	if (read_ip(ctx, HOOK, inner_at(t), t->inner_type, ip))
		return INNER_HEADER;
	return is_vip(ip->type, &ip->destination) ? NONE : NOT_VIP;
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

/* Writes the ECN field of the packet inside, whose family says where in the first half word
 * it is. */
static __always_inline int write_ecn(frame_md *ctx, const struct ip_packet *ip, __u16 ecn)
{
	__u16 shift = ip->type == ETH_P_IP ? 0 : 4, before, after;

	if (load(ctx, HOOK, ip->header_at, &before, sizeof(before)))
		return -1;
	after = (before & ~bpf_htons(3 << shift)) | bpf_htons(ecn << shift);
	if (ip->type != ETH_P_IP)
		return store_unsummed(ctx, HOOK, ip->header_at, &after, sizeof(after));
	if (store(ctx, HOOK, ip->header_at, &after, sizeof(after)))
		return -1;
	/* RFC 1624, equation 3. */
	return change_check(ctx, HOOK, ip->header_at + offsetof(struct iphdr, check),
			    (__u16)~before + after);
}

/* Brings the outer ECN field in. NONE, or why the packet may not leave. */
static __always_inline enum reason finish_inner(frame_md *ctx, const struct tunnel *t,
						const struct ip_packet *ip)
{
	int inner = ip->traffic_class & 3, ecn = combined(t->traffic_class & 3, inner);

	if (ecn < 0)
		return ECN;
	return ecn == inner || !write_ecn(ctx, ip, ecn) ? NONE : INNER_HEADER;
}

#endif
