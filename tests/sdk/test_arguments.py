"""Whatever an application gives a method that may be read once, or is odd: what the client does with it happens."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections import UserDict, UserList, deque
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from types import MappingProxyType

import pytest
from pydantic import BaseModel
from sdk_driver import MODELS, RULES, creator, make_client, streamer

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 200
SYSTEM = f"You criticise.\n\n{HANDBOOK}"
SAID = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "?"})
RESPONSES, CLAUDE = "openai-responses", "anthropic"
MODES = {"observe": "observe", "outside": "fork", "role": "fork"}


class Said(BaseModel):
    """A message as an application models it."""

    role: str
    content: object
    note: str | None = None


class Dumps:
    """It only looks like one."""

    def model_dump(self, **_):
        """Looks like a message."""
        return dict(SAID[0])


class Speaker(str, Enum):
    """Who speaks."""

    USER = "user"


class Table(Mapping):
    """A mapping that is no dict, as rows of a database are."""

    def __init__(self, given):
        self.given = given

    def __getitem__(self, name):
        return self.given[name]

    def __iter__(self):
        return iter(self.given)

    def __len__(self):
        return len(self.given)


class Gone(Table):
    """One whose rows cannot be read any more."""

    def __iter__(self):
        raise LookupError("the database is gone")


def lost():
    """Rows of a database that goes away while it is read."""
    yield SAID[0]
    raise LookupError("the database is gone")


def around(made, add):
    """What holds itself."""
    add(made)
    return made


def nested(levels):
    """As many mappings in one another."""
    made = "x"
    for _ in range(levels):
        made = {"a": made}
    return made


def tool(api):
    """A tool in the form of an API."""
    schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    named = {"name": "look", "description": "Looks."}
    if api == CLAUDE:
        return {**named, "input_schema": schema}
    function = {**named, "parameters": {**schema, "additionalProperties": False}, "strict": True}
    return {"type": "function", **function} if api == RESPONSES else {"type": "function", "function": function}


def body(api, said=SAID, **more):
    """A request of the critic's."""
    if api == "openai-chat" and not isinstance(said, list | tuple):
        return {"model": MODELS[api], "messages": said, **more}
    if api == "openai-chat":
        return {"model": MODELS[api], "messages": [{"role": "system", "content": SYSTEM}, *said], **more}
    if api == RESPONSES:
        return {"model": MODELS[api], "instructions": SYSTEM, "input": said if said is not SAID else [*SAID], **more}
    return {"model": MODELS[api], "max_tokens": 50, "system": SYSTEM, "messages": said, **more}


def holding(api):
    """Texts and messages of one API, by what they are in."""
    kind, name = "input_text" if api == RESPONSES else "text", "input" if api == RESPONSES else "messages"

    def block(text="hello"):
        return {"type": kind, "text": text}

    def content(given):
        return body(api, [{"role": "user", "content": given}])

    def about(given):
        return body(api, metadata={"user_id": given})

    found = {
        "a generator of messages": lambda: body(api, (one for one in SAID)),
        "a map of messages": lambda: body(api, map(dict, SAID)),
        "a deque of messages": lambda: body(api, deque(SAID)),
        "a view of messages": lambda: body(api, dict(enumerate(SAID)).values()),
        "a list of the user's own": lambda: body(api, UserList(SAID)),
        "a generator that raises": lambda: body(api, lost()),
        "a generator with what is no JSON": lambda: body(api, iter([*SAID, object()])),
        "a generator with what holds itself": lambda: body(api, iter([*SAID, around([], lambda it: it.append(it))])),
        "a generator twice": lambda: body(api, [*repeat(iter(SAID), 2), *SAID]),
        "messages that are proxies": lambda: body(api, [MappingProxyType(one) for one in SAID]),
        "messages that are rows": lambda: body(api, [Table(one) for one in SAID]),
        "messages that cannot be read": lambda: body(api, iter([*SAID, Gone({})])),
        "messages of a user's dict": lambda: body(api, [UserDict(one) for one in SAID]),
        "messages that are models": lambda: body(api, [Said(**one) for one in SAID]),
        "messages that look like models": lambda: body(api, [Dumps()]),
        "a role of an enumeration": lambda: body(api, [{"role": Speaker.USER, "content": "hello"}]),
        "a message that holds itself": lambda: content(around([block()], lambda it: it.append({"it": it}))),
        "a history that holds itself": lambda: body(api, around([*SAID], lambda it: it.append(it))),
        "a generator of blocks": lambda: content(block() for _ in range(2)),
        "a tuple of blocks": lambda: content((block(), block())),
        "blocks that are proxies": lambda: content([MappingProxyType(block())]),
        "a text that is a date": lambda: content([block(date(2026, 1, 1))]),
        "a text that is a time": lambda: content([block(datetime(2026, 1, 1))]),  # noqa: DTZ001 - written as it is
        "a text that is bytes": lambda: content(b"hello"),
        "a text that is a path": lambda: content([block(Path("hello"))]),
        "half a character": lambda: content("hello \ud800"),
        "no number": lambda: about(float("nan")),
        "a set": lambda: about({"a"}),
        "a generator of settings": lambda: about(one for one in "ab"),
        "an object": lambda: about(object()),
        "a decimal number": lambda: body(api, temperature=Decimal("0.5")),
        "a proxy": lambda: body(api, metadata=MappingProxyType({"user_id": "u"})),
        "a key that is a number": lambda: body(api, metadata={1: "a"}),
        "a key that is no key": lambda: body(api, metadata={(1, 2): "a"}),
        "a setting that holds itself": lambda: body(api, metadata=around({}, lambda it: it.update(it=it))),
        "as deep as no writer goes": lambda: body(api, metadata=nested(2_000)),
        "tools of a generator": lambda: body(api, tools=(one for one in [tool(api)])),
        "tools of a view": lambda: body(api, tools={"look": tool(api)}.values()),
        "a tool that is a proxy": lambda: body(api, tools=[MappingProxyType(tool(api))]),
        "messages of a generator in extra_body": lambda: body(api, extra_body={name: (one for one in SAID)}),
        "a generator in extra_body": lambda: body(api, extra_body={"more": (one for one in "ab")}),
        "a proxy for extra_body": lambda: body(api, extra_body=MappingProxyType({"more": 1})),
        "a set in extra_body": lambda: body(api, extra_body={"more": {1}}),
        "extra_body that holds itself": lambda: body(api, extra_body=around({}, lambda it: it.update(it=it))),
    }
    if api == CLAUDE:
        found["a generator of system text"] = lambda: body(api, system=(block(one) for one in [SYSTEM]))
        found["a generator of stops"] = lambda: body(api, stop_sequences=(one for one in "ab"))
    elif api == RESPONSES:
        found["a generator of what to include"] = lambda: body(api, include=(one for one in "ab"))
        found["a generator of instructions"] = lambda: body(api, instructions=(one for one in "ab"))
    else:
        found["a generator of stops"] = lambda: body(api, stop=(one for one in "ab"))
    if api == CLAUDE and not find_spec("anthropic._utils._json"):
        # Older releases write no times, which a fork does.
        del found["a text that is a time"]
    return found


