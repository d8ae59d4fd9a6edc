"""What the golden folders are about: a function makes the frames of the folder that bears its name."""

from scapy.layers.inet6 import (ICMPv6DestUnreach, ICMPv6ND_NS, ICMPv6PacketTooBig, ICMPv6ParamProblem,
                                ICMPv6TimeExceeded)

from packets import *
from vectors import connection_id, connection_id_key, server_id

_all = {}


def scenario(function):
    _all[function.__name__.replace("_", "-")] = function
    return function


def all_of_them():
    return _all


@scenario
def the_smallest_config_forwards_tcp_over_ipv4(c):
    c.journeys = True
    syn = c.add("sent", "SYN to port 80", tcp(), table="miss", service="web")
    c.add("sent", "SYN to port 443", tcp(443, client_port=40001), table="miss", service="web")
    c.wait(150)
    c.add("sent", "its ACK", tcp(flags="A"), table="hit", like=syn)
    c.add("sent", "its data", tcp(flags="PA", payload=b"GET / HTTP/1.1\r\n\r\n"), table="hit", like=syn)
    c.add("no_service", "port 22 is not served", tcp(22))
    c.add("no_service", "UDP is not served", udp(80))
    c.add("passed", "another address", tcp(to="203.0.113.11"))
    c.add("sent", "the Ethernet destination is not looked at", tcp(flags="A", link=ether(dst="02:00:00:00:00:77")),
          table="hit", like=syn)


@scenario
def nothing_comes_in_and_nothing_goes_out(c):
    pass


@scenario
def either_family_travels_inside_either(c):
    for to, what in (("203.0.113.44", "4 in 4"), ("203.0.113.46", "4 in 6"),
                     ("2001:db8:f::64", "6 in 4"), ("2001:db8:f::66", "6 in 6")):
        outer = "four" if to.endswith("4") else "six"
        c.add("sent", f"TCP, {what}", tcp(to=to, payload=b"hello"), service=outer)
        c.add("sent", f"UDP, {what}", udp(to=to), service=outer)
        c.add("sent", f"TCP without payload, {what}", tcp(to=to, flags="A", client_port=41000), service=outer)
        c.add("sent", f"UDP with 1,400 bytes, {what}", udp(to=to, payload=b"x" * 1400), service=outer)


@scenario
def shares_of_new_connections_follow_weights(c):
    """400 in the same few milliseconds: several full batches."""
    for client in range(400):
        c.add("sent", f"flow {client}", tcp(client_port=20000 + 7 * client, source=f"192.0.2.{client % 250}"),
              table="miss")


@scenario
def ports_and_protocol_decide_the_service(c):
    for port, service in ((80, "web"), (8000, "range"), (8050, "range"), (8100, "range"), (8101, "rest"),
                          (7999, "rest"), (443, "web"), (1, "rest"), (65535, "rest")):
        c.add("sent", f"TCP port {port}", tcp(port), service=service)
    c.add("sent", "UDP port 53: TCP's ranges are not UDP's", udp(53), service="dns")
    c.add("sent", "UDP port 80: any protocol", udp(80), service="rest")
    c.add("sent", "UDP port 8443: given without a protocol", udp(8443), service="both")
    c.add("sent", "TCP port 8443: given without a protocol", tcp(8443), service="both")
    for protocol, what in ((50, "ESP"), (132, "SCTP"), (47, "GRE"), (4, "IPv4 in IPv4"), (41, "IPv6 in IPv4"),
                           (255, "protocol 255")):
        body = b"\x00\x50\x00\x50" + bytes(16)
        c.add("sent", f"{what} has no ports", ether() / ip(proto=protocol) / Raw(body), service="rest")
    c.add("sent", "IPv6: no next header", ether() / ip(to=VIP6, nh=59), service="rest")
    c.add("no_service", "an address with one port only: another port", tcp(81, to="203.0.113.20"))
    c.add("no_service", "an address with one port only: ESP",
          ether() / ip(to="203.0.113.20", proto=50) / Raw(bytes(8)))


@scenario
def the_longest_prefix_and_then_the_longest_suffix_win(c):
    c.add("sent", "the exact address comes first", tcp(80), service="exact")
    c.add("sent", "the exact address has no 443: on to its prefix", tcp(443), service="full-suffix")
    c.add("sent", "the same suffix in another prefix", tcp(443, to="198.51.100.10"), service="full-suffix")
    c.add("sent", "full suffix without port 80: the four low bits", tcp(80, to="198.51.100.10"), service="low-bits")
    c.add("sent", "only the four low bits agree", tcp(80, to="198.51.100.26"), service="low-bits")
    c.add("sent", "a suffix in IPv6", tcp(443, to="2001:db8:a::10"), service="full-suffix")
    c.add("sent", "the longer prefix has a service of its own", tcp(80, to="203.0.113.129"), service="half")
    c.add("passed", "never a shorter prefix than the longest that fits", tcp(80, to="203.0.113.138"))
    c.add("no_service", "suffix of the longer prefix, other port", tcp(443, to="203.0.113.129"))
    c.add("no_service", "the address is known, UDP is not served", udp(53, to="198.51.100.26"))
    c.add("passed", "a prefix, but no suffix", tcp(80, to="198.51.100.11"))
    c.add("passed", "no prefix", tcp(80, to="198.51.101.10"))
    c.add("passed", "the suffix's bits beyond the prefix's host part", tcp(443, to="2001:db8:a:0:1::10"))


@scenario
def unmatched_packets_pass_where_a_service_says_so(c):
    c.add("sent", "served", tcp(80, to="203.0.113.1"), service="passing")
    c.add("passed", "not served, the service passes", tcp(81, to="203.0.113.1"))
    c.add("passed", "not served, one of two services passes", udp(9, to="203.0.113.2"))
    c.add("no_service", "not served, the service drops", tcp(81, to="203.0.113.3"))


@scenario
def ethernet_padding_is_cut_off(c):
    for to in (VIP, VIP6):
        short = tcp(to=to, flags="A")
        c.add("sent", "as built", short)
        c.add("sent", "padded to 60 bytes with zeros", short.ljust(60, b"\0"))
        c.add("sent", "padded with the remains of another packet", short + b"remains of another packet")
        c.add("sent", "padded to the longest frame", short.ljust(1792, b"\xee"))
        c.add("sent", "UDP with padding", udp(80, to=to, payload=b"") + bytes(18))


@scenario
def frames_that_are_not_untagged_ip_are_passed(c):
    from scapy.layers.l2 import ARP, Dot1AD, Dot1Q
    c.add("passed", "ARP request for the VIP", ether(dst="ff:ff:ff:ff:ff:ff") / ARP(psrc=CLIENT, pdst=VIP))
    c.add("passed", "one VLAN tag", tcp(link=ether() / Dot1Q(vlan=7)))
    c.add("passed", "two VLAN tags", tcp(link=ether() / Dot1AD(vlan=7) / Dot1Q(vlan=8)))
    c.add("passed", "priority tag", tcp(link=ether() / Dot1Q(vlan=0, prio=3)))
    c.add("passed", "a VLAN tag over a broken packet", change(tcp(link=ether() / Dot1Q(vlan=7)), 18, [0x40]))
    lldp = ether(dst="01:80:c2:00:00:0e", type=0x88CC)
    c.add("passed", "LLDP", lldp / Raw(bytes.fromhex("0207040200000000c10403023031060200780000")))
    c.add("passed", "IEEE 802.3 with LLC (spanning tree)",
          bytes.fromhex("0180c2000000" "0200000000c1" "0026" "424203") + bytes(35))
    c.add("passed", "MPLS", ether(type=0x8847) / Raw(bytes.fromhex("00010140") + tcp()[14:]))
    c.add("passed", "an Ethernet header and nothing else", ether(type=0x0842))
    c.add("passed", "IPv4 to an address that is no VIP", tcp(to="203.0.113.99"))
    c.add("passed", "a fragment to an address that is no VIP", tcp(to="203.0.113.99", flags="S")[:14] + lie4(
        tcp(to="203.0.113.99"), 20, [0x20, 0])[14:])
    c.add("passed", "echo request to an address that is no VIP", echo("203.0.113.99"))
    c.add("passed", "IPv6 to an address that is no VIP", tcp(to="2001:db8:f::99"))
    c.add("passed", "IPv4 multicast (OSPF)", ether(dst="01:00:5e:00:00:05") / ip(to="224.0.0.5", proto=89) / Raw(bytes(24)))


