#!/usr/bin/python3
"""Decodes every out.pcap of the golden folders by scapy and by tshark, which share no code with Guideway.

    forwarder/tests/golden/check.py [folder ...]

By scapy, for every frame that was sent: the outer header is right (checksum, lengths, TTL, "do not fragment",
addresses of the plan), DSCP and ECN are those wanted, and the inner packet is the input's, bit by bit (or its pieces
put together again are); without a tunnel the packet is the input's but for one hop. For every answer: it goes from the VIP to the client, with right checksums. For every frame
redirected, and every copy: it goes to a peer or to another cluster, with the recursion control that it must have.
Of a stateless service also the backend and the route option are those of the flow's bucket, which is worked out here;
or the backend is the one that a QUIC connection id names, or of Multipath TCP that of the key or token, and SYNs carry
the key and the five-tuple's backend. A service with a second chance names the backends of earlier
Maglev tables, which are built here, where it has to, and no others.
By tshark, for every frame: nothing is malformed, and no checksum or length is complained about; and Guideway's own
dissector (packaging/wireshark) reads the route options as scapy's bytes have them.
Prints what is wrong and exits with 1.
"""

import hashlib
import ipaddress
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6PacketTooBig, IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import GRE, Ether
from scapy.packet import Raw
from scapy.utils import rdpcap

sys.path.insert(0, str(Path(__file__).parents[3] / "vectors"))
sys.dont_write_bytecode = True

from primitives import aes128, aes128_inverse  # noqa: E402
from vectors import maglev_entries  # noqa: E402

HERE = Path(__file__).parent
OUR_MAC, NEXT_HOP_MAC = "02:00:00:00:00:01", "02:00:00:00:00:fe"
GUE_PORT, GENEVE_PORT = 6080, 6081
#: A fragment waits so long for its datagram's first one.
WAIT_SECONDS = 1


class Wrong(Exception):
    pass


def demand(what, found, wanted):
    if found != wanted:
        raise Wrong(f"{what} is {found}, must be {wanted}")


