"""Packets of the golden folders, built by scapy: nothing here shares code with Guideway."""

import struct

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

CLIENT_MAC, OUR_MAC = "02:00:00:00:00:c1", "02:00:00:00:00:01"
CLIENT, CLIENT6 = "192.0.2.7", "2001:db8:c::7"
VIP, VIP6 = "203.0.113.10", "2001:db8:f::10"


def ether(**fields):
    return Ether(**{"src": CLIENT_MAC, "dst": OUR_MAC, **fields})


def ip(source=None, to=VIP, **fields):
    """The IP header of the destination's family."""
    if ":" in to:
        return IPv6(src=source or CLIENT6, dst=to, **fields)
    return IP(src=source or CLIENT, dst=to, **fields)


def tcp(port=80, flags="S", client_port=40000, payload=b"", link=None, **header):
    return bytes((link or ether()) / ip(**header) / TCP(sport=client_port, dport=port, flags=flags) / Raw(payload))


def tcp_with(options, port=443, flags="S", client_port=40000, payload=b"", seq=0, link=None, **header):
    """With these option bytes, as they are: padded with zeros to a multiple of four."""
    options = bytes(options) + bytes(-len(options) % 4)
    segment = TCP(sport=client_port, dport=port, flags=flags, seq=seq, dataofs=5 + len(options) // 4)
    return bytes((link or ether()) / ip(**header) / segment / Raw(options + payload))


def udp(port=53, client_port=50000, payload=b"question", link=None, **header):
    return bytes((link or ether()) / ip(**header) / UDP(sport=client_port, dport=port) / Raw(payload))


def echo(to=VIP):
    message = ICMPv6EchoRequest(id=7, seq=1, data=b"ping") if ":" in to else ICMP(id=7, seq=1) / Raw(b"ping")
    return bytes(ether() / ip(to=to) / message)


def icmp_error(quoted, type=3, code=4, **header):
    """What a router on the way to the client says about a packet from the VIP."""
    return bytes(ether() / IP(src="198.51.100.1", dst=VIP, **header) / ICMP(type=type, code=code) / Raw(bytes(quoted)))


# What scapy would not send: bytes changed by hand. An Ethernet header has 14
# bytes, so the IP header begins at 14.

def change(frame, at, new):
    return frame[:at] + bytes(new) + frame[at + len(new):]


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def seal(frame):
    """With the IPv4 header's checksum made right again."""
    end = min(14 + (frame[14] & 15) * 4, len(frame))
    frame = change(frame, 24, [0, 0])
    return change(frame, 24, struct.pack("!H", checksum(frame[14:end])))


def lie4(frame, at, new):
    """An IPv4 frame with bytes changed and a right header checksum."""
    return seal(change(frame, at, new))


def options4(frame, options):
    """An IPv4 frame with these option bytes, padded to a multiple of four by the caller."""
    frame = frame[:34] + bytes(options) + frame[34:]
    frame = change(frame, 14, [0x45 + len(options) // 4])
    return seal(change(frame, 16, struct.pack("!H", len(frame) - 14)))


def extension6(frame, number, body):
    """An IPv6 frame with an extension header in front; its first byte becomes the next header."""
    body = bytes([frame[20]]) + bytes(body)
    frame = frame[:54] + body + frame[54:]
    frame = change(frame, 20, [number])
    return change(frame, 18, struct.pack("!H", len(frame) - 54))


HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION = 0, 43, 44, 51, 60
#: Length 0 (eight bytes), one PadN option of six bytes; the next header is put in front.
PAD = [0, 1, 4, 0, 0, 0, 0]


def fragment6(frame, offset, more, number=0x1234):
    return extension6(frame, FRAGMENT, [0, *struct.pack("!HI", offset | more, number)])
