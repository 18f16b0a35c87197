"""The conversation's state: pure functions, zones in order, JSON that gives identical prompts."""

import copy
import json
import threading

import pytest
from context_histories import histories, is_empty
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.errors import BodyError, BudgetError, SetupError, StateError
from cacheprefix.history import (
    Circumstances,
    Compaction,
    Ledger,
    Prices,
    ReadBudget,
    RequestBudget,
    Terms,
    ToolResultBudget,
    append_context,
    append_message,
    build,
    build_messages,
    compact,
    compact_for_request,
    drop_tool_messages,
    dumps,
    hand_over,
    loads,
    new_state,
    plan,
    refresh_zones,
    set_zone,
    stats,
    transition,
    trim_tool_outputs,
)
from cacheprefix.wire import views_of
from tests.drawn import examples

APIS = ("openai-chat", "anthropic")
USER = {"role": "user", "content": "what now?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "shell", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "\n".join(f"out {n}" for n in range(60))}
ANSWER = {"role": "assistant", "content": "done"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "shell", "input": {}}]}
USED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": RESULT["content"]}]}
CYCLE = {"openai-chat": [USER, CALL, RESULT, ANSWER], "anthropic": [USER, USE, USED, ANSWER]}


def _filled(messages, state=None, **options):
    state = state or new_state()
    for message in messages:
        state = append_message(state, message, **options)
    return state


def _texts(messages):
    return [m["content"] for m in messages]


def test_zones_stand_from_most_to_least_stable():
    """System, project, memories, durable context, history, then the volatile text of this call."""
    state = append_context(new_state(system="SYS", zones={"project": "P", "memories": "M"}), "C")
    state = append_message(state, USER)
    built = build(state, "SYS", "12:01")
    assert _texts(built.messages) == [
        "SYS",
        "<project>\nP\n</project>",
        "<memories>\nM\n</memories>",
        "C",
        "what now?",
        "12:01",
    ]
    assert built.boundaries == (0, 2, 4)
    assert built.prefix_messages == 5
    assert built.prefix_tokens + built.suffix_tokens == built.tokens


def test_absent_zones_leave_no_empty_message():
    """An empty conversation builds to nothing at all."""
    built = build(new_state())
    assert built.messages == []
    assert (built.prefix_tokens, built.suffix_tokens, built.boundaries) == (0, 0, ())


def test_volatile_text_is_last_inside_a_tool_loop_and_never_stored():
    """What changes per call stands behind everything that the next call reads from the cache."""
    state = _filled([USER, CALL, RESULT])
    first = build_messages(state, volatile="now 1")
    second = build_messages(_filled([CALL, RESULT], state), volatile="now 2")
    assert first[-1]["content"] == "now 1"
    assert second[: len(first) - 1] == first[:-1]
    assert "now 2" not in dumps(state)


def test_volatile_text_never_tears_an_open_call_from_its_result():
    """While a result is missing, the volatile text stands before the call."""
    built = build_messages(_filled([USER, CALL]), volatile="now")
    assert [m["role"] for m in built] == ["user", "user", "assistant"]


def test_the_role_of_volatile_text_can_be_chosen():
    """Some models take a system message in the middle."""
    assert build_messages(new_state(), volatile="x", volatile_role="system")[0]["role"] == "system"
    # Anthropic's API refuses it behind a conversation.
    assert build_messages(new_state("anthropic"), volatile="x", volatile_role="system")[0]["role"] == "user"


def test_anthropics_system_text_stands_beside_the_messages():
    """The Messages API takes no system role in its messages."""
    state = append_message(new_state("anthropic", system="SYS"), USER)
    built = build(state, "SYS", "now")
    assert built.system == "SYS"
    assert [m["role"] for m in built.messages] == ["user", "user"]


@pytest.mark.parametrize("api", APIS)
def test_agent_cycle_commits_the_whole_turn_with_its_final_answer(api):
    """Until the answer, nothing of the turn is history; calls and results in either form."""
    state = new_state(api, mode="agent_cycle")
    sizes = []
    for message in CYCLE[api]:
        state = append_message(state, message)
        sizes.append(state.committed.size)
    assert sizes == [0, 0, 0, 4]
    assert state.turn.size == 0


def test_manual_mode_commits_when_told_and_never_inside_an_open_call():
    """A transition while a tool call is pending leaves the call and what follows it uncommitted."""
    state = _filled([USER, CALL], new_state(mode="manual"))
    assert state.committed.size == 0
    state = transition(state)
    assert state.committed.size == 1
    state = transition(append_message(state, RESULT))
    assert state.committed.size == 3


def test_context_that_comes_during_an_open_call_stands_after_its_result():
    """A durable delta never stands between a call and its result."""
    state = append_context(_filled([USER, CALL]), "news", "facts")
    state = append_message(state, RESULT)
    assert [m["role"] for m in build_messages(state)] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("api", APIS)
