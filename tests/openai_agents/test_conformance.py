"""The adapter for the OpenAI Agents SDK passes the conformance suite with both of its models."""

from __future__ import annotations

from agents_driver import AgentsDriver

from cacheprefix.testing import AdapterConformance


class TestChat(AdapterConformance):
    """Chat completions."""

    def make_driver(self):
        return AgentsDriver("openai-chat")


class TestResponses(AdapterConformance):
    """Responses, whose streams are asked for raw."""

    def make_driver(self):
        return AgentsDriver("openai-responses")
