"""Wrapped clients: what stays, what is shared, what is measured, and what a failure leaves alone."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from json import loads
from operator import attrgetter
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace

import anthropic
import openai
import pytest
from openai.resources.responses import Responses
from sdk_driver import MODELS, RULES, creator, make_client

import cacheprefix
from cacheprefix import (
    CacheprefixWarning,
    Caching,
    Gate,
    History,
    RequestBudget,
    Session,
    SharedPrefix,
    ToolResultBudget,
)
from cacheprefix.bodies import SoFar, allowed_choice, compacts
from cacheprefix.errors import BudgetError, ConfigError, SetupError
from cacheprefix.layout.plan import OwnTools
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Fault, Latency, Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix.watched_clients import tapped
from cacheprefix.wire import decode
from cacheprefix_sdk import role, wrap
from tests.blocking import Hanging
from tests.noting import note, noted

HANDBOOK = "The handbook says that every statement needs a source. " * 90
APIS = tuple(RULES)
RESPONSES_TAKE = inspect.signature(Responses.create).parameters
"""What the installed release of the SDK knows of the Responses API."""


def tool(name, api="openai-chat", **more):
    """A tool in the form of an API."""
    schema = {"type": "object", "properties": {}}
    if api == "anthropic":
        return {"name": name, "description": "d", "input_schema": schema, **more}
    if api == "openai-responses":
        return {"type": "function", "name": name, "description": "d", "parameters": schema, **more}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}, **more}


def body(api, text="hello", *, system="You criticise.", **more):
    """A call of the SDK's method, as an application makes it."""
    if api == "anthropic":
        more = {"max_tokens": 50, "system": system, **more}
    messages = [{"role": "user", "content": text}]
    if api == "openai-responses":
        return {"model": MODELS[api], "instructions": system, "input": text, **more}
    if api == "openai-chat":
        messages.insert(0, {"role": "system", "content": system})
    return {"model": MODELS[api], "messages": messages, **more}


@pytest.fixture(scope="module")
def servers():
    """One provider for each API's rules."""
    with SimulatedProvider("openai-5.6") as chat, SimulatedProvider("anthropic") as claude:
        yield {"openai-chat": chat, "openai-responses": chat, "anthropic": claude}


@pytest.fixture(params=APIS)
def api(request, servers):
    """Each API in turn, with its provider's cache empty."""
    servers[request.param].reset()
    return request.param


@pytest.fixture
def session_for():
    """``session_for(api)`` has the handbook and counts as the provider does."""
    return lambda api, **options: Session(
        SharedPrefix(system=HANDBOOK, tools=options.pop("tools", ())),
        caching=Caching(provider=RULES[api], counter=ESTIMATE),
        **options,
    )


def _prompts(servers, api):
    return [decode(record.body, api) for record in servers[api].requests]


def test_a_copy_is_of_the_same_class(api, servers, session_for):
    """With the application's settings, and the original as it was."""
    with make_client(api, servers[api]) as client:
        wrapped = wrap(client, session_for(api))
        assert isinstance(wrapped, type(client))
        assert type(wrapped).__name__ == type(client).__name__
        assert wrapped.base_url == client.base_url
        assert type(client) in (openai.OpenAI, anthropic.Anthropic)
        assert type(wrap(wrapped, session_for(api))).__mro__[1] is type(client)


def test_options_of_a_wrapped_client_keep_it_wrapped(api, servers, session_for):
    """``with_options`` makes new clients all the time."""
    session = session_for(api)
    with make_client(api, servers[api]) as client:
        creator(wrap(client, session).with_options(timeout=9.0), api)(**body(api))
    assert session.report().total.calls == 1


def test_outside_a_role_no_byte_changes(api, servers, session_for):
    """And the call is measured."""
    session = session_for(api)
    with make_client(api, servers[api]) as client:
        creator(client, api)(**body(api))
        creator(wrap(client, session), api)(**body(api))
    plain, wrapped = servers[api].requests
    assert plain.body == wrapped.body
    assert session.calls[0].usage.input_tokens == wrapped.outcome.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_provider_says_of_a_miss_stands_in_the_verdict(servers, session_for, stream):
    """Anthropic tells what differs from the answer that a request names: whole answers, and a stream's first event."""
    session, named = session_for("anthropic"), None
    servers["anthropic"].reset()
    with make_client("anthropic", servers["anthropic"]) as client:
        create = wrap(client, session).messages.create
        for text in (HANDBOOK, f"{HANDBOOK} Anew."):
            system = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
            asked = {"stream": stream, "diagnostics": {"previous_message_id": named}}
            answer = create(**body("anthropic", system=system, **asked))
            events = list(answer) if stream else []
            named = events[0].message.id if stream else answer.id
    assert [call.verdict.provider_reason for call in session.calls] == [None, "system_changed"]


def test_a_role_bound_to_the_client_needs_no_block(api, servers, session_for):
    """Its instruction stands at the end with the call's own system text."""
    session = session_for(api)
    with make_client(api, servers[api]) as client:
        critic = wrap(client, session, role="critic", instruction="Be kind.")
        creator(critic, api)(**body(api, system=f"You criticise.\n\n{HANDBOOK}"))
    (prompt,) = _prompts(servers, api)
    assert prompt.sections[0].text == HANDBOOK
    assert prompt.sections[-1].text == '<role name="critic">\nBe kind.\n\nYou criticise.\n</role>'


def test_volatile_text_stands_at_the_very_end(api, servers, session_for):
    """Time and retrieval are for one call."""
    with make_client(api, servers[api]) as client:
        wrapped = wrap(client, session_for(api))
        with role("critic", volatile={"time": "12:01"}):
            creator(wrapped, api)(**body(api))
    assert _prompts(servers, api)[0].sections[-1].text.endswith("<time>\n12:01\n</time>")


def test_roles_with_other_tools_share_the_union(api, servers, session_for):
    """In order of names, in each tool's own words; which are the role's own is said where that breaks no cache."""
    session = session_for(api, tools=[tool("write"), tool("read")])
    own = [tool("read", api)]
    with make_client(api, servers[api]) as client:
        wrapped = wrap(client, session)
        for name, tools in (("reader", own), ("writer", [tool("write", api), tool("read", api)])):
            with role(name):
                creator(wrapped, api)(**body(api, tools=tools))
    first, second = _prompts(servers, api)
    assert [one.data for one in first.tier("tools")] == [one.data for one in second.tier("tools")]
    assert len(first.tier("tools")) == 2
    told = "Tools you may use in this role: read." in first.sections[-1].text
    choices = [record.json.get("tool_choice") for record in servers[api].requests]
    allowed = allowed_choice(["read"], api)
    assert (told, choices) == ((True, [None, None]) if api == "anthropic" else (False, [allowed, None]))
    assert "Tools" not in second.sections[-1].text


def _reading(api):
    """A call with one of the union's two tools."""
    return body(api, tools=[tool("read", api)])


def _calling(*names):
    return Reply(tool_calls=[ToolCall(name, {}) for name in names])


def _reader(client, api, session):
    """A call by a role that has one of the union's two tools."""
    with role("reader"):
        return creator(wrap(client, session), api)(**_reading(api))


@pytest.fixture
def in_words(monkeypatch):
    """Roles are kept to their tools in words: ``allowed_tools`` would leave nothing to refuse."""
    monkeypatch.setattr(
        "cacheprefix.bodies.OwnTools", lambda *given, **named: OwnTools(*given, **{**named, "lists": False})
    )


