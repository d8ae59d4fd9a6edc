/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Whether a packet's connection lives here, as the kernel's sockets have it, or
 * its flow, as flow.h remembers it.
 *
 * Looked up for packets that name other agents. A connection lives here if
 * this packet means something to its socket; else the kernel would answer the
 * packet of a connection that lives elsewhere by an RST.
 */
#ifndef GUIDEWAY_AGENT_CONNECTION_H
#define GUIDEWAY_AGENT_CONNECTION_H

#include "flow.h"
#include "frame.h"
#include "route.h"

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
#define WINDOW_MAX (1 << 30) /* the largest that RFC 7323 can express */
#define TCP_FLAG_BYTE 13
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_FIN 0x01

/* What we read of the kernel's own; the loader finds where it is. */
struct tcp_request_sock {
	__u32 rcv_isn;
	__u32 snt_isn;
} __attribute__((preserve_access_index));

struct sock_common {
	__u32 skc_tw_rcv_nxt;
	__u32 skc_tw_snd_nxt;
} __attribute__((preserve_access_index));

struct inet_timewait_sock {
	struct sock_common __tw_common;
} __attribute__((preserve_access_index));

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
	__u32 tw_rcv_wnd;
} __attribute__((preserve_access_index));

/* Which fragment of a packet it is; whole ones are none. */
enum fragment { WHOLE, FIRST, LATER };

/* A TCP segment or datagram inside, and where its headers are; or one of ours that an
 * ICMP error quotes: its addresses and ports, as of an answer to it, and its
 * sequence number. Of a later fragment only which packet it is of. */
struct segment {
	struct flow flow;
	struct fragmented packet;
	enum fragment fragment;
	struct bpf_sock_tuple tuple;
	__u32 tuple_bytes;
	__u32 ip_at; /* the headers in the frame, but of what is quoted */
	__u32 tcp_at;
	__u32 sequence;
	__u32 acknowledged;
	__u32 bytes; /* of sequence space */
	__u8 flags;
	__u8 is_quoted;
	__u8 is_ruled; /* a rule leads to the agent that answered its SYN */
};

/* The flags byte, which struct tcphdr has as bit fields. */
static __always_inline __u8 flags_of(const struct tcphdr *tcp)
{
	return ((const __u8 *)tcp)[TCP_FLAG_BYTE];
}

static __always_inline __u32 read_tcp(struct segment *s, const struct tunnel *t, void *at,
				      __u32 bytes)
{
	const struct tcphdr *tcp = at;

	if ((const void *)(tcp + 1) > t->end || bytes < tcp->doff * 4u || tcp->doff < 5)
		return INNER_HEADER;
	s->ip_at = sizeof(struct ethhdr) + t->removed;
	s->tcp_at = s->ip_at + (at - t->next);
	s->sequence = bpf_ntohl(tcp->seq);
	s->acknowledged = bpf_ntohl(tcp->ack_seq);
	s->flags = flags_of(tcp);
	s->bytes = bytes - tcp->doff * 4 + !!(s->flags & TCP_SYN) + !!(s->flags & TCP_FIN);
	return t->kind;
}

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

/* The functions that read a segment return NO_SOCKET when they have it, the
 * kind of tunnel for a packet that is taken here anyway, else what is wrong. */
static __always_inline __u32 read_quoted_v4(struct segment *s, struct tunnel *t,
					    const void *at)
{
	const struct icmp *icmp = at;
	const struct iphdr *ip = (const void *)(icmp + 1);
	const struct quoted *tcp;

	if ((const void *)(ip + 1) > t->end)
		return t->kind;
	if (icmp->type != ICMP_DEST_UNREACH && icmp->type != ICMP_TIME_EXCEEDED &&
	    icmp->type != ICMP_PARAMETERPROB)
		return t->kind;
	/* A later fragment has no ports. */
	if (ip->frag_off & bpf_htons(IPV4_OFFSET) ||
	    (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP))
		return t->kind;
	tcp = (const void *)ip + ip->ihl * 4;
	if ((const void *)(tcp + 1) > t->end)
		return t->kind;
	s->is_quoted = 1;
	if (ip->protocol == IPPROTO_UDP) {
		t->returns = 1;
		s->flow.client = mapped(ip->daddr);
		s->flow.vip = mapped(ip->saddr);
		s->flow.client_port = tcp->dest;
		s->flow.vip_port = tcp->source;
		return NO_SOCKET;
	}
	s->sequence = bpf_ntohl(tcp->sequence);
	s->tuple.ipv4.saddr = ip->daddr;
	s->tuple.ipv4.daddr = ip->saddr;
	s->tuple.ipv4.sport = tcp->dest;
	s->tuple.ipv4.dport = tcp->source;
	s->tuple_bytes = sizeof(s->tuple.ipv4);
	return NO_SOCKET;
}

