"""The commands ``audit`` and ``check``: files, exit codes, limits."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from audit_logs import quiet, write

from cacheprefix.cli import main


@pytest.fixture
def good(tmp_path):
    """A log without breaks."""
    return write(tmp_path / "good.jsonl", quiet(6))


@pytest.fixture
def bad(tmp_path):
    """A log whose tools are reversed once, and back."""
    lines = quiet(6)
    lines[3]["request"]["tools"].reverse()
    return write(tmp_path / "bad.jsonl", lines)


def test_audit_writes_summary_json_and_page(tmp_path, bad, capsys):
    """One command, three outputs, exit code 0."""
    assert main(["audit", bad, "--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]) == 0
    assert "tools_reordered" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())["breaks"][0]["cause"] == "tools_reordered"
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "said"), [("Be shorter", "2 characters more than before"), ("Be shor", "1 character fewer than before")]
)
def test_a_difference_in_length_is_said_in_words(tmp_path, words, said, capsys):
    """``-1 characters`` read as a place in the text."""
    lines = quiet(4)
    for line, begins in zip(lines, ["Be short", "Be short", words, words], strict=True):
        system = f"{begins}. " + "Name the file and the line. " * 400
        line["request"]["messages"].insert(0, {"role": "system", "content": system})
    assert main(["audit", write(tmp_path / "log.jsonl", lines), "--plain"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_json_on_standard_output_is_nothing_but_json(bad):
    """The summary then goes to standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "cacheprefix", "audit", bad, "--json", "-"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["totals"]["calls"] == 6
    assert "What you pay" in done.stderr


def test_a_log_can_come_from_standard_input(good):
    """``-`` reads it."""
    with Path(good).open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "cacheprefix", "audit", "-", "--plain"],
            stdin=stream,
            capture_output=True,
            check=True,
        )
    assert b"6 calls" in done.stdout


def test_broken_lines_make_exit_code_1(tmp_path, capsys):
    """Everything else is read, and the line is named."""
    path = write(tmp_path / "log.jsonl", [*quiet(2), "{", *quiet(1, seed=4)])
    assert main(["audit", path, "--plain"]) == 1
    out = capsys.readouterr().out
    assert "3 calls" in out
    assert "log.jsonl:3" in out
    assert main(["audit", path, "--quiet"]) == 1
    assert "log.jsonl:3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ["audit", "/no/such/log"],
        ["audit"],
        ["check", "LOG", "--forbid", "bad_weather"],
        ["audit", "LOG", "--rules", "nobody"],
        ["audit", "LOG", "--html", "/no/such/folder/x.html"],
        ["check", "LOG", "--min-cached", "7"],
    ],
)
def test_wrong_use_makes_exit_code_2(good, wrong, capsys):
    """Said in a line, without a traceback."""
    assert main([good if word == "LOG" else word for word in wrong]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ([], 3),
        (["--max-breaks", "2"], 0),
        (["--max-breaks", "1"], 3),
        (["--max-lost-tokens", "0"], 3),
        (["--max-lost-tokens", "1000000"], 0),
        (["--max-lost-usd", "0"], 3),
        (["--max-lost-usd", "5"], 0),
        (["--min-cached", "0.99"], 3),
        (["--min-cached", "0.1"], 0),
        (["--forbid", "tools_reordered"], 3),
        (["--forbid", "system_changed,history_edited"], 0),
        (["--forbid", "cold_start"], 3),
        (["--forbid", "system_changed", "--max-breaks", "0"], 3),
    ],
)
def test_check_fails_where_a_limit_is_exceeded(bad, limits, code, capsys):
    """3 for a limit, 0 within all of them; without any limit a break is one too many."""
    assert main(["check", bad, *limits]) == code
    assert ("FAILED" in capsys.readouterr().out) == (code == 3)


def test_check_passes_a_log_without_breaks(good):
    """The default is that none is allowed."""
    assert main(["check", good]) == 0


def test_check_names_broken_lines_by_code_1(tmp_path):
    """Within the limits, but not everything was read; a limit that is exceeded counts more."""
    path = write(tmp_path / "log.jsonl", [*quiet(2), "{"])
    assert main(["check", path]) == 1
    assert main(["check", path, "--min-cached", "1"]) == 3


def test_money_that_cannot_be_counted_fails_a_limit_in_money(tmp_path, capsys):
    """An unknown price must not pass for free."""
    lines = quiet(6, model="house-model-7")
    lines[3]["request"]["tools"].reverse()
    path = write(tmp_path / "log.jsonl", lines)
    assert main(["check", path, "--rules", "exact", "--max-lost-usd", "100"]) == 3
    assert "no price is known" in capsys.readouterr().out


def test_rules_of_ones_own_are_taken_from_toml(tmp_path, good):
    """``--profiles`` adds rows, ``--rules`` chooses one."""
    toml = tmp_path / "rules.toml"
    row = '[[profile]]\nname = "exact"\nread = 0.5\nsource = "ours"\nchecked_on = 2026-11-20\nconfidence = "high"\n'
    toml.write_text(row, encoding="utf-8")
    out = tmp_path / "a.json"
    assert main(["audit", good, "--rules", "exact", "--profiles", str(toml), "--json", str(out), "-q"]) == 0
    dear = json.loads(out.read_text())["totals"]["cost_units"]
    assert main(["audit", good, "--rules", "exact", "--json", str(out), "-q"]) == 0
    assert dear > json.loads(out.read_text())["totals"]["cost_units"]


def test_rules_of_ones_own_win_over_a_plugins(tmp_path, good, monkeypatch):
    """The row that the command line names is in force, also where an installed plugin has one of its name."""
    from cacheprefix import builtin_plugins
    from cacheprefix.profiles import default_registry

    class House:
        """Registers a dear row."""

        def cacheprefix_profiles(self, register):
            register(replace(default_registry().get("exact"), read=0.9))

    monkeypatch.setattr(builtin_plugins, "BUILTINS", (*builtin_plugins.BUILTINS, ("house", House())))
    toml, costs = tmp_path / "rules.toml", []
    for read in ("0.1", "0.5"):
        row = f'[[profile]]\nname = "exact"\nread = {read}\nsource = "ours"\nchecked_on = 2026-11-20\n'
        toml.write_text(row + 'confidence = "high"\n', encoding="utf-8")
        out = tmp_path / "a.json"
        assert main(["audit", good, "--rules", "exact", "--profiles", str(toml), "--json", str(out), "-q"]) == 0
        costs.append(json.loads(out.read_text())["totals"]["cost_units"])
    assert costs[0] < costs[1]


def test_a_plugins_log_format_is_read(tmp_path, monkeypatch, capsys):
    """The hook ``trace_readers`` adds a reader to the command."""
    from cacheprefix import builtin_plugins
    from cacheprefix.audit import Reader, Record

    class House:
        """Reads ``{"ask": body}``."""

        def cacheprefix_trace_readers(self, register):
            register(Reader("house", lambda value: "ask" in value, lambda value: [Record(body=value["ask"])]))

    monkeypatch.setattr(builtin_plugins, "BUILTINS", (*builtin_plugins.BUILTINS, ("house", House())))
    path = write(tmp_path / "log", [{"ask": line["request"]} for line in quiet(3)])
    assert main(["audit", path, "--plain"]) == 0
    assert "3 calls" in capsys.readouterr().out
