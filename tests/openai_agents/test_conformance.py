"""The adapter for the OpenAI Agents SDK passes the conformance suite with both of its models."""

from __future__ import annotations

import pytest
from agents_driver import AgentsDriver

from cacheprefix.testing import AdapterConformance
from tests.role_as import said_as


class TestChat(AdapterConformance):
    """Chat completions."""

    def make_driver(self):
        return AgentsDriver("openai-chat")


class TestResponses(AdapterConformance):
    """Responses, whose streams are asked for raw."""

    def make_driver(self):
        return AgentsDriver("openai-responses")


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_role_texts_are_said_with_authority(api):
    """As the developer's messages, behind the conversation."""
    assert said_as(AgentsDriver(api)) == {"developer"}