@pytest.mark.usefixtures("in_words")
def test_a_call_of_another_roles_tool_is_refused_and_asked_again(api, session_for):
    """Behind the same bytes, with an error for each call, and the application sees the second answer alone."""
    session = session_for(api, tools=[tool("write"), tool("read")])
    script = Queue([_calling("read", "write"), Reply("so be it")])
    with SimulatedProvider(RULES[api], script) as provider, make_client(api, provider) as client:
        answer = _reader(client, api, session)
        first, second = (decode(record.body, api) for record in provider.requests)
    assert "so be it" in answer.model_dump_json()
    assert [one.digest for one in second.sections[: len(first.sections)]] == [one.digest for one in first.sections]
    for name, section in zip(("read", "write"), second.sections[-2:], strict=True):
        assert f"Tool '{name}' was not run: tools available to the role 'reader' are: read." in section.text
    assert session.report().total.calls == 2


@pytest.mark.usefixtures("in_words")
def test_what_parse_adds_to_an_answer_is_not_sent_back(api, session_for):
    """Arguments that the SDK has parsed stand beside the model's; the provider would answer 400."""
    strict = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    tools = [tool(name, api, strict=True) for name in ("read", "write")]
    for one in tools:
        where = one.get("function", one)
        where["input_schema" if api == "anthropic" else "parameters"] = strict
        if api == "openai-chat":
            where["strict"] = True
            del one["strict"]
    session = session_for(api, tools=tools)
    script = Queue([_calling("read", "write"), Reply("so be it")])
    with SimulatedProvider(RULES[api], script) as provider, make_client(api, provider) as client, role("reader"):
        asked = _reading(api) | {"tools": [tools[0]]}
        asking = creator(wrap(client, session), api).__self__
        if not hasattr(asking, "parse"):
            pytest.skip("this release parses no answers outside of its beta")
        asking.parse(**asked)
        assert len(provider.requests) == 2
        assert b"parsed" not in provider.requests[1].body


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_gateway_that_takes_no_list_of_tools_gets_the_applications_own_request_and_no_list_again(
    api, session_for, later
):
    """Behind OpenAI's name for a model may stand another server: its answer alone tells, and the call goes on."""
    refused = Reply(fault=Fault(status=400, message="tool_choice: unknown type 'allowed_tools'"))

    def script(request):
        choice = request.body.get("tool_choice")
        return refused if isinstance(choice, dict) else Reply("so be it")

    def ask(provider, session):
        if not later:
            with make_client(api, provider) as client:
                asking = creator(wrap(client, session, role="reader"), api)
                return [str(asking(**_reading(api))) for _ in range(2)]

        async def go():
            async with make_client(api, provider, later=True) as client:
                asking = creator(wrap(client, session, role="reader"), api)
                return [str(await asking(**_reading(api))) for _ in range(2)]

        return asyncio.run(go())

    session = session_for(api, tools=[tool("write"), tool("read")])
    with SimulatedProvider(RULES[api], script) as provider, pytest.warns(CacheprefixWarning, match="allowed_tools"):
        assert all("so be it" in answer for answer in ask(provider, session))
        choices = [record.json.get("tool_choice") for record in provider.requests]
    assert [isinstance(choice, dict) for choice in choices] == [True, False, False]
    assert [call.reasons[-1].why for call in session.calls] == ["list_refused", "shares"]
    assert session.report().unanswered == 1


def test_an_error_about_something_else_reaches_the_application_and_lists_go_on(session_for):
    """A history that is too long says nothing of them."""
    session = session_for("openai-chat", tools=[tool("write"), tool("read")])
    script = Queue([Reply(fault=Fault(status=400, message="context_length_exceeded")), Reply("so be it")])
    with SimulatedProvider(RULES["openai-chat"], script) as provider, make_client("openai-chat", provider) as client:
        with pytest.raises(openai.BadRequestError):
            _reader(client, "openai-chat", session)
        _reader(client, "openai-chat", session)
        assert [record.json["tool_choice"]["type"] for record in provider.requests] == ["allowed_tools"] * 2


@pytest.mark.usefixtures("in_words")
def test_a_second_refusal_sends_the_applications_own_request(api, session_for):
    """There the model sees no tool but the role's; and the handbook, which only the session knows."""
    session = session_for(api, tools=[tool("write"), tool("read")])

    async def go(provider):
        async with make_client(api, provider, later=True) as client:
            await creator(wrap(client, session, role="reader"), api)(**_reading(api))
        return provider.requests

    async def plain(provider):
        async with make_client(api, provider, later=True) as client:
            await creator(client, api)(**_reading(api))
        return provider.requests[-1]

    with SimulatedProvider(
        RULES[api], Queue([_calling("write"), _calling("write"), Reply("a"), Reply("b")])
    ) as provider:
        records = asyncio.run(go(provider))
        assert len(records) == 3
        own, bare = records[-1].prompt, asyncio.run(plain(provider)).prompt
    for tier in ("tools", "messages"):
        assert [one.data for one in own.tier(tier)] == [one.data for one in bare.tier(tier)]
    # Money: the application would have asked once.
    assert [bool(call.unmodified_units) for call in session.calls] == [True, False, False]
    assert [str(why) for why in session.calls[-1].reasons] == ["asked_again write"]
    assert HANDBOOK.strip() in own.tier("system")[0].text


@pytest.mark.usefixtures("in_words")
def test_a_call_of_the_roles_own_tool_is_the_applications(api, session_for):
    """It comes back as it was answered."""
    session = session_for(api, tools=[tool("write"), tool("read")])
    with SimulatedProvider(RULES[api], Queue([_calling("read")])) as provider, make_client(api, provider) as client:
        _reader(client, api, session)
        assert len(provider.requests) == 1
    assert session.report().failures == {}


def test_a_forced_call_can_only_be_one_of_the_roles_own(api, servers, session_for):
    """Of the union the model could call another role's, which is refused in no stream; where both are one it stays."""
    session, choice = session_for(api, tools=[tool("write"), tool("read")]), "required"
    servers[api].reset()
    with make_client(api, servers[api]) as client, role("reader"):
        ask = creator(wrap(client, session), api)
        for names in (("read",), ("write", "read")):
            tools = [tool(name, api) for name in names]
            ask(**body(api, tools=tools, tool_choice={"type": "any"} if api == "anthropic" else choice))
    offered = [len(record.json["tools"]) for record in servers[api].requests]
    forced = ["forced_tool" in [one.why for one in call.reasons] for call in session.calls]
    assert (offered, forced) == ([1, 2], [True, False])
    assert [call.layout for call in session.calls] == ["fork"] * 2
    assert "Tools you may" not in str(servers[api].requests[0].json)


CHOSEN = {
    "openai-chat": {"type": "function", "function": {"name": "write"}},
    "openai-responses": {"type": "function", "name": "write"},
    "anthropic": {"type": "tool", "name": "write"},
}


@pytest.mark.invalid_requests
@pytest.mark.parametrize("listed", [False, True], ids=["named", "listed"])
def test_a_choice_of_another_roles_tool_is_refused_as_without_us(api, servers, session_for, listed):
    """Of the union the provider took it, and the model called what is not the role's: it was asked again, and paid."""
    # Anthropic has no list of allowed tools.
    choice = allowed_choice(("read", "write"), api) if listed and api != "anthropic" else CHOSEN[api]
    told, sent, session = [], [], session_for(api, tools=[tool("write"), tool("read")])
    with make_client(api, servers[api]) as client, make_client(api, servers[api]) as bare, role("reader"):
        for one in (bare, wrap(client, session)):
            servers[api].reset()
            creator(one, api)(**body(api, tools=[tool("read", api)]))
            with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as refused:
                creator(one, api)(**body(api, tools=[tool("read", api)], tool_choice=choice))
            told.append(refused.value.message)
            sent.append(len(servers[api].requests))
    assert told[0] == told[1]
    assert sent == [2, 2]
    assert "'write', which is not among the tools" in told[0]
    assert session.failures == {}


