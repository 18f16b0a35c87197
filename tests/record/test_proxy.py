"""Requests and answers pass as without us; what is written down is the audit's own log and holds no key."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import stat
import threading
from urllib.parse import urlsplit

import anthropic
import brotli
import httpx
import openai
import pytest
import websockets
import websockets.sync.client
import zstandard

from cacheprefix.audit import Placed, records
from cacheprefix.errors import SetupError
from cacheprefix.profiles import normalise_usage
from cacheprefix.record import CallLog, Exchange
from cacheprefix.server import SimulatedProvider

QUESTION = {"model": "gpt-5.2", "messages": [{"role": "user", "content": "How are you?"}]}
USAGE = {"prompt_tokens": 2000, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1920}}
ANSWER = {"id": "chatcmpl-1", "choices": [{"message": {"role": "assistant", "content": "Well."}}], "usage": USAGE}


def _plain(body=None, headers=()):
    """Answers with a whole body."""

    async def answer(upstream, reader, writer):
        sent = json.dumps(ANSWER).encode() if body is None else body
        rows = [b"HTTP/1.1 200 Fine", b"content-type: application/json", b"X-Limit: 7", *headers]
        writer.write(b"\r\n".join([*rows, b"content-length: %d" % len(sent), b"", sent]))
        await writer.drain()

    return answer


def _raw(port, sent):
    """What comes back for exactly these bytes."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(sent)
        connection.settimeout(10)
        got = b""
        while chunk := connection.recv(65536):
            got += chunk
        return got


def test_a_request_goes_on_as_it_came(recording):
    """Method, path with its query and escapes, body, and each end-to-end header; the host is the provider's."""
    here = recording(_plain())
    body = b'{"model": "m",  "messages":[]}'
    _raw(
        here.proxy.port,
        b"POST /openai_base_url/v1/chat/completions?a=%2F&b HTTP/1.1\r\nHost: localhost\r\nX-Mine: A\r\nX-Mine: b\r\n"
        b"Authorization: Bearer sk-1\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nContent-Length: 30\r\n\r\n" + body,
    )
    head, _, came = here.upstream.came[0].partition(b"\r\n\r\n")
    rows = head.split(b"\r\n")
    assert rows[0] == b"POST /v1/chat/completions?a=%2F&b HTTP/1.1"
    assert sorted(rows[1:]) == sorted(
        [
            b"Host: 127.0.0.1:%d" % here.upstream.port,
            b"X-Mine: A",
            b"X-Mine: b",
            b"Authorization: Bearer sk-1",
            b"Content-Length: 30",
        ]
    )
    assert came == body


def test_an_answer_comes_back_as_it_was_given(recording):
    """Status, reason, headers and bytes."""
    here = recording(_plain(b"{ }", [b"Set-Cookie: a=1", b"Set-Cookie: b=2"]))
    got = _raw(here.proxy.port, b"GET /openai_base_url/v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 Fine\r\n")
    assert {b"X-Limit: 7", b"Set-Cookie: a=1", b"Set-Cookie: b=2"} <= set(head.split(b"\r\n"))
    assert body == b"{ }"


def test_each_chunk_is_passed_on_before_the_next_one_comes(recording):
    """The provider holds its second event back until the program has its first one in hand."""
    in_hand = asyncio.Event()

    async def answer(upstream, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for text in (b'data: {"n":1}\n\n', b"data: [DONE]\n\n"):
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))
            await writer.drain()
            await asyncio.wait_for(in_hand.wait(), 10)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    here = recording(answer)
    with httpx.stream("POST", f"{here.openai}/chat/completions", json=QUESTION) as got:
        parts = got.iter_raw()
        assert next(parts) == b'data: {"n":1}\n\n'
        here.proxy._runner.server._loop.call_soon_threadsafe(in_hand.set)
        assert b"".join(parts) == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("name", "squeeze"),
    [("gzip", gzip.compress), ("br", brotli.compress), ("zstd", zstandard.ZstdCompressor().compress)],
)
def test_compressed_answers_pass_compressed_and_their_counts_are_read(recording, name, squeeze):
    """In every encoding that providers' fronts use."""
    body = squeeze(json.dumps(ANSWER).encode())
    here = recording(_plain(body, [b"content-encoding: " + name.encode()]))
    with httpx.stream("POST", f"{here.openai}/chat/completions", json=QUESTION) as got:
        assert b"".join(got.iter_raw()) == body
    (call,) = here.calls()
    assert call.usage["prompt_tokens_details"] == {"cached_tokens": 1920}


