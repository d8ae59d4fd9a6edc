/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Thirteen bits in the timestamps (RFC 7323) of what services with Multipath TCP answer,
 * by which load balancers find this backend again (MPLB, section 3.3):
 *
 *   sent:      TSval = (kernel's - offset) << 13 | bits      of the last 19 bits, in ms
 *   received:  TSecr = what the kernel sent, exactly         SYNs and zero stay as they are
 *
 * To the client this clock ticks each 122 ns, and goes round in 524 s. Half of that between
 * two segments looks like an old one to it (section 5, PAWS), so the clock of a connection
 * that was idle, or unheard, is stopped before: by `offset`. Nothing is asked of the
 * application.
 *
 * The state of a flow begins with its SYN/ACK, in a table of its own until the client
 * echoes that: forged SYNs displace no connection. What is displaced nevertheless begins
 * anew with the client's next echo, which has the bits and the clock; until then the
 * option is overwritten by NOPs in what is sent, as the clock is not known. Of a SYN/ACK
 * the kernel's value is noted in eight bytes more: from the echo of another one the kernel
 * would take a first round trip of minutes.
 */
#ifndef GUIDEWAY_AGENT_TIMESTAMPS_H
#define GUIDEWAY_AGENT_TIMESTAMPS_H

#include "connection.h"
#include "flow.h"
#include "frame.h"
#include "multipath.h"
#include "opening.h"
#include "options.h"
#include "redirect.h"

#define CLOCKS_MAX 131072
#define HANDSHAKES_MAX 16384
#define FIRST_VALUES 65536

/* What became of a segment's timestamps. timestamps.rs has the same list. */
enum timestamps_outcome {
	TS_EMBEDDED,   /* the bits were put in */
	TS_RESTORED,   /* the echo is the kernel's again */
	TS_OPENED,     /* the client echoed a SYN/ACK */
	TS_CLOCK_HELD, /* an idle time was taken out of the clock */
	TS_RESUMED,    /* a state that was displaced began anew by an echo */
	TS_COOKIE_ECHO, /* of a handshake whose state was displaced: what its cookie needs */
	TS_BLANKED,    /* the state was displaced: sent without timestamps */
	TS_FOREIGN_ECHO, /* an echo of what was not sent: made zero */
	TS_NO_BITS, /* no load balancer gave bits with the SYN: left as it is */
	TS_OUTCOMES,
};

/* Of SYN/ACKs that were not echoed yet; in the kernel's values. */
struct handshake {
	__u32 first;
	__u32 last;
	__u32 bits;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, HANDSHAKES_MAX);
	__type(key, struct flow);
	__type(value, struct handshake);
} handshakes SEC(".maps");

/* The kernel's value in the latest SYN/ACK of the flow with this hash. */
struct first_value {
	__u32 hash;
	__u32 value;
};

/* By the lower bits of the hash: what a flood displaced from `handshakes` is mostly still here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIRST_VALUES);
	__type(key, __u32);
	__type(value, struct first_value);
} first_values SEC(".maps");

/* A connection's clock. Its values are the kernel's less the offset; `sent` and `echoed`
 * are the highest. */
struct clock {
	__u32 sent;
	__u32 echoed;
	__u32 offset;
	__u32 since; /* the value from which on the offset holds */
	__u32 offset_before;
	__u16 bits;
	__u8 has_offset;
	__u8 has_offset_before;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CLOCKS_MAX);
	__type(key, struct flow);
	__type(value, struct clock);
} clocks SEC(".maps");

/* How far values are shifted: 13, but in tests, which cannot wait for minutes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} timestamp_shift SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TS_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} timestamps SEC(".maps");

static __always_inline void count_timestamps(__u32 outcome)
{
	__u64 *count = bpf_map_lookup_elem(&timestamps, &outcome);

	if (count)
		++*count;
}

/* A segment's timestamps. */
struct timed {
	struct segment segment;
	__u32 option_at; /* in the frame */
	__be32 value;
	__be32 echo;
	__u32 shift;
};

