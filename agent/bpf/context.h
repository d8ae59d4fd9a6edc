/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * How programs read and write the frame that they run for: by its place, so that frames in
 * several pieces are read as any others; and what is done with it.
 */
#ifndef GUIDEWAY_AGENT_CONTEXT_H
#define GUIDEWAY_AGENT_CONTEXT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "hook.h"

/* Where tunnels are opened (agent_tc.bpf.c). */
#ifdef OPENS_AT_TC
#define HOOK TC
#define HOOK_SECTION "classifier"
typedef struct __sk_buff frame_md;
#else
#define HOOK XDP
#define HOOK_SECTION "xdp"
typedef struct xdp_md frame_md;
#endif

/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6 (Linux 6.3), which Debian 12's headers lack. */
#define NOW_IPV4 (1 << 7)
#define NOW_IPV6 (1 << 8)

/* Segments stay joined, of the size that they have, and checksums left to a device. */
#define OFFLOADS_KEPT (BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET)

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u32 frame_bytes(void *ctx, enum hook hook)
{
	return hook == XDP ? bpf_xdp_get_buff_len(ctx) : ((struct __sk_buff *)ctx)->len;
}

/* Of the payload of each segment that is joined in the frame; 0: it is one packet. */
static __always_inline __u32 joined_bytes(const void *ctx, enum hook hook)
{
	return hook == XDP ? 0 : ((const struct __sk_buff *)ctx)->gso_size;
}

/* True if the kernel has taken a VLAN tag out of the frame by now. */
static __always_inline int lost_tag(const void *ctx, enum hook hook)
{
	return hook == TC && ((const struct __sk_buff *)ctx)->vlan_present;
}

/* Has the frame's first bytes reached by pointers, which at TC may be in another piece. */
static __always_inline void reach(void *ctx, enum hook hook, __u32 bytes)
{
	struct __sk_buff *skb = ctx;

	if (hook == TC && frame_start(ctx, hook) + bytes > frame_end(ctx, hook))
		bpf_skb_pull_data(skb, skb->len < bytes ? skb->len : bytes);
}

/* A length that has been checked, for a helper of the kernel's: the verifier learns that it is
 * from 1 to room, a power of two, which is the size of what the helper reads or writes. From
 * the checks it may learn nothing: clang may compare another register than the one that is
 * used, and Linux 6.1 learns nothing from a comparison with zero. */
static __always_inline __u32 within(__u32 length, __u32 room)
{
	length -= 1;
	barrier_var(length);
	return (length & (room - 1)) + 1;
}

/* 0, if all of it is in the frame. */
static __always_inline long load(void *ctx, enum hook hook, __u32 at, void *to, __u32 bytes)
{
	return hook == XDP ? bpf_xdp_load_bytes(ctx, at, to, bytes) :
			     bpf_skb_load_bytes(ctx, at, to, bytes);
}

/* What is written is made up for by a checksum in the frame. */
static __always_inline long store(void *ctx, enum hook hook, __u32 at, void *from, __u32 bytes)
{
	return hook == XDP ? bpf_xdp_store_bytes(ctx, at, from, bytes) :
			     bpf_skb_store_bytes(ctx, at, from, bytes, 0);
}

/* It is not: of a frame that a device has summed, the sum is changed. */
static __always_inline long store_unsummed(void *ctx, enum hook hook, __u32 at, void *from,
					   __u32 bytes)
{
	return hook == XDP ? bpf_xdp_store_bytes(ctx, at, from, bytes) :
			     bpf_skb_store_bytes(ctx, at, from, bytes, BPF_F_RECOMPUTE_CSUM);
}

/* Changes a checksum as the sum of what it is about has changed (bpf_csum_diff()). */
static __always_inline long change_check(void *ctx, enum hook hook, __u32 check_at, __s64 change)
{
	__sum16 check;

	if (load(ctx, hook, check_at, &check, sizeof(check)))
		return -1;
	check = ~folded(folded(change) + (__u16)~check);
	return store(ctx, hook, check_at, &check, sizeof(check));
}

/* The same for one of TCP: at TC the kernel does so also where a device is to complete it. */
static __always_inline long change_tcp_check(void *ctx, enum hook hook, __u32 check_at,
					     __s64 change)
{
	return hook == XDP ? change_check(ctx, hook, check_at, change) :
			     bpf_l4_csum_replace(ctx, check_at, 0, change, 0);
}

/* Makes room for Ethernet's header and what is behind it, in the place of the frame's first
 * bytes; 0: it is done. The kernel takes what comes then for a packet of this Ethernet type. */
static __always_inline long change_room(struct __sk_buff *skb, __u32 replaced, __u32 behind,
					__u32 type)
{
	__u64 now = type == ETH_P_IP ? NOW_IPV4 : NOW_IPV6;

	return (behind &&
		bpf_skb_adjust_room(skb, behind, BPF_ADJ_ROOM_MAC, OFFLOADS_KEPT)) ||
	       bpf_skb_adjust_room(skb, ETH_HLEN - (int)replaced, BPF_ADJ_ROOM_MAC,
				   OFFLOADS_KEPT | now);
}

/* Writes these headers, Ethernet's and so many bytes behind it, in the place of the frame's
 * first `replaced` bytes; 0: it is done. */
static __always_inline long replace_begin(void *ctx, enum hook hook, __u32 replaced,
					  struct ethhdr *headers, __u32 behind)
{
	if (hook == XDP)
		return bpf_xdp_adjust_head(ctx, (int)replaced - ETH_HLEN - (int)behind) ||
		       store(ctx, hook, 0, headers, ETH_HLEN + behind);
	/* Devices do not sum what is of Ethernet. */
	return change_room(ctx, replaced, behind, bpf_ntohs(headers->h_proto)) ||
	       store(ctx, hook, 0, headers, ETH_HLEN) ||
	       (behind && store_unsummed(ctx, hook, ETH_HLEN, headers + 1, behind));
}

/* What the kernel is to do with the frame. Other programs at TC go on with what is passed. */
static __always_inline int verdict(void *ctx, enum hook hook, enum xdp_action action)
{
	if (hook == XDP)
		return action;
	if (action == XDP_PASS)
		return TC_ACT_UNSPEC;
	return action == XDP_TX ? bpf_redirect(((struct __sk_buff *)ctx)->ifindex, 0) : TC_ACT_SHOT;
}

#endif
