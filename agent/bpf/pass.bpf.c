// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Passes every frame: for the far ends of veth pairs in tests. A frame that the
 * near end sends by XDP_TX waits there until something else is received, unless
 * the far end has a program, too.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int guideway_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
