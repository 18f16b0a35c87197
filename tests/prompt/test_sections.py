"""Finding a text among a prompt's sections."""

from __future__ import annotations

import pytest

from cacheprefix.prompt import Prompt, section


def texts(*said):
    """A prompt of user texts."""
    given = [text.encode("utf-8", "surrogatepass") for text in said]
    made = [section("messages", f"messages[{at}]", "text", "user", data, len) for at, data in enumerate(given)]
    return Prompt("openai-chat", "m", tuple(made))


@pytest.mark.parametrize(("text", "at"), [("a", 2), ("b", 1), ("\ud800", 3), ("aa", None), ("", None)])
def test_a_text_is_found_where_it_is_a_section_for_the_last_time(text, at):
    """A part of a section is none, and no text is nowhere."""
    assert texts("a", "b", "a", "\ud800", "a c", "").last_of(text) == at
