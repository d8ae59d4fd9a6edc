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
 * At XDP; or at traffic control, where packets can stay joined and checksums left to a device.
 * In three layers: how a frame is read and written (context.h); what a packet is, read once
 * for each run (frame.h, ip.h, segment.h, options.h); and the rules.
 *
 * Two more programs, at ingress and egress, see the segments of services with Multipath TCP
 * (multipath.h), and have thirteen bits in their timestamps (timestamps.h), which a
 * SYN's tunnel brings (opening.h). And two measure how long clients wait (responses.h).
 */
#include "frame.h"
#include "tunnel.h"
#include "inner.h"
#include "segment.h"
#include "connection.h"
#include "onward.h"
#include "handshake.h"
#include "multipath.h"
#include "opening.h"
#include "plain_syn.h"
#include "redirect.h"
#include "responses.h"
#include "timestamps.h"

/* Of what is read by pointers. */
#define HEADERS_BYTES_MAX \
	(sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr) + GENEVE_HEADER_BYTES)

/* Leaves the Ethernet header right in front of the packet inside. */
static __always_inline long strip(frame_md *ctx, const struct tunnel *t)
{
	struct ethhdr ethernet;

	if (load(ctx, HOOK, 0, &ethernet, sizeof(ethernet)))
		return -1;
	ethernet.h_proto = bpf_htons(t->inner_type);
	return replace_begin(ctx, HOOK, inner_at(t), &ethernet, 0);
}

/* From the outer header to the one inside. NONE, if the packet inside may leave the tunnel. */
static __always_inline enum reason read_frame(frame_md *ctx, struct tunnel *t, void *data,
					      struct ip_packet *inner)
{
	const struct ethhdr *ethernet = data;
	enum reason reason = NO_TUNNEL;

	if ((const void *)(ethernet + 1) > t->end || lost_tag(ctx, HOOK))
		return NO_TUNNEL;
	t->next = (void *)(ethernet + 1);
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		reason = read_outer_v4(t);
	else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		reason = read_outer_v6(t);
	if (reason != NONE)
		return reason;
	if (!is_to_own_mac(data))
		return OTHER_HOST;
	reason = read_tunnel(ctx, t, data);
	return reason == NONE ? read_inner(ctx, t, inner) : reason;
}

/* True if a rule may say something of the packet; nothing of one that another agent has
 * handed over. */
static __always_inline int may_be_ruled(const struct tunnel *t)
{
	return t->kind == GENEVE && !was_handed_over(t) && rules_are_taken();
}

/* True for a packet of which is to be remembered that it was taken here: one that may be a
 * datagram, or the first fragment of a packet. */
static __always_inline int may_be_remembered(const struct ip_packet *ip)
{
	if (ip->type == ETH_P_IP)
		return ip->protocol == IPPROTO_UDP || ip->fragment == FIRST;
	return ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_ICMPV6;
}

/* Where the packet inside belongs: NONE for here, REDIRECT_RULE for the agent in `handovers`,
 * another reason for the next agent that is named, or what is wrong. Reads the segment, if
 * something depends on it. */
static __always_inline enum reason place_of_inner(frame_md *ctx, struct tunnel *t,
						  struct segment *s)
{
	int is_named = names_addresses(t), asks_rules = may_be_ruled(t), reading, ruling;

	if (!is_named && !asks_rules && !t->options.multipath_at && !may_be_remembered(&s->ip))
		return NONE;
	reading = read_segment(ctx, s);
	if (reading != READ_SEGMENT)
		return is_named && reading == READ_MALFORMED ? INNER_HEADER : NONE;
	ruling = asks_rules ? ruling_of(ctx, s, is_named) : RULING_NONE;
	if (ruling == RULING_RULE)
		return REDIRECT_RULE;
	if (ruling == RULING_WAIT)
		return AWAITS_RULE;
	return place_of(ctx, s, t);
}

/* Gives the packet inside to the kernel, maybe by way of user space. */
static __always_inline enum xdp_action deliver(frame_md *ctx, struct tunnel *t,
					       struct segment *s)
{
	enum reason reason = finish_inner(ctx, t, &s->ip);
	__u32 option_at = t->options.multipath_at;

	if (reason != NONE)
		return ended(reason);
	if (option_at)
		note_opening(ctx, s, option_at);
	if (option_at && goes_to_owner(ctx, s, option_at))
		return ended(hand_over(ctx, t, s, PLAIN_SYN));
	if (option_at && is_handed(ctx, s, option_at)) {
		taken(t->kind);
		return XDP_DROP;
	}
	return strip(ctx, t) ? ended(NO_ROOM) : taken(t->kind);
}

static __always_inline enum xdp_action open_tunnel(frame_md *ctx)
{
	void *data = frame_start(ctx, HOOK);
	struct tunnel t = { .end = frame_end(ctx, HOOK) };
	struct segment *s = new_inner_segment();
	enum reason reason = s ? read_frame(ctx, &t, data, &s->ip) : NO_ROOM;

	if (reason != NONE)
		return ended(reason);
	reason = place_of_inner(ctx, &t, s);
	if (reason == NONE && t.options.multipath_at && names_addresses(&t) &&
	    joins_elsewhere(ctx, s))
		reason = NO_TOKEN;
	if (reason == NONE)
		return deliver(ctx, &t, s);
	if (reason == REDIRECT_RULE)
		return ended(hand_over(ctx, &t, s, reason));
	return ended(action_of(reason) == XDP_TX ? send_onward(ctx, &t, reason) : reason);
}

SEC(HOOK_SECTION)
int guideway_agent(frame_md *ctx)
{
	reach(ctx, HOOK, HEADERS_BYTES_MAX);
	return verdict(ctx, HOOK, open_tunnel(ctx));
}

SEC("classifier")
int gw_agent_in(struct __sk_buff *skb)
{
	struct segment s = {};

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
	struct segment s = {};

	if (!read_multipath_segment(skb, SENT, &s))
		return TC_ACT_UNSPEC;
	if (is_syn_ack(&s))
		key_syn_ack(skb, &s);
	if (!embed_bits(skb, &s))
		note_untimed(skb, &s);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int gw_agent_asked(struct __sk_buff *skb)
{
	struct segment s = {};

	if (read_frames_segment(skb, RECEIVED, &s))
		note_request(skb, &s);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int gw_agent_told(struct __sk_buff *skb)
{
	struct segment s = {};

	if (read_frames_segment(skb, SENT, &s))
		note_response(&s);
	return TC_ACT_UNSPEC;
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
