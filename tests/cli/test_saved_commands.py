"""``status``, ``explain`` and ``compact-preview`` read what a session saved."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time

import pytest

from cacheprefix import Caching, Session, SharedPrefix, ToolResultBudget, cli
from cacheprefix.adapter import Request
from cacheprefix.errors import StateError
from cacheprefix.events import EventLog
from cacheprefix.toolcache import ToolSpec

HANDBOOK = "Zacharias Quill says that every statement needs a source. " * 100


@pytest.fixture
def events(tmp_path):
    """An event file: five calls, the last of which breaks the cache, and tool calls."""
    log = EventLog(tmp_path / "run.events")
    session = log.bind(Session("x", tool_cache=True))
    for at, read in enumerate((0, 1_300, 1_300, 1_300, 0)):
        system = HANDBOOK if at < 4 else HANDBOOK.replace("source", "reference", 1)
        messages = [{"role": "system", "content": system}]
        messages += [{"role": "user", "content": f"question {n}"} for n in range(at + 1)]
        turn = session.adapter.begin(
            Request({"model": "gpt-5.5", "messages": messages}, "openai-chat", agent="planner")
        )
        turn.finish({"prompt_tokens": 1_500, "prompt_tokens_details": {"cached_tokens": read}, "completion_tokens": 5})
        session.tool_cache.call(ToolSpec("look", cacheable=True), {"at": 1}, lambda: "seen")
    log.close()
    return log.path


@pytest.fixture
def conversation(tmp_path):
    """A saved conversation with a history and a shortened result; its path."""
    session = Session(SharedPrefix(system="handbook"), budget=ToolResultBudget(max_tokens=100))
    held = session.conversation("thread-7", api="openai-chat")
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    held.append({"role": "user", "content": "look"}, {"role": "assistant", "content": None, "tool_calls": [call]})
    held.append({"role": "tool", "tool_call_id": "c1", "content": "Zacharias " * 2_000})
    for at in range(40):
        held.append({"role": "assistant", "content": f"answer {at} " * 30}, {"role": "user", "content": f"and {at}?"})
    held.commit()
    path = tmp_path / "thread.json"
    path.write_text(held.dumps(), "utf-8")
    return path


def _says(capsys, *arguments):
    code = cli.main([str(part) for part in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_status_shows_a_session(events, capsys):
    """By agent and in all, with breaks and the tool cache."""
    code, out, _ = _says(capsys, "status", events)
    assert code == 0
    assert "a session, ended" in out
    assert "1 x system_changed at system[0]" in out
    assert "Hits: 4, Misses: 1" in out
    _, out, _ = _says(capsys, "status", events, "--json")
    found = json.loads(out)
    assert (found["total"]["calls"], found["running"], found["tool_calls"]) == (5, False, {"hit": 4, "miss": 1})


@pytest.fixture
def days(tmp_path):
    """An event file: calls of two models, the first of them three days ago."""
    now = [time.time() - 3 * 86_400]
    log = EventLog(tmp_path / "days.events")
    session = log.bind(Session("x", caching=Caching(clock=lambda: now[0])))
    for model in ("gpt-5.5", "gpt-4.1", "gpt-5.5"):
        body = {"model": model, "messages": [{"role": "user", "content": "go"}]}
        session.adapter.begin(Request(body, "openai-chat", agent="planner")).finish({"prompt_tokens": 100})
        now[0] = time.time() - 60
    log.close()
    return log.path


def test_status_sums_up_by_model_and_day(days, capsys):
    """Days are of UTC; the total is the same however it is parted."""
    found = {}
    for by in ("agent", "model", "day", "model,day"):
        _, out, _ = _says(capsys, "status", days, "--by", by, "--json")
        said = json.loads(out)
        found[by] = {line["agent"]: line["calls"] for line in said["agents"]}
        assert said["total"]["input_tokens"] == 300
    assert found["agent"] == {"planner": 3}
    assert found["model"] == {"gpt-4.1": 1, "gpt-5.5": 2}
    assert sum(found["day"].values()) == 3
    assert len(found["day"]) >= 2
    assert set(found["model,day"].values()) == {1}


def test_status_of_the_last_day_leaves_out_what_is_older(days, capsys):
    """Whatever it is summed up by; a time that is none is named."""
    _, out, _ = _says(capsys, "status", days, "--by", "model", "--last", "24h")
    assert "gpt-4.1" in out
    _, out, _ = _says(capsys, "status", days, "--last", "24h", "--json")
    assert json.loads(out)["total"]["calls"] == 2
    _, out, _ = _says(capsys, "status", days, "--last", "7d", "--json")
    assert json.loads(out)["total"]["calls"] == 3
    for wrong in (("--last", "a day"), ("--by", "mood")):
        code, _, err = _says(capsys, "status", days, *wrong)
        assert code == 2
        assert wrong[1] in err


def test_status_of_a_session_that_runs(events, capsys):
    """Half a line at the end is a line that is being written, and the exit code says so."""
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(lines[:-1]) + b'{"type": "ca')
    code, out, _ = _says(capsys, "status", events)
    assert code == 1
    assert "running" in out
    assert "1 lines could not be read" in out


def test_status_shows_a_conversation(conversation, capsys):
    """What it holds and what was decided on."""
    code, out, _ = _says(capsys, "status", conversation)
    assert code == 0
    assert "conversation 'thread-7', saved under cacheprefix-" in out
    assert "1 tool results decided on" in out
    _, out, _ = _says(capsys, "status", conversation, "--json")
    found = json.loads(out)
    assert (found["history"]["messages"], found["compactions"], found["decisions"]["results"]) == (83, 0, 1)


def test_explain_tells_every_break(events, capsys):
    """Cause, place, loss, and what to do."""
    code, out, _ = _says(capsys, "explain", events)
    assert code == 0
    assert out.startswith("call 4 (planner, gpt-5.5, rules openai): miss, system_changed\n")
    assert "at system[0], character " in out
    assert "Keep the system prompt fixed" in out
    assert "Zacharias" not in out


def test_explain_takes_a_calls_number(events, capsys):
    """One that is not there is named, with exit code 1."""
    assert _says(capsys, "explain", events, 1)[1].startswith("call 1 ")
    code, out, _ = _says(capsys, "explain", events, 9)
    assert (code, out) == (1, "there is no call 9; the file holds 5 calls\n")
    _, out, _ = _says(capsys, "explain", events, "--all", "--json")
    first = json.loads(out)[0]
    assert (first["call"], first["cause"]) == (0, "cold_start")


def test_explain_lists_a_conversations_decisions(conversation, capsys):
    """Addresses and decisions, and no text of the prompt."""
    code, out, _ = _says(capsys, "explain", conversation)
    assert code == 0
    assert out.startswith("result ")
    assert "Zacharias" not in out
    _, out, _ = _says(capsys, "explain", conversation, "--json")
    assert json.loads(out)[0]["what"] == "result"


def test_a_preview_plans_and_changes_nothing(conversation, capsys):
    """What goes, what stays cached, what it costs, when it pays."""
    before = conversation.read_bytes()
    code, out, _ = _says(capsys, "compact-preview", conversation, "--trigger", 2_000, "--model", "gpt-5.6")
    assert code == 0
    assert "stay cached" in out
    assert "break-even" in out
    _, out, _ = _says(capsys, "compact-preview", conversation, "--trigger", 2_000, "--json")
    found = json.loads(out)
    assert found["due"]
    assert found["after_tokens"] <= 2_000 < found["before_tokens"]
    assert {"messages removed"} <= {one["kind"] for one in found["actions"]}
    assert conversation.read_bytes() == before


@pytest.mark.parametrize(
    "body",
    [
        [{"role": "user", "content": "word " * 50}, {"role": "assistant", "content": "word " * 50}] * 40,
        {"model": "gpt-5.6", "input": [{"role": "user", "content": "word " * 50}] * 80, "instructions": "Be brief."},
        {
            "model": "claude-sonnet-4-6",
            "system": "Be brief.",
            "messages": [{"role": "user", "content": "word " * 50}, {"role": "assistant", "content": "and " * 50}] * 40,
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        },
    ],
)
def test_a_preview_reads_request_bodies_too(body, capsys, monkeypatch):
    """In the three forms that chat, from standard input; a bare list of messages is one."""
    raw = io.BytesIO(json.dumps(body).encode())
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": raw})())
    code, out, _ = _says(capsys, "compact-preview", "-", "--trigger", 1_500, "--json")
    assert code == 0
    assert json.loads(out)["before_tokens"] > 1_500


def test_a_window_that_cannot_be_met_is_told(conversation, capsys):
    """A wrong use, in a line."""
    code, _, err = _says(capsys, "compact-preview", conversation, "--window", 100, "--reserve", 200)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "explain", "compact-preview", "watch --once"])
@pytest.mark.parametrize(
    "content",
    [
        b"\n{",
        b"{",
        b"\xff\xfe\x00",
        b"null",
        b'{"a": 1}',
        b'{"version": 99, "ledger": {}}',
        b'{"version": 1, "ledger": 5}',
        b'{"version": 1, "ledger": {"results": [1]}}',
        b'{"version": 1, "ledger": {}, "context": []}',
        b'{"messages": 5}',
        b'{"messages": [5]}',
    ],
)
def test_a_file_that_is_none_of_ours_is_a_line_and_no_traceback(tmp_path, capsys, command, content):
    """Exit code 2, whatever is in it."""
    path = tmp_path / "file"
    path.write_bytes(content)
    name, *options = command.split()
    code, _, err = _says(capsys, name, path, *options)
    assert code == 2
    assert err.startswith("cacheprefix: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "explain", "compact-preview"])
def test_an_empty_file_is_none_of_ours(tmp_path, capsys, command):
    """Of events it is one in which nothing has happened yet (``watch``)."""
    path = tmp_path / "file"
    path.touch()
    code, _, err = _says(capsys, command, path)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("command", ["status", "explain", "compact-preview"])
def test_a_file_that_is_absent_is_named(command, capsys):
    """With the system's reason."""
    code, _, err = _says(capsys, command, "/absent/file")
    assert (code, err) == (2, "cacheprefix: cannot read '/absent/file': No such file or directory\n")


