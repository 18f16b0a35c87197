"""The ag2 adapter passes the conformance suite in all three APIs."""

from __future__ import annotations

import pytest
from ag2_driver import Ag2Driver

from cacheprefix.testing import AdapterConformance
from tests.role_as import said_as


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


@pytest.mark.parametrize(
    ("api", "role"), [("openai-chat", "developer"), ("openai-responses", "developer"), ("anthropic", "user")]
)
def test_role_texts_are_said_with_authority_where_the_model_takes_it(api, role):
    """OpenAI's models take a developer's message behind the conversation, most of Anthropic's none but the user's."""
    assert said_as(Ag2Driver(api)) == {role}