def test_a_tool_of_the_provider_leaves_the_tools_as_declared(servers, session_for):
    """Web search is no function that a union could hold."""
    servers["openai-responses"].reset()
    tools = [{"type": "web_search"}, tool("read", "openai-responses")]
    with make_client("openai-responses", servers["openai-responses"]) as client, role("a"):
        creator(wrap(client, session_for("openai-responses")), "openai-responses")(
            **body("openai-responses", tools=tools)
        )
    assert servers["openai-responses"].requests[0].json["tools"] == tools


def test_a_tool_that_changes_later_does_not_change_the_prefix(servers, session_for):
    """The union holds copies."""
    servers["openai-chat"].reset()
    given = tool("read")
    with make_client("openai-chat", servers["openai-chat"]) as client, role("a"):
        wrapped = wrap(client, session_for("openai-chat"))
        creator(wrapped, "openai-chat")(**body("openai-chat", tools=[given]))
        given["function"]["strict"] = True
        creator(wrapped, "openai-chat")(**body("openai-chat", tools=[given]))
    first, second = servers["openai-chat"].requests
    assert first.json["tools"] == second.json["tools"]


def test_a_stream_is_passed_on_as_the_application_asked_for_it(servers, session_for):
    """The chunk that brings the usage is ours alone, unless it was asked for."""
    servers["openai-chat"].reset()
    session = session_for("openai-chat")
    with make_client("openai-chat", servers["openai-chat"]) as client, role("a"):
        create = creator(wrap(client, session), "openai-chat")
        plain = list(create(**body("openai-chat", stream=True)))
        asked = list(create(**body("openai-chat", stream=True, stream_options={"include_usage": True})))
    assert all(chunk.choices for chunk in plain)
    assert asked[-1].usage is not None
    assert [call.usage.reported for call in session.calls] == [True, True]
    assert all(call.first_token_at is not None for call in session.calls)


def test_a_stream_that_is_left_early_is_a_call(api, servers, session_for):
    """With what usage came by then."""
    session = session_for(api)
    with make_client(api, servers[api]) as client, role("a"):
        stream = creator(wrap(client, session), api)(**body(api, stream=True))
        next(iter(stream))
        stream.close()
    assert session.report().total.calls == 1


def _place(client, api):
    return {"anthropic": lambda: client.messages, "openai-chat": lambda: client.chat.completions}.get(
        api, lambda: client.responses
    )()


@pytest.mark.parametrize(("door", "unreported"), [("with_raw_response", 0), ("with_streaming_response", 1)])
def test_raw_responses_work(api, servers, session_for, door, unreported):
    """The usage of one that the application has yet to read is not known, and nothing breaks."""
    session = session_for(api)
    with make_client(api, servers[api]) as client, role("a"), ExitStack() as opened:
        raw = getattr(_place(wrap(client, session), api), door).create(**body(api))
        raw = opened.enter_context(raw) if unreported else raw
        assert raw.parse().usage is not None
    assert session.report().total.unreported == unreported
    assert session.failures == {}


@pytest.mark.parametrize("name", ["", "critic"], ids=["outside", "observe"])
def test_fields_beside_the_methods_own_keep_their_place(api, servers, session_for, name):
    """``extra_body`` may name what the method knows: its value stands where the SDK's own would."""
    more = {"extra_body": {"metadata": {"user_id": "u"}, "top_k": 1, "service_tier": "auto"}}
    with make_client(api, servers[api]) as client:
        creator(client, api)(**body(api, **more))
        with role(name) if name else ExitStack():
            creator(wrap(client, session_for(api, mode="observe" if name else "fork")), api)(**body(api, **more))
    plain, wrapped = servers[api].requests
    assert plain.body == wrapped.body


@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_nobody_needs_to_hold_what_a_call_gave(api, servers, session_for, mode):
    """``create(...).parse()`` and ``create(...).close()`` in one breath."""
    with make_client(api, servers[api]) as client, role("a"):
        place = _place(wrap(client, session_for(api, mode=mode)), api)
        # Not within an ``assert``: pytest would hold what is between.
        events = list(place.with_raw_response.create(**body(api, stream=True)).parse())
        place.create(**body(api, stream=True)).close()
    assert events


@pytest.mark.parametrize("mode", ["observe", "fork"])
async def test_nobody_needs_to_hold_what_a_call_gave_in_an_event_loop(api, servers, session_for, mode):
    """As in threads."""
    async with make_client(api, servers[api], later=True) as client:
        place = _place(wrap(client, session_for(api, mode=mode)), api)
        with role("a"):
            parsed = (await place.with_raw_response.create(**body(api, stream=True))).parse()
            stream = await parsed if inspect.isawaitable(parsed) else parsed
            assert [event async for event in stream]
            await (await place.create(**body(api, stream=True))).close()


def test_a_raw_answer_that_calls_another_roles_tool_is_asked_again(session_for):
    """The application would look in vain for a tool that it did not declare."""
    api, said = "anthropic", Queue([Reply(tool_calls=(ToolCall("wipe", {}, id="c1"),)), "fine"])
    with SimulatedProvider(api, said) as claude, make_client(api, claude) as client, role("critic"):
        session = session_for(api, tools=[tool("wipe", api), tool("look", api)])
        raw = wrap(client, session).messages.with_raw_response.create(**body(api, tools=[tool("look", api)]))
    assert [block.type for block in raw.parse().content] == ["text"]
    assert len(claude.requests) == 2


@pytest.mark.parametrize("door", ["with_raw_response", "with_streaming_response"])
def test_a_raw_stream_that_is_parsed_is_measured_with_its_usage(servers, session_for, door):
    """openai-agents asks so for streams; one that is read as bytes is a call of unknown usage."""
    servers["openai-responses"].reset()
    session = session_for("openai-responses")
    with make_client("openai-responses", servers["openai-responses"]) as own, role("critic"):
        client = wrap(own, session)
        for way in ("parse", "iter_lines"):
            opened = getattr(client.responses, door).create(**body("openai-responses", stream=True))
            raw = opened.__enter__() if door == "with_streaming_response" else opened
            list(getattr(raw if way == "parse" else raw.http_response, way)())
            raw.http_response.close()
            del raw, opened
    parsed, read = session.calls
    assert parsed.usage.input_tokens
    assert read.usage.input_tokens is None


@pytest.mark.parametrize("door", ["with_raw_response", "with_streaming_response"])
def test_a_raw_stream_has_the_events_that_were_asked_for(servers, session_for, door):
    """The application parses it, so that nothing may be in it that only we wanted."""
    servers["openai-chat"].reset()
    with make_client("openai-chat", servers["openai-chat"]) as client, role("a"):
        create = getattr(wrap(client, session_for("openai-chat")).chat.completions, door).create
        opened = create(**body("openai-chat", stream=True))
        raw = opened.__enter__() if door == "with_streaming_response" else opened
        chunks = list(raw.parse())
        raw.close() if door == "with_streaming_response" else None
    assert all(chunk.choices for chunk in chunks)
    assert "stream_options" not in servers["openai-chat"].requests[0].json


@pytest.mark.parametrize("volatile", [{}, {"time": "12:01"}], ids=["", "volatile"])
@pytest.mark.parametrize("shared", [HANDBOOK * 5, "Short."], ids=["forked", "own"])
def test_an_answer_that_is_begun_stays_the_end_of_the_request(servers, shared, volatile):
    """The model goes on from it, and the application puts the two together."""
    servers["anthropic"].reset()
    begun = {"role": "assistant", "content": "It is"}
    asked = body("anthropic", model="claude-haiku-4-5")
    with make_client("anthropic", servers["anthropic"]) as client, role("critic", volatile=volatile):
        session = Session(SharedPrefix(system=shared), caching=Caching(provider="anthropic", counter=ESTIMATE))
        creator(wrap(client, session), "anthropic")(**{**asked, "messages": [*asked["messages"], begun]})
    sent = servers["anthropic"].requests[0].prompt.sections
    assert sent[-1].text == "It is"
    assert ("<role" in sent[-2].text) == (shared != "Short.")
    assert ("12:01" in sent[-2].text) == bool(volatile)
    assert session.failures == {}


