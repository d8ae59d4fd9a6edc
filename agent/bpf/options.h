/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The options of a TCP header: read into a buffer, looked through for those of Multipath
 * TCP (RFC 8684, section 3), changed there, and written back with the checksum.
 */
#ifndef GUIDEWAY_AGENT_OPTIONS_H
#define GUIDEWAY_AGENT_OPTIONS_H

#include "frame.h"

#define TCP_OPTIONS_BYTES_MAX 40
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_TIMESTAMPS 8
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

/* The buffer, empty; null never. */
static __always_inline struct tcp_options *no_options(__u32 header_bytes)
{
	__u32 zero = 0, length = header_bytes - sizeof(struct tcphdr);
	struct tcp_options *options = bpf_map_lookup_elem(&tcp_options, &zero);

	if (!options || header_bytes <= sizeof(struct tcphdr) || length > TCP_OPTIONS_BYTES_MAX)
		return 0;
	__builtin_memset(options, 0, sizeof(*options));
	options->length = length;
	return options;
}

/* Their length, of which the verifier learns that it is less than the room; clang knows so
 * already, and would compare nothing. */
static __always_inline __u32 length_of(const struct tcp_options *options)
{
	__u32 length = options->length;

	barrier_var(length);
	return length & 63;
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
		if (at + 2 > end || option[0] == TCP_OPTION_END || !bytes || at + bytes > end)
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

/* By what the change of the options changes the sum of words. */
static __always_inline __s64 change_of(struct tcp_options *options)
{
	return bpf_csum_diff((__be32 *)options->before, TCP_OPTIONS_BYTES_MAX,
			     (__be32 *)options->bytes, TCP_OPTIONS_BYTES_MAX, 0);
}

#endif
