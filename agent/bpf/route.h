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

/* GENEVE, or ROUTE_OPTION for a malformed one. */
static __always_inline __u32 read_route(struct tunnel *t, const void *data, const void *at)
{
	const struct route_option *route = at;
	const void *addresses = route + 1;
	__u32 body;

	if (addresses > t->end)
		return ROUTE_OPTION;
	body = (route->option.length & 0x1f) * 4;
	if (route->flags & ROUTE_ZERO ||
	    body != sizeof(*route) - sizeof(route->option) +
			    (route->flags & ROUTE_COUNT) * address_bytes(route->flags))
		return ROUTE_OPTION;
	t->route.at = at - data;
	t->route.flags = route->flags;
	t->route.hop_limit = route->hop_limit;
	if (!(route->flags & ROUTE_COUNT))
		return GENEVE;
	if (addresses + address_bytes(route->flags) > t->end)
		return ROUTE_OPTION;
	if (route->flags & ROUTE_IS_V6) {
		if (addresses + 16 > t->end)
			return ROUTE_OPTION;
		t->route.next = *(const struct in6_addr *)addresses;
	} else {
		if (addresses + 4 > t->end)
			return ROUTE_OPTION;
		t->route.next = mapped(*(const __be32 *)addresses);
	}
	return GENEVE;
}

/* GENEVE, or MULTIPATH_OPTION for a malformed one. */
static __always_inline __u32 read_multipath(struct tunnel *t, const void *data, const void *at)
{
	const struct multipath_option *multipath = at;

	if ((const void *)(multipath + 1) > t->end)
		return MULTIPATH_OPTION;
	if (multipath->flags & ~ROUTE_IS_V6 || multipath->zero ||
	    (multipath->option.length & 0x1f) * 4 !=
		    sizeof(*multipath) - sizeof(multipath->option) +
			    address_bytes(multipath->flags))
		return MULTIPATH_OPTION;
	t->multipath_at = at - data;
	return GENEVE;
}

/* One option of each kind at most is ours; unknown ones are passed over, unless they are
 * critical. Options fill their room exactly. */
static __always_inline __u32 read_options(struct tunnel *t, const void *data, __u32 room,
					  int says_critical)
{
	const void *options = t->next;
	__u32 at = 0, outcome;
	int is_critical = 0;

	for (int i = 0; i < OPTIONS_MAX && at < room; i++) {
		const struct option *option = options + (at & 0xff);

		if ((const void *)(option + 1) > t->end)
			return GENEVE_HEADER;
		is_critical |= option->type & CRITICAL;
		if (option->class == bpf_htons(OPTION_CLASS) && option->type == ROUTE_TYPE) {
			if (t->route.at)
				return ROUTE_OPTION;
			outcome = read_route(t, data, option);
			if (outcome != GENEVE)
				return outcome;
		} else if (option->class == bpf_htons(OPTION_CLASS) &&
			   option->type == MULTIPATH_TYPE) {
			if (t->multipath_at)
				return MULTIPATH_OPTION;
			outcome = read_multipath(t, data, option);
			if (outcome != GENEVE)
				return outcome;
		} else if (option->type & CRITICAL) {
			return GENEVE_OPTION;
		}
		at += sizeof(*option) + (option->length & 0x1f) * 4;
	}
	if (at != room || !is_critical != !says_critical)
		return GENEVE_HEADER;
	advance(t, room);
	return GENEVE;
}

/* True if the connection may live elsewhere. */
static __always_inline int names_addresses(const struct tunnel *t)
{
	return t->route.at && t->route.flags & ROUTE_COUNT;
}

#endif
