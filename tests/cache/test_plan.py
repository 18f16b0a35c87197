"""Where breakpoints go, how many, with which lifetime, and how they look on the wire."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.cache import Breakpoint, mark, plan_breakpoints
from cacheprefix.cache.breakpoints.read import marks
from cacheprefix.profiles import Profile, default_registry
from cacheprefix.prompt import Api, Prompt
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode, encode
from tests.drawn import examples

LONG = "handbook " * 700


def rules(name: str) -> Profile:
    """A shipped row."""
    return default_registry().get(name)


def claude(turns: int = 0, *, system: Any = LONG, task: str = "task", tools: int = 2, **fields: Any) -> dict[str, Any]:
    """An Anthropic body: tools, system, a task, and as many tool rounds."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for i in range(turns):
        messages.append(
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{i}", "name": "n", "input": {}}]}
        )
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": "r" * 40}]}
        )
    schemas = [{"name": f"n{i}", "description": LONG, "input_schema": {"type": "object"}} for i in range(tools)]
    return {"model": "claude-sonnet-4-5", "system": system, "tools": schemas, "messages": messages, **fields}


def planned(
    body: dict[str, Any], api: Api = "anthropic", profile: str = "", **options: Any
) -> tuple[Prompt, dict[str, Any]]:
    """The prompt as marked, and the marked body."""
    prompt = decode(body, api)
    marked = mark(body, api, prompt, plan_breakpoints(prompt, rules(profile or api), **options))
    return decode(marked, api), marked


def places(prompt: Prompt) -> list[str]:
    """Paths of the marked sections."""
    return [section.path for section in prompt.sections if section.marker is not None]


def test_system_tools_and_tail_are_marked_in_a_loop() -> None:
    """Without siblings the end of the tools, of the system prompt and of the conversation carry one each."""
    prompt, _ = planned(claude(2))
    assert places(prompt) == ["tools[1]", "system[0]", "messages[4].content[0]"]


def test_the_end_of_the_shared_part_is_marked_and_an_unread_tail_is_not() -> None:
    """A role's tail behind the boundary is never read again, so nothing is written for it."""
    body = claude(1)
    body["messages"].append({"role": "user", "content": "you are the critic"})
    boundary = len(decode(body, "anthropic").sections) - 1
    prompt, _ = planned(body, boundary=boundary)
    assert places(prompt)[-1] == "messages[2].content[0]"


def test_a_loop_behind_the_boundary_is_marked_at_its_end() -> None:
    """Once an answer stands behind the shared part, the last message will be read again."""
    body = claude(2)
    prompt, _ = planned(body, boundary=3)
    assert places(prompt)[-1] == "messages[4].content[0]"
    assert "system[0]" in places(prompt)


def test_a_one_shot_call_is_not_written_where_the_provider_marks_it_itself() -> None:
    """OpenAI from 5.6 on bills its own mark 1.25 times; without a mark to set it is switched off all the same."""
    body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": LONG}]}
    _, marked = planned(body, "openai-chat", "openai-5.6", boundary=0, skip_tail=True)
    assert marked == {**body, "prompt_cache_options": {"mode": "explicit"}}
    outcome = ProviderCache(rules("openai-5.6")).serve(decode(marked, "openai-chat"), 0)
    assert not any(outcome.write_tokens.values())


@pytest.mark.parametrize(
    "fields", [{"prompt_cache_options": {"mode": "implicit"}}, {"messages": [{"role": "user", "content": "short"}]}]
)
def test_a_one_shot_call_that_says_how_to_cache_or_is_too_short_is_left_as_it_is(fields: dict[str, Any]) -> None:
    """The application's own option stands, and below the minimum nothing is written anyway."""
    body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": LONG}], **fields}
    assert planned(body, "openai-chat", "openai-5.6", boundary=0, skip_tail=True)[1] == body


def test_nothing_is_marked_below_the_minimum() -> None:
    """A prompt too short to be cached gets no breakpoints."""
    assert plan_breakpoints(decode(claude(1, system="short", tools=0), "anthropic"), rules("anthropic")) == ()


