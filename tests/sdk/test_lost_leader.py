"""A leader that is lost costs its siblings nothing: they go on at once, and nothing of it is left behind.

The gate would hold them for ten minutes; each test ends at once or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import pytest
from sdk_driver import MODELS, RULES, creator, make_client, streamer

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Fault, Latency, Reply, SimulatedProvider
from cacheprefix_sdk import role, wrap
from tests.cancelling import Points, until_led

HANDBOOK = "The handbook of the house, rule by rule, section by section. " * 400
REQUEST = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 20,
    "system": HANDBOOK,
    "messages": [{"role": "user", "content": "What now?"}],
}
PATIENCE = 60


@pytest.fixture
def provider():
    """Anthropic's rules: an entry can be read once the first answer has begun."""
    with SimulatedProvider("anthropic") as made:
        yield made


@pytest.fixture
def session():
    """One whose gate waits, for ten minutes."""
    return Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=600.0, price=0.0))


def ask(client, name, **options):
    """One request of a role."""
    with role(name, instruction=f"You are {name}."):
        return client.messages.create(**REQUEST, **options)


def close(stream):
    """Closed before anything was read."""
    stream.close()


def drop(stream):
    """Dropped before anything was read."""
    response = stream.response
    del stream
    response.close()


@pytest.mark.slow
@pytest.mark.parametrize("leave", [close, drop])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_stream_that_nobody_reads_leads_nobody(provider, session, leave):
    """The next one leads, and the one after it reads."""
    with anthropic.Anthropic(base_url=provider.url, api_key="k", max_retries=0) as plain:
        client = wrap(plain, session)
        leave(ask(client, "first", stream=True))
        gc.collect()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask, client, "second").result(PATIENCE)
            third = pool.submit(ask, client, "third").result(PATIENCE)
    assert third.usage.cache_read_input_tokens > 1_000
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("api", tuple(RULES))
def test_who_opens_several_streams_and_then_reads_them_does_not_wait_for_himself(session, api):
    """In one thread, with a gate that would hold him for ten minutes."""
    with SimulatedProvider(RULES[api]) as server, make_client(api, server) as plain:
        create = creator(wrap(plain, session), api)
        streams = []
        for name in ("first", "second", "third"):
            with role(name):
                streams.append(create(**asked(api), stream=True))
        assert all(list(each) for each in streams)
    # Each to its end, at which the response closes while it is read: none was broken off.
    assert [call.cut for call in session.calls] == [False] * 3
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("api", tuple(RULES))
async def test_nor_in_a_task(session, api):
    """The same with an asynchronous client."""
    with SimulatedProvider(RULES[api]) as server:
        async with make_client(api, server, later=True) as plain:
            create = creator(wrap(plain, session), api)
            streams = []
            for name in ("first", "second", "third"):
                with role(name):
                    streams.append(await asyncio.wait_for(create(**asked(api), stream=True), PATIENCE))
            for each in streams:
                assert [event async for event in each]
    # Each to its end, at which the response closes while it is read: none was broken off.
    assert [call.cut for call in session.calls] == [False] * 3
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("api", tuple(RULES))
async def test_nobody_waits_for_a_raw_stream_that_is_opened_and_not_read(session, api):
    """It may be read as bytes, which nobody sees; the gate would hold its sibling for ten minutes."""
    with SimulatedProvider(RULES[api]) as server:
        async with make_client(api, server, later=True) as plain:
            client = wrap(plain, session)
            raw = getattr(client, "messages", None) or client.responses
            raw = client.chat.completions if api == "openai-chat" else raw
            with role("first"):
                held = raw.with_streaming_response.create(**asked(api), stream=True)
                async with held as answer:
                    with role("second"):
                        await asyncio.wait_for(creator(client, api)(**asked(api)), PATIENCE)
                    assert [part async for part in answer.iter_bytes()]
    assert not session.adapter._gate._flights


def asked(api):
    """A short question in the form of an API; the handbook is the session's."""
    if api == "openai-responses":
        return {"model": MODELS[api], "input": "What now?"}
    more = {"max_tokens": 20} if api == "anthropic" else {}
    return {"model": MODELS[api], "messages": [{"role": "user", "content": "What now?"}], **more}


