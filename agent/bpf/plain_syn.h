/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * SYNs with MP_CAPABLE of clients without timestamps (RFC 7323). The load balancer sends
 * such a SYN by its key's token, and what follows, in which nothing says the token, by the
 * five-tuple. Where no redirect rule can be requested there, the connection has to be there,
 * as a plain one: the SYN is handed over, without MP_CAPABLE, to the backend of the
 * five-tuple's bucket, which its tunnel's option names (opening.h).
 *
 *   client ─ SYN ─► load balancer ─► here, by the token ─► there, by the five-tuple
 *   client ─ ACK ─► load balancer ───────────────────────► there
 */
#ifndef GUIDEWAY_AGENT_PLAIN_SYN_H
#define GUIDEWAY_AGENT_PLAIN_SYN_H

#include "frame.h"
#include "handover.h"
#include "handshake.h"
#include "opening.h"
#include "options.h"
#include "redirect.h"

/* True for a SYN that goes on to the owner of its five-tuple's bucket, whose address is in
 * the processor's `handovers`; it has lost MP_CAPABLE then. */
__noinline int goes_to_owner(frame_md *ctx, struct segment *s, __u32 option_at)
{
	struct handover *handover = next_handover();
	struct multipath_option option;
	struct tcp_options *options;

	if (!handover || !s || !is_multipath_syn(s) ||
	    read_owner(ctx, option_at, &option, &handover->agent) ||
	    !bpf_map_lookup_elem(&agents, &handover->agent)) /* it is this one */
		return 0;
	options = load_options(ctx, HOOK, s);
	if (!options || find_multipath(options, MULTIPATH_CAPABLE) < 0 ||
	    find_option(options, TCP_OPTION_TIMESTAMPS, 0) >= 0 ||
	    takes_handshakes(&handover->agent))
		return 0;
	strip_syn(ctx, s, SYN_STRIPPED_TIMESTAMPS);
	return 1;
}

#endif
