"""Result files keep one interface, and the page is made of them alone."""

from __future__ import annotations

import json

import pytest

from benchmarks import _table, page
from cacheprefix.server import Asked, Record
from cacheprefix.server.outcome import CacheOutcome

SIDE = dict.fromkeys(_table.SIDE, 10) | {"cost_units": 100.0}


def cost(workload="team", ratio=0.5, **more):
    """A row that compares costs."""
    return _table.cost(workload, "core", "openai", 0.1, SIDE, {**SIDE, "cost_units": 100.0 * ratio}, **more)


def test_a_cost_row_has_the_fixed_fields():
    """The ratio is that of the shared side to the unmodified one."""
    row = cost()
    assert set(_table.COST) <= set(row)
    assert row["ratio"] == 0.5
    assert row["best_stock"] is None
    assert _table.checked([row, _table.topic("speed", 1.5, "MB/s", {"peer": 1})])


@pytest.mark.parametrize(
    ("row", "absent"),
    [
        ({"name": "speed", "value": 1, "unit": "s"}, "peers"),
        ({"workload": "team", "unmodified": SIDE, "shared": SIDE}, "framework"),
        (cost() | {"shared": {"calls": 1}}, "shared.input_tokens"),
        (cost() | {"best_stock": {}}, "best_stock.calls"),
    ],
)
def test_a_row_that_lacks_a_field_is_refused(row, absent):
    """Before anything is written, and the field is named."""
    with pytest.raises(ValueError, match=absent):
        _table.checked([row])


def test_a_partial_run_writes_no_result(tmp_path, monkeypatch, capsys):
    """What was measured in part must not stand for the whole; what is whole is printed as it is written."""
    monkeypatch.setattr(_table, "RESULTS", tmp_path)
    given = _table.options("about").parse_args(["--json"])
    _table.finish("team", [cost()], given, whole=False)
    assert not list(tmp_path.iterdir())
    capsys.readouterr()
    _table.finish("team", [cost()], given, packages=("orjson", "no-such-package"))
    written = json.loads((tmp_path / "team.json").read_text("utf-8"))
    assert json.loads(capsys.readouterr().out) == written
    assert set(written) == {"version", "date", "versions", "rows"}
    assert {"python", "cacheprefix", "orjson"} == set(written["versions"])


def test_rows_measured_apart_stand_in_one_file(tmp_path, monkeypatch):
    """A name that is measured again takes the place of its row."""
    monkeypatch.setattr(_table, "RESULTS", tmp_path)
    given = _table.options("about").parse_args([])
    assert _table.added("engine", [_table.topic("a", 1, "x")]) == [_table.topic("a", 1, "x")]
    _table.finish("engine", [_table.topic("a", 1, "x"), _table.topic("b", 1, "x")], given)
    found = _table.added("engine", [_table.topic("c", 3, "x"), _table.topic("a", 2, "x")])
    assert [(row["name"], row["value"]) for row in found] == [("a", 2), ("b", 1), ("c", 3)]


def test_another_tokenizer_is_no_result_but_says_how_true_the_report_was(tmp_path, monkeypatch):
    """Beside what other frameworks' runs said; costs at a provider that counts otherwise stand for nothing."""
    monkeypatch.setattr(_table, "RESULTS", tmp_path)
    given = _table.options("about", names=True).parse_args(["--tokenizer", "0.7"])
    rows = [{**cost(), "reported_share": share} for share in (1.01, 0.95, None)]
    for framework in ("crewai", "autogen"):
        _table.finish(framework, rows, given, lines=lambda _: [["workload"]])
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizers.json"]
    rows = json.loads((tmp_path / "tokenizers.json").read_text("utf-8"))["rows"]
    assert [(row["value"], row["unit"]) for row in rows] == [(1, "of 3 rows"), (1, "rows"), (5.0, "%")] * 2


def test_a_table_is_text_or_markdown():
    """Columns of equal width, or a rule under the head."""
    lines = [["name", "value"], ["a longer name", "1"]]
    assert _table.table(lines) == "name           value\na longer name      1"
    assert _table.table(lines, markdown=True).splitlines()[1] == "| --- | ---: |"


@pytest.fixture
def written(tmp_path):
    """``written(name, rows)`` writes a result file; the page of all of them."""

    def write(name, *rows):
        result = _table.result(rows) | {"date": "2026-11-21T10:00:00+00:00"}
        (tmp_path / f"{name}.json").write_text(json.dumps(result), "utf-8")
        return page.render(tmp_path)

    return write