static __always_inline __u32 read_quoted_v6(struct segment *s, struct tunnel *t,
					    const void *at)
{
	const struct icmp *icmp = at;
	const struct ipv6hdr *ip = (const void *)(icmp + 1);
	const struct quoted *tcp = (const void *)(ip + 1);

	if ((const void *)(tcp + 1) > t->end)
		return t->kind;
	if (icmp->type > ICMPV6_ERROR_MAX ||
	    (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP))
		return t->kind;
	s->is_quoted = 1;
	if (ip->nexthdr == IPPROTO_UDP) {
		t->returns = 1;
		s->flow.client = ip->daddr;
		s->flow.vip = ip->saddr;
		s->flow.client_port = tcp->dest;
		s->flow.vip_port = tcp->source;
		return NO_SOCKET;
	}
	s->sequence = bpf_ntohl(tcp->sequence);
	__builtin_memcpy(s->tuple.ipv6.saddr, &ip->daddr, sizeof(ip->daddr));
	__builtin_memcpy(s->tuple.ipv6.daddr, &ip->saddr, sizeof(ip->saddr));
	s->tuple.ipv6.sport = tcp->dest;
	s->tuple.ipv6.dport = tcp->source;
	s->tuple_bytes = sizeof(s->tuple.ipv6);
	return NO_SOCKET;
}

static __always_inline __u32 read_datagram(struct segment *s, struct tunnel *t, const void *at)
{
	const struct udphdr *udp = at;

	if ((const void *)(udp + 1) > t->end)
		return INNER_HEADER;
	t->returns = 1;
	s->flow.client_port = udp->source;
	s->flow.vip_port = udp->dest;
	return NO_SOCKET;
}

/* Notes which packet a fragment is of. */
static __always_inline void read_fragment_v4(struct segment *s, const struct iphdr *ip)
{
	if (!(ip->frag_off & bpf_htons(IPV4_MORE_AND_OFFSET)))
		return;
	s->fragment = ip->frag_off & bpf_htons(IPV4_OFFSET) ? LATER : FIRST;
	s->packet.source = mapped(ip->saddr);
	s->packet.destination = mapped(ip->daddr);
	s->packet.id = ip->id;
	s->packet.protocol = ip->protocol;
}

static __always_inline __u32 read_segment_v4(struct segment *s, struct tunnel *t)
{
	struct iphdr *ip = t->next;
	const struct tcphdr *tcp;
	__u32 outcome, bytes;

	if ((const void *)(ip + 1) > t->end)
		return INNER_HEADER;
	read_fragment_v4(s, ip);
	if (s->fragment == LATER)
		return NO_SOCKET;
	if (ip->protocol == IPPROTO_ICMP)
		return read_quoted_v4(s, t, t->next + ip->ihl * 4);
	if (ip->protocol == IPPROTO_UDP) {
		s->flow.client = mapped(ip->saddr);
		s->flow.vip = mapped(ip->daddr);
		return read_datagram(s, t, t->next + ip->ihl * 4);
	}
	if (ip->protocol != IPPROTO_TCP)
		return t->kind;
	bytes = bpf_ntohs(ip->tot_len);
	if (bytes < ip->ihl * 4u)
		return INNER_HEADER;
	tcp = t->next + ip->ihl * 4;
	outcome = read_tcp(s, t, (void *)tcp, bytes - ip->ihl * 4);
	if (outcome == INNER_HEADER) /* by its own name: the verifier knows no `kind` */
		return outcome;
	s->tuple.ipv4.saddr = ip->saddr;
	s->tuple.ipv4.daddr = ip->daddr;
	s->tuple.ipv4.sport = tcp->source;
	s->tuple.ipv4.dport = tcp->dest;
	s->tuple_bytes = sizeof(s->tuple.ipv4);
	return NO_SOCKET;
}

/* The same of IPv6. */
static __always_inline void read_fragment_v6(struct segment *s, const struct ipv6hdr *ip,
					     const struct fragment_header *header)
{
	if (!(header->offset & bpf_htons(IPV6_OFFSET | IPV6_MORE)))
		return; /* a whole packet with such a header (RFC 6946) */
	s->fragment = header->offset & bpf_htons(IPV6_OFFSET) ? LATER : FIRST;
	s->packet.source = ip->saddr;
	s->packet.destination = ip->daddr;
	s->packet.id = header->id;
	s->packet.protocol = 0;
}

/* Passes extension headers over (RFC 8200); the protocol behind them, or -1. Behind
 * the header of a later fragment is none: it ends there. */