RESPONSES = "openai-responses"


@pytest.fixture
def talks():
    """``talks(role, text, ...)`` asks the Responses API; ``sent`` is what came there, ``read`` what it read."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[RESPONSES], counter=ESTIMATE))
    told = Queue(["fine"])
    with SimulatedProvider(RULES[RESPONSES], told) as chat, make_client(RESPONSES, chat) as client:
        create = creator(wrap(client, session), RESPONSES)

        def ask(name, text, *, volatile=None, conversation="", **more):
            with role(name, instruction=f"You are the {name}.", volatile=volatile, conversation=conversation):
                answer = create(**body(RESPONSES, text, system="Be brief.", **more))
                events = list(answer) if more.get("stream") else ()
            return events[-1].response if events else answer

        ask.sent = lambda: [record.json for record in chat.requests]
        ask.read = lambda: ["\n".join(one.text for one in record.prompt.sections) for record in chat.requests]
        ask.session = session
        ask.create, ask.server = create, chat
        yield ask


@pytest.mark.parametrize("how", [{}, {"stream": True}], ids=["whole", "stream"])
def test_what_the_provider_keeps_holds_no_role(talks, how):
    """A role's text in a kept history would be read by the roles that go on from it, and the handbook be paid again."""
    first = talks("critic", "hello", volatile={"time": "11:59"}, **how)
    second = talks("coder", "and now?", volatile={"time": "12:01"}, previous_response_id=first.id, **how)
    talks("tester", "so?", previous_response_id=second.id, **how)
    asked = talks.sent()[1]
    assert asked["instructions"] == f"{HANDBOOK.strip()}\n\nYou are the coder.\n\n<time>\n12:01\n</time>\n\nBe brief."
    assert [item.get("content") for item in asked["input"]][::2] == ["hello", "and now?"]
    assert second.previous_response_id == first.id
    assert "You are the critic" in talks.read()[0]
    for read, others in zip(
        talks.read()[1:], (("critic", "11:59"), ("critic", "coder", "11:59", "12:01")), strict=True
    ):
        assert not [word for word in others if word in read]
        assert read.count("every statement needs a source") == HANDBOOK.count("every statement needs a source")
    assert any(one.reason.why == "kept_by_provider" for one in talks.session.report().layouts)
    assert talks.session.failures == {}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_the_provider_keeps_holds_no_role_in_an_event_loop(talks, stream):
    """As in threads."""
    async with make_client(RESPONSES, talks.server, later=True) as client:
        create = creator(wrap(client, talks.session), RESPONSES)
        with role("critic", instruction="You are the critic."):
            first = await create(**body(RESPONSES, "hello", stream=stream))
            if stream:
                first = [event async for event in first][-1].response
        with role("coder"):
            await create(**body(RESPONSES, "and now?", previous_response_id=first.id))
    assert "You are the critic" in talks.read()[0]
    assert "You are the critic" not in talks.read()[1]


def test_only_roles_whose_answers_are_gone_on_from_begin_in_their_own_layout(talks):
    """Others go on as forks, and so does whoever has nothing kept."""
    first = talks("critic", "hello")
    talks("critic", "and now?", previous_response_id=first.id)
    talks("critic", "another one")
    talks("critic", "once more", store=False)
    talks("coder", "hello")
    kept = [isinstance(asked["input"], str) for asked in talks.sent()]
    assert kept == [False, False, True, False, False]


def _streaming(client, **asked):
    with client.responses.with_streaming_response.create(**asked) as raw:
        return raw.parse()


UNREAD = {
    "raw": lambda client, **asked: client.responses.with_raw_response.create(**asked).parse(),
    "raw, as text": lambda client, **asked: SimpleNamespace(
        id=loads(client.responses.with_raw_response.create(**asked).http_response.text)["id"]
    ),
    "streaming": _streaming,
    "raw stream": lambda client, **asked: (
        next(iter(client.responses.with_raw_response.create(stream=True, **asked).parse())).response
    ),
    "background": lambda client, **asked: client.responses.create(background=True, **asked),
}
"""Ways to an answer of which a session does not see what is kept, or not yet."""


@pytest.mark.parametrize("way", UNREAD)
def test_what_is_kept_of_an_answer_that_is_not_read_here_holds_no_role(talks, way):
    """Whoever goes on from it reads what was asked and answered, and no other role's text."""
    with make_client(RESPONSES, talks.server) as client:
        wrapped = wrap(client, talks.session)
        with role("critic", instruction="You are the critic.", volatile={"time": "11:59"}):
            first = UNREAD[way](wrapped, **body(RESPONSES, "hello"))
        with role("coder", instruction="You are the coder."):
            second = wrapped.responses.with_raw_response.create(
                **body(RESPONSES, "and now?", previous_response_id=first.id)
            )
    read = talks.read()[1]
    assert not [word for word in ("You are the critic", "11:59") if word in read]
    assert [word for word in ("hello", "fine", "and now?", "You are the coder") if word not in read] == []
    # Where the history was sent in its place, the application finds the id that it sent.
    if "previous_response_id" not in talks.sent()[1]:
        assert second.parse().previous_response_id == first.id
    assert talks.session.failures == {}


def _left_open(client, **asked):
    client.opened = client.responses.create(stream=True, **asked)
    return next(client.opened).response


def _left_early(client, **asked):
    stream = client.responses.create(stream=True, **asked)
    told = next(stream).response
    for event in stream:
        if event.type == "response.output_text.done":
            break
    stream.close()
    return told


def _helper(client, **asked):
    with client.responses.stream(**asked) as stream:
        told = next(iter(stream)).response
        assert any(event.type == "response.output_text.delta" for event in stream)
    return told


UNENDED = {"open": _left_open, "left": _left_early, "helper": _helper}


@pytest.mark.parametrize("way", UNENDED)
def test_an_answer_that_was_not_read_to_its_end_is_gone_on_from_without_its_role(talks, way):
    """It has an id from its first event on. What stands before the next request is what the application has seen."""
    with make_client(RESPONSES, talks.server) as client:
        wrapped = wrap(client, talks.session)
        with role("critic", instruction="You are the critic.", volatile={"time": "11:59"}):
            first = UNENDED[way](wrapped, **body(RESPONSES, "hello"))
        with role("coder", instruction="You are the coder."):
            second = wrapped.responses.create(**body(RESPONSES, "and now?", previous_response_id=first.id))
    read = talks.read()[1]
    assert "You are the critic" in talks.read()[0]
    assert not [word for word in ("You are the critic", "11:59") if word in read]
    said = [] if way == "open" else ["fine"]
    assert [item["content"] for item in talks.sent()[1]["input"]] == ["hello", *said, "and now?"]
    assert second.previous_response_id == first.id
    assert talks.session.failures == {}


def test_of_an_answer_that_was_left_reasoning_is_no_part(talks):
    """OpenAI refuses reasoning without what it was for."""
    so_far, item = SoFar(), SimpleNamespace(model_dump=lambda **_: {"type": "reasoning", "id": "rs_1", "summary": []})
    for kind, more in (
        ("response.created", {"response": SimpleNamespace(id="resp_1")}),
        ("response.output_item.done", {"item": item}),
        ("response.output_text.delta", {"delta": "It "}),
        ("response.output_text.delta", {"delta": "is"}),
    ):
        so_far.note(SimpleNamespace(type=kind, **more))
    assert (so_far.id, so_far.messages()) == ("resp_1", [{"role": "assistant", "content": "It is"}])