def test_a_compressed_request_is_read_too(recording):
    """It goes on compressed."""
    here = recording(_plain())
    body = gzip.compress(json.dumps(QUESTION).encode())
    httpx.post(f"{here.openai}/chat/completions", content=body, headers={"content-encoding": "gzip"})
    assert here.upstream.came[0].endswith(body)
    (call,) = here.calls()
    assert call.body == QUESTION


def _direct_and_through(recording, answer):
    """The error of the SDK on a provider, directly and through the proxy."""
    here = recording(answer)
    found = []
    for url in (f"http://127.0.0.1:{here.upstream.port}/v1", here.openai):
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            for stream in (False, True):
                with pytest.raises((openai.OpenAIError, httpx.HTTPError)) as raised:
                    list(client.chat.completions.create(**QUESTION, stream=stream))
                found.append(raised.type)
    assert found[:2] == found[2:]
    return found[:2], here


def test_a_provider_that_hangs_up_before_answering_is_a_lost_connection(recording):
    """The same error as without us, and not an answer that we invented."""

    async def answer(upstream, reader, writer):
        writer.transport.abort()

    kinds, here = _direct_and_through(recording, answer)
    assert kinds == [openai.APIConnectionError] * 2
    assert all(call.failed for call in here.calls())


def test_a_provider_that_breaks_off_breaks_off_in_the_same_place(recording):
    """What came before the break is there, and the call is recorded as failed."""

    async def answer(upstream, reader, writer):
        event = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    kinds, here = _direct_and_through(recording, answer)
    assert None not in kinds
    assert all(call.failed for call in here.calls())