def test_all_marks_get_the_lifetime_that_is_asked_for() -> None:
    """And say nothing of the provider's default."""
    prompt, profile = decode(claude(1), "anthropic"), rules("anthropic")
    assert {one.ttl for one in plan_breakpoints(prompt, profile, lifetime=profile.ttl("1h"))} == {"1h"}
    assert {one.ttl for one in plan_breakpoints(prompt, profile, lifetime=profile.ttl("5m"))} == {None}
    assert {one.ttl for one in plan_breakpoints(prompt, profile)} == {None}


def test_own_marks_are_kept_and_counted() -> None:
    """With three marks of the user's own only one more is set, where it matters most."""
    marker = {"cache_control": {"type": "ephemeral"}}
    body = claude(2, system=[{"type": "text", "text": LONG, **marker}])
    body["tools"][0] |= marker
    body["tools"][1] |= marker
    prompt, marked = planned(body)
    assert len(places(prompt)) == 4
    assert places(prompt)[-1] == "messages[4].content[0]"
    assert marked["system"] is body["system"]


def test_the_automatic_breakpoint_counts_and_takes_the_tail() -> None:
    """A top-level cache_control is one of the four and stands on the last block, so none is added there."""
    prompt, _ = planned(claude(2, cache_control={"type": "ephemeral"}))
    assert len(places(prompt)) <= 3
    assert places(prompt) == ["tools[1]", "system[0]"]


def test_lifetimes_never_rise() -> None:
    """Before a user's one-hour mark ours is an hour as well; behind a five-minute one it is five minutes."""
    body = claude(2)
    body["messages"][0]["content"] = [
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]
    prompt, _ = planned(body)
    ttls = [section.marker.ttl for section in prompt.sections if section.marker is not None]
    assert ttls == ["1h", "1h", "1h", None]


def test_anchors_keep_a_long_turn_in_reach() -> None:
    """Forty blocks added at once: anchors at most 15 positions apart lead back to what was cached before."""
    body = claude(0)
    body["messages"][0]["content"] = [{"type": "text", "text": f"part {i}"} for i in range(40)]
    prompt, _ = planned(body)
    numbers = [int(path.rsplit("[", 1)[1][:-1]) for path in places(prompt) if path.startswith("messages")]
    assert numbers[-1] == 39
    assert all(b - a <= 15 for a, b in pairwise(numbers))


def test_thinking_and_empty_text_are_never_marked() -> None:
    """Providers refuse marks there; the block before takes it."""
    body = claude(1)
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    body["messages"].append(
        {"role": "assistant", "content": [{"type": "text", "text": "so"}, thinking, {"type": "text", "text": ""}]}
    )
    prompt, _ = planned(body)
    assert places(prompt)[-1] == "messages[3].content[0]"


def test_a_tool_result_keeps_the_shape_of_its_content() -> None:
    """The mark stands on the tool_result block itself: a string stays a string, so cached bytes stay the same."""
    _, marked = planned(claude(1))
    block = marked["messages"][-1]["content"][0]
    assert block["content"] == "r" * 40
    assert block["cache_control"] == {"type": "ephemeral"}


def test_bedrock_gets_cache_points_behind_blocks() -> None:
    """Converse marks with blocks of their own, in the tool list, the system list and the messages."""
    body: dict[str, Any] = {
        "modelId": "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "toolConfig": {"tools": [{"toolSpec": {"name": "a", "inputSchema": {"json": {}}}}]},
        "system": [{"text": LONG}],
        "messages": [{"role": "user", "content": [{"text": "go"}, {"text": "on"}]}],
    }
    prompt, marked = planned(body, "bedrock")
    point = {"cachePoint": {"type": "default"}}
    assert marked["system"] == [{"text": LONG}, point]
    assert marked["messages"][0]["content"] == [{"text": "go"}, {"text": "on"}, point]
    assert places(prompt) == ["system[0]", "messages[0].content[1]"]


def test_nova_gets_no_cache_point_in_its_tools() -> None:
    """Amazon's own models cache system and messages; a cache point among the tools would be for nothing."""
    body: dict[str, Any] = {
        "modelId": "amazon.nova-pro-v1:0",
        "toolConfig": {"tools": [{"toolSpec": {"name": "a", "description": LONG, "inputSchema": {"json": {}}}}]},
        "system": [{"text": LONG}],
        "messages": [{"role": "user", "content": [{"text": "go"}]}],
    }
    prompt, marked = planned(body, "bedrock")
    assert places(prompt) == ["system[0]", "messages[0].content[0]"]
    assert marked["toolConfig"] is body["toolConfig"]


