"""``cacheprefix demo``: what it measures, and what it says about bad input."""

import json
import subprocess
import sys

import pytest

from cacheprefix.cli import main

pytest.importorskip("langgraph", reason="the demonstration runs in the core's own environment (make test)")

CLI = [sys.executable, "-m", "cacheprefix"]
FIELDS = {
    "framework", "layout", "rules", "calls", "input_tokens", "cache_read_tokens", "cache_write_tokens",
    "uncached_tokens", "cost_units", "first_calls_cost_units", "ttft_ms_median", "first_call_share",
}  # fmt: skip


def demo(*options, env=None):
    """Run the command as a user does."""
    return subprocess.run(
        [*CLI, "demo", "--latency", "0", *options], capture_output=True, text=True, timeout=240, check=False, env=env
    )


@pytest.fixture(scope="module")
def rows():
    """All layouts under rules with and without marks; what it shows under all is recorded (``tests/recorded``)."""
    done = demo("--json", "--rules", "openai", "--rules", "anthropic")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_layout(rows, rules):
    """The rows of one rule set by layout."""
    return {row["layout"]: row for row in rows if row["rules"] == rules}


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["openai", "anthropic"])
def test_the_shared_layout_costs_less_than_seven_tenths_and_never_more(rows, rules):
    """The whole run, and the first requests of the later roles by half or better."""
    found = by_layout(rows, rules)
    plain, shared = found["unmodified"], found["shared"]
    assert set(plain) >= FIELDS
    assert shared["cost_units"] <= 0.70 * plain["cost_units"]
    assert shared["first_calls_cost_units"] <= 0.50 * plain["first_calls_cost_units"]
    if "stock" in found:
        assert shared["cost_units"] <= found["stock"]["cost_units"]
    assert shared["first_call_share"] >= 0.85
    assert plain["calls"] == shared["calls"] == 14


def test_every_row_accounts_for_all_its_input(rows):
    """Read, written and uncached tokens are the whole input."""
    for row in rows:
        assert row["cache_read_tokens"] + row["cache_write_tokens"] + row["uncached_tokens"] == row["input_tokens"]


def test_each_reviewer_makes_two_tool_rounds_on_the_real_source():
    """The tools read files of an installed package of a few thousand lines."""
    from cacheprefix_langgraph.demo.source import read_source, tools_for

    source = read_source("starlette")
    assert source.lines > 2000
    tools = {tool.name: tool for tool in tools_for(source)}
    path = source.largest(1)[0]
    assert source.files[path][0] in tools["read_file"].invoke({"path": path, "first": 1, "last": 3})
    assert "no file" in tools["read_file"].invoke({"path": "nowhere.py"})
    assert "no regular expression" in tools["search"].invoke({"pattern": "("})
    assert path in tools["list_files"].invoke({})


def test_the_handbook_is_at_most_fifteen_hundred_tokens():
    """A shared text any team could have; the saving does not come from its size."""
    from cacheprefix.prompt import estimate_tokens
    from cacheprefix_langgraph.demo.handbook import HANDBOOK

    assert 500 < estimate_tokens(HANDBOOK) <= 1500


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--input", "no_such_package"], "neither a folder nor an installed package"),
        (["--rules", "nonsense"], "unknown rule set 'nonsense'"),
        (["--provider", "openai"], "needs --model"),
        (["--provider", "nobody", "--model", "m"], "use openai or anthropic"),
        (["--provider", "openai", "--model", "gpt-5.2"], "needs your key in OPENAI_API_KEY"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_two(options, said, monkeypatch, capsys):
    """No traceback, and the fix is named."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["demo", *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_a_folder_without_python_source_is_named(tmp_path, capsys):
    """An unreadable or empty input says what to pass instead."""
    assert main(["demo", "--input", str(tmp_path)]) == 2
    assert "holds no Python source" in capsys.readouterr().err
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe\x00")
    assert main(["demo", "--input", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_the_table_and_the_sentence_are_printed_with_progress_beside_them():
    """Progress goes to standard error, the result to standard output."""
    done = demo("--rules", "openai")
    assert done.returncode == 0, done.stderr
    assert "running openai: shared" in done.stderr
    assert "cost units" in done.stdout.replace("\n", " ") or "units" in done.stdout
    assert "On one shared prefix the same team's input costs" in done.stdout


def test_a_narrow_terminal_shows_every_number_whole(monkeypatch, capsys):
    """Columns are left out and named, none is cut short."""
    from cacheprefix_langgraph.demo import command
    from cacheprefix_langgraph.demo.run import Row

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    numbers = (14, 123_449, 105_728, 15_761, 1_960, 128_075.0, 9_000.0, 1_034.0, 0.88, 18_500.0)
    command._show(
        [Row("langgraph", layout, "openai-5.6", *numbers, "openai-5.6") for layout in ("unmodified", "shared")]
    )
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert all(f"{number:,}" in shown for number in (123_449, 105_728, 15_761, 128_075))
    assert "calls, TTFT ms, wall s too" in shown
