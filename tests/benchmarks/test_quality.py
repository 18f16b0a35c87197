"""The harness of answers' quality: its judges, its layouts, its statistics, and that it can tell a difference."""

from __future__ import annotations

import math

import httpx
import pytest

from benchmarks import bench_quality
from benchmarks.bench_quality import LAYOUTS, WORDINGS, laid_out, rows, run, verdict
from benchmarks.quality_tasks import CONTEXTS, KINDS, Answer, items
from cacheprefix.cli.paired import mcnemar, rate
from cacheprefix.server import Fault, Reply, SimulatedProvider, ToolCall
from cacheprefix.testing import assert_valid_requests
from cacheprefix.wire import decode

ALL = items(12)


def test_there_are_enough_items_of_enough_kinds():
    """Three hundred of twenty-five kinds, in contexts of three sizes, with one to six agents before."""
    assert len(KINDS) >= 25
    assert len(ALL) >= 300
    assert len({item.kind for item in ALL}) == len(KINDS)
    sizes = [len(str(item.transcript)) + len(item.handbook) for item in ALL]
    assert all(any(0.5 < size / 4 / context < 2 for size in sizes) for context in CONTEXTS)
    assert {len(item.others) for item in ALL} == {1, 2, 3, 4, 5, 6}


def test_every_judge_tells_a_right_answer_from_a_wrong_one():
    """A judge that takes everything, or nothing, measures nothing."""
    for item in ALL:
        taken = [item.judge(said) for said in (item.good, item.bad, Answer(""))]
        assert taken == [True, False, False], f"{item.kind} {item.number}"


def test_the_same_seed_draws_the_same_items_and_another_seed_others():
    """So that a run can be repeated, and its items can be held out."""
    again, other = items(2), items(2, seed=7)
    assert [(a.role, a.question, a.transcript) for a in again] == [(b.role, b.question, b.transcript) for b in items(2)]
    assert [a.transcript for a in again] != [b.transcript for b in other]


@pytest.mark.parametrize("layout", [*LAYOUTS, *WORDINGS])
def test_every_layout_holds_the_same_texts_in_a_valid_request(layout):
    """Role, handbook, conversation and question once each; only cards tell an agent of the others' roles."""
    for item in ALL[: len(KINDS)]:
        messages = laid_out(item, layout)
        body = {"model": "gpt-5.2", "messages": messages, **({"tools": list(item.tools)} if item.tools else {})}
        assert_valid_requests([body])
        text = "\n".join(section.text for section in decode(body, "openai-chat").sections)
        for wanted in (item.role, item.handbook, item.question):
            assert text.count(wanted) == 1
        assert all(str(message["content"]) in text for message in item.transcript if message["content"])
        assert any(other in text for other in item.others.values()) == layout.startswith("cards")


def test_no_task_is_begun_after_the_time_given():
    """What was begun before is whole; nothing is asked for the rest."""
    assert run(lambda *_: Answer(""), ALL, [0.0], seconds=-1) == []


def test_a_run_that_was_stopped_goes_on_where_it_stood(tmp_path):
    """What was answered or refused is not asked again, and the figures are those of a run in one piece."""
    tasks = items(1, contexts=[500])[:4]
    asked = []

    def ask(messages, item, temperature):
        asked.append(item.kind)
        if item is tasks[1]:
            raise bench_quality.RefusedRequestError("400: no")
        return item.good

    file = tmp_path / "answers.jsonl"
    whole = run(ask, tasks, [0.0, 0.7])
    once = len(asked)
    run(bench_quality.Kept(ask, "some", file), tasks[:2], [0.0, 0.7])
    assert run(bench_quality.Kept(ask, "some", file), tasks, [0.0, 0.7]) == whole
    others = items(1, contexts=[2_000])[:9]
    assert run(bench_quality.Kept(ask, "some", file), [*others, *tasks], [0.0, 0.7], seconds=-1) == whole
    assert len(asked) == 2 * once
    run(bench_quality.Kept(ask, "another", file), tasks, [0.0])
    assert len(asked) == 2 * once + once // 2