class Plan:
    """What the outer headers must say."""

    def __init__(self, path):
        plan = json.loads(path.read_text())
        tunnel = plan.get("tunnel", {})
        self.backends = {ipaddress.ip_address(b["address"]) for b in plan["backends"]}
        self.sources = [ipaddress.ip_network(address) for address in plan["machine"]["addresses"]]
        if prefix := tunnel.get("sourcePrefix"):
            self.sources = [ipaddress.ip_network(prefix)] + [n for n in self.sources if n.version == 6]
        secret = path.parent / "cluster.key"
        key = b"secret\0" + secret.read_bytes().rstrip() if secret.exists() else \
            b"derived\0" + plan["cluster"]["name"].encode()
        self.key = hashlib.sha256(b"guideway flow hash\0" + key).digest()[:16]
        self.connection_id_keys = [
            hashlib.sha256(b"guideway quic connection id\0" + bytes([config, 0]) + key).digest()[:16] for config in range(7)]
        self.multipath_key = hashlib.sha256(b"guideway multipath key\0" + key).digest()[:16]
        self.bucket_key = hashlib.sha256(b"guideway bucket hash\0" + key).digest()[:16]
        self.address_of = {b["name"]: ipaddress.ip_address(b["address"]) for b in plan["backends"]}
        self.machine = {ipaddress.ip_address(address) for address in plan["machine"]["addresses"]}
        self.peers = {ipaddress.ip_address(a) for peer in plan.get("peers", []) for a in peer["addresses"]}
        self.peer_count = len(plan.get("peers", []))
        self.takes_tunnels = bool(self.peers or plan.get("encapsulators"))
        self.spills = [ipaddress.ip_network(spill["prefix"]) for service in plan["services"]
                       for spill in service.get("spill", [])]
        self.udp6_checksum = tunnel.get("udp6Checksum", False)
        self.groups = plan.get("groups", [])
        self.services = {service["name"]: service for service in plan["services"]}
        self.by_address = {}
        for service in plan["services"]:
            for vip in service["vips"]:
                if "address" in vip:
                    self.by_address.setdefault(vip["address"], []).append(service)

    def outer_id(self, to):
        """What only machines with the key can write into the outer header."""
        own = next(address for address in self.machine if address.version == 4)
        layout = bytes([0xa4, 0]) + own.packed + ipaddress.ip_address(to).packed + bytes(6)
        return int.from_bytes(aes128(self.key, layout)[:2], "big")

    def by_bucket(self, flow):
        """The backend's address and the route option of a flow's packets; None: their service is not stateless."""
        service = next((service for service in self.by_address.get(flow[1], []) if "bucketMap" in service), None)
        if service is None:
            return None
        layout = layout_of(flow)
        if service.get("affinity") == "AFFINITY_CLIENT":
            source = ipaddress.ip_address(flow[0])
            layout = bytes([0x80 | source.version]) + source.packed
        entries = service["bucketMap"]["byBucket"]
        bucket = slot_of(self.bucket_key, layout, len(entries))
        return self.backend_in(service, entries[bucket]), self.route_option(service, bucket)

    def by_multipath(self, flow, inner):
        """The same as by_bucket() of TCP packets to a service with Multipath TCP: MPLB, figure 6; RFC 8684 and 6824."""
        service = next((service for service in self.by_address.get(flow[1], []) if "mptcp" in service), None)
        if service is None or flow[2] != "TCP":
            return None
        segment = bytes((IP(inner) if inner[0] >> 4 == 4 else IPv6(inner)).payload.original)
        is_syn, has_ack = segment[13] & 0x12 == 0x02, segment[13] & 0x10
        entries = service["bucketMap"]["byBucket"]
        by_flow = slot_of(self.bucket_key, layout_of(flow), len(entries))
        key, bits = bytes(8), None
        try:
            options = tcp_options(segment)
            if is_syn:
                key, bits = self.multipath_syn(flow, segment, options)
            elif has_ack and (stamps := only(options, 8)):
                demand_length(stamps, 10)
                bits = int.from_bytes(stamps[6:], "big") or None
        except ValueError:
            key, bits = bytes(8), None
        bucket = by_flow if bits is None else bits % len(entries)
        options = self.route_option(service, bucket)
        if is_syn:
            options += multipath_option(key, by_flow, self.backend_in(service, entries[by_flow]))
        return self.backend_in(service, entries[bucket]), options

    def multipath_syn(self, flow, segment, options):
        """The key, zeros for none, and the token of a SYN."""
        option = only([option for option in options if option[0] == 30 and (len(option) < 3 or option[2] >> 4 < 2)
                       and not (len(option) > 2 and option[2] >> 4 == 0 and option[2] & 15 > 1)], 30)
        if option is None:
            return bytes(8), None
        if len(option) > 2 and option[2] >> 4 == 1:
            demand_length(option, 12)
            return bytes(8), int.from_bytes(option[4:8], "big")
        demand_length(option, {0: 12, 1: 4}[option[2] & 15] if len(option) > 2 else 0)
        version = option[2] & 15
        layout = layout_of(flow) + bytes([version, 0]) + segment[4:8] + (option[4:12] if version == 0 else bytes(8))
        key = cbc_mac(self.multipath_key, layout)[:8]
        return key, int.from_bytes((hashlib.sha256 if version else hashlib.sha1)(key).digest()[:4], "big")

    def by_connection_id(self, flow, inner):
        """The address of the backend that a QUIC packet's connection id names; None: it names none that keeps
        connections. Encrypted ones of 16 bytes only."""
        service = next((service for service in self.by_address.get(flow[1], []) if "quicLb" in service), None)
        if service is None or flow[2] != "UDP":
            return None
        packet = IP(inner) if inner[0] >> 4 == 4 else IPv6(inner)
        payload = bytes(packet[UDP].payload)
        if not payload:
            return None
        bytes_of = payload[6:6 + payload[5]] if payload[0] & 0x80 and len(payload) > 5 else payload[1:]
        if payload[0] & 0x80 and len(payload) < 6 + payload[5] or not bytes_of:
            return None
        config = next((c for c in service["quicLb"]["configs"] if c.get("id", 0) == bytes_of[0] >> 5), None)
        body = bytes_of[1:][:config["serverIdBytes"] + config["nonceBytes"]] if config else b""
        if not config or len(body) < config["serverIdBytes"] + config["nonceBytes"]:
            return None
        if config.get("encrypted"):
            body = aes128_inverse(self.connection_id_keys[config.get("id", 0)], body)
        server = body[:config["serverIdBytes"]].hex()
        named = [s["backend"] for s in service["quicLb"]["servers"] if s["serverId"].startswith(server)]
        return self.address_of[named[0]] if named else None

    def backend_in(self, service, index):
        return self.address_of[service["bucketMap"]["backends"][index]]

    def route_option(self, service, bucket):
        """What packets of a bucket carry: docs/formats.md."""
        moves = service["bucketMap"].get("moves", [])
        others = next((move["others"] for move in moves if move.get("bucket", 0) == bucket), None)
        if others is None:
            return b""
        generation = int(service["bucketMap"]["generation"]) & 0xFFFFFFFF
        return route_option([self.backend_in(service, other) for other in others], bucket, generation)

    def by_tables(self, flow):
        """The backend's address that a service's Maglev table has for a flow, and the route option of a packet of an
        unknown connection: of the backends that earlier tables have, if the service has a second chance. None: there
        is no such service."""
        service = next((service for service in self.by_address.get(flow[1], []) if service.get("secondChance")), None)
        if service is None:
            return None
        group = next(group for group in self.groups if group["name"] == service["group"])
        weights = {member["backend"]: member["weight"] for member in group["members"]
                   if member["state"] == "BACKEND_STATE_ACTIVE"}
        slot = slot_of(self.key, layout_of(flow), service["tableSize"])
        tables = [tuple(sorted(weights.items()))]
        for table in group["earlier"]:
            for differs in table["differences"]:
                weights.pop(differs["backend"], None)
                if weight := differs.get("weight"):
                    weights[differs["backend"]] = weight
            tables.append(tuple(sorted(weights.items())))
        present, *earlier = (maglev_entries(service["tableSize"], table)[slot] for table in tables)
        known = {member["backend"] for member in group["members"]}
        others = [name for name in dict.fromkeys(earlier) if name != present and name in known]
        option = route_option([self.address_of[name] for name in others[:3]], 0xFFFF, 0) if others else b""
        return self.address_of[present], option

    def common(self, address, key, default):
        """What all services of an address agree on; those of prefix groups have the defaults."""
        values = {service.get(key, default) for service in self.by_address.get(address, [])} or {default}
        if len(values) > 1:
            raise Wrong(f"services on {address} differ in {key}: this checker cannot distinguish them")
        return values.pop()


