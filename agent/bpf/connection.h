/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Whether a packet's connection lives here, as the kernel's sockets have it, or
 * its flow, as flow.h remembers it.
 *
 * Looked up for packets that name other agents. A connection lives here if
 * this packet means something to its socket; else the kernel would answer the
 * packet of a connection that lives elsewhere by an RST.
 */
#ifndef GUIDEWAY_AGENT_CONNECTION_H
#define GUIDEWAY_AGENT_CONNECTION_H

#include "flow.h"
#include "frame.h"
#include "route.h"
#include "segment.h"

#define WINDOW_MAX (1 << 30) /* the largest that RFC 7323 can express */
#define TOLERANCE_MIN (1 << 20)

/* What we read of the kernel's own; the loader finds where it is. */
struct tcp_request_sock {
	__u32 rcv_isn;
	__u32 snt_isn;
} __attribute__((preserve_access_index));

struct sock_common {
	__u32 skc_tw_rcv_nxt;
	__u32 skc_tw_snd_nxt;
} __attribute__((preserve_access_index));

struct inet_timewait_sock {
	struct sock_common __tw_common;
} __attribute__((preserve_access_index));

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
	__u32 tw_rcv_wnd;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 rcv_nxt;
	__u32 rcv_wnd;
	__u32 window_clamp;
} __attribute__((preserve_access_index));

/* A socket's address as a number: the verifier permits no arithmetic on a socket's,
 * and the kernel's casts to the kinds of sockets below refuse those of listeners with
 * Multipath TCP, which many have without a word of theirs (Go's do), and of what these
 * accept. So fields are copied. */
static __always_inline const void *address_of(struct bpf_sock *socket)
{
	const void *address = 0;

	bpf_probe_read_kernel(&address, sizeof(address), &socket);
	return address;
}

static __always_inline int copy(__u32 *to, const __u32 *from)
{
	return !bpf_probe_read_kernel(to, sizeof(*to), from);
}

/* A handshake that this segment goes on with; a forged or late SYN made a
 * socket of the same tuple, too. */
static __always_inline int is_of_handshake(const struct segment *s,
					   const struct tcp_request_sock *request)
{
	__u32 sent, received;

	if (!copy(&sent, &request->snt_isn) || !copy(&received, &request->rcv_isn))
		return 0;
	if (s->is_quoted)
		return s->sequence == sent;
	if (s->flags & TCP_ACK)
		return s->acknowledged == sent + 1;
	return s->sequence == received + 1;
}

/* Ends no more than a window before what the closed connection expects, begins
 * no more than one behind it, and acknowledges what was sent: a client that
 * uses its port again talks of other numbers. */
static __always_inline int is_of_closed(const struct segment *s,
					const struct tcp_timewait_sock *closed)
{
	__u32 expected, sent, window;

	if (!copy(&expected, &closed->tw_sk.__tw_common.skc_tw_rcv_nxt) ||
	    !copy(&sent, &closed->tw_sk.__tw_common.skc_tw_snd_nxt) ||
	    !copy(&window, &closed->tw_rcv_wnd))
		return 0;
	if (s->is_quoted)
		return sent - s->sequence <= WINDOW_MAX;
	if ((__s32)(s->sequence + s->bytes - (expected - window)) < 0 ||
	    (__s32)(s->sequence - (expected + window)) > 0)
		return 0;
	if (!(s->flags & TCP_ACK))
		return 1;
	return sent - s->acknowledged <= WINDOW_MAX;
}

/* In a sequence space, with so much before it and behind. */
static __always_inline int is_between(__u32 number, __u32 first, __u32 last, __u32 tolerance)
{
	return (__u64)(number - first + tolerance) <= (__u64)(last - first) + 2ULL * tolerance;
}

/* False for what is another connection's beyond doubt: of a client that vanished and uses
 * its port again, while the former connection's socket is still here. Of one that lives
 * here such a segment would be an RST's cause elsewhere; the other way round this kernel
 * answers by an ACK. So old duplicates, keepalives, probes and repeated FINs are here. */
static __always_inline int is_of_open(const struct segment *s, const struct tcp_sock *open)
{
	__u32 unacknowledged, sent, expected, window, clamp, tolerance;

	if (!copy(&unacknowledged, &open->snd_una) || !copy(&sent, &open->snd_nxt) ||
	    !copy(&expected, &open->rcv_nxt) || !copy(&window, &open->rcv_wnd) ||
	    !copy(&clamp, &open->window_clamp))
		return 1;
	tolerance = clamp > TOLERANCE_MIN / 2 ? 2 * clamp : TOLERANCE_MIN;
	if (s->is_quoted)
		return is_between(s->sequence, unacknowledged, sent, tolerance);
	if (is_between(s->sequence, expected, expected + window, tolerance))
		return 1;
	return s->flags & TCP_ACK && is_between(s->acknowledged, unacknowledged, sent, tolerance);
}

