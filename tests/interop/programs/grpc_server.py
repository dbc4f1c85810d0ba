"""A gRPC server on grpcio: messages are plain bytes. `grpc_server.py PORT`; run by tests/interop/grpc.rs."""
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

ended = {"cancelled": 0, "late": 0}
changed = threading.Condition()


def unary(message, context):
    context.send_initial_metadata((("x-early", "1"), ("x-peer", context.peer())))
    context.set_trailing_metadata((("x-late", "2"), ("x-bytes-bin", b"\0\xff")))
    return message


def metadata(message, context):
    """Returns the received metadata, one entry per line."""
    return "\n".join(f"{name}={value}" for name, value in context.invocation_metadata()).encode()


def fail(message, context):
    context.set_trailing_metadata((("x-why", "because"),))
    context.abort(grpc.StatusCode.NOT_FOUND, "nothing, 100% \u00fc")


def down(message, context):
    """Sends the requested number of messages, each of 10,000 bytes, and then an error."""
    for number in range(int(message)):
        yield number.to_bytes(4, "big") * 2500
    context.abort(grpc.StatusCode.DATA_LOSS, "that was all")


def up(messages, context):
    return str(sum(len(message) for message in messages)).encode()


def chat(messages, context):
    for message in messages:
        yield b"re: " + message


def wait(message, context):
    """Sends one message, and counts how the call ended."""
    over = threading.Event()
    kind = "late" if context.time_remaining() < 1000 else "cancelled"

    # If the call ends while its first message is being sent, the code after `yield` does not run.
    def end():
        with changed:
            ended[kind] += 1
            changed.notify_all()
        over.set()

    context.add_callback(end)
    yield b"waiting"
    over.wait(20)


def ends(message, context):
    """Waits until a call of that kind has ended."""
    with changed:
        return b"yes" if changed.wait_for(lambda: ended[message.decode()], 10) else b"no"


def remaining(message, context):
    left = context.time_remaining()
    return b"none" if left is None else str(left).encode()


CALLS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Metadata": grpc.unary_unary_rpc_method_handler(metadata),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Down": grpc.unary_stream_rpc_method_handler(down),
    "Up": grpc.stream_unary_rpc_method_handler(up),
    "Chat": grpc.stream_stream_rpc_method_handler(chat),
    "Wait": grpc.unary_stream_rpc_method_handler(wait),
    "Ends": grpc.unary_unary_rpc_method_handler(ends),
    "Remaining": grpc.unary_unary_rpc_method_handler(remaining),
}

server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.App", CALLS),))
if server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}") == 0:
    sys.exit("the port is taken")
server.start()
server.wait_for_termination()