def layout_of(flow):
    """What is hashed of a flow: docs/formats.md."""
    source, to, protocol, source_port, destination_port = flow
    source, to = ipaddress.ip_address(source), ipaddress.ip_address(to)
    layout = bytes([source.version, {"TCP": 6, "UDP": 17}[protocol]]) + source.packed + to.packed
    return layout + source_port.to_bytes(2, "big") + destination_port.to_bytes(2, "big")


def cbc_mac(key, layout):
    layout += bytes(-len(layout) % 16)
    state = bytes(16)
    for at in range(0, len(layout), 16):
        state = aes128(key, bytes(a ^ b for a, b in zip(state, layout[at:at + 16])))
    return state


def slot_of(key, layout, slots):
    return int.from_bytes(cbc_mac(key, layout)[:4], "big") * slots >> 32


def tcp_options(segment):
    """RFC 9293, section 3.1; ValueError where one ends behind the header or has no length."""
    options, rest = [], segment[20:(segment[12] >> 4) * 4]
    while rest and rest[0] != 0:
        if rest[0] == 1:
            rest = rest[1:]
            continue
        if len(rest) < 2 or not 2 <= rest[1] <= len(rest):
            raise ValueError
        options.append(rest[:rest[1]])
        rest = rest[rest[1]:]
    return options


def only(options, kind):
    """The one of that kind, if there is one."""
    found = [option for option in options if option[0] == kind]
    if len(found) > 1:
        raise ValueError
    return found[0] if found else None


def demand_length(option, length):
    if len(option) != length:
        raise ValueError