OPENAIS = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
ANTHROPICS = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
SUMMARY = {"compaction": {"type": "summarize"}}


@pytest.mark.parametrize(
    ("api", "way", "edits"),
    [
        ("openai-responses", "field", OPENAIS),
        ("openai-responses", "extra_body", OPENAIS),
        ("anthropic", "field", ANTHROPICS),
        ("anthropic", "extra_body", ANTHROPICS),
        ("anthropic", "extra_body", SUMMARY),
        pytest.param(
            "anthropic",
            "field",
            SUMMARY,
            marks=pytest.mark.skipif(
                "compaction" not in inspect.signature(anthropic.resources.beta.messages.Messages.create).parameters,
                reason="this release does not know the field",
            ),
        ),
    ],
)
def test_where_the_provider_compacts_no_role_stands_in_what_it_reads_as_said(api, way, edits, servers, session_for):
    """What it makes of all messages comes back in the answer, for whoever goes on from it."""
    if (api, way) == ("openai-responses", "field") and "context_management" not in RESPONSES_TAKE:
        pytest.skip("this release takes no context_management but in extra_body")
    servers[api].reset()
    session = session_for(api)
    asked = body(api, **(edits if way == "field" else {"extra_body": edits}))
    with make_client(api, servers[api]) as client, role("critic", instruction="Be kind.", volatile={"time": "11:59"}):
        wrapped = wrap(client, session)
        creator(wrapped.beta if api == "anthropic" and way == "field" else wrapped, api)(**asked)
    sent = servers[api].requests[0].json
    assert {name: sent[name] for name in edits} == edits
    system, said = ("system", "messages") if api == "anthropic" else ("instructions", "input")
    assert all(word in str(sent[system]) for word in ("Be kind.", "11:59", "You criticise.", "every statement"))
    assert str(sent[said]).count("hello") == 1
    assert not [word for word in ("Be kind.", "11:59", "You criticise.") if word in str(sent[said])]
    assert [one.reason.why for one in session.report().layouts] == ["own_history"]


def test_other_management_of_the_context_is_no_compaction(servers, session_for):
    """What is only cleared tells nobody anything."""
    servers["anthropic"].reset()
    session, edits = session_for("anthropic"), [{"type": "clear_tool_uses_20250919"}]
    with make_client("anthropic", servers["anthropic"]) as client, role("critic"):
        create = wrap(client, session).beta.messages.create
        create(**body("anthropic", context_management={"edits": edits}))
    assert session.calls[0].layout == "fork"
    for odd in (None, 5, "compaction", [5], {"edits": 5}, {"edits": [{"type": 5}]}):
        assert not compacts({"context_management": odd})


def test_a_request_fits_the_window_with_tools_that_the_provider_runs(servers, session_for):
    """Nobody shares them, and the model reads them all the same."""
    servers["anthropic"].reset()
    session = session_for("anthropic", history=History(request_budget=RequestBudget(9_000)))
    domains = [f"{number}.example.org" for number in range(800)]
    search = {"type": "web_search_20250305", "name": "web_search", "allowed_domains": domains}
    asked = body("anthropic", tools=[search])
    said = [{"role": one, "content": f"{one} says {at}. " * 100} for at in range(8) for one in ("user", "assistant")]
    with make_client("anthropic", servers["anthropic"]) as client, role("critic"):
        wrap(client, session).messages.create(**{**asked, "messages": [*said, *asked["messages"]]})
    assert 4_000 < servers["anthropic"].requests[0].prompt.tokens <= 9_000
    assert session.failures == {}


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
CALLED = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "read"}]}
TEXT = {"type": "text", "text": "It is so."}


@pytest.mark.parametrize("mode", ["fork", "own"])
@pytest.mark.parametrize(
    ("blocks", "behind", "held"),
    [
        ([TEXT, SEARCH], [], 1),
        ([SEARCH, FOUND], [], 1),
        ([SEARCH, CALLED], [RESULT], 2),
        ([SEARCH, FOUND, TEXT], [], 0),
        ([SEARCH, FOUND, CALLED], [RESULT], 0),
    ],
    ids=["a call", "a result", "a call beside the application's", "an end", "the application's own call"],
)
def test_a_turn_that_the_provider_paused_goes_on_from_its_end(blocks, behind, held, mode, servers, session_for):
    """Anthropic refuses a text behind a call of its own tools that has no result yet."""
    servers["anthropic"].reset()
    session = session_for("anthropic") if mode == "fork" else Session(caching=Caching(counter=ESTIMATE))
    asked, turn = body("anthropic"), [{"role": "assistant", "content": blocks}, *behind]
    asked = {**asked, "messages": [*asked["messages"], *turn]}
    with make_client("anthropic", servers["anthropic"]) as client, role("critic", volatile={"time": "11:59"}):
        wrap(client, session).messages.create(**asked)
    said = servers["anthropic"].requests[0].json["messages"]
    for message in said:
        for block in message["content"] if isinstance(message["content"], list) else ():
            block.pop("cache_control", None)
    assert session.calls[0].layout == mode
    at = next(at for at, message in enumerate(said) if "11:59" in str(message))
    assert len(said) - at == held + 1
    assert said[at + 1 :] == turn[:held]


@pytest.mark.parametrize("path", ["compact", "input_tokens"])
async def test_what_is_asked_about_a_kept_history_holds_no_role(talks, path):
    """What is compacted goes on with whoever is given it."""
    first = talks("critic", "hello")
    asked = {"model": MODELS[RESPONSES], "previous_response_id": first.id}
    sent = []

    async def later(self, path, *, body=None, **options):
        sent.append((path, body))

    def now(self, path, *, body=None, **options):
        sent.append((path, body))

    for kind, post in ((openai.OpenAI, now), (openai.AsyncOpenAI, later)):
        client = type(kind.__name__, (kind,), {"post": post, "__module__": "openai"})(api_key="k")
        with role("coder"):
            given = wrap(client, talks.session).post(f"/responses/{path}", body=dict(asked))
            await given if inspect.isawaitable(given) else None
        await closed if inspect.isawaitable(closed := client.close()) else None
    for _, told in sent:
        assert "previous_response_id" not in told
        assert told["input"][0] == {"role": "user", "content": "hello"}
        assert "critic" not in str(told)
    assert len(sent) == 2


@pytest.mark.skipif("conversation" not in RESPONSES_TAKE, reason="this release keeps no conversations")
def test_a_conversation_is_named_by_all_its_requests(talks):
    """Whoever says none, begins none."""
    with role("critic"):
        talks.create(**body(RESPONSES, "hello", conversation="conv_1"))
    talks("critic", "another one")
    assert [isinstance(asked["input"], str) for asked in talks.sent()] == [True, False]


def test_after_an_answer_that_nobody_knows_all_begin_in_their_own_layout(talks):
    """An earlier process: any role may have begun it."""
    with make_client(RESPONSES, talks.server) as other:
        unknown = other.responses.create(**body(RESPONSES, "hello"))
    talks("coder", "hello")
    talks("critic", "and now?", previous_response_id=unknown.id)
    talks("coder", "another one")
    assert [isinstance(asked["input"], str) for asked in talks.sent()] == [True, False, True, True]


def test_a_call_without_a_role_that_goes_on_from_a_fork_reads_no_role(talks):
    """Its own words are sent as they are, behind the history as the application had it."""
    first = talks("critic", "hello")
    talks.create(**body(RESPONSES, "and now?", previous_response_id=first.id))
    asked = talks.sent()[1]
    assert asked["instructions"] == "You criticise."
    assert "You are the critic" not in talks.read()[1]


