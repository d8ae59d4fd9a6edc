/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The options of a TCP header: read into a buffer, looked through for those of Multipath
 * TCP (RFC 8684, section 3), changed there, and written back with the checksum.
 */
#ifndef GUIDEWAY_AGENT_OPTIONS_H
#define GUIDEWAY_AGENT_OPTIONS_H

#include <stddef.h>

#include "context.h"
#include "segment.h"

#define TCP_OPTIONS_BYTES_MAX 40
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_TIMESTAMPS 8
#define TCP_OPTION_TIMESTAMPS_BYTES 10
#define TIMESTAMP_VALUE_AT 2
#define TIMESTAMP_ECHO_AT 6
#define USUAL_TIMESTAMPS 0x0101080a /* two NOPs, kind, length: how kernels begin */
#define TCP_OPTION_MULTIPATH 30
#define MULTIPATH_CAPABLE 0 /* its subtypes */
#define MULTIPATH_JOIN 1

/* Before and after a change. Each has room behind the options, so that an option's
 * fields can be read wherever it begins. */
struct tcp_options {
	__u8 before[TCP_OPTIONS_BYTES_MAX];
	__u8 bytes[64 + 32];
	__u32 length;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tcp_options);
} tcp_options SEC(".maps");

/* Their length, which is at least 1. */
static __always_inline __u32 length_of(const struct tcp_options *options)
{
	return within(options->length, 64);
}

/* The bytes of both half words, each pair swapped. */
static __always_inline __u32 swapped_pairs(__u32 word)
{
	return (word & 0x00ff00ff) << 8 | (word & 0xff00ff00) >> 8;
}

/* Reads those of a segment; null: it has none. */
static __always_inline struct tcp_options *load_options(void *ctx, enum hook hook,
							const struct segment *s)
{
	__u32 zero = 0, length = s->header_bytes - sizeof(struct tcphdr);
	struct tcp_options *options = bpf_map_lookup_elem(&tcp_options, &zero);

	if (!options || s->header_bytes <= sizeof(struct tcphdr) || length > TCP_OPTIONS_BYTES_MAX)
		return 0;
	__builtin_memset(options, 0, sizeof(*options));
	options->length = length;
	if (load(ctx, hook, s->tcp_at + sizeof(struct tcphdr), options->bytes, length_of(options)))
		return 0;
	__builtin_memcpy(options->before, options->bytes, sizeof(options->before));
	return options;
}

/* Find and blank are not inlined, so that the verifier goes through each once. */

/* Where the first option of this kind begins, and of those of Multipath TCP the first of
 * this subtype; -1: there is none. */
__noinline int find_option(struct tcp_options *options, __u32 kind, __u32 subtype)
{
	__u32 at = 0, end, bytes;

	if (!options)
		return -1;
	end = length_of(options);
	for (int i = 0; i < TCP_OPTIONS_BYTES_MAX; i++) {
		const __u8 *option = options->bytes + at;

		bytes = option[0] == TCP_OPTION_NOP ? 1 : option[1];
		if (at + 2 > end || option[0] == TCP_OPTION_END || at + bytes > end ||
		    (bytes < 2 && option[0] != TCP_OPTION_NOP))
			return -1;
		if (option[0] == kind && (kind != TCP_OPTION_MULTIPATH ||
					  (bytes > 2 && option[2] >> 4 == subtype)))
			return at;
		at += bytes;
		/* Less than 64 already; so the verifier finds all ways to here alike. */
		barrier_var(at);
		at &= 63;
	}
	return -1;
}

/* The option that begins there. The verifier learns from the mask that it is in the buffer;
 * clang may know so already, and would leave the mask out. */
static __always_inline __u8 *option_at(struct tcp_options *options, __u32 at)
{
	barrier_var(at);
	return options->bytes + (at & 63);
}

static __always_inline int find_multipath(struct tcp_options *options, __u32 subtype)
{
	return find_option(options, TCP_OPTION_MULTIPATH, subtype);
}

/* Where the timestamps begin; -1: there are none. */
static __always_inline int find_timestamps(struct tcp_options *options)
{
	int at = options ? find_option(options, TCP_OPTION_TIMESTAMPS, 0) : -1;

	return at >= 0 && option_at(options, at)[1] == TCP_OPTION_TIMESTAMPS_BYTES ? at : -1;
}

/* Overwrites the option that begins there by NOPs. */
__noinline int blank_option(struct tcp_options *options, __u32 at)
{
	__u32 length;

	if (!options)
		return -1;
	length = option_at(options, at)[1];
	for (__u32 i = 0; i < TCP_OPTIONS_BYTES_MAX; i++)
		if (i - at < length)
			options->bytes[i] = TCP_OPTION_NOP;
	return 0;
}

/* Writes them into the frame as they were changed, with the checksum. */
static __always_inline int store_options(void *ctx, enum hook hook, const struct segment *s,
					 struct tcp_options *options)
{
	__s64 change = bpf_csum_diff((__be32 *)options->before, TCP_OPTIONS_BYTES_MAX,
				     (__be32 *)options->bytes, TCP_OPTIONS_BYTES_MAX, 0);

	if (store(ctx, hook, s->tcp_at + sizeof(struct tcphdr), options->bytes, length_of(options)))
		return -1;
	return change_tcp_check(ctx, hook, s->tcp_at + offsetof(struct tcphdr, check), change);
}

/* Writes one word or half word over another, at TC. */
static __always_inline int replace_in_frame(struct __sk_buff *skb, const struct segment *s,
					    __u32 at, __be32 before, __be32 after, __u32 bytes)
{
	if (bpf_skb_store_bytes(skb, at, &after, bytes, 0))
		return -1;
	/* The sum is one of half words: behind an odd number of bytes the value straddles two,
	 * as if each pair of bytes were swapped (RFC 1071, section 2B). */
	if ((at - s->tcp_at) & 1) {
		before = swapped_pairs(before);
		after = swapped_pairs(after);
	}
	return bpf_l4_csum_replace(skb, s->tcp_at + offsetof(struct tcphdr, check), before, after,
				   bytes);
}

#endif