def test_shipped_hooks_trim_outputs_and_drop_tool_messages(api):
    """What is committed may be less than what was said, in both forms."""
    trimmed = _filled(CYCLE[api], new_state(api, mode="agent_cycle"), hook=trim_tool_outputs(5))
    text = json.dumps(build_messages(trimmed))
    assert "out 59" in text
    assert "out 54" not in text
    dropped = _filled(CYCLE[api], new_state(api, mode="agent_cycle"), hook=drop_tool_messages)
    assert build_messages(dropped) == [USER, ANSWER]


def test_words_beside_a_call_stay_where_tool_messages_are_dropped():
    """They are what the agent said."""
    said = [USER, {**CALL, "content": "I look."}, RESULT, ANSWER]
    dropped = _filled(said, new_state(mode="agent_cycle"), hook=drop_tool_messages)
    assert build_messages(dropped) == [USER, {"role": "assistant", "content": "I look."}, ANSWER]


def test_an_output_in_blocks_is_trimmed_block_by_block():
    """Pictures among them stay."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}}
    used = {**USED["content"][0], "content": [{"type": "text", "text": RESULT["content"]}, picture]}
    trimmed = trim_tool_outputs(1)([USER, USE, {**USED, "content": [used]}])
    assert trimmed[2]["content"][0]["content"] == [{"type": "text", "text": "[59 earlier lines cut]\nout 59"}, picture]


def test_a_result_whose_call_is_not_there_is_shortened_for_itself():
    """A framework may have cut the history before it."""
    budget = ToolResultBudget(max_tokens=80)
    assert "cut here" in build_messages(append_message(new_state(), RESULT, budget=budget))[0]["content"]


def test_a_hook_that_tears_a_pair_is_refused_and_changes_nothing():
    """The error names the hook, and the state is the one before."""

    def careless(messages):
        return [m for m in messages if "tool_calls" not in m]

    state = _filled([USER, CALL, RESULT], new_state(mode="manual"))
    with pytest.raises(SetupError, match="careless"):
        transition(state, careless)
    assert len(build_messages(state)) == 3


def test_neither_the_callers_objects_nor_built_messages_reach_into_the_state():
    """Later changes outside do not come in, and a built prompt cannot be changed by accident."""
    mine = copy.deepcopy(CALL)
    state = _filled([USER, mine, RESULT])
    mine["tool_calls"][0]["id"] = "other"
    built = build_messages(state)
    assert built[1]["tool_calls"][0]["id"] == "c"
    with pytest.raises(TypeError, match="deepcopy"):
        built[1]["tool_calls"][0]["id"] = "x"
    with pytest.raises(TypeError, match="deepcopy"):
        built[1]["tool_calls"].append(1)
    plain = copy.deepcopy(built)
    plain[1]["tool_calls"].append(1)
    assert build_messages(state)[1]["tool_calls"] == CALL["tool_calls"]


def test_a_state_is_a_value_and_a_fork_is_the_state_itself():
    """Two continuations of one state do not see each other."""
    state = _filled([USER])
    left, right = append_message(state, ANSWER), append_message(state, {"role": "assistant", "content": "else"})
    assert build_messages(state) == [USER]
    assert build_messages(left)[1] == ANSWER
    assert build_messages(right)[1]["content"] == "else"


def test_threads_that_append_to_one_state_get_their_own_histories():
    """No append is lost or mixed into another thread's."""
    base = _filled([USER])
    results = {}

    def work(name):
        state = base
        for n in range(100):
            state = append_message(state, {"role": "user", "content": f"{name} {n}"})
        results[name] = state

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, state in results.items():
        assert _texts(build_messages(state)) == ["what now?", *(f"{name} {n}" for n in range(100))]


def test_a_malformed_message_leaves_no_trace():
    """Roles, bytes and NaN are refused with the place in the message."""
    state = _filled([USER])
    for bad in (
        {"content": "x"},
        {"role": 123},
        {"role": "user", "content": b"x"},
        {"role": "user", "n": float("nan")},
    ):
        with pytest.raises(BodyError):
            append_message(state, bad)
    assert build_messages(state) == [USER]


def test_a_large_result_is_budgeted_when_it_is_appended():
    """The first prompt that holds it already shows it cut, and later budgets change nothing."""
    big = {**RESULT, "content": "row\n" * 5_000}
    state = _filled([USER, CALL, big], budget=ToolResultBudget(max_tokens=100))
    assert len(build_messages(state)[2]["content"]) < 600
    later = _filled([ANSWER, USER, CALL, big], state, budget=ToolResultBudget(max_tokens=9_000))
    assert build_messages(later)[:3] == build_messages(state)
    assert build_messages(later)[-1]["content"] == build_messages(state)[2]["content"]