def test_a_forgotten_conversation_leaves_no_text_of_its_answers(talks):
    """They are kept for whoever goes on from them, and nobody does."""
    talks("critic", "hello", conversation="t1")
    assert len(talks.session.adapter.shared.kept) == 1
    talks.session.forget("t1")
    assert len(talks.session.adapter.shared.kept) == 0


def test_a_template_of_the_provider_keeps_its_words(servers, session_for):
    """Instructions would stand in place of the template's own; who gave some to the role is told so."""
    chat = servers["openai-responses"]
    chat.reset()
    asked = {"model": MODELS["openai-responses"], "prompt": {"id": "pmpt_1"}, "input": "hello"}
    with make_client("openai-responses", chat) as client:
        ask = creator(wrap(client, session_for("openai-responses")), "openai-responses")
        with (
            role("critic", instruction="Be kind."),
            pytest.warns(CacheprefixWarning, match="put them into the stored prompt"),
        ):
            ask(**asked)
        with role("planner"):
            ask(**asked)
    assert [request.json for request in chat.requests] == [asked, asked]


@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
def test_a_layout_that_fails_sends_all_that_the_application_said(api, servers, session_for, monkeypatch):
    """Nothing is known of its history then, which is no reason to leave it out."""
    session, said = session_for(api), body(api, "What do we build?", system=f"You criticise.\n\n{HANDBOOK}")
    monkeypatch.setattr("cacheprefix.layout.role_position.RolePositions.choose", lambda *_, **__: {}["gone"])
    with make_client(api, servers[api]) as client:
        creator(client, api)(**said)
        with role("critic", conversation="one"):
            creator(wrap(client, session), api)(**said)
    plain, own = (record.json for record in servers[api].requests)
    assert own == plain
    assert session.failures == {"layout": 1}


@pytest.mark.parametrize("later", [False, True], ids=["", "async"])
@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
def test_a_stream_that_we_fail_to_read_has_all_its_events(servers, session_for, monkeypatch, later):
    """Each failure is counted, and the application reads on."""
    api = "openai-chat"
    session, said = session_for(api), body(api, system=f"You criticise.\n\n{HANDBOOK}", stream=True)
    monkeypatch.setattr("cacheprefix.bodies._usage_of", lambda event: {}["gone"])

    async def events():
        async with make_client(api, servers[api], later=True) as client:
            return [event async for event in await creator(wrap(client, session), api)(**said)]

    with role("critic", conversation="one"):
        if later:
            read = asyncio.run(events())
        else:
            with make_client(api, servers[api]) as client:
                read = list(creator(wrap(client, session), api)(**said))
    assert read[-1].choices[0].finish_reason == "stop"
    # The last one is that of the usage, which only we asked for.
    assert session.failures == {"stream": len(read) + 1}


def test_an_error_of_the_provider_reaches_the_application(api, session_for):
    """As itself, and the call leaves no trace in the totals."""
    session = session_for(api)
    fault = Reply(fault=Fault(status=400, message="no"))
    with SimulatedProvider(RULES[api], Queue([fault, Reply("fine")])) as provider, make_client(api, provider) as client:
        wrapped = wrap(client, session)
        with role("a"), pytest.raises((openai.BadRequestError, anthropic.BadRequestError)):
            creator(wrapped, api)(**body(api))
        with role("a"):
            creator(wrapped, api)(**body(api))
    assert session.report().total.calls == 1


@pytest.mark.invalid_requests
def test_a_request_that_asks_nothing_is_refused_as_without_us(api, servers, session_for):
    """A fork of it would have the role's text to answer; nothing of ours fails, also where it holds nothing at all."""
    session, said = session_for(api), "input" if api == "openai-responses" else "messages"
    refused = (anthropic if api == "anthropic" else openai).BadRequestError
    with make_client(api, servers[api]) as client:
        for name in ("a", "b", "a"):
            with role(name):
                creator(wrap(client, session), api)(**body(api))
                with pytest.raises(refused):
                    creator(wrap(client, session), api)(**{**body(api), said: []})
    assert session.failures == {}


@pytest.mark.parametrize("named", [{}, {"type": None}, {"type": "item_reference"}])
def test_what_the_provider_keeps_may_be_named_by_its_id_alone(servers, session_for, named):
    """OpenAI's ``ItemReference`` needs no type: its conversation is shared as any other is."""
    servers["openai-responses"].reset()
    session = session_for("openai-responses")
    said = [{"role": "user", "content": "hello"}, {"id": "msg_1", **named}, {"role": "user", "content": "and then?"}]
    with make_client("openai-responses", servers["openai-responses"]) as client:
        for name in ("a", "b", "a"):
            with role(name):
                creator(wrap(client, session), "openai-responses")(**body("openai-responses", said, store=False))
    assert session.failures == {}
    assert {call.layout for call in session.calls} == {"fork"}


@pytest.mark.invalid_requests
@pytest.mark.parametrize("said", ["messages", "content", "tools"])
@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
def test_what_is_no_request_is_no_failure_of_ours(api, servers, session_for, said):
    """It is refused as without us."""
    servers[api].reset()
    session = session_for(api)
    good = body(api)
    wrong = {
        "messages": {"messages": [5]},
        "content": {"messages": [{"role": "user", "content": 5}]},
        "tools": {"tools": [5]},
    }
    with make_client(api, servers[api]) as client, role("a"):
        found = []
        for one in (client, wrap(client, session)):
            with pytest.raises(Exception) as raised:
                creator(one, api)(**{**good, **wrong[said]})
            found.append((raised.type, str(raised.value)))
    assert found[0] == found[1]
    assert session.failures == {}


NO_TEXT = [{"name": 5}, {"name": None}, {"instruction": None}, {"instruction": b"a"}, {"conversation": 5}]


@pytest.mark.parametrize("said", [*NO_TEXT, {"conversation": lambda: "a"}])
def test_what_is_no_text_is_refused_where_it_is_said(servers, said):
    """An id of a data base, say: each request would raise or fail by it."""
    named = {"name": "critic", **said}
    (option,) = said
    told = rf"{option.replace('name', 'role')} is a text, found .*use str\(...\)"
    with pytest.raises(SetupError, match=told), role(named.pop("name"), **named):
        pass
    if said != {"name": None}:
        wrapped = {"role": "critic", **{one.replace("name", "role"): value for one, value in said.items()}}
        with make_client("anthropic", servers["anthropic"]) as client, pytest.raises(SetupError, match=told):
            wrap(client, Session(), **wrapped)


@pytest.mark.parametrize("said", [{"instruction": "\ud800"}, {"name": "\ud800"}])
def test_half_a_character_is_refused_where_it_is_said(said):
    """No request can hold one."""
    named = {"name": "critic", **said}
    with pytest.raises(SetupError, match="holds half a character"), role(named.pop("name"), **named):
        pass


@pytest.mark.parametrize("named", [{"name": ""}, {"name": " "}, {"name": "a", "volatile": "ten"}])
def test_a_block_of_no_role_or_without_texts_by_name_is_refused(named):
    """There is nobody to say it of, and nothing to say."""
    with pytest.raises(SetupError, match=r"a role has a name|volatile is texts by name"), role(**named):
        pass


@pytest.mark.parametrize("named", ["conversation", "instruction"])
def test_what_is_said_of_no_role_is_refused(servers, named):
    """It would be dropped."""
    with make_client("anthropic", servers["anthropic"]) as client, pytest.raises(SetupError, match=named):
        wrap(client, Session(), **{named: "alice"})


def test_roles_of_parallel_tasks_do_not_mix(servers, session_for):
    """The role in force is the task's own, and the first writes what the others read."""
    servers["openai-chat"].reset()
    session = session_for("openai-chat")

    async def go():
        async with make_client("openai-chat", servers["openai-chat"], later=True) as client:
            wrapped = wrap(client, session)

            async def ask(name):
                with role(name):
                    await creator(wrapped, "openai-chat")(**body("openai-chat", system=f"You are {name}."))

            await asyncio.gather(*(ask(name) for name in "abcd"))

    asyncio.run(go())
    records = servers["openai-chat"].requests
    assert sorted(call.agent for call in session.calls) == ["a", "b", "c", "d"]
    assert sorted(record.outcome.read_tokens > 1_000 for record in records) == [False, True, True, True]


