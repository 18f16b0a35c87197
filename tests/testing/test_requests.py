"""Requests that a provider would refuse, said of recorded calls; and the provider that refuses them."""

from __future__ import annotations

import openai
import pytest

from cacheprefix.server import SimulatedProvider
from cacheprefix.testing import assert_valid_requests
from cacheprefix.wire import decode

ORPHAN = {"model": "gpt-5", "messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]}
SOUND = {"model": "gpt-5", "messages": [{"role": "user", "content": "x"}]}
BEGUN = {
    "model": "claude-opus-5-5",
    "max_tokens": 9,
    "system": "s",
    "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is"}],
}


def test_the_error_names_the_call_and_the_place():
    """Of bodies, prompts and whatever holds them."""
    assert_valid_requests([SOUND])
    for given in (ORPHAN, decode(ORPHAN, "openai-chat")):
        with pytest.raises(AssertionError, match=r"call 1, messages\[0\]: answers the call 'a'"):
            assert_valid_requests([SOUND, given])


def test_the_model_tells_whether_an_answer_may_be_begun():
    """Claude takes none from 4.6 on."""
    assert_valid_requests([{**BEGUN, "model": "claude-opus-4-5"}])
    with pytest.raises(AssertionError, match="must end with a user message"):
        assert_valid_requests([BEGUN])


def test_what_holds_no_calls_is_named():
    """A single body is a mistake, and so is a number."""
    with pytest.raises(TypeError, match="expected a list of calls"):
        assert_valid_requests(ORPHAN)
    with pytest.raises(TypeError, match="is no call"):
        assert_valid_requests([3])


@pytest.mark.invalid_requests
def test_the_simulated_provider_refuses_what_the_real_one_does():
    """Strict unless told otherwise; either way the record says what is wrong."""
    for strict in (True, False):
        with SimulatedProvider("openai", strict=strict) as provider:
            client = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
            if strict:
                with pytest.raises(openai.BadRequestError, match=r"messages\[0\]: answers the call 'a'"):
                    client.chat.completions.create(**ORPHAN)
            else:
                client.chat.completions.create(**ORPHAN)
            client.close()
            assert [error.path for error in provider.requests[0].invalid] == ["messages[0]"]
