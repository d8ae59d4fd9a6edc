/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Services with Multipath TCP (RFC 8684) whose connections load balancers choose the keys
 * of: which these are, and their segments at the interface's ingress and egress.
 *
 *   client ─► XDP: out of the tunnel ─► ingress ─► the kernel's TCP ─► egress ─► client
 */
#ifndef GUIDEWAY_AGENT_MULTIPATH_H
#define GUIDEWAY_AGENT_MULTIPATH_H

#include "connection.h"
#include "flow.h"
#include "frame.h"

#define SERVICES_MAX 4096 /* config/multipath.rs has it too */

/* Where clients reach such a service. The loader writes it as bytes. */
struct service {
	struct in6_addr address; /* IPv4 is mapped */
	__be16 port;
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, struct service);
	__type(value, __u32);
} multipath_services SEC(".maps");

/* A segment of TCP that such a service gets or sends, whole or the first fragment. */
struct multipath_segment {
	struct flow flow; /* as packets from the client have it */
	__u32 tcp_at; /* in the frame */
	__u32 sequence; /* host order */
	__u32 acknowledged;
	__u8 flags;
	__u8 header_bytes; /* of TCP, options included */
};

enum direction { RECEIVED, SENT };

static __always_inline int is_multipath_service(const struct in6_addr *address, __be16 port)
{
	struct service service = { .address = *address, .port = port };

	return bpf_map_lookup_elem(&multipath_services, &service) != 0;
}

/* The addresses, and where TCP begins; 0: it is no TCP, or a later fragment. Options of
 * IPv6 are not read: the kernel sends none, and a client's are the kernel's alone. */
static __always_inline __u32 read_addresses(struct __sk_buff *skb, struct in6_addr *source,
					    struct in6_addr *destination)
{
	struct fragment_header fragment;
	struct iphdr v4;
	struct ipv6hdr v6;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &v4, sizeof(v4)) ||
		    v4.protocol != IPPROTO_TCP || v4.frag_off & bpf_htons(IPV4_OFFSET))
			return 0;
		*source = mapped(v4.saddr);
		*destination = mapped(v4.daddr);
		return ETH_HLEN + v4.ihl * 4;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &v6, sizeof(v6)))
		return 0;
	*source = v6.saddr;
	*destination = v6.daddr;
	if (v6.nexthdr == IPPROTO_TCP)
		return ETH_HLEN + sizeof(v6);
	if (v6.nexthdr != IPPROTO_FRAGMENT ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(v6), &fragment, sizeof(fragment)) ||
	    fragment.next != IPPROTO_TCP || fragment.offset & bpf_htons(IPV6_OFFSET))
		return 0;
	return ETH_HLEN + sizeof(v6) + sizeof(fragment);
}

/* True if the frame has a segment of such a service. */
static __always_inline int read_multipath_segment(struct __sk_buff *skb, enum direction direction,
						  struct multipath_segment *s)
{
	struct in6_addr *client = &s->flow.client, *vip = &s->flow.vip;
	struct tcphdr tcp;

	s->tcp_at = direction == SENT ? read_addresses(skb, vip, client) :
					read_addresses(skb, client, vip);
	if (!s->tcp_at || bpf_skb_load_bytes(skb, s->tcp_at, &tcp, sizeof(tcp)) || tcp.doff < 5)
		return 0;
	s->flow.client_port = direction == SENT ? tcp.dest : tcp.source;
	s->flow.vip_port = direction == SENT ? tcp.source : tcp.dest;
	if (!is_multipath_service(vip, s->flow.vip_port))
		return 0;
	s->sequence = bpf_ntohl(tcp.seq);
	s->acknowledged = bpf_ntohl(tcp.ack_seq);
	s->flags = flags_of(&tcp);
	s->header_bytes = tcp.doff * 4;
	return 1;
}

/* The state of the socket that gets what this segment's client sends, as bpf.h names
 * them; 0: there is none. */
static __always_inline __u32 state_of_socket(struct __sk_buff *skb,
					     const struct multipath_segment *s)
{
	struct bpf_sock *socket = find_socket(skb, &s->flow);
	__u32 state;

	if (!socket)
		return 0;
	state = socket->state;
	bpf_sk_release(socket);
	return state;
}

#endif