/* The echoes of one turn of the clock, in ms. */
static __always_inline __u32 turn(__u32 shift)
{
	return 1u << ((32 - shift) & 31);
}

/* How long a clock may run without an echo: half of what PAWS permits. */
static __always_inline __u32 unheard_max(__u32 shift)
{
	return turn(shift) / 4;
}

/* More than what a connection's latest segment may be ahead of its client's echo. */
static __always_inline __u32 unechoed_max(__u32 shift)
{
	return turn(shift) / 32;
}

/* Far more than what two processors' segments of a flow, or a segment and its echo, are
 * apart. */
static __always_inline __u32 margin(__u32 shift)
{
	return turn(shift) / 512;
}

/* Reads the timestamps of a segment; 0: it has none. */
static __always_inline int read_timestamps(struct __sk_buff *skb, struct timed *s)
{
	__u32 options_at = s->segment.tcp_at + sizeof(struct tcphdr), zero = 0;
	__u32 *shift = bpf_map_lookup_elem(&timestamp_shift, &zero);
	struct tcp_options *options;
	__be32 words[3];
	int at;

	if (!shift)
		return 0;
	s->shift = *shift & 31;
	if (s->segment.header_bytes >= sizeof(struct tcphdr) + sizeof(words) &&
	    !load(skb, TC, options_at, words, sizeof(words)) &&
	    words[0] == bpf_htonl(USUAL_TIMESTAMPS)) {
		s->option_at = options_at + 2;
		s->value = words[1];
		s->echo = words[2];
		return 1;
	}
	options = load_options(skb, TC, &s->segment);
	at = find_timestamps(options);
	if (at < 0)
		return 0;
	s->option_at = options_at + at;
	__builtin_memcpy(&s->value, option_at(options, at) + TIMESTAMP_VALUE_AT, sizeof(s->value));
	__builtin_memcpy(&s->echo, option_at(options, at) + TIMESTAMP_ECHO_AT, sizeof(s->echo));
	return 1;
}

static __always_inline int write_word(struct __sk_buff *skb, const struct timed *s, __u32 at,
				      __be32 before, __be32 after)
{
	return replace_in_frame(skb, &s->segment, at, before, after, sizeof(after));
}

static __always_inline void embed(struct __sk_buff *skb, const struct timed *s, __u32 value,
				  __u32 bits)
{
	__be32 after = bpf_htonl(value << s->shift | (bits & BITS));

	if (!write_word(skb, s, s->option_at + TIMESTAMP_VALUE_AT, s->value, after))
		count_timestamps(TS_EMBEDDED);
}

/* Overwrites the option by NOPs. */
static __always_inline void blank(struct __sk_buff *skb, const struct timed *s)
{
	struct tcp_options *options = load_options(skb, TC, &s->segment);
	int at = find_timestamps(options);

	if (at >= 0 && !blank_option(options, at) && !store_options(skb, TC, &s->segment, options))
		count_timestamps(TS_BLANKED);
}

static __always_inline void note_first_value(const struct flow *flow, __u32 value)
{
	struct first_value first = { .hash = hash_of_flow(flow, 0), .value = value };
	__u32 index = first.hash % FIRST_VALUES;

	bpf_map_update_elem(&first_values, &index, &first, BPF_ANY);
}

/* A SYN/ACK: its value is the kernel's. It is of a new connection, whatever there was of
 * the same addresses and ports. */
