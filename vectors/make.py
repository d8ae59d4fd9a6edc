#!/usr/bin/env python3
"""Writes the vectors: inputs and the answers that hold forever, worked out apart from the code that is held to them.

    vectors/make.py            rewrites the files (a change here breaks running clusters: see README.md)
    vectors/make.py --check    exits with 1 if a file is not what this program would write

Needs nothing but Python. No randomness but that of fixed seeds.
"""

import hashlib
import hmac
import ipaddress
import json
import random
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import matching  # noqa: E402
import primitives  # noqa: E402
from primitives import MASK, aes128, internet_checksum, siphash  # noqa: E402

HERE = Path(__file__).parent


# The flow hash (datapath/src/flow_hash.rs).

def blocks(family, protocol, source, destination, source_port, destination_port):
    size = 4 if family == 4 else 16
    layout = bytes([family, protocol]) + source.to_bytes(size, "big") + destination.to_bytes(size, "big")
    layout += source_port.to_bytes(2, "big") + destination_port.to_bytes(2, "big")
    layout += bytes(-len(layout) % 16)
    return [layout[at:at + 16] for at in range(0, len(layout), 16)]


def client_blocks(family, source):
    layout = bytes([0x80 | family]) + source.to_bytes(4 if family == 4 else 16, "big")
    layout += bytes(-len(layout) % 16)
    return [layout[at:at + 16] for at in range(0, len(layout), 16)]


def cbc_mac(key, data_blocks):
    state = bytes(16)
    for block in data_blocks:
        state = aes128(key, bytes(a ^ b for a, b in zip(state, block)))
    return state[:8].hex()


def flow_answer(key, flow):
    protocol, source, source_port, destination, destination_port = flow
    source_address, destination_address = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    family = source_address.version
    numbers = int(source_address), int(destination_address), source_port, destination_port
    return {"protocol": protocol, "source": source, "source_port": source_port, "destination": destination,
            "destination_port": destination_port, "flow": cbc_mac(key, blocks(family, protocol, *numbers)),
            "client": cbc_mac(key, client_blocks(family, int(source_address)))}


SECRETS = (("cluster", "default"), ("cluster", "c1"), ("secret", "0123456789abcdef"),
           ("secret", "an example key, known to everybody"))


FLOWS, BUCKETS = b"guideway flow hash\0", b"guideway bucket hash\0"


def hash_key(kind, text, purpose=FLOWS):
    prefix = purpose + (b"derived\0" if kind == "cluster" else b"secret\0")
    return hashlib.sha256(prefix + text.encode()).digest()[:16]


def flow_hash(purpose=FLOWS):
    flows = [(6, "192.0.2.1", 40000, "203.0.113.10", 80), (17, "192.0.2.1", 40000, "203.0.113.10", 80),
             (6, "192.0.2.1", 40001, "203.0.113.10", 80), (6, "203.0.113.10", 80, "192.0.2.1", 40000),
             (6, "0.0.0.0", 0, "0.0.0.0", 0), (255, "255.255.255.255", 65535, "255.255.255.255", 65535),
             (50, "192.0.2.1", 0, "203.0.113.10", 0), (6, "2001:db8:c::7", 40000, "2001:db8:f::10", 443),
             (17, "2001:db8:c::7", 40000, "2001:db8:f::10", 443), (6, "2001:db8:c::8", 40000, "2001:db8:f::10", 443),
             (6, "::", 0, "::", 0), (255, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65535, "::1", 1)]
    cases = []
    for kind, text in SECRETS:
        key = hash_key(kind, text, purpose)
        digest = hashlib.sha256(b"guideway key id\0" + text.encode()).hexdigest()
        cases.append({kind: text, "key_id": "derived" if kind == "cluster" else digest[:16], "key": key.hex(),
                      "flows": [flow_answer(key, flow) for flow in flows]})
    return cases


def bucket_hash():
    return flow_hash(BUCKETS)


# The identification of outer IPv4 headers (datapath/src/quoted.rs).