def multipath_option(key, bucket, address):
    body = key + bucket.to_bytes(2, "big") + bytes([(address.version == 6) << 7, 0]) + address.packed
    return b"\xff\x47\x82" + bytes([len(body) // 4]) + body


def route_option(addresses, bucket, generation):
    is_v6 = any(address.version == 6 for address in addresses)
    packed = b"".join(bytes(10) + b"\xff\xff" + address.packed if is_v6 and address.version == 4 else address.packed
                      for address in addresses)
    body = bytes([is_v6 << 7 | len(addresses), 4]) + bucket.to_bytes(2, "big") + generation.to_bytes(4, "big") + packed
    return b"\xff\x47\x81" + bytes([len(body) // 4]) + body


def network(frame):
    """The IP packet in a frame, by its own length."""
    packet = Ether(frame).payload
    size = packet.len if isinstance(packet, IP) else packet.plen + 40
    return bytes(packet.original)[:size]


def header_checksum_is_right(packet):
    again = packet.copy()
    del again.chksum
    return IP(bytes(again)).chksum == packet.chksum


def a_hop_before(packet):
    """What the packet was before its TTL or hop limit was lowered."""
    if packet[0] >> 4 == 6:
        return packet[:7] + bytes([packet[7] + 1]) + packet[8:]
    before = IP(packet)
    demand("the checksum is right", header_checksum_is_right(before), True)
    before.ttl += 1
    del before.chksum
    return bytes(before)


def check_outer(outer, plan, targets):
    wanted_source = ipaddress.ip_address(outer.src)
    if not any(wanted_source in net for net in plan.sources if net.version == wanted_source.version):
        raise Wrong(f"outer source {outer.src} is not this machine's")
    if ipaddress.ip_address(outer.dst) not in targets:
        raise Wrong(f"outer destination {outer.dst} is none of {', '.join(map(str, targets))}")
    if isinstance(outer, IP):
        demand("outer length", outer.len, len(outer.original))
        demand("outer header length", outer.ihl, 5)
        demand("outer checksum is right", header_checksum_is_right(outer), True)
        demand("outer flags, offset, identification, TTL", (str(outer.flags), outer.frag, outer.id, outer.ttl),
               ("DF", 0, plan.outer_id(outer.dst), 64))
    else:
        demand("outer payload length", outer.plen, len(outer.original) - 40)
        demand("outer hop limit", outer.hlim, 64)


def unwrap(outer, plan, recursion=0):
    """The encapsulation's name, what distinguishes flows, the inner packet's bytes, and Geneve's options."""
    six = isinstance(outer, IPv6)
    protocol, after = (outer.nh, outer.original[40:]) if six else (outer.proto, outer.original[20:])
    label = outer.fl if six else None
    if protocol == 47:
        gre = GRE(after[:4])
        demand("GRE's recursion control, other flags and version", after[:2], bytes([recursion, 0]))
        return "ENCAP_GRE", label, inner_of(gre.proto, after[4:]), b""
    if protocol in (4, 41):
        return "ENCAP_IPIP", label, inner_of({4: 0x0800, 41: 0x86DD}[protocol], after), b""
    demand("outer protocol", protocol, 17)
    udp = UDP(after[:8])
    demand("UDP length", udp.len, len(after))
    check_udp_checksum(outer, udp, after, plan)
    if udp.sport < 0xC000:
        raise Wrong(f"UDP source port {udp.sport} is not in the dynamic range")
    if udp.dport == GUE_PORT:
        demand("GUE's version, extensions, flags", (after[8], after[10:12]), (0, b"\0\0"))
        return "ENCAP_GUE", (label, udp.sport), inner_of({4: 0x0800, 41: 0x86DD}[after[9]], after[12:]), b""
    demand("UDP port", udp.dport, GENEVE_PORT)
    end = 16 + (after[8] & 0x3F) * 4
    demand("Geneve's version, flags, network, reserved", (after[8] >> 6, after[9], after[12:16]),
           (0, 0x40 if end > 16 else 0, bytes(4)))
    inner = inner_of(int.from_bytes(after[10:12], "big"), after[end:])
    return "ENCAP_GENEVE", (label, udp.sport), inner, after[16:end]


def check_udp_checksum(outer, udp, datagram, plan):
    if isinstance(outer, IP) or not plan.udp6_checksum:
        return demand("outer UDP checksum", udp.chksum, 0)
    again = IPv6(src=outer.src, dst=outer.dst) / UDP(sport=udp.sport, dport=udp.dport) / Raw(datagram[8:])
    demand("outer UDP checksum", udp.chksum, IPv6(bytes(again))[UDP].chksum)


def inner_of(ether_type, data):
    version = {0x0800: 4, 0x86DD: 6}.get(ether_type)
    demand("version of the inner packet", data[0] >> 4 if data else None, version)
    return data


def traffic_class(data):
    return data[1] if data[0] >> 4 == 4 else int.from_bytes(data[:2], "big") >> 4 & 0xFF


def destination(data):
    return str(ipaddress.ip_address(data[16:20] if data[0] >> 4 == 4 else data[24:40]))


def five_tuple(data):
    """Addresses, protocol and ports as scapy sees them."""
    packet = IP(data) if data[0] >> 4 == 4 else IPv6(data)
    for layer in (TCP, UDP):
        if layer in packet and ICMP not in packet:
            return packet.src, packet.dst, layer.__name__, packet[layer].sport, packet[layer].dport
    return None


#: How many further encapsulations a client's packet is permitted.
FRESH = 7


def tunnelled(packet, plan):
    """The packet inside, and of its tunnel, if it came in one to this machine: whether it met congestion, and how
    many further encapsulations it permits (RFC 1701; seven where it says nothing)."""
    outer = IP(packet) if packet[0] >> 4 == 4 else IPv6(packet)
    own = ipaddress.ip_address(outer.dst) in plan.machine
    protocol, after = (outer.proto, packet[outer.ihl * 4:]) if isinstance(outer, IP) else (outer.nh, packet[40:])
    port = int.from_bytes(after[2:4], "big") if protocol == 17 and own else None
    gre_bytes = 4 + sum(4 * (flags & 0xB0).bit_count() for flags in after[:1])
    skipped = {47: gre_bytes, 4: 0, 41: 0}.get(protocol, {GUE_PORT: 12, GENEVE_PORT: 16}.get(port))
    if not plan.takes_tunnels or skipped is None:
        return packet, False, FRESH
    return network(bytes(Ether(type=0x0800 if after[skipped] >> 4 == 4 else 0x86DD)) + after[skipped:]), \
        traffic_class(packet) & 3 == 3, (after[0] & 7 if protocol == 47 else 0) or FRESH


def datagram_of(packet):
    """What the fragments of one datagram have in common; None for a whole one."""
    if packet[0] >> 4 == 4:
        fragment = IP(packet)
        return (fragment.src, fragment.dst, fragment.proto, fragment.id) if fragment.frag or fragment.flags.MF else None
    header = IPv6(packet).getlayer(IPv6ExtHdrFragment)
    return (packet[8:40], header.id) if header and (header.offset or header.m) else None


def is_later(packet):
    if packet[0] >> 4 == 4:
        return IP(packet).frag > 0
    return IPv6(packet)[IPv6ExtHdrFragment].offset > 0


def may_not_be_fragmented(packet):
    return packet[0] >> 4 == 6 or packet[6] & 0x40


def is_icmp_error(packet):
    kinds = {4: (1, (3, 11, 12)), 6: (58, (1, 2, 3, 4))}[packet[0] >> 4]
    protocol, after = (packet[9], packet[(packet[0] & 15) * 4:]) if packet[0] >> 4 == 4 else (packet[6], packet[40:])
    return protocol == kinds[0] and after[0] in kinds[1]


class Folder:
    def __init__(self, path):
        self.plan = Plan(path / "plan.json")
        packets = rdpcap(str(path / "in.pcap")) if has_packets(path / "in.pcap") else []
        self.inputs, self.times = [bytes(p) for p in packets], [float(p.time) for p in packets]
        self.outputs = [bytes(p) for p in rdpcap(str(path / "out.pcap"))] if has_packets(path / "out.pcap") else []
        journeys = json.loads((path / "journeys.json").read_text()) if (path / "journeys.json").exists() else []
        self.tables = [journey["table"] for journey in journeys]
        self.verdicts = [line.split()[1] for line in (path / "frames.txt").read_text().splitlines()[1:]]
        self.verdicts = [journeys[at]["verdict"] if verdict == "-" else verdict
                         for at, verdict in enumerate(self.verdicts)]
        self.entropy = {}
        #: By flow, the backend that an entry must have, of services with a second chance.
        self.entries = {}
        #: By datagram, the fragments that wait, and where its fragments were redirected to.
        self.waiting, self.in_charge = {}, {}
        self.taken = 0
        #: By output frame, the input frame that it came from.
        self.came_from = {}
        #: By output frame, the route option that it carries.
        self.options = {}

    def take(self):
        if self.taken == len(self.outputs):
            raise Wrong("out.pcap has no frame for it")
        self.taken += 1
        self.came_from[self.taken] = self.current
        return self.outputs[self.taken - 1]

    def check(self):
        for number, (frame, verdict) in enumerate(zip(self.inputs, self.verdicts, strict=True), 1):
            self.current = number
            try:
                self.check_one(frame, verdict)
            except Wrong as wrong:
                yield f"frame {number}: out.pcap's frame {self.taken}: {wrong}"
        if self.taken < len(self.outputs):
            yield f"out.pcap has {len(self.outputs)} frames, of which only {self.taken} come of those received"

    def check_one(self, frame, verdict):
        if verdict not in ("sent", "replied", "redirected", "held"):
            return
        packet, self.congested, self.permitted = tunnelled(network(frame), self.plan)
        datagram = datagram_of(packet)
        if verdict == "replied":
            return self.check_replied(packet, self.take())
        if verdict == "held":
            return self.waiting.setdefault(datagram, []).append((self.times[self.current - 1], packet))
        if verdict == "redirected":
            return self.check_redirected(packet, datagram)
        self.check_sent(packet)
        if datagram and not is_later(packet):
            now = self.times[self.current - 1]
            for piece in (piece for since, piece in self.waiting.pop(datagram, []) if now - since <= WAIT_SECONDS):
                self.check_whole_or_pieces(piece, lambda: self.decapsulate(self.take()))
        if is_icmp_error(packet) and self.tables and self.tables[self.current - 1] == "miss":
            for _ in range(self.plan.peer_count):
                demand("a copy", self.to_balancer(self.take(), self.plan.peers, 1)[0], packet)

    def check_sent(self, packet):
        self.check_whole_or_pieces(packet, lambda: self.decapsulate(self.take()))

    def check_whole_or_pieces(self, packet, take):
        inner = take()
        if inner[0] >> 4 == 4 and not may_not_be_fragmented(packet) and len(inner) < len(packet):
            return self.check_pieces(packet, inner, take)
        if inner != packet:
            at = next((i for i, (a, b) in enumerate(zip(inner, packet)) if a != b), min(len(inner), len(packet)))
            raise Wrong(f"the inner packet of {len(inner)} bytes is not the received one of {len(packet)}: offset {at}")

    def check_redirected(self, packet, datagram):
        """A fragment goes to the peer in charge of its three-tuple, anything else to the same suffix elsewhere."""
        if datagram is None:
            demand("spilled once only", self.permitted > 2, True)
            to = ipaddress.ip_address(destination(packet))
            there = [net[int(to) & int(net.hostmask)] for net in self.plan.spills if net.version == to.version]
            return demand("what is spilled", self.to_balancer(self.take(), there, 2)[0], packet)
        hosts = (datagram[0], datagram[1]) if packet[0] >> 4 == 4 else datagram[0]
        demand("redirected once only", self.permitted in (1, 3), False)
        recursion = 1 if self.permitted == 2 else 3

        def take():
            inner, peer = self.to_balancer(self.take(), self.plan.peers, recursion)
            demand("the machine in charge", self.in_charge.setdefault(hosts, peer), peer)
            return inner

        self.check_whole_or_pieces(packet, take)

    def to_balancer(self, frame, targets, recursion):
        link = Ether(frame)
        demand("Ethernet addresses", (link.src, link.dst), (OUR_MAC, NEXT_HOP_MAC))
        check_outer(link.payload, self.plan, targets)
        encap, _, inner, _ = unwrap(link.payload, self.plan, recursion)
        demand("encapsulation towards load balancers", encap, "ENCAP_GRE")
        return inner, link.payload.dst

    def check_pieces(self, packet, first, take):
        """RFC 791: put together again, the pieces are the packet, which may be a fragment itself."""
        payload, piece, whole = b"", first, IP(packet)
        header = (packet[0] & 15) * 4
        while True:
            here = IP(piece)
            demand("a piece's checksum is right", header_checksum_is_right(here), True)
            demand("a piece's length", here.len, len(piece))
            demand("a piece's offset", (here.frag - whole.frag) * 8, len(payload))
            demand("a piece's identification", here.id, whole.id)
            demand("a piece's addresses", piece[12:20], packet[12:20])
            payload += piece[here.ihl * 4:]
            if len(payload) >= len(packet) - header:
                break
            demand("more pieces follow", bool(here.flags.MF), True)
            piece = take()
        demand("more fragments follow", here.flags.MF, whole.flags.MF)
        demand("the pieces' payload", payload, packet[header:])
        demand("the first piece's options", first[20:header], packet[20:header])

    def decapsulate(self, frame):
        link = Ether(frame)
        demand("Ethernet addresses", (link.src, link.dst), (OUR_MAC, NEXT_HOP_MAC))
        outer = link.payload
        if self.plan.common(destination(network(frame)), "encap", "ENCAP_GRE") == "ENCAP_L2":
            demand("Ethernet's payload ends with the packet", len(frame), 14 + len(network(frame)))
            return a_hop_before(network(frame))
        check_outer(outer, self.plan, self.plan.backends)
        encap, entropy, inner, options = unwrap(outer, self.plan)
        to = destination(inner)
        demand("encapsulation", encap, self.plan.common(to, "encap", "ENCAP_GRE"))
        self.check_traffic_class(traffic_class(outer.original), traffic_class(inner), to)
        if flow := None if datagram_of(inner) else five_tuple(inner):
            demand("flow label, source port, source", (entropy, outer.src),
                   self.entropy.setdefault((flow, outer.dst), (entropy, outer.src)))
            if named := self.plan.by_connection_id(flow, inner):
                demand("the backend that the connection id names", (ipaddress.ip_address(outer.dst), options), (named, b""))
            elif by_bucket := self.plan.by_multipath(flow, inner) or self.plan.by_bucket(flow):
                demand("backend and option", (ipaddress.ip_address(outer.dst), options), by_bucket)
            elif by_tables := self.plan.by_tables(flow):
                self.check_second_chance(flow, inner, (ipaddress.ip_address(outer.dst), options), by_tables)
        if options:
            self.options[self.taken] = options
        return inner

    def check_second_chance(self, flow, inner, found, by_tables):
        """Only data of unknown TCP connections names others, and leaves no entry behind."""
        packet = IP(inner) if inner[0] >> 4 == 4 else IPv6(inner)
        is_data = flow[2] == "TCP" and "S" not in packet[TCP].flags
        backend, option = self.entries.get(flow), b""
        if backend is None:
            backend, option = by_tables if is_data else (by_tables[0], b"")
            if not option:
                self.entries[flow] = backend
        demand("backend and option", found, (backend, option))

    def check_traffic_class(self, outer, inner, to):
        demand("outer ECN", outer & 3, 3 if self.congested else inner & 3)
        demand("outer DSCP", outer >> 2, self.plan.common(to, "dscp", inner >> 2))

    def check_replied(self, packet, frame):
        link = Ether(frame)
        demand("Ethernet addresses", (link.src, link.dst), (OUR_MAC, NEXT_HOP_MAC))
        request = IP(packet) if packet[0] >> 4 == 4 else IPv6(packet)
        reply = link.payload
        demand("the answer's addresses", (reply.src, reply.dst), (request.dst, request.src))
        if isinstance(reply, IP):
            demand("the answer's length", reply.len, len(reply.original))
            demand("the answer's checksum is right", header_checksum_is_right(reply), True)
        else:
            demand("the answer's length", reply.plen, len(reply.original) - 40)
        self.check_icmp(reply, request, packet)

    def check_icmp(self, reply, request, packet):
        if ICMP in reply and reply[ICMP].type == 0:
            return demand("what is echoed", bytes(reply[ICMP])[4:], bytes(request[ICMP])[4:])
        if ICMPv6EchoReply in reply:
            return demand("what is echoed", bytes(reply[ICMPv6EchoReply])[4:], bytes(request[ICMPv6EchoRequest])[4:])
        if ICMP in reply:
            demand("ICMP type and code", (reply[ICMP].type, reply[ICMP].code), (3, 4))
            quoted, mtu, size = reply.original[28:], reply[ICMP].nexthopmtu, 576
        else:
            demand("ICMPv6 message", ICMPv6PacketTooBig in reply, True)
            quoted, mtu, size = reply.original[48:], reply[ICMPv6PacketTooBig].mtu, 1280
        if not len(reply.original) <= size or len(quoted) < min(len(packet), size - 100):
            raise Wrong(f"an error of {len(reply.original)} bytes, at most {size} or as many as the packet has")
        demand("what is quoted", quoted, packet[:len(quoted)])
        if mtu >= len(packet):
            raise Wrong(f"a packet of {len(packet)} bytes is not too big for {mtu}")


def has_packets(path):
    return path.stat().st_size > 24


#: Only headers are judged: no application protocols, no sequence numbers, nothing put together over packets. A zero
#: checksum of tunnels over UDP and IPv6 is RFC 6935's.
PREFERENCES = {"tcp.analyze_sequence_numbers": False, "ip.check_checksum": True, "udp.check_checksum": True,
               "udp.ignore_ipv6_zero_checksum": True, "ip.defragment": False, "ipv6.defragment": False,
               "tcp.desegment_tcp_streams": False}
APPLICATIONS = ("dns", "http", "tls", "data-text-lines")
WARNING = 0x600000


#: From 4.4 on it loads no script for root, as whom a user namespace does not count.
TSHARK = ["unshare", "--user", "tshark"] if os.geteuid() == 0 else ["tshark"]


def complaints(path):
    """What tshark says about each frame, beyond notes: by frame number."""
    command = [*TSHARK, "-n", "-r", str(path), "-X", f"lua_script:{HERE / 'gue.lua'}", "-T", "fields",
               "-e", "frame.number", "-e", "_ws.expert.message", "-e", "_ws.malformed",
               "-Y", f"_ws.malformed || _ws.expert.severity >= {WARNING}"]
    for name, value in PREFERENCES.items():
        command += ["-o", f"{name}:{str(value).upper()}"]
    for name in APPLICATIONS:
        command += ["--disable-protocol", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = re.sub(r" \[should be 0x[0-9a-f]+\]", "", done.stdout)
    rows = (line.split("\t") for line in text.splitlines())
    return {int(number): set(filter(None, [*messages.split(","), malformed])) for number, messages, malformed in rows}


def dissected(path):
    """The options that Guideway's dissector shows: by frame number, as bytes once more."""
    fields = (("class", "type"),
              ("ipv6_addresses", "returns", "count", "hop_limit", "bucket", "generation", "ipv4", "ipv6"),
              ("key", "bucket", "ipv6_address", "ipv4", "ipv6"))
    script = HERE.parents[2] / "packaging/wireshark/guideway.lua"
    command = [*TSHARK, "-n", "-r", str(path), "-X", f"lua_script:{script}", "-T", "fields", "-e", "frame.number"]
    for kind, names in zip(("option", "route", "multipath"), fields):
        command += [word for name in names for word in ("-e", f"guideway.{kind}.{name}")]
    done = subprocess.run(command + ["-Y", "guideway"], capture_output=True, text=True, check=True)
    rows = (row.split("\t") for row in done.stdout.splitlines())
    return {int(number): as_options(*values) for number, *values in rows}


def as_options(classes, kinds, *values):
    route, multipath = values[:8], values[8:]
    shown = {"0x81": lambda klass: as_route(klass, *route), "0x82": lambda klass: as_multipath(klass, *multipath)}
    return b"".join(shown[kind](klass) for klass, kind in zip(classes.split(","), kinds.split(",")))


def as_multipath(klass, key, bucket, is_v6, ipv4, ipv6):
    address = ipaddress.ip_address(ipv4 or ipv6)
    demand("the dissector's flag of IPv6", is_v6 in ("1", "True"), address.version == 6)
    demand("the dissector's class", klass, "0xff47")
    return multipath_option(int(key, 16).to_bytes(8, "big"), int(bucket), address)


def as_route(klass, is_v6, returns, count, hop_limit, bucket, generation, ipv4, ipv6):
    packed = b"".join(ipaddress.ip_address(text).packed for text in (ipv4 + ipv6).split(",") if text)
    truth = {"0": 0, "1": 1, "False": 0, "True": 1}
    body = bytes([truth[is_v6] << 7 | truth[returns] << 6 | int(count), int(hop_limit)])
    body += int(bucket).to_bytes(2, "big") + int(generation).to_bytes(4, "big") + packed
    return int(klass, 16).to_bytes(2, "big") + bytes([0x81, len(body) // 4]) + body


def check_by_tshark(folders):
    """What tshark complains about in an output but not in the input that it came from. One run for all outputs: they
    are classic captures of one kind, so their records can stand in one file."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as all_outputs:
        outputs = [(folder / "out.pcap").read_bytes() for folder in folders]
        all_outputs.write(outputs[0][:24] + b"".join(output[24:] for output in outputs))
        all_outputs.flush()
        found, shown = complaints(all_outputs.name), dissected(all_outputs.name)
    before = 0
    for folder, checked in folders.items():
        mine = {number - before: messages for number, messages in found.items()
                if before < number <= before + len(checked.outputs)}
        options = {number - before: option for number, option in shown.items()
                   if before < number <= before + len(checked.outputs)}
        if options != checked.options:
            yield f"{folder.name}: the dissector shows route options {options}, scapy finds {checked.options}"
        about_inputs = complaints(folder / "in.pcap") if mine else {}
        for number, messages in mine.items():
            if fresh := messages - about_inputs.get(checked.came_from.get(number), set()):
                yield f"{folder.name}: out.pcap's frame {number}: tshark: {', '.join(sorted(fresh))}"
        before += len(checked.outputs)


def main(names):
    folders = sorted(path.parent for path in HERE.glob("*/config.yaml"))
    if names:
        folders = [folder for folder in folders if folder.name in names]
    if not folders:
        sys.exit("no golden folder to check")
    checked = {folder: Folder(folder) for folder in folders}
    problems = [f"{folder.name}: {problem}" for folder, check in checked.items() for problem in check.check()]
    problems += check_by_tshark(checked)
    frames = sum(check.taken for check in checked.values())
    print("\n".join(problems + [f"{len(folders)} folders, {frames} frames decoded"]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main([Path(name).name for name in sys.argv[1:]])