@pytest.mark.parametrize("api", RULES)
@pytest.mark.parametrize("leave", ["helper", "response"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_stream_that_is_closed_and_kept_leads_nobody(session, api, leave):
    """Left by the SDK's own helper, or by its response: whoever keeps the object reads no further all the same."""
    with SimulatedProvider(RULES[api]) as provider, make_client(api, provider) as plain:
        client = wrap(plain, session)
        with role("first"):
            if leave == "helper":
                with streamer(client, api)(**asked(api)) as kept:
                    pass
            else:
                kept = creator(client, api)(**asked(api), stream=True)
                kept.response.close()
        with ThreadPoolExecutor(1) as pool, role("second"):
            pool.submit(contextvars.copy_context().run, creator(client, api), **asked(api)).result(PATIENCE)
    assert kept is not None
    assert [call.agent for call in session.calls] == ["second"]
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("api", RULES)
@pytest.mark.parametrize("leave", ["helper", "response"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_an_asynchronous_stream_that_is_closed_and_kept_leads_nobody(session, api, leave):
    """As above."""
    with SimulatedProvider(RULES[api]) as provider:
        async with make_client(api, provider, later=True) as plain:
            client = wrap(plain, session)
            with role("first"):
                if leave == "helper":
                    async with streamer(client, api)(**asked(api)) as kept:
                        pass
                else:
                    kept = await creator(client, api)(**asked(api), stream=True)
                    await kept.response.aclose()
            with role("second"):
                await asyncio.wait_for(creator(client, api)(**asked(api)), PATIENCE)
    assert kept is not None
    assert not session.adapter._gate._flights


def test_a_stream_whose_response_another_thread_closes_while_it_is_read_leads_nobody(session):
    """A socket that is closed wakes nobody who waits for it: the reader hears of it when the provider says something.

    Of the Responses API, which says at once that it has taken the request, and nothing of the answer.
    """
    begun, flights = threading.Event(), session.adapter._gate._flights
    pace = Latency(base=3.0, uncached=0, cached=0, output=0, scale=1)
    with (
        SimulatedProvider(RULES["openai-responses"], latency=pace) as provider,
        make_client("openai-responses", provider) as plain,
        ThreadPoolExecutor(1) as pool,
    ):
        with role("first"):
            stream = creator(wrap(plain, session), "openai-responses")(**asked("openai-responses"), stream=True)

        def read():
            with contextlib.suppress(Exception):
                for event in stream:
                    if event.type == "response.in_progress":
                        begun.set()

        reading = pool.submit(read)
        assert begun.wait(PATIENCE)
        while any(flight.unread is not None for flight in flights.values()):
            time.sleep(0.001)
        assert flights
        stream.response.close()
        assert not flights
        reading.result(PATIENCE)
    assert session.failures == {}


class _Multiplexed(httpx.AsyncHTTPTransport):
    """One whose connection goes on when a response is closed, so that this wakes nobody, as over HTTP/2."""

    async def handle_async_request(self, request):
        answer = await super().handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=_Parts(answer.stream))


class _Parts(httpx.AsyncByteStream):
    def __init__(self, own):
        self._own = own

    async def __aiter__(self):
        async for part in self._own:
            yield part


@pytest.mark.parametrize("transport", [httpx.AsyncHTTPTransport, _Multiplexed], ids=["HTTP/1.1", "as HTTP/2"])
async def test_nor_does_one_whose_response_another_task_closes_while_it_is_read(session, transport):
    """The same in an event loop. Siblings go on at once, and not when the reader hears of it."""
    begun, flights = asyncio.Event(), session.adapter._gate._flights
    pace = Latency(base=3.0, uncached=0, cached=0, output=0, scale=1)
    with SimulatedProvider(RULES["openai-responses"], latency=pace) as provider:
        async with make_client("openai-responses", provider, later=True) as plain:
            plain._client._transport = transport()
            with role("first"):
                stream = await creator(wrap(plain, session), "openai-responses")(
                    **asked("openai-responses"), stream=True
                )

            async def read():
                with contextlib.suppress(Exception):
                    async for event in stream:
                        if event.type == "response.in_progress":
                            begun.set()

            reading = asyncio.create_task(read())
            await asyncio.wait_for(begun.wait(), PATIENCE)
            while any(one.unread is not None for one in flights.values()):  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0)
            assert flights
            closing = asyncio.create_task(stream.response.aclose())
            await asyncio.sleep(0.05)
            assert not flights
            await closing
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    assert session.failures == {}


@pytest.mark.parametrize("api", RULES)
def test_a_stream_that_breaks_is_a_call_whose_usage_is_not_known(session, api):
    """The provider was paid for what it had read by then; it counts by what was foreseen."""
    fault = Reply("fine " * 40, fault=Fault(cut_after=8))
    with (
        SimulatedProvider(RULES[api], lambda _: fault) as provider,
        make_client(api, provider) as plain,
        role("first"),
        pytest.raises(Exception),  # noqa: B017 - each SDK has its own
    ):
        list(creator(wrap(plain, session), api)(**asked(api), stream=True))
    assert session.report().total.calls == session.report().total.unreported == 1
    assert session.calls[0].units > 6_000


def test_a_request_that_fails_leads_nobody(provider, session):
    """The error is its caller's, and one that waits leads in its place."""
    provider.simulator.latency = Latency(base=0.3, uncached=0, cached=0, output=0, scale=1)
    provider.simulator.script = lambda asked: Reply("fine", fault=None if asked.index else Fault(status=500))
    with anthropic.Anthropic(base_url=provider.url, api_key="k", max_retries=0) as plain:
        client = wrap(plain, session)
        with ThreadPoolExecutor(3) as pool:
            under_way = [pool.submit(ask, client, f"role {number}") for number in range(3)]
            failures = [one.exception(PATIENCE) for one in under_way]
    assert sum(isinstance(error, anthropic.InternalServerError) for error in failures) == 1
    assert failures.count(None) == 2
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_a_cancelled_task_leads_nobody(provider, session, streams):
    """Cancelled while the provider works, with two siblings that wait."""
    provider.simulator.latency = Latency(base=2.0, uncached=0, cached=0, output=0, scale=1)
    async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="k", max_retries=0) as plain:
        client = wrap(plain, session)

        async def once(name):
            with role(name, instruction=f"You are {name}."):
                answer = await client.messages.create(**REQUEST, stream=streams)
                return [event async for event in answer] if streams else answer

        leader = asyncio.create_task(once("leader"))
        while not session.adapter._gate._flights:  # noqa: ASYNC110 - nothing tells when another one leads
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(once(f"role {number}")) for number in range(2)]
        await asyncio.sleep(0.1)
        provider.simulator.latency = Latency()
        leader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leader
        await asyncio.wait_for(asyncio.gather(*others), PATIENCE)
    assert not session.adapter._gate._flights
    assert session.failures == {}