EVERY_WAY = (
    "a generator of messages",
    "a generator that raises",
    "a generator in extra_body",
    "a history that holds itself",
)


def ways(client, api):
    """The methods that ask a model, the plain one first."""
    part = client.messages if api == CLAUDE else client.responses if api == RESPONSES else client.chat.completions
    yield creator(client, api)
    yield lambda **given: creator(client, api)(**given, stream=True)
    yield part.with_raw_response.create
    yield part.with_streaming_response.create
    yield streamer(client, api)
    if hasattr(part, "parse"):
        yield part.parse
    if api == CLAUDE:
        yield client.beta.messages.create


async def ended(asked):
    """Read what a method gave to its end; the types of what came."""
    given = await asked if inspect.isawaitable(asked) else asked
    if hasattr(given, "__aenter__"):
        async with given as entered:
            read = await entered.read() if hasattr(entered, "iter_bytes") else [one async for one in entered]
    elif hasattr(given, "__enter__"):
        with given as entered:
            read = entered.read() if hasattr(entered, "iter_bytes") else list(entered)
    else:
        read = given
    return [type(one).__name__ for one in read] if isinstance(read, list) else type(read).__name__


async def outcome(way, given, provider):
    """What comes of a call: what was read of it, or the error, and the bytes that the provider was sent."""
    provider.reset()
    try:
        read = await ended(way(**given))
    except Exception as error:
        read = f"{type(error).__name__}: {error}"
    return read, [record.body for record in provider.requests]


@pytest.mark.invalid_requests
@pytest.mark.parametrize("later", [False, True], ids=["", "async"])
@pytest.mark.parametrize("api", tuple(RULES))
def test_the_client_does_with_an_odd_argument_what_it_does_without_us(api, later):
    """The same error or answer, and the same bytes where nothing is forked; no failure of ours is counted."""

    async def main(provider):
        plain, found = make_client(api, provider, later=later), []
        made = {
            mode: Session(SharedPrefix(system=HANDBOOK), mode=kind, caching=Caching(RULES[api], counter=ESTIMATE))
            for mode, kind in MODES.items()
        }
        asks = [ways(plain, api), *(ways(wrap(plain, session), api) for session in made.values())]
        for at, each in enumerate(zip(*asks, strict=True)):
            for name, make in holding(api).items():
                if at and name not in EVERY_WAY:
                    continue
                alone = await outcome(each[0], make(), provider)
                for (mode, session), way in zip(made.items(), each[1:], strict=True):
                    failed = sum(session.failures.values())
                    with nullcontext() if mode == "outside" else role("critic", conversation="c"):
                        read, sent = await outcome(way, make(), provider)
                    # A fork has other bytes.
                    same = (read, len(sent)) == (alone[0], len(alone[1])) if mode == "role" else (read, sent) == alone
                    if not same or sum(session.failures.values()) > failed:
                        found.append((mode, at, name, alone, (read, sent), session.failures))
        await closed if inspect.isawaitable(closed := plain.close()) else None
        return found

    with SimulatedProvider(RULES[api]) as provider, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert asyncio.run(main(provider)) == []


@pytest.mark.parametrize("door", ["messages", "extra_body"])
def test_messages_that_can_be_read_once_are_those_of_a_fork(door):
    """Anthropic's client takes an iterator of them, and so do we, once."""
    if door == "extra_body" and not find_spec("anthropic._utils._prepare"):
        pytest.skip("releases before 2.0 take none there")
    read = []

    def rows():
        for one in SAID:
            read.append(one)
            yield one

    given = body(CLAUDE, rows()) if door == "messages" else body(CLAUDE, extra_body={"messages": rows()})
    with SimulatedProvider("anthropic") as provider, make_client(CLAUDE, provider) as client:
        held = Session(SharedPrefix(system=HANDBOOK), caching=Caching("anthropic", counter=ESTIMATE))
        with role("critic", conversation="c"):
            wrap(client, held).messages.create(**given)
        sent = provider.requests[0].json["messages"]
    assert [call.layout for call in held.calls] == ["fork"]
    assert [str(sent).count(f"'{one['content']}'") for one in SAID] == [1, 1, 1]
    assert read == list(SAID)
