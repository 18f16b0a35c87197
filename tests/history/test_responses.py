"""The items of OpenAI's responses API: views, decisions carried out, reasoning bound to what it was made for."""

import json
from itertools import pairwise

from cacheprefix.history import (
    Compaction,
    Ledger,
    ToolResultBudget,
    append_message,
    build,
    compact,
    drop_tool_messages,
    dumps,
    loads,
    new_state,
    plan_compaction,
    replay,
    trim_tool_outputs,
)
from cacheprefix.prompt import Drop, DropCall, DropResult, ReplaceResult
from cacheprefix.wire import apply, views_of

API = "openai-responses"
WORDS = " ".join(f"word{n}" for n in range(300))


def call(number, name="look"):
    """A function call."""
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": f'{{"n":{number}}}'}


def output(number, text=WORDS):
    """Its output."""
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


def reasoning(number):
    """A sealed reasoning item."""
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "A" * 200}


def said(role, text):
    """A message item."""
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def history(turns):
    """Turns with reasoning, two parallel calls, their outputs and an answer."""
    items = []
    for n in range(turns):
        items += [said("user", f"question {n}"), reasoning(n), call(2 * n), call(2 * n + 1)]
        items += [output(2 * n, f"{n} {WORDS}"), output(2 * n + 1, f"{n} short"), said("assistant", f"answer {n}")]
    return items


def test_every_item_has_its_view():
    """Roles, calls, results with their tools' names, and texts."""
    views = views_of(history(1), API)
    assert [view.role for view in views] == ["user", "assistant", "assistant", "assistant", "tool", "tool", "assistant"]
    assert views[2].calls[0].name == "look"
    assert [view.results[0].name for view in views[4:6]] == ["look", "look"]
    assert views[6].text == "answer 0"
    assert views_of([{"role": "user", "content": "plain"}], API)[0].text == "plain"


def test_a_budget_cuts_outputs_and_leaves_the_rest_the_same_objects():
    """Replay with the recorded ledger gives the same bytes."""
    items = history(2)
    first = replay(views_of(items, API), Ledger(), ToolResultBudget(50))
    sent = apply(items, first.decisions, API)
    assert len(sent[4]["output"]) < len(WORDS)
    assert sent[0] is items[0]
    again = replay(views_of(items, API), Ledger.from_json(first.ledger.to_json()), ToolResultBudget(900))
    assert json.dumps(apply(items, again.decisions, API)) == json.dumps(sent)


def test_a_cleared_output_of_pictures_becomes_an_input_text():
    """The block's type is the one this API reads."""
    picture = output(1, [{"type": "input_image", "image_url": "data:"}])
    sent = apply([call(1), picture], [ReplaceResult(1, 0, "gone", keep_media=False)], API)
    assert sent[1]["output"] == [{"type": "input_text", "text": "gone"}]


def test_reasoning_goes_with_the_last_item_that_was_made_under_it():
    """It stays while one of its calls stays, and is never dropped alone."""
    items = [said("user", "x"), reasoning(1), call(1), call(2), output(1), output(2)]
    one = apply(items, [DropCall(2, "c1"), DropResult(4, 0)], API)
    assert [item["type"] for item in one] == ["message", "reasoning", "function_call", "function_call_output"]
    both = apply(items, [DropCall(2, "c1"), DropResult(4, 0), DropCall(3, "c2"), DropResult(5, 0)], API)
    assert [item["type"] for item in both] == ["message"]
    assert apply(items, [Drop(1)], API) == items


def test_items_of_an_unknown_kind_are_never_touched():
    """What they belong to cannot be known."""
    view = views_of([{"type": "mcp_list_tools", "id": "m"}], API)[0]
    assert view.pinned


