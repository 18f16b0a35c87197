"""The LiteLLM adapter passes the conformance suite for both vendors, by its functions and by a router."""

from __future__ import annotations

import pytest
from litellm_driver import LiteLLMDriver

from cacheprefix.testing import AdapterConformance
from tests.role_as import said_as


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


@pytest.mark.parametrize(("vendor", "said"), [("openai", "system"), ("anthropic", "user")])
def test_role_texts_are_said_with_authority_where_the_model_takes_it(vendor, said):
    """LiteLLM sends a developer's message as the system's where the model is none that reasons."""
    assert said_as(LiteLLMDriver(vendor)) == {said}
