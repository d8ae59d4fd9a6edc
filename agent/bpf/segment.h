/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The packet inside a tunnel, from its IP header to its ports: read once for each run of the
 * XDP program, for all rules that ask about its connection.
 *
 * Headers are loaded by their place in the frame, so that the function is global: the
 * verifier checks it once and by itself, and not again for each way that leads to it.
 */
#ifndef GUIDEWAY_AGENT_SEGMENT_H
#define GUIDEWAY_AGENT_SEGMENT_H

#include "flow.h"
#include "frame.h"

#define EXTENSIONS_MAX 4
#define IPV4_OFFSET 0x1fff
#define IPV4_MORE 0x2000
#define IPV6_OFFSET 0xfff8 /* of its fragment header (RFC 8200, section 4.5) */
#define IPV6_MORE 0x0001
/* linux/icmp.h does not compile here. RFC 792. */
#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_ERROR_MAX 127 /* RFC 4443, section 2.1 */
#define TCP_FLAG_BYTE 13
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_FIN 0x01

/* Which fragment of a packet it is; whole ones are none. */
enum fragment { WHOLE, FIRST, LATER };

/* What was read. */
enum reading {
	READ_OTHER,     /* neither TCP nor UDP, nor an error about a packet of these */
	READ_MALFORMED,
	READ_SEGMENT,
};

/* A TCP segment or datagram inside, and where its headers are in the frame; or one of ours
 * that an ICMP error quotes: its flow, as packets from the client have it, and its sequence
 * number. Of a later fragment only which packet it is of. */
struct segment {
	struct flow flow;
	struct fragmented packet;
	enum fragment fragment;
	__u32 ip_at; /* the headers in the frame, but of what is quoted */
	__u32 tcp_at;
	__u32 sequence;
	__u32 acknowledged;
	__u32 bytes; /* of sequence space */
	__u8 header_bytes; /* of TCP, options included */
	__u8 flags;
	__u8 is_datagram;
	__u8 is_quoted;
	__u8 is_ruled; /* a rule leads to the agent that answered its SYN */
};

/* The begin of an ICMP message, and of a segment or datagram that it quotes. */
struct icmp {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 rest;
};

struct quoted {
	__be16 source;
	__be16 dest;
	__be32 sequence; /* of TCP */
};

/* The header of a fragment of IPv6. */
struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

/* An IP header, and those behind it up to the transport's. */
struct ip_packet {
	struct in6_addr source; /* IPv4 is mapped */
	struct in6_addr destination;
	__be32 id; /* of a fragment */
	__u32 at; /* where the transport's header begins, in the frame */
	__u32 bytes; /* from there to the end of the packet */
	enum fragment fragment;
	__u8 protocol;
};

/* The flags byte, which struct tcphdr has as bit fields. */
static __always_inline __u8 flags_of(const struct tcphdr *tcp)
{
	return ((const __u8 *)tcp)[TCP_FLAG_BYTE];
}

static __always_inline int read_ip_v4(struct xdp_md *ctx, __u32 at, struct ip_packet *packet)
{
	struct iphdr ip;
	__u32 bytes;

	if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)))
		return -1;
	packet->source = mapped(ip.saddr);
	packet->destination = mapped(ip.daddr);
	packet->id = ip.id;
	packet->protocol = ip.protocol;
	if (ip.frag_off & bpf_htons(IPV4_MORE_AND_OFFSET))
		packet->fragment = ip.frag_off & bpf_htons(IPV4_OFFSET) ? LATER : FIRST;
	bytes = bpf_ntohs(ip.tot_len);
	packet->at = at + ip.ihl * 4;
	packet->bytes = bytes - ip.ihl * 4;
	return bytes < ip.ihl * 4u;
}

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_FRAGMENT;
}

/* Skips extension headers (RFC 8200). Behind the header of a later fragment is none. */
static __always_inline int skip_extensions(struct xdp_md *ctx, struct ip_packet *packet)
{
	struct fragment_header header;
	__u32 bytes;

	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		if (!is_extension(packet->protocol) || packet->fragment == LATER)
			return 0;
		if (bpf_xdp_load_bytes(ctx, packet->at, &header, sizeof(header)))
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

static __always_inline int read_ip_v6(struct xdp_md *ctx, __u32 at, struct ip_packet *packet)
{
	struct ipv6hdr ip;

	if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)))
		return -1;
	packet->source = ip.saddr;
	packet->destination = ip.daddr;
	packet->protocol = ip.nexthdr;
	packet->at = at + sizeof(ip);
	packet->bytes = bpf_ntohs(ip.payload_len);
	return skip_extensions(ctx, packet);
}