def test_the_prefix_only_grows_until_a_compaction():
    """Every prompt begins with the one before."""
    state, before = new_state(mode="agent_cycle"), []
    for message in CYCLE["openai-chat"] * 5:
        state = append_message(state, message)
        if not state.pending:
            built = build_messages(state)
            assert built[: len(before)] == before
            before = built


def test_deltas_are_consolidated_at_a_compaction_and_only_then():
    """One block a key at the front, base first and deltas in order, and nothing lost by default."""
    seen = []

    def hook(key, texts):
        seen.append((key, tuple(texts)))
        return " | ".join(texts)

    state = append_context(new_state(), "base", "facts")
    for n in range(3):
        state = append_context(_filled(CYCLE["openai-chat"] * 4, state), f"delta {n}", "facts")
        state = append_context(state, f"other {n}", "other")
    assert not seen
    state = append_message(state, USER)
    small = compact(state, Compaction(trigger=500, horizon=1e9), terms=Terms(consolidate=hook))
    built = _texts(build_messages(small))
    assert built[:2] == ["base | delta 0 | delta 1 | delta 2", "other 0 | other 1 | other 2"]
    assert [key for key, _ in seen] == ["facts", "other"]
    assert len([m for m in small.messages if m.get("_cacheprefix", {}).get("key")]) == 2


def test_an_oversize_durable_context_is_an_error_at_once():
    """History is never silently shrunk to make room for it."""
    state = _filled(CYCLE["openai-chat"])
    with pytest.raises(BudgetError) as caught:
        append_context(state, "w" * 8_000, "facts", limit=500)
    assert caught.value.over_by == 2_003 - 500
    full = append_context(new_state(), "d" * 7_900, "facts", limit=2_000)
    with pytest.raises(BudgetError):
        append_context(full, "delta " * 100, "facts", limit=2_000)


def test_project_text_refreshes_only_with_an_unavoidable_break():
    """A new project text waits for the compaction that rewrites the prefix anyway."""
    state = _filled(CYCLE["openai-chat"] * 12, new_state(zones={"project": "old"}))
    state = set_zone(state, "project", "new")
    assert "old" in build_messages(state)[0]["content"]
    assert "new" in build_messages(refresh_zones(state))[0]["content"]
    small = compact(state, Compaction(trigger=1_000, horizon=1e9))
    assert "new" in build_messages(small)[0]["content"]
    assert refresh_zones(small) == refresh_zones(set_zone(small, "project", "new")) == small
    emptied = refresh_zones(set_zone(small, "project", ""))
    assert "empty now" in build_messages(emptied)[0]["content"]


