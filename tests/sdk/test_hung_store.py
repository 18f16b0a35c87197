"""A Valkey server that takes connections and never answers, under the gate, the full results and the tool cache."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import warnings

import pytest
from sdk_driver import MODELS, RULES, creator, make_client, streamer

from cacheprefix import Caching, Gate, History, Session, SharedPrefix, ToolResultBudget
from cacheprefix.adapter import ToolUse
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Queue, SimulatedProvider
from cacheprefix.stores import RedisStore, ResultStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix_sdk import role, wrap
from tests.blocking import stalls
from tests.fault_matrix import check_stall

HANDBOOK = "The handbook says that every statement needs a source. " * 400
BIG = "One line of what the tool found. " * 1_500
TIMEOUT = 1.5
"""Seconds that one call of a store may take; a busy machine may stop a loop for a part of that."""
STORES = 3


@pytest.fixture
def hung():
    """The address of the server, and how many connections it took."""
    listening, taken = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                taken.append(listening.accept()[0])

    server = threading.Thread(target=serve)
    server.start()
    yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0", taken
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    server.join()
    for each in taken:
        each.close()


@pytest.fixture
def session(hung):
    """One whose stores all hang; what hung once is left alone for as long as the test takes."""
    made = [RedisStore(hung[0], timeout=TIMEOUT, cooldown=600) for _ in range(STORES)]
    tools = ToolResultCache(made[0], ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version="1")]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Session(
            SharedPrefix(system=HANDBOOK),
            caching=Caching(provider="anthropic", counter=ESTIMATE),
            budget=ToolResultBudget(max_tokens=500),
            tool_cache=tools,
            history=History(results=ResultStore(made[1])),
            gate=Gate(store=made[2]),
        )
    for each in made:
        each.close()


def asked(number, api="anthropic"):
    """A request with a large result that no other one has."""
    result = f"{BIG}{number}"
    if api == "openai-responses":
        call = {"type": "function_call", "call_id": f"t{number}", "name": "read", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": f"t{number}", "output": result}
        return {"model": MODELS[api], "input": [{"role": "user", "content": "Look."}, call, output]}
    if api == "openai-chat":
        call = {"id": f"t{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"t{number}", "content": result},
        ]
        return {"model": MODELS[api], "messages": messages}
    use = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{number}", "content": result}]},
    ]
    return {"model": MODELS[api], "max_tokens": 20, "messages": messages}


def use(number):
    """A call of the cached tool."""
    return ToolUse("read", {"page": number}, agent="reader", conversation="t")


def check(session, provider, hung):
    """Everything was asked and answered, and each store was waited for once: the rest of the calls did not try."""
    assert len(provider.requests) == len(session.calls) == 4
    assert all("Look." in record.body.decode() for record in provider.requests)
    assert len(hung[1]) == STORES
    assert session.failures["gate store"] == 1
    assert session.failures["full tool results"] >= 1


@pytest.mark.slow
def test_each_store_that_hangs_is_waited_for_once(session, hung):
    """In a thread: four requests and four tool calls."""
    with SimulatedProvider("anthropic", Queue(["fine"])) as provider, make_client("anthropic", provider) as client:
        create = creator(wrap(client, session), "anthropic")
        for number in range(4):
            with role(f"role {number}"):
                assert create(**asked(number)).content[0].text == "fine"
            assert session.tool_calls.run(use(number), lambda: "found") == "found"
        check(session, provider, hung)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["create", "create, streamed", "helper"])
@pytest.mark.parametrize("api", tuple(MODELS))
def test_the_event_loop_goes_on_while_a_store_takes_its_time(api, way):
    """Longer for each call than the gate waits for one: requests with large results and a kept tool result."""

    async def found():
        return "found"

    async def answer(client, number):
        if way == "helper":
            async with streamer(client, api)(**asked(number, api)) as stream:
                said = [event async for event in stream]
        elif way == "create":
            said = [await creator(client, api)(**asked(number, api))]
        else:
            said = [event async for event in await creator(client, api)(**asked(number, api), stream=True)]
        return [type(one).__name__ for one in said]

    async def ask(session, provider):
        plain = make_client(api, provider, later=True)
        client = plain if session is None else wrap(plain, session)
        said = []
        for number in range(2):
            with role(f"role {number}"):
                said.append(await answer(client, number))
        if session is not None:
            look = ToolUse("look", {"at": "here"}, agent="reader", conversation="t")
            assert await session.tool_calls.arun(look, found) == "found"
            assert [call.agent for call in session.calls] == ["role 0", "role 1"]
        await plain.close()
        return said

    def run(session, replies):
        with SimulatedProvider(RULES[api], replies) as provider:
            return asyncio.run(ask(session, provider))

    check_stall(run)


def test_no_event_loop_waits_for_a_store_that_hangs(session, hung):
    """Nor are tasks that come later held up."""

    async def run(client):
        create = creator(wrap(client, session), "anthropic")

        async def found():
            return "found"

        for number in range(4):
            with role(f"role {number}"):
                assert (await create(**asked(number))).content[0].text == "fine"
            assert await session.tool_calls.arun(use(number), found) == "found"
        await client.close()

    with SimulatedProvider("anthropic", Queue(["fine"])) as provider, stalls() as stood:
        asyncio.run(run(make_client("anthropic", provider, later=True)))
        check(session, provider, hung)
    assert max(stood) < TIMEOUT / 2
