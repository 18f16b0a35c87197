"""``cacheprefix stats``: a saved session's tool cache, as a table and as data."""

from __future__ import annotations

import json

import pytest

from cacheprefix import Session, cli, events
from cacheprefix.adapter import ToolUse
from cacheprefix.toolcache import DEFAULT_ALLOW


@pytest.fixture
def saved(tmp_path):
    """A saved report of a session whose tool cache had hits, misses and a write."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    for path in ("a", "b", "a", "a"):
        session.adapter.tool_calls.run(ToolUse("read", {"path": path}, tool=len), lambda: "text")
    session.adapter.tool_calls.run(ToolUse("write", {}), lambda: "written")
    session.adapter.tool_calls.run(ToolUse("read", {"path": "a"}, tool=len), lambda: "text")
    path = tmp_path / "session.json"
    path.write_text(json.dumps(session.report().as_dict()))
    return path


def test_a_saved_report_is_shown_by_tool(saved, capsys):
    """Totals in words, then a row for each tool and one for all."""
    assert cli.main(["stats", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "Entries: 2, Hits: 2, Misses: 3, Hit rate: 40.0%" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[5:]}
    assert rows["read"][:4] == rows["all"][:4] == ["2", "0", "3", "1"]


def test_json_is_what_the_session_said(saved, capsys):
    """The numbers come through unchanged, also from the statistics alone."""
    assert cli.main(["stats", str(saved), "--json"]) == 0
    out = capsys.readouterr().out
    held = json.loads(saved.read_text())["tool_cache"]
    assert json.loads(out) == held
    saved.write_text(out)
    assert cli.main(["stats", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == held


def test_an_event_file_is_read_too(tmp_path, capsys):
    """What a running session wrote line by line ends with the same counts."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    log = events.EventLog(tmp_path / "run.events")
    log.bind(session)
    for _ in range(3):
        session.adapter.tool_calls.run(ToolUse("read", {"path": "a"}, tool=len), lambda: "text")
    log.close()
    assert cli.main(["stats", str(tmp_path / "run.events"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["hits"] == 2


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "no json", '{"tool_cache": {"total": 1}}', '{"tool_cache": null}', "{}\n{}"]
)
def test_what_holds_no_statistics_is_told_in_a_line(tmp_path, capsys, text):
    """Exit code 2 and no traceback."""
    path = tmp_path / "file"
    path.write_text(text)
    assert cli.main(["stats", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "statistics" in err


def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    """Missing and binary files."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "binary"):
        assert cli.main(["stats", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err
