#!/usr/bin/python3
"""Writes in.pcap and frames.txt of every golden folder. Needs scapy (python3-scapy).

    forwarder/tests/golden/make.py [folder ...]

A scenario is a function: it adds frames one after the other, each with what must become of it. Those
expectations (frames.txt) are written by people from docs/journey.md and RFCs, never by the code under test; what the code
under test writes (out.pcap, passed.pcap, counters.json, journeys.json) comes from `make golden`.
Running this again changes nothing: no randomness, no clock.
"""

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the folders

import scenarios  # noqa: E402

HERE = Path(__file__).parent
MICROSECOND, NANOSECOND = 0xA1B2C3D4, 0xA1B23C4D
#: 2026-01-01 00:00:00 UTC.
START_US = 1_767_225_600_000_000


@dataclass
class Frame:
    data: bytes
    at_us: int
    wire_bytes: int
    verdict: str
    table: str
    service: str
    like: str
    text: str


class Capture:
    """The frames of a scenario, ten microseconds apart unless it waits."""

    def __init__(self):
        self.frames = []
        self.now_us = START_US
        self.format = "pcap"
        self.journeys = False

    def wait(self, ms):
        self.now_us += round(ms * 1000)

    def add(self, verdict, text, data, table="-", service="-", like="-", wire_bytes=None):
        """verdict: sent, passed, ... or the drop's reason. table: hit, miss or none.
        like: the number of an earlier frame whose backend this one must share, or !number: must not.
        "-" asserts nothing. Gives the frame's number."""
        frame = Frame(bytes(data), self.now_us, wire_bytes or len(data), verdict, table, service, str(like), text)
        self.frames.append(frame)
        self.now_us += 10
        return len(self.frames)


def pcap(frames, order="<", nanoseconds=False):
    magic, fraction = (NANOSECOND, 1000) if nanoseconds else (MICROSECOND, 1)
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262144, 1)]
    for frame in frames:
        seconds, rest = divmod(frame.at_us, 1_000_000)
        out.append(struct.pack(order + "IIII", seconds, rest * fraction, len(frame.data), frame.wire_bytes))
        out.append(frame.data)
    return b"".join(out)


def pcapng(frames):
    """A section, an interface that counts microseconds and one that counts nanoseconds, and a name block between
    the packets, which readers must pass over."""
    def block(kind, body):
        body += bytes(-len(body) % 4)
        size = struct.pack("<I", len(body) + 12)
        return struct.pack("<I", kind) + size + body + size

    def option(code, value):
        return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)

    def interface(resolution):
        return block(1, struct.pack("<HHI", 1, 0, 262144) + option(9, bytes([resolution])) + option(0, b""))

    out = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)), interface(6), interface(9)]
    for index, frame in enumerate(frames):
        which = index % 2
        ticks = frame.at_us * (1000 if which else 1)
        head = struct.pack("<IIIII", which, ticks >> 32, ticks & 0xFFFFFFFF, len(frame.data), frame.wire_bytes)
        out.append(block(6, head + frame.data))
        if index == 0:
            out.append(block(4, struct.pack("<HH", 0, 0)))
    return b"".join(out)


FORMATS = {
    "pcap": pcap,
    "pcap, nanoseconds, big-endian": lambda frames: pcap(frames, ">", nanoseconds=True),
    "pcapng": pcapng,
}


def listing(frames):
    rows = [("#", "verdict", "table", "service", "like", "what")]
    rows += [(str(number), f.verdict, f.table, f.service, f.like, f.text) for number, f in enumerate(frames, 1)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ("  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[5]]) for row in rows)
    return "".join(line.rstrip() + "\n" for line in lines)


def write(name, scenario):
    folder = HERE / name
    if not (folder / "config.yaml").exists():
        sys.exit(f"{folder}/config.yaml is missing: write it first")
    capture = Capture()
    scenario(capture)
    (folder / "in.pcap").write_bytes(FORMATS[capture.format](capture.frames))
    (folder / "frames.txt").write_text(listing(capture.frames))
    if capture.journeys:
        (folder / "journeys.json").touch()


def main(names):
    known = scenarios.all_of_them()
    folders = {path.parent.name for path in HERE.glob("*/config.yaml")}
    if orphans := folders - known.keys():
        sys.exit(f"no scenario makes the packets of {', '.join(sorted(orphans))}")
    if unknown := set(names) - known.keys():
        sys.exit(f"no scenario is called {', '.join(sorted(unknown))}")
    for name in names or known:
        write(name, known[name])


if __name__ == "__main__":
    main([Path(name).name for name in sys.argv[1:]])
