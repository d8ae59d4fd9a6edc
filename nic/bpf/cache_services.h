/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Stateless services in the kernel flow cache: the bucket that a packet is in decides
 * where it goes, so that no flow need be known.
 *
 *  destination -> service -> hash -> its bucket -> target
 *
 * Who writes this, and when: datapath/src/kernel_cache/services.rs.
 */
#ifndef GUIDEWAY_CACHE_SERVICES_H
#define GUIDEWAY_CACHE_SERVICES_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cache_plain.h"
#include "flow_hash.h"
#include "tunnels.h"

#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))

/* Where packets are to. */
struct service_socket {
	__u32 address[4]; /* as packets have it; IPv4 as ::ffff:a.b.c.d */
	__u16 port;	  /* network order; 0: all ports, where nothing else is at the address */
	__u8 protocol;
	__u8 unused;
};

/* The buckets of a service. */
struct service {
	__u32 first; /* of its buckets, among those of all */
	__u32 count;
	__u32 layout; /* which of its buckets have, too, else they are another's */
	__u32 by_client;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct service_socket);
	__type(value, struct service);
} service_sockets SEC(".maps");

/* The target in the lower half, zero for user space's; the layout above. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set before the map is made */
	__type(key, __u32);
	__type(value, __u64);
} service_buckets SEC(".maps");

#define TCP_HEADER_BYTES_USUAL 40

/* True for what user space judges by more than its destination: what may be a tunnel's, and
 * a SYN with more options than those of plain TCP have, of which it counts those that ask
 * for Multipath TCP. */
static __always_inline int is_unusual(const struct plain *plain)
{
	__u32 ip_bytes = plain->tuple.is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	if (plain->tuple.protocol == IPPROTO_UDP)
		return is_tunnel_port(plain->tuple.ports >> 16);
	return (plain->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
	       plain->header_bytes > ip_bytes + TCP_HEADER_BYTES_USUAL;
}

static __always_inline const struct service *find_service(const struct tuple *tuple)
{
	struct service_socket socket = { .port = tuple->ports >> 16, .protocol = tuple->protocol };
	const struct service *service;

	if (tuple->is_v6) {
		__builtin_memcpy(socket.address, &tuple->addresses[2], sizeof(socket.address));
	} else {
		socket.address[2] = bpf_htonl(0xffff);
		socket.address[3] = tuple->addresses[0] >> 32;
	}
	service = bpf_map_lookup_elem(&service_sockets, &socket);
	if (service)
		return service;
	socket.port = 0;
	return bpf_map_lookup_elem(&service_sockets, &socket);
}

/* The target that a packet goes to by its bucket; 0: user space decides. */
static __always_inline __u32 target_of_bucket(struct plain *plain)
{
	const struct service *service = is_unusual(plain) ? 0 : find_service(&plain->tuple);
	const __u64 *bucket;
	__u64 hash, found;
	__u32 index;

	if (!service)
		return 0;
	hash = service->by_client ? hash_client(&plain->tuple, KEY_OF_BUCKETS) :
				    hash_flow(&plain->tuple, KEY_OF_BUCKETS);
	index = service->first + (__u32)((hash >> 32) * service->count >> 32);
	bucket = bpf_map_lookup_elem(&service_buckets, &index);
	if (!bucket)
		return 0;
	found = READ_ONCE(*bucket);
	return found >> 32 == service->layout ? (__u32)found : 0;
}

#endif
