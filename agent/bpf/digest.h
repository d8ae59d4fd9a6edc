/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The token of a connection of Multipath TCP: the first 32 bits of the digest of its key,
 * by SHA-256 in version 1 of the protocol (RFC 8684), by SHA-1 in version 0 (RFC 6824).
 * A key is 8 bytes long, so that one block of FIPS 180-4 is all there is.
 *
 * Functions that are not static are verified once, and not on each way to them.
 */
#ifndef GUIDEWAY_AGENT_DIGEST_H
#define GUIDEWAY_AGENT_DIGEST_H

#include "frame.h"

#define SHA256_ROUNDS 64
#define SHA1_ROUNDS 80

/* The words of the message schedule (FIPS 180-4, section 6), of each processor. */
struct schedule {
	__u32 words[SHA1_ROUNDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct schedule);
} schedules SEC(".maps");

/* FIPS 180-4, section 4.2.2. */
static const __u32 sha256_constants[SHA256_ROUNDS] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static __always_inline __u32 rotated_right(__u32 word, __u32 bits)
{
	return word >> bits | word << (32 - bits);
}

/* The block: the key, a one bit, zeros, the length in bits. */
static __always_inline struct schedule *schedule_of(__u64 key)
{
	__u32 zero = 0;
	struct schedule *schedule = bpf_map_lookup_elem(&schedules, &zero);

	if (!schedule)
		return 0;
	__builtin_memset(schedule->words, 0, 16 * sizeof(__u32));
	schedule->words[0] = key >> 32;
	schedule->words[1] = key;
	schedule->words[2] = 0x80000000;
	schedule->words[15] = 64;
	return schedule;
}

/* FIPS 180-4, section 6.2.2, as far as the first word. */
__noinline __u32 token_of_version_1(__u64 key)
{
	struct schedule *schedule = schedule_of(key);
	__u32 a = 0x6a09e667, b = 0xbb67ae85, c = 0x3c6ef372, d = 0xa54ff53a;
	__u32 e = 0x510e527f, f = 0x9b05688c, g = 0x1f83d9ab, h = 0x5be0cd19;
	__u32 *w;

	if (!schedule)
		return 0;
	w = schedule->words;
#pragma clang loop unroll(disable)
	for (int t = 16; t < SHA256_ROUNDS; t++) {
		__u32 x = w[t - 15], y = w[t - 2];

		w[t] = w[t - 16] + w[t - 7] +
		       (rotated_right(x, 7) ^ rotated_right(x, 18) ^ x >> 3) +
		       (rotated_right(y, 17) ^ rotated_right(y, 19) ^ y >> 10);
	}
#pragma clang loop unroll(disable)
	for (int t = 0; t < SHA256_ROUNDS; t++) {
		__u32 first = h + (rotated_right(e, 6) ^ rotated_right(e, 11) ^ rotated_right(e, 25)) +
			      ((e & f) ^ (~e & g)) + sha256_constants[t] + w[t];
		__u32 second = (rotated_right(a, 2) ^ rotated_right(a, 13) ^ rotated_right(a, 22)) +
			       ((a & b) ^ (a & c) ^ (b & c));

		h = g;
		g = f;
		f = e;
		e = d + first;
		d = c;
		c = b;
		b = a;
		a = first + second;
	}
	return 0x6a09e667 + a;
}

/* FIPS 180-4, section 6.1.2, as far as the first word. */
__noinline __u32 token_of_version_0(__u64 key)
{
	struct schedule *schedule = schedule_of(key);
	__u32 a = 0x67452301, b = 0xefcdab89, c = 0x98badcfe, d = 0x10325476, e = 0xc3d2e1f0;
	__u32 *w;

	if (!schedule)
		return 0;
	w = schedule->words;
#pragma clang loop unroll(disable)
	for (int t = 16; t < SHA1_ROUNDS; t++)
		w[t] = rotated_right(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 31);
#pragma clang loop unroll(disable)
	for (int t = 0; t < SHA1_ROUNDS; t++) {
		__u32 mixed = t < 20 ? ((b & c) ^ (~b & d)) + 0x5a827999 :
			      t < 40 ? (b ^ c ^ d) + 0x6ed9eba1 :
			      t < 60 ? ((b & c) ^ (b & d) ^ (c & d)) + 0x8f1bbcdc :
				       (b ^ c ^ d) + 0xca62c1d6;

		mixed += rotated_right(a, 27) + e + w[t];
		e = d;
		d = c;
		c = rotated_right(b, 2);
		b = a;
		a = mixed;
	}
	return 0x67452301 + a;
}

#endif