@scenario
def malformed_headers_are_dropped_by_name(c):
    four, six, dgram, dgram6 = tcp(), tcp(to=VIP6), udp(80), udp(80, to=VIP6)

    c.add("ethernet_header", "no bytes at all", b"")
    c.add("ethernet_header", "13 bytes", four[:13])
    c.add("truncated", "the capture cut a good packet", four[:40], wire_bytes=len(four))
    c.add("truncated", "the capture cut off padding only: it cannot be known", four, wire_bytes=60)
    c.add("truncated", "the capture kept nothing", b"", wire_bytes=len(four))
    c.add("frame_too_long", "1,793 bytes, one more than a chunk holds", four.ljust(1793, b"\0"))
    c.add("frame_too_long", "a 9,000-byte jumbo frame", tcp(payload=bytes(8946)))

    c.add("ip_version", "version 6 behind IPv4's type", lie4(four, 14, [0x65]))
    c.add("ip_version", "version 0 behind IPv4's type", lie4(four, 14, [0x05]))
    c.add("ip_version", "version 4 behind IPv6's type", change(six, 14, [0x40]))
    c.add("ip_version", "IPv4 packet behind IPv6's type", change(tcp(payload=bytes(40)), 12, [0x86, 0xDD]))
    c.add("ip_header", "an IPv4 type and nothing behind", four[:14])
    c.add("ip_header", "an IPv6 type and nothing behind", six[:14])
    c.add("ip_header", "cut inside the IPv4 header", four[:33])
    c.add("ip_header", "cut inside the IPv6 header", six[:53])
    c.add("ip_header", "header length 16", lie4(four, 14, [0x44]))
    c.add("ip_header", "header length 0", lie4(four, 14, [0x40]))
    c.add("ip_header", "header length 60 in a frame that ends before", lie4(four, 14, [0x4F]))
    c.add("ip_length", "total length 0", lie4(four, 16, [0, 0]))
    c.add("ip_length", "total length 19, less than the header", lie4(four, 16, [0, 19]))
    c.add("ip_length", "total length one more than the frame has", lie4(four, 16, [0, 41]))
    c.add("ip_length", "total length 65535", lie4(four, 16, [0xFF, 0xFF]))
    c.add("ip_length", "payload length one more than the frame has", change(six, 18, [0, 21]))
    c.add("ip_length", "payload length 65535", change(six, 18, [0xFF, 0xFF]))
    c.add("ip_length", "the frame was cut behind the header", four[:34])
    c.add("ip_checksum", "one too much", change(four, 25, [(four[25] + 1) & 255]))
    c.add("ip_checksum", "zero", change(four, 24, [0, 0]))
    c.add("ip_checksum", "a TTL changed by a router that forgot the sum", change(four, 22, [63]))
    c.add("ip_checksum", "also to an address that is no VIP", change(tcp(to="203.0.113.99"), 24, [0, 0]))

    for options, what in (([0x94, 0, 0, 0], "length 0"), ([0x94, 1, 0, 0], "length 1"),
                          ([0x94, 5, 0, 0], "length beyond the header"), ([1, 1, 1, 0x94], "no room for its length"),
                          ([0x83, 3, 4, 0x44], "the second without its length"),
                          ([7, 39, 4] + [0] * 9, "record route beyond the header")):
        c.add("ip_options", f"option: {what}", options4(four, options))

    c.add("ip_extension", "longer than the packet", extension6(dgram6, DESTINATION, [200, 1, 4, 0, 0, 0, 0]))
    c.add("ip_extension", "an option longer than its header", extension6(dgram6, DESTINATION, [0, 1, 5, 0, 0, 0, 0]))
    c.add("ip_extension", "an option without its length", extension6(dgram6, HOP_BY_HOP, [0, 0, 0, 0, 0, 0, 5]))
    c.add("ip_extension", "hop-by-hop options that do not come first",
          extension6(extension6(dgram6, HOP_BY_HOP, PAD), DESTINATION, PAD))
    c.add("ip_extension", "hop-by-hop options twice", extension6(extension6(dgram6, HOP_BY_HOP, PAD), HOP_BY_HOP, PAD))
    c.add("ip_extension", "two fragment headers", fragment6(fragment6(dgram6, 0, 0), 0, 0))
    c.add("ip_extension", "a routing header and nothing behind", change(change(six[:54], 20, [ROUTING]), 18, [0, 0]))
    c.add("ip_extension", "a fragment header of four bytes", change(change(six[:58], 20, [FRAGMENT]), 18, [0, 4]))
    c.add("ip_extension", "a jumbogram's length of zero (RFC 2675)",
          change(extension6(dgram6, HOP_BY_HOP, [0, 0xC2, 4, 0, 1, 0, 0]), 18, [0, 0]))
    c.add("ip_extension", "an authentication header longer than the packet",
          extension6(dgram6, AUTHENTICATION, [255] + [0] * 14))

    c.add("transport_header", "TCP of 19 bytes", lie4(four[:53], 16, [0, 39]))
    c.add("transport_header", "TCP of no bytes", lie4(four[:34], 16, [0, 20]))
    c.add("transport_header", "TCP of 19 bytes over IPv6", change(six[:73], 18, [0, 19]))
    c.add("transport_header", "TCP of 40 bytes, of which the IP length has 10 (the rest is padding)",
          lie4(four.ljust(74, b"\0"), 16, [0, 30]))
    c.add("transport_header", "TCP data offset 16", change(four, 46, [0x40]))
    c.add("transport_header", "TCP data offset 0 over IPv6", change(six, 66, [0]))
    c.add("transport_header", "TCP data offset beyond the packet", change(four, 46, [0x60]))
    c.add("transport_header", "UDP of 7 bytes", lie4(dgram[:41], 16, [0, 27]))
    c.add("transport_header", "UDP length 7", change(dgram, 38, [0, 7]))
    c.add("transport_header", "UDP length 0", change(dgram, 38, [0, 0]))
    c.add("transport_header", "UDP length 0 over IPv6 (a jumbogram's)", change(dgram6, 58, [0, 0]))
    c.add("transport_header", "UDP length beyond the packet", change(dgram, 38, [0, 17]))
    c.add("transport_header", "UDP length beyond the packet over IPv6", change(dgram6, 58, [0, 17]))

    c.add("sent", "a wrong TCP checksum is the receiver's affair", change(four, 50, [0xBA, 0xD0]))
    c.add("sent", "no UDP checksum", change(dgram, 40, [0, 0]))
    c.add("sent", "a UDP length shorter than the packet", change(dgram, 38, [0, 9]))
    c.add("sent", "TTL 0: not ours to judge", lie4(four, 22, [0]))
    c.add("sent", "the reserved flag, RFC 3514's evil bit", lie4(four, 20, [0x80, 0]))
    c.add("sent", "every TCP flag at once", change(four, 47, [0xFF]))


