// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The XDP filter: frames of ours go to the AF_XDP socket of the queue they
 * came in on, all else to the kernel. See destination.h for what is ours. What
 * the kernel flow cache holds is sent before anything is looked up (cache.h).
 */
#include "destination.h"
#include "cache.h"

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64); /* as many as workers, each of which has a queue */
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* The device's own Ethernet address, as frames have it. */
struct device_address {
	__u32 first;
	__u16 last;
	__u16 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct device_address);
} device_address SEC(".maps");

#define IPV4_OFFSET_MASK 0x1fff

/* On a bridge or behind a switch that floods, every machine gets such frames. */
static __always_inline int is_to_device(const struct xdp_md *ctx)
{
	const struct device_address *to = (void *)(long)ctx->data;
	const struct device_address *own;
	__u32 zero = 0;

	if ((const void *)(to + 1) > (void *)(long)ctx->data_end)
		return 0;
	own = bpf_map_lookup_elem(&device_address, &zero);
	return own && to->first == own->first && to->last == own->last;
}

/* The port of a datagram that is not a later fragment. */
static __always_inline void read_port(struct summary *s, const struct udphdr *udp, const void *end)
{
	if ((const void *)(udp + 1) > end)
		return;
	s->port = udp->dest;
	s->has_port = 1;
}

static __always_inline int read_v4(struct summary *s, const void *data, const void *end)
{
	const struct iphdr *ip = data;

	if ((const void *)(ip + 1) > end)
		return 0;
	__builtin_memcpy(s->destination, &ip->daddr, 4);
	s->protocol = ip->protocol;
	if (ip->protocol == IPPROTO_UDP && !(ip->frag_off & bpf_htons(IPV4_OFFSET_MASK)))
		read_port(s, data + ip->ihl * 4, end);
	return 1;
}

/* The upper layer of an IPv6 packet, at most one options header further on. */
static __always_inline void read_upper_v6(struct summary *s, __u8 protocol, const void *next, const void *end)
{
	const struct destination_options *options = next;

	if (protocol == IPPROTO_DSTOPTS && (const void *)(options + 1) <= end) {
		protocol = options->next_header;
		next += options_bytes(options);
	}
	s->protocol = protocol;
	if (protocol == IPPROTO_UDP)
		read_port(s, next, end);
}

static __always_inline int read_v6(struct summary *s, const void *data, const void *end)
{
	const struct ipv6hdr *ip = data;
	const __u8 *type = (const void *)(ip + 1);

	if ((const void *)(ip + 1) > end)
		return 0;
	__builtin_memcpy(s->destination, &ip->daddr, 16);
	s->is_solicitation = may_be_neighbors(ip) && (const void *)(type + 1) <= end && *type == NEIGHBOR_SOLICITATION;
	read_upper_v6(s, ip->nexthdr, ip + 1, end);
	return 1;
}

/* False for a frame too short to have a destination. */
static __always_inline int read_frame(struct summary *s, const void *data, const void *end)
{
	const struct ethhdr *ethernet = data;

	if ((const void *)(ethernet + 1) > end)
		return 0;
	s->ether_type = ethernet->h_proto;
	if (s->ether_type == bpf_htons(ETH_P_IP))
		return read_v4(s, ethernet + 1, end);
	if (s->ether_type == bpf_htons(ETH_P_IPV6))
		return read_v6(s, ethernet + 1, end);
	return 0;
}

/* Devices that packets are sent by, by their number in the forwarder's list. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, CACHE_DEVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} cache_devices SEC(".maps");

/* How the packet leaves; XDP_ABORTED: its device is no more. The kernel sends by the
 * device after the program has ended, if it returns XDP_REDIRECT. */
static __always_inline int egress_action(const struct outer *outer)
{
	return outer->egress ? bpf_redirect_map(&cache_devices, outer->egress - 1, XDP_ABORTED) : XDP_TX;
}

