"""Prompts are recorded on the wire, through a session, and at a simulated provider, each request once."""

from __future__ import annotations

import asyncio

import anthropic
import httpx
import openai
import pytest

from cacheprefix import Session
from cacheprefix.adapter import Request
from cacheprefix.errors import SetupError
from cacheprefix.testing import PrefixRecorder


def _answer(_):
    return httpx.Response(200, json={"choices": []})


def test_every_model_request_over_http_is_recorded(prefix_recorder, provider):
    """By the clients of both SDKs, which use different HTTP packages, whatever answers."""
    with openai.OpenAI(base_url=provider.openai_base_url, api_key="k") as client:
        client.chat.completions.create(model="gpt-5.6", messages=[{"role": "user", "content": "a"}])
        client.responses.create(model="gpt-5.6", input="b")
    with anthropic.Anthropic(base_url=provider.anthropic_base_url, api_key="k") as client:
        client.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=[{"role": "user", "content": "c"}])
    assert [call.prompt.api for call in prefix_recorder] == ["openai-chat", "openai-responses", "anthropic"]
    assert [call.body for call in prefix_recorder] == [record.body for record in provider.requests]


def test_asynchronous_clients_are_recorded(prefix_recorder, make_body):
    """With a transport of the test's own, as most tests have."""

    async def go():
        async with httpx.AsyncClient(transport=httpx.MockTransport(_answer)) as client:
            await client.post("http://llm/v1/chat/completions", json=make_body())

    asyncio.run(go())
    assert len(prefix_recorder) == 1


@pytest.mark.parametrize(
    ("path", "api", "model"),
    [
        ("/v1beta/models/gemini-3-pro:streamGenerateContent", "gemini", "gemini-3-pro"),
        ("/model/us.amazon.nova-pro-v1%3A0/converse", "bedrock", "us.amazon.nova-pro-v1:0"),
    ],
)
def test_the_model_is_read_from_the_address_where_it_stands_there(prefix_recorder, path, api, model):
    """Gemini and Bedrock name it in the path."""
    bodies = {
        "gemini": {"contents": [{"role": "user", "parts": [{"text": "a"}]}]},
        "bedrock": {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
    }
    with httpx.Client(transport=httpx.MockTransport(_answer)) as client:
        client.post(f"http://llm{path}", json=bodies[api])
    assert [(call.prompt.api, call.prompt.model) for call in prefix_recorder] == [(api, model)]


def test_other_requests_are_left_alone(prefix_recorder):
    """Embeddings, token counting, forms, broken JSON: sent as ever, and not recorded."""
    with httpx.Client(transport=httpx.MockTransport(_answer)) as client:
        client.get("http://llm/v1/chat/completions")
        client.post("http://llm/v1/embeddings", json={"model": "e", "input": "text"})
        client.post("http://llm/v1/messages/count_tokens", json={"model": "m", "messages": []})
        client.post("http://llm/v1/chat/completions", content=b"{")
        client.post("http://llm/v1/chat/completions", data={"a": "b"})
        assert client.post("http://llm/v1/chat/completions", content=iter([b"{}"])).status_code == 200
    assert prefix_recorder.calls == ()


def test_nothing_stays_patched():
    """After the test the clients' classes are what they were."""
    before = httpx.Client.send, httpx.AsyncClient.send
    with PrefixRecorder():
        assert httpx.Client.send is not before[0]
    assert (httpx.Client.send, httpx.AsyncClient.send) == before


def test_a_session_is_watched(prefix_recorder, make_body):
    """Its requests and its children's, in their final form, and once."""
    session = prefix_recorder.watch(Session("handbook"))
    session.adapter.begin(Request(make_body("a"), "openai-chat")).finish()
    session.child("inner").adapter.begin(Request(make_body("b"), "openai-chat")).finish()
    with httpx.Client(transport=httpx.MockTransport(_answer)) as client:
        client.post("http://llm/v1/chat/completions", json=make_body())
    assert [prompt.sections[-1].text for prompt in prefix_recorder.prompts] == ["a", "b"]


def test_a_simulated_provider_is_found_by_the_sdks(prefix_recorder):
    """Through their environment variables; its requests are recorded once, and clear() empties its cache."""
    served = prefix_recorder.serve("openai-5.6")
    with openai.OpenAI() as client:
        client.chat.completions.create(model="gpt-5.6", messages=[{"role": "user", "content": "a"}])
    assert len(prefix_recorder) == len(served.requests) == 1
    with pytest.raises(SetupError, match="serves already"):
        prefix_recorder.serve()
    prefix_recorder.clear()
    assert len(prefix_recorder) == 0