def test_a_provider_that_is_not_there_is_a_lost_connection(recording):
    """As without us."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        here = recording(upstream=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with (
            openai.OpenAI(base_url=here.openai, api_key="k", max_retries=0) as client,
            pytest.raises(openai.APIConnectionError),
        ):
            client.chat.completions.create(**QUESTION)
    here.calls()
    assert (here.log.seen.unreached, here.log.seen.unreadable, here.log.seen.calls) == (1, 0, 0)


def test_no_http_proxy_stands_before_a_provider_on_this_machine(recording, monkeypatch):
    """Programs that look at no proxy (Node's) reach it without us, and so they do with us."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    here = recording(_plain())
    with httpx.Client(trust_env=False) as client:
        assert client.post(f"{here.openai}/chat/completions", json=QUESTION).status_code == 200


def test_what_is_no_http_1_is_refused_without_a_word_of_it(recording, caplog, capfd):
    """A client that begins in HTTP/2 sends its headers and so its key: they are counted, and shown nowhere."""
    here = recording(_plain())
    host, port = urlsplit(here.openai).netloc.split(":")
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\x12\4\0\0\0\0\0 authorization sk-secret")
        plain.settimeout(30)
        plain.recv(1000)
    here.calls()
    assert here.log.seen.refused == 1
    assert "sk-secret" not in caplog.text + "".join(capfd.readouterr())


def test_refusals_come_through(recording):
    """The provider's own error reaches the SDK, and the call is recorded as failed."""

    async def answer(upstream, reader, writer):
        writer.write(b"HTTP/1.1 429 Slow\r\nconnection: close\r\ncontent-length: 2\r\nretry-after: 9\r\n\r\n{}")
        await writer.drain()

    kinds, here = _direct_and_through(recording, answer)
    assert kinds == [openai.RateLimitError] * 2
    assert [call.failed for call in here.calls()] == [True, True]


def test_a_program_that_goes_away_ends_the_providers_connection(recording):
    """Nobody pays for an answer that nobody reads."""
    gone = threading.Event()

    async def answer(upstream, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"3\r\n: x\r\n")
        await writer.drain()
        assert await reader.read() == b""
        gone.set()

    here = recording(answer)
    with httpx.stream("POST", f"{here.openai}/chat/completions", json=QUESTION) as got:
        next(got.iter_raw())
    assert gone.wait(10)
    (call,) = here.calls()
    assert call.failed


@pytest.mark.parametrize(
    ("events", "failed"),
    [
        ([{"type": "response.created"}, "[DONE]"], False),
        ([{"type": "message_delta"}, {"type": "message_stop"}], False),
        ([{"type": "response.completed"}], False),
        ([{"type": "response.incomplete"}], False),
        ([{"type": "message_start"}, {"type": "message_delta"}], True),
        (["[DONE]", {"type": "response.created"}], True),
        (["message_stop"], True),
    ],
)
def test_a_program_that_hangs_up_at_the_last_event_has_read_the_whole_answer(recording, events, failed):
    """As OpenAI's SDK does, before the bytes that end the body: that is no failed call."""

    async def answer(upstream, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events:
            row = b"data: %s\n\n" % (event if isinstance(event, str) else json.dumps(event)).encode()
            writer.write(b"%x\r\n%s\r\n" % (len(row), row))
        await writer.drain()
        await reader.read()

    here = recording(answer)
    with httpx.stream("POST", f"{here.openai}/chat/completions", json=QUESTION) as got:
        read = 0
        for line in got.iter_lines():
            read += line.startswith("data:")
            if read == len(events):
                break
    (call,) = here.calls()
    assert call.failed == failed


def test_no_credential_is_written_down(recording, tmp_path):
    """No header but those that decide about the cache, no query; who may share a cache is told by a digest."""
    here = recording(_plain())
    for key in ("sk-first", "sk-other", "sk-first"):
        headers = {
            "authorization": f"Bearer {key}",
            "cookie": "crumbs",
            "openai-organization": "secretive",
            "anthropic-beta": "prompt-caching",
        }
        httpx.post(f"{here.openai}/chat/completions?key=sk-query", json=QUESTION, headers=headers)
    first, other, again = here.calls()
    assert first.scope == again.scope != other.scope
    assert first.headers == {"anthropic-beta": "prompt-caching"}
    written = here.log.path.read_text()
    assert not [word for word in ("sk-", "crumbs", "secretive", "127.0.0.1") if word in written]


def test_the_file_is_its_owners_alone(tmp_path):
    """What was said to a model is nobody else's to read, and an existing file is not written over."""
    log = CallLog(tmp_path / "kept.jsonl")
    log.close()
    assert stat.S_IMODE((tmp_path / "kept.jsonl").stat().st_mode) == 0o600
    with pytest.raises(SetupError, match="exists already"):
        CallLog(tmp_path / "kept.jsonl")


def test_without_text_no_word_is_written_and_what_is_equal_can_be_seen(recording):
    """Lengths, spaces and common beginnings stay; the API's own words too."""
    here = recording(_plain(), text=False)
    shared = "The quick brown fox jumps over the lazy dog, and every reviewer reads the whole handbook first. "
    for end in ("Alice", "Robert"):
        asked = {"model": "gpt-5.2", "messages": [{"role": "system", "content": shared + end}]}
        httpx.post(f"{here.openai}/chat/completions", json=asked)
    one, two = (call.body["messages"][0]["content"] for call in here.calls())
    assert (len(one), len(two)) == (len(shared) + 5, len(shared) + 6)
    assert one[:96] == two[:96]
    assert one[96:] != two[96:101]
    written = here.log.path.read_text()
    assert not [word for word in ("quick", "handbook", "Alice", "Robert") if word in written]
    assert '"role":"system"' in written


def test_the_bound_on_disk_holds(recording):
    """Later calls pass and are counted."""
    here = recording(_plain(), limit=400)
    for _ in range(4):
        assert httpx.post(f"{here.openai}/chat/completions", json=QUESTION).json() == ANSWER
    here.end()
    assert here.log.path.stat().st_size <= 400
    assert here.log.seen.calls + here.log.seen.unwritten == 4
    assert here.log.seen.unwritten > 0


@pytest.mark.parametrize(("size", "written"), [(47_999_500, True), (47_999_950, False)])
def test_every_line_that_is_written_can_be_read(tmp_path, size, written):
    """What the audit would refuse for its length is counted, and not written down."""
    log = CallLog(tmp_path / "calls.jsonl")
    exchange = Exchange("openai_base_url", "/v1/chat/completions", 1.0, status=200, whole=True)
    exchange.take(exchange.body, b'{"messages":[{"role":"user","content":"%s"}]}' % (b"x" * (size - 44)))
    assert not exchange.too_large
    log.write(exchange)
    log.close()
    assert (log.seen.calls, log.seen.unreadable) == (written, not written)
    assert [type(one) for one in records(str(log.path))] == [Placed] * written


def test_what_is_no_model_call_is_counted_aside(recording):
    """Embeddings pass, and a body that is no JSON object is named as such."""
    here = recording(_plain())
    httpx.post(f"{here.openai}/embeddings", json={"input": "x"})
    httpx.post(f"{here.openai}/chat/completions", content=b"[1")
    here.end()
    seen = here.log.seen
    assert (seen.calls, seen.other, seen.unreadable) == (0, 1, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_counts_of_the_real_sdks_are_recorded_as_the_provider_gave_them(recording, stream):
    """OpenAI's two APIs and Anthropic's, streamed and not, with ids and times of the answer."""
    with SimulatedProvider("auto") as provider:
        here = recording(upstream=provider.url)
        asked = {"stream_options": {"include_usage": True}} if stream else {}
        said = [{"role": "user", "content": "Hello"}]
        with openai.OpenAI(base_url=here.openai, api_key="k") as one:
            list(one.chat.completions.create(**QUESTION, stream=stream, **asked))
            list(one.responses.create(model="gpt-5.2", input="Hello", stream=stream))
        with anthropic.Anthropic(base_url=here.anthropic, api_key="k") as other:
            list(other.messages.create(model="claude-sonnet-4-6", max_tokens=50, messages=said, stream=stream))
        calls = here.calls()
        assert [call.api for call in calls] == ["openai-chat", "openai-responses", "anthropic"]
        assert [normalise_usage(call.usage) for call in calls] == [
            normalise_usage(request.usage) for request in provider.requests
        ]
        assert len({call.ts for call in calls}) == 3
        assert all(call.response_started_ts <= call.response_ended_ts for call in calls)
        assert not any(call.failed for call in calls)


def test_an_unknown_path_is_refused_and_goes_nowhere(recording):
    """The proxy is no way to other places."""
    here = recording(_plain())
    assert httpx.get(f"http://127.0.0.1:{here.proxy.port}/http://example.com/").status_code == 404
    assert here.upstream.came == []


def test_a_websocket_passes_both_ways(recording, loop):
    """Realtime sessions work as without us, with their headers, subprotocol and closing code."""
    came = []

    async def answer(socket):
        came.append((socket.request.headers["authorization"], socket.request.path, await socket.recv()))
        await socket.send("heard")
        await socket.send(b"\0")
        await socket.close(4001, "enough")

    async def start():
        return await websockets.serve(answer, "127.0.0.1", 0, subprotocols=["realtime"])

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    here = recording(upstream=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    url = here.openai.replace("http:", "ws:") + "/realtime?model=m"
    with websockets.sync.client.connect(
        url, additional_headers={"authorization": "Bearer k"}, subprotocols=["realtime"], proxy=None
    ) as client:
        assert client.subprotocol == "realtime"
        client.send("hello")
        assert (client.recv(), client.recv()) == ("heard", b"\0")
        with pytest.raises(websockets.ConnectionClosed):
            client.recv()
        assert client.close_code == 4001
    assert came == [("Bearer k", "/v1/realtime?model=m", "hello")]
    asyncio.run_coroutine_threadsafe(_closed(server), loop).result(10)


async def _closed(server):
    server.close()
    await server.wait_closed()
