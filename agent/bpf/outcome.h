/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What becomes of a frame, and why: each has one reason, and is counted by it. Those that
 * are taken out of a tunnel are counted by its kind.
 */
#ifndef GUIDEWAY_AGENT_OUTCOME_H
#define GUIDEWAY_AGENT_OUTCOME_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* A frame that is not taken here, by reason, and what is done with it: passed, it is the
 * kernel's as it came; sent, it is another agent's. outcome.rs has the same list. */
#define REASONS(X)                                                                   \
	X(NO_TUNNEL, XDP_PASS)                                                       \
	X(OTHER_HOST, XDP_PASS) /* a tunnel to another address than this host's */   \
	X(UNKNOWN_SOURCE, XDP_PASS) /* a tunnel that is not ours */                  \
	X(NO_SOCKET, XDP_TX)                                                         \
	X(OTHER_HANDSHAKE, XDP_TX)                                                   \
	X(OTHER_TIME_WAIT, XDP_TX)                                                   \
	X(OTHER_CONNECTION, XDP_TX)                                                  \
	X(NO_FLOW, XDP_TX)                                                           \
	X(NO_TOKEN, XDP_TX)                                                          \
	X(REDIRECT_RULE, XDP_TX)                                                     \
	X(PLAIN_SYN, XDP_TX)                                                         \
	X(OUTER_FRAGMENT, XDP_DROP)                                                  \
	X(OUTER_HEADER, XDP_DROP)                                                    \
	X(GRE_FLAGS, XDP_DROP)                                                       \
	X(GRE_RECURSION, XDP_DROP)                                                   \
	X(GUE_HEADER, XDP_DROP)                                                      \
	X(GENEVE_HEADER, XDP_DROP)                                                   \
	X(GENEVE_OPTION, XDP_DROP)                                                   \
	X(ROUTE_OPTION, XDP_DROP)                                                    \
	X(MULTIPATH_OPTION, XDP_DROP)                                                \
	X(INNER_PROTOCOL, XDP_DROP)                                                  \
	X(INNER_HEADER, XDP_DROP)                                                    \
	X(INNER_FRAGMENT, XDP_DROP)                                                  \
	X(AWAITS_RULE, XDP_DROP)                                                     \
	X(NOT_VIP, XDP_DROP)                                                         \
	X(ECN, XDP_DROP)                                                             \
	X(HOP_LIMIT, XDP_DROP)                                                       \
	X(NOT_AGENT, XDP_DROP)                                                       \
	X(NO_NEIGHBOUR, XDP_DROP)                                                    \
	X(TOO_BIG, XDP_DROP)                                                         \
	X(NO_ROOM, XDP_DROP)

#define AS_REASON(reason, action) reason,
#define AS_CASE(reason, action) \
	case reason:            \
		return action;

enum reason {
	NONE, /* of those below: it is taken here, or is to be looked at further */
	REASONS(AS_REASON) REASONS_END,
};

/* outcome.rs has the same list. */
enum tunnel_kind {
	GRE,
	IPIP,
	GUE,
	GENEVE,
	TUNNEL_KINDS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS_END);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

/* Taken out of a tunnel of each kind. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TUNNEL_KINDS);
	__type(key, __u32);
	__type(value, __u64);
} decapsulated SEC(".maps");

static __always_inline enum xdp_action action_of(enum reason reason)
{
	switch (reason) {
		REASONS(AS_CASE)
	default:
		return XDP_ABORTED;
	}
}

/* Counts the frame, and says what the driver is to do with it. */
static __always_inline enum xdp_action ended(enum reason reason)
{
	__u32 index = reason;
	__u64 *count = bpf_map_lookup_elem(&reasons, &index);

	if (count)
		++*count;
	return action_of(reason);
}

static __always_inline enum xdp_action taken(enum tunnel_kind kind)
{
	__u32 index = kind;
	__u64 *count = bpf_map_lookup_elem(&decapsulated, &index);

	if (count)
		++*count;
	return XDP_PASS;
}

#endif
