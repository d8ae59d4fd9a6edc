/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Handshakes of Multipath TCP in which an unmodified kernel takes the key that the load
 * balancer chose (MPLB, section 3.1):
 *
 *   SYN ─► XDP ─► user space ─► SYN cookies on, into the kernel, off again
 *   SYN/ACK ◄─ egress: the kernel's key is replaced by the load balancer's
 *   ACK ─► ingress: echoes that key, which the kernel takes for its own from the cookie on
 *
 * A SYN that user space cannot have soon goes to the kernel without MP_CAPABLE: a plain
 * connection is better than none. The same for a SYN/ACK that is no cookie's: the kernel
 * would keep its own key, which leads joins elsewhere.
 */
#ifndef GUIDEWAY_AGENT_HANDSHAKE_H
#define GUIDEWAY_AGENT_HANDSHAKE_H

#include "connection.h"
#include "flow.h"
#include "frame.h"
#include "multipath.h"
#include "opening.h"
#include "options.h"

#define SYN_BYTES_MAX 512 /* multipath/injector.rs has these, too */
#define SYNS_BYTES (1 << 20)
#define KEYED_HANDSHAKES_MAX 16384
#define TOKENS_MAX 1048576
#define HEARTBEAT_MAX 1000000000 /* ns: with none for longer, user space is gone */
#define RATE_WINDOW_BITS 26 /* 67 ms */
#define CAPABLE_SYN_BYTES 4 /* of version 1, the only one that kernels know */
#define CAPABLE_SYN_ACK_BYTES 12
#define CAPABLE_ACK_BYTES 20
#define CAPABLE_KEY_AT 4
#define CAPABLE_ECHO_AT 12
#define MULTIPATH_KEY_AT 4 /* in the tunnel's option */

/* What was done with segments of these services. multipath/counts.rs has the same list. */
enum multipath_event {
	SYN_HANDED,           /* to user space */
	SYN_STRIPPED_RATE,    /* of MP_CAPABLE: more SYNs than user space may have */
	SYN_STRIPPED_SILENCE, /* user space does not live */
	SYN_STRIPPED_ROOM,    /* no room for it in the ring, or in a record */
	SYN_STRIPPED_TIMESTAMPS, /* its client has none: it goes on (plain_syn.h) */
	SYN_ACK_KEYED,        /* has the load balancer's key now */
	SYN_ACK_STRIPPED,     /* of MP_CAPABLE: the kernel took no cookie for it */
	ACK_OTHER_KEY,        /* dropped: it echoes a key that was not sent */
	ACK_TOO_EARLY,        /* dropped: the kernel has not got what opens the connection */
	MULTIPATH_EVENTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MULTIPATH_EVENTS);
	__type(key, __u32);
	__type(value, __u64);
} multipath_events SEC(".maps");

/* A SYN on its way to user space. */
struct handed_syn {
	__be64 key; /* 0: it opens no connection of several paths */
	__u32 bytes;
	__u32 zero;
	__u8 packet[SYN_BYTES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SYNS_BYTES);
} syns SEC(".maps");

/* Of user space, which writes it. */
struct injector {
	__u64 heartbeat; /* ns; 0: it does not live */
	__u64 syns_max;  /* in a window */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct injector);
} injector SEC(".maps");

/* SYNs in the present window of the rate. */
struct rate {
	__u64 window;
	__u64 syns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rate);
} syn_rate SEC(".maps");

/* The SYN that user space is giving to the kernel. Its SYN/ACK is sent before that returns, so
 * one place serves all handshakes, and a flood displaces nothing of it. */
struct injected_syn {
	struct flow flow;
	__u32 sequence;
	__be64 key;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct injected_syn);
} injected_syn SEC(".maps");

/* How far a handshake has come. */
enum progress {
	SILENT,    /* user space has the SYN/ACK repeated */
	ANSWERED,  /* by the client */
	CONNECTED, /* the kernel has a connection */
};

/* One that user space gave to the kernel. */
struct keyed_handshake {
	__be64 key;
	__u32 sequence; /* of the SYN */
	__u32 progress;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, KEYED_HANDSHAKES_MAX);
	__type(key, struct flow);
	__type(value, struct keyed_handshake);
} keyed_handshakes SEC(".maps");