def test_a_store_that_hangs_never_holds_the_event_loop(servers, session_for):
    """Full texts and the gate, in a store that takes its time for each call."""
    servers["openai-chat"].reset()
    store = Hanging()
    options = {
        "history": History(results=ResultStore(store)),
        "budget": ToolResultBudget(max_tokens=100),
        "gate": Gate(store=store),
    }
    session = session_for("openai-chat", **options)

    async def go():
        async with make_client("openai-chat", servers["openai-chat"], later=True) as client:
            wrapped = wrap(client, session)

            async def ask(name):
                with role(name):
                    asked = body("openai-chat", system=f"You are {name}.")
                    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                    asked["messages"] += [
                        {"role": "assistant", "content": None, "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "c", "content": "hit " * 4_000},
                    ]
                    await creator(wrapped, "openai-chat")(**asked)

            await asyncio.gather(*(ask(name) for name in "abcd"))

    asyncio.run(go())
    assert len(session.calls) == 4
    assert store.calls
    assert not store.in_a_loop
    assert not session.failures


def test_a_budget_that_cannot_be_met_is_heard_of(servers, session_for):
    """It is no failure of ours that a request does not fit."""
    session = session_for(
        "openai-chat", history=History(request_budget=cacheprefix.RequestBudget(2_000, 100)), compaction=1_900
    )
    with make_client("openai-chat", servers["openai-chat"]) as client, role("a"), pytest.raises(BudgetError):
        creator(wrap(client, session), "openai-chat")(**body("openai-chat", "word " * 9_000))


def test_the_entry_point_wraps_a_client(servers):
    """``cacheprefix.wrap`` finds it; other objects are refused by name."""
    with make_client("openai-chat", servers["openai-chat"]) as client:
        assert isinstance(cacheprefix.wrap(client, Session("x")), openai.OpenAI)
    with pytest.raises(SetupError, match="wrap takes a client of OpenAI or Anthropic, found dict"):
        wrap({}, Session("x"))


def test_without_a_session_the_configuration_counts(servers, monkeypatch):
    """As for ``Session.from_config()``: a variable observes only, and a mistake is told before anything is wrapped."""
    servers["openai-chat"].reset()
    asked = body("openai-chat")
    monkeypatch.setenv("CACHEPREFIX_MODE", "observe")
    with make_client("openai-chat", servers["openai-chat"]) as client:
        creator(client, "openai-chat")(**asked)
        with role("critic"):
            creator(wrap(client), "openai-chat")(**asked)
        plain, observed = servers["openai-chat"].requests
        assert observed.body == plain.body
        monkeypatch.setenv("CACHEPREFIX_MODE", "sideways")
        for front_door in (wrap, cacheprefix.wrap):
            with pytest.raises(ConfigError, match="CACHEPREFIX_MODE"):
                front_door(client)


def test_a_loop_reads_its_own_cut_result_again_and_no_other_conversations(api, servers):
    """``session.read_tool`` reads one conversation; the note names the tool in requests that carry it."""
    session = Session(SharedPrefix(system=HANDBOOK), budget=ToolResultBudget(max_tokens=100))
    client = wrap(make_client(api, servers[api]), session)
    read, result = session.read_tool("ann"), "\n".join(f"record {n} of ann" for n in range(400))
    history = {
        "anthropic": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "find", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": result}]},
        ],
        "openai-responses": [
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": result},
        ],
        "openai-chat": [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": result},
        ],
    }[api]  # fmt: skip
    given = body(api, tools=[tool("find", api), tool("read_full_result", api)])
    field = "input" if api == "openai-responses" else "messages"
    first = given[field] if isinstance(given[field], list) else [{"role": "user", "content": given[field]}]
    with role("clerk", conversation="ann"):
        creator(client, api)(**{**given, field: [*first, *history]})
    sent = servers[api].requests[-1].body.decode()
    ref = sent.partition("read_full_result(ref='")[2][:16]
    assert len(ref) == 16
    assert read(ref, 0, 15) == f"{result[:15]}\n[characters 0 to 15 of {len(result)}; read on with offset=15]"
    assert session.read_tool("bob")(ref).startswith("Error: no result is kept under")


def test_a_role_alone_follows_the_leader_of_another_process():
    """Two sessions that have only the gate's store in common, as processes do: one writes, the other reads.

    A role that is alone keeps its own layout, which OpenAI keeps unmarked.
    """
    store, text = MemoryStore(), "The handbook of the house, rule by rule, section by section. " * 400
    said = [{"role": "system", "content": text}, {"role": "user", "content": "What now?"}]
    made = [Session(gate=Gate(limit=60.0, price=0.0, store=store)) for _ in range(2)]
    with SimulatedProvider("openai") as provider, ExitStack() as clients:
        provider.simulator.latency = Latency(base=0.5, uncached=0, cached=0, output=0, scale=1)

        def ask(session):
            client = wrap(clients.enter_context(make_client("openai-chat", provider)), session)
            with role("planner"):
                client.chat.completions.create(model="gpt-4o", messages=said)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(ask, made))
        assert [[call.layout for call in one.calls] for one in made] == [["own"]] * 2
        assert sorted(record.outcome.read_tokens > 1_000 for record in provider.requests) == [False, True]


def test_what_extra_body_puts_over_a_fork_is_read_with_it(api, servers, session_for):
    """A fork's role stood in the messages that ``extra_body`` replaces, or its system text did: either was lost."""
    servers[api].reset()
    system, said = {
        "anthropic": ("system", "messages"),
        "openai-responses": ("instructions", "input"),
        "openai-chat": (None, "messages"),
    }[api]
    own, asked = body(api), body(api)
    for name in filter(None, (system, said)):
        asked[name] = "Other." if name == system else [{"role": "user", "content": "Other."}]
    over = {name: own[name] for name in filter(None, (system, said))}
    with make_client(api, servers[api]) as client, role("critic", instruction="Be kind."):
        creator(wrap(client, session_for(api)), api)(**{**asked, "extra_body": {**over, "metadata": {"user_id": "u"}}})
    sent, words = str(servers[api].requests[0].json), ("Be kind.", "You criticise.", "hello", "Other.", "user_id")
    assert [sent.count(word) for word in words] == [1, 1, 1, 0, 1]


def test_an_answer_that_extra_body_goes_on_from_shows_no_other_role(servers, session_for):
    """It went out beside the fork: what the provider keeps of the other's ends with that one's role text."""
    servers["openai-responses"].reset()
    with make_client("openai-responses", servers["openai-responses"]) as client:
        wrapped = wrap(client, session_for("openai-responses"))
        with role("critic"):
            first = wrapped.responses.create(**body("openai-responses"))
        with role("judge", instruction="You judge."):
            second = wrapped.responses.create(
                model="gpt-5.6", input="And now?", extra_body={"previous_response_id": first.id}
            )
    assert second.previous_response_id == first.id
    sent = servers["openai-responses"].requests[1].json
    assert "previous_response_id" not in sent
    asked = str([one for one in [sent.get("instructions"), *sent["input"]] if "assistant" not in str(one)])
    assert [asked.count(word) for word in ("You criticise.", "You judge.", "hello", "And now?")] == [0, 1, 1, 1]


