"""Which requests wait for one another at the gate: those that may read what the first of them writes."""

import pytest

from cacheprefix import Caching, Session
from cacheprefix.prompt import ESTIMATE

BODY = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "The rules of the house. " * 900}],
    "messages": [{"role": "user", "content": "Hello."}],
}


@pytest.mark.parametrize(
    ("headers", "alike"),
    [
        ({"Anthropic-Beta": "one"}, True),
        ({"anthropic-beta": "one", "x-trace": "7"}, True),
        ({"anthropic-beta": "two"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_request_with_another_beta_waits_for_none_that_it_cannot_read(headers, alike):
    """A provider's rule: each beta of Anthropic's has a cache of its own, and no other header has."""
    requests = Session(caching=Caching("anthropic", counter=ESTIMATE)).adapter._requests

    def keys(given):
        return {key for key, _ in requests.gate_key(BODY, "anthropic", 1, None, streams=False, headers=given)}

    assert keys(headers)
    assert (keys(headers) == keys({"anthropic-beta": "one"})) == alike
