"""One cause a call: what is named when several things went wrong at once, and in every wire form."""

from __future__ import annotations

from typing import Any

import pytest

from cacheprefix.cache import CacheModel, SentBy, Verdict
from cacheprefix.profiles import Usage, default_registry
from cacheprefix.prompt import Api
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode

TEXT = "The ledger is kept in ink, and every entry has a witness. "
OPENAI = default_registry().get("openai")


def body(**changes: Any) -> dict[str, Any]:
    """A conversation of nine messages, with the changes made to it."""
    tools = [{"type": "function", "function": {"name": name, "description": TEXT * 3}} for name in "abc"]
    rows = [{"role": ("user", "assistant")[i % 2], "content": f"{i} {TEXT * 5}"} for i in range(9)]
    made = {"model": "gpt-5.1", "messages": [{"role": "system", "content": TEXT * 60}, *rows], "tools": tools}
    for name, value in changes.items():
        if name == "system":
            made["messages"][0] = {"role": "system", "content": value}
        elif name == "edit":
            made["messages"][value] = {**made["messages"][value], "content": f"edited {TEXT * 5}"}
        elif name == "drop":
            del made["messages"][value]
        elif name == "tools":
            made["tools"] = value(tools)
        else:
            made[name] = value
    return made


def after(changes: dict[str, Any], *, scope: str = "", gap: float = 1.0, api: Api = "openai-chat") -> Verdict:
    """The verdict on a changed continuation of the conversation."""
    model, provider = CacheModel(), ProviderCache(OPENAI)
    verdict = None
    for at, made, where in ((0.0, body(), ""), (gap, body(**changes), scope)):
        if at:
            made["messages"] += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and then?"}]
        prompt = decode(made, api)
        seen = model.begin(prompt, OPENAI, SentBy(where, "clerk"), at=at)
        outcome = provider.serve(prompt, at, scope=where)
        usage = Usage(input_tokens=outcome.input_tokens, cache_read_tokens=outcome.read_tokens)
        verdict = model.finish(seen, usage, at)
    assert verdict is not None
    return verdict


def swap(tools: list[Any]) -> list[Any]:
    """The tools in another order."""
    return tools[::-1]


def reworded(tools: list[Any]) -> list[Any]:
    """One tool described otherwise."""
    return [*tools[:2], {"type": "function", "function": {"name": "c", "description": TEXT * 2 + "Or not."}}]


LATER = {"service_tier": "flex"}


@pytest.mark.parametrize(
    ("changes", "options", "cause", "path"),
    [
        ({"model": "gpt-5.2", "tools": swap, **LATER}, {"scope": "b"}, "scope_changed", "scope"),
        ({"model": "gpt-5.2", "tools": swap, **LATER}, {}, "model_changed", "model"),
        ({"tools": swap, "system": TEXT, **LATER}, {}, "settings_changed", "service_tier"),
        ({"tools": swap, "system": "x" + TEXT * 60}, {}, "tools_reordered", "tools[0]"),
        ({"tools": reworded, "edit": 3}, {}, "tools_changed", "tools[2].function.description"),
        ({"system": "x" + TEXT * 60, "edit": 3}, {}, "system_changed", "system[0]"),
        ({"edit": 3, "drop": 6}, {}, "history_edited", "messages[3].content"),
        ({"drop": 3, "edit": 6}, {}, "history_truncated", "messages[3].content"),
        ({"edit": 3}, {"gap": 400.0}, "history_edited", "messages[3].content"),
        ({}, {"gap": 400.0}, "ttl_expired", None),
    ],
)
def test_the_first_cause_by_precedence_is_named(
    changes: dict[str, Any], options: dict[str, Any], cause: str, path: str | None
) -> None:
    """Scope, model, settings, then the earliest place in cache order; times only where the bytes match."""
    verdict = after(changes, **options)
    assert (verdict.cause, verdict.path) == (cause, path)