def outer_id():
    def answer(key, own, target):
        layout = bytes([0xa4, 0]) + ipaddress.ip_address(own).packed + ipaddress.ip_address(target).packed + bytes(6)
        return {"own": own, "target": target, "id": aes128(key, layout)[:2].hex()}

    pairs = [("10.0.0.1", "10.1.0.11"), ("10.0.0.1", "10.1.0.12"), ("10.0.0.2", "10.1.0.11"),
             ("10.1.0.11", "10.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("255.255.255.255", "255.255.255.255")]
    return [{kind: text, "ids": [answer(hash_key(kind, text), *pair) for pair in pairs]} for kind, text in SECRETS]


# Maglev hashing: paper, section 3.4, with weights: quotas by largest remainder, then turns in proportion.

OFFSET_KEYS = tuple(int.from_bytes(half, "big") for half in (b"guideway", b"offset01"))
SKIP_KEYS = tuple(int.from_bytes(half, "big") for half in (b"guideway", b"skip0001"))


def permutation_of(name, size):
    offset = siphash(*OFFSET_KEYS, name.encode()) % size
    skip = siphash(*SKIP_KEYS, name.encode()) % (size - 1) + 1
    return offset, skip


def quotas(weights, size):
    total = sum(weights)
    shares = [size * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(size * weights[i] % total), i))
    for i in by_remainder[:size - sum(shares)]:
        shares[i] += 1
    return shares


def populate(permutations, weights, size):
    """Each backend's whole permutation is written out, as in the paper's table 1."""
    preferences = [iter([(offset + j * skip) % size for j in range(size)]) for offset, skip in permutations]
    entries, taken, limit = [None] * size, [0] * len(weights), quotas(weights, size)
    turn = 0
    while None in entries:
        turn += 1
        for i, weight in enumerate(weights):
            while taken[i] < limit[i] and taken[i] * max(weights) < turn * weight:
                entry = next(c for c in preferences[i] if entries[c] is None)
                entries[entry] = i
                taken[i] += 1
    return entries


def fingerprint(names, entries):
    data = b"".join(name.encode() + b"\0" for name in names) + b"".join(e.to_bytes(2, "little") for e in entries)
    return f"{siphash(0, 0, data, 1, 3):016x}"


def table(size, backends):
    backends = sorted(backends)
    names, weights = [name for name, _ in backends], [weight for _, weight in backends]
    entries = populate([permutation_of(name, size) for name in names], weights, size)
    whole = {"entries": entries} if size < 2000 else {
        "first_entries": entries[:64], "counts": [entries.count(i) for i in range(len(names))]}
    return {"size": size, "backends": [{"name": n, "weight": w} for n, w in backends], **whole,
            "fingerprint": fingerprint(names, entries)}


def maglev():
    names = ["", "a", "b", "web-1", "web-2", "10.1.0.11", "2001:db8:0:2::11", "backend-00000", "12345678",
             "a name of more than eight bytes, with spaces", "zürich"]
    before, after = [(3, 4), (0, 2), (3, 1)], [(3, 4), (3, 1)]
    equal = [(f"backend-{i:05}", 1) for i in range(10)]
    return {
        "permutations": [{"name": name, "size": size, "offset": permutation_of(name, size)[0],
                          "skip": permutation_of(name, size)[1]} for name in names for size in (7, 101, 65537, 655373)],
        "table_1_of_the_paper": {"size": 7, "before": {"permutations": before, "entries": populate(before, [1] * 3, 7)},
                                 "after": {"permutations": after, "entries": populate(after, [1] * 2, 7)}},
        "tables": [
            table(7, [("web-1", 1)]), table(7, [("web-1", 1), ("web-2", 1)]), table(7, [("web-2", 1), ("web-1", 3)]),
            table(3, [("c", 1), ("b", 1), ("a", 1)]), table(11, [(name, 1) for name in "abcdefghijk"]),
            table(101, equal), table(101, [(n, 7) for n, _ in equal]), table(101, equal[1:]),
            table(101, [(n, i + 1) for i, (n, _) in enumerate(equal)]), table(101, [("big", 1000), ("small", 1)]),
            table(1009, [(n, (1, 2, 5)[i % 3]) for i, (n, _) in enumerate(equal)]),
            table(65537, [(f"10.1.0.{i}", 1 + i % 3) for i in range(1, 13)]),
        ],
        "slots": [{"hash": f"{h:016x}", "size": size, "slot": (h >> 32) * size >> 32}
                  for h in (0, 1 << 32, 0x123456789ABCDEF0, 1 << 63, (1 << 32) - 1, MASK) for size in (3, 65537, 655373)],
    }


# Checksums: RFC 1071 and RFC 1624.

def checksums():
    chosen = random.Random(1071)
    data = [b"", b"\0", b"\xff", b"\xff\xff", b"\0\0", bytes.fromhex("0001f203f4f5f6f7"),
            bytes.fromhex("4500003c1c4640004006" "0000" "ac100a63ac100a0c"), bytes(20), b"\xff" * 60]
    data += [chosen.randbytes(size) for size in (1, 2, 3, 19, 20, 21, 40, 59, 60, 576, 1499, 1500)]
    updates = [{"before": "dd2f", "old": "5555", "new": "3285", "after": "0000"}]
    for _ in range(20):
        header = bytearray(b"\x45" + chosen.randbytes(19))
        before, at = internet_checksum(bytes(header)), chosen.randrange(1, 10) * 2
        old, new = bytes(header[at:at + 2]), chosen.randbytes(2)
        header[at:at + 2] = new
        updates.append({"before": f"{before:04x}", "old": old.hex(), "new": new.hex(),
                        "after": f"{internet_checksum(bytes(header)):04x}"})
    return {"full": [{"bytes": d.hex(), "checksum": f"{internet_checksum(d):04x}"} for d in data], "updates": updates}


# Marks of traced packets: paper 4.4, and the layout in datapath/src/trace.rs.

def trace_mark(secret, flow, receiver, port, nonce, unix_ms):
    protocol, source, source_port, destination, destination_port = flow
    address = ipaddress.ip_address(receiver)
    mapped = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    signed = b"GWTRACE\x01" + mapped + port.to_bytes(2, "big") + bytes(2)
    signed += nonce.to_bytes(8, "big") + unix_ms.to_bytes(8, "big")
    ends = [ipaddress.ip_address(source), ipaddress.ip_address(destination)]
    tuple_bytes = bytes([ends[0].version, protocol]) + b"".join(int(end).to_bytes(16, "big") for end in ends)
    tuple_bytes += source_port.to_bytes(2, "big") + destination_port.to_bytes(2, "big")
    key = hashlib.sha256(b"guideway trace\0" + secret.rstrip().encode()).digest()
    mark = signed + hmac.new(key, signed + tuple_bytes, hashlib.sha256).digest()[:16]
    return {"secret": secret, "protocol": protocol, "source": source, "source_port": source_port,
            "destination": destination, "destination_port": destination_port, "receiver": receiver, "port": port,
            "nonce": f"{nonce:016x}", "unix_ms": unix_ms, "mark": mark.hex()}


def trace():
    flows = [(6, "192.0.2.1", 40000, "203.0.113.10", 80), (17, "192.0.2.1", 40000, "203.0.113.10", 53),
             (6, "2001:db8:c::7", 40000, "2001:db8:f::10", 443), (17, "2001:db8:c::7", 65535, "2001:db8:f::10", 1)]
    asked = [("192.0.2.99", 7777, 7, 1_800_000_000_000), ("2001:db8::99", 65535, MASK, 1_800_000_030_001)]
    secrets = ["0123456789abcdef", "an example key, known to everybody", "with white space behind it \t\r\n"]
    return [trace_mark(secret, flow, *ask) for secret in secrets for flow in flows for ask in asked]


# The route option of Geneve tunnels (docs/formats.md).

def route_option(returns, hop_limit, bucket, generation, addresses):
    parsed = [ipaddress.ip_address(text) for text in addresses]
    is_v6 = any(address.version == 6 for address in parsed)
    packed = [address.packed if not is_v6 or address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
              for address in parsed]
    flags = is_v6 << 7 | returns << 6 | len(parsed)
    number = 0xFFFF if bucket is None else bucket
    body = bytes([flags, hop_limit]) + number.to_bytes(2, "big") + generation.to_bytes(4, "big") + b"".join(packed)
    option = bytes.fromhex("ff4781") + bytes([len(body) // 4]) + body
    return {"returns": returns, "hop_limit": hop_limit, "bucket": bucket, "generation": generation,
            "addresses": addresses, "option": option.hex()}


def route_options():
    v4, v6 = ["10.1.0.12", "10.1.0.13", "10.1.0.14"], ["2001:db8:0:2::12", "2001:db8:0:2::13", "2001:db8:0:2::14"]
    lists = [[], v4[:1], v4[:2], v4, v6[:1], v6[:2], v6, [v4[0], v6[1]], [v6[0], v4[1], v4[2]]]
    fields = [(False, 4, 0, 1), (False, 4, 8191, 0xFFFFFFFF), (True, 1, None, 0), (False, 0, 4095, 0x01020304)]
    malformed = {
        "shorter than without addresses": "ff478101" "00040000",
        "without the address that it counts": "ff478102" "0104000000000001",
        "an address more than it counts": "ff478104" "0104000000000001" "0a01000c" "0a01000d",
        "an IPv6 address of four bytes": "ff478103" "8104000000000001" "0a01000c",
        "an unknown flag": "ff478102" "2004000000000001",
    }
    return {"options": [route_option(*some, addresses) for addresses in lists for some in fields],
            "malformed": [{"why": why, "option": option} for why, option in malformed.items()]}


# Agents' keys, and the datagrams between them and controllers (docs/formats.md).

def agent_datagram(key, key_id, agent, header, body):
    kind, part, parts, boot, nonce, sequence = header
    signed = b"GWAG" + bytes([1, {"state": 1, "answer": 2, "rules": 3, "rules_answer": 4}[kind], part, parts]) + boot.to_bytes(8, "big") + nonce
    signed += sequence.to_bytes(8, "big") + bytes.fromhex(key_id) + bytes([len(agent)]) + agent.encode() + body
    return {"kind": kind, "part": part, "parts": parts, "boot": f"{boot:016x}", "nonce": nonce.hex(), "sequence": sequence,
            "body": body.hex(), "datagram": (signed + hmac.new(key, signed, hashlib.sha256).digest()[:16]).hex()}


def pair_key(secret, *names):
    first, second = sorted(name.encode() for name in names)
    key = hashlib.sha256(b"guideway pairs of agents\0" + secret).digest()
    return hmac.new(key, bytes([len(first)]) + first + second, hashlib.sha256).digest()


def agent_messages():
    headers = [(("state", 0, 1, 1, bytes(16), 1), b""), (("state", 2, 255, MASK, bytes(range(16)), 7), b"any bytes"),
               (("answer", 0, 1, 0x0102030405060708, bytes(range(240, 256)), 1 << 40), bytes.fromhex("08e807")),
               (("rules", 0, 1, 1, bytes(16), 2), bytes.fromhex("0204c65001bbc0000201cb00710a")),
               (("rules_answer", 0, 1, MASK, bytes(range(16)), 2), b"")]
    cases = []
    for secret in ["0123456789abcdef", "with white space behind it \t\r\n"]:
        trimmed = secret.rstrip().encode()
        key_id = hashlib.sha256(b"guideway key id\0" + trimmed).hexdigest()[:16]
        for agent in ["web-1", "2001:db8::1", "n" * 128]:
            key = hmac.new(hashlib.sha256(b"guideway agents\0" + trimmed).digest(), agent.encode(), hashlib.sha256).digest()
            bucket_key = hash_key("secret", secret.rstrip(), BUCKETS)
            cases.append({"secret": secret, "agent": agent, "key_id": key_id, "message_key": key.hex(), "bucket_key": bucket_key.hex(),
                          "peers": {peer: pair_key(trimmed, agent, peer).hex() for peer in ["web-2", "web-10", "a"]},
                          "datagrams": [agent_datagram(key, key_id, agent, *one) for one in headers]})
    return cases


# QUIC connection ids (draft-ietf-quic-load-balancers-21, section 5 and appendix B).

def connection_id_key(kind, text, config):
    return hash_key(kind, text, b"guideway quic connection id\0" + bytes([config, 0]))


def server_id(backend):
    return hashlib.sha256(b"guideway quic server id\0" + backend.encode()).digest()[:8]


def four_passes(key, plain):
    """By the draft's words, on hexadecimal digits: an odd number of bytes is split in the middle of one."""
    digits, half_len = plain.hex(), (len(plain) + 1) // 2
    odd = len(plain) % 2
    left, right = digits[:len(plain)] + "0" * odd, "0" * odd + digits[len(plain):]

    def round_of(number, this, other):
        block = bytes.fromhex(other).ljust(14, b"\0") + bytes([len(plain), number])
        return bytes(a ^ b for a, b in zip(bytes.fromhex(this), aes128(key, block)[:half_len])).hex()

    for number in (1, 3):
        right = round_of(number, right, left)
        right = "0" * odd + right[odd:]
        left = round_of(number + 1, left, right)
        left = left[:len(left) - odd] + "0" * odd
    return bytes.fromhex(left[:len(left) - odd] + right[odd:])


def connection_id(config, key, server, nonce):
    """With its length in the first byte; key None: plain."""
    plain = server + nonce
    if key is None:
        body = plain
    elif len(plain) == 16:
        body = aes128(key, plain)
    else:
        body = four_passes(key, plain)
    return bytes([config << 5 | len(body)]) + body


def check_connection_ids():
    """The draft's own examples. Its second plain one has a nonce with a digit of the server id's end in it."""
    key = bytes.fromhex("8f95f09245765f80256934e50c66207f")
    for config, with_key, server, nonce, wanted in [
            (0, None, "c4605e", "4504cc4f", "07c4605e4504cc4f"),
            (0, key, "ed793a", "ee080dbf", "0720b1d07b359d3c"),
            (1, key, "ed793a51d49b8f5fab65", "ee080dbf48", "2fcc381bc74cb4fbad2823a3d1f8fed2"),
            (2, key, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
            (0, key, "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc")]:
        made = connection_id(config, with_key, bytes.fromhex(server), bytes.fromhex(nonce))
        assert made.hex() == wanted, (server, made.hex())


def quic_lb():
    check_connection_ids()
    chosen = random.Random(9000)
    ids = []
    layouts = [(4, 4), (4, 5), (5, 4), (4, 12), (5, 6), (6, 4), (7, 5), (8, 4), (8, 5), (8, 7), (8, 8), (8, 9), (8, 11)]
    for number, (server_bytes, nonce_bytes) in enumerate(layouts):
        for encrypted in (True, False):
            (kind, text), config = SECRETS[number % len(SECRETS)], number % 7
            key = connection_id_key(kind, text, config) if encrypted else None
            backend, nonce = f"web-{number}", chosen.randbytes(nonce_bytes)
            server = server_id(backend)[:server_bytes]
            ids.append({kind: text, "config": config, "encrypted": encrypted, "backend": backend,
                        "server_id": server.hex(), "nonce": nonce.hex(),
                        "connection_id": connection_id(config, key, server, nonce).hex()})
    return {"keys": [{kind: text, "config": config, "key": connection_id_key(kind, text, config).hex()}
                     for kind, text in SECRETS for config in range(7)],
            "server_ids": [{"backend": name, "server_id": server_id(name).hex()}
                           for name in ("", "web-1", "10.1.0.11", "2001:db8:0:2::11", "zürich")],
            "connection_ids": ids}


def join_ports():
    """A backend's port follows from its name; of those that want one, the first by name gets it, others the next."""
    def wanted(name):
        return int.from_bytes(hashlib.sha256(b"guideway join port\0" + name.encode()).digest()[:8], "big") % 4096

    def ports(first, backends):
        by_port = {}
        for name in sorted(backends, key=str.encode):
            offset = wanted(name)
            while offset in by_port:
                offset = (offset + 1) % 4096
            by_port[offset] = name
        return {name: first + offset for offset, name in by_port.items()}

    # The names that want the last port, so that the later ones find theirs at the beginning.
    last = [name for name in (f"web-{number}" for number in range(30000)) if wanted(name) == 4095][:4]
    backends = [[f"web-{number}" for number in range(1, 301)], ["zürich", "10.1.0.11"], last]
    return [{"join_ports": first, "ports": ports(first, names)} for first, names in zip((20000, 1024, 61440), backends)]


# Multipath TCP: keys that load balancers choose, tokens from them, and the option that says so (docs/formats.md).

def multipath_key(kind, text, flow, version, initial_sequence, client_key):
    """CBC-MAC over the flow's layout without its zeros, then what the SYN says."""
    protocol, source, source_port, destination, destination_port = flow
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    layout = bytes([source.version, protocol]) + source.packed + destination.packed
    layout += source_port.to_bytes(2, "big") + destination_port.to_bytes(2, "big")
    layout += bytes([version, 0]) + initial_sequence.to_bytes(4, "big") + client_key.to_bytes(8, "big")
    layout += bytes(-len(layout) % 16)
    key = hash_key(kind, text, b"guideway multipath key\0")
    return bytes.fromhex(cbc_mac(key, [layout[at:at + 16] for at in range(0, len(layout), 16)]))


def multipath_token(version, key):
    """RFC 6824, section 3.1: SHA-1; RFC 8684: SHA-256."""
    return (hashlib.sha256 if version else hashlib.sha1)(key).digest()[:4]


def check_multipath():
    """Of the key zero, as coreutils' sha1sum and sha256sum have it."""
    assert multipath_token(0, bytes(8)).hex() == "05fe4057"
    assert multipath_token(1, bytes(8)).hex() == "af5570f5"


def multipath_option(key, bucket, address):
    packed = ipaddress.ip_address(address).packed
    body = (key or 0).to_bytes(8, "big") + bucket.to_bytes(2, "big") + bytes([(len(packed) == 16) << 7, 0]) + packed
    option = bytes.fromhex("ff4782") + bytes([len(body) // 4]) + body
    return {"key": key and f"{key:016x}", "bucket": bucket, "address": address, "option": option.hex()}


def multipath():
    check_multipath()
    chosen = random.Random(8684)
    flows = [(6, "192.0.2.7", 40000, "203.0.113.10", 443), (6, "255.255.255.255", 65535, "0.0.0.0", 0),
             (6, "2001:db8:c::7", 40000, "2001:db8:f::10", 443), (6, "::", 1, "ffff::1", 65535)]
    keys = []
    for number, flow in enumerate(flows * 4):
        (kind, text), version = SECRETS[number % len(SECRETS)], number // len(flows) % 2
        sequence = chosen.choice([0, 1, MASK & 0xFFFFFFFF, chosen.getrandbits(32)])
        client_key = 0 if version else chosen.getrandbits(64)
        key = multipath_key(kind, text, flow, version, sequence, client_key)
        token = multipath_token(version, key)
        keys.append({kind: text, "protocol": flow[0], "source": flow[1], "source_port": flow[2], "destination": flow[3],
                     "destination_port": flow[4], "version": version, "initial_sequence": sequence,
                     "client_key": f"{client_key:016x}", "key": key.hex(), "token": token.hex(),
                     "bucket_of_256": token[3], "bucket_of_8192": int.from_bytes(token, "big") % 8192})
    options = [multipath_option(key, bucket, address) for key, bucket in ((0x0123456789ABCDEF, 0), (None, 8191), (1, 4095))
               for address in ("10.1.0.12", "2001:db8:0:2::12")]
    malformed = {
        "shorter than without an address": "ff478202" "0123456789abcdef",
        "without its address": "ff478203" "0123456789abcdef" "00010000",
        "an IPv6 address of four bytes": "ff478204" "0123456789abcdef" "00018000" "0a01000c",
        "an IPv4 address of sixteen bytes": "ff478207" "0123456789abcdef" "00010000" "20010db8000000020000000000000012",
        "an unknown flag": "ff478204" "0123456789abcdef" "00014000" "0a01000c",
        "a byte that must be zero": "ff478204" "0123456789abcdef" "00010001" "0a01000c",
    }
    return {"keys": keys, "options": options,
            "malformed": [{"why": why, "option": option} for why, option in malformed.items()]}


FILES = {"flow_hash.json": flow_hash, "bucket_hash.json": bucket_hash, "outer_id.json": outer_id,
         "maglev.json": maglev, "checksums.json": checksums, "match_order.json": matching.vectors, "trace.json": trace,
         "route_option.json": route_options, "agent_messages.json": agent_messages,
         "quic_lb.json": quic_lb, "multipath.json": multipath, "join_ports.json": join_ports}


def text_of(value, indent=""):
    """JSON with one line for each smallest object or list, so that a diff shows what changed."""
    flat = json.dumps(value, ensure_ascii=False)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    if len(flat) + len(indent) <= 160 or not any(isinstance(one, (dict, list)) for one in inside):
        return flat
    deeper = indent + "  "
    if isinstance(value, dict):
        lines = [f"{deeper}{json.dumps(key)}: {text_of(one, deeper)}" for key, one in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + indent + "}"
    return "[\n" + ",\n".join(deeper + text_of(one, deeper) for one in value) + "\n" + indent + "]"


def main(check):
    primitives.check()
    stale = []
    for name, make in FILES.items():
        text, path = text_of(make()) + "\n", HERE / name
        if check and (not path.exists() or path.read_text() != text):
            stale.append(name)
        elif not check:
            path.write_text(text)
    if stale:
        sys.exit(f"not what make.py writes: {', '.join(stale)}")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
