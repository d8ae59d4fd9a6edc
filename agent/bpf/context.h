/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * How programs read and write the frame that they run for: by its place, so that frames in
 * several pieces are read as any others. The same for both hooks, of which `hook` is known
 * when it is compiled.
 */
#ifndef GUIDEWAY_AGENT_CONTEXT_H
#define GUIDEWAY_AGENT_CONTEXT_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Where a program is attached: its context is a struct xdp_md, or a struct __sk_buff. */
enum hook { XDP, TC };

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* 0, if all of it is in the frame. */
static __always_inline long load(void *ctx, enum hook hook, __u32 at, void *to, __u32 bytes)
{
	return hook == XDP ? bpf_xdp_load_bytes(ctx, at, to, bytes) :
			     bpf_skb_load_bytes(ctx, at, to, bytes);
}

static __always_inline long store(void *ctx, enum hook hook, __u32 at, void *from, __u32 bytes)
{
	return hook == XDP ? bpf_xdp_store_bytes(ctx, at, from, bytes) :
			     bpf_skb_store_bytes(ctx, at, from, bytes, 0);
}

/* Changes a checksum of TCP as the sum of what it is about has changed (bpf_csum_diff()). At
 * TC the kernel does so also where a device is to complete it. */
static __always_inline long change_check(void *ctx, enum hook hook, __u32 check_at, __s64 change)
{
	__sum16 check;

	if (hook == TC)
		return bpf_l4_csum_replace(ctx, check_at, 0, change, 0);
	if (load(ctx, hook, check_at, &check, sizeof(check)))
		return -1;
	check = ~folded(folded(change) + (__u16)~check);
	return store(ctx, hook, check_at, &check, sizeof(check));
}

#endif
