/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Redirect rules (MPLB, section 3.3): packets without a timestamp reach the agent X that
 * has the bucket of their five-tuple, and their connection lives with Y, by its token.
 *
 *   at Y: SYN/ACK, later segments ─► rule_events, away ─► user space ── message ──► X
 *   at X: redirects, half_redirects ◄─ user space;  client's packet ─► Geneve ─► Y
 *
 * What X sends on has a route option without addresses and with hop limit 1, by which Y
 * sends it no further: it can make no circle. A socket of X's own that has use for a packet
 * comes before a rule, so a forged SYN at X ends none, and a client may use its port again.
 */
#ifndef GUIDEWAY_AGENT_REDIRECT_H
#define GUIDEWAY_AGENT_REDIRECT_H

#include "connection.h"
#include "flow.h"
#include "frame.h"
#include "handover.h"
#include "handshake.h"
#include "multipath.h"
#include "opening.h"
#include "route.h"

#define REDIRECTS_MAX 131072 /* redirects/table.rs has these, too */
#define HALF_REDIRECTS_MAX 16384
#define RULE_EVENTS_BYTES (1 << 18)
#define SIGHTINGS_MAX 16384
#define SIGHTING_HELD 150000000 /* ns: a rule is here by then, or a resent segment */
#define SIGHTING_MAX 60000000000 /* ns */

/* Where packets of a flow go. */
struct rule {
	struct in6_addr agent; /* IPv4 is mapped */
	__u32 until;           /* in seconds, as now_seconds() */
	__u32 zero;
};

/* Of connections that their agent has seen whole. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REDIRECTS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct rule);
} redirects SEC(".maps");

/* Of handshakes: apart, so that what forged SYNs begin displaces no connection's rule. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, HALF_REDIRECTS_MAX);
	__type(key, struct flow);
	__type(value, struct rule);
} half_redirects SEC(".maps");

/* The agents that rules may be requested of; 1: handshakes' rules, too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct in6_addr);
	__type(value, __u32);
} rule_agents SEC(".maps");

/* 1: this agent takes rules, so that one may come for a packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} takes_rules SEC(".maps");

/* Connections here whose five-tuple's bucket another agent has, with its address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REDIRECTS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct in6_addr);
} away SEC(".maps");

/* One of these, or a handshake, is new. */
struct rule_event {
	struct flow flow;
	struct in6_addr owner;
	__u32 is_connection;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RULE_EVENTS_BYTES);
} rule_events SEC(".maps");

/* When a packet came that is of no connection here, and that no rule is for, in ns. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SIGHTINGS_MAX);
	__type(key, struct flow);
	__type(value, __u64);
} sightings SEC(".maps");

/* Where rules sent first fragments, as later ones have no ports. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTS_MAX);
	__type(key, struct fragmented);
	__type(value, struct rule);
} ruled_fragments SEC(".maps");

enum ruling {
	RULING_NONE, /* no rule, and none will come */
	RULING_RULE, /* to another agent */
	RULING_WAIT, /* of no connection here, and a rule may come */
};

/* What a rule may say of a segment. A SYN is of no connection yet; and a kernel answers no
 * RST. What has timestamps is where these lead. */
static __always_inline enum ruling ruling_allowed(frame_md *ctx, const struct segment *s)
{
	__be32 word;

	if (s->is_datagram)
		return RULING_NONE;
	if (s->is_quoted)
		return RULING_RULE;
	if (is_syn(s))
		return RULING_NONE;
	if (s->flags & TCP_RST)
		return RULING_RULE;
	if (s->header_bytes > sizeof(struct tcphdr) &&
	    !load(ctx, HOOK, s->tcp_at + sizeof(struct tcphdr), &word, sizeof(word)) &&
	    word == bpf_htonl(USUAL_TIMESTAMPS))
		return RULING_RULE;
	return RULING_WAIT;
}

static __always_inline int holds(const struct rule *rule)
{
	return rule && (__s32)(rule->until - now_seconds()) > 0;
}

/* What was decided over the packet's first fragment. */
static __always_inline enum ruling ruling_of_later(const struct segment *s,
						   struct handover *handover)
{
	struct fragmented packet = fragmented_of(&s->ip);
	struct rule *rule = bpf_map_lookup_elem(&ruled_fragments, &packet);

	if (!holds(rule))
		return RULING_NONE;
	handover->agent = rule->agent;
	return RULING_RULE;
}

static __always_inline void remember_ruled(const struct segment *s,
					   const struct handover *handover)
{
	struct fragmented packet = fragmented_of(&s->ip);
	struct rule rule = {
		.agent = handover->agent,
		.until = now_seconds() + FRAGMENT_IDLE_SECONDS,
	};

	bpf_map_update_elem(&ruled_fragments, &packet, &rule, BPF_ANY);
}

