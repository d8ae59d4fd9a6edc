// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For measurements: the least that a program can do which encapsulates. Each IPv4
 * packet gets the same header in front and goes back where it came from.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* IPv4 and GRE in it. Written before the program is loaded. */
struct outer {
	__u32 words[6];
};

const volatile struct outer reflected = {};

struct headers {
	struct ethhdr ethernet;
	struct outer outer;
} __attribute__((packed));

#define ADDED_BYTES sizeof(struct outer)

SEC("xdp")
int guideway_reflect(struct xdp_md *ctx)
{
	struct headers *headers = (void *)(long)ctx->data;
	struct ethhdr ethernet;

	if ((void *)(headers + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	ethernet = headers->ethernet;
	if (ethernet.h_proto != bpf_htons(ETH_P_IP) || bpf_xdp_adjust_head(ctx, -(int)ADDED_BYTES))
		return XDP_PASS;
	headers = (void *)(long)ctx->data;
	if ((void *)(headers + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(headers->ethernet.h_dest, ethernet.h_source, ETH_ALEN);
	__builtin_memcpy(headers->ethernet.h_source, ethernet.h_dest, ETH_ALEN);
	headers->ethernet.h_proto = ethernet.h_proto;
	for (int i = 0; i < 6; i++)
		headers->outer.words[i] = reflected.words[i];
	return XDP_TX;
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