@pytest.mark.parametrize(
    ("tools", "cause", "path"),
    [
        (lambda tools: [], "tools_changed", "tools[0]"),
        (lambda tools: tools[:2], "tools_changed", "tools[2]"),
        (lambda tools: [*tools, {**tools[0], "function": {"name": "z"}}], "tools_changed", "tools[3]"),
        (lambda tools: [tools[0], {**tools[0], "function": {"name": "z"}}, *tools[1:]], "tools_changed", "tools[1]"),
        (lambda tools: tools[1:], "tools_changed", "tools[0]"),
    ],
    ids=["none left", "last one gone", "one more at the end", "one put in between", "first one gone"],
)
def test_a_tool_that_comes_or_goes_is_named_by_its_place(tools: Any, cause: str, path: str) -> None:
    """Not by the difference of two tools that have nothing to do with each other."""
    verdict = after({"tools": tools})
    assert (verdict.cause, verdict.path) == (cause, path)


def responses(rows: list[str]) -> dict[str, Any]:
    """OpenAI responses: instructions and input items."""
    given: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(rows)
    ]
    given.insert(2, {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"})
    given.insert(3, {"type": "function_call_output", "call_id": "c", "output": rows[1]})
    return {"model": "gpt-5.1", "instructions": TEXT * 60, "input": given}


def gemini(rows: list[str]) -> dict[str, Any]:
    """Gemini: contents of parts."""
    contents = [{"role": ("user", "model")[i % 2], "parts": [{"text": text}]} for i, text in enumerate(rows)]
    return {"model": "gemini-2.5-flash", "systemInstruction": {"parts": [{"text": TEXT * 60}]}, "contents": contents}


def bedrock(rows: list[str]) -> dict[str, Any]:
    """Bedrock Converse: content blocks and cache points."""
    point = {"cachePoint": {"type": "default"}}
    messages: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[i % 2], "content": [{"text": text}]} for i, text in enumerate(rows)
    ]
    messages[-1]["content"].append(point)
    name = "anthropic.claude-sonnet-4-5-20250929-v1:0"
    return {"modelId": name, "system": [{"text": TEXT * 60}, point], "messages": messages}


FORMS: list[tuple[Api, Any, str, str]] = [
    ("openai-responses", responses, "openai", "messages[3].output"),
    ("gemini", gemini, "gemini-implicit", "messages[1].content[0]"),
    ("bedrock", bedrock, "bedrock", "messages[1].content[0]"),
]


@pytest.mark.parametrize(("api", "make", "rules", "path"), FORMS, ids=[form[0] for form in FORMS])
def test_an_edit_is_found_in_every_wire_form(api: Api, make: Any, rules: str, path: str) -> None:
    """Appending is a hit and an edit is named at its place, whatever the API."""
    rows = [f"{i} {TEXT * 20}" for i in range(12)]
    profile = default_registry().profile_for("gemini-2.5-flash") if api == "gemini" else default_registry().get(rules)
    model, provider = CacheModel(), ProviderCache(profile)
    edited = [rows[0], rows[1].replace("ink", "blood"), *rows[2:]]
    verdicts = []
    for at, given in enumerate((rows[:5], rows[:7], rows[:9], edited[:11])):
        prompt = decode(make(given), api)
        seen = model.begin(prompt, profile, SentBy(agent="clerk"), at=float(at))
        outcome = provider.serve(prompt, float(at))
        assert seen.expectation.tokens == outcome.read_tokens
        usage = Usage(input_tokens=outcome.input_tokens, cache_read_tokens=outcome.read_tokens)
        verdicts.append(model.finish(seen, usage, float(at)))
    assert [verdict.cause for verdict in verdicts[1:3]] == ["hit", "hit"]
    assert (verdicts[3].cause, verdicts[3].alarm) == ("history_edited", True)
    assert (verdicts[3].path or "").startswith(path if api != "openai-responses" else "messages[")


def declared(*names: str) -> dict[str, Any]:
    """A Gemini body whose functions all stand in one tool."""
    functions = [{"name": name, "description": f"{name} {TEXT * 20}"} for name in names]
    return {**gemini([TEXT * 200]), "tools": [{"functionDeclarations": functions}]}


