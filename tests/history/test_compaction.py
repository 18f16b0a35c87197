"""Compaction keeps pairs and order, is recorded once, replays the same, and never goes above the budget."""

import json
from itertools import pairwise

import pytest
from context_histories import TOOLS, histories, is_empty, pairs, unpaired, written
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.errors import BudgetError, SetupError
from cacheprefix.history import (
    Circumstances,
    Compaction,
    Ledger,
    Prices,
    RequestBudget,
    ToolResultBudget,
    clear_thinking,
    clear_tool_results,
    digests_of,
    drop_tool_uses,
    plan_compaction,
    replay,
    sliding_window,
)
from cacheprefix.history.groups import groups_of
from cacheprefix.prompt import Drop, DropCall, DropResult, DropThinking, Insert
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix.wire import apply, views_of
from tests.drawn import examples

APIS = ("openai-chat", "anthropic")


def _turn(n, tool="shell", result=None, args="{}"):
    text = "\n".join(f"w{n} line {i} " + "x" * 40 for i in range(20)) if result is None else result
    return [
        {"role": "user", "content": f"question {n}"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"c{n}", "type": "function", "function": {"name": tool, "arguments": args}}],
        },
        {"role": "tool", "tool_call_id": f"c{n}", "content": text},
        {"role": "assistant", "content": f"answer {n}"},
    ]


def _talk(turns, **options):
    return [message for n in range(turns) for message in _turn(n, **options)]


def _compacted(messages, api="openai-chat", ledger=None, around=None, **settings):
    views = views_of(messages, api)
    plan = plan_compaction(views, ledger or Ledger(), Compaction(**settings), around)
    done = replay(views, plan.commit())
    return apply(messages, done.decisions, api), plan, done


def _size(messages, api="openai-chat"):
    return sum(view.tokens for view in views_of(messages, api))


def test_below_the_trigger_nothing_is_planned():
    """A history under the limit is left alone, object by object."""
    messages = _talk(4)
    out, plan, _ = _compacted(messages, trigger=100_000)
    assert not plan.due
    assert plan.reason == "none"
    assert all(new is old for new, old in zip(out, messages, strict=True))


def test_a_users_limit_sets_the_trigger_and_half_of_it_the_target():
    """The history comes down to about half of the limit and not to nothing."""
    messages = _talk(60)
    limit = _size(messages) * 9 // 10
    _, plan, done = _compacted(messages, trigger=limit)
    assert limit // 4 <= done.tokens <= limit // 2
    assert plan.after == done.tokens