/* True for a packet that came before the rule for it may have: the kernel would reset a
 * connection that lives elsewhere. If it comes again later, the kernel's RST is right. */
static __always_inline int is_held(const struct flow *flow)
{
	__u64 now = bpf_ktime_get_coarse_ns(), *first;

	first = bpf_map_lookup_elem(&sightings, flow);
	if (first && now - *first < SIGHTING_MAX)
		return now - *first < SIGHTING_HELD;
	bpf_map_update_elem(&sightings, flow, &now, BPF_ANY);
	return 1;
}

static __always_inline int rules_are_taken(void)
{
	__u32 zero = 0, *is_on = bpf_map_lookup_elem(&takes_rules, &zero);

	return is_on && *is_on;
}

/* What rules say of the packet inside; the agent that one leads to is in `handovers`. A
 * packet that names other agents is looked up by these, where there is no rule. */
__noinline int ruling_of(frame_md *ctx, struct segment *s, __u32 is_named)
{
	struct handover *handover = next_handover();
	enum ruling ruling;
	struct rule *rule;
	struct flow flow;

	if (!handover || !s)
		return RULING_NONE;
	if (s->ip.fragment == LATER)
		return ruling_of_later(s, handover);
	flow = s->flow;
	ruling = ruling_allowed(ctx, s);
	if (ruling == RULING_NONE || !is_of_multipath_service(s))
		return RULING_NONE;
	rule = bpf_map_lookup_elem(&redirects, &flow);
	if (!holds(rule))
		rule = bpf_map_lookup_elem(&half_redirects, &flow);
	if (holds(rule)) {
		handover->agent = rule->agent;
		ruling = RULING_RULE;
		s->is_ruled = !bpf_map_lookup_elem(&keyed_handshakes, &flow);
	} else if (ruling == RULING_RULE || is_named) {
		return RULING_NONE;
	}
	if (place_by_sockets(ctx, s) == NONE)
		return RULING_NONE;
	if (ruling == RULING_WAIT && !is_held(&flow))
		return RULING_NONE;
	if (ruling == RULING_RULE && s->ip.fragment == FIRST && !s->is_quoted)
		remember_ruled(s, handover);
	return ruling;
}

/* True if this agent may request a handshake's rule of that one, and has user space that
 * does. */
static __always_inline int takes_handshakes(const struct in6_addr *agent)
{
	__u32 zero = 0, *is_taken = bpf_map_lookup_elem(&rule_agents, agent);
	struct injector *user = bpf_map_lookup_elem(&injector, &zero);

	return is_taken && *is_taken && user && user->heartbeat &&
	       (__s64)(bpf_ktime_get_coarse_ns() - user->heartbeat) <= HEARTBEAT_MAX;
}

static __always_inline void submit_rule_event(const struct flow *flow,
					      const struct in6_addr *owner, __u32 is_connection)
{
	struct rule_event event = {
		.flow = *flow,
		.owner = *owner,
		.is_connection = is_connection,
	};

	/* Without room user space finds a connection in `away`, and a handshake not. */
	bpf_ringbuf_output(&rule_events, &event, sizeof(event), 0);
}

/* The client has answered: packets of the connection without timestamps need a rule. */
static __always_inline void note_connection(const struct flow *flow, const struct opening *opening)
{
	struct in6_addr owner = opening->owner;

	if (!bpf_map_lookup_elem(&rule_agents, &owner))
		return;
	bpf_map_update_elem(&away, flow, &owner, BPF_ANY);
	submit_rule_event(flow, &owner, 1);
}

/* True if a connection sends the segment, no listener and nothing that answers for it. */
static __always_inline int is_sent_by_connection(struct __sk_buff *skb)
{
	struct bpf_sock *socket = skb->sk;

	if (!socket)
		return 0;
	socket = bpf_sk_fullsock(socket);
	return socket && socket->state != BPF_TCP_LISTEN && socket->state != BPF_TCP_CLOSE &&
	       socket->state != BPF_TCP_SYN_RECV && socket->state != BPF_TCP_NEW_SYN_RECV;
}

/* A segment without timestamps that is sent. Those of clients with timestamps need no rule
 * before the first echo (restore_first()). */
__noinline int note_untimed(struct __sk_buff *skb, struct segment *segment)
{
	struct opening *opening;
	struct flow flow;

	if (!segment || segment->flags & TCP_RST)
		return 0;
	flow = segment->flow;
	opening = bpf_map_lookup_elem(&openings, &flow);
	if (!opening)
		return 0;
	if (segment->flags & TCP_SYN) {
		struct in6_addr owner = opening->owner;

		if (bpf_map_lookup_elem(&rule_agents, &owner))
			submit_rule_event(&flow, &owner, 0);
		return 0;
	}
	if (is_sent_by_connection(skb)) {
		note_connection(&flow, opening);
		bpf_map_delete_elem(&openings, &flow);
	}
	return 0;
}

#endif
