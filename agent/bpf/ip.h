/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * An IP packet from its header to the transport's: inside a tunnel, in a frame of its own, or
 * quoted in an ICMP error. Read by one parser, so that no two rules see different packets.
 */
#ifndef GUIDEWAY_AGENT_IP_H
#define GUIDEWAY_AGENT_IP_H

#include "context.h"
#include "frame.h"

#define EXTENSIONS_MAX 4
#define IPV4_OFFSET 0x1fff
#define IPV6_OFFSET 0xfff8 /* of its fragment header (RFC 8200, section 4.5) */
#define IPV6_MORE 0x0001

/* Which fragment of a packet it is; whole ones are none. */
enum fragment { WHOLE, FIRST, LATER };

struct ip_packet {
	struct in6_addr source; /* IPv4 is mapped */
	struct in6_addr destination;
	__be32 id; /* of a fragment */
	__u32 header_at; /* in the frame */
	__u32 at; /* where the transport's header begins, in the frame */
	__u32 bytes; /* from there to the end of the packet */
	__u16 type; /* of Ethernet, host order */
	__u8 fragment;
	__u8 protocol;
	__u8 traffic_class;
};

/* The header of a fragment of IPv6. */
struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

/* A length field's value. It is zero in joined segments that are longer than it can say. */
static __always_inline __u32 bytes_said(const void *ctx, enum hook hook, __be16 field)
{
	return !field && joined_bytes(ctx, hook) ? 1 << 30 : bpf_ntohs(field);
}

static __always_inline int read_ipv4(void *ctx, enum hook hook, struct ip_packet *packet)
{
	struct iphdr ip;
	__u32 bytes, header_bytes;

	if (load(ctx, hook, packet->header_at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return -1;
	bytes = bytes_said(ctx, hook, ip.tot_len);
	header_bytes = ip.ihl * 4;
	if (bytes < header_bytes)
		return -1;
	packet->source = mapped(ip.saddr);
	packet->destination = mapped(ip.daddr);
	packet->id = ip.id;
	packet->protocol = ip.protocol;
	packet->traffic_class = ip.tos;
	if (ip.frag_off & bpf_htons(IPV4_MORE_AND_OFFSET))
		packet->fragment = ip.frag_off & bpf_htons(IPV4_OFFSET) ? LATER : FIRST;
	packet->at = packet->header_at + header_bytes;
	packet->bytes = bytes - header_bytes;
	return 0;
}

static __always_inline int read_ipv6(void *ctx, enum hook hook, struct ip_packet *packet)
{
	struct ipv6hdr ip;

	if (load(ctx, hook, packet->header_at, &ip, sizeof(ip)) || ip.version != 6)
		return -1;
	packet->source = ip.saddr;
	packet->destination = ip.daddr;
	packet->protocol = ip.nexthdr;
	packet->traffic_class = traffic_class_v6(&ip);
	packet->at = packet->header_at + sizeof(ip);
	packet->bytes = bytes_said(ctx, hook, ip.payload_len);
	return 0;
}

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_FRAGMENT;
}

/* Skips the extension headers of IPv6 (RFC 8200). Behind the header of a later fragment is
 * none. */
static __always_inline int skip_extensions(void *ctx, enum hook hook, struct ip_packet *packet)
{
	struct fragment_header header;
	__u32 bytes;

	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		if (!is_extension(packet->protocol) || packet->fragment == LATER)
			return 0;
		if (load(ctx, hook, packet->at, &header, sizeof(header)))
			return -1;
		bytes = (header.reserved + 1) * 8; /* the length, of all others */
		if (packet->protocol == IPPROTO_FRAGMENT) {
			bytes = sizeof(header);
			packet->id = header.id;
			/* With neither it is a whole packet (RFC 6946). */
			if (header.offset & bpf_htons(IPV6_OFFSET))
				packet->fragment = LATER;
			else if (header.offset & bpf_htons(IPV6_MORE))
				packet->fragment = FIRST;
		}
		if (bytes > packet->bytes)
			return -1;
		packet->protocol = header.next;
		packet->at += bytes;
		packet->bytes -= bytes;
	}
	return -1;
}

/* Reads the header of the packet of this Ethernet type that begins there; 0, if it is one.
 * `packet` is all zeros. */
static __always_inline int read_ip(void *ctx, enum hook hook, __u32 at, __u32 type,
				   struct ip_packet *packet)
{
	packet->header_at = at;
	packet->type = type;
	return type == ETH_P_IP ? read_ipv4(ctx, hook, packet) : read_ipv6(ctx, hook, packet);
}

/* Goes on to the transport's header; 0, if it can be found. */
static __always_inline int reach_transport(void *ctx, enum hook hook, struct ip_packet *packet)
{
	return packet->type == ETH_P_IP ? 0 : skip_extensions(ctx, hook, packet);
}

static __always_inline int is_vip(__u32 type, const struct in6_addr *address)
{
	struct prefix_v4 v4 = { .bits = 32, .address = address->in6_u.u6_addr32[3] };
	struct prefix_v6 v6 = { .bits = 128, .address = *address };

	return type == ETH_P_IP ? bpf_map_lookup_elem(&vips_v4, &v4) != 0 :
				    bpf_map_lookup_elem(&vips_v6, &v6) != 0;
}

#endif