def test_openai_marks_content_blocks_and_silences_a_useless_implicit_one() -> None:
    """At a fork point the explicit mark stands on the shared part, and the role's tail is not written."""
    body = {"model": "gpt-5.6", "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "role"}]}
    prompt, marked = planned(body, "openai-chat", "openai-5.6", boundary=1)
    assert places(prompt) == ["system[0].content[0]"]
    assert marked["messages"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
    assert marked["prompt_cache_options"] == {"mode": "explicit"}
    assert marked["messages"][1] is body["messages"][1]


def test_openai_keeps_the_implicit_mark_where_the_conversation_goes_on() -> None:
    """In a loop the newest message will be read again: the implicit breakpoint stays, and counts."""
    rows = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
    ]
    prompt, marked = planned({"model": "gpt-5.6", "messages": [*rows, rows[1]]}, "openai-chat", "openai-5.6")
    assert "prompt_cache_options" not in marked
    assert len(places(prompt)) <= 3


def test_the_tail_of_a_first_request_is_marked_where_a_loop_is_expected() -> None:
    """Who knows that a loop will follow has its first request written, to be read in the second."""
    assert places(planned(claude(), boundary=3)[0])[-1] == "system[0]"
    assert places(planned(claude(), boundary=3, continues=True)[0])[-1].startswith("messages[0]")


def test_openai_marks_the_end_of_what_stays_where_text_for_one_request_follows() -> None:
    """The implicit mark would stand behind that text, where no later request begins; the explicit one is read."""
    profile = rules("openai-5.6")
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "role"}]
    cache = ProviderCache(profile)
    read = []
    for at in range(2):
        body = {"model": "gpt-5.6", "messages": [*messages, {"role": "user", "content": "more"}][: 2 + at]}
        prompt, marked = planned(body, "openai-chat", "openai-5.6", boundary=1, continues=True, trailing=True)
        assert marked["prompt_cache_options"] == {"mode": "explicit"}
        sent = {**marked, "messages": [*marked["messages"], {"role": "user", "content": f"tick {at}"}]}
        read.append(cache.serve(decode(sent, "openai-chat"), at * 10).read_tokens)
    assert read[0] == 0
    assert read[1] == sum(section.tokens for section in prompt.sections[:2])


def test_responses_are_marked_in_their_input() -> None:
    """The responses API takes marks on content blocks of input items, not on instructions."""
    body = {
        "model": "gpt-5.6",
        "instructions": LONG,
        "input": [{"role": "developer", "content": LONG}, {"role": "user", "content": "role"}],
    }
    prompt, marked = planned(body, "openai-responses", "openai-5.6", boundary=2)
    assert places(prompt) == ["system[1].content[0]"]
    assert marked["input"][0]["content"][0]["type"] == "input_text"
    assert marked["instructions"] == LONG


@pytest.mark.parametrize(
    "output",
    [
        LONG,
        [{"type": "input_text", "text": LONG}],
        [{"type": "input_text", "text": LONG}, {"type": "input_image", "image_url": "https://example.org/a.png"}],
    ],
)
@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_a_tools_output_is_marked_on_its_last_part(kind: str, output: Any) -> None:
    """A fork beside a loop reads as far as the newest output; text becomes the one part that says the same."""
    call = {"type": kind.removesuffix("_output"), "call_id": "c", "name": "look", "arguments": "{}"}
    item = {"type": kind, "call_id": "c", "output": output}
    asked, question = {"role": "user", "content": "go"}, {"role": "user", "content": "?"}
    body = {"model": "gpt-5.6", "input": [asked, call, item, question]}
    before = copy.deepcopy(body)
    prompt, marked = planned(body, "openai-responses", "openai-5.6", boundary=3)
    assert body == before
    assert places(prompt) == ["messages[2]"]
    sent = marked["input"][2]["output"]
    assert sent[-1]["prompt_cache_breakpoint"] == {"mode": "explicit"}
    assert all("prompt_cache_breakpoint" not in part for part in sent[:-1])
    assert prompt.sections == decode(body, "openai-responses").sections
    assert encode(prompt)["input"][2] == marked["input"][2]