@scenario
def options_and_extension_headers_are_forwarded(c):
    for options, what in (([0x94, 4, 0, 0], "router alert"), ([1, 1, 1, 1], "four times no operation"),
                          ([0, 0xFF, 0xFF, 0xFF], "end of options, then anything"),
                          ([1, 0x94, 4, 0, 0, 0, 0, 0], "router alert, not aligned"),
                          ([7, 39, 4] + [0] * 37, "record route, the longest header"),
                          ([0x83, 7, 4, 192, 0, 2, 1, 0], "loose source route"),
                          ([0x44, 12, 5, 0] + [0] * 8, "time stamps")):
        c.add("sent", f"IPv4: {what}", options4(tcp(payload=b"data"), options), service="web")
    c.add("sent", "IPv4 with options and padding", options4(tcp(), [1, 1, 1, 0]) + bytes(6), service="web")

    wrap = extension6
    inner = udp(80, to=VIP6)
    for frame, what in (
            (wrap(inner, HOP_BY_HOP, PAD), "hop-by-hop options"),
            (wrap(inner, HOP_BY_HOP, [0, 5, 2, 0, 0, 1, 0]), "router alert and padding"),
            (wrap(inner, DESTINATION, [1] + [1, 12] + [0] * 12), "destination options of 16 bytes"),
            (wrap(inner, DESTINATION, [0, 0, 0, 0, 0, 0, 0]), "six times one byte of padding"),
            (wrap(inner, ROUTING, [0, 4, 0, 0, 0, 0, 0]), "routing, no segments left"),
            (wrap(inner, ROUTING, [2, 4, 1, 0, 0, 0, 0] + [0x20] * 16), "segment routing"),
            (wrap(inner, AUTHENTICATION, [4, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1] + [7] * 12), "authentication, in fours"),
            (wrap(inner, 135, [0, 0, 0, 0, 0, 0, 0]), "mobility"),
            (wrap(inner, 139, [0, 0, 0, 0, 0, 0, 0]), "host identity"),
            (wrap(inner, 140, [0, 0, 0, 0, 0, 0, 0]), "shim6"),
            (wrap(wrap(wrap(wrap(inner, DESTINATION, PAD), ROUTING, [0, 4, 0, 0, 0, 0, 0]), DESTINATION, PAD),
                  HOP_BY_HOP, PAD), "four in RFC 8200's order")):
        c.add("sent", f"IPv6: {what}", frame, service="web")
    c.add("sent", "TCP behind hop-by-hop options", wrap(tcp(to=VIP6, payload=b"x"), HOP_BY_HOP, PAD), service="web")
    plain = c.add("sent", "a flow without them", inner)
    c.add("sent", "the same flow with them has the same backend", wrap(inner, DESTINATION, PAD), like=plain)


@scenario
def atomic_fragments_are_whole_packets(c):
    """RFC 6946: a fragment header with offset 0 and nothing to follow."""
    plain = c.add("sent", "without the header", udp(80, to=VIP6), service="web")
    c.add("sent", "with it", fragment6(udp(80, to=VIP6), 0, 0), service="web", like=plain)
    c.add("sent", "behind hop-by-hop options", extension6(fragment6(udp(80, to=VIP6), 0, 0), HOP_BY_HOP, PAD),
          service="web", like=plain)
    c.add("sent", "TCP", fragment6(tcp(to=VIP6), 0, 0), service="web")
    c.add("sent", "reserved bits set", change(fragment6(tcp(to=VIP6), 0, 0), 55, [0xFF, 0, 0x06]), service="web")
    c.add("transport_header", "too short for its transport header",
          change(fragment6(udp(80, to=VIP6), 0, 0)[:69], 18, [0, 15]))
    c.add("sent", "IPv4 with an identification", lie4(tcp(), 18, [0x12, 0x34]), service="web")


@scenario
def fragments_are_dropped_where_no_service_takes_them(c):
    big = udp(80, payload=b"x" * 1480)
    big6 = udp(80, to=VIP6, payload=b"x" * 1400)
    c.add("fragment", "IPv4, first", lie4(big, 20, [0x20, 0]))
    c.add("fragment", "IPv4, middle", lie4(big, 20, [0x20, 0xB9]))
    c.add("fragment", "IPv4, last", lie4(big, 20, [0x00, 0xB9]))
    c.add("fragment", "IPv4, last, of eight bytes: too short for a TCP header", lie4(
        change(tcp()[:42], 16, [0, 28]), 20, [0x00, 0x03]))
    c.add("fragment", "IPv4, not to be fragmented but a fragment", lie4(big, 20, [0x40, 0xB9]))
    c.add("fragment", "IPv4, to a port that no service matches", lie4(udp(9), 20, [0x20, 0]))
    c.add("fragment", "IPv6, first", fragment6(big6, 0, 1))
    c.add("fragment", "IPv6, middle", fragment6(big6, 1400, 1))
    c.add("fragment", "IPv6, last", fragment6(big6, 2800, 0))
    c.add("fragment", "IPv6, behind hop-by-hop options", extension6(fragment6(big6, 1400, 1), HOP_BY_HOP, PAD))
    c.add("transport_header", "first, TCP header cut: RFC 1858's tiny fragment", lie4(
        change(tcp()[:50], 16, [0, 36]), 20, [0x20, 0]))
    c.add("passed", "to an address that is no VIP", lie4(udp(80, to="203.0.113.99"), 20, [0x20, 0]))


@scenario
def a_draining_backend_takes_no_new_connections(c):
    for flow in range(60):
        c.add("sent", f"flow {flow}", tcp(client_port=30000 + flow), table="miss")


@scenario
def without_a_backend_that_takes_connections_packets_are_dropped(c):
    c.add("no_backend", "SYN", tcp(), table="miss", service="drained")
    c.add("no_backend", "SYN again", tcp(), table="miss", service="drained")
    c.add("no_backend", "in the middle of a connection", tcp(flags="A"), table="miss", service="drained")
    c.add("no_backend", "UDP", udp(80), table="miss", service="drained")
    c.add("no_backend", "IPv6", tcp(to=VIP6), table="miss", service="drained")
    c.add("no_service", "the address is still a VIP", tcp(22))


@scenario
def with_client_affinity_all_connections_of_a_client_share_a_backend(c):
    for client in range(1, 21):
        source = f"192.0.2.{client}"
        first = c.add("sent", f"client {client}", tcp(source=source), table="miss")
        for port in range(40001, 40004):
            c.add("sent", "another connection", tcp(source=source, client_port=port), table="miss", like=first)
        c.add("sent", "another port of the service", tcp(443, source=source), table="miss", like=first)
        c.add("sent", "another VIP of the service", tcp(source=source, to="203.0.113.11"), table="miss", like=first)
    for client in range(1, 6):
        source = f"2001:db8:c::{client}"
        first = c.add("sent", f"client {client} over IPv6", tcp(source=source, to=VIP6), table="miss")
        c.add("sent", "another connection", tcp(source=source, to=VIP6, client_port=7), table="miss", like=first)


@scenario
def dscp_and_ecn_are_copied_to_the_outer_header(c):
    """RFC 6040's normal mode: the outer ECN field is the inner one's, whatever it is."""
    for dscp in (0, 10, 46, 63):
        for ecn in range(4):
            c.add("sent", f"IPv4 in IPv4, DSCP {dscp} ECN {ecn}", tcp(tos=dscp << 2 | ecn))
            c.add("sent", f"IPv6 in IPv4, DSCP {dscp} ECN {ecn}", tcp(to=VIP6, tc=dscp << 2 | ecn))
            c.add("sent", f"IPv4 in IPv6, DSCP {dscp} ECN {ecn}", tcp(to="203.0.113.66", tos=dscp << 2 | ecn))
            c.add("sent", f"IPv6 in IPv6, DSCP {dscp} ECN {ecn}", tcp(to="2001:db8:f::66", tc=dscp << 2 | ecn))


@scenario
def a_dscp_that_is_set_leaves_ecn_alone(c):
    for dscp in (0, 10, 63):
        for ecn in range(4):
            c.add("sent", f"DSCP {dscp} ECN {ecn}, set to 46", tcp(tos=dscp << 2 | ecn), service="expedited")
            c.add("sent", f"DSCP {dscp} ECN {ecn}, set to 46, IPv6", tcp(to=VIP6, tc=dscp << 2 | ecn),
                  service="expedited")
            c.add("sent", f"DSCP {dscp} ECN {ecn}, set to 0", tcp(to="203.0.113.20", tos=dscp << 2 | ecn),
                  service="cleared")


