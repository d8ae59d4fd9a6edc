// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For measurements: the least that a program can do which encapsulates. Each IPv4
 * packet gets the same header in front and goes back where it came from.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "context.h"

/* IPv4 and GRE in it. Written before the program is loaded. */
struct outer {
	__u32 words[6];
};

const volatile struct outer reflected = {};

struct headers {
	struct ethhdr ethernet;
	struct outer outer;
} __attribute__((packed));

#define TUNNEL (BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_GRE)

/* False: the packet is another one. */
static __always_inline int push(void *ctx, const enum hook hook)
{
	struct headers *headers = frame_start(ctx, hook);
	struct ethhdr ethernet;

	if ((void *)(headers + 1) > frame_end(ctx, hook))
		return 0;
	ethernet = headers->ethernet;
	if (ethernet.h_proto != bpf_htons(ETH_P_IP) || make_room(ctx, hook, sizeof(struct outer), TUNNEL))
		return 0;
	headers = frame_start(ctx, hook);
	if ((void *)(headers + 1) > frame_end(ctx, hook))
		return 0;
	__builtin_memcpy(headers->ethernet.h_dest, ethernet.h_source, ETH_ALEN);
	__builtin_memcpy(headers->ethernet.h_source, ethernet.h_dest, ETH_ALEN);
	headers->ethernet.h_proto = ethernet.h_proto;
	for (int i = 0; i < 6; i++)
		headers->outer.words[i] = reflected.words[i];
	return 1;
}

SEC("xdp")
int guideway_reflect(struct xdp_md *ctx)
{
	return push(ctx, XDP) ? XDP_TX : XDP_PASS;
}

SEC("classifier")
int guideway_reflect_skb(struct __sk_buff *skb)
{
	return push(skb, TC) ? bpf_redirect(skb->ifindex, 0) : TC_ACT_UNSPEC;
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
