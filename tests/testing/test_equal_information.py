"""Comparing what two requests say, where the application says our own words itself."""

import pytest

from cacheprefix.testing import information
from cacheprefix.wire import decode


def prompt(*texts):
    """A request of the user's messages."""
    body = {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}
    return decode(body, "openai-chat")


@pytest.mark.parametrize("word", ["<next/>", '<role name="a">', "Call at most one tool in this answer."])
def test_our_own_words_are_the_applications_where_it_said_them(word):
    """A fork that has them says the same, also with ours beside them; one that has lost them does not."""
    own = prompt("Look into it.", word)
    assert information(own, prompt("Look into it.", word)).equal
    assert information(own, prompt("Look into it.", word, "<next/>", '<role name="critic">')).equal
    assert information(own, prompt("Look into it.")).missing == {word: 1}
    assert information(prompt("Look into it."), own).equal
