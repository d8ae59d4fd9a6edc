// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For measurements: frames as a driver gives them, for a tenth of what a socket takes to
 * send one. The kernel repeats guideway_send on frames of its own (BPF_PROG_TEST_RUN, live
 * frames), which makes each that of another flow and sends it by the interface; what comes
 * back there guideway_count counts, and drops.
 *
 * That many flows take turns; where there are none, each frame is a SYN of another.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct frame {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct tcphdr tcp;
	__u8 padding[6];
} __attribute__((packed, aligned(2)));

/* Set before the program is loaded. The checksum in the frame is the sum of the IPv4
 * header without source address and checksum, not complemented. */
#define FRAME_WORDS 15
const volatile __u32 first_frame[FRAME_WORDS] = {};
const volatile __u32 interface_index = 0;
const volatile __u32 flows = 0; /* a power of two, or 0 */

__u32 sent = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} returned SEC(".maps");

_Static_assert(sizeof(struct frame) == 4 * FRAME_WORDS, "a frame is its words");

#define PORT_BITS 14
#define FIRST_PORT 16384
#define FIRST_CLIENT 0x0a000000

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline void set_flow(struct frame *frame, __u32 flow)
{
	__u32 client = FIRST_CLIENT + (flow >> PORT_BITS);
	__u32 sum = bpf_ntohs(frame->ip.check) + (client >> 16) + (client & 0xffff);

	frame->ip.saddr = bpf_htonl(client);
	frame->ip.check = bpf_htons(~fold(sum) & 0xffff);
	frame->tcp.source = bpf_htons(FIRST_PORT + (flow & ((1 << PORT_BITS) - 1)));
}

SEC("xdp")
int guideway_send(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	__u32 number = sent++;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < FRAME_WORDS; i++)
		((__u32 *)frame)[i] = first_frame[i];
	frame->tcp.syn = !flows;
	frame->tcp.ack = !!flows;
	/* Neighbours in time are no neighbours in memory. */
	set_flow(frame, flows ? number * 0x9e3779b1 & (flows - 1) : number);
	return bpf_redirect(interface_index, 0);
}

SEC("xdp")
int guideway_count(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	__u32 first = 0;
	__u64 *frames;

	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	frames = bpf_map_lookup_elem(&returned, &first);
	if (frames)
		++*frames;
	return XDP_DROP;
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
