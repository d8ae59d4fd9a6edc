/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Reads a tunnel packet from its outer IP header to the packet inside.
 */
#ifndef GUIDEWAY_AGENT_TUNNEL_H
#define GUIDEWAY_AGENT_TUNNEL_H

#include "frame.h"
#include "route.h"

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

/* What a switch floods, and what is broadcast, is for others, and so is what a host that
 * routes for others sends on. */
static __always_inline int is_to_own_mac(const void *data)
{
	const __u16 *words = data;
	struct mac to = { .words = { words[0], words[1], words[2] } };

	return bpf_map_lookup_elem(&own_macs, &to) != 0;
}

/* Reads the outer header. NONE, if the packet is a tunnel of ours. */
static __always_inline enum reason read_outer_v4(struct tunnel *t)
{
	const struct iphdr *ip = t->next;
	struct prefix_v4 key = { .bits = 32 };
	struct in6_addr to;

	if ((const void *)(ip + 1) > t->end || !may_carry_tunnel(ip->protocol))
		return NO_TUNNEL;
	t->protocol = ip->protocol;
	t->traffic_class = ip->tos;
	t->outer_bytes = bpf_ntohs(ip->tot_len);
	advance(t, sizeof(*ip));
	/* A fragment's port may be in another one: the kernel's, or counted. */
	if (t->protocol == IPPROTO_UDP && ip->frag_off & bpf_htons(IPV4_MORE_AND_OFFSET))
		return NO_TUNNEL;
	if (!has_tunnel_port(t))
		return NO_TUNNEL;
	to = mapped(ip->daddr);
	if (!bpf_map_lookup_elem(&own_addresses, &to))
		return OTHER_HOST;
	key.address = ip->saddr;
	if (!bpf_map_lookup_elem(&sources_v4, &key))
		return UNKNOWN_SOURCE;
	if (ip->frag_off & bpf_htons(IPV4_MORE_AND_OFFSET))
		return OUTER_FRAGMENT;
	/* Our load balancers write no options. */
	return ip->version == 4 && ip->ihl == 5 && is_intact(ip) ? NONE : OUTER_HEADER;
}

static __always_inline enum reason read_outer_v6(struct tunnel *t)
{
	const struct ipv6hdr *ip = t->next;
	struct prefix_v6 key = { .bits = 128 };

	if ((const void *)(ip + 1) > t->end || !may_carry_tunnel(ip->nexthdr))
		return NO_TUNNEL;
	t->protocol = ip->nexthdr;
	t->traffic_class = traffic_class_v6(ip);
	t->outer_bytes = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	advance(t, sizeof(*ip));
	if (!has_tunnel_port(t))
		return NO_TUNNEL;
	key.address = ip->daddr;
	if (!bpf_map_lookup_elem(&own_addresses, &key.address))
		return OTHER_HOST;
	key.address = ip->saddr;
	if (!bpf_map_lookup_elem(&sources_v6, &key))
		return UNKNOWN_SOURCE;
	return ip->version == 6 ? NONE : OUTER_HEADER;
}

/* RFC 2784: flags, version and reserved bits are zero. The recursion control
 * of RFC 1701 says how many further encapsulations may be inside: to a
 * backend none, so what has some was meant for a load balancer. */
static __always_inline enum reason read_gre(struct tunnel *t)
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
	t->kind = GRE;
	return NONE;
}

/* The IP protocol number of an IP packet as an Ethernet type; 0 for others. */
static __always_inline __u16 type_of(__u8 protocol)
{
	return protocol == IPPROTO_IPIP ? ETH_P_IP : protocol == IPPROTO_IPV6 ? ETH_P_IPV6 : 0;
}

/* GUE, variant 0: no control message, no optional fields. */
static __always_inline enum reason read_gue(struct tunnel *t)
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
	t->kind = GUE;
	return NONE;
}

/* RFC 8926. The C bit says whether any option is critical. */
static __always_inline enum reason read_geneve(frame_md *ctx, struct tunnel *t,
					  const void *data)
{
	const struct {
		__u8 version_length;
		__u8 control_critical;
		__be16 type;
		__be32 network;
	} *geneve = t->next;
	__u32 options_at, options_bytes, says_critical;

	if ((const void *)(geneve + 1) > t->end)
		return GENEVE_HEADER;
	if (geneve->version_length >> 6 || geneve->control_critical & 0x80)
		return GENEVE_HEADER;
	t->kind = GENEVE;
	t->inner_type = bpf_ntohs(geneve->type);
	t->geneve_at = t->next - data;
	options_bytes = (geneve->version_length & 0x3f) * 4;
	says_critical = geneve->control_critical & 0x40;
	advance(t, sizeof(*geneve));
	if (!options_bytes && !says_critical)
		return NONE;
	options_at = t->geneve_at + sizeof(*geneve);
	advance(t, options_bytes);
	return read_options(ctx, options_at, options_at + options_bytes, says_critical,
			    &t->options);
}

static __always_inline enum reason read_udp(frame_md *ctx, struct tunnel *t, const void *data)
{
	const struct udphdr *udp = t->next;

	if ((const void *)(udp + 1) > t->end)
		return OUTER_HEADER;
	t->outer_port = udp->source;
	advance(t, sizeof(*udp));
	return udp->dest == bpf_htons(GUE_PORT) ? read_gue(t) : read_geneve(ctx, t, data);
}

/* Reads what is between the IP headers. NONE, if nothing is wrong with it. */
static __always_inline enum reason read_tunnel(frame_md *ctx, struct tunnel *t,
					  const void *data)
{
	if (t->protocol == IPPROTO_GRE)
		return read_gre(t);
	if (t->protocol == IPPROTO_UDP)
		return read_udp(ctx, t, data);
	t->kind = IPIP;
	t->inner_type = type_of(t->protocol);
	return NONE;
}

#endif