/* What sends the packet, if it was in the cache; else XDP_ABORTED. */
static __always_inline int send_cached(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 queue = ctx->rx_queue_index;
	struct cached cached; /* each field is written before it is read */
	const struct cache_line *line;
	struct plain plain;
	int action;

	/* First, so that a cache that is not used costs next to nothing. */
	line = working_line(queue);
	if (!line || !read_plain(&plain, data, end, end - data))
		return XDP_ABORTED;
	if (!find_cached(&cached, line, queue, &plain) || plain.packet_bytes > cached.outer.packet_bytes_max)
		return XDP_ABORTED;
	/* While nothing is changed yet. */
	action = egress_action(&cached.outer);
	if (action == XDP_ABORTED)
		return XDP_ABORTED;
	if (!encapsulate(ctx, XDP, &cached.outer, plain.class, plain.packet_bytes))
		return XDP_ABORTED;
	note_use(&cached);
	count_cached(cached.target & TARGET_NUMBER_MASK, plain.packet_bytes);
	return action;
}

SEC("xdp")
int guideway_filter(struct xdp_md *ctx)
{
	struct summary s = {};
	__u32 queue = ctx->rx_queue_index;
	int action;

	if (!is_to_device(ctx)) {
		count(COUNTER_PASSED);
		return XDP_PASS;
	}
	action = send_cached(ctx);
	if (action != XDP_ABORTED)
		return action;
	if (!read_frame(&s, (void *)(long)ctx->data, (void *)(long)ctx->data_end) || !is_ours(&s)) {
		count(COUNTER_PASSED);
		return XDP_PASS;
	}
	/* The kernel would send what is ours on its way or answer it: it is
	 * dropped rather than passed. */
	if (!bpf_map_lookup_elem(&sockets, &queue)) {
		count(COUNTER_NO_SOCKET);
		return XDP_DROP;
	}
	count(COUNTER_TAKEN);
	return bpf_redirect_map(&sockets, queue, XDP_DROP);
}

/* What the cache costs, for measurements: run again and again on one frame, a TCP
 * segment with an IP header at its place. Sets the source address to that of another
 * flow each time, and takes the outer header off again; without the cache what is left
 * is the floor. */
const volatile __u32 measured_flow_mask = 0;
const volatile __u32 measured_is_v6 = 0;
const volatile __u32 measured_with_cache = 0;
__u32 measured_runs = 0;

static __always_inline int write_flow_v4(struct iphdr *ip, const void *end, __u32 flow)
{
	const __u32 *words = (const void *)ip;

	if ((void *)(ip + 1) > end)
		return 0;
	ip->saddr = flow;
	ip->check = 0;
	ip->check = ~fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);
	return 1;
}

static __always_inline int write_flow_v6(struct ipv6hdr *ip, const void *end, __u32 flow)
{
	if ((void *)(ip + 1) > end)
		return 0;
	ip->saddr.in6_u.u6_addr32[3] = flow;
	return 1;
}

SEC("xdp")
int guideway_measure(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	long frame_bytes = end - data, added_bytes;
	struct ethhdr *ethernet = data;
	__u32 flow;

	barrier_var(frame_bytes); /* else pointers are subtracted in another order */
	if ((void *)(ethernet + 1) > end)
		return XDP_ABORTED;
	ethernet->h_proto = measured_is_v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	/* Neighbours in time are no neighbours in memory. */
	flow = (measured_runs++ * 0x9e3779b1) & measured_flow_mask;
	if (!(measured_is_v6 ? write_flow_v6(data + sizeof(*ethernet), end, flow) :
			       write_flow_v4(data + sizeof(*ethernet), end, flow)))
		return XDP_ABORTED;
	if (!measured_with_cache)
		return XDP_TX;
	if (send_cached(ctx) != XDP_TX)
		return XDP_DROP;
	added_bytes = (void *)(long)ctx->data_end - (void *)(long)ctx->data;
	barrier_var(added_bytes);
	added_bytes -= frame_bytes;
	return bpf_xdp_adjust_head(ctx, added_bytes) ? XDP_ABORTED : XDP_TX;
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