def test_a_compaction_keeps_pairs_and_reasoning_together():
    """After it every call has its output and every reasoning item its follower."""
    items = history(20)
    views = views_of(items, API)
    plan = plan_compaction(views, Ledger(), Compaction(4_000, keep_turns=2, horizon=1e6))
    assert plan.due
    sent = apply(items, replay(views, plan.commit()).decisions, API)
    assert len(sent) < len(items)
    calls = {item["call_id"] for item in sent if item.get("type") == "function_call"}
    outputs = {item["call_id"] for item in sent if item.get("type") == "function_call_output"}
    assert calls == outputs
    for item, after in pairwise(sent):
        if item.get("type") == "reasoning":
            assert after["type"] == "function_call"
    for before, item in pairwise(sent):
        if item.get("type") == "function_call":
            assert before["type"] in ("reasoning", "function_call")


def filled(items, state=None, **options):
    """A state with the items appended."""
    state = state or new_state(API)
    for item in items:
        state = append_message(state, item, **options)
    return state


def test_a_managed_state_builds_the_items_it_was_given():
    """Reasoning, parallel calls and their outputs in their order, the system text beside them."""
    items = history(3)
    built = build(filled(items, new_state(API, system="SYS")), "SYS")
    assert built.messages == items
    assert built.system == "SYS"


def test_volatile_text_never_parts_reasoning_or_calls_from_what_follows():
    """While an output is missing it stands before the whole answer, afterwards at the end."""
    items = history(1)
    for upto in range(1, len(items) + 1):
        messages = build(filled(items[:upto]), volatile="now").messages
        rest = [item for item in messages if item.get("content") != "now"]
        assert rest == items[:upto]
        assert messages.index({"role": "user", "content": "now"}) == (1 if 1 < upto < 6 else upto)


def test_parallel_calls_are_one_turn_for_the_budget():
    """Each call is an item of its own, and yet the outputs share what a turn may have."""
    outputs = [output(n, f"{n} {WORDS}") for n in range(4)]
    state = filled([call(n) for n in range(4)] + outputs, budget=ToolResultBudget(10_000, per_turn=400))
    shown = [item["output"] for item in state.messages[4:]]
    assert all(len(text) < len(WORDS) for text in shown)
    again = replay(views_of([call(n) for n in range(4)] + outputs, API), state.ledger, None)
    assert [item["output"] for item in apply([call(n) for n in range(4)] + outputs, again.decisions, API)[4:]] == shown


def test_the_answer_commits_an_agents_cycle_and_its_hook_leaves_no_half_of_a_pair():
    """Calls, outputs and the reasoning made for them go; reasoning with its answer stays."""
    items = history(1)
    items.insert(6, reasoning("last"))
    state = filled(items[:-1], new_state(API, mode="agent_cycle"), hook=drop_tool_messages)
    assert not len(state.committed)
    state = append_message(state, items[-1], hook=drop_tool_messages)
    assert [item.get("type") for item in state.committed.messages] == ["message", "reasoning", "message"]
    assert not len(state.turn)


def test_outputs_are_trimmed_to_their_last_lines_on_commit():
    """As tool messages of the other forms are."""
    items = [said("user", "go"), call(1), output(1, "a\nb\nc"), said("assistant", "done")]
    state = filled(items, new_state(API, mode="agent_cycle"), hook=trim_tool_outputs(1))
    assert state.messages[2]["output"] == "[2 earlier lines cut]\nc"


def test_a_managed_state_is_compacted_and_survives_json():
    """Calls keep their outputs and reasoning what it was made for; loaded elsewhere it builds the same bytes."""
    state = filled(history(40))
    done = compact(state, Compaction(6_000), force=True)
    assert done.committed.tokens < state.committed.tokens
    kept = done.messages
    calls = {item["call_id"] for item in kept if item.get("type") == "function_call"}
    assert calls == {item["call_id"] for item in kept if item.get("type") == "function_call_output"}
    for one, following in pairwise(kept):
        if one.get("type") == "reasoning":
            assert following.get("type") in ("function_call", "reasoning") or following.get("role") == "assistant"
    assert json.dumps(build(loads(dumps(done))).messages) == json.dumps(build(done).messages)
