"""``cacheprefix record`` as a shell sees it: any program, unmodified, and what it loses at its end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from cacheprefix.cli import main
from cacheprefix.errors import SetupError
from cacheprefix.record import child_environment, routes_of
from cacheprefix.record.child import run_child
from cacheprefix.server import SimulatedProvider

LOSING = """
    import json, os, sys
    from urllib.request import Request, urlopen
    for number in range(4):
        handbook = f"Session {number}. " + "Every claim stands beside the place that it comes from. " * 300
        said = [{"role": "system", "content": handbook}, {"role": "user", "content": "Go on."}]
        asked = Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps({"model": "gpt-5.2", "messages": said}).encode(),
            {"content-type": "application/json", "authorization": "Bearer sk-secret"},
        )
        urlopen(asked).read()
    print("done")
    sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""
GRAPH = """
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    for model in (ChatOpenAI(model="gpt-5.2", api_key="k"), ChatAnthropic(model="claude-sonnet-4-6", api_key="k")):
        graph = StateGraph(MessagesState)
        graph.add_node("ask", lambda state, model=model: {"messages": model.invoke(state["messages"])})
        graph.add_edge(START, "ask")
        graph.compile().invoke({"messages": [("user", "Hello")]})
"""
NODE = """
    const answer = await fetch(process.env.ANTHROPIC_BASE_URL + "/v1/messages", {
        method: "POST",
        headers: {"content-type": "application/json", "x-api-key": "k"},
        body: JSON.stringify({model: "claude-sonnet-4-6", max_tokens: 9, messages: [{role: "user", content: "Hello"}]}),
    });
    console.log((await answer.json()).usage.input_tokens > 0);
"""


def record(*arguments, env=(), **options):
    """The command, run to its end."""
    command = [sys.executable, "-m", "cacheprefix", "record", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **dict(env)}, **options
    )


