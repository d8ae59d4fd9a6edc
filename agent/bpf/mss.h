/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Lowers the MSS of SYN/ACKs that leave from VIPs, so that what clients send fits
 * into tunnels. At the interface's egress: what is sent is the kernel's own, and
 * goes to the client directly.
 */
#ifndef GUIDEWAY_AGENT_MSS_H
#define GUIDEWAY_AGENT_MSS_H

#include <linux/pkt_cls.h>
#include <stddef.h>

#include "connection.h"
#include "frame.h"
#include "options.h"

#define TCP_OPTION_MSS 2
#define TCP_OPTION_MSS_BYTES 4
/* One of each kind that the kernel writes, and padding: the MSS comes first. */
#define TCP_OPTIONS_MAX 10

/* By family: IPv4, IPv6. */
struct clamp {
	__u32 mss; /* zero: left as it is */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct clamp);
} clamps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} clamped SEC(".maps");

/* Where the TCP header of a packet from a VIP is in the frame, and its family; 0: it
 * is none. */
static __always_inline __u32 vip_tcp_at(struct __sk_buff *skb, __u32 *family)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct ethhdr *ethernet = data;
	const struct ipv6hdr *v6 = (void *)(ethernet + 1);
	const struct iphdr *v4 = (void *)(ethernet + 1);
	struct prefix_v4 vip_v4 = { .bits = 32 };
	struct prefix_v6 vip_v6 = { .bits = 128 };

	if ((void *)(v4 + 1) > end)
		return 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		if (v4->protocol != IPPROTO_TCP || v4->frag_off & bpf_htons(IPV4_OFFSET))
			return 0;
		*family = 0;
		vip_v4.address = v4->saddr;
		return bpf_map_lookup_elem(&vips_v4, &vip_v4) ? sizeof(*ethernet) + v4->ihl * 4 : 0;
	}
	if (ethernet->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(v6 + 1) > end ||
	    v6->nexthdr != IPPROTO_TCP)
		return 0;
	*family = 1;
	vip_v6.address = v6->saddr;
	return bpf_map_lookup_elem(&vips_v6, &vip_v6) ? sizeof(*ethernet) + sizeof(*v6) : 0;
}

/* Where the value of the MSS option is in the frame; 0: there is none. */
static __always_inline __u32 mss_at(struct __sk_buff *skb, __u32 tcp_at)
{
	__u32 at = tcp_at + sizeof(struct tcphdr);
	struct tcphdr tcp;
	__u8 option[2];

	if (bpf_skb_load_bytes(skb, tcp_at, &tcp, sizeof(tcp)))
		return 0;
	if ((flags_of(&tcp) & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK))
		return 0;
	for (int i = 0; i < TCP_OPTIONS_MAX && at < tcp_at + tcp.doff * 4; i++) {
		if (bpf_skb_load_bytes(skb, at, option, sizeof(option)) ||
		    option[0] == TCP_OPTION_END)
			return 0;
		if (option[0] == TCP_OPTION_NOP) {
			at++;
			continue;
		}
		if (option[0] == TCP_OPTION_MSS)
			return option[1] == TCP_OPTION_MSS_BYTES ? at + 2 : 0;
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	return 0;
}

static __always_inline void clamp_mss(struct __sk_buff *skb)
{
	__u32 family = 0, tcp_at = vip_tcp_at(skb, &family), at;
	struct clamp *clamp;
	__be16 before, after;
	__u64 *count;

	if (!tcp_at)
		return;
	at = mss_at(skb, tcp_at);
	clamp = bpf_map_lookup_elem(&clamps, &family);
	if (!at || !clamp || bpf_skb_load_bytes(skb, at, &before, sizeof(before)))
		return;
	if (!clamp->mss || bpf_ntohs(before) <= clamp->mss)
		return;
	after = bpf_htons(clamp->mss);
	if (bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0))
		return;
	/* The sum is one of words: behind an odd number of bytes the value straddles two,
	 * as if its bytes were swapped (RFC 1071, section 2B). */
	if ((at - tcp_at) & 1) {
		before = __builtin_bswap16(before);
		after = __builtin_bswap16(after);
	}
	/* The kernel keeps the checksum true also where a device completes it. */
	if (bpf_l4_csum_replace(skb, tcp_at + offsetof(struct tcphdr, check), before, after,
				sizeof(after)))
		return;
	count = bpf_map_lookup_elem(&clamped, &family);
	if (count)
		++*count;
}

#endif
