"""A session's calls are written line by line, without prompt text, and read back as the same report."""

from __future__ import annotations

import json
import threading

import pytest

from cacheprefix import Session
from cacheprefix.adapter import Request
from cacheprefix.errors import SetupError
from cacheprefix.events import EventLog, Run, is_event
from cacheprefix.toolcache import DEFAULT_ALLOW, ToolCacheOptions, ToolResultCache, ToolSpec

SECRET = "Zacharias Quill owes nothing. " * 100


@pytest.fixture
def calls():
    """``calls(session, 3)`` makes that many calls, the last of which breaks the cache."""

    def make(session, count=3, agent="planner"):
        for at in range(count):
            system = SECRET if at < count - 1 else f"New: {SECRET}"
            body = {"model": "gpt-5.6", "messages": [{"role": "system", "content": system}]}
            body["messages"] += [{"role": "user", "content": f"question {n}"} for n in range(at + 1)]
            turn = session.adapter.begin(Request(body, "openai-chat", agent=agent, conversation="t"))
            read = 0 if at in (0, count - 1) else 700
            usage = {"prompt_tokens": 800, "prompt_tokens_details": {"cached_tokens": read}, "completion_tokens": 5}
            turn.finish(usage)

    return make


def _run(path):
    return Run().read(path.read_bytes().splitlines())


def test_the_report_is_the_sessions_own(tmp_path, calls):
    """Calls, money, breaks: what was written is what the session says."""
    log = EventLog(tmp_path / "run.events")
    session = log.bind(Session("x", tool_cache=DEFAULT_ALLOW))
    calls(session)
    calls(session.child("inner"), agent="critic")
    log.close()
    run = _run(log.path)
    mine, theirs = session.report().as_dict(), run.report().as_dict()
    for key in ("agents", "total", "breaks"):
        assert theirs[key] == mine[key]
    assert not run.running
    assert run.skipped == 0


def test_no_prompt_text_is_written(tmp_path, calls):
    """Unless it is asked for."""
    log = EventLog(tmp_path / "run.events")
    calls(log.bind(Session("x")))
    assert b"Zacharias" not in log.path.read_bytes()
    log.close()
    log = EventLog(tmp_path / "text.events", include_text=True)
    calls(log.bind(Session("x")))
    log.close()
    assert b"Zacharias" in log.path.read_bytes()


def test_tool_calls_and_what_the_cache_holds_are_written(tmp_path):
    """Hits, misses, entries, evictions."""
    log = EventLog(tmp_path / "run.events")
    session = log.bind(Session("x", tool_cache=ToolResultCache(options=ToolCacheOptions(max_entries=1))))
    look = ToolSpec("look", cacheable=True)
    for path in ("a", "a", "b"):
        session.tool_cache.call(look, {"path": path}, lambda: "seen")
    log.close()
    run = _run(log.path)
    assert run.tools == {"hit": 1, "miss": 2}
    assert (run.tool_cache.total.entries, run.tool_cache.total.evicted) == (1, 1)


def test_a_file_is_read_while_it_is_written(tmp_path, calls):
    """Half a line, or none of ours, is passed over and counted."""
    log = EventLog(tmp_path / "run.events")
    calls(log.bind(Session("x")))
    lines = log.path.read_bytes().splitlines()
    run = Run().read([*lines, b'{"type": "call", "call": {', b"[]", b'{"type": "call", "call": {}}', b"", b'"x"'])
    assert run.running
    assert run.skipped == 4
    assert run.report().total.calls == 3
    log.close()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"unsure": {"images": 12.5, "under_way": 3.0}}, {"images": 12.5, "under_way": 3.0}),
        ({"unsure_units": 250.0}, {"untold": 250.0}),
        ({"unsure_units": 0.0}, {}),
        ({}, {}),
    ],
)
def test_what_nobody_knows_of_a_cost_is_read_by_its_reason(tmp_path, calls, written, read):
    """Logs of earlier versions hold a number, without one."""
    log = EventLog(tmp_path / "run.events")
    calls(log.bind(Session("x")), count=1)
    log.close()
    events = [json.loads(line) for line in log.path.read_bytes().splitlines()]
    for event in events:
        if event["type"] == "call":
            del event["call"]["unsure"]
            event["call"] |= written
    run = Run().read([json.dumps(event) for event in events])
    assert run.skipped == 0
    (call,) = run.totals.calls
    assert call.unsure == read
    assert ("an earlier version" in str(run.report())) == ("untold" in read)


def test_many_threads_write_whole_lines(tmp_path, calls):
    """And several sessions to one file."""
    logs = [EventLog(tmp_path / "run.events") for _ in range(3)]
    sessions = [log.bind(Session("x")) for log in logs]
    threads = [threading.Thread(target=calls, args=(session, 8)) for session in sessions * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    run = _run(logs[0].path)
    assert (run.report().total.calls, run.skipped, len(run.started)) == (48, 0, 3)


def test_what_cannot_be_written_is_said_at_once(tmp_path):
    """At set-up, with the file."""
    with pytest.raises(SetupError, match=r"events cannot be written to .*absent"):
        EventLog(tmp_path / "absent" / "run.events")


def test_a_log_that_fails_later_stops_no_call(tmp_path, calls):
    """It is named once, as any plugin."""
    log = EventLog(tmp_path / "run.events")
    session = log.bind(Session("x"))
    log._file.close()
    log._file = log.path.open("rb")
    with pytest.warns(UserWarning, match="'events' failed in after_call"):
        calls(session)
    assert session.report().total.calls == 3
    log._file.close()


def test_the_configuration_switches_it_on(tmp_path, monkeypatch, calls):
    """By a variable alone, for a program that makes its session from the configuration."""
    monkeypatch.setenv("CACHEPREFIX_EVENTS", str(tmp_path / "run.events"))
    monkeypatch.setenv("CACHEPREFIX_CONFIG", "")
    calls(Session.from_config("x"))
    assert _run(tmp_path / "run.events").report().total.calls == 3


def test_an_event_file_is_known_by_its_first_line(tmp_path):
    """So that commands may take any saved file."""
    log = EventLog(tmp_path / "run.events")
    log.close()
    first = log.path.read_bytes().splitlines()[0]
    assert is_event(first)
    assert not any(is_event(line) for line in (b"", b"{", b"[]", b'{"type": "start"}', json.dumps({"version": 1})))


def test_a_shared_store_is_not_walked_at_every_call(tmp_path, monkeypatch):
    """Statistics of a store that other processes use are asked now and then, and once more at the end."""
    from cacheprefix.adapter import ToolUse
    from cacheprefix.stores import SqliteStore

    store = SqliteStore(tmp_path / "store.db")
    walks = []
    sizes = store.sizes
    monkeypatch.setattr(store, "sizes", lambda prefix="": walks.append(prefix) or sizes(prefix))
    session = Session(tool_cache=ToolResultCache(store, ToolCacheOptions(allow=DEFAULT_ALLOW)))
    log = EventLog(tmp_path / "run.events")
    log.bind(session)
    for number in range(20):
        session.adapter.tool_calls.run(ToolUse("read", {"path": f"{number}"}, tool=len), lambda: "text")
    log.close()
    store.close()
    assert len(walks) == 2
    told = Run().read((tmp_path / "run.events").read_bytes().splitlines()).tool_cache
    assert (told.total.misses, told.total.entries) == (20, 20)