def test_the_last_turns_stay_and_turns_are_not_messages():
    """Eight turns of four messages each are thirty-two messages."""
    messages = _talk(40)
    out, _, _ = _compacted(messages, trigger=_size(messages) * 3 // 4)
    assert out[-32:] == messages[-32:]


def test_inside_one_long_turn_the_last_steps_stay():
    """An agent's loop under a single user message can still be compacted."""
    messages = [_talk(1)[0], *(message for n in range(60) for message in _turn(n)[1:3])]
    out, _, done = _compacted(messages, trigger=_size(messages) // 2)
    assert done.tokens <= _size(messages) // 2
    assert out[0] == messages[0]
    assert out[-2:] == messages[-2:]
    assert unpaired(out, "openai-chat") == (0, 0)


def test_the_results_of_a_tool_that_is_not_named_are_not_cleared_first():
    """What only a person could say again is cleared after what a shell can."""
    messages = [m for n in range(40) for m in _turn(n, tool="ask_human" if n % 2 else "shell")]
    views = views_of(messages, "openai-chat")
    plan = plan_compaction(
        views, Ledger(), Compaction(trigger=_size(messages) * 9 // 10, policies=(clear_tool_results(),), summarise=None)
    )
    out = apply(messages, replay(views, plan.commit()).decisions, "openai-chat")
    cleared = [n for n in range(40) if out[4 * n + 2] != messages[4 * n + 2]]
    assert cleared
    assert all(n % 2 == 0 for n in cleared)


def test_done_file_edits_leave_with_their_results():
    """Uses of editing tools are dropped in pairs, and no empty message is left."""
    messages = [m for n in range(40) for m in _turn(n, "file_edit", "ok", json.dumps({"t": "y" * 900}))]
    out, plan, _ = _compacted(messages, trigger=_size(messages) * 3 // 4, policies=(drop_tool_uses(),))
    assert plan.after < plan.before
    assert unpaired(out, "openai-chat") == (0, 0)
    assert not any(is_empty(message) for message in out)


@settings(max_examples=examples(60), deadline=None)
@given(
    data=st.data(), share=st.integers(5, 95), policy=st.sampled_from([drop_tool_uses(None), clear_tool_results(None)])
)
def test_what_a_user_says_beside_a_result_stays_when_the_result_goes(data, share, policy):
    """Anthropic's form has results and the user's words in one message; a removal takes the results alone."""
    messages = data.draw(histories("anthropic"))
    said = []
    for message in messages:
        if message["role"] == "user" and isinstance(message["content"], list):
            said.append(f"my words, number {len(said)}")
            message["content"].append({"type": "text", "text": said[-1]})
    trigger = max(40, _size(messages, "anthropic") * share // 100)
    out, _, _ = _compacted(messages, "anthropic", trigger=trigger, policies=(policy,))
    text = json.dumps(out)
    assert [words for words in said if words not in text] == []


def test_short_results_are_not_replaced_by_something_longer():
    """A history of two hundred times ``ok`` never grows by being compacted."""
    messages = _talk(200, result="ok")
    out, plan, _ = _compacted(messages, trigger=2_000, policies=(clear_tool_results(None),))
    assert out == messages
    assert not plan.due


def test_a_second_compaction_changes_nothing():
    """What was cleared is not cleared again with another number in its place."""
    messages = _talk(40)
    views = views_of(messages, "openai-chat")
    rules = Compaction(trigger=_size(messages) // 2)
    ledger = plan_compaction(views, Ledger(), rules).commit()
    again = plan_compaction(views, ledger, rules)
    assert not again.due
    assert again.commit() == ledger


def test_the_next_compaction_is_far_away():
    """After one compaction many turns pass before the next, since it goes well below the trigger."""
    ledger, epochs, messages = Ledger(), [], []
    rules = Compaction(trigger=6_000, horizon=1_000)
    for n in range(60):
        messages += _turn(n)
        views = views_of(messages, "openai-chat")
        plan = plan_compaction(views, ledger, rules)
        if plan.due:
            ledger = plan.commit()
            epochs.append(n)
        assert replay(views, ledger).tokens <= 6_000
    assert len(epochs) >= 2
    assert min(b - a for a, b in pairwise(epochs)) >= 4


def test_what_cannot_be_brought_down_is_not_compacted_every_turn():
    """Pinned text above the trigger is no reason to rewrite the prefix again and again."""
    pinned = {"role": "user", "content": "x" * 40_000, "_cacheprefix": {"pinned": True}}
    _, plan, _ = _compacted([pinned, *_talk(12)], trigger=8_000)
    assert not plan.due
    assert plan.stuck
    assert "raise the trigger" in plan.refusals[-1]
    assert "raise the trigger" in str(plan)


def test_a_plan_that_can_be_carried_out_is_not_stuck():
    """Whether it is due or only does not pay yet."""
    for trigger in (3_000, 100_000):
        _, plan, _ = _compacted(_talk(40), trigger=trigger)
        assert not plan.stuck


def test_a_new_result_equal_to_a_cleared_one_is_news():
    """The same text again, after its old result was cleared, is shown to the model."""
    same = "\n".join(f"row {i} " + "x" * 60 for i in range(100))
    messages = [m for n in range(30) for m in _turn(n, result=same if n == 0 else None)]
    views = views_of(messages, "openai-chat")
    rules = Compaction(trigger=_size(messages) * 3 // 4, keep_head=0, policies=(clear_tool_results(),), summarise=None)
    ledger = plan_compaction(views, Ledger(), rules).commit()
    grown = [*messages, *_turn(99, result=same)]
    out = apply(grown, replay(views_of(grown, "openai-chat"), ledger).decisions, "openai-chat")
    assert out[2]["content"] != same
    assert out[-2]["content"] == same


def test_errors_pins_and_durable_context_survive():
    """Clearing leaves errors, and nothing touches pins and keyed text."""
    keyed = {"role": "user", "content": "durable " * 50, "_cacheprefix": {"key": "facts"}}
    pinned = {"role": "user", "content": "pinned " * 50, "_cacheprefix": {"pinned": True}}
    failed = _turn(900, result="Error: no such file\n" + "trace " * 200)
    messages = [keyed, *failed, pinned, *_talk(40)]
    out, _, _ = _compacted(messages, trigger=_size(messages) * 3 // 4, policies=(clear_tool_results(None),))
    assert failed[2] in out
    small, _, _ = _compacted(messages, trigger=1_000)
    assert keyed in small
    assert pinned in small


def test_errors_are_the_last_that_a_window_removes():
    """What went wrong long ago outlives younger turns, and goes where nothing else is left."""
    failed = _turn(900, result="Error: no such file\n" + "trace " * 20)
    messages = [*_talk(4), *failed, *_talk(40)]
    rules = {"keep_head": 0.0, "policies": (sliding_window(),)}
    out, _, _ = _compacted(messages, trigger=_size(messages) // 2, **rules)
    assert failed[2] in out
    assert messages[2] not in out
    least, _, _ = _compacted(messages, around=Circumstances(request=RequestBudget(600)), **rules)
    assert failed[2] not in least


def test_what_is_decided_on_half_a_run_is_dormant_and_pruned():
    """A framework that cuts into a removed run shows what it has: no message is lost to half a decision."""
    messages = [message for n in range(40) for message in _turn(n, args=f'{{"n":{n}}}')]
    whole = views_of(messages, "openai-chat")
    ledger = plan_compaction(whole, Ledger(), Compaction(_size(messages) // 3, keep_users=False)).commit()
    assert any(isinstance(decision, Drop) for decision in replay(whole, ledger).decisions)
    first = min(d.index for d in replay(whole, ledger).decisions if isinstance(d, Drop))
    views = views_of(messages[first + 4 :], "openai-chat")
    pruned = ledger.prune(digests_of(views))
    assert not any(isinstance(decision, (Drop, Insert)) for decision in replay(views, ledger).decisions)
    assert replay(views, pruned).decisions == replay(views, ledger).decisions
    assert not any(value.startswith("r:") for value in pruned.section("actions").values())
    assert not pruned.section("inserts")


def test_thinking_is_not_cleared_where_a_provider_binds_it_to_the_prefix():
    """The refusal is told with its reason."""
    messages = [
        m
        for n in range(30)
        for m in (
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a", "reasoning_content": "t" * 900},
        )
    ]
    rules = {"trigger": _size(messages) // 2, "policies": (clear_thinking(),)}
    out, _, _ = _compacted(messages, **rules)
    thinking = [message for message in out if "reasoning_content" in message]
    assert 0 < len(thinking) < 30
    assert "reasoning_content" in out[-1]
    _, bound, _ = _compacted(messages, thinking_bound="signed blocks name their prefix", **rules)
    assert bound.refusals[0] == "thinking is kept: signed blocks name their prefix"
    assert not bound.due


def _thinking(turns):
    """Turns whose answers carry signed thinking, in Anthropic's form."""
    rows = []
    for n in range(turns):
        thought = {"type": "thinking", "thinking": f"thought {n} " * 40, "signature": "s"}
        rows += [
            {"role": "user", "content": f"question {n} " * 40},
            {"role": "assistant", "content": [thought, {"type": "text", "text": f"answer {n} " * 40}]},
        ]
    return rows


def _bound(messages, **rules):
    views = views_of(messages, "anthropic")
    settings = Compaction(sum(view.tokens for view in views) // 2, thinking_bound="bound", **rules)
    plan = plan_compaction(views, Ledger(), settings)
    return plan, apply(messages, replay(views, plan.commit()).decisions, "anthropic")


def _thoughts(messages):
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return [block for block in blocks if block["type"] == "thinking"]


def test_thinking_behind_a_change_goes_with_it_where_it_is_bound_to_its_prefix():
    """A block whose prefix was edited is a 400 there; those before the first change stay."""
    messages = _thinking(40)
    plan, out = _bound(messages)
    assert plan.due
    first = next(n for n, (old, new) in enumerate(zip(messages, out, strict=False)) if old != new)
    assert _thoughts(out[:first]) == _thoughts(messages[:first])
    assert _thoughts(out[first:]) == []
    assert any("thinking behind a change goes with it: bound" in reason for reason in plan.refusals)


def test_an_open_calls_thinking_holds_a_compaction_back_where_it_is_bound():
    """It must be sent back as it is; only the window is stronger."""
    open_call = [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "look", "input": {}},
            ],
        },
    ]
    plan, _ = _bound([*_thinking(40), *open_call])
    assert not plan.due
    assert any("an open call's thinking keeps its prefix: bound" in reason for reason in plan.refusals)


def test_a_plan_says_what_it_costs_and_when_it_pays():
    """Rewrite now, saving per turn and break-even follow from the profile's prices."""
    messages = _talk(60)
    _, plan, _ = _compacted(messages, trigger=_size(messages) // 2, summarise=None)
    rewrite = plan.kept * 0.1 + (plan.after - plan.kept) * 1.25 - plan.before * 0.1
    assert plan.price.rewrite == pytest.approx(rewrite)
    assert plan.price.saving == pytest.approx((plan.before - plan.after) * 0.1)
    assert plan.price.break_even == pytest.approx(max(0, rewrite) / plan.price.saving)
    assert "break-even" in plan.preview()
    assert f"{plan.before:,} -> {plan.after:,} tokens" in plan.preview()


def test_a_compaction_that_does_not_pay_waits_until_the_cache_is_cold():
    """One turn before the end it is not worth a rewrite, unless the cache is gone anyway."""
    messages = _talk(40)
    rules = {"trigger": _size(messages) * 9 // 10, "horizon": 1}
    _, warm, _ = _compacted(messages, **rules)
    assert warm.reason == "trigger"
    assert not warm.due
    _, cold, _ = _compacted(messages, around=Circumstances(prices=Prices(cold=True)), **rules)
    assert cold.reason == "cold"
    assert cold.due
    assert cold.price.rewrite < 0


def test_the_window_forces_a_compaction_whatever_it_costs():
    """A request that does not fit is compacted even when that never pays."""
    messages = _talk(40)
    around = Circumstances(request=RequestBudget(window=_size(messages) - 100, reserve=200))
    out, plan, _ = _compacted(messages, around=around, trigger=10**9, horizon=0)
    assert plan.reason == "window"
    assert plan.due
    assert _size(out) <= around.request.room


def test_an_impossible_request_says_by_how_much():
    """When pins alone are larger than the window there is an error and not a silent cut."""
    pinned = {"role": "user", "content": "x" * 4_000, "_cacheprefix": {"pinned": True}}
    with pytest.raises(BudgetError) as caught:
        _compacted([pinned], around=Circumstances(request=RequestBudget(window=500, reserve=100)))
    assert caught.value.over_by == _size([pinned]) - 400
    with pytest.raises(SetupError):
        RequestBudget(window=500, reserve=500)


def test_a_shrinking_allowance_shrinks_the_window():
    """The window of a task follows what is left of its token allowance."""
    assert RequestBudget(200_000, 8_000).room == 192_000
    assert RequestBudget(200_000, 8_000, allowance=50_000, spent=20_000).room == 22_000


def test_one_summary_stands_for_all_that_was_removed():
    """The second compaction takes the first one's summary in, and names survive both."""
    ledger, messages = Ledger(), []
    for n in range(80):
        messages += _turn(n, result=f"id ZX-{n:04d} " + "lorem ipsum dolor " * 60)
        views = views_of(messages, "openai-chat")
        plan = plan_compaction(views, ledger, Compaction(trigger=6_000, horizon=10**6, summary_tokens=400))
        ledger = plan.commit() if plan.due else ledger
    assert ledger.epoch >= 2
    out = apply(messages, replay(views, ledger).decisions, "openai-chat")
    summaries = [message for message in out if message.get("_cacheprefix", {}).get("summary")]
    assert len(summaries) == 1
    assert "ZX-00" in summaries[0]["content"]


def test_a_summary_by_fork_is_asked_for_and_then_stands():
    """The plan carries the request; its answer replaces the extract and is cut to its budget."""
    messages = _talk(60)
    views = views_of(messages, "openai-chat")
    plan = plan_compaction(
        views, Ledger(), Compaction(trigger=_size(messages) // 2, summarise="fork", summary_tokens=100)
    )
    assert "Summarise" in plan.request.instruction
    ledger = plan.with_summary("We chose plan B. " * 400).commit()
    out = apply(messages, replay(views, ledger).decisions, "openai-chat")
    summary = next(message for message in out if "_cacheprefix" in message)
    assert summary["content"].startswith("We chose plan B.")
    assert len(summary["content"]) <= 400


def test_a_plan_with_a_summary_by_fork_counts_the_asking():
    """The request that the summary is asked with reads the whole prompt once more."""
    messages = _talk(60)
    rules = {"trigger": _size(messages) // 2, "summary_tokens": 100}
    _, extract, _ = _compacted(messages, **rules)
    _, asked, _ = _compacted(messages, summarise="fork", **rules)
    assert asked.price.rewrite - extract.price.rewrite == pytest.approx(0.1 * asked.before)


def test_a_summary_that_fails_leaves_an_extract():
    """An exception in the user's summariser is told once and costs no call."""

    def broken(removed):
        raise RuntimeError("no model")

    messages = [m for n in range(60) for m in _turn(n, result=f"see FILE-{n}.txt " + "word " * 300)]
    with pytest.warns(UserWarning, match="no model"):
        out, _, _ = _compacted(messages, trigger=_size(messages) // 2, summarise=broken)
    assert any("FILE-" in m["content"] for m in out if m.get("_cacheprefix"))


def test_a_cleared_result_can_be_read_again():
    """The placeholder names the reference of the text in the store."""
    store = ResultStore(MemoryStore())
    messages = _talk(40)
    views = views_of(messages, "openai-chat")
    rules = Compaction(trigger=_size(messages) * 3 // 4, keep_head=0, policies=(clear_tool_results(),), summarise=None)
    ledger = plan_compaction(views, Ledger(), rules, Circumstances(readable=True)).commit(store)
    out = apply(messages, replay(views, ledger).decisions, "openai-chat")
    ref = out[2]["content"].split("ref='")[1].split("'")[0]
    assert store.get(ref).text == messages[2]["content"]


def test_a_policy_of_the_users_own_cannot_break_a_pair():
    """A callable that drops half of a pair takes the other half along, and pins are out of its reach."""

    def careless(situation):
        yield Drop(1)
        yield DropCall(5, "c1")
        yield DropThinking(0, 3)
        yield Drop(8)

    messages = _talk(30)
    messages[8] = {**messages[8], "_cacheprefix": {"pinned": True}}
    out, _, _ = _compacted(messages, trigger=_size(messages) // 2, policies=(careless,), keep_head=0, summarise=None)
    assert unpaired(out, "openai-chat") == (0, 0)
    assert messages[8] in out
    assert len(out) == len(messages) - 4


def test_a_history_that_began_with_the_user_still_does():
    """Where the users' words may go too, no answer is left at the front without a question."""
    messages = _talk(20)
    for trigger in range(300, 3_000, 150):
        out, _, _ = _compacted(
            messages, trigger=trigger, keep_users=False, keep_head=0, slack=0, horizon=1e9, summarise=None
        )
        assert out[0]["role"] == "user"


def test_a_late_result_still_leaves_with_its_call():
    """A note between call and result does not tear the pair apart when the window slides."""
    torn = []
    for n in range(40):
        user, call, result, answer = _turn(n)
        torn += [user, call, {"role": "user", "content": "a note"}, result, answer]
    out, _, _ = _compacted(torn, trigger=_size(torn) // 4, policies=(sliding_window(),))
    assert unpaired(out, "openai-chat") == (0, 0)


def test_a_large_first_pair_does_not_block_the_window():
    """A tool sequence larger than what has to go is removed all the same."""
    messages = [*_turn(0, result="x" * 40_000), *_talk(6)]
    out, _, _ = _compacted(messages, trigger=6_000)
    assert _size(out) <= 3_000


@pytest.mark.parametrize(
    "settings_", [{"trigger": 0}, {"trigger": 10, "target": 20}, {"keep_turns": 0}, {"keep_head": 1}]
)
def test_impossible_settings_are_refused(settings_):
    """Set-up errors are raised where the settings are made."""
    with pytest.raises(SetupError):
        Compaction(**settings_)


@pytest.mark.slow
@pytest.mark.parametrize("api", [*APIS, "openai-responses"])
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), share=st.integers(5, 95), users=st.booleans(), head=st.sampled_from([0, 0.2]))
def test_any_history_comes_out_valid(api, data, share, users, head):
    """Pairs and order kept, no empty message, replay byte-identical, second run equal, within the window."""
    messages = data.draw(histories(api))
    window = max(40, _size(messages, api) * share // 100)
    around = Circumstances(request=RequestBudget(window))
    rules = Compaction(
        trigger=window,
        keep_users=users,
        keep_head=head,
        summary_tokens=data.draw(st.sampled_from([0, 60, None])),
    )
    _holds(messages, api, rules, around)


def test_parallel_calls_that_wait_for_their_results_stay_together():
    """Of those at the end of a history none goes, though one alone is answered: what is planned is what is sent."""
    calls = [
        ("call_0", "shell", '{"q": 0}', "ok", True),
        *((f"call_{n}", "shell", '{"q": 0}', None, True) for n in (1, 2)),
    ]
    messages = written(
        [("user", "lorem ipsum " * 30, False), ("user", "ok", False), ("call", "", False, calls)], "openai-responses"
    )
    window = _size(messages, "openai-responses") * 95 // 100
    rules = Compaction(trigger=window, keep_users=False, keep_head=0, summary_tokens=0)
    _holds(messages, "openai-responses", rules, Circumstances(request=RequestBudget(window)))


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_ten_thousand_messages_come_out_valid(api):
    """The same for a very long run with parallel calls, ids used again, missing results and pictures."""
    steps = []
    for n in range(2_250 if api == "anthropic" else 1_750):
        calls = [
            (
                f"call_{k}",
                TOOLS[n % 5],
                f'{{"q":{n}}}',
                None if n % 31 == k else f"result {n}.{k} " + "x" * 90,
                n % 40 == 0,
            )
            for k in range(2 + n % 2)
        ]
        steps += [("user", f"question {n} \ud800 日本", n % 50 == 0), ("call", "", n % 3 == 0, calls)]
        steps += [("answer", f"answer {n} in src/mod_{n % 9}.py", n % 4 == 0)] * (1 + n % 2)
    messages = written(steps, api)
    assert len(messages) >= 10_000
    window = _size(messages, api) // 3
    _holds(messages, api, Compaction(window), Circumstances(request=RequestBudget(window)))


def orphans_in(views):
    """How many results answer no call, as some inputs bring them."""
    answered = {(index, result.part) for group in groups_of(views) for index, result in group.results}
    return len({(index, result.part) for index, view in enumerate(views) for result in view.results} - answered)


def _holds(messages, api, rules, around):
    views, window = views_of(messages, api), around.request.room
    before = unpaired(messages, api)
    orphans = orphans_in(views)
    try:
        plan = plan_compaction(views, Ledger(), rules, around)
    except BudgetError as error:
        over = error.over_by
    else:
        over = None
    if over is not None:
        assert over >= max(1, _least(views) - window)
        return
    ledger = plan.commit()
    done = replay(views, ledger)
    out = apply(messages, done.decisions, api)
    assert plan.after == done.tokens
    assert done.tokens <= window
    assert sum(view.tokens for view in views_of(out, api)) == done.tokens
    assert unpaired(out, api)[0] <= before[0]
    assert unpaired(out, api)[1] <= before[1]
    assert orphans_in(views_of(out, api)) <= orphans
    assert not [m for m in out if is_empty(m) and m not in messages]
    order = {id(message): n for n, message in enumerate(messages)}
    places = [order[id(message)] for message in out if id(message) in order]
    assert places == sorted(places)
    spoken = [m for m in messages if m.get("role") != "system"]
    said = [m for m in out if m.get("role") != "system"]
    if spoken and spoken[0].get("role") == "user":
        assert said[0].get("role") == "user"
    again = replay(views, Ledger.loads(ledger.dumps()), ToolResultBudget(max_tokens=5))
    kept = set(done.decisions)
    assert kept <= set(again.decisions)
    assert replay(views, Ledger.loads(ledger.dumps())).decisions == done.decisions
    second = plan_compaction(views, ledger, rules, around)
    assert replay(views, second.commit()).tokens <= window
    assert pairs(apply(messages, done.decisions, api), api) == pairs(out, api)


def _least(views):
    prompts = [view.tokens for view in views if view.is_prompt]
    return prompts[-1] if prompts else 0


def test_a_request_budget_knows_the_window_of_a_model():
    """Whoever serves it and however it is spelled; the reserve and what is left of an allowance still count."""
    pytest.importorskip("genai_prices", reason="windows come from the extra prices, which make test installs")
    assert RequestBudget.for_model("gpt-4o", reserve=8_000).room == 120_000
    bedrock = RequestBudget.for_model("bedrock/us.anthropic.claude-3-haiku-20240307-v1:0")
    assert bedrock.window == RequestBudget.for_model("claude-3-haiku-20240307").window == 200_000
    assert RequestBudget.for_model("gpt-4o", allowance=50_000, spent=20_000).room == 30_000


def test_an_unknown_models_window_must_be_said():
    """The error names the way out."""
    pytest.importorskip("genai_prices", reason="windows come from the extra prices, which make test installs")
    with pytest.raises(SetupError, match=r"RequestBudget\(window="):
        RequestBudget.for_model("nobodys-model-1")


def _is_told(done):
    """Whether something is gone without a word in its place, and whether a text says that something is."""
    gone = any(isinstance(one, (Drop, DropCall, DropResult)) for one in done.decisions)
    return not gone or any(isinstance(one, Insert) for one in done.decisions)


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(80), deadline=None)
@given(data=st.data(), share=st.integers(5, 95), keep_users=st.booleans())
def test_whatever_is_removed_the_model_is_told_so(api, data, share, keep_users):
    """In a window however small, and in every later compaction too; and the word is no longer than what is gone."""
    messages, ledger = data.draw(histories(api)), Ledger()
    for end in (len(messages) // 2, len(messages)):
        views = views_of(messages[:end], api)
        trigger = max(2, sum(view.tokens for view in views) * share // 100)
        rules = Compaction(trigger, keep_turns=1, keep_users=keep_users, horizon=1e9, slack=0)
        plan = plan_compaction(views, ledger, rules, force=True)
        ledger = plan.commit()
        done = replay(views, ledger)
        assert _is_told(done)
        assert done.tokens <= plan.before


def test_where_a_summary_would_say_nothing_a_note_stands():
    """Under forty tokens there is no room for names: the model learns at least that something is gone, once."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"said {n} " + "so " * 30} for n in range(60)]
    ledger = Ledger()
    for end in (40, 50, 60):
        views = views_of(messages[:end], "openai-chat")
        plan = plan_compaction(views, ledger, Compaction(400, keep_turns=1, keep_users=False, horizon=1e9))
        assert plan.due
        ledger = plan.commit()
        out = apply(messages[:end], replay(views, ledger).decisions, "openai-chat")
        notes = [message["content"] for message in out if "_cacheprefix" in message]
        assert notes == ["[Earlier messages were removed from this conversation.]"]
    _, silent, _ = _compacted(messages, trigger=400, keep_turns=1, horizon=1e9, summarise=None)
    assert not any(action.kind == "summaries" for action in silent.actions)


def test_what_is_shorter_than_the_word_about_it_stays():
    """A policy that takes out three tokens for a note of fifteen is not followed."""

    def petty(situation):
        return [Drop(1)]

    messages = _talk(20)
    messages.insert(1, {"role": "user", "content": "ok"})
    rules = {"trigger": _size(messages) // 2, "policies": (petty,), "keep_users": False, "keep_head": 0}
    out, plan, _ = _compacted(messages, **rules)
    assert out == messages
    assert not plan.due
    assert len(_compacted(messages, summarise=None, **rules)[0]) == len(messages) - 1


def test_a_note_beside_an_older_one_is_said_once():
    """What goes next to a loss that was told is told by the same words, and the prompt before it stays as it was."""

    def first_after_note(situation):
        return [Drop(next(at for at in situation.alive if at > 3 and not situation.views[at].summary))]

    messages, ledger = _talk(20), Ledger()
    for _ in range(3):
        views = views_of(messages, "openai-chat")
        rules = Compaction(_size(messages) // 2, policies=(first_after_note,), keep_users=False, keep_head=0)
        ledger = plan_compaction(views, ledger, rules, force=True).commit()
    out = apply(messages, replay(views, ledger).decisions, "openai-chat")
    notes = [at for at, message in enumerate(out) if "_cacheprefix" in message]
    assert notes == [4]
    assert len(out) < len(messages) - 3


def test_the_newest_summaries_stand_numbered():
    """With ``summaries=2`` a compaction leaves the one before it, and takes the older ones away."""
    ledger, messages = Ledger(), []
    rules = Compaction(trigger=6_000, horizon=10**6, summary_tokens=200, summaries=2)
    for n in range(160):
        messages += _turn(n, result=f"id ZX-{n:04d} " + "lorem ipsum dolor " * 60)
        views = views_of(messages, "openai-chat")
        plan = plan_compaction(views, ledger, rules)
        ledger = plan.with_summary(f"what came before turn {n}").commit() if plan.due else ledger
    assert ledger.epoch >= 3
    out = apply(messages, replay(views, ledger).decisions, "openai-chat")
    told = [message["content"] for message in out if message.get("_cacheprefix", {}).get("summary")]
    numbers = [int(text.removeprefix("[Summary ").split(" ")[0]) for text in told]
    assert len(numbers) == 2
    assert numbers[1] == numbers[0] + 1 >= 3
