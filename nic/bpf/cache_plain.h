/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Plain packets: those that the kernel flow cache may hold. What is not taken here
 * wire/src/plain.rs does not take either.
 */
#ifndef GUIDEWAY_CACHE_PLAIN_H
#define GUIDEWAY_CACHE_PLAIN_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* An IP packet of the tracer has this length (datapath/src/trace.rs). */
#define TRACED_PACKET_BYTES 227

#define IPV4_VERSION_AND_LENGTH 0x45
#define IPV4_DONT_FRAGMENT 0x4000
#define TCP_FIN_SYN_RST 0x07
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

/* The IPv4 header of a frame whose packet may be in the cache; NULL: it is another. */
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

#endif
