# /// script
# dependencies = ["fastapi==0.165.0", "uvicorn==0.54.0", "openai==3.54.0"]
# [tool.apps]
# application = "FastAPI (event streams)"
# version = "pypi:fastapi"
# client = "openai SDK"
# ///
"""An API like OpenAI's in FastAPI, which streams its responses as events, and the SDK of OpenAI as the client."""

import time
from concurrent.futures import ThreadPoolExecutor

import openai
from harness import VENV, DIR, Gateway, start, until

APP = """
import asyncio, json
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()

async def chunks(count):
    for number in range(count):
        choice = {"index": 0, "delta": {"content": f"{number} "}, "finish_reason": None}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
        yield f"data: {json.dumps(chunk)}\\n\\n"
        await asyncio.sleep(0.1)
    yield "data: [DONE]\\n\\n"

@app.get("/v1/models")
def models():
    return {"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "me"}]}

@app.post("/v1/chat/completions")
async def chat(request: dict):
    return StreamingResponse(chunks(int(request["messages"][0]["content"])), media_type="text/event-stream")
"""


def stream(client, count):
    """Starts a response of `count` words, one each 0.1 s."""
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(count)}], stream=True)


def words(chunks):
    return "".join(chunk.choices[0].delta.content for chunk in chunks)


def main():
    gateway = Gateway("applications.md", "OpenAI-compatible APIs")
    (DIR / "app.py").write_text(APP)
    start([VENV / "uvicorn", "app:app", "--port", str(gateway.app_port)], gateway.app_port)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-anna")
    impatient = client.with_options(max_retries=0)

    # The first word arrives long before the last one.
    begin = time.monotonic()
    chunks = stream(client, 20)
    next(iter(chunks))
    first = time.monotonic() - begin
    words(chunks)
    assert first < (time.monotonic() - begin) / 2, first

    # Two streams for each key.
    two = [stream(client, 100) for _ in range(2)]
    try:
        stream(impatient, 5)
        raise AssertionError("a third stream was not refused")
    except openai.RateLimitError as error:
        assert error.response.headers["retry-after"], error.response.headers
    assert stream(client.with_options(api_key="sk-bert"), 1), "another key has streams of its own"
    # A client that leaves frees its slot.
    for chunks in two:
        chunks.close()
    until(lambda: len(gateway.log(reason="client_left", route="llm")) == 2, "the streams have ended")
    # The SDK tries again by itself.
    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(lambda _: words(stream(client, 8)), range(3)))
    assert texts == ["0 1 2 3 4 5 6 7 "] * 3, texts

    # Sixty requests a minute: the SDK waits as long as `Retry-After` says.
    for _ in range(300):
        try:
            impatient.models.list()
        except openai.RateLimitError as error:
            wait = float(error.response.headers["retry-after"])
            break
    assert client.models.list().data[0].id == "m"
    gateway.expect(refused_by="requests")
    assert 0 < wait <= 2 and len(gateway.log(refused_by="requests")) <= 2, "the SDK gets through at its first retry"

    assert gateway.fetch("/v1/models")[0] == 403, "a request without a key"


main()
