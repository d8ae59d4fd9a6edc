/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The kernel flow cache: plain data packets of flows that a worker has entered, and
 * plain packets of stateless services, are encapsulated and sent here, without user
 * space.
 *
 *  five-tuple -> SipHash -> bucket in the queue's region -> entry -> target -> sent
 *  destination -> service -> its hash -> bucket of the service ---------^
 *
 * The layouts, who writes what, and which races are left: datapath/src/kernel_cache.
 * What is read here twice is read in order, which x86 keeps for loads; elsewhere
 * user space leaves the cache off. Nothing is changed in a packet before all of it
 * was looked at, but for padding, which user space cuts off, too.
 */
#ifndef GUIDEWAY_CACHE_H
#define GUIDEWAY_CACHE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "cache_front.h"
#include "cache_plain.h"
#include "cache_services.h"

/* Set before the program is loaded, so that without a cache the verifier takes
 * all of it out. */
const volatile __u32 cache_queues = 0; /* regions there are; 0: no cache */
const volatile __u32 cache_bucket_mask = 0;
const volatile __u32 cache_target_mask = 0;

#define BUCKET_ENTRIES 4
#define TAG_MASK (~0x1ffffULL)
#define OF_ONE_TICK (1 << 16) /* above the time: sent by in that tick alone */
#define TARGET_NUMBER_MASK 0xfffff
#define TARGET_GENERATION_MASK 0xfff

struct cache_entry {
	union {
		__u64 tag_and_time;
		__u16 time; /* of use: the low bits of a word in the order of x86 */
	};
	__u32 flow_hash;
	__u32 target; /* number, and above its 20 bits the generation */
};

struct cache_bucket {
	struct cache_entry entries[BUCKET_ENTRIES];
};

/* The line beside a region. */
struct cache_line {
	__u64 tick;
	__u64 paused; /* not zero: everything is user space's */
	__u64 unused[6];
};

/* Two lines: of the most that is needed is in the first. */
struct cache_target {
	__u32 state; /* sequence, and below it 12 bits of generation */
	__u16 packet_bytes_max;
	__u8 class_mask;
	__u8 class_bits;
	__u16 sum;
	__u8 shape;
	__u8 egress;
	__u32 source_host_mask;
	__u64 front[FRONT_WORDS];
	__u64 unused_words[5];
};

struct cache_traffic {
	__u64 packets;
	__u64 bytes; /* of inner packets */
};

/* Numbers of entries are set before the maps are made. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* a region for each queue, behind each other */
	__type(key, __u32);
	__type(value, struct cache_bucket);
} cache_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* by queue */
	__type(key, __u32);
	__type(value, struct cache_line);
} cache_lines SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cache_target);
} cache_targets SEC(".maps");

/* What was handed to the device: by processor, then by target. A program is not
 * interrupted by itself, so each has one writer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cache_traffic);
} cache_traffic SEC(".maps");

#define CACHE_DEVICES_MAX 64

/* What becomes of a packet in the cache. */
struct cached {
	struct outer outer;
	struct cache_entry *entry; /* of its flow; 0: it goes by its service's bucket */
	__u64 tag_and_time;
	__u32 target;
	__u16 tick;
};

/* Finds a flow's entry in a bucket; see the races in datapath/src/kernel_cache/entries.rs. */
static __always_inline int find_entry(struct cached *cached, __u32 queue, __u64 hash)
{
	__u32 index = queue * (cache_bucket_mask + 1) + ((__u32)hash & cache_bucket_mask);
	struct cache_bucket *bucket = bpf_map_lookup_elem(&cache_entries, &index);
	__u64 tag = hash & TAG_MASK;

	if (!bucket)
		return 0;
	if (!tag)
		tag = 1 << 17;
#pragma unroll
	for (int i = 0; i < BUCKET_ENTRIES; i++) {
		struct cache_entry *entry = &bucket->entries[i];
		__u64 word = READ_ONCE(entry->tag_and_time);

		if ((word & TAG_MASK) != tag)
			continue;
		cached->outer.flow_hash = READ_ONCE(entry->flow_hash);
		cached->target = READ_ONCE(entry->target);
		cached->tag_and_time = word;
		cached->entry = entry;
		return (READ_ONCE(entry->tag_and_time) & TAG_MASK) == tag;
	}
	return 0;
}

/* In one of the two buckets that a flow may be in, each with other bits of its hash as the
 * tag. */
