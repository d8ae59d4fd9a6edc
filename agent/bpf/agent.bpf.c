// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Takes packets out of the load balancers' tunnels, on a backend.
 *
 *   Ethernet | outer IP | GRE, GUE, Geneve or nothing | inner IP | ...
 *                                                       '-- becomes the frame
 *
 * The frame that remains is passed to the kernel, which has the VIP on lo and
 * answers the client directly. Only tunnels from configured sources are ours;
 * all else is the kernel's, untouched. Only packets to configured VIPs leave
 * a tunnel. A Geneve header may name other agents, where the connection may
 * live: a packet of none that lives here goes on to the first of them. What is
 * ours and wrong is dropped, each kind counted under its own name.
 *
 *   tunnel.h ─► inner.h ─► connection.h: here? ─┬─► strip, XDP_PASS
 *   route.h     segment.h  flow.h               ├─► onward.h: the next agent's, XDP_TX
 *                          redirect.h           └─► handover.h: by a rule, or a SYN
 *                                                   that is to be plain, XDP_TX
 *
 * A second program, at the egress, lowers the MSS of what VIPs answer (mss.h). Two
 * more, at ingress and egress, see the segments of services with Multipath TCP
 * (multipath.h), and have thirteen bits in their timestamps (timestamps.h), which a
 * SYN's tunnel brings (opening.h).
 */
#include "frame.h"
#include "tunnel.h"
#include "inner.h"
#include "segment.h"
#include "connection.h"
#include "onward.h"
#include "mss.h"
#include "handshake.h"
#include "multipath.h"
#include "opening.h"
#include "plain_syn.h"
#include "redirect.h"
#include "timestamps.h"

static __always_inline int counted(__u32 outcome, int action)
{
	__u64 *count = bpf_map_lookup_elem(&outcomes, &outcome);

	if (count)
		++*count;
	return action;
}

/* Moves the frame's begin so that the Ethernet header stands right in front
 * of the inner packet. */
static __always_inline int strip(struct xdp_md *ctx, const struct tunnel *t)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct ethhdr kept;

	if ((const void *)(ethernet + 1) > t->end)
		return -1;
	kept = *ethernet;
	kept.h_proto = bpf_htons(t->inner_type);
	if (bpf_xdp_adjust_head(ctx, t->removed))
		return -1;
	ethernet = (void *)(long)ctx->data;
	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return -1;
	*ethernet = kept;
	return 0;
}

/* From the outer header to the inner one: the kind of tunnel, or what is wrong. */
static __always_inline __u32 read_frame(struct xdp_md *ctx, struct tunnel *t, void *data)
{
	const struct ethhdr *ethernet = data;
	__u32 outcome = PASSED;

	if ((const void *)(ethernet + 1) > t->end)
		return PASSED;
	t->next = (void *)(ethernet + 1);
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		outcome = read_outer_v4(t);
	else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		outcome = read_outer_v6(t);
	if (outcome != GRE)
		return outcome;
	if (!is_to_own_mac(data))
		return OTHER_HOST;
	outcome = read_tunnel(ctx, t, data);
	if (outcome > GENEVE)
		return outcome;
	t->kind = outcome;
	return read_inner(t);
}

/* True if a rule may say something of the packet; nothing of one that another agent has
 * handed over. */
static __always_inline int may_be_ruled(const struct tunnel *t)
{
	return t->kind == GENEVE && !was_handed_over(t) && rules_are_taken();
}

/* True for a packet of which is to be remembered that it was taken here: one that may be a
 * datagram, or the first fragment of a packet. */
static __always_inline int may_be_remembered(const struct tunnel *t)
{
	if (t->inner_type == ETH_P_IP) {
		const struct iphdr *ip = t->next;

		return (const void *)(ip + 1) <= t->end &&
		       (ip->protocol == IPPROTO_UDP || ip->frag_off & bpf_htons(IPV4_MORE));
	} else {
		const struct ipv6hdr *ip = t->next;

		return (const void *)(ip + 1) <= t->end && ip->nexthdr != IPPROTO_TCP &&
		       ip->nexthdr != IPPROTO_ICMPV6;
	}
}

