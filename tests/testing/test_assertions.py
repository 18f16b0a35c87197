"""What a run's prompts share is asserted, and a failure says where, why and what it costs."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.prompt import dumps
from cacheprefix.testing import assert_prefix_stable, assert_shared_prefix
from cacheprefix.wire import decode


def test_calls_that_share_pass(make_body):
    """Bodies, bytes and prompts are all taken."""
    bodies = [make_body("one"), dumps(make_body("two"), "body"), decode(make_body("three"), "openai-chat")]
    assert_shared_prefix(bodies, 0.95)
    assert_prefix_stable(bodies)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": ("write", "read")}, r"tools_reordered at tools\[0\]: read, write became write, read"),
        ({"tools": ("read", "write", "zip")}, r"tools_changed at tools\[2\]: zip was added"),
        ({"system": "Another text. " * 400}, r"system_changed at system\[0\]"),
        ({"model": "gpt-5.5"}, r"model_changed at model: 'gpt-5.6' became 'gpt-5.5'"),
        ({"response_format": {"type": "json_object"}}, "settings_changed at response_format"),
    ],
)
def test_what_parts_two_calls_is_named(make_body, change, said):
    """The cause in the words of verdicts, the path, and the money per thousand calls."""
    with pytest.raises(AssertionError, match=said) as failure:
        assert_shared_prefix([make_body("one"), make_body("two", **change)], 0.9)
    assert re.search(r"\$\d+\.\d\d per 1,000 calls \((openai|gpt)[\w.-]*\)", str(failure.value))


def test_a_model_without_a_price_is_priced_in_tokens(make_body):
    """No figure is invented."""
    bodies = [make_body("one", model="house-1"), make_body("two", model="house-1", system="other")]
    with pytest.raises(AssertionError, match="no price is known for 'house-1'"):
        assert_shared_prefix(bodies, 0.9)


def test_the_best_earlier_call_counts_and_not_the_previous(make_body):
    """A call may share with any earlier one, as a provider's cache does."""
    bodies = [make_body("one"), make_body("x", system="Another text. " * 400), make_body("two")]
    with pytest.raises(AssertionError, match=r"1 of 2 calls share less than 90%[^\n]*\n  call 1 shares"):
        assert_shared_prefix(bodies, 0.9)


def test_too_few_calls_fail():
    """A run that recorded nothing does not pass by accident."""
    with pytest.raises(AssertionError, match="was the run recorded"):
        assert_shared_prefix([])


def test_what_is_no_list_of_calls_is_refused(make_body):
    """A single body is a mapping and would be read as its keys."""
    with pytest.raises(TypeError, match="expected a list of calls"):
        assert_shared_prefix(make_body())


def test_a_clock_in_the_system_text_is_not_stable(make_body):
    """Both calls are alike today, and none will be tomorrow."""
    system = f"Today is 2026-11-21. {make_body()['messages'][0]['content']}"
    bodies = [make_body("one", system=system), make_body("two", system=system)]
    assert_prefix_stable(bodies, volatile=False)
    with pytest.raises(AssertionError, match=r"system\[0\]: timestamp"):
        assert_prefix_stable(bodies)


def test_models_are_compared_each_for_itself(make_body):
    """A run on two models has two beginnings."""
    assert_prefix_stable([make_body(), make_body(model="gpt-5.5", tools=()), make_body("again")])


@given(st.lists(st.text(min_size=1, max_size=30), min_size=2, max_size=6))
def test_a_growing_conversation_always_shares_all_that_was_there(texts):
    """Whatever is said, a prompt that continues another one shares all of its tokens."""
    bodies = [
        {"model": "m", "messages": [{"role": "user", "content": text} for text in texts[:end]]}
        for end in range(1, len(texts) + 1)
    ]
    prompts = [decode(body, "openai-chat") for body in bodies]
    least = min(earlier.tokens / later.tokens for earlier, later in pairwise(prompts))
    assert_shared_prefix(prompts, least)
    if least < 1:
        with pytest.raises(AssertionError, match="share less than"):
            assert_shared_prefix(prompts, math.nextafter(least, 1))
