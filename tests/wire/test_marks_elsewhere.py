"""Marks where an API takes none: a plugin may choose any section, and the body must stay one that is taken."""

from __future__ import annotations

import pytest

from cacheprefix.cache.breakpoints.plan import Breakpoint
from cacheprefix.cache.breakpoints.write import mark
from cacheprefix.wire import decode

TOOL = {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
BODY = {
    "model": "gpt-5.6",
    "instructions": "The rules of the house.",
    "tools": [TOOL],
    "input": [{"role": "user", "content": "Hello."}],
}


@pytest.mark.parametrize("tier", ["tools", "system"])
def test_the_responses_api_takes_no_mark_on_tools_and_instructions(tier):
    """They are left as they are, and the messages too."""
    prompt = decode(BODY, "openai-responses")
    chosen = [Breakpoint(at) for at, section in enumerate(prompt.sections) if section.tier == tier]
    assert chosen
    made = mark(BODY, "openai-responses", prompt, chosen)
    assert {name: made[name] for name in BODY} == BODY


def test_the_responses_api_takes_one_on_what_is_said():
    """On its content block."""
    prompt = decode(BODY, "openai-responses")
    made = mark(BODY, "openai-responses", prompt, [Breakpoint(len(prompt.sections) - 1)])
    assert "prompt_cache_breakpoint" in made["input"][0]["content"][0]