/* Tokens of the connections that live here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TOKENS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, __u32);
} tokens SEC(".maps");

static __always_inline void count_event(__u32 event)
{
	__u64 *count = bpf_map_lookup_elem(&multipath_events, &event);

	if (count)
		++*count;
}

/* The SYN of a service with Multipath TCP, whole. */
static __always_inline int is_multipath_syn(const struct segment *s)
{
	return is_syn(s) && s->ip.fragment == WHOLE && is_of_multipath_service(s);
}

/* True for a SYN that joins a connection that does not live here. A function of its own, as
 * is_handed(), so that the verifier goes through it once. */
__noinline int joins_elsewhere(frame_md *ctx, struct segment *s)
{
	struct tcp_options *options;
	__be32 token;
	int at;

	if (!s || !is_multipath_syn(s))
		return 0;
	options = load_options(ctx, HOOK, s);
	if (!options)
		return 0;
	at = find_multipath(options, MULTIPATH_JOIN);
	if (at < 0)
		return 0;
	__builtin_memcpy(&token, option_at(options, at) + JOIN_TOKEN_AT, sizeof(token));
	return !bpf_map_lookup_elem(&tokens, &token);
}

/* Overwrites MP_CAPABLE by NOPs. */
static __always_inline void strip_syn(frame_md *ctx, const struct segment *s, __u32 event)
{
	struct tcp_options *options = load_options(ctx, HOOK, s);
	int at = options ? find_multipath(options, MULTIPATH_CAPABLE) : -1;

	if (at < 0 || blank_option(options, at) || store_options(ctx, HOOK, s, options))
		return;
	count_event(event);
}

/* Gives a SYN to user space; SYN_HANDED, or why it cannot have it. */
static __always_inline __u32 submit_syn(frame_md *ctx, const struct segment *s,
					__u32 option_at)
{
	__u32 bytes = frame_bytes(ctx, HOOK) - s->ip.header_at;
	struct handed_syn *syn;

	if (bytes > SYN_BYTES_MAX || bytes < sizeof(struct iphdr))
		return SYN_STRIPPED_ROOM;
	syn = bpf_ringbuf_reserve(&syns, sizeof(*syn), 0);
	if (!syn)
		return SYN_STRIPPED_ROOM;
	syn->bytes = bytes;
	syn->zero = 0;
	if (load(ctx, HOOK, option_at + MULTIPATH_KEY_AT, &syn->key, sizeof(syn->key)) ||
	    load(ctx, HOOK, s->ip.header_at, syn->packet, within(bytes, SYN_BYTES_MAX))) {
		bpf_ringbuf_discard(syn, 0);
		return SYN_STRIPPED_ROOM;
	}
	bpf_ringbuf_submit(syn, 0);
	return SYN_HANDED;
}

/* True if this packet is user space's now; else it may have lost MP_CAPABLE, and is the
 * kernel's. The first packet begins a window of the rate: two at once may let a few more
 * through. */
__noinline int is_handed(frame_md *ctx, struct segment *s, __u32 option_at)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct injector *user;
	struct rate *rate;
	__u32 zero = 0, event;

	if (!s || !is_multipath_syn(s))
		return 0;
	user = bpf_map_lookup_elem(&injector, &zero);
	rate = bpf_map_lookup_elem(&syn_rate, &zero);
	if (!user || !rate)
		return 0;
	if (rate->window != now >> RATE_WINDOW_BITS) {
		rate->window = now >> RATE_WINDOW_BITS;
		rate->syns = 0;
	}
	if (!user->heartbeat || (__s64)(now - user->heartbeat) > HEARTBEAT_MAX)
		event = SYN_STRIPPED_SILENCE;
	else if (__sync_fetch_and_add(&rate->syns, 1) >= user->syns_max)
		event = SYN_STRIPPED_RATE;
	else
		event = submit_syn(ctx, s, option_at);
	if (event != SYN_HANDED) {
		strip_syn(ctx, s, event);
		return 0;
	}
	count_event(event);
	return 1;
}

/* True if only a listener has use for what this segment's client sends: the kernel keeps
 * nothing of the handshake, so its SYN/ACK is a cookie. */
static __always_inline int has_listener_only(struct __sk_buff *skb,
					     const struct segment *s)
{
	return state_of_socket(skb, s) == BPF_TCP_LISTEN;
}

