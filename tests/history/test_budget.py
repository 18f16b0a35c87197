"""Tool results are cut once, at first sight, by content, and stay so."""

import json
from dataclasses import dataclass, field

import pytest
from context_histories import histories, is_empty, pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.errors import SetupError, StateError, StoreError
from cacheprefix.history import Cutting, Ledger, ToolResultBudget, budget_results, grep
from cacheprefix.history.strategies import Cut, Strategy, head, head_tail, json_aware, none, tail
from cacheprefix.prompt import estimate_tokens
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix.wire import apply, views_of
from tests.drawn import examples

APIS = ("openai-chat", "openai-responses", "anthropic")
SMALL = ToolResultBudget(max_tokens=100, per_turn=150)


def _call(id_="c1", name="shell", args="{}"):
    return {"role": "assistant", "content": None, "tool_calls": [_entry(id_, name, args)]}


def _entry(id_, name="shell", args="{}"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": args}}


def _result(text, id_="c1"):
    return {"role": "tool", "tool_call_id": id_, "content": text}


def _lines(count, word="alpha"):
    return "\n".join(f"{word} {n} " + "x" * 40 for n in range(count))


def _run(messages, ledger=None, budget=SMALL, api="openai-chat", **options):
    done = budget_results(views_of(messages, api), ledger or Ledger(), budget, Cutting(**options))
    return apply(messages, done.decisions, api), done


def test_a_large_result_shows_its_head_and_its_tail():
    """The model reads the beginning and the end of a large result the first time it is sent."""
    out, _ = _run([_call(), _result(_lines(400))], budget=ToolResultBudget(max_tokens=300))
    text = out[1]["content"]
    assert text.startswith("alpha 0 ")
    assert text.endswith("alpha 399 " + "x" * 40)
    assert "characters cut here" in text
    assert estimate_tokens(text) <= 300


def test_a_reused_call_id_does_not_revive_an_old_decision():
    """A small new answer under an old id stands as it is."""
    messages = [_call("call_0"), _result(_lines(400), "call_0")]
    _, first = _run(messages)
    out, _ = _run([*messages, _call("call_0"), _result("tiny", "call_0")], first.ledger)
    assert out[3]["content"] == "tiny"
    assert out[1]["content"] != messages[1]["content"]


def test_a_later_smaller_budget_changes_nothing_already_sent():
    """A result that was kept is kept for good, whatever the budget becomes."""
    messages = [_call(), _result(_lines(30))]
    before, first = _run(messages, budget=ToolResultBudget(max_tokens=8_000))
    after, second = _run(messages, first.ledger, ToolResultBudget(max_tokens=20))
    assert after == before == messages
    assert second.ledger == first.ledger


def test_a_later_larger_budget_does_not_bring_a_cut_text_back():
    """A result that was cut stays cut, with the same bytes."""
    messages = [_call(), _result(_lines(400))]
    before, first = _run(messages)
    after, _ = _run(messages, Ledger.loads(first.ledger.dumps()), ToolResultBudget(max_tokens=90_000))
    assert json.dumps(after) == json.dumps(before)


def test_an_error_is_never_cut():
    """What a tool failed with stands whole, flagged or told in words."""
    broken = "Error: no such flight\n" + _lines(400)
    flagged = {**_result(_lines(400), "c2"), "is_error": True}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [_entry("c1"), _entry("c2")]},
        _result(broken),
        flagged,
    ]
    out, done = _run(messages)
    assert out == messages
    assert not done.decisions


def test_an_error_line_inside_a_large_result_survives_the_cut():
    """The line that says what went wrong is not lost between head and tail."""
    text = _lines(200) + "\nValueError: the answer is 41\n" + _lines(200)
    out, _ = _run([_call(), _result(text)], budget=ToolResultBudget(max_tokens=400))
    assert "ValueError: the answer is 41" in out[1]["content"]


def test_thirty_results_of_one_turn_share_the_turn_budget():
    """Many results just below the limit of one do not multiply it."""
    calls = {"role": "assistant", "content": None, "tool_calls": [_entry(f"c{n}") for n in range(30)]}
    messages = [calls, *(_result(_lines(60, f"w{n}"), f"c{n}") for n in range(30))]
    out, _ = _run(messages, budget=ToolResultBudget(max_tokens=1_000, per_turn=6_000))
    assert sum(estimate_tokens(message["content"]) for message in out[1:]) <= 6_000


def test_a_turns_limit_cuts_its_largest_results():
    """What fits beside them stays as it is, and leaves them its share."""
    calls = {"role": "assistant", "content": None, "tool_calls": [_entry(f"c{n}") for n in range(3)]}
    messages = [calls, *(_result(_lines(length, f"w{n}"), f"c{n}") for n, length in enumerate((60, 10, 60)))]
    out, _ = _run(messages, budget=ToolResultBudget(max_tokens=1_000, per_turn=700))
    sizes = [estimate_tokens(message["content"]) for message in out[1:]]
    assert out[2] is messages[2]
    assert 600 < sum(sizes) <= 700