@scenario
def packets_too_big_for_the_path_are_answered_or_fragmented(c):
    """`tunnel.mtu` is 1500: GRE adds 24 bytes over IPv4, 44 over IPv6."""
    def data(size, to, link=None, **header):
        return bytes((link or ether()) / ip(to=to, **header) / TCP(sport=40000, dport=80, flags="PA") / Raw(b"x" * size))

    for to, overhead, what in ((VIP, 24, "4 in 4"), (VIP6, 24, "6 in 4"),
                               ("203.0.113.66", 44, "4 in 6"), ("2001:db8:f::66", 44, "6 in 6")):
        ip_tcp = 60 if ":" in to else 40
        fits = 1500 - overhead - ip_tcp
        df = {} if ":" in to else {"flags": "DF"}
        c.add("sent", f"{what}: fits exactly", data(fits, to, **df))
        c.add("replied", f"{what}: one byte more", data(fits + 1, to, **df))
        c.add("replied", f"{what}: 1500 bytes, the usual packet", data(1500 - ip_tcp, to, **df))
        c.add("sent", f"{what}: fits; padding does not count", data(fits, to, **df) + bytes(40))
        if df:
            c.add("sent", f"{what}: one byte more, may be fragmented", data(fits + 1, to, id=7))
            c.add("sent", f"{what}: 1500 bytes, may be fragmented", data(1500 - ip_tcp, to, id=8))
            c.add("sent", f"{what}: with options, of which only some are copied",
                  options4(data(1440, to, id=9), [0x83, 7, 4, 192, 0, 2, 1, 7, 7, 4, 0, 0, 0, 0, 0, 0]))
    for source in ("255.255.255.255", "0.0.0.0", "224.0.0.9", "127.0.0.1"):
        c.add("too_big", f"no answer to {source}", data(1460, VIP, source=source, flags="DF"))
    for source in ("::", "ff02::1", "::1"):
        c.add("too_big", f"no answer to {source}", data(1440, VIP6, source=source))
    quote = bytes(IPv6(src=VIP6, dst=CLIENT6) / TCP(sport=80, dport=40000) / Raw(b"x" * 1392))
    error = bytes(ether() / IPv6(src="2001:db8:ffff::1", dst=VIP6) / ICMPv6PacketTooBig(mtu=1400) / Raw(quote))
    c.add("too_big", "an ICMPv6 error of 1500 bytes: neither answered nor fragmented", error)
    c.add("sent", "an ICMP error of 1500 bytes may be fragmented", icmp_error(
        IP(src=VIP, dst=CLIENT) / TCP(sport=80, dport=40000) / Raw(b"x" * 1432), id=3))


@scenario
def a_full_batch_has_the_fate_of_its_packets_alone(c):
    """--egress-mtu 576. Whatever a batch has to originate, and whatever order its packets come in, it gives the same
    bytes as batches of one (the runner compares)."""
    c.journeys = True
    for flow in range(64):
        c.add("sent", f"flow {flow}: may be fragmented, three pieces",
              tcp(flags="A", client_port=30000 + flow, payload=b"x" * 1460, id=flow))
    c.wait(1)
    error = icmp_error(IP(src=VIP, dst=CLIENT) / TCP(sport=80, dport=40001))
    c.add("sent", "an ICMP error about a connection that no table knows: a copy to the peer", error)
    c.add("sent", "only then the connection's first packet", tcp(flags="A", client_port=40001))
    c.add("sent", "the error again: now a table knows, and no copy is needed", error)
    sources = [f"192.0.2.{client}" for client in range(1, 21)]
    for source in sources:
        first, middle, last = pieces(udp(80, source=source, payload=bytes(1200)), 480, number=400)
        c.add("-", f"{source}: the last fragment comes first", last)
        c.add("sent", "a whole packet", tcp(flags="A", client_port=31000, payload=b"x" * 1460))
        c.add("-", "middle", middle)
        c.add("-", "first", first)
    c.wait(1)
    for source in sources:
        c.add("-", f"{source}: 1400 bytes, the last piece of which ends where datagrams do", lie4(
            udp(80, source=source, payload=bytes(1392), id=400), 20, (8_016).to_bytes(2, "big")))
        c.add("too_big", "1400 bytes at the last offset: further pieces would overlap what came before", lie4(
            udp(80, source=source, payload=bytes(1392), id=400), 20, (8_191).to_bytes(2, "big")))


@scenario
def icmp_to_a_vip_is_answered_forwarded_or_dropped(c):
    c.journeys = True
    c.add("replied", "echo request", echo(), table="none")
    c.add("replied", "echo request over IPv6", echo(VIP6), table="none")
    c.add("replied", "echo request with padding", echo() + bytes(10))
    c.add("replied", "echo request with options", options4(echo(), [0x94, 4, 0, 0]))
    c.add("replied", "echo request behind hop-by-hop options", extension6(echo(VIP6), HOP_BY_HOP, PAD))
    c.add("replied", "a wrong checksum stays wrong", change(echo(), 36, [0xBA, 0xD0]))
    c.add("passed", "echo request to an address that is no VIP", echo("203.0.113.99"))
    c.add("fragment", "a fragment of an echo request", lie4(echo(), 20, [0x20, 0]))
    c.add("transport_header", "seven bytes of an echo request", lie4(echo()[:41], 16, [0, 27]))
    c.add("icmp", "an echo reply: the VIP never asks", bytes(ether() / ip() / ICMP(type=0, id=1) / Raw(b"pong")))
    c.add("icmp", "a timestamp request", bytes(ether() / ip() / ICMP(type=13, ts_ori=1, ts_rx=2, ts_tx=3)))
    c.add("icmp", "a redirect", bytes(ether() / ip() / ICMP(type=5, code=1) / IP(src=VIP, dst=CLIENT) / UDP()))
    c.add("icmp", "source quench (RFC 6633)", bytes(ether() / ip() / ICMP(type=4) / IP(src=VIP, dst=CLIENT) / UDP()))
    c.add("icmp", "a neighbour solicitation", bytes(ether() / ip(to=VIP6) / ICMPv6ND_NS(tgt=VIP6)))

    flow = c.add("sent", "a connection", tcp(flags="A"), table="miss")
    flow6 = c.add("sent", "a connection over IPv6", tcp(to=VIP6, flags="A"), table="miss")
    c.wait(1)
    ours = IP(src=VIP, dst=CLIENT) / TCP(sport=80, dport=40000) / Raw(b"data")
    ours6 = IPv6(src=VIP6, dst=CLIENT6) / TCP(sport=80, dport=40000) / Raw(b"data")
    c.add("sent", "fragmentation needed: to the connection's backend", icmp_error(ours), table="hit", like=flow)
    c.add("sent", "quoting 8 bytes of TCP only", icmp_error(bytes(ours)[:28]), table="hit", like=flow)
    c.add("sent", "port unreachable", icmp_error(ours, code=3), table="hit", like=flow)
    c.add("sent", "time exceeded", icmp_error(ours, type=11, code=0), table="hit", like=flow)
    c.add("sent", "parameter problem", icmp_error(ours, type=12, code=0), table="hit", like=flow)
    for error, what in ((ICMPv6PacketTooBig(mtu=1280), "packet too big"), (ICMPv6DestUnreach(code=4), "unreachable"),
                        (ICMPv6TimeExceeded(), "time exceeded"), (ICMPv6ParamProblem(), "parameter problem")):
        c.add("sent", f"{what} over IPv6", bytes(ether() / IPv6(src="2001:db8:ffff::1", dst=VIP6) / error / ours6),
              table="hit", like=flow6)
    other = icmp_error(IP(src=VIP, dst=CLIENT) / TCP(sport=80, dport=40001))
    untracked = c.add("sent", "about a connection that is not tracked: by hash", other, table="miss")
    c.wait(1)
    c.add("sent", "that connection", tcp(flags="A", client_port=40001), table="miss", like=untracked)
    c.add("icmp", "quoting another source: forged, or not ours", icmp_error(IP(src="203.0.113.99", dst=CLIENT) / TCP()))
    c.add("icmp", "quoting a port that no service has", icmp_error(IP(src=VIP, dst=CLIENT) / TCP(sport=81)))
    c.add("icmp", "quoting another VIP than the one it is sent to", icmp_error(
        IP(src="203.0.113.20", dst=CLIENT) / TCP(sport=80)))
    c.add("icmp", "quoting three bytes of TCP", icmp_error(bytes(ours)[:23]))
    c.add("icmp", "quoting half a header", icmp_error(bytes(ours)[:11]))
    c.add("icmp", "quoting nothing", icmp_error(b""))
    c.add("icmp", "quoting a later fragment", icmp_error(IP(src=VIP, dst=CLIENT, frag=100) / Raw(bytes(ours)[20:])))
    c.add("icmp", "quoting a header of 12 bytes", icmp_error(change(bytes(ours), 0, [0x43])))
    c.add("icmp", "quoting our answer to an echo", icmp_error(IP(src=VIP, dst=CLIENT) / ICMP(type=0)))


