/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Where a program is attached, and the frame that it runs for: the same for both hooks, of
 * which `hook` is known when it is compiled.
 */
#ifndef GUIDEWAY_HOOK_H
#define GUIDEWAY_HOOK_H

#include <linux/bpf.h>
#include <linux/types.h>

/* The context is a struct xdp_md, or a struct __sk_buff. */
enum hook { XDP, TC };

static __always_inline void *frame_start(const void *ctx, const enum hook hook)
{
	return hook == XDP ? (void *)(long)((const struct xdp_md *)ctx)->data :
			     (void *)(long)((const struct __sk_buff *)ctx)->data;
}

/* Of what can be reached by pointers: at TC no more than the headers may be. */
static __always_inline void *frame_end(const void *ctx, const enum hook hook)
{
	return hook == XDP ? (void *)(long)((const struct xdp_md *)ctx)->data_end :
			     (void *)(long)((const struct __sk_buff *)ctx)->data_end;
}

#endif