def test_a_turns_limit_holds_for_a_single_result_too():
    """One result may not be larger than all results of a turn together may be."""
    out, _ = _run([_call(), _result(_lines(400))], budget=ToolResultBudget(max_tokens=4_000, per_turn=200))
    assert estimate_tokens(out[1]["content"]) <= 200


def test_a_turn_is_decided_only_after_the_join():
    """While a branch is still out, nothing is decided for the turn, so late results cannot conflict."""
    calls = {"role": "assistant", "content": None, "tool_calls": [_entry("c1"), _entry("c2")]}
    budget = ToolResultBudget(max_tokens=1_000, per_turn=1_000)
    early = [calls, _result(_lines(60), "c1")]
    _, first = _run(early, budget=budget)
    assert not first.ledger.keys("turns")
    out, second = _run([*early, _result(_lines(60, "beta"), "c2")], first.ledger, budget)
    assert len(second.ledger.keys("turns")) == 1
    assert sum(estimate_tokens(message["content"]) for message in out[1:]) <= 1_000


def test_a_picture_stays_where_the_text_beside_it_is_cut():
    """Images are left alone, and only the text of a mixed result is shortened."""
    picture = {"type": "image_url", "image_url": {"url": "data:,x"}}
    content = [{"type": "text", "text": _lines(200)}, picture]
    out, _ = _run([_call(), {"role": "tool", "tool_call_id": "c1", "content": content}])
    assert out[1]["content"][1] is picture
    assert len(out[1]["content"][0]["text"]) < 500


def test_only_the_named_tool_has_its_own_limit():
    """By tool, a budget may be other tokens, another strategy, both, or none at all."""
    budget = ToolResultBudget(
        max_tokens=100,
        by_tool={"shell": (200, "tail"), "file_read": None, "web_search": "head", "ask_human": 5_000},
    )
    text = _lines(100)
    shown = {
        name: _run([_call(name=name), _result(text)], budget=budget)[0][1]["content"]
        for name in ("shell", "file_read", "web_search", "ask_human", "other")
    }
    assert shown["file_read"] == shown["ask_human"] == text
    assert shown["shell"].endswith("x" * 40)
    assert not shown["shell"].startswith("alpha 0")
    assert shown["web_search"].startswith("alpha 0")
    assert 100 < estimate_tokens(shown["shell"]) <= 200
    assert estimate_tokens(shown["other"]) <= 100


def test_a_json_result_is_still_json_after_the_cut():
    """The JSON-aware strategy gives valid JSON with the shape of the whole."""
    rows = json.dumps([{"id": n, "name": f"row {n}", "note": "x" * 80} for n in range(300)])
    out, _ = _run([_call(), _result(rows)], budget=ToolResultBudget(max_tokens=400, strategy="json"))
    value = json.loads(out[1]["content"])
    assert value[0]["id"] == 0
    assert "cut here" in value[-1]
    assert estimate_tokens(out[1]["content"]) <= 400


def test_grep_keeps_the_lines_that_match():
    """The regex strategy shows matching lines and what stands around them."""
    text = _lines(300) + "\nneedle here\n" + _lines(300)
    out, _ = _run([_call(), _result(text)], budget=ToolResultBudget(max_tokens=200, strategy=grep("needle")))
    assert "needle here" in out[1]["content"]
    assert len(out[1]["content"]) < 1_000


def test_what_is_cut_can_be_read_again():
    """The note names the reference under which the store has the whole text."""
    store = ResultStore(MemoryStore())
    text = _lines(400)
    out, done = _run([_call(), _result(text)], store=store)
    ref = done.ledger.get("results", done.ledger.keys("results")[0]).rsplit(":", 1)[1]
    assert f"read_full_result(ref={ref!r}" in out[1]["content"]
    assert store.get(ref).text == text


def test_a_result_stays_whole_when_its_store_fails():
    """Nothing is taken out that could not be read back."""

    class Broken:
        def put(self, text, *, scope=""):
            raise StoreError("disk full")

    messages = [_call(), _result(_lines(400))]
    out, done = _run(messages, store=Broken())
    assert out == messages
    again, _ = _run(messages, done.ledger, store=ResultStore(MemoryStore()))
    assert again == messages


def test_a_plugin_may_replace_a_result_and_that_is_recorded():
    """A replacement text is the decision, and it replays without the plugin."""
    messages = [_call(), _result(_lines(40))]
    out, done = _run(messages, replace=lambda view: f"summary of {view.name} \ud800")
    assert out[1]["content"] == "summary of shell \ud800"
    again, _ = _run(messages, Ledger.loads(done.ledger.dumps()), None)
    assert again == out


