"""A server with the APIs of OpenAI and Anthropic, which reports its usage as they do. Argument: the port."""

import gzip
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHAT_USAGE = {"prompt_tokens": 50, "completion_tokens": 7, "total_tokens": 57}
RESPONSE_USAGE = {
    "output_tokens": 7,
    "input_tokens": 50,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 57,
}
MESSAGE_USAGE = {"input_tokens": 30, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 20, "output_tokens": 7}


def chat(request):
    base = {"id": "1", "created": 0, "model": "large-2026"}
    if not request.get("stream"):
        message = {"role": "assistant", "content": "hello"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return base | {"object": "chat.completion", "choices": choices, "usage": CHAT_USAGE}
    base["object"] = "chat.completion.chunk"
    choice = {"index": 0, "delta": {"content": "hello "}, "finish_reason": None}
    events = [base | {"choices": [choice], "usage": None}] * 5
    if (request.get("stream_options") or {}).get("include_usage"):
        events = events + [base | {"choices": [], "usage": CHAT_USAGE}]
    return [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]


def response(request):
    whole = {
        "id": "1", "object": "response", "created_at": 0, "model": "large-2026", "output": [], "tools": [],
        "parallel_tool_calls": False, "tool_choice": "auto", "usage": RESPONSE_USAGE, "status": "completed",
    }
    if not request.get("stream"):
        return whole
    events = [
        {"type": "response.created", "sequence_number": 0, "response": whole | {"usage": None}},
        {"type": "response.completed", "sequence_number": 1, "response": whole},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def message(request):
    assert "stream_options" not in request, "the API refuses members that it does not know"
    whole = {
        "id": "1", "type": "message", "role": "assistant", "model": "large-2026", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "hello"}], "usage": MESSAGE_USAGE,
    }
    if not request.get("stream"):
        return whole
    start = whole | {"content": [], "stop_reason": None, "usage": MESSAGE_USAGE | {"output_tokens": 1}}
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def embedding(request):
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    return {"object": "list", "data": data, "model": "small", "usage": {"prompt_tokens": 5, "total_tokens": 5}}


PAGES = {
    "/v1/chat/completions": chat, "/v1/responses": response, "/v1/messages": message, "/v1/embeddings": embedding,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def refuse(self, status):
        body = b'{"error": {"message": "no", "type": "error", "code": null, "param": null}}'
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.refuse(404)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path not in PAGES or request.get("fail"):
            return self.refuse(400 if self.path in PAGES else 404)
        answer = PAGES[self.path](request)
        is_stream = isinstance(answer, list)
        pieces = [piece.encode() for piece in answer] if is_stream else [json.dumps(answer).encode()]
        accepted = self.headers.get("accept-encoding", "")
        assert "br" not in accepted, accepted
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        if "gzip" in accepted:
            self.send_header("content-encoding", "gzip")
            pieces = [gzip.compress(b"".join(pieces))]
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces + [b""]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            time.sleep(1 if "slow" in str(request) else 0)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
