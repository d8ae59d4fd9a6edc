"""Match (docs/journey.md), the plain way: every Vip is tried against every packet.

A Vip is (service, target, protocol, ports): the target an address, or (group, suffix, bits); the protocol tcp, udp or
any; ports a list of ranges, empty for all.
"""

import ipaddress
import random

GROUPS = {
    "wide": ["203.0.112.0/20", "198.51.100.0/24", "2001:db8:a::/48"],
    "narrow": ["203.0.113.0/24", "2001:db8:a:1::/64"],
    "narrowest": ["203.0.113.128/25"],
}

VIPS = [
    ("exact-port", "203.0.113.10", "tcp", [(80, 80), (8000, 8100)]),
    ("exact-all", "203.0.113.10", "tcp", []),
    ("exact-any", "203.0.113.11", "any", []),
    ("exact-both", "203.0.113.12", "any", [(53, 53)]),
    ("exact-udp", "203.0.113.10", "udp", [(53, 53)]),
    ("exact-outside", "192.0.2.200", "tcp", [(80, 80)]),
    ("exact-six", "2001:db8:a:1::10", "tcp", [(80, 80)]),
    ("suffix-full", ("narrow", "0.0.0.10", 0), "udp", [(443, 443)]),
    ("suffix-full", ("narrow", "::10", 0), "udp", [(443, 443)]),
    ("suffix-four", ("narrow", "0.0.0.10", 4), "udp", [(443, 443), (444, 500)]),
    ("suffix-four-any", ("narrow", "0.0.0.10", 4), "any", []),
    ("suffix-six-short", ("narrow", "::10", 8), "tcp", []),
    ("wide-full", ("wide", "0.0.0.20", 8), "tcp", [(80, 80)]),
    ("wide-low", ("wide", "0.0.0.4", 4), "tcp", [(80, 80)]),
    ("wide-six", ("wide", "::20", 16), "any", []),
    ("narrowest", ("narrowest", "0.0.0.1", 0), "tcp", [(80, 80)]),
]


def steps(packet):
    """The places at which a packet looks, in order: each is a test of a Vip's target."""
    address = ipaddress.ip_address(packet["destination"])
    yield lambda target: isinstance(target, str) and ipaddress.ip_address(target) == address
    fitting = [(ipaddress.ip_network(prefix), group) for group, prefixes in GROUPS.items() for prefix in prefixes
               if ipaddress.ip_network(prefix).version == address.version and address in ipaddress.ip_network(prefix)]
    if not fitting:
        return
    longest, group = max(fitting, key=lambda pair: pair[0].prefixlen)
    host = longest.max_prefixlen - longest.prefixlen
    for bits in range(host, 0, -1):
        def fits(target, bits=bits):
            if isinstance(target, str) or target[0] != group:
                return False
            suffix = ipaddress.ip_address(target[1])
            return (suffix.version == address.version and (target[2] or host) == bits
                    and int(address) & (1 << bits) - 1 == int(suffix))
        yield fits


def find(packet):
    """The service, or "drop" (a VIP's address that no service matches), or "pass" (no VIP's address)."""
    known = False
    for fits in steps(packet):
        here = [(service, protocol, ports) for service, target, protocol, ports in VIPS if fits(target)]
        known |= bool(here)
        for rank in (with_port, with_protocol, with_anything):
            for service, protocol, ports in here:
                if rank(protocol, ports, packet):
                    return service
    return "drop" if known else "pass"


def with_port(protocol, ports, packet):
    """A range without a protocol stands for TCP and for UDP."""
    speaks = packet["protocol"] == protocol or protocol == "any" and packet["protocol"] in ("tcp", "udp")
    return speaks and any(first <= packet["port"] <= last for first, last in ports)


def with_protocol(protocol, ports, packet):
    return protocol == packet["protocol"] and not ports


def with_anything(protocol, ports, packet):
    return protocol == "any" and not ports


