"""Requests with a beta of Anthropic's and without, in one session: each has a cache of its own at the provider."""

import asyncio

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage

from cacheprefix import Session
from cacheprefix.server import SimulatedProvider
from cacheprefix_langgraph import wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 300
BETA = {"anthropic-beta": "context-management-2025-06-27"}


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("given", ["default_headers", "extra_headers"])
def test_what_one_beta_wrote_is_missed_by_no_other(given, mode, later):
    """A model's headers and a call's part the caches, and so nothing was to be read."""
    session = Session(mode=mode)
    marked = {"type": "text", "text": HANDBOOK, "cache_control": {"type": "ephemeral"}}
    asked = [SystemMessage([marked]), HumanMessage("What now?")]
    with SimulatedProvider("anthropic", keep=100) as provider:
        url = provider.anthropic_base_url.removesuffix("/v1")

        def models():
            for headers in ({}, BETA, {}, BETA):
                options = {"default_headers": headers} if given == "default_headers" else {}
                made = ChatAnthropic(model="claude-sonnet-4-6", base_url=url, api_key="any", **options)
                yield wrap_model(made, session), {given: headers} if given == "extra_headers" and headers else {}

        async def run():
            for model, beside in models():
                await model.ainvoke(asked, **beside) if later else model.invoke(asked, **beside)

        asyncio.run(run())
    assert [record.headers for record in provider.requests] == [{}, BETA] * 2
    assert "provider_miss" not in [call.verdict.cause for call in session.calls]
    assert [call.verdict.expected_tokens > 0 for call in session.calls] == [False, False, True, True]
    assert session.failures == {}
