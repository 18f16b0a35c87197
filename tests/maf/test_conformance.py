"""The adapter passes the conformance suite with the framework's clients for three APIs."""

from __future__ import annotations

from maf_driver import MafDriver

from cacheprefix.testing import AdapterConformance


class TestChat(AdapterConformance):
    """OpenAI's chat completions."""

    def make_driver(self):
        return MafDriver("openai-chat")


class TestResponses(AdapterConformance):
    """OpenAI's responses."""

    def make_driver(self):
        return MafDriver("openai-responses")


class TestMessages(AdapterConformance):
    """Anthropic's messages."""

    def make_driver(self):
        return MafDriver("anthropic")
