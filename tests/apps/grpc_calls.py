# /// script
# dependencies = ["grpcio==1.85.1"]
# [tool.apps]
# application = "gRPC"
# version = "pypi:grpcio"
# client = "grpcio"
# ///
"""A gRPC service with a call of each kind, and the client of the same library, over HTTP/2 without TLS."""

import json
import queue
from concurrent import futures

import grpc
from harness import HTTP, Gateway, until

SERVICE = "helloworld.Greeter"
# Waits as long as the response asks for, if that is less than the deadline of the call.
RETRY = {"methodConfig": [{"name": [{"service": SERVICE}], "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}


def serve(port):
    """Messages are texts in UTF-8: which format they have makes no difference to a gateway."""
    handlers = {
        "SayHello": grpc.unary_unary_rpc_method_handler(lambda name, _: b"hello " + name),
        "Count": grpc.unary_stream_rpc_method_handler(lambda last, _: (b"%d" % n for n in range(int(last)))),
        "Upload": grpc.stream_unary_rpc_method_handler(lambda parts, _: b"%d" % sum(map(len, parts))),
        "Echo": grpc.stream_stream_rpc_method_handler(lambda messages, _: messages),
    }
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    server.start()
    return server


def refusal(call, **options):
    """The error of a call that must fail."""
    try:
        call(b"", **options)
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call was not refused")


def main():
    gateway = Gateway("applications.md", "gRPC")
    server = serve(gateway.app_port)
    channel = grpc.insecure_channel(f"localhost:{HTTP}")
    key = [("x-api-key", "anna")]

    hello = channel.unary_unary(f"/{SERVICE}/SayHello")
    assert hello(b"anna", metadata=key) == b"hello anna"
    # More than the default of `max_body`, in one message of less than the 4 MiB of gRPC each.
    parts = (bytes(3 << 20) for _ in range(5))
    assert channel.stream_unary(f"/{SERVICE}/Upload")(parts, metadata=key) == b"%d" % (15 << 20)
    counted = channel.unary_stream(f"/{SERVICE}/Count")(b"1000", metadata=key)
    assert [int(number) for number in counted] == list(range(1000))

    # Each message is sent when the response to the one before has arrived: nothing is buffered.
    waiting = queue.Queue()
    waiting.put(b"0")
    echoes = []
    for echo in channel.stream_stream(f"/{SERVICE}/Echo")(iter(waiting.get, None), metadata=key):
        echoes.append(echo)
        waiting.put(b"%d" % len(echoes) if len(echoes) < 10 else None)
    assert echoes == [b"%d" % number for number in range(10)], echoes

    error = refusal(hello)
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "x-api-key" in error.details(), error

    other = [("x-api-key", "bert")]
    error = refusal(lambda message, **options: [hello(message, **options) for _ in range(300)], metadata=other)
    pushback = int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and 0 < pushback <= 700, (error, pushback)
    # A client with a retry policy waits for that long, and then succeeds.
    patient = grpc.insecure_channel(f"localhost:{HTTP}", [("grpc.service_config", json.dumps(RETRY))])
    before = len(gateway.log(refused_by="calls"))

    def waited():
        assert patient.unary_unary(f"/{SERVICE}/SayHello")(b"bert", metadata=other) == b"hello bert"
        return len(gateway.log(refused_by="calls")) > before

    until(waited, "a call was refused and then admitted")
    server.stop(None)


main()
