// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For interfaces without XDP: the same choice twice. A packet socket sees
 * frames before traffic control does, so the socket takes what is ours
 * (guideway_take) and traffic control keeps it from the kernel
 * (guideway_traffic_control). Only the former counts: each frame meets both.
 *
 * What the kernel flow cache holds (cache.h) the former leaves, and notes; the
 * latter, which comes next on the same processor, sends it. Segments stay
 * joined, and checksums left to a device.
 */
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

#include "destination.h"
#include "cache.h"

#define FRAME_WHOLE 0x7fffffff
#define IPV4_OFFSET_MASK 0x1fff

static __always_inline void read_port(struct summary *s, struct __sk_buff *skb, __u32 at)
{
	struct udphdr udp;

	if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)))
		return;
	s->port = udp.dest;
	s->has_port = 1;
}

static __always_inline int read_v4(struct summary *s, struct __sk_buff *skb)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	__builtin_memcpy(s->destination, &ip.daddr, 4);
	s->protocol = ip.protocol;
	if (ip.protocol == IPPROTO_UDP && !(ip.frag_off & bpf_htons(IPV4_OFFSET_MASK)))
		read_port(s, skb, ETH_HLEN + ip.ihl * 4);
	return 1;
}

/* The upper layer of an IPv6 packet, at most one options header further on. */
static __always_inline void read_upper_v6(struct summary *s, __u8 protocol, struct __sk_buff *skb, __u32 at)
{
	struct destination_options options;

	if (protocol == IPPROTO_DSTOPTS && !bpf_skb_load_bytes(skb, at, &options, sizeof(options))) {
		protocol = options.next_header;
		at += options_bytes(&options);
	}
	s->protocol = protocol;
	if (protocol == IPPROTO_UDP)
		read_port(s, skb, at);
}

static __always_inline int read_v6(struct summary *s, struct __sk_buff *skb)
{
	struct ipv6hdr ip;
	__u8 type;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	__builtin_memcpy(s->destination, &ip.daddr, 16);
	s->is_solicitation = may_be_neighbors(&ip) && !bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), &type, sizeof(type)) &&
			     type == NEIGHBOR_SOLICITATION;
	read_upper_v6(s, ip.nexthdr, skb, ETH_HLEN + sizeof(ip));
	return 1;
}

static __always_inline int is_ours_skb(struct __sk_buff *skb)
{
	struct summary s = {};
	int whole = 0;

	/* To another address than the device's. */
	if (skb->pkt_type != PACKET_HOST)
		return 0;
	/* The kernel has taken a VLAN tag out of the frame by now. */
	if (skb->vlan_present)
		return 0;
	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &s.ether_type, sizeof(s.ether_type)))
		return 0;
	if (s.ether_type == bpf_htons(ETH_P_IP))
		whole = read_v4(&s, skb);
	else if (s.ether_type == bpf_htons(ETH_P_IPV6))
		whole = read_v6(&s, skb);
	return whole && is_ours(&s);
}

/* Of a frame, all that the cache looks at; the IP header at the place of a word. */
#define HEADERS_BYTES_MAX (ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct tcphdr))
struct headers {
	__u16 unused;
	__u8 bytes[HEADERS_BYTES_MAX];
} __attribute__((aligned(8)));

/* A packet that traffic control is to send. By the frame's length and hash it is known again,
 * should another program ever have taken the frame meanwhile. */
struct noted_packet {
	struct outer outer;
	__u32 device; /* 0: there is none */
	__u32 frame_bytes;
	__u32 frame_hash;
	__u32 target;
	__u32 packet_bytes;
	__u8 class;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct noted_packet);
} noted_packets SEC(".maps");

/* Devices that packets are sent by, by their number in the forwarder's list. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CACHE_DEVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} cache_devices SEC(".maps");

/* Whose region the flow is in: of the socket that the frame is for. See PACKET_FANOUT_QM. */
static __always_inline __u32 socket_number(const struct __sk_buff *skb)
{
	return cache_queues > 1 ? skb->queue_mapping % cache_queues : 0;
}

static __always_inline int read_plain_skb(struct plain *plain, struct __sk_buff *skb)
{
	struct headers headers = {};
	__u32 bytes = skb->len;

	if (bytes < ETH_HLEN)
		return 0;
	if (bytes > sizeof(headers.bytes))
		bytes = sizeof(headers.bytes);
	if (bpf_skb_load_bytes(skb, 0, headers.bytes, bytes))
		return 0;
	return read_plain(plain, headers.bytes, headers.bytes + bytes, skb->len);
}