def test_the_page_says_when_and_with_what_it_was_measured(written):
    """And what it does not show, and what was not measured."""
    text = written("crewai", cost(), cost("crew", 1.2))
    assert "`make bench-crewai`, 2026-11-21, python " in text
    assert "| team | 100 -> 50 = 0.50 |" in text
    assert "- openai at 0.1x: 0.85 of unmodified over 2 workloads, 1 of them dearer." in text
    assert "no hosted provider was asked" in text
    assert "No verdict on the quality of answers" in text
    assert "`make bench-langgraph`" in text.splitlines()[-1]


def test_what_a_policy_saves_stands_apart_from_what_sharing_saves(written):
    """In a table of its own, and in no sum; beside each row stand its calls and what the report says."""
    base = cost("team", 0.8) | {"first_token_s": {"unmodified": 1.0, "shared": 0.5, "ungated": 0.5}}
    dropped = {**SIDE, "cost_units": 50.0}
    less = _table.policy("budget of 300", base, SIDE, dropped)
    text = written("crewai", base, cost("team, budget of 300", 0.5, policy=less, information="less"))
    assert "| team | budget of 300 | openai 0.1x | 0.80 | 0.50 | -0.30 |" in text
    assert "0.80 of unmodified over 1 workloads" in text
    assert "| team | 10 | unknown | 0.50 | - |" in text


def test_what_is_played_in_process_has_no_table_of_reports_and_times(written):
    """There is nothing to say in it."""
    assert "unknown |" not in written("roles", cost("team", 0.8))


def test_a_run_takes_as_long_as_what_waits_for_one_another():
    """Two requests side by side, then one behind them; a stream lets others begin with its first token."""

    def record(index, started, first, ended, *, stream=False):
        outcome = CacheOutcome(1_000)
        made = Record(index, "openai-chat", "/", b"", {}, started_at=started, first_token_at=first, ended_at=ended)
        made.asked, made.outcome, made.output_tokens = Asked(stream=stream), outcome, 101
        return made

    first, whole = 0.5, 0.5 + 100 * 0.012
    apart = [record(0, 0.0, 0.1, 0.2), record(1, 0.1, 0.2, 0.3), record(2, 0.3, 0.4, 0.5)]
    assert _table.wall(apart) == pytest.approx(2 * whole)
    follows = [record(0, 0.0, 0.1, 0.4, stream=True), record(1, 0.2, 0.3, 0.5)]
    assert _table.wall(follows) == pytest.approx(first + whole)


def test_the_page_shows_times_as_ratios_only(written):
    """A time without a peer of the same run stays in its file, and the page says how many do."""
    text = written(
        "toolcache",
        _table.topic("get", 5.0, "us", {"diskcache": 10.0}),
        _table.topic("alone", 7.25, "us"),
        _table.topic("speed", 61.5, "MB/s of CPU time"),
        _table.topic("exponent", 1.02, "exponent"),
    )
    assert "| get | 0.5 | of diskcache |" in text
    assert "| exponent | 1.02 | exponent |" in text
    assert "7.25" not in text
    assert "61.5" not in text
    assert "2 rows are times or speeds" in text


def test_a_result_nobody_described_is_shown_too(written):
    """Under its own name, behind the others."""
    text = written("new_topic", _table.topic("share", 0.25, "share"))
    assert "## new topic" in text
    assert "| share | 0.25 | share |" in text


def test_a_section_without_a_result_file_stays_as_it_was(written, tmp_path):
    """So that one benchmark can be run again; what was never measured is still said."""
    before = written("crewai", cost())
    (tmp_path / "crewai.json").unlink()
    written("langgraph", cost("graph", 0.4))
    after = page.render(tmp_path, before)
    section = before[before.index("## CrewAI crews") : before.index("Not measured")]
    assert section in after
    assert after.index("## LangGraph applications") < after.index("## CrewAI crews")
    assert "`make bench-crewai`" not in after.splitlines()[-1]
    assert "`make bench-autogen`" in after.splitlines()[-1]
    assert page.render(tmp_path, after) == after


def test_rows_of_two_engines_are_two_tables(written):
    """So that a row's model, threads and number of runs stand above it."""
    rows = [{**_table.topic(f"rate {n}", n, "share"), "engine": f"engine {n}"} for n in (1, 2)]
    text = written("engine", *rows)
    assert text.index("Engine: engine 1.") < text.index("| rate 1 |") < text.index("Engine: engine 2.")
    assert text.index("Engine: engine 2.") < text.index("| rate 2 |")
