"""The server around the rules: start and stop, records, faults on purpose, times."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import subprocess
import sys
import time
import zlib
from http.client import HTTPConnection

import anthropic
import httpx
import openai
import pytest

from cacheprefix import server
from cacheprefix.errors import MissingExtraError, ProfileError, SetupError
from cacheprefix.profiles import default_registry
from cacheprefix.server import CacheOutcome, Fault, Latency, Queue, Reply, SimulatedProvider

MODEL = "gpt-5"
USER = {"role": "user", "content": "hi"}
USER_BLOCKS = {"role": "user", "content": [{"text": "hi"}]}
LONG = [{"role": "user", "content": "handbook " * 1000}]


def say(client: openai.OpenAI, **fields) -> openai.types.chat.ChatCompletion:
    """One chat completion."""
    return client.chat.completions.create(**{"model": MODEL, "messages": LONG, **fields})


def test_it_listens_within_the_context_and_not_after():
    """Start takes a free port, stop gives it back."""
    with SimulatedProvider() as provider:
        assert provider.port > 0
        assert httpx.get(f"{provider.url}/healthz").json() == {"status": "ok"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{provider.url}/healthz")


@pytest.mark.slow
def test_a_connection_outlasts_the_clients_own_patience():
    """A client sends on a connection that it last used within 5 s; a server that closes it then loses the request."""
    with SimulatedProvider() as provider:
        connection = HTTPConnection("127.0.0.1", provider.port)
        for pause in (0, 6):
            time.sleep(pause)
            connection.request("GET", "/healthz")
            assert json.load(connection.getresponse()) == {"status": "ok"}
        connection.close()


def test_a_stopped_provider_can_be_started_again_on_its_port():
    """Stopping leaves no socket behind."""
    first = SimulatedProvider().start()
    first.stop()
    with SimulatedProvider(port=first.port) as second:
        assert second.port == first.port


def test_no_server_outlives_the_interpreter():
    """A server that nobody stopped ends before the interpreter does: its event loop would call into what is gone."""
    left = (
        "import atexit, threading\n"
        "from cacheprefix.server import SimulatedProvider\n"
        "atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))\n"
        "left = SimulatedProvider().start()\n"
    )
    ended = subprocess.run([sys.executable, "-c", left], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "['MainThread']"


def test_a_busy_port_names_the_fix():
    """SetupError, before any thread starts."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        with pytest.raises(SetupError, match="choose another port, or 0 for a free one"):
            SimulatedProvider(port=busy.getsockname()[1]).start()


