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

/* The five-tuple, in the order of the packet's bytes. All is written, as the verifier
 * wants of what functions are given. */
struct tuple {
	__u64 addresses[4]; /* source, destination; of IPv4 both are in the first */
	__u32 ports;	    /* source, destination */
	__u8 protocol;
	__u8 is_v6;
	__u16 unused;
};

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

/* SipHash-1-3 of 13 bytes, of IPv6 of 37: addresses, ports, protocol. */
static __always_inline __u64 hash_tuple(const struct tuple *tuple)
{
	__u64 bytes = tuple->is_v6 ? 37 : 13;
	__u64 v[4];

	sip_begin(v);
	sip_word(v, tuple->addresses[0]);
	if (tuple->is_v6) {
#pragma unroll
		for (int i = 1; i < 4; i++)
			sip_word(v, tuple->addresses[i]);
	}
	sip_word(v, bytes << 56 | (__u64)tuple->protocol << 32 | tuple->ports);
	return sip_end(v);
}

#endif