def test_a_compaction_is_done_only_when_due():
    """Below the trigger, or when it does not pay, the same state comes back."""
    state = _filled(CYCLE["openai-chat"] * 40)
    size = stats(state, 1).tokens
    assert compact(state, Compaction(trigger=size + 1)) is state
    rules = Compaction(trigger=size * 9 // 10, horizon=0)
    assert compact(state, rules) is state
    cold = compact(state, rules, Circumstances(prices=Prices(cold=True)))
    assert stats(cold, 1).tokens < size
    assert cold.ledger.epoch == 1
    assert "break-even" in plan(state, rules).preview()


def test_compacting_twice_changes_nothing():
    """The compacted state is below its trigger."""
    rules = Compaction(trigger=3_000, horizon=1e9)
    once = compact(_filled(CYCLE["openai-chat"] * 60), rules)
    assert compact(once, rules) is once


def test_the_request_budget_counts_system_tools_and_reserve():
    """The history comes down until the whole request fits, and no further error is possible."""
    state = _filled(CYCLE["openai-chat"] * 40)
    request = RequestBudget(window=4_000, reserve=1_000)
    small = compact_for_request(state, request, terms=Terms(system="s" * 400, static_tokens=500))
    assert build(small, "s" * 400).tokens + 500 <= request.room
    assert compact_for_request(small, request, terms=Terms(system="s" * 400, static_tokens=500)) is small
    with pytest.raises(BudgetError) as caught:
        compact_for_request(state, request, terms=Terms(static_tokens=5_000))
    assert caught.value.over_by == 2_000


def test_statistics_say_where_the_conversation_stands():
    """Tokens, what remains, whether it is full, and messages since the last removal."""
    state = _filled(CYCLE["openai-chat"] * 30)
    before = stats(state, 1_000)
    assert before.at_capacity
    assert before.remaining == 0
    assert before.messages == before.since_removal == 120
    small = compact(state, Compaction(trigger=1_000, horizon=1e9))
    small = append_message(small, USER)
    after = stats(small, 10_000)
    assert after.since_removal == 1
    assert after.last_removed > 0
    assert after.remaining == 10_000 - after.tokens


@pytest.mark.parametrize(
    "made",
    [
        lambda: Compaction(target=0),
        lambda: Compaction(summaries=0),
        lambda: Prices(read=2),
        lambda: RequestBudget(0),
        lambda: ReadBudget(tokens=0),
        lambda: new_state("graphql"),
        lambda: new_state(mode="always"),
        lambda: append_context(new_state(), [{"type": "image_url", "image_url": {"url": "https://a.example"}}]),
    ],
)
def test_a_value_that_means_nothing_is_refused_where_it_is_given(made):
    """As one of set-up, before any request."""
    with pytest.raises(SetupError):
        made()


def test_a_hand_over_is_text_of_the_last_messages():
    """A framework that starts an agent empty gets the last messages in words, and none when asked for none."""
    views = views_of(CYCLE["openai-chat"], "openai-chat")
    text = hand_over(views, 3)
    assert text.splitlines()[0].startswith("assistant: [calls shell]")
    assert text.splitlines()[-1] == "assistant: done"
    assert hand_over(views, 0) == ""
    told = append_context(_filled([{"role": "system", "content": "Rules."}]), "They pay on Fridays.")
    assert hand_over(_filled(CYCLE["openai-chat"], told).views, 9) == hand_over(views, 9)
    handing = views_of([*CYCLE["openai-chat"], CYCLE["openai-chat"][1]], "openai-chat")
    assert hand_over(handing, 3) == text


def test_a_state_of_another_system_text_or_version_is_refused():
    """A changed prefix is named when the state is loaded or built, not found on the bill."""
    state = append_message(new_state(system="v1"), USER)
    with pytest.raises(StateError, match="another static system text"):
        build(state, "v2")
    with pytest.raises(StateError, match="another static system text"):
        loads(dumps(state), system="v2")
    with pytest.raises(StateError, match="expected an object"):
        Ledger.from_json(["results"])
    for text in ("[", "[]", '{"version":2}', dumps(state).replace('"mode":"none"', '"mode":"odd"'), '{"version":1}'):
        with pytest.raises(StateError):
            loads(text)


@pytest.mark.slow
@pytest.mark.parametrize("api", [*APIS, "openai-responses"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), mode=st.sampled_from(["none", "manual", "agent_cycle"]))
def test_a_loaded_state_builds_identical_prompts(api, data, mode):
    """After dumps and loads, the same prompt comes out, and so it does after more messages."""
    messages = data.draw(histories(api))
    cut = data.draw(st.integers(0, len(messages)))
    budget = ToolResultBudget(max_tokens=80, per_turn=120)
    state = _filled(messages[:cut], append_context(new_state(api, mode=mode), "ctx \ud800"), budget=budget)
    state = set_zone(state, "project", "text")
    again = loads(dumps(state))
    assert dumps(again) == dumps(state)
    assert json.dumps(build_messages(again, volatile="v")) == json.dumps(build_messages(state, volatile="v"))
    more = [_filled(messages[cut:], s, budget=budget) for s in (state, again)]
    assert json.dumps(build_messages(more[0])) == json.dumps(build_messages(more[1]))
    assert all("_cacheprefix" not in message for message in build_messages(more[0]))


@pytest.mark.parametrize("api", [*APIS, "openai-responses"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), share=st.integers(10, 90))
def test_a_compacted_state_is_within_its_budget_and_valid(api, data, share):
    """Whatever the history, the result fits, has no empty message, and counts what it holds."""
    state = _filled(data.draw(histories(api)), new_state(api))
    total = build(state).tokens
    request = RequestBudget(window=max(60, total * share // 100))
    try:
        small = compact_for_request(state, request)
    except BudgetError:
        return
    built = build(small)
    fresh = sum(view.tokens for view in views_of(built.messages, api))
    assert built.tokens == fresh
    assert small.pending or built.tokens <= request.room
    known = [json.dumps(m) for m in build_messages(state)]
    assert not [m for m in built.messages if is_empty(m) and json.dumps(m) not in known]
    assert loads(dumps(small)).ledger == small.ledger


def test_what_is_said_and_removed_again_is_a_compaction_of_its_own():
    """The same two messages over and over: each removal starts a new epoch, so that it is no unexplained break."""
    said = [{"role": "user", "content": "Again. " * 200}, {"role": "assistant", "content": "Done. " * 200}]
    state, epochs = new_state(), []
    for number in range(9):
        state = append_message(state, said[number % 2])
        state = compact(state, Compaction(700, keep_turns=1, horizon=1e9, slack=0))
        epochs.append(state.ledger.epoch)
    assert epochs[-1] >= 3
    assert loads(dumps(state)).ledger.epoch == epochs[-1]
