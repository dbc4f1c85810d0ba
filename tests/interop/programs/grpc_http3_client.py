"""gRPC over HTTP/3, by hand on aioquic because no library of gRPC offers it: `grpc_http3_client.py SCENARIO ADDRESS CA-FILE`;
run by tests/interop/grpc.rs. Fails with a message if a result is wrong."""
import asyncio
import sys
from collections import defaultdict

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

TIMEOUT_S = 20
REQUEST_CANCELLED = 0x10C


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.http = H3Connection(self._quic)
        self.events = defaultdict(asyncio.Queue)

    def quic_event_received(self, event):
        for part in self.http.handle_event(event):
            if isinstance(part, (HeadersReceived, DataReceived)):
                self.events[part.stream_id].put_nowait(part)

    def call(self, method):
        return Call(self, method)


class Call:
    """One call: the fields of its response are in `head`, those of its trailers in `trailers`."""

    def __init__(self, client, method):
        self.client, self.stream = client, client._quic.get_next_available_stream_id()
        self.head, self.trailers, self.unread = None, None, b""
        fields = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", method), ("te", "trailers")]
        fields += [("content-type", "application/grpc"), ("x-a", "1")]
        client.http.send_headers(self.stream, [(name.encode(), value.encode()) for name, value in fields])
        client.transmit()

    def send(self, message=None, is_last=False):
        self.client.http.send_data(self.stream, b"" if message is None else framed(message), is_last)
        self.client.transmit()

    async def receive(self):
        """Returns the next message, or None at the end of the call."""
        while True:
            end = 5 + int.from_bytes(self.unread[1:5], "big")
            if 5 <= len(self.unread) and end <= len(self.unread):
                message, self.unread = self.unread[5:end], self.unread[end:]
                return message
            event = await asyncio.wait_for(self.client.events[self.stream].get(), TIMEOUT_S)
            if isinstance(event, DataReceived):
                self.unread += event.data
            else:
                fields = {name.decode(): value.decode() for name, value in event.headers}
                self.head, self.trailers = (fields, self.trailers) if self.head is None else (self.head, fields)
            if event.stream_ended:
                # Without messages, the head may be the trailers as well.
                self.trailers = self.trailers or self.head
                return await self.receive() if self.unread else None

    async def rest(self):
        return [message async for message in aiter_until_none(self.receive)]

    def assert_ended(self, status):
        assert self.head[":status"] == "200" and self.head["content-type"].startswith("application/grpc"), self.head
        assert self.trailers["grpc-status"] == str(status), self.trailers


async def aiter_until_none(receive):
    while (message := await receive()) is not None:
        yield message


async def unary(client, method, message):
    call = client.call(method)
    call.send(message, is_last=True)
    return call, await call.rest()


async def calls(client):
    """Each kind of call, with its metadata and status."""
    for body in (b"", b"hello", b"x" * 1_000_000):
        call, messages = await unary(client, "/test.App/Unary", body)
        assert messages == [body]
        call.assert_ended(0)
        assert (call.head["x-early"], call.trailers["x-late"]) == ("1", "2"), (call.head, call.trailers)
    _, [fields] = await unary(client, "/test.App/Metadata", b"")
    fields = dict(line.split("=", 1) for line in fields.decode().splitlines())
    assert (fields["x-a"], fields["x-forwarded-for"]) == ("1", "127.0.0.1"), fields
    call, messages = await unary(client, "/test.App/Fail", b"")
    call.assert_ended(5)
    assert (messages, call.trailers["x-why"]) == ([], "because"), call.trailers
    call, messages = await unary(client, "/test.App/Down", b"300")
    call.assert_ended(15)
    assert [int.from_bytes(message[:4], "big") for message in messages] == list(range(300))
    up = client.call("/test.App/Up")
    for _ in range(300):
        up.send(b"x" * 10_000)
    up.send(is_last=True)
    assert await up.rest() == [b"3000000"]
    up.assert_ended(0)
    many = [unary(client, "/test.App/Unary", bytes([number]) * number * 1000) for number in range(40)]
    for number, (_, messages) in enumerate(await asyncio.gather(*many)):
        assert messages == [bytes([number]) * number * 1000]


async def chat(client):
    """A bidirectional call: each message gets a response before the next one is sent."""
    call = client.call("/test.App/Chat")
    for number in range(50):
        message = f"{number} ".encode() * (1 + number * 40)
        call.send(message)
        assert await call.receive() == b"re: " + message
    call.send(is_last=True)
    assert await call.receive() is None
    call.assert_ended(0)


async def leave(client):
    """The server notices a cancelled call, and the connection stays usable."""
    call = client.call("/test.App/Wait")
    call.send(b"", is_last=True)
    assert await call.receive() == b"waiting"
    client._quic.stop_stream(call.stream, REQUEST_CANCELLED)
    client.transmit()
    _, messages = await unary(client, "/test.App/Ends", b"cancelled")
    assert messages == [b"yes"]


async def limited(client):
    """Two may. The third gets a status of gRPC, also if it is a stream that does not end."""
    for body in (b"x", b"y"):
        assert (await unary(client, "/test.App/Unary", body))[1] == [body]
    call, messages = await unary(client, "/test.App/Unary", b"z")
    call.assert_ended(8)
    assert messages == [] and 0 < int(call.trailers["grpc-retry-pushback-ms"]) <= 43_200_000, call.trailers
    stream = client.call("/test.App/Chat")
    stream.send(b"a")
    assert await stream.rest() == []
    stream.assert_ended(8)


async def main(scenario, address, ca):
    host, port = address.rsplit(":", 1)
    config = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="a.test")
    config.load_verify_locations(ca)
    async with connect(host, int(port), configuration=config, create_protocol=Client) as client:
        await {one.__name__: one for one in (calls, chat, leave, limited)}[scenario](client)


asyncio.run(main(*sys.argv[1:]))
