/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * A packet from its IP header to its ports: read once for each run of a program, for all
 * rules that ask about it.
 */
#ifndef GUIDEWAY_AGENT_SEGMENT_H
#define GUIDEWAY_AGENT_SEGMENT_H

#include "flow.h"
#include "frame.h"
#include "ip.h"

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

/* What was read. */
enum reading {
	READ_OTHER,     /* neither TCP nor UDP, nor an error about a packet of these */
	READ_MALFORMED,
	READ_SEGMENT,
};

/* A TCP segment or datagram, and where its headers are in the frame; or one of ours that an
 * ICMP error quotes: its flow, as packets from the client have it, and its sequence number.
 * Of a later fragment only which packet it is of. */
struct segment {
	struct ip_packet ip;
	struct flow flow;
	__u32 tcp_at; /* 0: it is no TCP, or quoted */
	__u32 sequence;
	__u32 acknowledged;
	__u32 bytes; /* of sequence space */
	__u8 header_bytes; /* of TCP, options included */
	__u8 flags;
	__u8 is_datagram;
	__u8 is_quoted;
	__u8 is_ruled; /* a rule leads to the agent that answered its SYN */
};

/* The one inside a tunnel, for each processor: more than programs' stacks have room for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct segment);
} inner_segment SEC(".maps");

/* Whose packet it is. */
enum direction { RECEIVED, SENT };

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

/* The flags byte, which struct tcphdr has as bit fields. */
static __always_inline __u8 flags_of(const struct tcphdr *tcp)
{
	return ((const __u8 *)tcp)[TCP_FLAG_BYTE];
}

/* A client's first segment. */
static __always_inline int is_syn(const struct segment *s)
{
	return (s->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

static __always_inline int is_syn_ack(const struct segment *s)
{
	return (s->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

/* All zeros. */
static __always_inline struct segment *new_inner_segment(void)
{
	__u32 zero = 0;
	struct segment *s = bpf_map_lookup_elem(&inner_segment, &zero);

	if (s)
		__builtin_memset(s, 0, sizeof(*s));
	return s;
}

static __always_inline void set_flow(struct flow *flow, enum direction direction,
				     const struct ip_packet *ip, __be16 source, __be16 dest)
{
	flow->client = direction == SENT ? ip->destination : ip->source;
	flow->vip = direction == SENT ? ip->source : ip->destination;
	flow->client_port = direction == SENT ? dest : source;
	flow->vip_port = direction == SENT ? source : dest;
}

static __always_inline enum reading read_tcp(void *ctx, enum hook hook, enum direction direction,
					     struct segment *s)
{
	struct tcphdr tcp;

	if (load(ctx, hook, s->ip.at, &tcp, sizeof(tcp)) || tcp.doff < 5 ||
	    s->ip.bytes < tcp.doff * 4u)
		return READ_MALFORMED;
	set_flow(&s->flow, direction, &s->ip, tcp.source, tcp.dest);
	s->tcp_at = s->ip.at;
	s->sequence = bpf_ntohl(tcp.seq);
	s->acknowledged = bpf_ntohl(tcp.ack_seq);
	s->flags = flags_of(&tcp);
	s->header_bytes = tcp.doff * 4;
	s->bytes = s->ip.bytes - s->header_bytes + !!(s->flags & TCP_SYN) +
		   !!(s->flags & TCP_FIN);
	return READ_SEGMENT;
}

static __always_inline enum reading read_datagram(frame_md *ctx, struct segment *s)
{
	struct udphdr udp;

	if (load(ctx, HOOK, s->ip.at, &udp, sizeof(udp)))
		return READ_MALFORMED;
	set_flow(&s->flow, RECEIVED, &s->ip, udp.source, udp.dest);
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
static __always_inline enum reading read_quoted(frame_md *ctx, struct segment *s)
{
	struct ip_packet ip = {};
	struct quoted quoted;
	struct icmp icmp;

	if (load(ctx, HOOK, s->ip.at, &icmp, sizeof(icmp)) || !is_error(s->ip.type, &icmp) ||
	    read_ip(ctx, HOOK, s->ip.at + sizeof(icmp), s->ip.type, &ip) ||
	    reach_transport(ctx, HOOK, &ip) || ip.fragment == LATER ||
	    (ip.protocol != IPPROTO_TCP && ip.protocol != IPPROTO_UDP) ||
	    load(ctx, HOOK, ip.at, &quoted, sizeof(quoted)))
		return READ_OTHER;
	set_flow(&s->flow, SENT, &ip, quoted.source, quoted.dest);
	s->sequence = bpf_ntohl(quoted.sequence);
	s->is_datagram = ip.protocol == IPPROTO_UDP;
	s->is_quoted = 1;
	return READ_SEGMENT;
}

/* Reads on behind the IP header; an enum reading. A global function: the verifier checks it
 * once and by itself, and not again for each way that leads to it. */
__noinline int read_segment(frame_md *ctx, struct segment *s)
{
	if (!s || reach_transport(ctx, HOOK, &s->ip))
		return READ_MALFORMED;
	if (s->ip.fragment == LATER)
		return READ_SEGMENT;
	if (s->ip.protocol == IPPROTO_TCP)
		return read_tcp(ctx, HOOK, RECEIVED, s);
	if (s->ip.protocol == IPPROTO_UDP)
		return read_datagram(ctx, s);
	if (s->ip.protocol == (s->ip.type == ETH_P_IP ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return read_quoted(ctx, s);
	return READ_OTHER;
}

/* True if the frame at TC has a segment of TCP, whole or the first fragment. `s` is all
 * zeros. */
static __always_inline int read_frames_segment(struct __sk_buff *skb, enum direction direction,
					       struct segment *s)
{
	__u32 type = bpf_ntohs(skb->protocol);

	return (type == ETH_P_IP || type == ETH_P_IPV6) &&
	       !read_ip(skb, TC, ETH_HLEN, type, &s->ip) && !reach_transport(skb, TC, &s->ip) &&
	       s->ip.protocol == IPPROTO_TCP && s->ip.fragment != LATER &&
	       read_tcp(skb, TC, direction, s) == READ_SEGMENT;
}

#endif