def test_a_busy_server_is_asked_again_and_a_broken_one_ends_the_run(monkeypatch):
    """Neither counts as a task that the model failed."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    (item,) = items(1, contexts=[500])[:1]
    left = [Reply(fault=Fault(429, "slow down"))]
    script = lambda request: left.pop() if left else Reply(item.good.text)  # noqa: E731 - a line
    with SimulatedProvider("openai", script) as provider, httpx.Client(timeout=60) as client:
        ask = bench_quality.asker(client, provider.openai_base_url, "gpt-5.2")
        (found,) = run(ask, [item], [0.0], ["own"])
        assert found.solved
        left.append(Reply(fault=Fault(401, "who are you")))
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            run(ask, [item], [0.0], ["own"])


def _scripted(solves):
    """A provider that answers right where ``solves(messages)`` says so."""
    by_question = {}
    for item in items(2, contexts=[500]):
        by_question[item.transcript[0]["content"]] = item

    def script(request):
        asked = request.body["messages"]
        item = next(by_question[m["content"]] for m in asked if m.get("content") in by_question)
        said = item.good if solves(asked) else item.bad
        return Reply(said.text, tool_calls=tuple(ToolCall(name, {}) for name in said.tools))

    return script


def _measured(solves, model="gpt-5.2"):
    with SimulatedProvider("openai", _scripted(solves)) as provider, httpx.Client(timeout=60) as client:
        ask = bench_quality.asker(client, provider.openai_base_url, model)
        return list(rows(run(ask, items(2, contexts=[500]), [0.0]), model))


def test_a_model_that_answers_everything_right_solves_everything_in_each_layout():
    """Over HTTP, tool calls included."""
    made = _measured(lambda messages: True)
    assert {row["value"] for row in made} == {1.0}


def test_a_layout_that_a_model_does_not_understand_is_found():
    """A model that reads its role only in the system message is worse beyond chance where it stands elsewhere."""
    made = {row["name"]: row for row in _measured(lambda messages: "You are the" in messages[0]["content"])}
    last = made["last, temperature 0"]
    assert last["value"] < 0.5 < made["own, temperature 0"]["value"]
    assert last["p"] < 0.001
    assert "last, temperature 0 is worse than own beyond chance" in verdict(list(made.values()))


def test_no_verdict_on_a_model_that_fails_most():
    """What fails everywhere tells nothing apart."""
    assert verdict(_measured(lambda messages: False)).startswith("No verdict")


@pytest.mark.parametrize(
    ("solved", "tasks", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (98, 100, 0.930, 0.9945)]
)
def test_intervals_are_wilsons(solved, tasks, low, high):
    """Against published values."""
    found = rate(solved, tasks)
    assert (found.low, found.high) == pytest.approx((low, high), abs=2e-4)


@pytest.mark.parametrize(("only", "p"), [((1, 13), 0.00183), ((5, 5), 1.0), ((0, 0), 1.0), ((2, 8), 0.109375)])
def test_the_pair_test_is_mcnemars_exact_one(only, p):
    """Of the tasks that differ, as many heads of a fair coin or fewer, on both sides."""
    pairs = [(True, False)] * only[0] + [(False, True)] * only[1] + [(True, True)] * 7
    found = mcnemar(pairs)
    assert found.p == pytest.approx(p, rel=1e-2)
    assert found.difference == pytest.approx((only[1] - only[0]) / len(pairs))


def test_more_tasks_see_smaller_differences():
    """And none at all sees nothing."""
    few, many = (mcnemar([(True, False), (False, True), *[(True, True)] * 18] * n) for n in (1, 25))
    assert few.visible > 0.15 > many.visible
    assert mcnemar([]).visible == 1.0
    assert not math.isnan(few.difference)
