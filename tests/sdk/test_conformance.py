"""The SDK adapter passes the conformance suite in all three APIs."""

from __future__ import annotations

from sdk_driver import SdkDriver

from cacheprefix.testing import AdapterConformance


class TestChat(AdapterConformance):
    """OpenAI's chat completions."""

    def make_driver(self):
        return SdkDriver("openai-chat")


class TestResponses(AdapterConformance):
    """OpenAI's responses."""

    def make_driver(self):
        return SdkDriver("openai-responses")


class TestMessages(AdapterConformance):
    """Anthropic's messages."""

    def make_driver(self):
        return SdkDriver("anthropic")
