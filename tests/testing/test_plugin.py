"""The pytest plugin in a project of its own: it catches a reordered tool, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

AGENT = """
import httpx

def tool(name):
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": {}}}

TOOLS = [tool("read"), tool("search"), tool("write")]
SYSTEM = "You are a careful assistant with a long handbook. " * 60

def ask(role):
    body = {
        "model": "gpt-5.6",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": role}],
        "tools": TOOLS,
    }
    answer = lambda request: httpx.Response(200, json={"choices": []})
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        client.post("http://llm/v1/chat/completions", json=body)
"""
TEST = """
from agent import ask
from cacheprefix.testing import assert_prefix_stable, assert_shared_prefix

def test_the_team_shares_its_prefix(prefix_recorder, prefix_snapshot):
    for role in ("planner", "critic"):
        ask(role)
    assert_shared_prefix(prefix_recorder.calls, min_share=0.9)
    assert_prefix_stable(prefix_recorder.calls)
    prefix_snapshot(prefix_recorder)
"""
QUIET = ("-p", "no:asyncio", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture
def project(pytester, monkeypatch):
    """A sample project; ``project(**changes)`` edits the agent and runs its tests."""
    pytester.makepyfile(agent=AGENT, test_agent=TEST)
    monkeypatch.syspath_prepend(pytester.path)
    # What is edited within a second, and is as long as before, would be read from the compiled file.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(*arguments, replace=("", "")):
        pytester.makepyfile(agent=AGENT.replace(*replace) if replace[0] else AGENT)
        # The outer process keeps modules; the inner project's has to be read again.
        sys.modules.pop("agent", None)
        return pytester.runpytest_inprocess(*QUIET, *arguments)

    yield run
    sys.modules.pop("agent", None)


@pytest.mark.slow
def test_a_sample_project_is_guarded(project, pytester):
    """No snapshot fails, --cacheprefix-update writes one, and then it passes."""
    result = project()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no snapshot of this prefix*--cacheprefix-update*"])
    result = project("--cacheprefix-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cacheprefix: wrote *test_the_team_shares_its_prefix.json"])
    assert list(pytester.path.glob("__cacheprefix__/test_agent/*.json"))
    project().assert_outcomes(passed=1)


def test_a_reordered_tool_is_caught(project):
    """With the path, the diff and the money per thousand calls."""
    project("--cacheprefix-update").assert_outcomes(passed=1)
    result = project(replace=('tool("read"), tool("search")', 'tool("search"), tool("read")'))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*the frozen prefix changed: tools_reordered at tools[[]0[]]*",
            "*read, search, write became search, read, write*",
            "*+++ now*",
            "*tokens stand behind the change: $* more per 1,000 calls*",
        ]
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Does it.", "Does it now.", "*tools_changed at tools[[]0[]].function.description*"),
        ("a careful assistant", "a careless assistant", "*system_changed at system[[]0[]]*"),
    ],
)
def test_a_changed_text_is_caught(project, old, new, said):
    """A tool's schema as well as the system prompt."""
    project("--cacheprefix-update").assert_outcomes(passed=1)
    result = project(replace=(old, new))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


def test_the_plugin_loads_nothing_until_it_is_used():
    """Neither the core's rooms nor an extra, so that pytest starts as fast as without it."""
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import cacheprefix.testing.pytest_plugin\n"
        "print(*sorted(name for name in set(sys.modules) - before))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = shown.stdout.split()
    assert [name for name in loaded if name.startswith("cacheprefix")] == [
        "cacheprefix",
        "cacheprefix._version",
        "cacheprefix.lazy_names",
        "cacheprefix.testing",
        "cacheprefix.testing.pytest_plugin",
    ]
    assert not [name for name in loaded if name.partition(".")[0] in ("httpx", "httpx2", "starlette", "rich", "pluggy")]


def test_recording_works_without_any_extra():
    """Without an HTTP client, a server or a terminal library there is simply nothing to patch."""
    code = (
        "import sys\n"
        "for name in ('httpx', 'httpx2', 'starlette', 'uvicorn', 'rich', 'typer', 'jinja2'): sys.modules[name] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in sys.modules and sys.modules[name] is None else real(name, *a)\n"
        "from cacheprefix import Session\n"
        "from cacheprefix.adapter import Request\n"
        "from cacheprefix.testing import PrefixRecorder, assert_shared_prefix\n"
        "with PrefixRecorder() as recorder:\n"
        "    session = recorder.watch(Session('x'))\n"
        "    for text in 'ab':\n"
        "        body = {'model': 'gpt-5.6', 'messages': [{'role': 'system', 'content': 'long ' * 99},\n"
        "                {'role': 'user', 'content': text}]}\n"
        "        session.adapter.begin(Request(body, 'openai-chat')).finish()\n"
        "assert_shared_prefix(recorder, 0.8); print(len(recorder))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (shown.stdout, shown.stderr) == ("2\n", "")