/* True if this segment to a listener has a SYN cookie of this machine's. */
static __always_inline int is_cookie_of(void *ctx, enum hook hook, struct bpf_sock *socket,
					const struct segment *s)
{
	struct tcphdr tcp;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;

	if (load(ctx, hook, s->tcp_at, &tcp, sizeof(tcp)))
		return 0;
	if (s->ip.type == ETH_P_IP)
		return !load(ctx, hook, s->ip.header_at, &ip.v4, sizeof(ip.v4)) &&
		       !bpf_tcp_check_syncookie(socket, &ip.v4, sizeof(ip.v4), &tcp, sizeof(tcp));
	return !load(ctx, hook, s->ip.header_at, &ip.v6, sizeof(ip.v6)) &&
	       !bpf_tcp_check_syncookie(socket, &ip.v6, sizeof(ip.v6), &tcp, sizeof(tcp));
}

/* An ACK with a SYN cookie of ours makes a connection here. But all network namespaces of
 * a machine have cookies of one secret: of two agents' backends there, it is a cookie of
 * both, and a rule says whose. */
static __always_inline int is_cookie(frame_md *ctx, struct bpf_sock *socket,
				     const struct segment *s)
{
	return !s->is_quoted && !s->is_ruled && is_cookie_of(ctx, HOOK, socket, s);
}

/* NONE if this socket has use for the segment, else why not. */
static __always_inline enum reason place_by_socket(frame_md *ctx, struct bpf_sock *socket,
					     const struct segment *s)
{
	switch (socket->state) {
	case BPF_TCP_LISTEN:
		return is_cookie(ctx, socket, s) ? NONE : NO_SOCKET;
	case BPF_TCP_NEW_SYN_RECV:
		return is_of_handshake(s, address_of(socket)) ? NONE : OTHER_HANDSHAKE;
	case BPF_TCP_TIME_WAIT:
		return is_of_closed(s, address_of(socket)) ? NONE : OTHER_TIME_WAIT;
	case BPF_TCP_ESTABLISHED:
	case BPF_TCP_FIN_WAIT1:
	case BPF_TCP_FIN_WAIT2:
	case BPF_TCP_CLOSE_WAIT:
	case BPF_TCP_CLOSING:
	case BPF_TCP_LAST_ACK:
		return is_of_open(s, address_of(socket)) ? NONE : OTHER_CONNECTION;
	default: /* Fast Open's, whose handshake has not ended */
		return NONE;
	}
}

/* NONE if a socket has use for the segment, else why none has. A function that is not
 * inlined, so that the verifier goes through it once. */
__noinline int place_by_lookup(frame_md *ctx, struct segment *s)
{
	struct bpf_sock *socket;
	enum reason reason;

	if (!s)
		return NO_SOCKET;
	socket = find_socket(ctx, &s->flow);
	if (!socket)
		return NO_SOCKET;
	reason = place_by_socket(ctx, socket, s);
	bpf_sk_release(socket);
	return reason;
}

/* The same, looked up twice: a socket that changes its state is in no table for a moment. */
static __always_inline enum reason place_by_sockets(frame_md *ctx, struct segment *s)
{
	return place_by_lookup(ctx, s) == NONE ? NONE : place_by_lookup(ctx, s);
}

/* Where a packet that names other agents belongs. */
static __always_inline enum reason place_by_content(frame_md *ctx, struct segment *s,
						    struct tunnel *t)
{
	if (s->ip.fragment == LATER)
		return place_by_fragment(&s->ip, t);
	if (s->is_datagram)
		return place_by_flow(&s->flow);
	/* New connections are the one's in charge. */
	return is_syn(s) ? NONE : place_by_sockets(ctx, s);
}

/* Where the packet that was read into `s` belongs: NONE for here, or why onward, or what is
 * wrong with it. */
static __always_inline enum reason place_of(frame_md *ctx, struct segment *s,
					    struct tunnel *t)
{
	enum reason reason = names_addresses(t) ? place_by_content(ctx, s, t) : NONE;

	if (s->ip.fragment != LATER)
		t->returns = s->is_datagram;
	if (s->ip.fragment == FIRST)
		remember_fragment(&s->ip, t, reason);
	if (s->is_datagram && reason == NONE && !s->is_quoted)
		remember_flow(&s->flow);
	return reason;
}

/* The state of the socket that gets what this segment's client sends, as bpf.h names
 * them; 0: there is none. */
static __always_inline __u32 state_of_socket(struct __sk_buff *skb, const struct segment *s)
{
	struct bpf_sock *socket = find_socket(skb, &s->flow);
	__u32 state;

	if (!socket)
		return 0;
	state = socket->state;
	bpf_sk_release(socket);
	return state;
}

#endif
