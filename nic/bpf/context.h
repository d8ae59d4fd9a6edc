/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What differs where a program is attached: how the frame that it runs for gets longer and
 * shorter.
 */
#ifndef GUIDEWAY_CONTEXT_H
#define GUIDEWAY_CONTEXT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "hook.h"

/* Cuts off what is behind so many bytes; 0: it is done. */
static __always_inline long cut_frame(void *ctx, const enum hook hook, __u32 bytes)
{
	long frame_bytes;

	if (hook == TC)
		return ((struct __sk_buff *)ctx)->len > bytes ? bpf_skb_change_tail(ctx, bytes, 0) : 0;
	frame_bytes = frame_end(ctx, hook) - frame_start(ctx, hook);
	barrier_var(frame_bytes);
	return frame_bytes > bytes ? bpf_xdp_adjust_tail(ctx, (int)bytes - (int)frame_bytes) : 0;
}

/* Makes room for a tunnel's headers behind an Ethernet header's; 0: it is done. At TC the
 * kernel learns what they are, so that segments stay joined, and of the size that they have,
 * and checksums left to a device. */
static __always_inline long make_room(void *ctx, const enum hook hook, const __u32 bytes, const __u64 tunnel)
{
	if (hook == XDP)
		return bpf_xdp_adjust_head(ctx, -(int)bytes);
	return bpf_skb_adjust_room(ctx, bytes, BPF_ADJ_ROOM_MAC,
				   tunnel | BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET);
}

/* To be called when these headers are written: a device that has summed the whole packet
 * has not summed them. */
static __always_inline void sum_room(void *ctx, const enum hook hook, void *headers, const __u32 bytes)
{
	if (hook == TC)
		bpf_csum_update(ctx, bpf_csum_diff(0, 0, headers, bytes, 0));
}

#endif
