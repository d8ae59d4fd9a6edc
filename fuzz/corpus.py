#!/usr/bin/python3
"""Writes fuzz/corpus/TARGET.tar, the inputs that fuzzing begins with, from the golden folders. Needs scapy.

Run it after `make golden` if new kinds of packets came; what fuzzing itself finds is not kept here, unless it was a
fault: then as a test.
"""

import hashlib
import io
import json
import struct
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

from scapy.utils import rdpcap

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "forwarder/tests/golden"
#: Beyond this a frame's bytes are payload, which nothing looks at.
FRAME_BYTES_MAX, FRAMES_MAX = 160, 24
#: Plans (see src/plans.rs): egress MTU, then what peers, services and members are like.
PLAIN = bytes(32)
RICH = bytes([5, 0x39, 0x00, 0x30, 0x00, 0x00, 0x81, 0x10, 0x24, 0x01, 0x02, 0x90, 0x00, 0x00, 0x00, 0x00]) + bytes(16)


def frames_of(folder):
    packets = folder / "in.pcap"
    if packets.stat().st_size <= 24:
        return []
    return [(float(packet.time), bytes(packet)) for packet in rdpcap(str(packets))]


def framed(wait_ms, data):
    """See src/lib.rs: of a long frame only the beginning is given."""
    return bytes([min(wait_ms, 0xEF)]) + struct.pack("<H", min(len(data), 0x7FF)) + data[:192]


def save(target, data):
    inputs[target][hashlib.sha1(data).hexdigest()[:16]] = data


def write_archives():
    """The same inputs give the same bytes."""
    for target, files in inputs.items():
        with tarfile.open(HERE / "corpus" / f"{target}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for name, data in sorted(files.items()):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def journeys(frames):
    """A conversation: the first frames, with what time lies between them."""
    body, before = b"", frames[0][0] if frames else 0
    for time, data in frames[:FRAMES_MAX]:
        body += framed(max(0, round((time - before) * 1000)), data)
        before = time
    save("journey", PLAIN + body)
    save("journey", RICH + body)


def parsed(frames):
    for _, data in frames[:FRAMES_MAX * 3]:
        if len(data) <= FRAME_BYTES_MAX:
            save("parse", data)


def messages(frames):
    for _, data in frames:
        ether_type = data[12:14]
        if ether_type == b"\x08\x00" and data[23:24] == b"\x01":
            save("icmp", PLAIN[:16] + b"\0" + framed(0, data[34:]))
        elif ether_type == b"\x86\xdd" and data[20:21] == b"\x3a":
            save("icmp", RICH[:16] + b"\1" + framed(0, data[54:]))


def plan(folder):
    message = json.loads((folder / "plan.json").read_text())
    for service in message["services"]:
        service["tableSize"] = 101
    save("plan", json.dumps(message, separators=(",", ":")).encode())


def main():
    folders = sorted(path.parent for path in GOLDEN.glob("*/config.yaml"))
    if not folders:
        sys.exit("no golden folders: have they moved?")
    for folder in folders:
        frames = frames_of(folder)
        plan(folder)
        journeys(frames)
        if any(word in folder.name for word in ("malformed", "options", "atomic", "fragments-are", "untagged", "icmp")):
            parsed(frames)
        if "icmp" in folder.name or "too-big" in folder.name:
            messages(frames)


if __name__ == "__main__":
    main()
