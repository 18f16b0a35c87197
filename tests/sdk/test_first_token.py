"""Siblings of a streamed leader go on with its answer's first output, and not with word that it was taken."""

from __future__ import annotations

import asyncio

import anthropic
import openai
import pytest

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.bodies import begins
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook of the house, rule by rule, section by section. " * 400
ASKED = [{"role": "user", "content": "What now?"}]
TAKEN = {
    "openai-chat": [None],
    "openai-responses": ["response.created", "response.in_progress"],
    "anthropic": ["message_start"],
}
"""What comes before the answer: of a chat completion a chunk that names the role."""


@pytest.fixture(params=list(TAKEN))
def api(request):
    """Each API that streams."""
    return request.param


def asked(client, api):
    """A streamed request of a client, synchronous or not."""
    if api == "anthropic":
        return client.messages.create(
            model="claude-sonnet-4-6", max_tokens=200, system=HANDBOOK, messages=ASKED, stream=True
        )
    if api == "openai-responses":
        return client.responses.create(model="gpt-5.6", instructions=HANDBOOK, input=ASKED, stream=True)
    given = [{"role": "system", "content": HANDBOOK}, *ASKED]
    return client.chat.completions.create(model="gpt-5.6", messages=given, stream=True)


def client_of(api, provider, *, later):
    """The SDK's own client."""
    if api == "anthropic":
        kind = anthropic.AsyncAnthropic if later else anthropic.Anthropic
        return kind(base_url=provider.anthropic_base_url, api_key="k", max_retries=0)
    kind = openai.AsyncOpenAI if later else openai.OpenAI
    return kind(base_url=provider.openai_base_url, api_key="k", max_retries=0)


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_leader_leads_until_its_answer_begins(api, later):
    """The events before the first output find it leading, the first output ends that."""
    rules = "anthropic" if api == "anthropic" else "openai-5.6"
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=rules), gate=Gate(limit=600.0, price=0.0))
    seen = []

    def note(event):
        seen.append((getattr(event, "type", None), bool(session.adapter._gate._flights)))

    def run(provider):
        with client_of(api, provider, later=False) as plain, role("leader", instruction="You lead."):
            for event in asked(wrap(plain, session), api):
                note(event)

    async def arun(provider):
        async with client_of(api, provider, later=True) as plain:
            with role("leader", instruction="You lead."):
                stream = await asked(wrap(plain, session), api)
            async for event in stream:
                note(event)

    with SimulatedProvider(rules, script=lambda _: Reply("An answer of some length. " * 4)) as provider:
        asyncio.run(arun(provider)) if later else run(provider)
    ahead = [kind for kind, leads in seen if leads]
    assert ahead == TAKEN[api]
    assert len(seen) > len(ahead) + 2
    assert session.calls[0].first_token_at is not None


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"type": "response.queued"}, False),
        ({"type": "response.output_item.added", "item": {"type": "reasoning"}}, True),
        ({"type": "ping"}, False),
        ({"type": "content_block_start", "index": 0}, True),
        ({"choices": [], "prompt_filter_results": [{}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": "", "refusal": None}}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": "Yes"}}]}, True),
        ({"choices": [{"delta": {"reasoning_content": "Let me see"}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, True),
        ({"messageStart": {"role": "assistant"}}, False),
        ({"contentBlockDelta": {"delta": {"text": "Yes"}}}, True),
        ({"candidates": [{"content": {"parts": [{"text": "Yes"}]}}]}, True),
    ],
)
def test_what_an_answer_begins_with(event, found):
    """Events of every API that come as dicts, too: those of the request's way, and those of the answer's text."""
    assert begins(event) is found
