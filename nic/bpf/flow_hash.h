/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The flow hash, as datapath/src/flow_hash.rs computes it: AES-128 (FIPS 197), of several
 * blocks chained (CBC-MAC). By tables, for which a processor's own instructions are not
 * at hand; these and the keys user space fills in (datapath/src/kernel_cache/aes.rs).
 */
#ifndef GUIDEWAY_FLOW_HASH_H
#define GUIDEWAY_FLOW_HASH_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cache_hash.h"

#define AES_ROUNDS 10
#define AES_KEY_WORDS (4 * (AES_ROUNDS + 1))

#define KEY_OF_FLOWS 0
#define KEY_OF_BUCKETS 1
#define KEYS 2

struct hash_tables {
	/* What SubBytes and MixColumns make of a byte, by its place in the column. */
	__u32 columns[4][256];
	__u32 keys[KEYS][AES_KEY_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hash_tables);
} hash_tables SEC(".maps");

/* Columns of a block: the first byte is the highest. */
struct block {
	__u32 columns[4];
};

static __always_inline __u32 aes_column(const struct hash_tables *of, __u32 a, __u32 b, __u32 c, __u32 d)
{
	return of->columns[0][a >> 24] ^ of->columns[1][b >> 16 & 0xff] ^ of->columns[2][c >> 8 & 0xff] ^
	       of->columns[3][d & 0xff];
}

/* SubBytes alone stands in each table twice. */
static __always_inline __u32 aes_last_column(const struct hash_tables *of, __u32 a, __u32 b, __u32 c, __u32 d)
{
	return (of->columns[2][a >> 24] & 0xff000000) | (of->columns[3][b >> 16 & 0xff] & 0xff0000) |
	       (of->columns[0][c >> 8 & 0xff] & 0xff00) | (of->columns[1][d & 0xff] & 0xff);
}

/* A function that is verified by itself. */
__noinline int encrypt(struct block *block, __u32 key)
{
	const __u32 zero = 0;
	const struct hash_tables *of = bpf_map_lookup_elem(&hash_tables, &zero);
	const __u32 *keys;
	__u32 s[4], t[4];

	if (!block || !of || key >= KEYS)
		return 0;
	keys = of->keys[key];
#pragma unroll
	for (int i = 0; i < 4; i++)
		s[i] = block->columns[i] ^ keys[i];
#pragma unroll
	for (int round = 1; round < AES_ROUNDS; round++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			t[i] = aes_column(of, s[i], s[(i + 1) % 4], s[(i + 2) % 4], s[(i + 3) % 4]) ^ keys[4 * round + i];
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[i] = t[i];
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		block->columns[i] = aes_last_column(of, s[i], s[(i + 1) % 4], s[(i + 2) % 4], s[(i + 3) % 4]) ^
				    keys[4 * AES_ROUNDS + i];
	return 1;
}

/* Half of an encrypted block. */
static __always_inline __u64 first_half(const struct block *block)
{
	return (__u64)block->columns[0] << 32 | block->columns[1];
}

static __always_inline __u64 hash_flow_v4(const struct tuple *tuple, __u32 key)
{
	__u32 source = bpf_ntohl((__u32)tuple->addresses[0]);
	__u32 destination = bpf_ntohl((__u32)(tuple->addresses[0] >> 32));
	__u32 ports = bpf_ntohl(tuple->ports);
	struct block block = { {
		4 << 24 | (__u32)tuple->protocol << 16 | source >> 16,
		source << 16 | destination >> 16,
		destination << 16 | ports >> 16,
		ports << 16,
	} };

	encrypt(&block, key);
	return first_half(&block);
}

/* Of three blocks, in which each word lies by half in the next one's place. */
static __always_inline __u64 hash_flow_v6(const struct tuple *tuple, __u32 key)
{
	const __u32 *words = (const void *)tuple->addresses;
	__u32 before = 6 << 8 | tuple->protocol;
	struct block block = {};

#pragma unroll
	for (int i = 0; i < 9; i++) {
		__u32 word = bpf_ntohl(i < 8 ? words[i] : tuple->ports);

		block.columns[i % 4] ^= before << 16 | word >> 16;
		before = word;
		if (i % 4 == 3)
			encrypt(&block, key);
	}
	block.columns[1] ^= before << 16;
	encrypt(&block, key);
	return first_half(&block);
}

static __always_inline __u64 hash_client_v4(const struct tuple *tuple, __u32 key)
{
	__u32 source = bpf_ntohl((__u32)tuple->addresses[0]);
	struct block block = { { 0x84U << 24 | source >> 8, source << 24 } };

	encrypt(&block, key);
	return first_half(&block);
}

/* Of two blocks. */
static __always_inline __u64 hash_client_v6(const struct tuple *tuple, __u32 key)
{
	const __u32 *words = (const void *)tuple->addresses;
	__u32 before = 0x86;
	struct block block;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u32 word = bpf_ntohl(words[i]);

		block.columns[i] = before << 24 | word >> 8;
		before = word;
	}
	encrypt(&block, key);
	block.columns[0] ^= before << 24;
	encrypt(&block, key);
	return first_half(&block);
}

/* The hash of a flow, under one of the keys. */
__noinline __u64 hash_flow(struct tuple *tuple, __u32 key)
{
	if (!tuple)
		return 0;
	return tuple->is_v6 ? hash_flow_v6(tuple, key) : hash_flow_v4(tuple, key);
}

/* The same of its source address alone. */
__noinline __u64 hash_client(struct tuple *tuple, __u32 key)
{
	if (!tuple)
		return 0;
	return tuple->is_v6 ? hash_client_v6(tuple, key) : hash_client_v4(tuple, key);
}

#endif
