/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * How long clients wait for answers. A request begins with the first byte that a client
 * sends while no other request of its connection waits, and ends with the first byte of the
 * answer:
 *
 *   ingress:  data ─► asked[flow] = now, if a socket has the connection
 *   egress:   data ─► responses[service]: now - asked[flow], which goes
 *
 * Answers go past the load balancers, so only here can it be seen. Nothing of a client
 * leaves the tables: what is counted is by service.
 */
#ifndef GUIDEWAY_AGENT_RESPONSES_H
#define GUIDEWAY_AGENT_RESPONSES_H

#include "connection.h"
#include "flow.h"
#include "frame.h"
#include "multipath.h"
#include "segment.h"

#define ASKED_MAX 16384
#define RESPONSE_SERVICES_MAX 256
#define RESPONSE_CLASSES 24 /* responses.rs has it too */

/* When requests came that are not answered, in nanoseconds. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ASKED_MAX);
	__type(key, struct flow);
	__type(value, __u64);
} asked SEC(".maps");

struct responses {
	/* The first: less than 64 microseconds. Each next one: less than twice as much; the
	 * last one has no end. */
	__u64 classes[RESPONSE_CLASSES];
	__u64 nanoseconds;
	__u64 resets;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, RESPONSE_SERVICES_MAX);
	__type(key, struct service);
	__type(value, struct responses);
} responses SEC(".maps");

/* Which flows are measured: those whose hash has no bit of the mask. */
struct sampling {
	__u32 mask;
	__u32 seed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sampling);
} sampling SEC(".maps");

static const struct responses no_responses;

static __always_inline int is_measured(const struct flow *flow)
{
	__u32 zero = 0;
	const struct sampling *chosen = bpf_map_lookup_elem(&sampling, &zero);

	return chosen && !(hash_of_flow(flow, chosen->seed) & chosen->mask);
}

static __always_inline __u32 payload_bytes(const struct segment *s)
{
	return s->bytes - !!(s->flags & TCP_SYN) - !!(s->flags & TCP_FIN);
}

static __always_inline __u32 response_class(__u64 nanoseconds)
{
	__u64 units = nanoseconds / 64000;
	__u32 class = 0;

#pragma unroll
	for (int bits = 16; bits; bits /= 2) {
		if (units >> bits) {
			units >>= bits;
			class += bits;
		}
	}
	class += !!units;
	return class < RESPONSE_CLASSES ? class : RESPONSE_CLASSES - 1;
}

static __always_inline void count_response(const struct segment *s, __u64 nanoseconds)
{
	struct service service = service_of(s);
	struct responses *counted = bpf_map_lookup_elem(&responses, &service);
	__u32 class = response_class(nanoseconds);

	if (!counted) {
		bpf_map_update_elem(&responses, &service, &no_responses, BPF_NOEXIST);
		counted = bpf_map_lookup_elem(&responses, &service);
	}
	if (!counted || class >= RESPONSE_CLASSES)
		return;
	counted->classes[class]++;
	counted->nanoseconds += nanoseconds;
}

static __always_inline void count_reset(const struct segment *s)
{
	struct service service = service_of(s);
	struct responses *counted = bpf_map_lookup_elem(&responses, &service);

	if (counted)
		counted->resets++;
}

/* A socket is asked for, so that what is forged opens no request. */
static __always_inline void note_request(struct __sk_buff *skb, const struct segment *s)
{
	__u64 now;

	if (!is_measured(&s->flow) || !is_vip(s->ip.type, &s->ip.destination))
		return;
	if (s->flags & TCP_RST) {
		bpf_map_delete_elem(&asked, &s->flow);
		return;
	}
	if (!payload_bytes(s) || bpf_map_lookup_elem(&asked, &s->flow) ||
	    state_of_socket(skb, s) != BPF_TCP_ESTABLISHED)
		return;
	now = bpf_ktime_get_ns();
	bpf_map_update_elem(&asked, &s->flow, &now, BPF_NOEXIST);
}

static __always_inline void note_response(const struct segment *s)
{
	const __u64 *since;

	if (s->flags & TCP_RST)
		count_reset(s);
	if (!is_measured(&s->flow))
		return;
	since = bpf_map_lookup_elem(&asked, &s->flow);
	if (!since)
		return;
	if (payload_bytes(s))
		count_response(s, bpf_ktime_get_ns() - *since);
	if (payload_bytes(s) || s->flags & (TCP_FIN | TCP_RST))
		bpf_map_delete_elem(&asked, &s->flow);
}

#endif
