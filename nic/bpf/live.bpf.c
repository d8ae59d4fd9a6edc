// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For measurements: frames as a driver gives them, for a quarter of what a socket takes to
 * send one. The kernel repeats guideway_send on frames of its own (BPF_PROG_TEST_RUN, live
 * frames), which makes each that of another flow and sends it by the interface; what comes
 * back there guideway_count counts, and drops.
 *
 * Flows take turns, as many as flow_mask says and one; where flows end, further ones follow
 * after packets_each, of which the first is a SYN and the last a FIN.
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
const volatile __u32 flow_mask = 0;
const volatile __u32 packets_each = 0; /* 0: flows do not end */

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
#define TCP_FLAGS_AT 13
#define SYN 0x02
#define FIN_ACK 0x11

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
	__u32 number = sent++, turn = number / (flow_mask + 1), of_flow = 0;
	/* Neighbours in time are no neighbours in memory. */
	__u32 flow = number * 0x9e3779b1 & flow_mask;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < FRAME_WORDS; i++)
		((__u32 *)frame)[i] = first_frame[i];
	if (packets_each) {
		flow += turn / packets_each * (flow_mask + 1);
		of_flow = turn % packets_each;
		if (of_flow == 0)
			((__u8 *)&frame->tcp)[TCP_FLAGS_AT] = SYN;
		else if (of_flow == packets_each - 1)
			((__u8 *)&frame->tcp)[TCP_FLAGS_AT] = FIN_ACK;
	}
	set_flow(frame, flow);
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