/* Whether the packet fits its path; of joined segments each has to, and the whole of them
 * the length fields of the headers outside. Joined datagrams are not sent, nor is what has
 * another length than its header says: to cut it would end that it is joined. */
static __always_inline int fits(const struct __sk_buff *skb, const struct plain *plain, const struct outer *outer)
{
	if (!skb->gso_size)
		return plain->packet_bytes <= outer->packet_bytes_max;
	return plain->header_bytes && plain->header_bytes + skb->gso_size <= outer->packet_bytes_max &&
	       plain->packet_bytes <= 0xffff - ADDED_BYTES_V6(GENEVE_WORDS) &&
	       skb->len == ETH_HLEN + plain->packet_bytes;
}

/* The device that it leaves by; 0: that is no more. */
static __always_inline __u32 egress_device(const struct __sk_buff *skb, const struct outer *outer)
{
	__u32 number = outer->egress - 1;
	const __u32 *device;

	if (!outer->egress)
		return READ_ONCE(skb->ifindex); /* no pointer to either, which the verifier refuses */
	device = bpf_map_lookup_elem(&cache_devices, &number);
	return device ? *device : 0;
}

/* True if traffic control is to send the packet. */
static __always_inline int note_cached(struct __sk_buff *skb)
{
	__u32 queue = socket_number(skb), zero = 0;
	struct noted_packet *noted = cache_queues ? bpf_map_lookup_elem(&noted_packets, &zero) : 0;
	struct cached cached; /* each field is written before it is read */
	const struct cache_line *line;
	struct plain plain;

	if (!noted)
		return 0;
	noted->device = 0;
	line = working_line(queue);
	if (!line || skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return 0;
	if (!read_plain_skb(&plain, skb))
		return 0;
	if (!find_cached(&cached, line, queue, &plain) || !fits(skb, &plain, &cached.outer))
		return 0;
	noted->outer = cached.outer;
	noted->frame_bytes = skb->len;
	noted->frame_hash = skb->hash;
	noted->target = cached.target & TARGET_NUMBER_MASK;
	noted->packet_bytes = plain.packet_bytes;
	noted->class = plain.class;
	noted->device = egress_device(skb, &cached.outer);
	if (!noted->device)
		return 0;
	note_use(&cached);
	return 1;
}

/* Sends the packet that was noted; TC_ACT_UNSPEC: none was. */
static __always_inline int send_noted(struct __sk_buff *skb)
{
	__u32 zero = 0, device;
	struct noted_packet *noted = bpf_map_lookup_elem(&noted_packets, &zero);

	if (!noted || !noted->device)
		return TC_ACT_UNSPEC;
	device = noted->device;
	noted->device = 0;
	if (noted->frame_bytes != skb->len || noted->frame_hash != skb->hash)
		return TC_ACT_UNSPEC;
	if (!encapsulate(skb, TC, &noted->outer, noted->class, noted->packet_bytes)) {
		count(COUNTER_UNSENT);
		return TC_ACT_SHOT;
	}
	count_cached(noted->target, noted->packet_bytes);
	return bpf_redirect(device, 0);
}

SEC("socket")
int guideway_take(struct __sk_buff *skb)
{
	if (skb->pkt_type == PACKET_OUTGOING || note_cached(skb))
		return 0;
	if (!is_ours_skb(skb)) {
		count(COUNTER_PASSED);
		return 0;
	}
	count(COUNTER_TAKEN);
	return FRAME_WHOLE;
}

static __always_inline int send_or_drop(struct __sk_buff *skb)
{
	int action = cache_queues ? send_noted(skb) : TC_ACT_UNSPEC;

	if (action != TC_ACT_UNSPEC)
		return action;
	return is_ours_skb(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

SEC("classifier")
int guideway_traffic_control(struct __sk_buff *skb)
{
	return send_or_drop(skb);
}

/* Both, one after the other: for tests. */
SEC("classifier")
int guideway_both(struct __sk_buff *skb)
{
	return note_cached(skb) ? send_noted(skb) : send_or_drop(skb);
}

char _license[] SEC("license") = "Dual BSD/GPL";
