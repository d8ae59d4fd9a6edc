/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Lowers the MSS of SYN/ACKs that leave from VIPs, so that what clients send fits
 * into tunnels. At the interface's egress: what is sent is the kernel's own, and
 * goes to the client directly.
 */
#ifndef GUIDEWAY_AGENT_MSS_H
#define GUIDEWAY_AGENT_MSS_H

#include "frame.h"
#include "options.h"
#include "segment.h"

/* By family: IPv4, IPv6. */
struct clamp {
	__u32 mss; /* zero: left as it is */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct clamp);
} clamps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} clamped SEC(".maps");

static __always_inline void clamp_mss(struct __sk_buff *skb, const struct segment *s)
{
	__u32 family = s->ip.type == ETH_P_IP ? 0 : 1, options_at = s->tcp_at + sizeof(struct tcphdr);
	struct clamp *clamp = bpf_map_lookup_elem(&clamps, &family);
	struct tcp_options *options = load_options(skb, TC, s);
	int at = options ? find_option(options, TCP_OPTION_MSS, 0) : -1;
	__be16 before, after;
	__u64 *count;

	if (at < 0 || !clamp || option_at(options, at)[1] != TCP_OPTION_MSS_BYTES)
		return;
	__builtin_memcpy(&before, option_at(options, at) + 2, sizeof(before));
	if (!clamp->mss || bpf_ntohs(before) <= clamp->mss)
		return;
	after = bpf_htons(clamp->mss);
	if (replace_in_frame(skb, s, options_at + at + 2, before, after, sizeof(after)))
		return;
	count = bpf_map_lookup_elem(&clamped, &family);
	if (count)
		++*count;
}

#endif
