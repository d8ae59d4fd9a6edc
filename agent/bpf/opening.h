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

#include "digest.h"
#include "flow.h"
#include "frame.h"
#include "options.h"
#include "route.h"

#define OPENINGS_MAX 16384
#define JOIN_SYN_BYTES 12
#define JOIN_TOKEN_AT 4
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
static __always_inline void read_multipath_of_syn(frame_md *ctx, const struct segment *s,
						  struct opening *opening)
{
	struct tcp_options *options = load_options(ctx, HOOK, s);
	const __u8 *option;
	__be32 token;
	int at;

	opening->version = 1;
	opening->bits = opening->bucket & BITS;
	if (!options)
		return;
	at = find_multipath(options, MULTIPATH_CAPABLE);
	if (at >= 0)
		opening->version = option_at(options, at)[2] & 0xf ? 1 : 0;
	at = find_multipath(options, MULTIPATH_JOIN);
	if (at < 0)
		return;
	option = option_at(options, at);
	if (option[1] != JOIN_SYN_BYTES)
		return;
	__builtin_memcpy(&token, option + JOIN_TOKEN_AT, sizeof(token));
	opening->bits = bpf_ntohl(token) & BITS;
}

/* Reads the option of a tunnel, and the address behind it: the owner of the bucket of the
 * five-tuple. */
static __always_inline int read_owner(frame_md *ctx, __u32 option_at,
				      struct multipath_option *option, struct in6_addr *owner)
{
	__be32 address;

	if (load(ctx, HOOK, option_at, option, sizeof(*option)))
		return -1;
	option_at += sizeof(*option);
	if (option->flags & ROUTE_IS_V6)
		return load(ctx, HOOK, option_at, owner, sizeof(*owner));
	if (load(ctx, HOOK, option_at, &address, sizeof(address)))
		return -1;
	*owner = mapped(address);
	return 0;
}

/* Keeps what the option of a tunnel, which begins there in the frame, says of a SYN. */
__noinline int note_opening(frame_md *ctx, struct segment *s, __u32 option_at)
{
	struct multipath_option option;
	struct opening opening = {};
	struct flow flow;

	if (!s || !is_syn(s) || read_owner(ctx, option_at, &option, &opening.owner))
		return 0;
	opening.key = (__u64)bpf_ntohl(option.key[0]) << 32 | bpf_ntohl(option.key[1]);
	opening.bucket = bpf_ntohs(option.bucket);
	read_multipath_of_syn(ctx, s, &opening);
	flow = s->flow;
	bpf_map_update_elem(&openings, &flow, &opening, BPF_ANY);
	return 0;
}

#endif