def test_every_command_speaks_json(capsys):
    """A program can read what a person can."""
    names = [command.name for command in cli.application().registered_commands]
    # The demonstration is the LangGraph adapter's, which tests its own.
    shown = {name: _says(capsys, name, "--help")[1] for name in names if name != "demo"}
    assert len(shown) > 8
    assert [name for name, text in shown.items() if "--json" not in text] == []


def test_completion_is_offered():
    """By typer, for the shells that it knows."""
    code = "import sys; from cacheprefix.cli import main; sys.exit(main([]))"
    asked = {"_CACHEPREFIX_COMPLETE": "complete_bash", "COMP_WORDS": "cacheprefix ex", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", code]
    environ = {**os.environ, **asked}
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)
    assert shown.stdout.split() == ["explain"]


STEERS = "read\x1b[2J\n\u202edet\x9b2J"
"""A tool's name, or a role's, as a server or a user may word it."""


@pytest.mark.parametrize("command", [["stats"], ["stats", "--json"], ["status"], ["status", "--json"], ["explain"]])
def test_names_are_shown_as_text(tmp_path, capsys, command):
    """A tool's name steers no terminal and begins no line of its own; as data it is told as it is, or written out."""
    log = EventLog(tmp_path / "run.events")
    session = log.bind(Session(tool_cache=[ToolSpec(STEERS, cacheable=True)]))
    body = {"model": "gpt-5.5", "messages": [{"role": "user", "content": "Hello."}]}
    session.adapter.begin(Request(body, "openai-chat", agent=STEERS)).finish({"prompt_tokens": 5})
    session.tool_cache.call(ToolSpec(STEERS, cacheable=True), {"at": 1}, lambda: "seen")
    log.close()
    report = tmp_path / "report.json"
    report.write_text(json.dumps(session.report().as_dict()))
    for file in (log.path, *([report] if command[0] == "stats" else [])):
        assert cli.main([*command, str(file)]) == 0
        shown = capsys.readouterr().out
        assert all(line.isprintable() for line in shown.split("\n"))
        assert not any(line.startswith("det") for line in shown.split("\n"))
        if "--json" in command:
            assert "read" in json.dumps(json.loads(shown))


def test_what_is_asked_for_is_shown_as_text(capsys):
    """A model's name, or an option's value, on the command line too: scripts pass those of others on."""
    assert cli.main(["profiles", STEERS]) == 0
    assert cli.main(["profiles", STEERS, "--json"]) == 0
    assert cli.main(["status", "-", "--by", STEERS]) == 2
    shown = capsys.readouterr()
    assert all(line.isprintable() for line in (shown.out + shown.err).split("\n"))


def test_a_version_of_a_saved_state_is_shown_as_text():
    """Whoever wrote it."""
    with pytest.raises(StateError, match="version") as found:
        Session().conversation("a").restore({"version": STEERS})
    assert str(found.value).isprintable()