static __always_inline void embed_first(struct __sk_buff *skb, const struct timed *s)
{
	struct opening *opening = bpf_map_lookup_elem(&openings, &s->segment.flow);
	struct handshake *known, handshake;
	__u32 value = bpf_ntohl(s->value);

	bpf_map_delete_elem(&clocks, &s->segment.flow);
	if (!opening) {
		count_timestamps(TS_NO_BITS);
		bpf_map_delete_elem(&handshakes, &s->segment.flow);
		return;
	}
	handshake.first = handshake.last = value;
	handshake.bits = bits_of(opening);
	known = bpf_map_lookup_elem(&handshakes, &s->segment.flow);
	if (known && known->bits == handshake.bits && value - known->first < turn(s->shift) / 2)
		handshake.first = known->first; /* the SYN/ACK is repeated */
	bpf_map_update_elem(&handshakes, &s->segment.flow, &handshake, BPF_ANY);
	note_first_value(&s->segment.flow, value);
	embed(skb, s, value, handshake.bits);
}

/* Lets the clock go on at this value. Echoes of values before it are restored by the
 * offset of then, unless there were two of them since the client was last heard. */
static __always_inline void set_clock(struct clock *clock, __u32 now, __u32 value)
{
	clock->offset_before = clock->offset;
	clock->has_offset_before =
		clock->has_offset && (__s32)(clock->echoed - clock->since) >= 0;
	clock->offset = now - value;
	clock->has_offset = 1;
	clock->since = value;
}

/* The clock's value for the kernel's. */
static __always_inline __u32 value_of(struct clock *clock, __u32 now, __u32 shift)
{
	__u32 value = now - clock->offset;

	if (!clock->has_offset) {
		value = clock->echoed + unechoed_max(shift);
		set_clock(clock, now, value);
	} else if (clock->sent - value <= margin(shift)) {
		return value; /* of another processor, or of the same millisecond */
	} else if (value - clock->echoed > unheard_max(shift)) {
		value = clock->sent + 1;
		set_clock(clock, now, value);
		count_timestamps(TS_CLOCK_HELD);
	} else if (value - clock->since > 2 * turn(shift)) {
		clock->since = value - turn(shift); /* values of 24 days ago would be later ones */
	}
	clock->sent = value;
	return value;
}

/* Puts the bits into the timestamps of a segment that is sent; 0: it has none. */
static __always_inline int embed_bits(struct __sk_buff *skb,
				       const struct segment *segment)
{
	struct timed s = { .segment = *segment };
	struct handshake *handshake;
	struct clock *clock;
	__u32 now;

	if (!read_timestamps(skb, &s))
		return 0;
	if (s.segment.flags & TCP_SYN) {
		if (s.segment.flags & TCP_ACK)
			embed_first(skb, &s);
		return 1;
	}
	now = bpf_ntohl(s.value);
	clock = bpf_map_lookup_elem(&clocks, &s.segment.flow);
	if (clock) {
		embed(skb, &s, value_of(clock, now, s.shift), clock->bits);
		return 1;
	}
	handshake = bpf_map_lookup_elem(&handshakes, &s.segment.flow);
	if (handshake) {
		handshake->last = now;
		embed(skb, &s, now, handshake->bits);
		return 1;
	}
	blank(skb, &s);
	return 1;
}

static __always_inline void write_echo(struct __sk_buff *skb, const struct timed *s, __u32 echo,
				       __u32 outcome)
{
	if (!write_word(skb, s, s->option_at + TIMESTAMP_ECHO_AT, s->echo, bpf_htonl(echo)))
		count_timestamps(outcome);
}

/* The latest value up to `latest` whose low bits were echoed. */
static __always_inline __u32 echoed_value(__u32 latest, __u32 echo, __u32 shift)
{
	return latest - ((latest - (echo >> shift)) & (turn(shift) - 1));
}

