"""The LiteLLM adapter passes the conformance suite for both vendors, by its functions and by a router."""

from __future__ import annotations

from litellm_driver import LiteLLMDriver

from cacheprefix.testing import AdapterConformance


class TestOpenAI(AdapterConformance):
    """Chat completions."""

    def make_driver(self):
        return LiteLLMDriver("openai")


class TestAnthropic(AdapterConformance):
    """OpenAI's form, which LiteLLM makes Anthropic's messages of."""

    def make_driver(self):
        return LiteLLMDriver("anthropic")


class TestRouter(AdapterConformance):
    """Attempts of a router."""

    def make_driver(self):
        return LiteLLMDriver("openai", router=True)