#: What each is there to show; the answers are written by hand and find() must agree.
CHOSEN = [
    ("exact address, port", "203.0.113.10", "tcp", 80, "exact-port"),
    ("exact address, first port of a range", "203.0.113.10", "tcp", 8000, "exact-port"),
    ("exact address, last port of a range", "203.0.113.10", "tcp", 8100, "exact-port"),
    ("port beyond the range: all ports of the protocol", "203.0.113.10", "tcp", 8101, "exact-all"),
    ("the other protocol has its own ports", "203.0.113.10", "udp", 53, "exact-udp"),
    ("exact address has no such port: the class's full suffix", "203.0.113.10", "udp", 443, "suffix-full"),
    ("full suffix has no such port: the shorter suffix", "203.0.113.10", "udp", 444, "suffix-four"),
    ("neither has: any protocol of the shorter suffix", "203.0.113.10", "udp", 80, "suffix-four-any"),
    ("a protocol without ports", "203.0.113.10", "esp", 0, "suffix-four-any"),
    ("only the low four bits agree", "203.0.113.26", "udp", 443, "suffix-four"),
    ("any protocol on an exact address", "203.0.113.11", "esp", 0, "exact-any"),
    ("ports without a protocol: TCP", "203.0.113.12", "tcp", 53, "exact-both"),
    ("ports without a protocol: UDP", "203.0.113.12", "udp", 53, "exact-both"),
    ("ports without a protocol: nothing else", "203.0.113.12", "esp", 0, "drop"),
    ("an exact address outside all prefixes", "192.0.2.200", "tcp", 80, "exact-outside"),
    ("its other ports", "192.0.2.200", "tcp", 81, "drop"),
    ("the wider prefix where no longer one fits", "203.0.115.20", "tcp", 80, "wide-full"),
    ("the same group's other prefix", "198.51.100.20", "tcp", 80, "wide-full"),
    ("eight bits do not agree, four do", "203.0.115.36", "tcp", 80, "wide-low"),
    ("never a shorter prefix than the longest", "203.0.113.20", "tcp", 80, "pass"),
    ("the longest of three", "203.0.113.129", "tcp", 80, "narrowest"),
    ("in the longest, but no suffix of it", "203.0.113.138", "udp", 443, "pass"),
    ("a suffix of the longest, another port", "203.0.113.129", "tcp", 81, "drop"),
    ("IPv6, exact", "2001:db8:a:1::10", "tcp", 80, "exact-six"),
    ("IPv6, full suffix", "2001:db8:a:1::10", "udp", 443, "suffix-full"),
    ("IPv6, shorter suffix", "2001:db8:a:1::ff10", "tcp", 80, "suffix-six-short"),
    ("IPv6, wider prefix", "2001:db8:a:2::20", "udp", 1, "wide-six"),
    ("IPv6, no prefix", "2001:db8:b::20", "udp", 1, "pass"),
    ("IPv4's numbers in IPv6", "::cb00:710a", "tcp", 80, "pass"),
    ("no prefix", "198.18.0.1", "tcp", 80, "pass"),
]


def packet(destination, protocol, port):
    return {"destination": destination, "protocol": protocol, "port": port}


def chance():
    """Packets near the borders of everything above."""
    chosen = random.Random(2016)
    addresses = [f"203.0.{third}.{fourth}" for third in (111, 112, 113, 115, 127, 128)
                 for fourth in (4, 10, 11, 12, 20, 26, 36, 129, 138, 148)]
    addresses += [f"198.51.100.{fourth}" for fourth in (4, 20, 36)]
    addresses += [f"2001:db8:a:{subnet}::{end}" for subnet in (1, 2) for end in ("10", "20", "ff10", "1:20")]
    for _ in range(400):
        protocol = chosen.choice(["tcp", "udp", "esp"])
        port = 0 if protocol == "esp" else chosen.choice([53, 80, 443, 444, 500, 501, 7999, 8000, 8100, 8101])
        yield packet(chosen.choice(addresses), protocol, port)


def vip_message(target, protocol, ports):
    message = {"address": target} if isinstance(target, str) else {
        "prefixSuffix": {"prefixGroup": target[0], "suffix": target[1], "suffixBits": target[2]}}
    message["protocol"] = f"PROTOCOL_{protocol.upper()}"
    return message | {"ports": [{"first": first, "last": last} for first, last in ports]}


def vectors():
    services = {}
    for service, target, protocol, ports in VIPS:
        services.setdefault(service, []).append(vip_message(target, protocol, ports))
    packets = []
    for why, *fields, wanted in CHOSEN:
        assert find(packet(*fields)) == wanted, (why, find(packet(*fields)))
        packets.append(packet(*fields) | {"found": wanted, "why": why})
    packets += [one | {"found": find(one)} for one in chance()]
    return {"plan": {"prefixGroups": [{"name": name, "prefixes": prefixes} for name, prefixes in GROUPS.items()],
                     "services": [{"name": name, "vips": vips} for name, vips in services.items()]},
            "packets": packets}