static __always_inline int find_flow(struct cached *cached, __u32 queue, __u64 hash)
{
	return find_entry(cached, queue, hash) || find_entry(cached, queue, rotate(hash, 32));
}

/* Copies an entry's target; see datapath/src/kernel_cache/targets.rs. */
static __always_inline int read_target(struct cached *cached)
{
	__u32 generation = cached->target >> 20;
	__u32 number = cached->target & TARGET_NUMBER_MASK;
	struct cache_target *target = bpf_map_lookup_elem(&cache_targets, &number);
	struct outer *outer = &cached->outer;
	__u32 state, is_long;

	if (!target)
		return 0;
	state = READ_ONCE(target->state);
	if ((state & TARGET_GENERATION_MASK) != generation || !generation)
		return 0;
	outer->packet_bytes_max = READ_ONCE(target->packet_bytes_max);
	outer->class_mask = READ_ONCE(target->class_mask);
	outer->class_bits = READ_ONCE(target->class_bits);
	outer->sum = READ_ONCE(target->sum);
	outer->shape = READ_ONCE(target->shape);
	outer->egress = READ_ONCE(target->egress);
	outer->source_host_mask = READ_ONCE(target->source_host_mask);
	is_long = outer->shape & (SHAPE_UDP | SHAPE_V6);
#pragma unroll
	for (int i = 0; i < FRONT_WORDS; i++)
		outer->front[i] = i < SHORT_FRONT_WORDS || is_long ? READ_ONCE(target->front[i]) : 0;
	return READ_ONCE(target->state) == state;
}

static __always_inline void count_cached(__u32 number, __u32 packet_bytes)
{
	__u32 index = bpf_get_smp_processor_id() * (cache_target_mask + 1) + (number & cache_target_mask);
	struct cache_traffic *traffic = bpf_map_lookup_elem(&cache_traffic, &index);

	if (!traffic)
		return;
	traffic->packets++;
	traffic->bytes += packet_bytes;
}

/* The time of use, stored once in a tick. */
static __always_inline void note_use(const struct cached *cached)
{
	if (cached->entry && (__u16)cached->tag_and_time != cached->tick)
		WRITE_ONCE(cached->entry->time, cached->tick);
}

/* The line beside a queue's region; 0: nothing is sent by it. */
static __always_inline const struct cache_line *working_line(__u32 queue)
{
	const struct cache_line *line = queue < cache_queues ? bpf_map_lookup_elem(&cache_lines, &queue) : 0;

	return line && !READ_ONCE(line->paused) ? line : 0;
}

/* False for an entry whose tick is over. In that tick nothing ends a connection; later FIN
 * and RST are the worker's. */
static __always_inline int holds(const struct cached *cached, const struct plain *plain)
{
	if (cached->tag_and_time & OF_ONE_TICK)
		return (__u16)cached->tag_and_time == cached->tick;
	return !(plain->tcp_flags & (TCP_FIN | TCP_RST));
}

/* True for a packet that changes nothing in its connection, of a flow that is in the cache. */
static __always_inline int find_entry_of(struct cached *cached, __u32 queue, const struct plain *plain)
{
	return !(plain->tcp_flags & TCP_SYN) && find_flow(cached, queue, hash_tuple(&plain->tuple)) &&
	       holds(cached, plain);
}

/* The same for a packet of a stateless service. */
static __always_inline int find_bucket_of(struct cached *cached, struct plain *plain)
{
	cached->entry = 0;
	cached->tag_and_time = 0;
	cached->outer.flow_hash = 0;
	cached->target = target_of_bucket(plain);
	return cached->target != 0;
}

/* Of a packet that has no entry, where its headers depend on it: the hash of its flow. */
static __always_inline void complete_outer(struct cached *cached, struct plain *plain)
{
	struct outer *outer = &cached->outer;

	if (!cached->entry && (outer->shape & (SHAPE_UDP | SHAPE_V6) || outer->source_host_mask))
		outer->flow_hash = hash_flow(&plain->tuple, KEY_OF_FLOWS);
}

/* True if the cache sends the packet, and with what it is sent by. */
static __always_inline int find_cached(struct cached *cached, const struct cache_line *line, __u32 queue,
				       struct plain *plain)
{
	/* First: what is stored by it may meet an entry that was written since. */
	cached->tick = READ_ONCE(line->tick);
	if (!find_entry_of(cached, queue, plain) && !find_bucket_of(cached, plain))
		return 0;
	if (!read_target(cached))
		return 0;
	complete_outer(cached, plain);
	return 1;
}

#endif
