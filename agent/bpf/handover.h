/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Hands the packet inside over to another agent, in a tunnel of its own. Its route option
 * has no addresses, and hop limit 1, by which that agent sends it no further: it can make no
 * circle.
 *
 *   Ethernet | IP | UDP | Geneve | options ... | packet
 *      all anew: Ethernet | IP | UDP | Geneve | route option | packet
 */
#ifndef GUIDEWAY_AGENT_HANDOVER_H
#define GUIDEWAY_AGENT_HANDOVER_H

#include "frame.h"
#include "onward.h"
#include "route.h"
#include "segment.h"

#define HANDOVER_HOP_LIMIT 1 /* load balancers write 4 */

/* A packet that is handed over, for each processor. */
struct handover {
	struct in6_addr agent; /* IPv4 is mapped */
	__u8 front[OUTER_BYTES_MAX + COPIED_BYTES_MIN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct handover);
} handovers SEC(".maps");

/* Where the agent that a packet goes to is written. */
static __always_inline struct handover *next_handover(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&handovers, &zero);
}

static __always_inline int was_handed_over(const struct tunnel *t)
{
	return t->options.route.at && t->options.route.hop_limit <= HANDOVER_HOP_LIMIT;
}

static __always_inline void write_last_geneve(void *to, __u32 type)
{
	const struct {
		__u8 words;
		__u8 critical;
		__be16 type;
		__be32 network;
		struct route_option route;
	} geneve = {
		.words = sizeof(struct route_option) / 4,
		.critical = 0x40,
		.type = bpf_htons(type),
		.route = {
			.option = {
				.class = bpf_htons(OPTION_CLASS),
				.type = ROUTE_TYPE,
				.length = sizeof(struct route_option) / 4 - 1,
			},
			.hop_limit = HANDOVER_HOP_LIMIT,
			.bucket = 0xffff,
		},
	};

	__builtin_memcpy(to, &geneve, sizeof(geneve));
}

/* NONE, or why the packet that was read into `s` cannot be handed over. `end` is the frame's,
 * `fields` the traffic class and the source port (network order) of the outer headers. */
__noinline int hand_over_inner(frame_md *ctx, struct segment *s, __u32 end, __u32 fields)
{
	struct tunnel t = { .traffic_class = fields >> 16, .outer_port = fields & 0xffff };
	struct handover *handover = next_handover();
	__u32 packet_at, bytes, outer_bytes;
	struct agent *agent;

	if (!handover || !s)
		return NO_ROOM;
	packet_at = s->ip.header_at;
	agent = bpf_map_lookup_elem(&agents, &handover->agent);
	if (!agent)
		return NOT_AGENT;
	if (!has_neighbour(agent))
		return NO_NEIGHBOUR;
	if (end > frame_bytes(ctx, HOOK) || end < packet_at)
		return OUTER_HEADER;
	t.options.route.next = handover->agent;
	bytes = COPIED_BYTES_MIN + end - packet_at;
	outer_bytes = outer_bytes_to(&t);
	if (outer_bytes - sizeof(struct ethhdr) + bytes > agent->mtu)
		return TOO_BIG;
	write_outer(handover->front, &t, agent, bytes);
	write_last_geneve(handover->front + outer_bytes, s->ip.type);
	return replace_begin(ctx, HOOK, packet_at, (void *)handover->front,
			     outer_bytes - sizeof(struct ethhdr) + COPIED_BYTES_MIN) ?
		       NO_ROOM :
		       NONE;
}

/* The reason that was given, if the packet is now that of the agent in `handovers`; else why
 * it cannot be. */
static __always_inline enum reason hand_over(frame_md *ctx, const struct tunnel *t,
					     struct segment *s, enum reason reason)
{
	enum reason failed = hand_over_inner(ctx, s, t->outer_bytes + sizeof(struct ethhdr),
					     t->traffic_class << 16 | t->outer_port);

	return failed == NONE ? reason : failed;
}

#endif