/* The client's first echo: from then on it is a connection. */
static __always_inline int restore_first(struct __sk_buff *skb, const struct timed *s)
{
	struct handshake *handshake = bpf_map_lookup_elem(&handshakes, &s->segment.flow);
	struct clock clock = { .has_offset = 1 };
	struct opening *opening;
	__u32 echo = bpf_ntohl(s->echo);

	if (!handshake || (echo & (turn(32 - s->shift) - 1)) != handshake->bits)
		return 0;
	clock.sent = handshake->last;
	clock.since = handshake->first;
	clock.echoed = echoed_value(handshake->last, echo, s->shift);
	clock.bits = handshake->bits;
	if (handshake->last - clock.echoed > handshake->last - handshake->first)
		return 0;
	bpf_map_update_elem(&clocks, &s->segment.flow, &clock, BPF_ANY);
	bpf_map_delete_elem(&handshakes, &s->segment.flow);
	count_timestamps(TS_OPENED);
	opening = bpf_map_lookup_elem(&openings, &s->segment.flow);
	if (opening)
		note_connection(&s->segment.flow, opening);
	write_echo(skb, s, clock.echoed, TS_RESTORED);
	return 1;
}

/* What the kernel sent in the SYN/ACK that is echoed: it may be an earlier one than was noted
 * last, or a later one. Unless it was noted, only its lower bits. */
static __always_inline __u32 first_value_echoed(const struct timed *s)
{
	__u32 hash = hash_of_flow(&s->segment.flow, 0), index = hash % FIRST_VALUES;
	struct first_value *first = bpf_map_lookup_elem(&first_values, &index);
	__u32 echo = bpf_ntohl(s->echo);

	if (!first || first->hash != hash)
		return echo >> s->shift;
	return echoed_value(first->value + turn(s->shift) / 2, echo, s->shift);
}

/* The client has the bits and the clock of a connection whose state is gone; what the
 * kernel sent is not known: to it zero means no echo. Of a handshake it is known, or its lower
 * bits are, and in these its cookie has what the SYN offered: without them the connection
 * would have no window scale. */
static __always_inline void resume(struct __sk_buff *skb, const struct timed *s)
{
	__u32 echo = bpf_ntohl(s->echo);
	struct clock clock = {
		.sent = echo >> s->shift,
		.echoed = echo >> s->shift,
		.bits = echo & BITS,
	};
	__u32 state = state_of_socket(skb, &s->segment);

	if (!state)
		return;
	if (state == BPF_TCP_LISTEN) {
		write_echo(skb, s, first_value_echoed(s), TS_COOKIE_ECHO);
		return;
	}
	bpf_map_update_elem(&clocks, &s->segment.flow, &clock, BPF_NOEXIST);
	write_echo(skb, s, 0, TS_RESUMED);
}

static __always_inline void restore(struct __sk_buff *skb, const struct timed *s,
				    struct clock *clock)
{
	__u32 echo = bpf_ntohl(s->echo);
	__u32 value = echoed_value(clock->sent + margin(s->shift), echo, s->shift);

	if ((echo & (turn(32 - s->shift) - 1)) != clock->bits) {
		write_echo(skb, s, 0, TS_FOREIGN_ECHO);
		return;
	}
	if ((__s32)(value - clock->echoed) > 0 && (__s32)(value - clock->sent) <= 0)
		clock->echoed = value;
	if ((__s32)(value - clock->since) >= 0 && clock->has_offset)
		write_echo(skb, s, value + clock->offset, TS_RESTORED);
	else if (clock->has_offset_before)
		write_echo(skb, s, value + clock->offset_before, TS_RESTORED);
	else
		write_echo(skb, s, 0, TS_FOREIGN_ECHO);
}

/* Makes the echo of a segment from a client the kernel's. */
static __always_inline void restore_echo(struct __sk_buff *skb,
					 const struct segment *segment)
{
	struct timed s = { .segment = *segment };
	struct clock *clock;

	/* Without ACK the echo means nothing (RFC 7323, section 3.2). */
	if ((segment->flags & (TCP_SYN | TCP_ACK)) != TCP_ACK || !read_timestamps(skb, &s) ||
	    !s.echo)
		return;
	clock = bpf_map_lookup_elem(&clocks, &s.segment.flow);
	if (clock)
		restore(skb, &s, clock);
	else if (!restore_first(skb, &s))
		resume(skb, &s);
}

#endif
