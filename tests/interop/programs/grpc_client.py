"""A gRPC client on grpcio, `grpc_client.py SCENARIO ADDRESS [CA-FILE]`; run by tests/interop/grpc.rs. Fails with a
message if a result is wrong."""
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import grpc

TIMEOUT_S = 20


def channel(address, ca):
    options = [("grpc.enable_http_proxy", 0)]
    if ca is None:
        return grpc.insecure_channel(address, options)
    with open(ca, "rb") as file:
        secrets = grpc.ssl_channel_credentials(file.read())
    # The name in the certificate.
    return grpc.secure_channel(address, secrets, options + [("grpc.ssl_target_name_override", "a.test")])


def refused(call, code):
    """Returns the error of a call that must fail with `code`."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() is code, f"{error.code()} in place of {code}: {error.details()}"
        return error
    raise AssertionError(f"no {code}")


def metadata(found):
    return {name: value for name, value in found}


def calls(server):
    """Each kind of call, with its metadata and status, from many at once on one connection."""
    unary, fail = server.unary_unary("/test.App/Unary"), server.unary_unary("/test.App/Fail")
    for body in (b"", b"hello", b"x" * 1_000_000):
        response, call = unary.with_call(body, timeout=TIMEOUT_S, metadata=(("x-a-bin", b"\0\1"),))
        assert response == body and call.code() is grpc.StatusCode.OK
        assert metadata(call.initial_metadata())["x-early"] == "1", call.initial_metadata()
        late = metadata(call.trailing_metadata())
        assert (late["x-late"], late["x-bytes-bin"]) == ("2", b"\0\xff"), late
    received = server.unary_unary("/test.App/Metadata")(b"", timeout=TIMEOUT_S, metadata=(("x-a", "1"), ("authorization", "t")))
    fields = dict(line.split("=", 1) for line in received.decode().splitlines())
    assert (fields["x-a"], fields["authorization"], fields["x-forwarded-for"]) == ("1", "t", "127.0.0.1"), fields
    assert fields["user-agent"].startswith("grpc-python/"), fields

    error = refused(lambda: fail(b"", timeout=TIMEOUT_S), grpc.StatusCode.NOT_FOUND)
    assert error.details() == "nothing, 100% \u00fc", error.details()
    assert metadata(error.trailing_metadata())["x-why"] == "because"
    refused(lambda: server.unary_unary("/test.App/None")(b"", timeout=TIMEOUT_S), grpc.StatusCode.UNIMPLEMENTED)

    messages, down = [], server.unary_stream("/test.App/Down")(b"300", timeout=TIMEOUT_S)
    error = refused(lambda: messages.extend(down), grpc.StatusCode.DATA_LOSS)
    assert error.details() == "that was all"
    # Messages before the error reach the application.
    assert [int.from_bytes(message[:4], "big") for message in down_whole(server)] == list(range(300))
    total = server.stream_unary("/test.App/Up")((b"x" * 10_000 for _ in range(300)), timeout=TIMEOUT_S)
    assert total == b"3000000", total

    with ThreadPoolExecutor(40) as many:
        bodies = [bytes([number]) * number * 1000 for number in range(40)]
        assert list(many.map(lambda body: unary(body, timeout=TIMEOUT_S), bodies)) == bodies


def down_whole(server):
    found = []
    call = server.unary_stream("/test.App/Down")(b"300", timeout=TIMEOUT_S)
    try:
        for message in call:
            assert len(message) == 10_000
            found.append(message)
    except grpc.RpcError:
        pass
    return found


def chat(server):
    """A bidirectional call: each message gets a response before the next one is sent."""
    to_send = SimpleQueue()
    call = server.stream_stream("/test.App/Chat")(iter(to_send.get, None), timeout=TIMEOUT_S)
    for number in range(50):
        message = f"{number} ".encode() * (1 + number * 40)
        to_send.put(message)
        assert next(call) == b"re: " + message
    to_send.put(None)
    assert next(call, None) is None and call.code() is grpc.StatusCode.OK


def leave(server):
    """The server notices a cancelled call, and the connection stays usable."""
    call = server.unary_stream("/test.App/Wait")(b"")
    assert next(call) == b"waiting"
    call.cancel()
    assert server.unary_unary("/test.App/Ends")(b"cancelled", timeout=TIMEOUT_S) == b"yes"


def deadline(server):
    """The server learns the deadline, and a call ends at it on both sides."""
    remaining = server.unary_unary("/test.App/Remaining")
    left = float(remaining(b"", timeout=500))
    assert 300 < left <= 500, left
    start = time.monotonic()
    call = server.unary_stream("/test.App/Wait")(b"", timeout=1)
    refused(lambda: list(call), grpc.StatusCode.DEADLINE_EXCEEDED)
    assert time.monotonic() - start < TIMEOUT_S / 2
    assert server.unary_unary("/test.App/Ends")(b"late", timeout=TIMEOUT_S) == b"yes"


def limited(server):
    """Two may, the third is received when, in the form that its library knows."""
    unary = server.unary_unary("/test.App/Unary")
    assert [unary(b"x", timeout=TIMEOUT_S), unary(b"y", timeout=TIMEOUT_S)] == [b"x", b"y"]
    error = refused(lambda: unary(b"z", timeout=TIMEOUT_S), grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert error.details() == "request quota exceeded: two", error.details()
    wait_ms = int(metadata(error.trailing_metadata())["grpc-retry-pushback-ms"])
    assert 0 < wait_ms <= 43_200_000, wait_ms
    # A stream is refused at its start, on the same connection.
    error = refused(lambda: list(server.stream_stream("/test.App/Chat")(iter([b"a"]))), grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "two" in error.details()
    error = refused(lambda: server.unary_unary("/denied.App/Unary")(b"", timeout=TIMEOUT_S), grpc.StatusCode.PERMISSION_DENIED)


def pauses(server):
    """A client stream with a pause before each message; the server responds to the last."""

    def messages():
        for _ in range(3):
            time.sleep(0.7)
            yield b"0123456789"

    assert server.stream_unary("/test.App/Up")(messages(), timeout=TIMEOUT_S) == b"30"


def away(server):
    """Without a server behind the gateway the status is UNAVAILABLE, after which clients may retry."""
    refused(lambda: server.unary_unary("/test.App/Unary")(b"", timeout=TIMEOUT_S), grpc.StatusCode.UNAVAILABLE)


if __name__ == "__main__":
    scenario, address, *ca = sys.argv[1:]
    with channel(address, ca[0] if ca else None) as server:
        {one.__name__: one for one in (calls, chat, leave, deadline, limited, pauses, away)}[scenario](server)