/* 0, if the packet is what its headers say. */
static __always_inline int read_ip(struct xdp_md *ctx, __u32 at, __u32 type,
				   struct ip_packet *packet)
{
	return type == ETH_P_IP ? read_ip_v4(ctx, at, packet) : read_ip_v6(ctx, at, packet);
}

static __always_inline enum reading read_tcp(struct xdp_md *ctx, const struct ip_packet *packet,
					     struct segment *s)
{
	struct tcphdr tcp;

	if (bpf_xdp_load_bytes(ctx, packet->at, &tcp, sizeof(tcp)) || tcp.doff < 5 ||
	    packet->bytes < tcp.doff * 4u)
		return READ_MALFORMED;
	s->flow.client_port = tcp.source;
	s->flow.vip_port = tcp.dest;
	s->tcp_at = packet->at;
	s->sequence = bpf_ntohl(tcp.seq);
	s->acknowledged = bpf_ntohl(tcp.ack_seq);
	s->flags = flags_of(&tcp);
	s->header_bytes = tcp.doff * 4;
	s->bytes = packet->bytes - tcp.doff * 4 + !!(s->flags & TCP_SYN) + !!(s->flags & TCP_FIN);
	return READ_SEGMENT;
}

static __always_inline enum reading read_datagram(struct xdp_md *ctx,
						  const struct ip_packet *packet, struct segment *s)
{
	struct udphdr udp;

	if (bpf_xdp_load_bytes(ctx, packet->at, &udp, sizeof(udp)))
		return READ_MALFORMED;
	s->flow.client_port = udp.source;
	s->flow.vip_port = udp.dest;
	s->is_datagram = 1;
	return READ_SEGMENT;
}

static __always_inline int is_error(__u32 type, const struct icmp *icmp)
{
	if (type != ETH_P_IP)
		return icmp->type <= ICMPV6_ERROR_MAX;
	return icmp->type == ICMP_DEST_UNREACH || icmp->type == ICMP_TIME_EXCEEDED ||
	       icmp->type == ICMP_PARAMETERPROB;
}

/* Of an ICMP error: the packet that it is about, which went to the client. Only the begin of
 * that is quoted, so its length says nothing here. */
static __always_inline enum reading read_quoted(struct xdp_md *ctx, __u32 at, __u32 type,
						struct segment *s)
{
	struct ip_packet packet = {};
	struct quoted quoted;
	struct icmp icmp;

	if (bpf_xdp_load_bytes(ctx, at, &icmp, sizeof(icmp)) || !is_error(type, &icmp) ||
	    read_ip(ctx, at + sizeof(icmp), type, &packet) || packet.fragment == LATER ||
	    (packet.protocol != IPPROTO_TCP && packet.protocol != IPPROTO_UDP) ||
	    bpf_xdp_load_bytes(ctx, packet.at, &quoted, sizeof(quoted)))
		return READ_OTHER;
	s->flow.client = packet.destination;
	s->flow.vip = packet.source;
	s->flow.client_port = quoted.dest;
	s->flow.vip_port = quoted.source;
	s->sequence = bpf_ntohl(quoted.sequence);
	s->is_datagram = packet.protocol == IPPROTO_UDP;
	s->is_quoted = 1;
	return READ_SEGMENT;
}

/* Reads the packet of this Ethernet type that begins there, into what is all zeros; an
 * enum reading. */
__noinline int read_segment(struct xdp_md *ctx, __u32 at, __u32 type, struct segment *s)
{
	struct ip_packet packet = {};

	if (!s || read_ip(ctx, at, type, &packet))
		return READ_MALFORMED;
	s->ip_at = at;
	s->flow.client = packet.source;
	s->flow.vip = packet.destination;
	s->fragment = packet.fragment;
	if (packet.fragment != WHOLE) {
		s->packet.source = packet.source;
		s->packet.destination = packet.destination;
		s->packet.id = packet.id;
		/* Later fragments of IPv6 may name another one (RFC 8200, section 4.5). */
		s->packet.protocol = type == ETH_P_IP ? packet.protocol : 0;
	}
	if (packet.fragment == LATER)
		return READ_SEGMENT;
	if (packet.protocol == IPPROTO_TCP)
		return read_tcp(ctx, &packet, s);
	if (packet.protocol == IPPROTO_UDP)
		return read_datagram(ctx, &packet, s);
	if (packet.protocol == (type == ETH_P_IP ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return read_quoted(ctx, packet.at, type, s);
	return READ_OTHER;
}

#endif