static __always_inline int skip_extensions(struct segment *s, const struct tunnel *t,
					   const struct ipv6hdr *ip, __u32 *skipped)
{
	__u8 protocol = ip->nexthdr;

	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		const __u8 *header = t->next + sizeof(struct ipv6hdr) + (*skipped & 0x3fff);

		if (s->fragment == LATER ||
		    (protocol != IPPROTO_HOPOPTS && protocol != IPPROTO_ROUTING &&
		     protocol != IPPROTO_DSTOPTS && protocol != IPPROTO_FRAGMENT))
			return protocol;
		if ((const void *)(header + sizeof(struct fragment_header)) > t->end)
			return -1;
		if (protocol == IPPROTO_FRAGMENT) {
			read_fragment_v6(s, ip, (const void *)header);
			*skipped += sizeof(struct fragment_header);
		} else {
			*skipped += (header[1] + 1) * 8;
		}
		protocol = header[0];
	}
	return -1;
}

static __always_inline __u32 read_segment_v6(struct segment *s, struct tunnel *t)
{
	struct ipv6hdr *ip = t->next;
	const struct tcphdr *tcp;
	__u32 outcome, bytes, skipped = 0;
	int protocol;

	if ((const void *)(ip + 1) > t->end)
		return INNER_HEADER;
	protocol = skip_extensions(s, t, ip, &skipped);
	if (s->fragment == LATER)
		return NO_SOCKET;
	if (protocol < 0)
		return INNER_HEADER;
	if (protocol == IPPROTO_ICMPV6)
		return read_quoted_v6(s, t, t->next + sizeof(*ip) + (skipped & 0x3fff));
	if (protocol == IPPROTO_UDP) {
		s->flow.client = ip->saddr;
		s->flow.vip = ip->daddr;
		return read_datagram(s, t, t->next + sizeof(*ip) + (skipped & 0x3fff));
	}
	if (protocol != IPPROTO_TCP)
		return t->kind;
	bytes = bpf_ntohs(ip->payload_len);
	if (bytes < skipped)
		return INNER_HEADER;
	tcp = t->next + sizeof(*ip) + (skipped & 0x3fff);
	outcome = read_tcp(s, t, (void *)tcp, bytes - skipped);
	if (outcome == INNER_HEADER) /* by its own name: the verifier knows no `kind` */
		return outcome;
	__builtin_memcpy(s->tuple.ipv6.saddr, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(s->tuple.ipv6.daddr, &ip->daddr, sizeof(ip->daddr));
	s->tuple.ipv6.sport = tcp->source;
	s->tuple.ipv6.dport = tcp->dest;
	s->tuple_bytes = sizeof(s->tuple.ipv6);
	return NO_SOCKET;
}

/* A socket's address as a number: the verifier permits no arithmetic on a socket's,
 * and the kernel's casts to the kinds of sockets below refuse those of listeners with
 * Multipath TCP, which many have without a word of theirs (Go's do), and of what these
 * accept. So fields are copied. */
static __always_inline const void *address_of(struct bpf_sock *socket)
{
	const void *address = 0;

	bpf_probe_read_kernel(&address, sizeof(address), &socket);
	return address;
}

static __always_inline int copy(__u32 *to, const __u32 *from)
{
	return !bpf_probe_read_kernel(to, sizeof(*to), from);
}

/* A handshake that this segment goes on with; a forged or late SYN made a
 * socket of the same tuple, too. */
static __always_inline int is_of_handshake(const struct segment *s,
					   const struct tcp_request_sock *request)
{
	__u32 sent, received;

	if (!copy(&sent, &request->snt_isn) || !copy(&received, &request->rcv_isn))
		return 0;
	if (s->is_quoted)
		return s->sequence == sent;
	if (s->flags & TCP_ACK)
		return s->acknowledged == sent + 1;
	return s->sequence == received + 1;
}

/* Ends no more than a window before what the closed connection expects, begins
 * no more than one behind it, and acknowledges what was sent: a client that
 * uses its port again talks of other numbers. */
static __always_inline int is_of_closed(const struct segment *s,
					const struct tcp_timewait_sock *closed)
{
	__u32 expected, sent, window;

	if (!copy(&expected, &closed->tw_sk.__tw_common.skc_tw_rcv_nxt) ||
	    !copy(&sent, &closed->tw_sk.__tw_common.skc_tw_snd_nxt) ||
	    !copy(&window, &closed->tw_rcv_wnd))
		return 0;
	if (s->is_quoted)
		return sent - s->sequence <= WINDOW_MAX;
	if ((__s32)(s->sequence + s->bytes - (expected - window)) < 0 ||
	    (__s32)(s->sequence - (expected + window)) > 0)
		return 0;
	if (!(s->flags & TCP_ACK))
		return 1;
	return sent - s->acknowledged <= WINDOW_MAX;
}

/* An ACK with a SYN cookie of ours makes a connection here. But all network namespaces of
 * a machine have cookies of one secret: of two agents' backends there, it is a cookie of
 * both, and a rule says whose. */
static __always_inline int is_cookie(struct xdp_md *ctx, struct bpf_sock *socket,
				     const struct segment *s)
{
	struct tcphdr tcp;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;

	if (s->is_quoted || s->is_ruled || bpf_xdp_load_bytes(ctx, s->tcp_at, &tcp, sizeof(tcp)))
		return 0;
	if (s->tuple_bytes == sizeof(s->tuple.ipv4))
		return !bpf_xdp_load_bytes(ctx, s->ip_at, &ip.v4, sizeof(ip.v4)) &&
		       !bpf_tcp_check_syncookie(socket, &ip.v4, sizeof(ip.v4), &tcp, sizeof(tcp));
	return !bpf_xdp_load_bytes(ctx, s->ip_at, &ip.v6, sizeof(ip.v6)) &&
	       !bpf_tcp_check_syncookie(socket, &ip.v6, sizeof(ip.v6), &tcp, sizeof(tcp));
}

/* HERE if this socket has use for the segment, else why not. */
static __always_inline __u32 place_by_socket(struct xdp_md *ctx, struct bpf_sock *socket,
					     const struct segment *s)
{
	switch (socket->state) {
	case BPF_TCP_LISTEN:
		return is_cookie(ctx, socket, s) ? HERE : NO_SOCKET;
	case BPF_TCP_NEW_SYN_RECV:
		return is_of_handshake(s, address_of(socket)) ? HERE : OTHER_HANDSHAKE;
	case BPF_TCP_TIME_WAIT:
		return is_of_closed(s, address_of(socket)) ? HERE : OTHER_TIME_WAIT;
	default:
		return HERE;
	}
}

/* HERE if a socket has use for the segment, else why none has. A function that is not
 * inlined, so that the verifier goes through it once. */
__noinline __u32 place_by_lookup(struct xdp_md *ctx, struct segment *s)
{
	struct bpf_sock *socket;
	__u32 outcome;

	if (!s)
		return NO_SOCKET;
	if (s->tuple_bytes == sizeof(s->tuple.ipv4))
		socket = bpf_skc_lookup_tcp(ctx, &s->tuple, sizeof(s->tuple.ipv4),
					    BPF_F_CURRENT_NETNS, 0);
	else
		socket = bpf_skc_lookup_tcp(ctx, &s->tuple, sizeof(s->tuple.ipv6),
					    BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return NO_SOCKET;
	outcome = place_by_socket(ctx, socket, s);
	bpf_sk_release(socket);
	return outcome;
}

/* Where a packet that names other agents belongs. */
static __always_inline __u32 place_by_content(struct xdp_md *ctx, struct segment *s,
					      struct tunnel *t)
{
	__u32 outcome;

	if (s->fragment == LATER)
		return place_by_fragment(&s->packet, t);
	if (t->returns)
		return place_by_flow(&s->flow, t);
	/* New connections are the one's in charge. */
	if ((s->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return t->kind;
	outcome = place_by_lookup(ctx, s);
	/* A socket that changes its state is in no table for a moment. */
	if (outcome != HERE)
		outcome = place_by_lookup(ctx, s);
	return outcome == HERE ? t->kind : outcome;
}

/* True for a packet that names no agents, but of which is to be remembered that it
 * was taken here: one that may be a datagram, or the first fragment of a packet. */
static __always_inline int may_be_remembered(const struct tunnel *t)
{
	if (t->inner_type == ETH_P_IP) {
		const struct iphdr *ip = t->next;

		return (const void *)(ip + 1) <= t->end &&
		       (ip->protocol == IPPROTO_UDP || ip->frag_off & bpf_htons(IPV4_MORE));
	} else {
		const struct ipv6hdr *ip = t->next;

		return (const void *)(ip + 1) <= t->end && ip->nexthdr != IPPROTO_TCP &&
		       ip->nexthdr != IPPROTO_ICMPV6;
	}
}

/* Where a packet belongs: the kind of tunnel for here, why onward, or what is wrong
 * with it. */
static __always_inline __u32 place_of(struct xdp_md *ctx, struct tunnel *t)
{
	int is_named = names_addresses(t);
	struct segment s = {};
	__u32 outcome;

	if (!is_named && !may_be_remembered(t))
		return t->kind;
	outcome = t->inner_type == ETH_P_IP ? read_segment_v4(&s, t) : read_segment_v6(&s, t);
	if (outcome != NO_SOCKET)
		return is_named ? outcome : t->kind;
	outcome = is_named ? place_by_content(ctx, &s, t) : t->kind;
	if (s.fragment == FIRST)
		remember_fragment(&s.packet, t, outcome);
	if (t->returns && outcome == t->kind && s.fragment != LATER && !s.is_quoted)
		remember_flow(&s.flow);
	return outcome;
}

#endif
