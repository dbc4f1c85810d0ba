"""HTTP clients for Python, `python_clients.py SCENARIO URL CA-FILE`, each through its own API; run by
tests/interop/python.rs. Fails with a message if a result is wrong."""
import asyncio
import hashlib
import json
import os
import socket
import ssl
import sys
from urllib.parse import urlsplit

import aiohttp
import h2.config
import h2.connection
import h2.events
import httpx
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

TIMEOUT_S = 20
BODY = bytes(range(256)) * 8000
SHA256 = hashlib.sha256(BODY).hexdigest()


def httpx_client(url, trust):
    for http2, version in ((True, "HTTP/2"), (False, "HTTP/1.1")):
        with httpx.Client(http2=http2, verify=trust, base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
            pieces = (BODY[at:at + 10_000] for at in range(0, len(BODY), 10_000))
            for content in (BODY, pieces):
                seen = client.put("/seen?x=%C3%BC", content=content, headers={"x-a": "1"})
                assert (seen.http_version, seen.status_code) == (version, 200), seen
                found = seen.json()
                assert (found["sha256"], found["url"]) == (SHA256, "/seen?x=%C3%BC"), found
                assert (found["headers"]["x-a"], found["headers"]["x-forwarded-proto"]) == ("1", "https"), found
            with client.stream("GET", "/bytes/3000000") as response:
                assert sum(len(piece) for piece in response.iter_raw()) == 3_000_000
            files = {"file": ("name.bin", BODY, "application/octet-stream")}
            assert client.post("/seen", files=files, data={"a": "b"}).json()["length"] > len(BODY)
            response = client.get("/cookies", follow_redirects=True)
            assert response.json()["headers"]["cookie"] == "a=1; b=x%20y", response.json()
            # After an error response the connection stays usable.
            assert client.get("/missing").status_code == 404


def httpx_streams(url, trust):
    """Many concurrent streams on one connection."""
    async def main():
        async with httpx.AsyncClient(http2=True, verify=trust, base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
            responses = await asyncio.gather(*(client.post("/seen", content=b"x" * n * 500) for n in range(60)))
            assert [response.json()["length"] for response in responses] == [n * 500 for n in range(60)]
            assert {response.http_version for response in responses} == {"HTTP/2"}
    asyncio.run(main())


def httpx_events(url, trust):
    """Server-sent events: each is requested after the previous one was read."""
    for http2 in (True, False):
        with httpx.Client(http2=http2, verify=trust, base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
            with client.stream("GET", "/events") as response:
                assert response.headers["content-type"] == "text/event-stream"
                lines = response.iter_lines()
                for number in range(5):
                    assert next(line for line in lines if line.startswith("data:")) == f"data: event {number}"
                    assert client.post("/next").json()["streams"] == 1


def httpx_limit(url, trust):
    """Two requests a day; the third one fails with the retry time."""
    with httpx.Client(http2=True, verify=trust, base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        for left in (1, 0):
            response = client.get("/bytes/1").raise_for_status()
            assert f"r={left};" in response.headers["ratelimit"], response.headers
        try:
            client.get("/bytes/1").raise_for_status()
            raise AssertionError("three requests passed")
        except httpx.HTTPStatusError as error:
            refused = error.response
        assert refused.status_code == httpx.codes.TOO_MANY_REQUESTS
        assert 0 < int(refused.headers["retry-after"]) <= 43_200, refused.headers
        assert refused.json()["violated-policies"] == ["two"], refused.text


def httpx_refused_upload(url, trust):
    """httpx sends the whole body before it reads the refusal, over both protocols."""
    httpx.get(url + "/bytes/1", verify=trust, trust_env=False).raise_for_status()
    for is_http2 in (True, False):
        for size in (100, 1_000_000, 20_000_000):
            with httpx.Client(
                http1=not is_http2, http2=is_http2, verify=trust, base_url=url, timeout=TIMEOUT_S, trust_env=False
            ) as client:
                refused = client.post("/seen", content=b"x" * size)
                assert refused.status_code == httpx.codes.TOO_MANY_REQUESTS, (is_http2, size, refused.status_code)
                assert int(refused.headers["retry-after"]) > 0, refused.headers
                assert refused.headers["cache-control"] == "no-store", refused.headers


def aiohttp_client(url, trust):
    async def main():
        timeout = aiohttp.ClientTimeout(TIMEOUT_S)
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as client:
            async def pieces():
                for at in range(0, len(BODY), 10_000):
                    yield BODY[at:at + 10_000]

            for options in ({}, {"expect100": True}, {"compress": "deflate"}):
                async with client.post("/seen", data=pieces(), **options) as response:
                    found = await response.json()
                    if not options.get("compress"):
                        assert found["sha256"] == SHA256, found
                    assert response.version == aiohttp.HttpVersion11
            sizes = await asyncio.gather(*(client.get(f"/bytes/{n * 777}") for n in range(40)))
            assert [len(await response.read()) for response in sizes] == [n * 777 for n in range(40)]
            async with client.ws_connect("/socket", compress=15) as tunnel:
                assert tunnel.compress == 15
                for text in ("a", "\u00fc" * 70_000):
                    await tunnel.send_str(text)
                    assert await tunnel.receive_str() == text
                await tunnel.send_bytes(BODY)
                assert await tunnel.receive_bytes() == BODY
                await tunnel.send_str("leave")
                message = await tunnel.receive()
                assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4001), message
    asyncio.run(main())


def websockets_client(url, trust):
    target = url.replace("https:", "wss:")
    with connect(f"{target}/socket", ssl=trust, proxy=None, open_timeout=TIMEOUT_S, close_timeout=TIMEOUT_S) as tunnel:
        assert "permessage-deflate" in tunnel.response.headers["sec-websocket-extensions"]
        for message in ("hello", "x" * 200_000, BODY[:100_000]):
            tunnel.send(message)
            assert tunnel.recv(TIMEOUT_S) == message
        assert tunnel.ping().wait(TIMEOUT_S)
        # A message in several frames.
        tunnel.send(iter(["one, ", "two"]))
        assert tunnel.recv(TIMEOUT_S) == "one, two"
        tunnel.send("leave")
        try:
            tunnel.recv(TIMEOUT_S)
            raise AssertionError("the tunnel stays open")
        except ConnectionClosedError as error:
            assert (error.rcvd.code, error.rcvd.reason) == (4001, "as asked"), error
    # The second tunnel of the day is refused before it reaches the application.
    try:
        connect(f"{target}/socket", ssl=trust, proxy=None, open_timeout=TIMEOUT_S)
        raise AssertionError("two requests passed")
    except InvalidStatus as error:
        assert error.response.status_code == 429 and int(error.response.headers["retry-after"]) > 0


def h2_client(url, trust):
    """hyper-h2 with manual flow control: the window of the client bounds the received data."""
    parts = urlsplit(url)
    trust.set_alpn_protocols(["h2"])
    link = trust.wrap_socket(socket.create_connection((parts.hostname, parts.port), TIMEOUT_S), server_hostname=parts.hostname)
    assert link.selected_alpn_protocol() == "h2"
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()

    def get(stream, path, *fields):
        head = [(":method", "GET"), (":path", path), (":scheme", "https"), (":authority", parts.netloc)]
        connection.send_headers(stream, [*head, *fields], end_stream=True)

    get(1, "/bytes/300000")
    get(3, "/trailers", ("te", "trailers"))
    link.sendall(connection.data_to_send())
    received, ended, held, trailers = {1: 0, 3: 0}, set(), [], None
    while ended != {1, 3}:
        data = link.recv(65536)
        assert data, "the gateway has closed"
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                received[event.stream_id] += len(event.data)
                held.append((event.flow_controlled_length, event.stream_id))
                # The gateway uses the whole window, but not more.
                if sum(size for size, _ in held) == 65_535:
                    for size, stream in held:
                        connection.increment_flow_control_window(size)
                        if stream == 1:
                            connection.increment_flow_control_window(size, stream)
                    held.clear()
            elif isinstance(event, h2.events.TrailersReceived):
                trailers = dict(event.headers)
            elif isinstance(event, h2.events.StreamEnded):
                ended.add(event.stream_id)
            elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                raise AssertionError(event)
        link.sendall(connection.data_to_send())
    assert received == {1: 300_000, 3: 4} and trailers == {"x-sum": "4"}, (received, trailers)
    # A cancelled stream does not affect the connection.
    get(5, "/events")
    connection.reset_stream(5, 8)
    get(7, "/bytes/10")
    link.sendall(connection.data_to_send())
    while 7 not in ended:
        data = link.recv(65536)
        assert data, "the gateway has closed"
        ended |= {event.stream_id for event in connection.receive_data(data) if isinstance(event, h2.events.StreamEnded)}


if __name__ == "__main__":
    scenario, url, ca = sys.argv[1:]
    one = (httpx_client, httpx_streams, httpx_events, httpx_limit, httpx_refused_upload, aiohttp_client, websockets_client, h2_client)
    {run.__name__: run for run in one}[scenario](url, ssl.create_default_context(cafile=ca))