@pytest.fixture
def program(tmp_path):
    """``program(text)`` is a file with this program."""

    def write(text, name="app.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.mark.slow
def test_an_unmodified_program_is_told_what_it_loses(program, tmp_path):
    """Its own output and exit code are its own; the report goes to standard error, the page and data to files."""
    page, data = tmp_path / "page.html", tmp_path / "audit.json"
    files = ("--html", page, "--json", data, "--include-text")
    shown = record("--simulate", "openai", *files, "--", sys.executable, program(LOSING), "7")
    assert shown.returncode == 7, shown.stderr
    assert shown.stdout == "done\n"
    assert "4 model calls recorded" in shown.stderr
    assert "the recording: 4 calls" in shown.stderr
    assert json.loads(data.read_bytes())["totals"]["files"] == ["the recording"]
    assert json.loads(data.read_bytes())["totals"]["calls"] == 4
    assert "<html" in page.read_text()


@pytest.mark.slow
def test_nothing_is_left_behind_unless_it_is_asked_for(program, tmp_path):
    """The recording is a file of the owner's that goes at the end, or the one that --keep names."""
    kept, place = tmp_path / "kept.jsonl", tmp_path / "place"
    place.mkdir()
    common = ("--simulate", "openai")
    assert record(*common, "--", sys.executable, program(LOSING), env={"TMPDIR": str(place)}.items()).returncode == 0
    assert list(place.iterdir()) == []
    assert record(*common, "--keep", kept, "--", sys.executable, program(LOSING)).returncode == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "sk-secret" not in kept.read_text()
    again = record(*common, "--keep", kept, "--", sys.executable, program(LOSING))
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.mark.slow
def test_check_fails_a_program_that_loses_more_than_it_may(program):
    """With 3, as ``cacheprefix check`` does; a program that failed by itself keeps its own code."""
    limits = ("--simulate", "openai", "--check", "--min-cached", "0.5", "--")
    shown = record(*limits, sys.executable, program(LOSING))
    assert shown.returncode == 3
    assert "FAILED 0.0% of the input was read from the cache, less than 50.0%" in shown.stderr
    assert record(*limits, sys.executable, program(LOSING), "7").returncode == 7


def test_where_no_call_came_by_it_says_what_does_not(program):
    """Clients with an address of their own, Bedrock, and the like."""
    shown = record("--simulate", "openai", "--", sys.executable, program("print('idle')"))
    assert shown.returncode == 0
    assert "no model call came by" in shown.stderr
    assert "Bedrock" in shown.stderr


@pytest.mark.slow
def test_a_simulated_provider_needs_no_key(program):
    """SDKs refuse to begin without one, so the program is given a word in its place; a key that is there stays."""
    said = program("import os; print(os.environ['OPENAI_API_KEY'], os.environ['ANTHROPIC_API_KEY'])")
    own = {"OPENAI_API_KEY": "own"}
    shown = record("--simulate", "openai", "--", sys.executable, said, env=own.items())
    assert shown.stdout.split()[0] == "own"
    bare = ("env", "-u", "OPENAI_API_KEY", "-u", "ANTHROPIC_API_KEY", sys.executable, "-m", "cacheprefix", "record")
    command = [*bare, "--simulate", "openai", "--", sys.executable, said]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert shown.stdout.split() == ["simulated", "simulated"]


@pytest.mark.slow
def test_an_address_that_nobody_listens_at_is_named_as_such(program):
    """Calls did come by, so nothing is said of clients that do not follow the variables."""
    shown = record("--", sys.executable, program(LOSING), env={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}.items())
    assert shown.returncode != 0
    assert "no connection to the provider could be made" in shown.stderr
    assert "no model call came by" not in shown.stderr


@pytest.mark.slow
def test_requests_go_on_to_the_provider_that_was_configured_before(program):
    """The address in the environment is where they end up."""
    with SimulatedProvider("openai") as provider:
        where = {"OPENAI_BASE_URL": provider.openai_base_url, "NO_PROXY": "elsewhere.example"}
        shown = record("--", sys.executable, program(LOSING), env=where.items())
        assert shown.returncode == 0, shown.stderr
        assert len(provider.requests) == 4


@pytest.mark.slow
def test_frameworks_follow_the_variables(program):
    """A LangGraph application on both of its usual models."""
    shown = record("--simulate", "auto", "--", sys.executable, program(GRAPH))
    assert shown.returncode == 0, shown.stderr
    assert "2 model calls recorded" in shown.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on this machine")
def test_a_node_program_is_recorded(program):
    """Any language that reads the variables."""
    shown = record("--simulate", "anthropic", "--", "node", program(NODE, "app.mjs"))
    assert shown.stdout == "true\n", shown.stderr
    assert "1 model call recorded" in shown.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_curl_is_recorded():
    """From a shell, with the variable that the shell has."""
    asked = """curl -s "$OPENAI_BASE_URL/chat/completions" -H 'content-type: application/json' \
        -d '{"model": "gpt-5.2", "messages": [{"role": "user", "content": "Hello"}]}'"""
    shown = record("--simulate", "openai", "--", "sh", "-c", asked)
    assert json.loads(shown.stdout)["object"] == "chat.completion"
    assert "1 model call recorded" in shown.stderr


@pytest.mark.slow
def test_it_serves_programs_that_are_started_elsewhere(program):
    """Without a command it prints the variables and reports when it is asked to end."""
    command = [sys.executable, "-m", "cacheprefix", "record", "--simulate", "openai", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        given = dict(running.stdout.readline().strip().split("=", 1) for _ in range(3))
        assert set(given) >= {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"}
        subprocess.run(
            [sys.executable, program(LOSING)], env={**os.environ, **given}, check=True, capture_output=True, timeout=60
        )
        running.send_signal(signal.SIGTERM)
        _, told = running.communicate(timeout=60)
    assert running.returncode == 0
    assert "4 model calls recorded" in told


@pytest.mark.slow
def test_a_signal_to_end_is_the_programs(program):
    """It may clean up first, and its exit code is a shell's."""
    waiting = program("""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("cleaned up") or 4))
        print("ready", flush=True)
        time.sleep(60)
    """)
    command = [sys.executable, "-m", "cacheprefix", "record", "--simulate", "openai", "--", sys.executable, waiting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        said, _ = running.communicate(timeout=60)
    assert (said, running.returncode) == ("cleaned up\n", 4)


def test_a_signal_that_comes_while_the_program_is_started_is_the_programs(monkeypatch):
    """Else it would end the recorder alone, and leave the program behind."""
    start = asyncio.create_subprocess_exec

    async def signalled(*command, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", signalled)
    kept = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert asyncio.run(run_child(["sleep", "5"], dict(os.environ))) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, kept)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the program"),
        (("--", "no-such-program-anywhere"), "cannot run"),
        (("--upstream", "ftp://x", "--", "true"), "http://HOST/PATH"),
        (("--also", "X", "--", "true"), "VARIABLE=ADDRESS"),
        (("--check", "--forbid", "bad_luck", "--", "true"), "no such cause"),
    ],
)
def test_wrong_use_says_what_to_do(arguments, said, capsys):
    """In a line, with exit code 2."""
    assert main(["record", *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_a_child_sees_only_addresses_changed():
    """Each variable that was set goes on to its own provider; an HTTP proxy is not asked for this machine."""
    before = {
        "PATH": "/bin",
        "OPENAI_BASE_URL": "https://gateway.example/openai/v1/",
        "AZURE_OPENAI_ENDPOINT": "https://mine.azure.example",
        "no_proxy": "a.example",
    }
    routes = routes_of(before)
    after = child_environment(before, routes, 4000)
    assert after.items() - before.items() == {
        ("OPENAI_BASE_URL", "http://127.0.0.1:4000/openai_base_url/openai/v1"),
        ("AZURE_OPENAI_ENDPOINT", "http://127.0.0.1:4000/azure_openai_endpoint"),
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:4000/anthropic_base_url"),
        ("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:4000/google_gemini_base_url"),
        ("NO_PROXY", "127.0.0.1,localhost"),
        ("no_proxy", "a.example,127.0.0.1,localhost"),
    }
    onward = {route.variable: route.onward("/openai/v1/chat") for route in routes}
    assert onward["OPENAI_BASE_URL"] == "https://gateway.example/openai/v1/chat"


def test_credentials_in_an_address_go_on_and_are_not_shown():
    """As the header that HTTP clients make of them; neither a child nor an error nor a repr sees them."""
    (route, *_) = routes_of({"OPENAI_BASE_URL": "https://me:sec%20ret@gateway.example/v1?key=k"})
    assert route.authorization == "Basic bWU6c2VjIHJldA=="
    assert route.onward("/v1/x") == "https://gateway.example/v1/x"
    assert "bWU6" not in repr(route)
    with pytest.raises(SetupError, match="OPENAI_BASE_URL is no address") as raised:
        routes_of({"OPENAI_BASE_URL": "me:secret@gateway.example"})
    assert "secret" not in str(raised.value)


@pytest.mark.slow
def test_where_all_calls_failed_no_other_recording_is_advised(program):
    """They were recorded; that nothing is to be said of them has another reason."""
    refused = program("""
        import os, urllib.error, urllib.request
        where = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        asked = urllib.request.Request(where, b'{"model": "gpt-5.2", "messages": []}')
        try:
            urllib.request.urlopen(asked)
        except urllib.error.HTTPError as error:
            print(error.code)
    """)
    shown = record("--simulate", "openai", "--", sys.executable, refused)
    assert shown.stdout == "400\n"
    assert "1 request failed or broke off, and no other was found" in shown.stderr
    assert "YOUR COMMAND" not in shown.stderr
