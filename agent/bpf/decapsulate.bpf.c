// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Takes packets out of the load balancers' tunnels, on a backend.
 *
 *   Ethernet | outer IP | GRE, GUE, Geneve or nothing | inner IP | ...
 *                                                       '-- becomes the frame
 *
 * The frame that remains is passed to the kernel, which has the VIP on lo and
 * answers the client directly. Only tunnels from configured sources are ours;
 * all else is the kernel's, untouched. Only packets to configured VIPs leave
 * a tunnel. What is ours and wrong is dropped, each
 * kind counted under its own name.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "tunnels.h"

#define ADDRESSES_MAX 4096 /* config/mod.rs has it too */
#define IPV4_MORE_AND_OFFSET 0x3fff

/* What became of a frame. The loader has the same list, in the same order. */
enum outcome {
	PASSED,         /* no tunnel packet: the kernel's */
	UNKNOWN_SOURCE, /* a tunnel that is not ours: the kernel's */
	GRE,            /* taken out of each kind of tunnel */
	IPIP,
	GUE,
	GENEVE,
	OUTER_FRAGMENT, /* and what was dropped, from here on */
	OUTER_HEADER,
	GRE_FLAGS,
	GRE_RECURSION,
	GUE_HEADER,
	GENEVE_HEADER,
	INNER_PROTOCOL,
	INNER_HEADER,
	NOT_VIP,
	ECN,
	NO_ROOM,
	OUTCOMES,
};

struct prefix_v4 {
	__u32 bits;
	__u32 address;
};

struct prefix_v6 {
	__u32 bits;
	struct in6_addr address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v4);
	__type(value, __u32);
} sources_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v6);
	__type(value, __u32);
} sources_v6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v4);
	__type(value, __u32);
} vips_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_v6);
	__type(value, __u32);
} vips_v6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} outcomes SEC(".maps");

/* A tunnel packet while it is read: where the next header begins, how much of
 * the frame is left behind by then, and what is needed of it later. */
struct tunnel {
	void *next;
	const void *end;
	__u32 removed; /* behind the Ethernet header */
	__u16 inner_type; /* of Ethernet, host order */
	__u8 protocol;
	__u8 ecn;
	__u8 kind; /* the outcome if all is well */
};

static __always_inline int counted(__u32 outcome, int action)
{
	__u64 *count = bpf_map_lookup_elem(&outcomes, &outcome);

	if (count)
		++*count;
	return action;
}

static __always_inline void advance(struct tunnel *t, __u32 bytes)
{
	t->next += bytes;
	t->removed += bytes;
}

/* ECN of IPv6: the middle of the traffic class, which straddles two bytes. */
static __always_inline __u8 ecn_v6(const struct ipv6hdr *ip)
{
	return ip->flow_lbl[0] >> 4 & 3;
}

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The checksum of a header without options (RFC 791): the kernel would have
 * looked at it. */
static __always_inline int is_intact(const struct iphdr *ip)
{
	const __u16 *words = (const void *)ip;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	return folded(sum) == 0xffff;
}

static __always_inline int may_carry_tunnel(__u8 protocol)
{
	return protocol == IPPROTO_UDP || is_tunnel_protocol(protocol);
}

/* True for a datagram to a port of ours, or for no datagram. */
static __always_inline int has_tunnel_port(const struct tunnel *t)
{
	const struct udphdr *udp = t->next;

	if (t->protocol != IPPROTO_UDP)
		return 1;
	if ((const void *)(udp + 1) > t->end)
		return 0;
	return is_tunnel_port(udp->dest);
}

/* Reads the outer header. GRE (any kind will do) if the packet is a tunnel of
 * ours, else what is to be counted. */
