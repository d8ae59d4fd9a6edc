/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The options of a Geneve header (RFC 8926, section 3.5), of which we know two: that
 * of Multipath TCP (opening.h), and the route option
 * (wire/src/tunnel/route_option.rs).
 *
 *   class 0xff47 | type 0x81 | length
 *   flags | hop limit | bucket
 *   generation
 *   addresses to try, in order
 */
#ifndef GUIDEWAY_AGENT_ROUTE_H
#define GUIDEWAY_AGENT_ROUTE_H

#include "frame.h"

#define OPTION_CLASS 0xff47
#define ROUTE_TYPE 0x81
#define MULTIPATH_TYPE 0x82
#define CRITICAL 0x80
#define OPTIONS_MAX 63 /* the header has room for as many empty ones */
#define OPTIONS_BYTES_MAX 252

#define ROUTE_IS_V6 0x80
#define ROUTE_RETURNS 0x40
#define ROUTE_COUNT 0x03
#define ROUTE_ZERO 0x3c

struct option {
	__be16 class;
	__u8 type;
	__u8 length; /* of the body, in words; the upper three bits are reserved */
};

struct route_option {
	struct option option;
	__u8 flags;
	__u8 hop_limit;
	__be16 bucket;
	__be32 generation;
};

struct multipath_option {
	struct option option;
	__be32 key[2];
	__be16 bucket;
	__u8 flags; /* ROUTE_IS_V6 */
	__u8 zero;
};

static __always_inline __u32 address_bytes(__u8 flags)
{
	return flags & ROUTE_IS_V6 ? 16 : 4;
}

/* NONE, or ROUTE_OPTION for a malformed one. */
static __always_inline enum reason read_route(frame_md *ctx, __u32 at, struct route *route)
{
	__u32 addresses_at = at + sizeof(struct route_option);
	struct route_option option;
	__be32 next;

	if (route->at || load(ctx, HOOK, at, &option, sizeof(option)))
		return ROUTE_OPTION;
	if (option.flags & ROUTE_ZERO ||
	    (option.option.length & 0x1f) * 4 !=
		    sizeof(option) - sizeof(option.option) +
			    (option.flags & ROUTE_COUNT) * address_bytes(option.flags))
		return ROUTE_OPTION;
	route->at = at;
	route->flags = option.flags;
	route->hop_limit = option.hop_limit;
	if (!(option.flags & ROUTE_COUNT))
		return NONE;
	if (option.flags & ROUTE_IS_V6)
		return load(ctx, HOOK, addresses_at, &route->next, sizeof(route->next)) ?
			       ROUTE_OPTION :
			       NONE;
	if (load(ctx, HOOK, addresses_at, &next, sizeof(next)))
		return ROUTE_OPTION;
	route->next = mapped(next);
	return NONE;
}

/* NONE, or MULTIPATH_OPTION for a malformed one. */
static __always_inline enum reason read_multipath(frame_md *ctx, __u32 at, __u32 *multipath_at)
{
	struct multipath_option option;

	if (*multipath_at || load(ctx, HOOK, at, &option, sizeof(option)))
		return MULTIPATH_OPTION;
	if (option.flags & ~ROUTE_IS_V6 || option.zero ||
	    (option.option.length & 0x1f) * 4 !=
		    sizeof(option) - sizeof(option.option) + address_bytes(option.flags))
		return MULTIPATH_OPTION;
	*multipath_at = at;
	return NONE;
}

/* Reads the options between `at` and `end` in the frame; NONE, or what is wrong with them.
 * At most one option of each kind is ours; unknown ones are skipped, unless they are critical.
 * Options fill their room exactly.
 *
 * A global function: the verifier checks it once and by itself. What was found is in memory
 * that the verifier does not follow, so iterations of the loop differ in nothing but their
 * number, and paths do not multiply. */
__noinline __u32 read_options(frame_md *ctx, __u32 at, __u32 end, __u32 says_critical,
			      struct options *found)
{
	struct option option;
	enum reason reason;

	if (!found)
		return GENEVE_HEADER;
	for (int i = 0; i < OPTIONS_MAX && at < end; i++) {
		if (load(ctx, HOOK, at, &option, sizeof(option)))
			return GENEVE_HEADER;
		reason = NONE;
		if (option.class == bpf_htons(OPTION_CLASS) && option.type == ROUTE_TYPE)
			reason = read_route(ctx, at, &found->route);
		else if (option.class == bpf_htons(OPTION_CLASS) && option.type == MULTIPATH_TYPE)
			reason = read_multipath(ctx, at, &found->multipath_at);
		else if (option.type & CRITICAL)
			reason = GENEVE_OPTION;
		if (reason != NONE)
			return reason;
		at += sizeof(option) + (option.length & 0x1f) * 4;
	}
	/* Ours are critical, and no other is left. */
	if (at != end || !(found->route.at | found->multipath_at) != !says_critical)
		return GENEVE_HEADER;
	return NONE;
}

/* True if the connection may live elsewhere. */
static __always_inline int names_addresses(const struct tunnel *t)
{
	return t->options.route.at && t->options.route.flags & ROUTE_COUNT;
}

#endif
