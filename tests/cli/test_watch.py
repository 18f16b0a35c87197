"""``cacheprefix watch`` shows a session while it runs: in a terminal, in a pipe, as JSON, as a picture."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest

from cacheprefix import Session, cli
from cacheprefix.adapter import Request
from cacheprefix.cli.commands import watch
from cacheprefix.events import EventLog, Run
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec

HANDBOOK = "The handbook says that every statement needs a source. " * 100


class Playing:
    """A session that writes events, step by step."""

    def __init__(self, path):
        self.log = EventLog(path)
        cache = ToolResultCache(options=ToolCacheOptions(max_entries=1))
        self.session = self.log.bind(Session("x", tool_cache=cache))
        self.made = 0

    def call(self, *, broken=False):
        """Make a model call and a tool call."""
        system = HANDBOOK.replace("source", "reference", 1) if broken else HANDBOOK
        messages = [{"role": "system", "content": system}]
        messages += [{"role": "user", "content": f"question {at}"} for at in range(self.made + 1)]
        turn = self.session.adapter.begin(
            Request({"model": "gpt-5.5", "messages": messages}, "openai-chat", agent="planner")
        )
        read = 0 if broken or not self.made else 1_300
        turn.finish({"prompt_tokens": 1_500, "prompt_tokens_details": {"cached_tokens": read}, "completion_tokens": 5})
        look = ToolSpec("look", cacheable=True)
        self.session.tool_cache.call(look, {"at": self.made // 2}, lambda: "seen")
        self.made += 1


@pytest.fixture
def play(tmp_path):
    """A session on its way; it ends with the test."""
    playing = Playing(tmp_path / "run.events")
    yield playing
    playing.log.close()


def test_one_picture_shows_calls_breaks_and_the_tool_cache(play, capsys):
    """With bars that read without colours, since this is a pipe."""
    for broken in (False, False, False, False, True):
        play.call(broken=broken)
    assert cli.main(["watch", str(play.log.path), "--once"]) == 0
    # The picture is as wide as the terminal, here 80 columns, and lines break at words.
    shown = " ".join(capsys.readouterr().out.split())
    assert "running 5 calls" in shown
    assert "miss: system_changed" in shown
    assert "1 x system_changed at system[0]" in shown
    assert "2 hits (40% of lookups), 3 misses, 1 entries" in shown
    assert "2 evicted" in shown
    assert "█" in shown
    assert "░" in shown
    assert "\x1b" not in shown


def test_events_are_followed_while_they_are_written(tmp_path):
    """From before the file is there, through half lines, to the end of the session."""
    path = tmp_path / "run.events"
    run = Run()
    lines = watch._lines(path, run, once=False, keep=False)
    assert next(lines) == b""
    playing = Playing(path)
    playing.call()

    def taken():
        found = []
        while line := next(lines, None):
            event = run.take(line)
            found.append(event["type"])
        return found

    assert taken() == ["start", "call", "tool_cache", "tool", "tool_cache"]
    with path.open("ab") as stream:
        stream.write(b'{"type": "tool", "outcome"')
    assert taken() == []
    with path.open("ab") as stream:
        stream.write(b': "hit"}\n')
    assert taken() == ["tool"]
    playing.log.close()
    assert taken() == ["end"]
    assert next(lines, "over") == "over"
    assert run.skipped == 0


def test_a_file_written_anew_is_read_anew(tmp_path):
    """As a program that was started again writes it."""
    path = tmp_path / "run.events"
    path.write_bytes(b'{"type": "end", "run": "a", "at": 1}\n' * 5)
    lines = watch._lines(path, Run(), once=False, keep=True)
    assert [next(lines) for _ in range(5)]
    path.write_bytes(b'{"type": "end", "run": "b", "at": 2}\n')
    found = [line for line in (next(lines) for _ in range(3)) if line]
    assert b'"b"' in found[0]


def test_in_a_pipe_every_call_is_a_line(play, capsys):
    """Breaks stand out."""
    for broken in (False, False, False, False, True):
        play.call(broken=broken)
    play.log.close()
    assert cli.main(["watch", str(play.log.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("BREAK") for line in lines] == [False, False, False, False, True]


def test_events_are_passed_on_as_json(play, capsys):
    """One a line, for programs."""
    play.call()
    play.log.close()
    assert cli.main(["watch", str(play.log.path), "--json"]) == 0
    kinds = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
    assert kinds[:2] == ["start", "call"]
    assert kinds[-1] == "end"


def test_the_picture_is_saved(play, tmp_path, capsys):
    """As SVG, with colours, whatever the terminal."""
    play.call()
    assert cli.main(["watch", str(play.log.path), "--once", "--svg", str(tmp_path / "w.svg")]) == 0
    assert "cacheprefix" in (tmp_path / "w.svg").read_text("utf-8")
    assert cli.main(["watch", str(play.log.path), "--once", "--svg", "/absent/w.svg"]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_an_agents_name_is_no_markup(tmp_path, capsys):
    """Brackets in it are shown, and a long one is cut."""
    playing = Playing(tmp_path / "run.events")
    body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": "a"}]}
    playing.session.adapter.begin(Request(body, "openai-chat", agent="[red]evil[/]" + "x" * 200)).finish()
    playing.log.close()
    assert cli.main(["watch", str(playing.log.path), "--once"]) == 0
    assert "[red]evil[/]" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is looked at")
def test_a_terminal_shows_the_session_live(tmp_path):
    """Redrawn as calls come in, with colours, until the session ends."""
    path = tmp_path / "run.events"
    playing = Playing(path)
    for _ in range(4):
        playing.call()
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "cacheprefix", "watch", str(path)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environ)
    os.close(theirs)
    try:
        seen = _until(ours, b"4 calls")
        playing.call(broken=True)
        seen += _until(ours, b"system_changed")
        playing.log.close()
        seen += _until(ours, b"ended")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)
        os.close(ours)
    assert b"\x1b[" in seen
    assert b"Traceback" not in seen


def _until(terminal, text):
    seen, end = b"", time.monotonic() + 30
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 65_536)
            except OSError:
                break
    assert text in seen, seen[-2_000:]
    return seen


def test_a_session_that_has_not_asked_yet_is_watched(tmp_path, capsys):
    """Its file is empty, or holds its start alone."""
    file = tmp_path / "events"
    file.touch()
    assert cli.main(["watch", str(file), "--once"]) == 0
    EventLog(file).bind(Session())
    assert cli.main(["watch", str(file), "--once"]) == 0
    assert capsys.readouterr().out.count("waiting for the first call") == 2