static __always_inline __u32 read_outer_v4(struct tunnel *t)
{
	const struct iphdr *ip = t->next;
	struct prefix_v4 key = { .bits = 32 };

	if ((const void *)(ip + 1) > t->end || !may_carry_tunnel(ip->protocol))
		return PASSED;
	t->protocol = ip->protocol;
	t->ecn = ip->tos & 3;
	advance(t, sizeof(*ip));
	/* A fragment's port may be in another one: the kernel's, or counted. */
	if (t->protocol == IPPROTO_UDP && ip->frag_off & bpf_htons(IPV4_MORE_AND_OFFSET))
		return PASSED;
	if (!has_tunnel_port(t))
		return PASSED;
	key.address = ip->saddr;
	if (!bpf_map_lookup_elem(&sources_v4, &key))
		return UNKNOWN_SOURCE;
	if (ip->frag_off & bpf_htons(IPV4_MORE_AND_OFFSET))
		return OUTER_FRAGMENT;
	/* Our load balancers write no options. */
	return ip->version == 4 && ip->ihl == 5 && is_intact(ip) ? GRE : OUTER_HEADER;
}

static __always_inline __u32 read_outer_v6(struct tunnel *t)
{
	const struct ipv6hdr *ip = t->next;
	struct prefix_v6 key = { .bits = 128 };

	if ((const void *)(ip + 1) > t->end || !may_carry_tunnel(ip->nexthdr))
		return PASSED;
	t->protocol = ip->nexthdr;
	t->ecn = ecn_v6(ip);
	advance(t, sizeof(*ip));
	if (!has_tunnel_port(t))
		return PASSED;
	key.address = ip->saddr;
	if (!bpf_map_lookup_elem(&sources_v6, &key))
		return UNKNOWN_SOURCE;
	return ip->version == 6 ? GRE : OUTER_HEADER;
}

/* RFC 2784: flags, version and reserved bits are zero. The recursion control
 * of RFC 1701 says how many further encapsulations may be inside: to a
 * backend none, so what has some was meant for a load balancer. */
static __always_inline __u32 read_gre(struct tunnel *t)
{
	const struct {
		__be16 flags;
		__be16 type;
	} *gre = t->next;

	if ((const void *)(gre + 1) > t->end)
		return GRE_FLAGS;
	if (gre->flags & bpf_htons(0x0700))
		return GRE_RECURSION;
	if (gre->flags)
		return GRE_FLAGS;
	t->inner_type = bpf_ntohs(gre->type);
	advance(t, sizeof(*gre));
	return GRE;
}

/* The IP protocol number of an IP packet as an Ethernet type; 0 for others. */
static __always_inline __u16 type_of(__u8 protocol)
{
	return protocol == IPPROTO_IPIP ? ETH_P_IP : protocol == IPPROTO_IPV6 ? ETH_P_IPV6 : 0;
}

/* GUE, variant 0: no control message, no optional fields. */
static __always_inline __u32 read_gue(struct tunnel *t)
{
	const struct {
		__u8 variant_control_length;
		__u8 protocol;
		__be16 flags;
	} *gue = t->next;

	if ((const void *)(gue + 1) > t->end || gue->variant_control_length || gue->flags)
		return GUE_HEADER;
	t->inner_type = type_of(gue->protocol);
	advance(t, sizeof(*gue));
	return GUE;
}

/* RFC 8926: options are passed over, unless they are critical: we know none. */
static __always_inline __u32 read_geneve(struct tunnel *t)
{
	const struct {
		__u8 version_length;
		__u8 control_critical;
		__be16 type;
		__be32 network;
	} *geneve = t->next;

	if ((const void *)(geneve + 1) > t->end)
		return GENEVE_HEADER;
	if (geneve->version_length >> 6 || geneve->control_critical & 0xc0)
		return GENEVE_HEADER;
	t->inner_type = bpf_ntohs(geneve->type);
	advance(t, sizeof(*geneve) + (geneve->version_length & 0x3f) * 4);
	return GENEVE;
}

static __always_inline __u32 read_udp(struct tunnel *t)
{
	const struct udphdr *udp = t->next;

	if ((const void *)(udp + 1) > t->end)
		return OUTER_HEADER;
	advance(t, sizeof(*udp));
	return udp->dest == bpf_htons(GUE_PORT) ? read_gue(t) : read_geneve(t);
}

