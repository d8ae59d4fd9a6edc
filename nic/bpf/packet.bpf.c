// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For interfaces without XDP: the same choice twice. A packet socket sees
 * frames before traffic control does, so the socket takes what is ours
 * (guideway_take) and traffic control keeps it from the kernel
 * (guideway_drop). Only the former counts: each frame meets both.
 */
#include "destination.h"

#define FRAME_WHOLE 0x7fffffff
#define TC_ACT_UNSPEC (-1)
#define TC_ACT_SHOT 2
#define PACKET_HOST 0
#define PACKET_OUTGOING 4
#define IPV4_OFFSET_MASK 0x1fff

static __always_inline void read_port(struct summary *s, struct __sk_buff *skb, __u32 at)
{
	struct udphdr udp;

	if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)))
		return;
	s->port = udp.dest;
	s->has_port = 1;
}

static __always_inline int read_v4(struct summary *s, struct __sk_buff *skb)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	__builtin_memcpy(s->destination, &ip.daddr, 4);
	s->protocol = ip.protocol;
	if (ip.protocol == IPPROTO_UDP && !(ip.frag_off & bpf_htons(IPV4_OFFSET_MASK)))
		read_port(s, skb, ETH_HLEN + ip.ihl * 4);
	return 1;
}

/* The upper layer of an IPv6 packet, at most one options header further on. */
static __always_inline void read_upper_v6(struct summary *s, __u8 protocol, struct __sk_buff *skb, __u32 at)
{
	struct destination_options options;

	if (protocol == IPPROTO_DSTOPTS && !bpf_skb_load_bytes(skb, at, &options, sizeof(options))) {
		protocol = options.next_header;
		at += options_bytes(&options);
	}
	s->protocol = protocol;
	if (protocol == IPPROTO_UDP)
		read_port(s, skb, at);
}

static __always_inline int read_v6(struct summary *s, struct __sk_buff *skb)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	__builtin_memcpy(s->destination, &ip.daddr, 16);
	read_upper_v6(s, ip.nexthdr, skb, ETH_HLEN + sizeof(ip));
	return 1;
}

static __always_inline int is_ours_skb(struct __sk_buff *skb)
{
	struct summary s = {};
	int whole = 0;

	/* To another address than the device's. */
	if (skb->pkt_type != PACKET_HOST)
		return 0;
	/* The kernel has taken a VLAN tag out of the frame by now. */
	if (skb->vlan_present)
		return 0;
	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &s.ether_type, sizeof(s.ether_type)))
		return 0;
	if (s.ether_type == bpf_htons(ETH_P_IP))
		whole = read_v4(&s, skb);
	else if (s.ether_type == bpf_htons(ETH_P_IPV6))
		whole = read_v6(&s, skb);
	return whole && is_ours(&s);
}

SEC("socket")
int guideway_take(struct __sk_buff *skb)
{
	if (skb->pkt_type == PACKET_OUTGOING)
		return 0;
	if (!is_ours_skb(skb)) {
		count(COUNTER_PASSED);
		return 0;
	}
	count(COUNTER_TAKEN);
	return FRAME_WHOLE;
}

SEC("classifier")
int guideway_drop(struct __sk_buff *skb)
{
	return is_ours_skb(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