@pytest.mark.parametrize("later", [False, True])
async def test_an_answer_that_was_deleted_is_not_sent_again(later, servers, session_for, monkeypatch):
    """The provider refuses to go on from it, and what the user wanted gone stays nowhere."""
    servers["openai-responses"].reset()
    kind, session = openai.AsyncOpenAI if later else openai.OpenAI, session_for("openai-responses")
    gone = []

    async def adelete(_, path, **options):
        gone.append(path)

    monkeypatch.setattr(kind, "delete", adelete if later else lambda _, path, **options: gone.append(path))

    async def ask(create, **fields):
        given = create(**fields)
        return await given if later else given

    client = make_client("openai-responses", servers["openai-responses"], later=later)
    responses = wrap(client, session).responses
    with role("critic"):
        first = await ask(responses.create, **body("openai-responses"))
        assert session.adapter.shared.kept.said(first.id)
        await ask(responses.delete, response_id=first.id)
        assert not session.adapter.shared.kept.said(first.id)
        await ask(responses.create, model="gpt-5.6", previous_response_id=first.id, input="And now?")
    await ask(client.close)
    sent = servers["openai-responses"].requests[1].json
    assert gone == [f"/responses/{first.id}"]
    assert (sent["previous_response_id"], "hello" in str(sent)) == (first.id, False)
    assert session.failures == {}


@pytest.mark.parametrize("later", [False, True])
async def test_a_client_that_makes_its_parts_at_once_is_watched(later, session_for):
    """As Anthropic's for Bedrock and Vertex: their ``messages`` asked past us, and nothing said so.

    They change the body that they are given, too, and a refused call of a tool is asked again with it.
    """
    base = anthropic.AsyncAnthropic if later else anthropic.Anthropic
    resource = anthropic.resources.AsyncMessages if later else anthropic.resources.Messages
    asked = []

    def changed(options):
        asked.append(options.json_data["model"])
        options.json_data["model"] = "claude-at-cloud"
        return options

    async def achanged(_, options):
        return changed(options)

    class Cloud(base):
        _prepare_options = achanged if later else lambda _, options: changed(options)

        def __init__(self, **given):
            super().__init__(**given)
            self.messages = resource(self)

    session = session_for("anthropic", tools=[tool("write"), tool("read")])
    with SimulatedProvider("anthropic", Queue([_calling("write"), Reply("so be it")])) as provider:
        client = Cloud(base_url=provider.anthropic_base_url, api_key="k", max_retries=0)
        with role("critic"):
            given = wrap(client, session).messages.create(**body("anthropic"))
            answer = await given if later else given
        closed = client.close()
        if later:
            await closed
    assert answer.content[0].text == "so be it"
    assert [(call.agent, call.layout) for call in session.calls] == [("critic", "fork")] * 2
    assert asked == ["claude-sonnet-4-6"] * 2


@pytest.mark.parametrize("mode", ["observe", "fork", "off"])
@pytest.mark.parametrize("later", [False, True], ids=["", "async"])
async def test_a_client_of_the_applications_own_is_what_it_was(api, servers, session_for, later, mode):
    """With arguments of its own, what was set on it, and what stands in the way of its requests; made once."""
    base, made, went = type(make_client(api, servers[api], later=later)), [], []

    class Mine(base):
        def __init__(self, tenant, count=0, **given):
            made.append(tenant)
            self.tenant, self.count = tenant, count
            super().__init__(**given)

        def hello(self):
            return creator(self, api)(**body(api, self.tenant))

    url = servers[api].anthropic_base_url if api == "anthropic" else servers[api].openai_base_url
    client, session = Mine("acme", base_url=url, api_key="k"), session_for(api, mode=mode)
    client.tag, client.count = "mine", 3
    own = client.post

    def post(path, **options):
        went.append(path)
        return own(path, **options)

    client.post = post
    creator(client, api)
    wrapped = wrap(client, session)
    with role("critic"):
        given = wrapped.hello()
        assert await given if later else given
    assert (wrapped.tenant, wrapped.count, wrapped.tag, made, len(went)) == ("acme", 3, "mine", ["acme"], 1)
    assert len(session.calls) == (mode != "off")
    assert "acme" in servers[api].requests[-1].body.decode()
    await closed if inspect.isawaitable(closed := client.close()) else None
    assert wrapped.is_closed()


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("later", [False, True], ids=["", "async"])
async def test_a_method_that_was_replaced_on_a_client_is_asked_as_without_us(api, servers, session_for, later, mode):
    """As LangSmith's ``wrap_openai`` does: its traces would be gone, and nothing said so. The report does."""
    session, traced = session_for(api, mode=mode), []
    client = make_client(api, servers[api], later=later)
    part = {"openai-chat": "chat.completions", "openai-responses": "responses", "anthropic": "messages"}[api]
    holder, own = attrgetter(part)(client), creator(client, api)

    def create(**given):
        traced.append(given)
        return own(**given)

    holder.create = create
    wrapped = wrap(client, session)
    with role("critic"):
        given = creator(wrapped, api)(**body(api))
        assert await given if later else given
        # A part in which nothing was replaced is watched.
        if api != "openai-chat":
            other = wrapped.beta.messages.create if api == "anthropic" else wrapped.chat.completions.create
            given = other(**body("anthropic" if api == "anthropic" else "openai-chat"))
            assert await given if later else given
    assert len(traced) == 1
    assert len(session.calls) == (api != "openai-chat")
    assert any("replaced on this client before wrap" in note for note in session.report().notes)
    await closed if inspect.isawaitable(closed := client.close()) else None


class _Post:
    """An SDK's ``post``, by which two threads look at once whether it is watched."""

    def __init__(self):
        self.together = Barrier(2)

    def __get__(self, sdk, _):
        return self if sdk is None else partial(self, sdk)

    async def __call__(self, _, path, **request):
        return path, request

    @property
    def cacheprefix_tap(self):
        """None: it is the SDK's own."""
        with suppress(BrokenBarrierError):
            self.together.wait(0.5)


async def test_a_client_that_threads_watch_at_once_is_watched_once():
    """AutoGen's and ag2's agents share a client; each of its requests was begun twice, the second time as laid out."""
    heard = []

    def tap(_, post):
        async def asked(path, **request):
            heard.append(path)
            return await post(path, **request)

        return asked

    sdk = type("Sdk", (), {"post": _Post()})()
    sdk.chat = SimpleNamespace(_client=sdk, _post=sdk.post)
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda _: tapped(sdk, tap), range(2)))
    await sdk.chat._post("/chat/completions")
    await sdk.post("/responses")
    assert heard == ["/chat/completions", "/responses"]


def _noting(client):
    """The client, of a class of the application's that writes into the tools of the first request that it sends."""
    sent = []

    class Noting(type(client)):
        def post(self, path, *, body=None, **options):
            if not sent:
                note(body["tools"])
            sent.append(path)
            return super().post(path, body=body, **options)

    client.__class__ = Noting
    return client


@pytest.mark.parametrize(
    ("writes", "given"), [("client", "with requests"), ("application", "with requests"), ("application", "beforehand")]
)
def test_what_is_written_into_the_tools_of_a_request_is_on_the_wire_of_no_other(
    api, servers, session_for, writes, given
):
    """By the client that sends it, or by the application once it is sent: another role asks, and each for another."""
    mine = tool("look", api)
    own = session_for(api, tools=[mine] if given == "beforehand" else [])
    with make_client(api, servers[api]) as plain:
        create = creator(wrap(_noting(plain) if writes == "client" else plain, own), api)
        for name, whose in (("planner", "Ann"), ("critic", "Ann"), ("critic", "Ben"), ("planner", "Ben")):
            with role(name, conversation=whose):
                create(**body(api, tools=[mine if (name, whose) == ("planner", "Ann") else tool("look", api)]))
            if writes == "application":
                note(mine)
    assert noted(servers[api]) == [writes == "client", False, False, False]
    assert [call.layout for call in own.calls] == ["fork"] * 4