@pytest.mark.parametrize("output", ["", [], [{"type": "something_new"}], [LONG]])
def test_an_output_that_no_mark_can_stand_on_is_passed_by(output: Any) -> None:
    """What the API does not say to take a mark gets none: it goes on what stands before."""
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    item = {"type": "function_call_output", "call_id": "c", "output": output}
    asked, question = {"role": "user", "content": LONG}, {"role": "user", "content": "?"}
    body = {"model": "gpt-5.6", "input": [asked, call, item, question]}
    prompt, marked = planned(body, "openai-responses", "openai-5.6", boundary=3)
    assert places(prompt) == ["messages[0].content[0]"]
    assert marked["input"][2] is item


def test_providers_without_marks_get_none() -> None:
    """Automatic caches and models nobody knows are left alone."""
    prompt = decode({"model": "gpt-5.1", "messages": [{"role": "user", "content": LONG}]}, "openai-chat")
    assert plan_breakpoints(prompt, rules("openai")) == ()
    assert plan_breakpoints(prompt, rules("unknown")) == ()


BLOCKS = st.sampled_from(
    [
        {"type": "text", "text": "word " * 300},
        {"type": "text", "text": ""},
        {"type": "text", "text": "own", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "hour", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "tool_use", "id": "a", "name": "n", "input": {"b": 1}},
        {"type": "tool_result", "tool_use_id": "a", "content": "text"},
        {"type": "image", "source": {"type": "base64", "data": "xx"}},
    ]
)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.lists(st.lists(BLOCKS, min_size=1, max_size=9), min_size=1, max_size=6),
    boundary=st.none() | st.integers(0, 40),
    top=st.booleans(),
    lifetime=st.sampled_from([None, "5m", "1h"]),
)
def test_marking_never_changes_content_nor_earns_a_refusal(
    *, rows: list[list[dict[str, Any]]], boundary: int | None, top: bool, lifetime: str | None
) -> None:
    """Whatever was there: the prompt stays equal, the given body stays as it was, the provider accepts the marks."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": blocks} for i, blocks in enumerate(rows)]
    body: dict[str, Any] = {"model": "claude-sonnet-4-5", "system": LONG, "messages": messages}
    if top:
        body["cache_control"] = {"type": "ephemeral"}
    profile = rules("anthropic")
    before = copy.deepcopy(body)
    prompt = decode(body, "anthropic")
    already = _accepted(prompt, profile)
    chosen = plan_breakpoints(prompt, profile, boundary=boundary, lifetime=profile.ttl(lifetime))
    marked = mark(body, "anthropic", prompt, chosen)
    after = decode(marked, "anthropic")
    assert body == before
    assert after == prompt
    assert len(set(places(after))) == len(places(prompt)) + len(chosen)
    if already:
        assert _accepted(after, profile)


def _accepted(prompt: Prompt, profile: Profile) -> bool:
    """Whether the simulated provider answers it at all."""
    try:
        ProviderCache(profile).serve(prompt, 0.0)
    except Exception as error:
        return type(error).__name__ != "RefusedError"
    return True


def test_only_what_is_marked_is_copied() -> None:
    """Everything else in the marked body is the very object that was given."""
    body = claude(3)
    text = json.dumps(body)
    prompt = decode(body, "anthropic")
    marked = mark(body, "anthropic", prompt, (Breakpoint(2),))
    assert json.dumps(body) == text
    assert marked["messages"] is body["messages"]
    assert marked["tools"] is body["tools"]
    assert marked["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_marks_over_the_limit_are_dropped_and_those_that_are_too_short_anyway_are_among_them() -> None:
    """Three marks over OpenAI's limit, two of which stand before the minimum: one more is not written, all are read."""
    row = rules("openai-5.6")
    texts = ["short", "short", *[LONG] * (row.max_breakpoints + 1)]
    mark_field = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    body = {
        "model": "gpt-5.6",
        "prompt_cache_options": {"mode": "explicit"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": one, **mark_field}]} for one in texts],
    }
    prompt = decode(body, "openai-chat")
    found = marks(prompt, row, prompt.totals)
    assert (found.short, found.dropped) == ((0, 1), (2,))
    assert list(found.written) == list(range(3, len(texts)))
    assert found.reading == tuple(range(2, len(texts)))
