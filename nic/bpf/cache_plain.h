/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Plain packets: those that the kernel flow cache may send.
 */
#ifndef GUIDEWAY_CACHE_PLAIN_H
#define GUIDEWAY_CACHE_PLAIN_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cache_hash.h"

/* An IP packet of the tracer has this length (datapath/src/trace.rs). */
#define TRACED_PACKET_BYTES 227

/* A TTL or hop limit that cannot be lowered. */
#define LAST_HOP 1

#define IPV4_VERSION_AND_LENGTH 0x45
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV6_VERSION 6
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_FLAGS_AT 13
#define TCP_OFFSET_AT 12

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* What the cache goes by of a packet. */
struct plain {
	struct tuple tuple;
	__u32 packet_bytes;
	__u32 header_bytes; /* of IP and TCP; of UDP: 0 */
	__u8 class;
	__u8 tcp_flags; /* of UDP: 0 */
};

/* Where a packet is read from: its headers, and how long it is with what is behind them. */
struct source {
	const void *packet;
	const void *end; /* of what can be read */
	__u32 bytes;
};

/* True for a TCP segment or UDP datagram that is as most are, behind ip_bytes of an IP
 * packet of packet_bytes, which lies in the frame. */
static __always_inline int is_plain_tcp(struct plain *plain, const void *segment, const void *end, __u32 ip_bytes,
					__u32 packet_bytes)
{
	const __u8 *header = segment;
	__u32 header_bytes;

	if (segment + sizeof(struct tcphdr) > end)
		return 0;
	plain->tcp_flags = header[TCP_FLAGS_AT];
	header_bytes = (header[TCP_OFFSET_AT] >> 4) * 4;
	plain->header_bytes = ip_bytes + header_bytes;
	return header_bytes >= sizeof(struct tcphdr) && plain->header_bytes <= packet_bytes;
}

static __always_inline int is_plain_udp(const struct udphdr *udp, const void *end, __u32 ip_bytes, __u32 packet_bytes)
{
	__u32 bytes;

	if ((const void *)(udp + 1) > end)
		return 0;
	bytes = bpf_ntohs(udp->len);
	return bytes >= sizeof(*udp) && ip_bytes + bytes <= packet_bytes;
}

static __always_inline int is_plain_payload(struct plain *plain, __u8 protocol, const void *payload, const void *end,
					    __u32 ip_bytes, __u32 packet_bytes)
{
	plain->header_bytes = 0;
	plain->tcp_flags = 0;
	if (protocol == IPPROTO_TCP)
		return is_plain_tcp(plain, payload, end, ip_bytes, packet_bytes);
	if (protocol == IPPROTO_UDP)
		return is_plain_udp(payload, end, ip_bytes, packet_bytes);
	return 0;
}

/* True for a packet that may be sent by the cache. */
static __always_inline int read_plain_v4(struct plain *plain, const struct source *from)
{
	const struct iphdr *ip = from->packet;
	const __u32 *words = from->packet;
	const void *end = from->end;
	__u32 packet_bytes;

	if ((const void *)(ip + 1) > end)
		return 0;
	packet_bytes = bpf_ntohs(ip->tot_len);
	if (*(const __u8 *)ip != IPV4_VERSION_AND_LENGTH || ip->frag_off & ~bpf_htons(IPV4_DONT_FRAGMENT))
		return 0;
	if (packet_bytes == TRACED_PACKET_BYTES || packet_bytes > from->bytes || ip->ttl <= LAST_HOP)
		return 0;
	if (fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]) != 0xffff)
		return 0;
	if (!is_plain_payload(plain, ip->protocol, ip + 1, end, sizeof(*ip), packet_bytes))
		return 0;
	/* Ports: read again, for the verifier's sake. */
	if ((const void *)(words + 6) > end)
		return 0;
	plain->tuple = (struct tuple){
		.addresses = { (__u64)words[4] << 32 | words[3] },
		.ports = words[5],
		.protocol = ip->protocol,
	};
	plain->packet_bytes = packet_bytes;
	plain->class = ip->tos;
	return 1;
}

/* The same of IPv6; a longer packet than its length field has is none of these. */
static __always_inline int read_plain_v6(struct plain *plain, const struct source *from)
{
	const struct ipv6hdr *ip = from->packet;
	const __u64 *addresses = (const void *)&ip->saddr;
	const __u32 *ports = (const void *)(ip + 1);
	const void *end = from->end;
	__u32 start, packet_bytes;

	if ((const void *)(ip + 1) > end)
		return 0;
	start = bpf_ntohl(*(const __u32 *)ip);
	packet_bytes = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (start >> 28 != IPV6_VERSION || packet_bytes == TRACED_PACKET_BYTES)
		return 0;
	if (packet_bytes > 0xffff || packet_bytes > from->bytes || ip->hop_limit <= LAST_HOP)
		return 0;
	if (!is_plain_payload(plain, ip->nexthdr, ip + 1, end, sizeof(*ip), packet_bytes))
		return 0;
	if ((const void *)(ports + 1) > end)
		return 0;
	plain->tuple = (struct tuple){
		.addresses = { addresses[0], addresses[1], addresses[2], addresses[3] },
		.ports = *ports,
		.protocol = ip->nexthdr,
		.is_v6 = 1,
	};
	plain->packet_bytes = packet_bytes;
	plain->class = start >> 20;
	return 1;
}

/* True for a frame whose packet may be sent by the cache: its headers begin at data, and it has
 * frame_bytes. What is not taken wire/src/plain.rs does not take either. */
static __always_inline int read_plain(struct plain *plain, const void *data, const void *end, __u32 frame_bytes)
{
	const struct ethhdr *ethernet = data;
	const struct source from = { ethernet + 1, end, frame_bytes - sizeof(*ethernet) };

	if (from.packet > end)
		return 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return read_plain_v4(plain, &from);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return read_plain_v6(plain, &from);
	return 0;
}

#endif
