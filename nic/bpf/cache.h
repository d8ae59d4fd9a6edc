/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The kernel flow cache: plain data packets of flows that a worker has entered
 * are encapsulated and sent here, without user space.
 *
 *  five-tuple -> SipHash -> bucket in the queue's region -> entry -> target -> XDP_TX
 *
 * The layouts, who writes what, and which races are left: datapath/src/kernel_cache.
 * What is read here twice is read in order, which x86 keeps for loads; elsewhere
 * user space leaves the cache off. Nothing is changed in a packet before all of it
 * was looked at, but for padding, which user space cuts off, too.
 */
#ifndef GUIDEWAY_CACHE_H
#define GUIDEWAY_CACHE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Set before the program is loaded, so that without a cache the verifier takes
 * all of it out. */
const volatile __u32 cache_queues = 0; /* regions there are; 0: no cache */
const volatile __u32 cache_bucket_mask = 0;
const volatile __u32 cache_target_mask = 0;
const volatile __u64 cache_key_0 = 0;
const volatile __u64 cache_key_1 = 0;

#define BUCKET_ENTRIES 4
#define TAG_MASK (~0xffffULL)
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

/* GRE in IPv4 in Ethernet. */
struct front {
	struct ethhdr ethernet;
	struct iphdr ip;
	__u32 gre;
} __attribute__((packed));

#define FRONT_WORDS 5
#define ADDED_BYTES (sizeof(struct front) - sizeof(struct ethhdr))