def test_unknown_rules_name_the_known_ones():
    """ProfileError when made, not on the first request."""
    with pytest.raises(ProfileError, match="exact"):
        SimulatedProvider("nobody")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_extra_names_its_install_line(monkeypatch, package):
    """The rules work without it; serving them needs the extra."""
    monkeypatch.setattr(server.provider, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(MissingExtraError, match=rf"the simulated provider .*{package}.*cacheprefix\[server\]"):
        SimulatedProvider()


def test_rules_may_be_a_profile_or_the_models_own(serve, openai_client):
    """``auto`` looks at each request's model."""
    auto = serve()
    client = openai_client(auto)
    say(client, model="gpt-4o")
    say(client, model="gpt-5.6")
    say(client, model="a-model-nobody-knows")
    assert [record.rules for record in auto.requests] == ["openai", "openai-5.6", "unknown"]
    own = serve(default_registry().get("vllm"))
    say(openai_client(own))
    assert own.requests[0].rules == "vllm"


def test_the_rules_asked_for_hold_for_any_model(serve, openai_client):
    """So that one script can be run under every rule set."""
    provider = serve("openai")
    say(openai_client(provider), model="gpt-5.6")
    assert provider.requests[0].rules == "openai"


def test_records_hold_the_bytes_as_they_came(serve):
    """Raw, whatever their spacing and key order."""
    provider = serve("exact")
    body = b'{ "messages" : [ {"content":"x", "role":"user"} ],\n "model":"m" }'
    httpx.post(f"{provider.url}/v1/chat/completions", content=body)
    assert provider.requests[0].body == body
    assert provider.requests[0].json["model"] == "m"


def test_reset_forgets_requests_and_caches(serve, openai_client):
    """Two runs in one server do not help one another."""
    provider = serve("exact")
    client = openai_client(provider)
    say(client)
    provider.reset()
    say(client)
    assert [record.index for record in provider.requests] == [0]
    assert provider.requests[0].outcome.read_tokens == 0


def test_keep_bounds_what_is_remembered(serve, openai_client):
    """A server that runs for days holds no more than this."""
    provider = serve("exact", keep=2)
    client = openai_client(provider)
    for _ in range(4):
        say(client)
    assert [record.index for record in provider.requests] == [2, 3]


def test_a_clock_of_ones_own_tests_lifetimes():
    """Five minutes pass without waiting."""
    now = [1000.0]
    with SimulatedProvider("openai", clock=lambda: now[0]) as provider:
        client = openai.OpenAI(base_url=provider.openai_base_url, api_key="k")
        reads = []
        for now[0] in (1000.0, 1300.0, 1601.0):
            reads.append(say(client).usage.prompt_tokens_details.cached_tokens > 0)
        client.close()
    assert reads == [False, True, False]
    assert [record.started_at for record in provider.requests] == [1000.0, 1300.0, 1601.0]


def test_a_streamed_answer_begins_once_at_its_first_chunk(openai_client):
    """A clock that counts its readings is read three times: as the request comes, at the first chunk, at the end."""
    readings = itertools.count()
    with SimulatedProvider("openai", Queue([Reply("word " * 400)]), clock=lambda: float(next(readings))) as provider:
        chunks = list(say(openai_client(provider), stream=True))
        (record,) = provider.requests
    assert len(chunks) > 3
    assert (record.started_at, record.first_token_at, record.ended_at) == (0.0, 1.0, 2.0)


def test_the_log_is_the_audits_own_form(tmp_path):
    """One JSON object a request: ts, provider, session, agent, headers, request, usage, times."""
    log = tmp_path / "log.jsonl"
    with SimulatedProvider("anthropic", record=log) as provider:
        client = anthropic.Anthropic(base_url=provider.url, api_key="secret-key")
        headers = {"x-cacheprefix-session": "s1", "x-cacheprefix-agent": "critic", "anthropic-beta": "b"}
        client.messages.create(
            model="claude-sonnet-4-6", max_tokens=5, messages=[{"role": "user", "content": "x"}], extra_headers=headers
        )
        httpx.post(f"{provider.url}/v1/messages", content=b"no json")
        client.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 1
    (line,) = lines
    assert (line["provider"], line["session"], line["agent"]) == ("anthropic", "s1", "critic")
    assert line["headers"] == {"anthropic-beta": "b"}
    assert line["request"]["messages"] == [{"role": "user", "content": "x"}]
    assert line["usage"]["input_tokens"] > 0
    assert line["ts"] <= line["response_started_ts"] <= line["response_ended_ts"]
    assert "secret-key" not in log.read_text()


def test_a_log_in_the_address_form_names_its_model(tmp_path):
    """Gemini and Bedrock name the model in the address; the log puts it into the request."""
    log = tmp_path / "log.jsonl"
    with SimulatedProvider("exact", record=log) as provider:
        httpx.post(f"{provider.url}/v1beta/models/gemini-x:generateContent", json={"contents": "hi"})
        httpx.post(f"{provider.url}/model/claude-x/converse", json={"messages": [USER_BLOCKS]})
    first, second = (json.loads(line)["request"] for line in log.read_text().splitlines())
    assert first["model"] == "gemini-x"
    assert second["modelId"] == "claude-x"


def test_a_log_that_cannot_be_written_is_a_set_up_error(tmp_path):
    """Said at the start, not after an hour."""
    with pytest.raises(SetupError, match="cannot record"):
        SimulatedProvider(record=tmp_path / "missing" / "log.jsonl")


# ---------------------------------------------------------------------------------- faults on purpose


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_an_error_status_reaches_the_client_as_its_own_error(serve, openai_client, status):
    """With the headers asked for; the failed call leaves no cache entry."""
    fault = Fault(status, "not today", headers={"retry-after": "7"})
    provider = serve("exact", Queue([Reply(fault=fault), "ok"]))
    client = openai_client(provider)
    with pytest.raises(openai.APIStatusError, match="not today") as caught:
        say(client)
    assert caught.value.status_code == status
    assert caught.value.response.headers["retry-after"] == "7"
    assert say(client).usage.prompt_tokens_details.cached_tokens == 0
    assert [record.status for record in provider.requests] == [status, 200]


def test_anthropic_errors_have_anthropics_types(serve, anthropic_client):
    """overloaded_error is 529 (the documentation on errors)."""
    client = anthropic_client(serve("anthropic", Queue([Reply(fault=Fault(529))])))
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="claude-sonnet-4-6", max_tokens=5, messages=LONG)
    assert caught.value.body["error"]["type"] == "overloaded_error"


def test_a_stream_can_break_off(serve, openai_client):
    """The connection ends in the middle, without the last event; the prefix stays readable."""
    provider = serve("exact", Queue([Reply("words " * 50, fault=Fault(cut_after=4)), "ok"]))
    client = openai_client(provider)
    received = []
    with pytest.raises((httpx.RemoteProtocolError, openai.APIConnectionError)):
        received.extend(say(client, stream=True))
    assert 0 < len(received) <= 4
    assert say(client).usage.prompt_tokens_details.cached_tokens > 0


def test_an_answer_can_break_off(serve, openai_client):
    """The same without streaming: fewer bytes than announced."""
    client = openai_client(serve("exact", Queue([Reply("words", fault=Fault(cut_after=20))])))
    with pytest.raises((httpx.RemoteProtocolError, openai.APIConnectionError)):
        say(client)


def test_usage_can_be_missing(serve, openai_client):
    """Not reported, which is not zero."""
    client = openai_client(serve("exact", Queue([Reply("ok", fault=Fault(usage="omit"))])))
    assert say(client).usage is None