async def aask(client, name, **options):
    """One request of a role, in a task."""
    with role(name, instruction=f"You are {name}."):
        return await client.messages.create(**REQUEST, **options)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_a_task_that_is_cancelled_wherever_it_waits_leads_nobody(provider, streams):
    """Its sibling goes on, nothing is left of it, and the next call is right; at each point at which it waits."""
    async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="k", max_retries=0) as plain:
        at, cancelled = 1, True
        while cancelled:
            session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=600.0, price=0.0))
            client, flights, over = wrap(plain, session), session.adapter._gate._flights, asyncio.Event()

            async def first(client=client):
                answer = await aask(client, "first", stream=streams)
                if streams:
                    async with answer:
                        assert [event async for event in answer]

            async def second(client=client, flights=flights, over=over):
                await until_led(flights, over)
                return await aask(client, "second")

            sibling, points = asyncio.create_task(second()), Points(at)
            await asyncio.sleep(0)
            cancelled = await points.run(first)
            over.set()
            assert (await asyncio.wait_for(sibling, PATIENCE)).content
            assert (await asyncio.wait_for(aask(client, "third"), PATIENCE)).content
            assert not flights
            assert not session.failures
            assert sorted(call.agent for call in session.calls if call.agent != "first") == ["second", "third"]
            at += 1
    assert at > 4
