"""``cacheprefix compare``: the user's own evaluation on both layouts."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from cacheprefix import cli
from cacheprefix.cli.compare_run import Side, Task, cost_ratio, difference, mean_of

EVALUATION = '''
"""An evaluation without a model: usage and scores are made up."""

from cacheprefix.adapter import Request
from cacheprefix.profiles import Usage

BODY = {"model": "gpt-5", "messages": [{"role": "system", "content": "x" * 8000}, {"role": "user", "content": "go"}]}
modes = []


def call(session, read):
    turn = session.adapter.begin(Request(BODY, "openai-chat"))
    turn.finish(Usage(2000, read, None, 10))


def yielding(new_session):
    session = new_session("x" * 8000)
    modes.append(session.mode)
    for number in range(20):
        call(session, 0 if session.mode == "observe" else 1000)
        yield f"task {number}", number % 4 > 0


def worse(new_session):
    session = new_session()
    for number in range(20):
        call(session, 0)
        yield number % 2 if session.mode == "fork" else 1


def mapping(new_session):
    call(new_session(), 0)
    return {"one": 0.5, "two": 1}


def unwrapped(new_session):
    new_session()
    return [1, 0]


def raising(new_session):
    new_session()
    yield 1
    raise RuntimeError("no such tool")


def words(new_session):
    new_session()
    return ["good"]


def alone(new_session):
    return [1]


def others(new_session):
    session = new_session()
    call(session, 0)
    return {session.mode: 1}


def nothing(new_session):
    call(new_session(), 0)
    return []


value = 3
'''


@pytest.fixture
def evaluation(tmp_path, monkeypatch):
    """``evaluation(function)`` is an evaluation of the user's in the current folder."""
    (tmp_path / "my_evaluation.py").write_text(EVALUATION, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda function: f"my_evaluation:{function}"
    sys.modules.pop("my_evaluation", None)


def run(capsys, *arguments):
    """The exit code and the result as data."""
    code = cli.main(["compare", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_quality_and_cost_stand_side_by_side_with_intervals(evaluation, capsys):
    """Equal scores, and a cost that half of the input read at a tenth comes to."""
    code, found = run(capsys, evaluation("yielding"))
    assert code == 0
    assert found["quality_difference"] == {"value": 0, "low": 0, "high": 0}
    assert found["layouts"]["unmodified"]["quality"]["value"] == 0.75
    assert found["layouts"]["unmodified"]["quality"]["low"] < 0.75 < found["layouts"]["unmodified"]["quality"]["high"]
    assert found["cost_ratio"] == pytest.approx({"value": 0.55, "low": 0.55, "high": 0.55})
    assert found["layouts"]["shared"]["cached_share"] == 0.5
    assert {one["cost_units"] for one in found["layouts"]["shared"]["scores"]} == {1100.0}


def test_layouts_take_turns_and_change_who_is_first(evaluation, capsys):
    """A provider's drift must not fall on one of them."""
    code, found = run(capsys, evaluation("yielding"), "--repeats", "2")
    assert code == 0
    assert importlib.import_module("my_evaluation").modes == ["observe", "fork", "fork", "observe"]
    assert found["layouts"]["shared"]["tasks"] == 40


def test_a_loss_of_quality_fails_where_a_limit_is_set(evaluation, capsys):
    """And says how much, with its interval."""
    assert cli.main(["compare", evaluation("worse")]) == 0
    assert cli.main(["compare", evaluation("worse"), "--max-loss", "0.2"]) == 3
    out = capsys.readouterr().out
    assert "NOT shown: the quality falls by no more than 0.2" in out
    assert "quality of shared less unmodified: -0.500 [" in out
    assert cli.main(["compare", evaluation("yielding"), "--max-loss", "0"]) == 0


def test_tasks_that_are_solved_or_not_are_compared_in_pairs(evaluation, capsys):
    """With McNemar's exact test: ten tasks that only one layout solves are beyond chance, a scale is no rate."""
    solved = run(capsys, evaluation("worse"))[1]["solved"]
    assert (solved["only_unmodified"], solved["only_shared"]) == (10, 0)
    assert solved["p"] == pytest.approx(2 / 2**10)
    assert run(capsys, evaluation("mapping"))[1]["solved"] is None
    assert cli.main(["compare", evaluation("worse")]) == 0
    assert "solved by one only: unmodified 10, shared 0" in capsys.readouterr().out


def test_without_a_request_there_is_no_cost_to_compare(evaluation, capsys):
    """Equal costs would be said of a model that was not wrapped."""
    assert cli.main(["compare", evaluation("unwrapped")]) == 0
    printed = capsys.readouterr().out
    assert "not compared, no request went through the session of unmodified and shared" in printed
    assert "cost of shared" not in printed
    assert set(run(capsys, evaluation("unwrapped"))[1]["cost_ratio"].values()) == {None}


def test_a_mapping_of_scores_is_enough(evaluation, capsys):
    """Then the cost has no interval, because the cost of a single task is unknown."""
    code, found = run(capsys, evaluation("mapping"))
    assert code == 0
    assert [one["score"] for one in found["layouts"]["shared"]["scores"]] == [0.5, 1.0]
    assert found["cost_ratio"] == {"value": 1.0, "low": None, "high": None}
    assert cli.main(["compare", evaluation("mapping")]) == 0
    assert "yield scores for an interval" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raising", "failed in the unmodified layout: RuntimeError: no such tool, my_evaluation.py line"),
        ("words", "'good' as a score"),
        ("alone", "made no session"),
        ("others", "different tasks"),
        ("nothing", "gave no score"),
        ("value", "no function 'value'"),
        ("missing", "no function 'missing'"),
    ],
)
def test_what_is_wrong_with_an_evaluation_is_told_in_a_line(evaluation, capsys, function, said):
    """Exit code 2, no traceback."""
    assert cli.main(["compare", evaluation(function)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


@pytest.mark.parametrize(("name", "said"), [("nowhere", "module:function"), ("nowhere:f", "cannot import 'nowhere'")])
def test_an_evaluation_that_is_not_there_is_named(evaluation, capsys, name, said):
    """With the form that is wanted."""
    assert cli.main(["compare", name]) == 2
    assert said in capsys.readouterr().err


def test_intervals_narrow_with_more_tasks():
    """And hold the value they are of."""
    few = mean_of([0.0, 1.0] * 10, 0.95, 0)
    many = mean_of([0.0, 1.0] * 200, 0.95, 0)
    assert few.low < many.low < 0.5 < many.high < few.high
    assert mean_of([0.0, 1.0] * 10, 0.5, 0).low > few.low


def test_differences_are_taken_task_by_task():
    """So tasks of very different difficulty leave no doubt when every one of them got better."""
    plain = Side([Task(str(n), float(n), 10.0) for n in range(30)])
    shared = Side([Task(str(n), n + 0.5, 5.0) for n in range(30)])
    found = difference({"unmodified": plain, "shared": shared}, 0.95, 0)
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)
    ratio = cost_ratio({"unmodified": plain, "shared": shared}, 0.95, 0)
    assert ratio is not None
    assert (ratio.low, ratio.value, ratio.high) == (0.5, 0.5, 0.5)


def test_a_layouts_mode_wins_over_the_evaluations(evaluation):
    """An evaluation that names a mode of its own would compare a layout with itself."""
    from cacheprefix.cli.compare_run import Sessions

    assert Sessions("unmodified")(mode="fork").mode == "observe"
    assert Sessions("shared")(mode="observe").mode == "fork"
