"""The clients of OpenAI and Anthropic behind the gateway. Arguments: which of them, and the URL of the gateway."""

import sys

import anthropic
import openai

PLAIN = {"accept-encoding": "identity"}
MESSAGES = [{"role": "user", "content": "hello"}]


def openai_client(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
    for headers in [PLAIN, {}]:
        chat = client.chat.completions.create(model="large", messages=MESSAGES, max_tokens=20, extra_headers=headers)
        assert chat.usage.total_tokens == 57 and chat.choices[0].message.content == "hello"
        # The client does not ask for usage; the gateway does.
        chunks = list(client.chat.completions.create(model="large", messages=MESSAGES, stream=True, extra_headers=headers))
        assert chunks[-1].usage.total_tokens == 57 and len(chunks) == 6, chunks
        assert client.embeddings.create(model="small", input="x", encoding_format="float", extra_headers=headers).usage.total_tokens == 5
        assert client.responses.create(model="large", input="x", extra_headers=headers).usage.total_tokens == 57
        events = list(client.responses.create(model="large", input="x", stream=True, extra_headers=headers))
        assert events[-1].response.usage.total_tokens == 57
    # A client that breaks off a stream.
    slow = [{"role": "user", "content": "slow"}]
    stream = client.chat.completions.create(model="large", messages=slow, stream=True, extra_headers=PLAIN)
    next(iter(stream))
    stream.close()


def anthropic_client(url):
    client = anthropic.Anthropic(base_url=url, api_key="key", max_retries=0)
    for headers in [PLAIN, {}]:
        message = client.messages.create(model="large", max_tokens=20, messages=MESSAGES, extra_headers=headers)
        assert message.usage.output_tokens == 7
        with client.messages.stream(model="large", max_tokens=20, messages=MESSAGES, extra_headers=headers) as stream:
            assert stream.get_final_message().usage.output_tokens == 7
        events = list(client.messages.create(model="large", max_tokens=20, messages=MESSAGES, stream=True, extra_headers=headers))
        assert events[-1].type == "message_stop"


def refused_openai(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=5)
    try:
        client.chat.completions.create(model="large", messages=MESSAGES, max_tokens=20)
    except openai.RateLimitError as error:
        assert error.code == "insufficient_quota" and error.type == "insufficient_quota", error.body
        assert error.response.headers["x-should-retry"] == "false"
        return
    raise AssertionError("not refused")


def refused_anthropic(url):
    client = anthropic.Anthropic(base_url=url, api_key="key", max_retries=5)
    try:
        client.messages.create(model="large", max_tokens=20, messages=MESSAGES)
    except anthropic.RateLimitError as error:
        assert error.body["error"]["type"] == "rate_limit_error", error.body
        return
    raise AssertionError("not refused")


def free_calls(url):
    """Lists, polls, counting and errors."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
    for call in [client.models.list, lambda: client.responses.retrieve("1"), lambda: client.batches.retrieve("1")]:
        try:
            call()
        except openai.NotFoundError:
            pass
    for call in [lambda: client.moderations.create(input="x"), lambda: client.post("/chat/completions", cast_to=object, body={"fail": True})]:
        try:
            call()
            raise AssertionError("not an error")
        except openai.APIStatusError as error:
            assert error.status_code in [400, 404], error
    counting = anthropic.Anthropic(base_url=url, api_key="key", max_retries=0)
    try:
        counting.messages.count_tokens(model="large", messages=MESSAGES)
    except anthropic.NotFoundError:
        pass
    nobody = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
    try:
        nobody.responses.create(model="large", input="x", extra_headers={"x-api-key": "other"})
        raise AssertionError("two credentials")
    except openai.BadRequestError:
        pass


globals()[sys.argv[1]](sys.argv[2])
