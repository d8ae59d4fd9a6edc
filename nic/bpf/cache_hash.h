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

/* SipHash-1-3 of 13 bytes: addresses, ports, protocol. */
static __always_inline __u64 hash_tuple(__u64 addresses, __u32 ports, __u8 protocol)
{
	const __u64 last = 13ULL << 56 | (__u64)protocol << 32 | ports;
	__u64 v[4] = {
		cache_key_0 ^ 0x736f6d6570736575ULL,
		cache_key_1 ^ 0x646f72616e646f6dULL,
		cache_key_0 ^ 0x6c7967656e657261ULL,
		cache_key_1 ^ 0x7465646279746573ULL,
	};

	v[3] ^= addresses;
	sip_round(v);
	v[0] ^= addresses;
	v[3] ^= last;
	sip_round(v);
	v[0] ^= last;
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