def every_combination(c):
    for to, what in (("203.0.113.44", "4 in 4"), ("203.0.113.46", "4 in 6"),
                     ("2001:db8:f::64", "6 in 4"), ("2001:db8:f::66", "6 in 6")):
        mark = {"tc": 46 << 2 | 1} if ":" in to else {"tos": 46 << 2 | 1}
        first = c.add("sent", f"TCP, {what}", tcp(to=to, payload=b"hello"))
        c.add("sent", f"the same flow: the same outer source port or label, {what}", tcp(to=to, flags="A"), like=first)
        c.add("sent", f"UDP of odd length, DSCP 46, ECT(1), {what}", udp(to=to, payload=b"odd", **mark))
        c.add("sent", f"padding is cut off, {what}", tcp(to=to, flags="A", client_port=3) + bytes(20))
        c.add("sent", f"1,400 bytes, {what}", udp(to=to, payload=b"x" * 1400))
        for flow in range(4):
            c.add("sent", f"another flow, {what}", tcp(to=to, client_port=50000 + flow))


@scenario
def ipip_carries_either_family_in_either(c):
    every_combination(c)


@scenario
def without_a_tunnel_packets_are_addressed_to_their_backend(c):
    every_combination(c)
    for to in ("203.0.113.44", "2001:db8:f::64"):
        hops = {"hlim": 1} if ":" in to else {"ttl": 1}
        c.add("hop_limit", "its last hop was this one", udp(to=to, **hops))


@scenario
def gue_carries_either_family_in_either(c):
    every_combination(c)


@scenario
def geneve_carries_either_family_in_either(c):
    every_combination(c)


@scenario
def the_outer_udp_checksum_over_ipv6_is_computed_if_wanted(c):
    every_combination(c)


@scenario
def outer_sources_are_drawn_from_the_tunnels_prefix(c):
    every_combination(c)