@pytest.mark.parametrize(
    ("names", "cause", "path"),
    [
        ("cab", "tools_reordered", "tools[0].functionDeclarations[0]"),
        ("ab", "tools_changed", "tools[0].functionDeclarations[2]"),
        ("abxc", "tools_changed", "tools[0].functionDeclarations[2]"),
    ],
)
def test_functions_inside_one_tool_are_told_apart(names: str, cause: str, path: str) -> None:
    """Gemini declares all functions in one tool; another order of them is no other set of tools."""
    assert judged([declared(*"abc"), declared(*names)], "gemini", "gemini-implicit") == (cause, path)


@pytest.mark.parametrize(
    ("order", "cause"), [([1, 0, 2], "history_reordered"), ([1, 2], "history_truncated")], ids=["swapped", "gone"]
)
def test_the_first_block_of_a_message_is_known_again_as_a_later_one(order: list[int], cause: str) -> None:
    """Which block carries its message's envelope is not content."""
    results = [{"type": "tool_result", "tool_use_id": f"t{i}", "content": f"{i} {TEXT * 30}"} for i in range(3)]
    uses = [{"type": "tool_use", "id": f"t{i}", "name": "look", "input": {}} for i in range(3)]
    bodies = []
    for chosen in ([0, 1, 2], order):
        rows = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": uses},
            {"role": "user", "content": [results[i] for i in chosen]},
        ]
        if chosen is order:
            rows += [{"role": "assistant", "content": "seen"}, {"role": "user", "content": "and?"}]
        bodies.append({"model": "claude-sonnet-4-5", "system": TEXT * 200, "messages": rows})
    bodies = [{**made, "cache_control": {"type": "ephemeral"}} for made in bodies]
    assert judged(bodies, "anthropic", "anthropic") == (cause, "messages[2].content[0]")


def test_a_message_that_stands_where_it_stood_is_no_tail_that_moved_on() -> None:
    """Two messages change places, and the newest question begins like the first of them."""
    rows = [f"{i} {TEXT * 5}" for i in range(8)]
    moved = [*rows[:4], rows[5], rows[4], *rows[6:], "ok", f"4 {TEXT * 5} Please?"]
    bodies = [
        {"model": "gpt-5.1", "messages": [{"role": "system", "content": TEXT * 90}, *turns(given)]}
        for given in (rows, moved)
    ]
    assert judged(bodies, "openai-chat", "openai")[0] == "history_reordered"


@pytest.mark.parametrize("other", [False, True], ids=["its own", "another agent's"])
def test_a_window_that_moved_on_is_truncated_also_where_a_text_is_said_twice(*, other: bool) -> None:
    """What comes begins as what was there ended; a text that comes again later, or who says it, tells nothing."""
    ahead = {"role": "assistant", "content": "Let me look."}
    rows = [ahead, *turns([f"{i} {TEXT * 5}" for i in range(6)])]
    later = [*rows[1:], {"role": "assistant", "content": f"7 {TEXT * 5}"}, ahead, {"role": "user", "content": "Well?"}]
    if other:
        later[3] = {**later[3], "role": "user" if later[3]["role"] == "assistant" else "assistant"}
    bodies = [
        {"model": "gpt-5.1", "messages": [{"role": "system", "content": TEXT * 90}, *given]} for given in (rows, later)
    ]
    assert judged(bodies, "openai-chat", "openai")[0] == "history_truncated"


def turns(texts: list[str]) -> list[dict[str, Any]]:
    """User and assistant by whether a text's number is even; the last is the user's."""
    rows = [{"role": ("user", "assistant")[ord(text[0]) % 2], "content": text} for text in texts]
    return [*rows[:-1], {**rows[-1], "role": "user"}]


def judged(bodies: list[dict[str, Any]], api: Api, rules: str) -> tuple[str, str | None]:
    """Cause and path of the last of an agent's requests."""
    profile = default_registry().get(rules)
    model, provider, found = CacheModel(), ProviderCache(profile), None
    for at, body in enumerate(bodies):
        prompt = decode(body, api)
        seen = model.begin(prompt, profile, SentBy(agent="clerk"), at=float(at))
        outcome = provider.serve(prompt, float(at))
        usage = Usage(
            input_tokens=outcome.input_tokens,
            cache_read_tokens=outcome.read_tokens,
            cache_write=dict(outcome.write_tokens),
        )
        found = model.finish(seen, usage, float(at))
    assert found is not None
    return found.cause, found.path