def test_a_function_is_a_strategy_and_must_be_there_for_the_replay():
    """A decision of a function that this process lacks is an error that names it, not other bytes."""
    budget = ToolResultBudget(max_tokens=50, strategy=Strategy("shout", lambda text, cut: text[:40].upper()))
    messages = [_call(), _result(_lines(100))]
    out, done = _run(messages, budget=budget)
    assert out[1]["content"].startswith("ALPHA 0")
    with pytest.raises(StateError, match="shout"):
        _run(messages, done.ledger, ToolResultBudget())


@dataclass
class Unhashable:
    """A function of the application's that has no hash, as any dataclass."""

    word: str

    def __call__(self, text, cut):
        return self.word + text[:300]


@dataclass(frozen=True)
class Equal:
    """One that is equal to another one of its kind."""

    word: str = field(compare=False)

    def __call__(self, text, cut):
        return self.word + text[:300]


@pytest.mark.parametrize("kind", [Unhashable, Equal])
def test_a_function_shortens_by_itself_whatever_it_is_equal_to(kind):
    """An object without a hash shortened nothing; in the place of an equal one stood what that one had said."""
    for word in ("Alice's: ", "Bob's: ", "Alice's: "):
        out, _ = _run([_call(), _result(_lines(400))], budget=ToolResultBudget(max_tokens=200, strategy=kind(word)))
        assert out[1]["content"].startswith(word)


def test_a_short_result_is_neither_touched_nor_recorded():
    """Two hundred times ``ok`` costs no ledger and no longer prompt."""
    messages = [message for n in range(200) for message in (_call(f"c{n}"), _result("ok", f"c{n}"))]
    out, done = _run(messages, budget=ToolResultBudget(max_tokens=1))
    assert out == messages
    assert len(done.ledger) == 0


def test_two_hundred_decisions_take_about_ten_kilobytes():
    """The ledger holds decisions and parameters, not texts."""
    messages = [message for n in range(200) for message in (_call(f"c{n}"), _result(_lines(400, f"w{n}"), f"c{n}"))]
    _, done = _run(messages, store=ResultStore(MemoryStore()))
    assert len(done.decisions) == 200
    assert len(done.ledger.dumps()) < 11_500


@pytest.mark.parametrize("strategy", [json_aware, grep("nowhere")], ids=["json", "grep"])
@pytest.mark.parametrize("text", [_lines(40), f'"{_lines(40)}"'.replace("\n", "\\n")], ids=["text", "a JSON string"])
def test_what_a_strategy_finds_nothing_in_is_cut_to_its_head_and_tail(strategy, text):
    """No list or object, no line that matches: the model still reads how it begins and ends."""
    assert strategy(text, Cut(600)) == head_tail(text, Cut(600))


@pytest.mark.parametrize("strategy", [head, tail, head_tail, json_aware, grep("nowhere"), none])
def test_a_text_that_is_short_enough_stays_as_it_is(strategy):
    """Whatever the strategy would leave of it."""
    assert strategy(_lines(10), Cut(600)) == _lines(10)


@pytest.mark.parametrize(
    "values",
    [{"max_tokens": 0}, {"per_turn": -5}, {"strategy": "best"}, {"strategy": 7}, {"by_tool": {"a": 0}}],
)
def test_an_impossible_budget_is_refused_at_once(values):
    """Set-up errors are raised where the budget is made."""
    with pytest.raises(SetupError):
        ToolResultBudget(**values)
    with pytest.raises(SetupError, match="regular expression"):
        grep("(")


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_budgeting_keeps_pairs_order_and_every_message(api, data):
    """Whatever the history, the same messages with the same calls and results come out."""
    messages = data.draw(histories(api))
    out, _ = _run(messages, api=api)
    assert pairs(out, api) == pairs(messages, api)
    assert [is_empty(message) for message in out] == [is_empty(message) for message in messages]
    untouched = [new for new, old in zip(out, messages, strict=True) if new == old]
    assert all(any(new is old for old in messages) for new in untouched)


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), other=st.integers(1, 2_000))
def test_replay_is_byte_identical_with_any_later_budget(api, data, other):
    """After a JSON round trip and with another setting, the same ledger gives the same bytes."""
    messages = data.draw(histories(api))
    out, done = _run(messages, api=api)
    for budget in (ToolResultBudget(max_tokens=other, per_turn=other), None):
        again, second = _run(messages, Ledger.loads(done.ledger.dumps()), budget, api)
        assert again == out
        assert second.ledger == done.ledger


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_a_growing_history_never_changes_its_beginning(api, data):
    """What was sent for the first messages is sent again when more have come."""
    messages = data.draw(histories(api))
    ledger = Ledger()
    sent = []
    for end in range(len(messages) + 1):
        if end < len(messages) and _answers(messages[end], api):
            continue
        out, done = _run(messages[:end], ledger, api=api)
        assert out[: len(sent)] == sent
        sent, ledger = out, done.ledger


def _answers(message, api):
    if api == "openai-chat":
        return message["role"] == "tool"
    if api == "openai-responses":
        return message.get("type") == "function_call_output"
    return isinstance(message["content"], list) and any(b["type"] == "tool_result" for b in message["content"])
