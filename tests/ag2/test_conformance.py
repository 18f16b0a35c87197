"""The ag2 adapter passes the conformance suite in all three APIs."""

from __future__ import annotations

from ag2_driver import Ag2Driver

from cacheprefix.testing import AdapterConformance


class TestChat(AdapterConformance):
    """OpenAI's chat completions."""

    def make_driver(self):
        return Ag2Driver("openai-chat")


class TestResponses(AdapterConformance):
    """OpenAI's responses."""

    def make_driver(self):
        return Ag2Driver("openai-responses")


class TestMessages(AdapterConformance):
    """Anthropic's messages."""

    def make_driver(self):
        return Ag2Driver("anthropic")
