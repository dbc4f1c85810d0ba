#!/usr/bin/env python3
"""Loads that wrk and h2load cannot produce, and the server behind tunnels. Run by wire.py, which reads the JSON output:

    peers.py echo PORT                       switches protocols and sends back every byte
    peers.py tunnels PORT SECONDS COUNT      COUNT WebSockets; each sends a message when the last one has come back
    peers.py handshakes PORT SECONDS full    one request on each TLS connection, with a full handshake (or `resumed`)
    peers.py idle PORT COUNT h1              keeps connections open after a request (or `h2`, `tls`) until standard input ends
"""
import asyncio
import base64
import hashlib
import json
import os
import resource
import socket
import ssl
import sys
import time

REQUEST = b"GET / HTTP/1.1\r\nHost: bench.test\r\n\r\n"
UPGRADE = (
    b"GET /tunnel HTTP/1.1\r\nHost: bench.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
# A masked text message of 125 bytes.
MESSAGE = b"\x81\xfd\0\0\0\0" + b"x" * 125
# The preface, no settings, and GET / for bench.test on stream 1.
H2_HEAD = b"\x82\x86\x84\x41\x0abench.test"
H2_REQUEST = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
    + len(H2_HEAD).to_bytes(3, "big") + b"\x01\x05\0\0\0\x01" + H2_HEAD
)
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Echo(asyncio.Protocol):
    """One connection of the server behind tunnels."""
    def connection_made(self, transport):
        self.transport, self.head = transport, b""
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data):
        if self.head is None:
            self.transport.write(data)
            return
        self.head += data
        if b"\r\n\r\n" not in self.head:
            return
        headers = [line.split(b":", 1) for line in self.head.split(b"\r\n")[1:] if b":" in line]
        key = next((value.strip() for name, value in headers if name.lower() == b"sec-websocket-key"), b"")
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        self.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        self.head = None


async def echo(port):
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", int(port), backlog=1024)
    await server.serve_forever()


class Tunnel(asyncio.Protocol):
    """A WebSocket that sends its message again when it has come back."""
    total = 0

    def __init__(self, opened):
        self.opened, self.head, self.missing = opened, b"", 0

    def connection_made(self, transport):
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(UPGRADE)

    def data_received(self, data):
        if self.head is not None:
            self.head += data
            if b"\r\n\r\n" in self.head:
                if b" 101 " not in self.head.split(b"\r\n", 1)[0]:
                    self.opened.set_exception(RuntimeError(self.head.decode(errors="replace")))
                    return
                self.head = None
                self.opened.set_result(None)
            return
        self.missing -= len(data)
        if self.missing <= 0:
            Tunnel.total += 1
            self.send()

    def send(self):
        self.missing = len(MESSAGE)
        self.transport.write(MESSAGE)


async def tunnels(port, secs, count):
    loop = asyncio.get_running_loop()
    opened_tunnels = []
    for _ in range(int(count)):
        opened = loop.create_future()
        _, tunnel = await loop.create_connection(lambda opened=opened: Tunnel(opened), "127.0.0.1", int(port))
        await asyncio.wait_for(opened, 10)
        opened_tunnels.append(tunnel)
    for tunnel in opened_tunnels:
        tunnel.send()
    start = time.monotonic()
    await asyncio.sleep(float(secs))
    print(json.dumps({"requests": Tunnel.total, "secs": time.monotonic() - start}))


def insecure_context():
    """A TLS client context that accepts every certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def read_response(link):
    """Reads a response with Content-Length to its end. Exits if its status is not 200."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += read_some(link)
    head, body = data.split(b"\r\n\r\n", 1)
    headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    if b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
        sys.exit(f"not 200: {head!r}")
    while len(body) < int(headers[b"content-length"]):
        body += read_some(link)


def read_some(link):
    data = link.recv(65536)
    if not data:
        sys.exit("the proxy has closed the connection")
    return data


def handshakes(port, secs, kind):
    context, session, count, resumed = insecure_context(), None, 0, 0
    end = time.monotonic() + float(secs)
    start = time.monotonic()
    while time.monotonic() < end:
        plain = socket.create_connection(("127.0.0.1", int(port)), 10)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(plain, server_hostname="bench.test", session=session) as link:
            link.sendall(REQUEST)
            read_response(link)
            count, resumed = count + 1, resumed + link.session_reused
            # In TLS 1.3 the session ticket arrives after the handshake.
            session = link.session if kind == "resumed" else None
    expected = count - 1 if kind == "resumed" else 0
    print(json.dumps({"requests": count, "secs": time.monotonic() - start, "mismatched": abs(resumed - expected)}))


def idle(port, count, kind):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < int(count) + 100:
        sys.exit(f"{count} connections need `ulimit -Hn` above that; it is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context, handles = insecure_context(), []
    for _ in range(int(count)):
        link = socket.create_connection(("127.0.0.1", int(port)), 10)
        if kind == "tls":
            link = context.wrap_socket(link, server_hostname="bench.test")
        link.sendall(H2_REQUEST if kind == "h2" else REQUEST)
        if kind == "h2":
            data = b""
            # The response ends with END_STREAM on stream 1.
            while not h2_ended(data):
                data += read_some(link)
            # Without the acknowledgement of its SETTINGS the proxy would close the connection.
            link.sendall(b"\0\0\0\x04\x01\0\0\0\0")
        else:
            read_response(link)
        # Only the socket is kept, to save the memory of this side's TLS state.
        handles.append(link.detach())
    print(json.dumps({"requests": len(handles)}), flush=True)
    sys.stdin.read()
    for handle in handles:
        os.close(handle)


def h2_ended(data):
    """True if the frames in `data` end stream 1. Exits if the proxy has reset it or is closing the connection."""
    at = 0
    while at + 9 <= len(data):
        length = int.from_bytes(data[at:at + 3], "big")
        kind, flags, stream = data[at + 3], data[at + 4], int.from_bytes(data[at + 5:at + 9], "big")
        if kind in (3, 7):
            sys.exit(f"RST_STREAM or GOAWAY: {data[at:at + 9 + length]!r}")
        if kind in (0, 1) and flags & 1 and stream == 1:
            return True
        at += 9 + length
    return False


if __name__ == "__main__":
    work, *rest = sys.argv[1:]
    run = {"echo": echo, "tunnels": tunnels, "handshakes": handshakes, "idle": idle}[work]
    if asyncio.iscoroutinefunction(run):
        asyncio.run(run(*rest))
    else:
        run(*rest)