/* The SYN that this segment answers, if it is being given to the kernel now. */
static __always_inline const struct injected_syn *injected_of(const struct segment *s)
{
	__u32 zero = 0;
	const struct injected_syn *syn = bpf_map_lookup_elem(&injected_syn, &zero);

	return syn && is_same_flow(&syn->flow, &s->flow) && syn->sequence + 1 == s->acknowledged ?
		       syn :
		       0;
}

/* A SYN/ACK that offers several paths does so with the load balancer's key, or not at all. */
static __always_inline void key_syn_ack(struct __sk_buff *skb, const struct segment *s)
{
	struct tcp_options *options = load_options(skb, TC, s);
	const struct injected_syn *syn = injected_of(s);
	__u32 event;
	int at;

	if (!options)
		return;
	at = find_multipath(options, MULTIPATH_CAPABLE);
	if (at < 0)
		return;
	if (option_at(options, at)[1] == CAPABLE_SYN_ACK_BYTES && syn && has_listener_only(skb, s)) {
		__builtin_memcpy(option_at(options, at) + CAPABLE_KEY_AT, &syn->key,
				 sizeof(syn->key));
		event = SYN_ACK_KEYED;
	} else {
		blank_option(options, at);
		event = SYN_ACK_STRIPPED;
	}
	if (!store_options(skb, TC, s, options))
		count_event(event);
}

/* True if only a listener has use for an ACK, and a cookie of ours is in it. */
static __always_inline int has_cookie(struct __sk_buff *skb, const struct segment *s)
{
	struct bpf_sock *socket = find_socket(skb, &s->flow);
	int is_one;

	if (!socket)
		return 0;
	is_one = socket->state == BPF_TCP_LISTEN && is_cookie_of(skb, TC, socket, s);
	bpf_sk_release(socket);
	return is_one;
}

/* True for an ACK by which the kernel would make a connection with a key that the load
 * balancer did not choose. A handshake that was displaced is recognised by what its SYN/ACK
 * had: a cookie, and in the timestamps the token's bits of the key that is echoed. */
static __always_inline int echoes_other_key(struct __sk_buff *skb,
					    const struct segment *s,
					    const struct keyed_handshake *handshake)
{
	struct tcp_options *options = load_options(skb, TC, s);
	int at = options ? find_multipath(options, MULTIPATH_CAPABLE) : -1, timestamps_at;
	__be32 echo;
	__be64 key;

	if (at < 0 || option_at(options, at)[1] < CAPABLE_ACK_BYTES)
		return 0;
	__builtin_memcpy(&key, option_at(options, at) + CAPABLE_ECHO_AT, sizeof(key));
	if (handshake)
		return key != handshake->key;
	if (!has_listener_only(skb, s))
		return 0;
	timestamps_at = find_timestamps(options);
	if (timestamps_at < 0)
		return 1;
	__builtin_memcpy(&echo, option_at(options, timestamps_at) + TIMESTAMP_ECHO_AT, sizeof(echo));
	/* First the cookie: the digest is dear, and forged ACKs have none. */
	return !has_cookie(skb, s) ||
	       (bpf_ntohl(echo) & BITS) != (token_of_version_1(bpf_be64_to_cpu(key)) & BITS);
}

/* Notes how far a handshake has come. True for a segment that is not right behind the SYN,
 * while the kernel has no connection: what opens it was lost, or the listener had no room.
 * The kernel knows nothing of the handshake, and would reset it; the client repeats what is
 * missing. */
static __always_inline int comes_too_early(struct __sk_buff *skb,
					   const struct segment *s,
					   struct keyed_handshake *handshake)
{
	if (!handshake || handshake->progress == CONNECTED || s->flags & TCP_RST)
		return 0;
	if (!has_listener_only(skb, s)) {
		handshake->progress = CONNECTED;
		return 0;
	}
	if (s->sequence != handshake->sequence + 1)
		return 1;
	handshake->progress = ANSWERED;
	return 0;
}

/* True if the kernel must not have this ACK. */
static __always_inline int is_refused(struct __sk_buff *skb, const struct segment *s)
{
	struct keyed_handshake *handshake = bpf_map_lookup_elem(&keyed_handshakes, &s->flow);

	if (echoes_other_key(skb, s, handshake)) {
		count_event(ACK_OTHER_KEY);
		return 1;
	}
	if (comes_too_early(skb, s, handshake)) {
		count_event(ACK_TOO_EARLY);
		return 1;
	}
	return 0;
}

#endif
