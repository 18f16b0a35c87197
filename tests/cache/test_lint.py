"""Warnings before sending: what stands in a stable place and will not stay the same."""

from __future__ import annotations

from typing import Any

import pytest

from cacheprefix.cache import ADVICE, lint
from cacheprefix.prompt import Prompt
from cacheprefix.wire import decode


def prompt(system: str, tools: tuple[dict[str, Any], ...] = (), user: str = "go") -> Prompt:
    """A prompt of a system text, functions and one question."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    functions = [{"type": "function", "function": tool} for tool in tools]
    return decode({"model": "m", "messages": messages, "tools": functions}, "openai-chat")


@pytest.mark.parametrize(
    ("text", "smell"),
    [
        ("Started 2026-11-21T04:36:49Z.", "timestamp"),
        ("Today's date is 2026-11-21.", "timestamp"),
        ("Current time: 14:03", "timestamp"),
        ("It is 04:36:49 now", "timestamp"),
        ("The date is Saturday, 21 November 2026", "timestamp"),
        ("run 3f2b8c1e-9d4a-4c6b-8e2f-0a1b2c3d4e5f", "uuid"),
        ("session_id=9f8e7d6c5b4a39281706", "uuid"),
        ("Step 7: #12 and iteration: 4", "counter"),
        ("You have 1200 tokens left", "counter"),
        ("<app.Tool object at 0x7f3a2c1b9d10>", "memory_address"),
        ("Allowed: {'read', 'write', 'list'}", "unordered_set"),
        ("You are the senior code reviewer of this team.", "persona"),
        ("nonce: 9f8e7d6c", "random_token"),
    ],
)
def test_a_volatile_text_in_the_system_prompt_is_found(text: str, smell: str) -> None:
    """Each kind with its place, an excerpt and what to do."""
    found = lint(prompt(f"Rules of the house.\n{text}\n"))
    assert smell in {warning.smell for warning in found}
    warning = next(one for one in found if one.smell == smell)
    assert warning.path == "system[0]"
    assert warning.fix == ADVICE[warning.smell]
    assert warning.excerpt in f"Rules of the house.\n{text}\n"


@pytest.mark.parametrize(
    "text",
    [
        "Python 3.12 was released in 2023; see RFC 9110, section 15.4.",
        "Answer in at most 3 steps. Never call more than 5 tools.",
        "The office is open from 9 to 17.",
        "Use the JSON keys {name, age} in any case.",
        "Colour #ff8800, port 0x1F, version 1.2.3.",
    ],
)
def test_plain_rules_are_left_alone(text: str) -> None:
    """Numbers, versions and braces that never change are no warning."""
    assert lint(prompt(text)) == ()


def test_the_last_message_may_say_what_it_likes() -> None:
    """Times and identifiers behind everything stable break nothing."""
    assert lint(prompt("Rules.", user="It is 2026-11-21T04:36:49Z, run 3f2b8c1e-9d4a-4c6b-8e2f-0a1b2c3d4e5f")) == ()


def test_what_did_not_change_between_two_prompts_is_not_warned_of() -> None:
    """A release date in the rules stays; only the clock that moved is named."""
    text = "Release 2026-01-05T00:00:00Z. Now {}"
    earlier = prompt(text.format("2026-11-21T04:36:49Z"))
    found = lint(prompt(text.format("2026-11-21T04:37:12Z")), [earlier])
    assert [(one.smell, "04:37:12" in one.excerpt) for one in found] == [("timestamp", True)]


def test_the_same_items_in_another_order_are_an_unordered_set() -> None:
    """A list written from a set: found by comparing two prompts, with its place in the tool."""

    def tool(order: list[str]) -> dict[str, Any]:
        return {"name": "t", "parameters": {"type": "object", "properties": {"mode": {"enum": order}}}}

    found = lint(prompt("Rules.", (tool(["c", "a", "b"]),)), [prompt("Rules.", (tool(["a", "b", "c"]),))])
    assert [(one.smell, one.path) for one in found] == [("unordered_set", "tools[0]")]


def test_keys_in_another_order_are_unstable_json() -> None:
    """The same schema written with its keys in another order."""
    a = {"name": "t", "parameters": {"type": "object", "required": []}}
    b = {"name": "t", "parameters": {"required": [], "type": "object"}}
    found = lint(prompt("Rules.", (b,)), [prompt("Rules.", (a,))])
    assert [one.smell for one in found] == ["unstable_json"]


def test_the_same_tools_in_another_order_are_found() -> None:
    """Tools collected from a set or a server that does not sort."""
    a, b = {"name": "a"}, {"name": "b"}
    found = lint(prompt("Rules.", (b, a)), [prompt("Rules.", (a, b))])
    assert [(one.smell, one.path) for one in found] == [("unordered_set", "tools[0]")]


def test_one_persona_for_all_is_no_warning_and_two_are() -> None:
    """What every prompt of the team says is shared; a role of each agent's own parts them there."""
    same = prompt("You are the ledger agent. Rules.")
    assert lint(same, [prompt("You are the ledger agent. Rules.", user="other")]) == ()
    found = lint(prompt("You are the planner. Rules."), [prompt("You are the critic. Rules.")])
    assert [one.smell for one in found] == ["persona"]