def pieces(packet, size, number=77):
    """The fragments of a frame, of at most `size` bytes of payload each (RFC 791, RFC 8200 section 4.5)."""
    payload = packet[34:] if packet[14] >> 4 == 4 else packet[54:]
    for at in range(0, len(payload), size):
        part, more = payload[at:at + size], at + size < len(payload)
        if packet[14] >> 4 == 4:
            piece = change(packet[:34], 16, (20 + len(part)).to_bytes(2, "big"))
            piece = change(piece, 18, number.to_bytes(2, "big"))
            yield seal(change(piece, 20, (more << 13 | at // 8).to_bytes(2, "big")) + part)
        else:
            piece = change(packet[:54], 18, len(part).to_bytes(2, "big")) + part
            yield fragment6(piece, at, more, number)


@scenario
def fragments_follow_their_datagrams_first_one(c):
    c.journeys = True
    for to, family in ((VIP, "IPv4"), (VIP6, "IPv6")):
        for flow in range(3):
            whole = udp(80, to=to, client_port=7000 + flow, payload=bytes(range(200)) * 2)
            first, middle, last = pieces(whole, 160, number=100 + flow)
            like = c.add("sent", f"{family}, datagram {flow}, first", first, service="web")
            c.add("sent", "middle", middle, service="web", like=like)
            c.add("sent", "last", last, service="web", like=like)
            c.add("sent", "the flow's whole datagrams go there too", udp(80, to=to, client_port=7000 + flow), like=like)
        whole = udp(80, to=to, client_port=7100, payload=bytes(400))
        first, middle, last = pieces(whole, 160, number=200)
        c.add("held", f"{family}, last comes first: it waits", last)
        c.add("held", "middle waits too", middle)
        like = c.add("sent", "first: both follow it", first, service="web")
        c.add("sent", "middle again", middle, service="web", like=like)
        c.wait(12_000)
        c.add("held", "after twelve seconds the first one is forgotten", last)
        c.wait(1_500)
        c.add("sent", "the first once more: nothing waited that long", first, service="web", like=like)
    c.add("no_service", "the first fragment to a port that is not served", next(pieces(udp(9, payload=bytes(400)), 160)))
    c.add("held", "a later fragment of it: its port is not known", list(pieces(udp(9, payload=bytes(400)), 160))[2])
    c.add("passed", "to an address that is no VIP", next(pieces(udp(80, to="203.0.113.99", payload=bytes(400)), 160)))
    c.add("fragment", "an ICMP fragment", lie4(echo(), 20, [0x20, 0]))


@scenario
def packets_to_a_join_port_go_to_the_backend_whose_port_it_is(c):
    """The ports of the config's 20000 and on that web-1 and web-2 have by their names, and the next one."""
    web_1, web_2, nobodys = 22121, 23866, 23867
    one, two, nine, five = "192.0.2.1", "192.0.2.2", "192.0.2.9", "192.0.2.5"
    opened = c.add("sent", "a connection is opened", tcp(443, source=one), "miss", "web")
    join = c.add("sent", "a join from the same address: only web-1 takes new connections", tcp(web_1, source=one), "none", "web", opened)
    c.add("sent", "from the client's other address", tcp(web_1, source=two), "none", "web", join)
    c.add("sent", "and its data", tcp(web_1, "A", source=two, payload=b"data"), "none", "web", join)
    c.add("sent", "and its end", tcp(web_1, "FA", source=two), "none", "web", join)
    draining = c.add("sent", "a join at a backend that drains", tcp(web_2, source=one), "none", "web", f"!{join}")
    c.add("sent", "from another address", tcp(web_2, "A", source=nine), "none", "web", draining)
    c.add("no_service", "a port that is nobody's", tcp(nobodys, source=one))
    c.add("no_service", "the same port of UDP", udp(web_1, client_port=40000, source=one, payload=b"x"))
    c.add("sent", "over IPv6", tcp(web_1, to=VIP6, source="2001:db8:c::1"), "none", "web", join)
    c.add("sent", "over IPv6", tcp(web_2, "A", to=VIP6, source="2001:db8:c::2", payload=b"data"), "none", "web", draining)
    quoted = IP(src=VIP, dst=one) / TCP(sport=web_2, dport=40000, flags="A")
    c.add("sent", "an error about a segment from a join port", icmp_error(quoted), "none", "web", draining)
    first, later = pieces(tcp(web_2, "PA", source=five, payload=b"y" * 1200), 800)
    c.add("sent", "a first fragment", first, "none", "web", draining)
    c.add("sent", "and the later one follows", later, like=draining)


@scenario
def fragments_go_to_the_machine_in_charge_of_them(c):
    """By three-tuple, over this machine and two peers: who is in charge is a hash's business, that all pieces of all
    datagrams between two hosts go one way is ours."""
    c.journeys = True
    for to, family in ((VIP, "IPv4"), (VIP6, "IPv6")):
        for client in range(1, 13):
            source = f"2001:db8:c::{client}" if ":" in to else f"192.0.2.{client}"
            for datagram in range(2):
                whole = udp(80, to=to, source=source, client_port=7000 + datagram, payload=bytes(400))
                for part, piece in enumerate(pieces(whole, 160, number=300 + datagram), 1):
                    c.add("-", f"{family}, client {client}, datagram {datagram}, piece {part}", piece)


def tunnel(inner, source="10.0.9.7", to="10.0.0.1", recursion=0, protocol=47, head=None, **header):
    """A frame wrapped in GRE, or whatever `head` and `protocol` make of it."""
    kind = b"\x86\xdd" if inner[14] >> 4 == 6 else b"\x08\x00"
    head = bytes([recursion, 0]) + kind if head is None else head
    return bytes(ether() / ip(to=to, source=source, **({"nh": protocol} if ":" in to else {"proto": protocol}), **header)
                 / Raw(head + inner[14:]))


def over_udp(inner, port, head, **header):
    return bytes(ether() / ip(to="10.0.0.1", source="10.0.9.7", **header)
                 / UDP(sport=50000, dport=port, chksum=0) / Raw(head + inner[14:]))


@scenario
def tunnelled_packets_are_taken_from_encapsulators_only(c):
    c.journeys = True
    direct = c.add("sent", "a client's own packet", tcp(), service="web")
    direct6 = c.add("sent", "a client's own packet over IPv6", tcp(to=VIP6), service="web")
    c.add("sent", "the same in GRE from an encapsulator", tunnel(tcp()), service="web", like=direct)
    c.add("sent", "IPv6 in GRE over IPv4", tunnel(tcp(to=VIP6)), service="web", like=direct6)
    c.add("sent", "GRE over IPv6", tunnel(tcp(), "2001:db8:9::7", "2001:db8:0:1::1"), service="web", like=direct)
    c.add("sent", "GRE to the VIP itself", tunnel(tcp(), to=VIP), service="web", like=direct)
    c.add("sent", "IPv4 in IPv4", tunnel(tcp(), protocol=4, head=b""), service="web", like=direct)
    c.add("sent", "IPv6 in IPv4", tunnel(tcp(to=VIP6), protocol=41, head=b""), service="web", like=direct6)
    c.add("sent", "GUE", over_udp(tcp(), 6080, b"\0\x04\0\0"), service="web", like=direct)
    c.add("sent", "Geneve", over_udp(tcp(), 6081, b"\0\0\x08\0\0\0\x01\0"), service="web", like=direct)
    c.add("sent", "Ethernet padding behind the outer packet", tunnel(tcp()) + bytes(9), service="web", like=direct)
    c.add("sent", "padding inside the outer packet", tunnel(tcp() + bytes(9)), service="web", like=direct)
    c.add("sent", "congestion met in the tunnel is told onwards", tunnel(tcp(tos=2), tos=3), service="web", like=direct)
    c.add("ce_on_not_ect", "congestion that the inner packet cannot be told of (RFC 6040)", tunnel(tcp(), tos=3))
    c.add("replied", "an echo request in a tunnel", tunnel(echo()))
    c.add("untrusted_tunnel_source", "from anybody else", tunnel(tcp(), "10.0.8.7"))
    c.add("no_service", "from a client to the VIP: its own packet", tunnel(tcp(), CLIENT, VIP))
    c.add("tunnel_header", "GRE with a checksum that is wrong", tunnel(tcp(), head=b"\x80\0\x08\0" + bytes(4)))
    c.add("sent", "GRE with a key", tunnel(tcp(), head=b"\x20\0\x08\0" + bytes(4)), service="web", like=direct)
    c.add("tunnel_header", "GRE version 1 (PPTP)", tunnel(tcp(), head=b"\0\x01\x88\x0b"))
    c.add("tunnel_header", "three bytes of GRE", bytes(ether() / ip("10.0.9.7", "10.0.0.1", proto=47) / Raw(bytes(3))))
    c.add("tunnel_header", "GRE with Ethernet inside", tunnel(tcp(), head=b"\0\0\x65\x58"))
    c.add("tunnel_header", "GUE control message", over_udp(tcp(), 6080, b"\x20\x04\0\0"))
    c.add("tunnel_header", "Geneve critical option", over_udp(tcp(), 6081, b"\x01\x40\x08\0" + bytes(8)))
    c.add("ip_checksum", "the inner header's checksum is wrong", tunnel(change(tcp(), 24, [0, 0])))
    c.add("ip_version", "IPv6's type before an IPv4 packet", tunnel(tcp(payload=bytes(40)), head=b"\0\0\x86\xdd"))
    c.add("ip_header", "nothing inside", bytes(ether() / ip("10.0.9.7", "10.0.0.1", proto=47) / Raw(b"\0\0\x08\0")))
    c.add("tunnel_fragment", "the tunnel's packet came in fragments", lie4(tunnel(tcp()), 20, [0x20, 0]))
    c.add("no_service", "inside is a packet to no VIP: not the kernel's", tunnel(tcp(to="203.0.113.99")))
    c.add("no_service", "inside is a packet to a port that is not served", tunnel(tcp(22)))
    c.add("passed", "UDP to our own address, port of no tunnel", udp(53, to="10.0.0.1", source="10.0.9.7"))


@scenario
def what_peers_send_is_permitted_less(c):
    c.journeys = True
    first, _, last = pieces(udp(80, payload=bytes(400)), 160)
    c.add("recursion", "from a peer, zero further encapsulations", tunnel(tcp(), "10.0.0.2", recursion=0))
    c.add("sent", "from a peer, one", tunnel(tcp(), "10.0.0.2", recursion=1), service="web")
    c.add("held", "a later fragment: this machine keeps it, also where a peer is the owner", tunnel(last, "10.0.0.2", recursion=1))
    like = c.add("sent", "its first one", tunnel(first, "10.0.0.2", recursion=1), service="web")
    c.add("sent", "and again", tunnel(last, "10.0.0.3", recursion=1), service="web", like=like)
    error = icmp_error(IP(src=VIP, dst=CLIENT) / TCP(sport=80, dport=40001))
    c.add("icmp_copy_redundant", "a copy of an ICMP error, of which we know no better", tunnel(error, "10.0.0.2", recursion=1))
    c.add("sent", "that error itself: a copy to each peer", error, service="web")
    c.add("no_backend", "a packet that was spilled is not spilled again", tunnel(
        tcp(to="203.0.113.20"), "10.0.0.2", recursion=1), service="spilling")
    c.add("redirected", "a client's is", tcp(to="203.0.113.20"), service="spilling")
    c.add("redirected", "a redirected one is: its cluster has no backend", tunnel(
        tcp(to="203.0.113.20"), "10.0.0.2", recursion=3), service="spilling")
    c.add("no_backend", "with two it was spilled", tunnel(
        tcp(to="203.0.113.20"), "10.0.0.2", recursion=2), service="spilling")
    for client in range(1, 9):
        first = next(pieces(udp(80, source=f"192.0.2.{client}", payload=bytes(400)), 160, number=500))
        c.add("-", "a client's fragment: to the machine in charge, with three", first)
        c.add("-", "a spilled one: to that machine, with one", tunnel(first, "10.0.0.2", recursion=2))
        c.add("sent", "one that was redirected by a client's machine is kept", tunnel(first, "10.0.0.2", recursion=3))
        c.add("sent", "and one that was spilled before", tunnel(first, "10.0.0.2", recursion=1))


@scenario
def without_a_backend_a_service_spills_to_another_cluster(c):
    c.journeys = True
    for flow in range(4):
        c.add("redirected", "SYN: to the same suffix there", tcp(client_port=4000 + flow), service="web")
    c.add("redirected", "another VIP of the prefix", tcp(to="203.0.113.20"), service="web")
    c.add("redirected", "mid-stream", tcp(flags="A"), service="web")
    c.add("no_backend", "IPv6: no cluster of its family is named", tcp(to=VIP6), service="six")
    c.add("sent", "a service that has backends", tcp(443), service="other")
    c.add("no_service", "a port that is not served", tcp(22))


@scenario
def time_that_goes_back_stands_still(c):
    """An entry of a connection must not age, nor grow young, by a clock that jumps."""
    c.journeys = True
    first = c.add("sent", "SYN", tcp(), table="miss")
    c.wait(-3600_000)
    c.add("sent", "ACK, an hour before: time stands still, so not yet confirmed", tcp(flags="A"), table="hit",
          like=first)
    c.wait(10)
    c.add("sent", "another flow", tcp(client_port=40001), table="miss")
    c.wait(3600_000 + 200)
    c.add("sent", "ACK, 200 ms behind the SYN: established", tcp(flags="A"), table="hit", like=first)
    c.wait(-5_000)
    c.add("sent", "data, five seconds before", tcp(flags="PA", payload=b"x"), table="hit", like=first)
    c.wait(65_000)
    c.add("sent", "a minute later: established entries live longer", tcp(flags="A"), table="hit", like=first)
    c.add("sent", "the unconfirmed flow has expired", tcp(flags="A", client_port=40001), table="miss")


@scenario
def a_tcp_connection_from_its_first_packet_to_its_reuse(c):
    c.journeys = True
    syn = c.add("sent", "SYN", tcp(), table="miss")
    c.wait(1000)
    c.add("sent", "SYN again, a second later", tcp(), table="hit", like=syn)
    c.wait(20)
    c.add("sent", "ACK", tcp(flags="A"), table="hit", like=syn)
    c.wait(200)
    c.add("sent", "data: established", tcp(flags="PA", payload=b"GET / HTTP/1.1\r\n\r\n"), table="hit", like=syn)
    c.wait(60_000)
    c.add("sent", "data after a minute of silence", tcp(flags="A"), table="hit", like=syn)
    c.wait(10)
    c.add("sent", "a stray SYN (or a forged one) changes nothing", tcp(), table="hit", like=syn)
    c.add("sent", "data", tcp(flags="A"), table="hit", like=syn)
    c.add("sent", "a forged RST", tcp(flags="R"), table="hit", like=syn)
    c.wait(2000)
    c.add("sent", "the connection goes on within ten seconds: restored", tcp(flags="A"), table="hit", like=syn)
    c.wait(60_000)
    c.add("sent", "and lives on", tcp(flags="A"), table="hit", like=syn)
    c.add("sent", "FIN", tcp(flags="FA"), table="hit", like=syn)
    c.wait(60_000)
    c.add("sent", "the last ACK, a minute later", tcp(flags="A"), table="hit", like=syn)
    c.wait(10)
    c.add("sent", "the same ports again: its backend knows what that means", tcp(), table="hit", like=syn)
    c.wait(200)
    c.add("sent", "its ACK", tcp(flags="A"), table="hit", like=syn)
    c.wait(200)
    c.add("sent", "its RST", tcp(flags="R"), table="hit", like=syn)
    c.wait(15_000)
    c.add("sent", "15 seconds later its entry has expired", tcp(flags="A"), table="miss", like=syn)
    c.wait(40_000)
    c.add("sent", "one packet was no connection: expired too", tcp(flags="A"), table="miss", like=syn)


@scenario
def a_udp_flow_is_tracked_until_it_falls_silent(c):
    c.journeys = True
    first = c.add("sent", "question", udp(), table="miss")
    c.add("sent", "a second one at once", udp(), table="hit", like=first)
    c.wait(200)
    c.add("sent", "a third: confirmed", udp(), table="hit", like=first)
    c.wait(50_000)
    c.add("sent", "within its minute", udp(), table="hit", like=first)
    c.wait(90_000)
    c.add("sent", "after its minute", udp(), table="miss", like=first)
    c.wait(40_000)
    c.add("sent", "one packet only: forgotten after 30 s", udp(), table="miss", like=first)


@scenario
def beyond_its_quota_a_service_is_forwarded_by_hash_alone(c):
    c.journeys = True
    tracked = [c.add("sent", f"flow {flow}", tcp(client_port=40000 + flow), table="miss") for flow in range(2)]
    beyond = c.add("sent", "one more than the quota", tcp(client_port=40002), table="miss")
    c.wait(200)
    for flow, first in enumerate(tracked):
        c.add("sent", f"flow {flow} is tracked", tcp(client_port=40000 + flow, flags="A"), table="hit", like=first)
    c.add("sent", "the third is not, its hash is the same", tcp(client_port=40002, flags="A"), table="miss", like=beyond)
    c.add("sent", "another service has its own quota", tcp(443), table="miss", service="other")
    c.wait(200)
    c.add("sent", "and uses it", tcp(443, flags="A"), table="hit", service="other")


@scenario
def a_stateless_service_decides_each_packet_by_its_bucket(c):
    c.journeys = True
    for to, source in ((VIP, CLIENT), (VIP6, CLIENT6)):
        for port in range(40000, 40020):
            syn = c.add("sent", f"flow {port}", tcp(to=to, client_port=port), table="none", service="web")
            c.add("sent", "data", tcp(to=to, client_port=port, flags="A"), table="none", service="web", like=syn)
            c.wait(1)
            c.add("sent", "FIN", tcp(to=to, client_port=port, flags="FA"), table="none", service="web", like=syn)
        c.add("sent", "UDP", udp(to=to), table="none", service="web")
    c.wait(3_600_000)
    first = c.add("sent", "in the middle of a connection, an hour later", tcp(flags="A", client_port=40000), table="none", like=1)
    quoted = IP(src=VIP, dst=CLIENT) / TCP(sport=80, dport=40000) / Raw(b"data")
    c.add("sent", "an error about it goes where it goes", icmp_error(quoted), table="none", service="web", like=first)
    whole = udp(80, client_port=7000, payload=bytes(range(200)) * 2)
    pieces_of = list(pieces(whole, 160, number=100))
    like = c.add("sent", "a first fragment", pieces_of[0], table="none", service="web")
    c.add("sent", "the middle follows it", pieces_of[1], service="web", like=like)
    c.add("sent", "the flow's whole datagrams go there too", udp(80, client_port=7000), table="none", like=like)
    for client in range(1, 11):
        source = f"192.0.2.{client}"
        like = c.add("sent", f"client {client}", tcp(source=source, to="203.0.113.11"), table="none", service="clients")
        c.add("sent", "another connection, another port", tcp(443, source=source, to="203.0.113.11", client_port=7),
              table="none", service="clients", like=like)
    c.add("no_backend", "no backend has a bucket", tcp(to="203.0.113.12"), table="none", service="drained")


@scenario
def packets_of_buckets_that_move_name_the_backends_to_try(c):
    """What each carries is check.py's to find, from the plan and the flow's bucket."""
    c.journeys = True
    for to in (VIP, VIP6):
        for port in range(40000, 40012):
            syn = c.add("sent", f"flow {port}", tcp(to=to, client_port=port), table="none", service="web")
            c.add("sent", "data", tcp(to=to, client_port=port, flags="A"), table="none", service="web", like=syn)
            c.add("sent", "UDP", udp(to=to, client_port=port), table="none", service="web")
    for port in range(40000, 40008):
        c.add("sent", "a service without moves", tcp(to="203.0.113.11", client_port=port), table="none", service="still")
    quoted = IP(src=VIP, dst=CLIENT) / TCP(sport=80, dport=40001) / Raw(b"data")
    c.add("sent", "an error goes where its flow goes", icmp_error(quoted), table="none", service="web", like=4)
    whole = udp(80, client_port=7000, payload=bytes(range(200)) * 2)
    pieces_of = list(pieces(whole, 160, number=100))
    like = c.add("sent", "a first fragment", pieces_of[0], table="none", service="web")
    c.add("sent", "the middle follows it", pieces_of[1], service="web", like=like)
    for port in range(40000, 40004):
        data = ether() / ip(flags="DF") / TCP(sport=port, dport=80, flags="A") / Raw(bytes(1540))
        c.add("replied", "too big: the MTU leaves room for the longest option", data, service="web")


@scenario
def packets_of_unknown_connections_name_the_backends_of_earlier_tables(c):
    """What each carries is check.py's to find, from the plan's tables."""
    c.journeys = True
    for to in (VIP, VIP6):
        for port in range(40000, 40030):
            data = c.add("sent", f"data of flow {port}", tcp(to=to, client_port=port, flags="A"), table="miss", service="web")
            c.add("sent", "more: where others are named, nothing is remembered", tcp(to=to, client_port=port, flags="PA", payload=b"x"),
                  service="web", like=data)
            syn = c.add("sent", "a SYN opens one here", tcp(to=to, client_port=port), service="web", like=data)
            c.add("sent", "and its data goes on", tcp(to=to, client_port=port, flags="A"), table="hit", service="web", like=syn)
            for flags in ("F", "R", "FA"):
                c.add("sent", f"{flags} of another", tcp(to=to, client_port=port + 1000, flags=flags), service="web")
            c.add("sent", "UDP has no second chance", udp(to=to, client_port=port), table="miss", service="web")
            c.add("sent", "and is tracked", udp(to=to, client_port=port), table="hit", service="web")
    for port in range(40000, 40010):
        data = c.add("sent", "a service without", tcp(to="203.0.113.11", client_port=port, flags="A"), table="miss", service="once")
        c.add("sent", "is tracked at once", tcp(to="203.0.113.11", client_port=port, flags="A"), table="hit", service="once", like=data)


@scenario
def quic_packets_go_to_the_backend_that_their_connection_id_names(c):
    """Connection ids are from vectors/make.py, which shares no code with Guideway."""
    c.journeys = True
    key = connection_id_key("cluster", "default", 0)
    b11, b12, b13, b14, absent = (server_id(f"10.1.0.{last}") for last in (11, 12, 13, 14, 99))
    nonces = iter(range(1, 1000))

    def encrypted(server):
        return connection_id(0, key, server, next(nonces).to_bytes(8, "big"))

    def plain(server):
        return connection_id(1, None, server[:4], next(nonces).to_bytes(6, "big"))

    def long(destination):
        return bytes([0xC3]) + (1).to_bytes(4, "big") + bytes([len(destination)]) + destination + bytes(40)

    def short(destination):
        return bytes([0x43]) + destination + bytes(30)

    def send(text, payload, **more):
        return c.add("sent", text, udp(443, payload=payload, **more.pop("packet")), table="none", service="web", **more)

    for to in (VIP, VIP6):
        seen = []
        for server in (b11, b12):
            first = send("a long header", long(encrypted(server)), packet={"to": to})
            for client_port in (50000, 50001, 50002):
                packet = {"to": to, "client_port": client_port}
                send("a short header, from any port", short(encrypted(server)), packet=packet, like=first)
                send("another config, not encrypted", short(plain(server)), packet=packet, like=first)
            seen.append(first)
        send("the other server is another", short(plain(b11)), packet={"to": to}, like=f"!{seen[1]}")
        draining = send("a server that drains keeps its connections", short(encrypted(b13)), packet={"to": to})
        send("so from another port", short(encrypted(b13)), packet={"to": to, "client_port": 7}, like=draining)
        by_flow = c.add("sent", "TCP goes by its flow", tcp(443, to=to), table="none", service="web")
        c.add("sent", "and so does its data", tcp(443, to=to, flags="A", payload=short(encrypted(b11))), table="none",
              service="web", like=by_flow)
        packet = {"to": to, "client_port": 51000}
        like = send("a client's own connection id goes by its flow", long(bytes.fromhex("00c4f1a9331c7e20" "5a")), packet=packet)
        for text, payload in [
                ("a server of another cluster", short(encrypted(absent))),
                ("a server of another service", long(plain(b14))),
                ("a config that the service does not have", short(bytes([2 << 5]) + bytes(16))),
                ("the codepoint that names no server", short(bytes([7 << 5]) + encrypted(b12)[1:])),
                ("a connection id that is too short", long(encrypted(b12)[:10])),
                ("a long header that is cut off", long(encrypted(b12))[:12]),
                ("an empty connection id", long(b"")),
                ("no payload", b"")]:
            send(text, payload, packet=packet, like=like)
        send("a retry of that client goes where the server says", long(encrypted(b12)), packet=packet, like=seen[1])
    like = c.add("sent", "a service without quic_lb", udp(443, to="203.0.113.11", payload=short(encrypted(b11))), table="none", service="plain")
    c.add("sent", "goes by flow", udp(443, to="203.0.113.11", payload=short(encrypted(b12))), table="none", service="plain", like=like)


@scenario
def multipath_tcp_goes_to_the_bucket_of_its_token(c):
    """Where each frame must go is worked out by check.py."""
    c.journeys = True
    mss, noop = bytes([2, 4, 5, 0xB4]), bytes([1])
    window_scale, sack_permitted = bytes([3, 3, 7]), bytes([4, 2])
    v1 = bytes([30, 4, 0x01, 0x01])
    end = bytes([0])

    def v0(client_key):
        return bytes([30, 12, 0x00, 0x81]) + client_key.to_bytes(8, "big")

    def join(token, flags=0):
        return bytes([30, 12, 0x10 | flags, 2]) + token.to_bytes(4, "big") + b"once"

    def timestamps(echo, value=7):
        return bytes([8, 10]) + value.to_bytes(4, "big") + echo.to_bytes(4, "big")

    def send(text, options, service="web", **more):
        like = more.pop("like", "-")
        return c.add("sent", text, tcp_with(options, **more), table="none", service=service, like=like)

    linux = mss + sack_permitted + timestamps(0) + noop + window_scale
    for to in (VIP, VIP6):
        for client_port in range(40000, 40006):
            first = send("a connection of version 1", linux + v1, to=to, client_port=client_port, seq=0x01020304)
            send("the same SYN again", linux + v1, to=to, client_port=client_port, seq=0x01020304, like=first)
            send("the same port, another connection", linux + v1, to=to, client_port=client_port, seq=0xFFFFFFFF)
            send("one of version 0", mss + v0(0x0123456789ABCDEF), to=to, client_port=client_port, seq=1)
            send("another client's key", mss + v0(0), to=to, client_port=client_port, seq=1)
        for token in (0, 1, 0xC0A0FB6C, 0xFFFFFFFF):
            first = send("a join", linux + join(token), to=to)
            for client_port in (40001, 40002, 40003):
                send("from another port", join(token, flags=1) + mss, to=to, client_port=client_port, like=first)
            send("data of that token", noop * 2 + timestamps(5 << 13 | token & 0x1FFF), to=to, flags="A", like=first)
        for echo in (1, 0x1FFF, 0x2000, 0xFFFFFFFF):
            first = send("data, timestamps at their usual place", noop * 2 + timestamps(echo), to=to, flags="PA", payload=b"GET /")
            for text, options in [
                    ("at the beginning", timestamps(echo)), ("at the very end", noop * 30 + timestamps(echo)),
                    ("behind selective acknowledgements", bytes([1, 1, 5, 10]) + bytes(8) + noop * 2 + timestamps(echo)),
                    ("in front of a data sequence", timestamps(echo) + bytes([30, 20, 0x20, 0x05]) + bytes(16)),
                    ("behind an unknown option", bytes([254, 7, 1, 2, 3, 4, 5]) + timestamps(echo))]:
                send(text, options, to=to, flags="A", client_port=40009, like=first)
            send("its FIN", noop * 2 + timestamps(echo), to=to, flags="FA", like=first)
        for client_port in range(40100, 40104):
            at = {"to": to, "client_port": client_port}
            first = send("plain TCP", mss + sack_permitted, **at)
            for text, options, flags in [
                    ("an ACK without timestamps", b"", "A"), ("a RST without ACK, whose echo means nothing", timestamps(9), "R"),
                    ("an echo of 0", noop * 2 + timestamps(0), "A"), ("a version that there is not", bytes([30, 4, 2, 1]), "S"),
                    ("MP_CAPABLE behind the end of options", end + v1, "S"), ("MP_CAPABLE twice", v1 + v1, "S"),
                    ("MP_CAPABLE and a join", v1 + join(3), "S"), ("timestamps twice", timestamps(9) + timestamps(9), "A"),
                    ("version 1 with a key", bytes([30, 12, 1, 1]) + bytes(8), "S"), ("version 0 without", bytes([30, 4, 0, 1]), "S"),
                    ("a join of four bytes", bytes([30, 4, 0x10, 1]), "S"), ("timestamps of six bytes", bytes([8, 6, 0, 0, 0, 9, 1, 1]), "A"),
                    ("an option longer than the header", bytes([30, 8, 1, 1]), "S"), ("an option of no length", bytes([30, 0, 1, 1]), "S"),
                    ("an option without its length", noop * 3 + bytes([8]), "A"), ("data cut in timestamps", bytes([1, 1, 8, 10, 0, 0, 0, 9]), "A")]:
                send(text, options, flags=flags, like=first, **at)
            c.add("sent", "UDP goes by its flow", udp(443, **at), table="none", service="web")
    first = send("a service without mptcp", linux, service="plain", to="203.0.113.11")
    send("goes by flow, as without the option", linux + v1, service="plain", to="203.0.113.11", seq=5, like=first)
    send("and so do joins", join(77), service="plain", to="203.0.113.11", like=first)
    send("and timestamps", noop * 2 + timestamps(77), service="plain", to="203.0.113.11", flags="A", like=first)


@scenario
def with_a_cluster_secret_the_backends_are_its_own_choice(c):
    """The same frames as in the folder of the derived key."""
    for flow in range(40):
        c.add("sent", f"flow {flow}", tcp(client_port=10000 + flow), table="miss")
        c.add("sent", f"flow {flow} over IPv6", tcp(to=VIP6, client_port=10000 + flow), table="miss")


@scenario
def without_a_secret_the_backends_follow_from_the_clusters_name(c):
    with_a_cluster_secret_the_backends_are_its_own_choice(c)


def formats(c):
    """Whole milliseconds and odd microseconds; every verdict."""
    c.add("sent", "SYN", tcp())
    c.add("passed", "to an address that is no VIP", tcp(to="203.0.113.99"))
    c.wait(0.123)
    c.add("sent", "UDP", udp(80))
    c.add("truncated", "cut by the capture", udp(80)[:30], wire_bytes=60)
    c.wait(999.999)
    c.add("sent", "ACK, a second later", tcp(flags="A"))
    c.add("sent", "odd length", udp(80, payload=b"odd"))


@scenario
def a_capture_is_read_as_pcap(c):
    formats(c)


@scenario
def a_capture_is_read_as_pcapng(c):
    c.format = "pcapng"
    formats(c)


@scenario
def a_capture_is_read_as_nanoseconds_of_a_big_endian_machine(c):
    c.format = "pcap, nanoseconds, big-endian"
    formats(c)