/* Reads what is between the IP headers; the kind of tunnel, or what is wrong. */
static __always_inline __u32 read_tunnel(struct tunnel *t)
{
	if (t->protocol == IPPROTO_GRE)
		return read_gre(t);
	if (t->protocol == IPPROTO_UDP)
		return read_udp(t);
	t->inner_type = type_of(t->protocol);
	return IPIP;
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

static __always_inline __u32 finish_inner_v4(const struct tunnel *t)
{
	struct iphdr *ip = t->next;
	struct prefix_v4 vip = { .bits = 32 };
	__u16 before, after;
	int ecn;

	if ((const void *)(ip + 1) > t->end || ip->version != 4 || ip->ihl < 5)
		return INNER_HEADER;
	vip.address = ip->daddr;
	if (!bpf_map_lookup_elem(&vips_v4, &vip))
		return NOT_VIP;
	ecn = combined(t->ecn, ip->tos & 3);
	if (ecn < 0)
		return ECN;
	if (ecn == (ip->tos & 3))
		return t->kind;
	/* RFC 1624, equation 3, over the word that the field is in. */
	before = *(__u16 *)ip;
	ip->tos = (ip->tos & ~3) | ecn;
	after = *(__u16 *)ip;
	ip->check = ~folded((__u16)~ip->check + (__u16)~before + after);
	return t->kind;
}

static __always_inline __u32 finish_inner_v6(const struct tunnel *t)
{
	struct ipv6hdr *ip = t->next;
	struct prefix_v6 vip = { .bits = 128 };
	int ecn;

	if ((const void *)(ip + 1) > t->end || ip->version != 6)
		return INNER_HEADER;
	vip.address = ip->daddr;
	if (!bpf_map_lookup_elem(&vips_v6, &vip))
		return NOT_VIP;
	ecn = combined(t->ecn, ecn_v6(ip));
	if (ecn < 0)
		return ECN;
	ip->flow_lbl[0] = (ip->flow_lbl[0] & ~0x30) | ecn << 4;
	return t->kind;
}

static __always_inline __u32 finish_inner(const struct tunnel *t)
{
	if (t->inner_type == ETH_P_IP)
		return finish_inner_v4(t);
	if (t->inner_type == ETH_P_IPV6)
		return finish_inner_v6(t);
	return INNER_PROTOCOL;
}

/* Moves the frame's begin so that the Ethernet header stands right in front
 * of the inner packet. */
static __always_inline int strip(struct xdp_md *ctx, const struct tunnel *t)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct ethhdr kept;

	if ((const void *)(ethernet + 1) > t->end)
		return -1;
	kept = *ethernet;
	kept.h_proto = bpf_htons(t->inner_type);
	if (bpf_xdp_adjust_head(ctx, t->removed))
		return -1;
	ethernet = (void *)(long)ctx->data;
	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return -1;
	*ethernet = kept;
	return 0;
}

/* The journey of one frame: outer header, tunnel header, inner header. */
static __always_inline __u32 read_frame(struct tunnel *t, void *data)
{
	const struct ethhdr *ethernet = data;
	__u32 outcome = PASSED;

	if ((const void *)(ethernet + 1) > t->end)
		return PASSED;
	t->next = (void *)(ethernet + 1);
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		outcome = read_outer_v4(t);
	else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		outcome = read_outer_v6(t);
	if (outcome != GRE)
		return outcome;
	outcome = read_tunnel(t);
	if (outcome > GENEVE)
		return outcome;
	t->kind = outcome;
	return finish_inner(t);
}

SEC("xdp")
int guideway_agent(struct xdp_md *ctx)
{
	struct tunnel t = { .end = (void *)(long)ctx->data_end };
	__u32 outcome = read_frame(&t, (void *)(long)ctx->data);

	if (outcome == PASSED || outcome == UNKNOWN_SOURCE)
		return counted(outcome, XDP_PASS);
	if (outcome > GENEVE)
		return counted(outcome, XDP_DROP);
	if (strip(ctx, &t))
		return counted(NO_ROOM, XDP_DROP);
	return counted(outcome, XDP_PASS);
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