def test_usage_can_be_nonsense(serve, openai_client):
    """Counts that cannot be."""
    client = openai_client(serve("exact", Queue([Reply("ok", fault=Fault(usage="nonsense"))])))
    assert say(client).usage.prompt_tokens < 0


def test_usage_can_be_anything_given(serve, openai_client):
    """For the cases a test thinks of."""
    given = {
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 50},
    }
    client = openai_client(serve("exact", Queue([Reply("ok", fault=Fault(usage=given))])))
    assert say(client).usage.prompt_tokens_details.cached_tokens == 50


def test_the_body_can_be_garbage(serve):
    """A gateway's page instead of JSON."""
    provider = serve("exact", Queue([Reply(fault=Fault(body=b"<html>"))]))
    answer = httpx.post(f"{provider.url}/v1/chat/completions", json={"model": "m", "messages": [USER]})
    assert answer.content == b"<html>"


def test_a_script_that_raises_says_so_in_its_answer(serve, openai_client):
    """A bug in a test's script is found in the test's output and not in a log nobody sees."""
    provider = serve("exact", lambda asked: asked.no_such_field)
    with pytest.raises(openai.InternalServerError, match="the script failed: AttributeError"):
        say(openai_client(provider))
    assert provider.requests[0].status == 500


def test_a_script_may_return_a_text_and_is_told_what_else(serve, openai_client):
    """As a queue of replies takes it."""
    answer = say(openai_client(serve("exact", lambda asked: "Certainly.")))
    assert answer.choices[0].message.content == "Certainly."
    with pytest.raises(openai.InternalServerError, match=r"it returned dict: return Reply\(text\), or the text alone"):
        say(openai_client(serve("exact", lambda asked: {"content": "Certainly."})))


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'"x"', b"\xff\xfe"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/model/m/converse"])
def test_what_is_no_request_is_a_400(serve, path, body):
    """Whatever comes, the server answers in the provider's error form and goes on."""
    provider = serve("exact")
    answer = httpx.post(provider.url + path, content=body)
    assert answer.status_code == 400
    assert provider.requests[0].error
    assert answer.json()


# ---------------------------------------------------------------------------------------------- times


def test_the_time_to_first_token_falls_with_what_is_read():
    """Base + uncached x a + cached x b, and so much for each token of the answer."""
    latency = Latency(base=0.2, uncached=0.001, cached=0.0001, output=0.01)
    assert latency.first_token(CacheOutcome(1000)) == pytest.approx(1.2)
    assert latency.first_token(CacheOutcome(1000, read_tokens=800)) == pytest.approx(0.48)
    assert latency.first_token(CacheOutcome(1000, 200, {"5m": 800})) == pytest.approx(1.02)
    assert latency.rest(11) == pytest.approx(0.1)
    assert latency.rest(0) == 0


def test_modelled_times_are_recorded_without_being_waited_for(serve, openai_client):
    """A benchmark reports them; nothing is slept at scale 0."""
    provider = serve("exact", latency=Latency(base=30, uncached=0.01, cached=0))
    client = openai_client(provider)
    say(client)
    say(client)
    cold, warm = (record.modelled_ttft for record in provider.requests)
    assert cold == pytest.approx(30 + provider.requests[0].prompt.tokens * 0.01)
    assert warm == pytest.approx(30)


def test_at_scale_the_times_are_waited_for_without_blocking_others(serve):
    """Four calls at once take about as long as one."""
    provider = serve("exact", latency=Latency(base=0.4, uncached=0, cached=0, output=0, scale=1.0))
    began = time.monotonic()

    async def ask_all() -> None:
        async with openai.AsyncOpenAI(base_url=provider.openai_base_url, api_key="k") as client:
            await asyncio.gather(*(client.chat.completions.create(model=MODEL, messages=LONG) for _ in range(4)))

    import asyncio

    asyncio.run(ask_all())
    assert time.monotonic() - began >= 0.4
    waits = [record.first_token_at - record.started_at for record in provider.requests]
    assert all(wait >= 0.39 for wait in waits)
    latest_start = max(record.started_at for record in provider.requests)
    assert latest_start < min(record.first_token_at for record in provider.requests)


@pytest.mark.parametrize(("name", "squeeze"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_requests_are_taken_as_by_the_providers(name, squeeze):
    """Messages, counts and embeddings; what cannot be undone is refused by name."""
    asked = json.dumps({"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": LONG, "input": "hi"}).encode()
    with SimulatedProvider() as provider:
        for path in ("messages", "messages/count_tokens", "embeddings"):
            whole = httpx.post(f"{provider.url}/v1/{path}", content=asked).json()
            packed = httpx.post(f"{provider.url}/v1/{path}", content=squeeze(asked), headers={"content-encoding": name})
            assert packed.status_code == 200
            assert packed.json().get("input_tokens") == whole.get("input_tokens")
            assert packed.json().get("data") == whole.get("data")
        assert provider.requests[-1].json == json.loads(asked)
        refused = httpx.post(f"{provider.url}/v1/messages", content=asked, headers={"content-encoding": "lz4"})
    assert refused.status_code == 400
    assert "content-encoding: cannot read 'lz4'" in refused.text