/* Gives the packet inside to the kernel, maybe by way of user space. */
static __always_inline int deliver(struct xdp_md *ctx, struct tunnel *t)
{
	__u32 outcome = finish_inner(t), at = inner_at(t), option_at = t->options.multipath_at;

	if (outcome > GENEVE)
		return counted(outcome, XDP_DROP);
	if (option_at)
		note_opening(ctx, option_at, at, t->inner_type);
	if (option_at && goes_to_owner(ctx, at, option_at)) {
		outcome = hand_over(ctx, t, PLAIN_SYN);
		return counted(outcome, outcome == PLAIN_SYN ? XDP_TX : XDP_DROP);
	}
	if (option_at && is_handed(ctx, at, option_at))
		return counted(outcome, XDP_DROP);
	if (strip(ctx, t))
		return counted(NO_ROOM, XDP_DROP);
	return counted(outcome, XDP_PASS);
}

/* Where the packet inside belongs: the kind of tunnel for here, REDIRECT_RULE for the agent
 * in `handovers`, another reason for the next agent that is named, or what is wrong. */
static __always_inline __u32 place_of_inner(struct xdp_md *ctx, struct tunnel *t)
{
	int is_named = names_addresses(t), asks_rules = may_be_ruled(t), reading, ruling;
	struct segment s = {};

	if (!is_named && !asks_rules && !may_be_remembered(t))
		return t->kind;
	reading = read_segment(ctx, inner_at(t), t->inner_type, &s);
	if (reading != READ_SEGMENT)
		return is_named && reading == READ_MALFORMED ? INNER_HEADER : t->kind;
	ruling = asks_rules ? ruling_of(ctx, &s, is_named) : RULING_NONE;
	if (ruling == RULING_RULE)
		return REDIRECT_RULE;
	if (ruling == RULING_WAIT)
		return AWAITS_RULE;
	return place_of(ctx, &s, t);
}

SEC("xdp")
int guideway_agent(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct tunnel t = { .end = (void *)(long)ctx->data_end };
	__u32 outcome = read_frame(ctx, &t, data), sent;

	if (outcome < GRE)
		return counted(outcome, XDP_PASS);
	if (outcome > GENEVE)
		return counted(outcome, XDP_DROP);
	outcome = place_of_inner(ctx, &t);
	if (outcome == t.kind && t.options.multipath_at && names_addresses(&t) &&
	    joins_elsewhere(ctx, inner_at(&t)))
		outcome = NO_TOKEN;
	if (outcome == t.kind)
		return deliver(ctx, &t);
	if (outcome > REDIRECT_RULE)
		return counted(outcome, XDP_DROP);
	sent = outcome == REDIRECT_RULE ? hand_over(ctx, &t, outcome) :
					  send_onward(ctx, &t, outcome);
	return counted(sent, sent == outcome ? XDP_TX : XDP_DROP);
}

SEC("classifier")
int gw_agent_mss(struct __sk_buff *skb)
{
	clamp_mss(skb);
	return TC_ACT_UNSPEC; /* other programs go on */
}

SEC("classifier")
int gw_agent_in(struct __sk_buff *skb)
{
	struct multipath_segment s = {};

	if (!read_multipath_segment(skb, RECEIVED, &s))
		return TC_ACT_UNSPEC;
	if (s.flags & TCP_ACK && is_refused(skb, &s))
		return TC_ACT_SHOT;
	restore_echo(skb, &s);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int gw_agent_out(struct __sk_buff *skb)
{
	struct multipath_segment s = {};

	if (!read_multipath_segment(skb, SENT, &s))
		return TC_ACT_UNSPEC;
	if ((s.flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
		key_syn_ack(skb, &s);
	if (!embed_bits(skb, &s))
		note_untimed(skb, &s);
	return TC_ACT_UNSPEC;
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
