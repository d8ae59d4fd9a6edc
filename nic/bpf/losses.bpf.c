// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts what the kernel flow cache has handed to devices and these did not send: on
 * the kernel's tracepoints of XDP, as the filter has returned by then and does not
 * learn of it.
 *
 *   XDP_TX       ─► not sent by the driver, or in generic mode ─► xdp_exception
 *   XDP_REDIRECT ─► refused ─► xdp_redirect_err;  sent in bulks ─► xdp_devmap_xmit
 *
 * The last one is for each bulk, lost or not, so it costs all packets a little; what veth
 * sends by XDP_TX in bulks of its own is left to that driver's counter (src/losses.rs).
 * Tracepoints are the machine's, and so are the programs on them: only devices of our
 * network namespace count, by their number in the forwarder's list.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define DEVICES_MAX 64 /* nic/src/kernel_cache.rs has these, too */

/* Of the kernel's structures, what is read here. Its loader finds where they have it. */
#define OF_KERNEL __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} OF_KERNEL;

struct net {
	struct ns_common ns;
} OF_KERNEL;

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} OF_KERNEL;

const volatile __u32 own_namespace = 0; /* its number in /proc/self/ns/net */

/* Numbers of our devices by the kernel's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DEVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} device_numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DEVICES_MAX);
	__type(key, __u32);
	__type(value, __u64);
} lost_packets SEC(".maps");

/* The number of a device of ours, or none. */
static __always_inline const __u32 *number_of(const struct net_device *device)
{
	__u32 index = device->ifindex;

	if (device->nd_net.net->ns.inum != own_namespace)
		return 0;
	return bpf_map_lookup_elem(&device_numbers, &index);
}

static __always_inline void count_lost(const __u32 *number, int packets)
{
	__u64 *lost = number ? bpf_map_lookup_elem(&lost_packets, number) : 0;

	if (lost)
		*lost += packets;
}

/* Device, program, its action. */
SEC("tp_btf/xdp_exception")
int on_exception(const __u64 *arguments)
{
	if ((__u32)arguments[2] == XDP_TX)
		count_lost(number_of((void *)arguments[0]), 1);
	return 0;
}

/* Device that packets came in by, device they leave by, packets sent, lost, error. */
SEC("tp_btf/xdp_devmap_xmit")
int on_devmap(const __u64 *arguments)
{
	int lost = arguments[3];

	if (lost > 0 && number_of((void *)arguments[0]))
		count_lost(number_of((void *)arguments[1]), lost);
	return 0;
}

/* Device that the packet came in by, program, target, error, the map's type, its number,
 * and the target's there: in the filter's map of devices it is ours. */
SEC("tp_btf/xdp_redirect_err")
int on_refused(const __u64 *arguments)
{
	__u32 number = arguments[6];

	if ((__u32)arguments[4] == BPF_MAP_TYPE_DEVMAP && number_of((void *)arguments[0]))
		count_lost(&number, 1);
	return 0;
}

/* None of the helpers used requires the GPL. */
char _license[] SEC("license") = "Dual BSD/GPL";
