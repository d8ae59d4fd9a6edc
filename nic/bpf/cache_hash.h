/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The hash by which the kernel flow cache finds a packet's entry, as
 * datapath/src/kernel_cache/tuple.rs computes it.
 */
#ifndef GUIDEWAY_CACHE_HASH_H
#define GUIDEWAY_CACHE_HASH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Set before the program is loaded. */
const volatile __u64 cache_key_0 = 0;
const volatile __u64 cache_key_1 = 0;

static __always_inline __u64 rotate(__u64 value, int bits)
{
	return value << bits | value >> (64 - bits);
}

static __always_inline void sip_round(__u64 v[4])
{
	v[0] += v[1];
	v[1] = rotate(v[1], 13) ^ v[0];
	v[0] = rotate(v[0], 32);
	v[2] += v[3];
	v[3] = rotate(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotate(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotate(v[1], 17) ^ v[2];
	v[2] = rotate(v[2], 32);
}

static __always_inline void sip_begin(__u64 v[4])
{
	v[0] = cache_key_0 ^ 0x736f6d6570736575ULL;
	v[1] = cache_key_1 ^ 0x646f72616e646f6dULL;
	v[2] = cache_key_0 ^ 0x6c7967656e657261ULL;
	v[3] = cache_key_1 ^ 0x7465646279746573ULL;
}

static __always_inline void sip_word(__u64 v[4], __u64 word)
{
	v[3] ^= word;
	sip_round(v);
	v[0] ^= word;
}

static __always_inline __u64 sip_end(__u64 v[4])
{
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The last word of a tuple of that many bytes: ports, protocol. */
static __always_inline __u64 last_word(__u64 tuple_bytes, __u32 ports, __u8 protocol)
{
	return tuple_bytes << 56 | (__u64)protocol << 32 | ports;
}

/* SipHash-1-3 of 13 bytes: addresses, ports, protocol. */
static __always_inline __u64 hash_tuple_v4(__u64 addresses, __u32 ports, __u8 protocol)
{
	__u64 v[4];

	sip_begin(v);
	sip_word(v, addresses);
	sip_word(v, last_word(13, ports, protocol));
	return sip_end(v);
}

/* The same of 37 bytes. */
static __always_inline __u64 hash_tuple_v6(const __u64 addresses[4], __u32 ports, __u8 protocol)
{
	__u64 v[4];

	sip_begin(v);
#pragma unroll
	for (int i = 0; i < 4; i++)
		sip_word(v, addresses[i]);
	sip_word(v, last_word(37, ports, protocol));
	return sip_end(v);
}

#endif
