/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What a SYN brings for its connection, in the Multipath TCP option of its tunnel
 * (docs/formats.md): kept until the kernel answers it.
 *
 *   class 0xff47 | type 0x82 | length
 *   key of the connection (64 bits)
 *   bucket of the five-tuple | flags | 0
 *   address of the backend that has that bucket
 */
#ifndef GUIDEWAY_AGENT_OPENING_H
#define GUIDEWAY_AGENT_OPENING_H

#include "connection.h"
#include "digest.h"
#include "flow.h"
#include "frame.h"
#include "options.h"
#include "route.h"

#define OPENINGS_MAX 16384
#define JOIN_SYN_BYTES 12
#define BITS 0x1fff

/* Of a flow that a SYN was delivered of. */
struct opening {
	struct in6_addr owner; /* the backend that has the five-tuple's bucket; IPv4 is mapped */
	__u64 key; /* that a load balancer chose; 0: none */
	__u16 bucket; /* of the five-tuple */
	__u16 bits; /* without a key: by which load balancers find this backend again */
	__u8 version; /* of the protocol that the key is for */
	__u8 zero[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, OPENINGS_MAX);
	__type(key, struct flow);
	__type(value, struct opening);
} openings SEC(".maps");

/* A SYN in a tunnel, and where its options are in the frame. */
struct syn {
	struct flow flow;
	__u32 options_at;
	__u32 end;
};

/* Reads the addresses; where TCP begins, or 0: it is none, or a later fragment. */
static __always_inline __u32 read_inner_addresses(struct xdp_md *ctx, __u32 at, __u32 type,
						  struct flow *flow)
{
	if (type == ETH_P_IP) {
		struct iphdr ip;

		if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
		    ip.frag_off & bpf_htons(IPV4_OFFSET))
			return 0;
		flow->client = mapped(ip.saddr);
		flow->vip = mapped(ip.daddr);
		return at + ip.ihl * 4;
	} else {
		struct ipv6hdr ip;

		if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
			return 0;
		flow->client = ip.saddr;
		flow->vip = ip.daddr;
		return at + sizeof(ip);
	}
}

/* True if the packet inside is a SYN without ACK. */
static __always_inline int read_syn(struct xdp_md *ctx, __u32 inner_at, __u32 type,
				    struct syn *syn)
{
	__u32 at = read_inner_addresses(ctx, inner_at, type, &syn->flow);
	struct tcphdr tcp;

	if (!at || bpf_xdp_load_bytes(ctx, at, &tcp, sizeof(tcp)) ||
	    (flags_of(&tcp) & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return 0;
	syn->flow.client_port = tcp.source;
	syn->flow.vip_port = tcp.dest;
	syn->options_at = at + sizeof(tcp);
	syn->end = at + tcp.doff * 4;
	return 1;
}

/* Where the SYN's option of Multipath TCP is in the frame; 0: there is none. `option` is
 * its kind, length, and subtype with version or flags. */
static __always_inline __u32 multipath_at(struct xdp_md *ctx, const struct syn *syn,
					  __u8 option[3])
{
	__u32 at = syn->options_at;

#pragma clang loop unroll(disable)
	for (int i = 0; i < TCP_OPTIONS_BYTES_MAX; i++) {
		if (at + 3 > syn->end || bpf_xdp_load_bytes(ctx, at, option, 3) || option[0] == TCP_OPTION_END)
			return 0;
		if (option[0] == TCP_OPTION_NOP) {
			at++;
			continue;
		}
		if (option[0] == TCP_OPTION_MULTIPATH)
			return at;
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	return 0;
}

/* By what load balancers find the connection again: the lowest bits of its token, or else
 * the five-tuple's bucket. */
static __always_inline __u32 bits_of(const struct opening *opening)
{
	if (!opening->key)
		return opening->bits;
	return BITS & (opening->version ? token_of_version_1(opening->key) :
					  token_of_version_0(opening->key));
}

/* Reads what the SYN says itself. */
static __always_inline void read_multipath_of_syn(struct xdp_md *ctx, const struct syn *syn,
						  struct opening *opening)
{
	__u8 option[3];
	__u32 at = multipath_at(ctx, syn, option);
	__be32 token;

	opening->version = !at || option[2] >> 4 != MULTIPATH_CAPABLE || option[2] & 0xf;
	opening->bits = opening->bucket & BITS;
	if (at && option[1] == JOIN_SYN_BYTES && option[2] >> 4 == MULTIPATH_JOIN &&
	    at + JOIN_SYN_BYTES <= syn->end &&
	    !bpf_xdp_load_bytes(ctx, at + 4, &token, sizeof(token)))
		opening->bits = bpf_ntohl(token) & BITS;
}

/* Reads the option of a tunnel, and the address behind it: the owner of the bucket of the
 * five-tuple. */
static __always_inline int read_owner(struct xdp_md *ctx, __u32 option_at,
				      struct multipath_option *option, struct in6_addr *owner)
{
	__be32 address;

	if (bpf_xdp_load_bytes(ctx, option_at, option, sizeof(*option)))
		return -1;
	option_at += sizeof(*option);
	if (option->flags & ROUTE_IS_V6)
		return bpf_xdp_load_bytes(ctx, option_at, owner, sizeof(*owner));
	if (bpf_xdp_load_bytes(ctx, option_at, &address, sizeof(address)))
		return -1;
	*owner = mapped(address);
	return 0;
}

/* Keeps what the option of a tunnel says, if the packet inside is a SYN. All are places in
 * the frame. */
__noinline int note_opening(struct xdp_md *ctx, __u32 option_at, __u32 inner_at, __u32 type)
{
	struct multipath_option option;
	struct opening opening = {};
	struct syn syn;

	__builtin_memset(&syn, 0, sizeof(syn));
	if (!read_syn(ctx, inner_at, type, &syn) ||
	    read_owner(ctx, option_at, &option, &opening.owner))
		return 0;
	opening.key = (__u64)bpf_ntohl(option.key[0]) << 32 | bpf_ntohl(option.key[1]);
	opening.bucket = bpf_ntohs(option.bucket);
	read_multipath_of_syn(ctx, &syn, &opening);
	bpf_map_update_elem(&openings, &syn.flow, &opening, BPF_ANY);
	return 0;
}

#endif