struct cache_target {
	__u32 state; /* sequence, and below it 12 bits of generation */
	__u16 mtu;
	__u8 class_mask;
	__u8 class_bits;
	__u32 sum;
	__u32 source_host_mask;
	__u64 front[FRONT_WORDS];
	__u64 unused;
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

#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))

/* An IP packet of the tracer has this length (datapath/src/trace.rs). */
#define TRACED_PACKET_BYTES 227

#define IPV4_VERSION_AND_LENGTH 0x45
#define IPV4_DONT_FRAGMENT 0x4000
#define TCP_FIN_SYN_RST 0x07
#define TCP_FLAGS_AT 13
#define TCP_OFFSET_AT 12

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

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* False for data of a TCP segment or UDP datagram that is as most are; packet_bytes
 * is the IP packet's length, which lies in the frame. */
static __always_inline int is_plain_tcp(const void *segment, const void *end, __u32 packet_bytes)
{
	const __u8 *header = segment;
	__u32 header_bytes;

	if (segment + sizeof(struct tcphdr) > end || header[TCP_FLAGS_AT] & TCP_FIN_SYN_RST)
		return 0;
	header_bytes = (header[TCP_OFFSET_AT] >> 4) * 4;
	return header_bytes >= sizeof(struct tcphdr) && sizeof(struct iphdr) + header_bytes <= packet_bytes;
}

static __always_inline int is_plain_udp(const struct udphdr *udp, const void *end, __u32 packet_bytes)
{
	__u32 bytes;

	if ((const void *)(udp + 1) > end)
		return 0;
	bytes = bpf_ntohs(udp->len);
	return bytes >= sizeof(*udp) && sizeof(struct iphdr) + bytes <= packet_bytes;
}

/* The IPv4 header of a frame whose packet may be in the cache; NULL: it is another.
 * What it does not take wire/src/plain.rs does not either. */
static __always_inline const struct iphdr *read_plain(const void *data, const void *end)
{
	const struct ethhdr *ethernet = data;
	const struct iphdr *ip = data + sizeof(*ethernet);
	const __u32 *words = (const void *)ip;
	__u32 packet_bytes;

	if ((const void *)(ip + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	packet_bytes = bpf_ntohs(ip->tot_len);
	if (*(const __u8 *)ip != IPV4_VERSION_AND_LENGTH || ip->frag_off & ~bpf_htons(IPV4_DONT_FRAGMENT))
		return 0;
	if (packet_bytes == TRACED_PACKET_BYTES || packet_bytes > end - (const void *)ip)
		return 0;
	if (fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]) != 0xffff)
		return 0;
	if (ip->protocol == IPPROTO_TCP)
		return is_plain_tcp(ip + 1, end, packet_bytes) ? ip : 0;
	if (ip->protocol == IPPROTO_UDP)
		return is_plain_udp((const void *)(ip + 1), end, packet_bytes) ? ip : 0;
	return 0;
}

/* What becomes of a packet in the cache, copied out of the maps. */
struct cached {
	__u64 front[FRONT_WORDS];
	struct cache_entry *entry;
	__u64 tag_and_time;
	__u32 flow_hash;
	__u32 target;
	__u32 sum;
	__u32 source_host_mask;
	__u16 mtu;
	__u8 class_mask;
	__u8 class_bits;
};

/* Finds the entry of a flow; see the races in datapath/src/kernel_cache/entries.rs. */
static __always_inline int find_entry(struct cached *cached, __u32 queue, __u64 hash)
{
	__u32 index = queue * (cache_bucket_mask + 1) + ((__u32)hash & cache_bucket_mask);
	struct cache_bucket *bucket = bpf_map_lookup_elem(&cache_entries, &index);
	__u64 tag = hash & TAG_MASK;

	if (!bucket)
		return 0;
	if (!tag)
		tag = 1 << 16;
#pragma unroll
	for (int i = 0; i < BUCKET_ENTRIES; i++) {
		struct cache_entry *entry = &bucket->entries[i];
		__u64 word = READ_ONCE(entry->tag_and_time);

		if ((word & TAG_MASK) != tag)
			continue;
		cached->flow_hash = READ_ONCE(entry->flow_hash);
		cached->target = READ_ONCE(entry->target);
		cached->tag_and_time = word;
		cached->entry = entry;
		return (READ_ONCE(entry->tag_and_time) & TAG_MASK) == tag;
	}
	return 0;
}

/* Copies an entry's target; see datapath/src/kernel_cache/targets.rs. */
static __always_inline int read_target(struct cached *cached)
{
	__u32 generation = cached->target >> 20;
	__u32 number = cached->target & TARGET_NUMBER_MASK;
	struct cache_target *target = bpf_map_lookup_elem(&cache_targets, &number);
	__u32 state;

	if (!target)
		return 0;
	state = READ_ONCE(target->state);
	if ((state & TARGET_GENERATION_MASK) != generation || !generation)
		return 0;
	cached->mtu = READ_ONCE(target->mtu);
	cached->class_mask = READ_ONCE(target->class_mask);
	cached->class_bits = READ_ONCE(target->class_bits);
	cached->sum = READ_ONCE(target->sum);
	cached->source_host_mask = READ_ONCE(target->source_host_mask);
#pragma unroll
	for (int i = 0; i < FRONT_WORDS; i++)
		cached->front[i] = READ_ONCE(target->front[i]);
	return READ_ONCE(target->state) == state;
}

/* The fields of the outer header that depend on the packet, as
 * datapath/src/encapsulate.rs fills them. */
static __always_inline void fill(struct front *front, const struct cached *cached, __u8 class, __u32 packet_bytes)
{
	__u32 host = cached->flow_hash & cached->source_host_mask;
	__u8 outer_class = (class & cached->class_mask) | cached->class_bits;
	__u32 sum = cached->sum + outer_class + packet_bytes + (host >> 16) + (host & 0xffff);

	front->ip.tos = outer_class;
	front->ip.tot_len = bpf_htons(packet_bytes);
	front->ip.saddr |= bpf_htonl(host);
	front->ip.check = bpf_htons(~fold(sum) & 0xffff);
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
static __always_inline void note_use(const struct cached *cached, const struct cache_line *line)
{
	__u16 tick = READ_ONCE(line->tick);

	if ((__u16)cached->tag_and_time != tick)
		WRITE_ONCE(cached->entry->time, tick);
}

/* Makes the packet of a frame a tunnel's; false: it stays as it is, but for padding. */
static __always_inline int encapsulate(struct xdp_md *ctx, struct cached *cached, __u8 class, __u32 packet_bytes)
{
	struct front *front = (void *)cached->front;
	__u32 frame_bytes = ctx->data_end - ctx->data;
	__u32 used_bytes = sizeof(struct ethhdr) + packet_bytes;
	void *data, *end;

	if (frame_bytes > used_bytes && bpf_xdp_adjust_tail(ctx, (int)used_bytes - (int)frame_bytes))
		return 0;
	if (bpf_xdp_adjust_head(ctx, -(int)ADDED_BYTES))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + sizeof(*front) > end)
		return 0;
	fill(front, cached, class, packet_bytes + ADDED_BYTES);
	__builtin_memcpy(data, front, sizeof(*front));
	return 1;
}

/* True if the packet was in the cache and is to be sent back by the device. */
static __always_inline int is_cached(struct xdp_md *ctx)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 queue = ctx->rx_queue_index, packet_bytes;
	struct cached cached; /* each field is written before it is read */
	const struct cache_line *line;
	const struct iphdr *ip;
	const __u32 *words;
	__u8 class;

	if (queue >= cache_queues)
		return 0;
	/* First, so that a cache that is not used costs next to nothing. */
	line = bpf_map_lookup_elem(&cache_lines, &queue);
	if (!line || READ_ONCE(line->paused))
		return 0;
	ip = read_plain(data, end);
	/* Addresses and ports: read again, for the verifier's sake. */
	if (!ip || (const void *)ip + 24 > end)
		return 0;
	words = (const void *)ip;
	if (!find_entry(&cached, queue, hash_tuple((__u64)words[4] << 32 | words[3], words[5], ip->protocol)))
		return 0;
	packet_bytes = bpf_ntohs(ip->tot_len);
	class = ip->tos;
	if (!read_target(&cached) || packet_bytes + ADDED_BYTES > cached.mtu)
		return 0;
	if (!encapsulate(ctx, &cached, class, packet_bytes))
		return 0;
	note_use(&cached, line);
	count_cached(cached.target & TARGET_NUMBER_MASK, packet_bytes);
	return 1;
}

#endif
