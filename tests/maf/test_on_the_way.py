"""What the application does on a request's way: asks a guard, copies clients, changes the body, forces a call."""

from __future__ import annotations

import copy
import inspect

import httpx2
import openai
import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    FunctionInvocationLayer,
    MiddlewareBundle,
    agent_middleware,
    chat_middleware,
    function_middleware,
)
from agent_framework.exceptions import ChatClientException, MiddlewareException
from agent_framework.openai import OpenAIChatClient
from maf_driver import RULES, close, make_client
from maf_teams import HANDBOOK, NAMES, TASK, call, look, prompts, role, served, texts

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix_maf import prefix_middleware, wrap

APIS = tuple(RULES)
NOT_KEPT = {"openai-responses": {"store": False}}
"""By API: the options by which the service keeps no history."""


def shared():
    """A session that has the handbook."""
    return Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asks", ["client", "agent"])
@pytest.mark.parametrize("api", APIS)
async def test_a_guard_that_a_middleware_asks_is_shown_nothing_of_the_agent(servers, api, asks, stream):
    """Its request goes out on the same client in the middle of the agent's, and was laid out as that one's."""
    kept, found = NOT_KEPT.get(api, {}), {}
    for wrapped in (False, True):
        session = shared()
        async with served(servers, api) as (client, provider):
            guard = Agent(client, "You are the guard.", name="guard", default_options=kept)

            @chat_middleware
            async def guarded(context, call_next, client=client, guard=guard):
                if asks == "agent":
                    await guard.run("Is this safe?")
                else:
                    await client.get_response(context.messages, options={**kept, "max_tokens": 7})
                await call_next()

            agents = [role(client, name, tools=[look()], default_options=kept) for name in NAMES]
            if wrapped:
                wrap(agents, session, conversation="one")
            for agent in agents:
                agent.middleware = [*(agent.middleware or ()), guarded]
                if stream:
                    async for _ in agent.run(TASK, stream=True):
                        pass
                else:
                    await agent.run(TASK)
            found[wrapped] = [record.body for record in provider.requests]
    assert found[True][::2] == found[False][::2]
    assert [call.layout for call in session.calls] == ["fork"] * 3
    assert session.failures == {}


@pytest.mark.parametrize("api", APIS)
async def test_a_copy_of_a_client_asks_by_itself(servers, api):
    """As with another customer's key: it asked through the client that it was copied from."""
    async with served(servers, api) as (client, provider):
        for agent in wrap([role(client, name, default_options=NOT_KEPT.get(api)) for name in NAMES[:2]], shared()):
            await agent.run(TASK)
        asked = []

        async def hear(request):
            asked.append(request.url.path)

        other = make_client(api, provider, {"request": [hear]})
        name = "anthropic_client" if api == "anthropic" else "client"
        twin = copy.copy(client)
        setattr(twin, name, getattr(other, name))
        await Agent(twin, "You are alone.", name="alone", default_options=NOT_KEPT.get(api)).run(TASK)
        await close(other)
    assert len(asked) == 1
    assert len(provider.requests) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["_prepare_options", "_inner_get_response"])
@pytest.mark.parametrize("when", ["before", "after a request"])
@pytest.mark.parametrize("api", APIS)
async def test_a_method_that_a_client_was_given_is_asked_as_it_was(servers, api, when, name, stream):
    """It stands on that one client, in front of its class's: requests went around us by it, or around it by us."""
    kept, found = NOT_KEPT.get(api, {}), {}
    for wrapped in (False, True):
        session = shared()
        async with served(servers, api) as (client, provider):
            # One that nobody has asked yet.
            client.__class__ = own_class(type(client))
            agents = [role(client, each, tools=[look()], default_options=kept) for each in NAMES]
            if wrapped:
                wrap(agents, session, conversation="one")
            if when == "after a request":
                await agents[0].run(TASK)
            heard, own = [], getattr(client, name)
            setattr(client, name, adding(own, name, heard))
            getattr(client, name).mine = "mine"
            for agent in agents:
                if stream:
                    async for _ in agent.run(TASK, stream=True):
                        pass
                else:
                    await agent.run(TASK)
            found[wrapped] = heard
            assert getattr(client, name).mine == "mine"
            limited = [b'"user":"mine"' in record.body.replace(b" ", b"") for record in provider.requests[-3:]]
            assert limited == [name == "_prepare_options"] * 3
    assert found[True]
    # What a request is made of is read before it is sent, too.
    assert found[True] == found[False] or name == "_prepare_options"
    assert [call.layout for call in session.calls] == ["fork"] * (3 if when == "before" else 4)
    assert not session.report().notes
    assert session.failures == {}


def own_class(base):
    """A class of the application's, which hands over what it is given in lists of its own."""

    class Mine(base):
        def _inner_get_response(self, *, messages, **rest):
            return super()._inner_get_response(messages=list(messages), **rest)

        if inspect.iscoroutinefunction(base._prepare_options):

            async def _prepare_options(self, *given, **named):
                return {**await super()._prepare_options(*given, **named)}

        else:

            def _prepare_options(self, *given, **named):
                return {**super()._prepare_options(*given, **named)}

    return Mine


def adding(own, name, heard):
    """A method of a client's that hears of each call, and adds a field to what a request is made of."""

    def mine(*given, **named):
        heard.append("asked")
        made = own(*given, **named)
        return made if name == "_inner_get_response" else {**made, "extra_body": {"user": "mine"}}

    async def amine(*given, **named):
        heard.append("asked")
        return {**await own(*given, **named), "extra_body": {"user": "mine"}}

    return amine if inspect.iscoroutinefunction(own) else mine


@pytest.mark.parametrize("mode", ["fork", "observe"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_class_of_the_applications_and_its_base_are_watched_once_each(servers, api, stream, mode):
    """A request of the one that asks the other would be two, where clients of both are in use."""
    kept, session = NOT_KEPT.get(api, {}), Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0), mode=mode)
    async with served(servers, api) as (client, provider):
        base, mine = type(client), copy.copy(client)
        mine.__class__ = own_class(base)
        agents = [role(one, each, default_options=kept) for each, one in zip(NAMES, (client, mine, mine), strict=True)]
        for agent in wrap(agents, session, conversation="one"):
            if stream:
                async for _ in agent.run(TASK, stream=True):
                    pass
            else:
                await agent.run(TASK)
        assert (type(client), type(mine).__base__) == (base, base)
        assert len(provider.requests) == len(session.calls) == 3
    assert all((call.layout == "fork") == (mode == "fork") for call in session.calls)
    assert not [said for said in session.report().notes if "lint" not in said]
    assert session.failures == {}


class Delegating(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A client of the application's that has another one ask."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__()

    def _inner_get_response(self, **request):
        return self.inner._inner_get_response(**request)


@pytest.mark.parametrize("mode", ["fork", "observe"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.filterwarnings("error::cacheprefix.CacheprefixWarning")
async def test_a_client_that_has_another_one_ask_goes_on_as_it_was(servers, api, stream, mode):
    """Each of its requests was counted and told as a failure of ours; the report says that they are not seen."""
    kept, found, session = NOT_KEPT.get(api, {}), {}, Session(SharedPrefix(system=HANDBOOK), mode=mode)
    for wrapped in (False, True):
        async with served(servers, api) as (client, provider):
            agents = [
                role(client, "planner", default_options=kept),
                role(Delegating(client), "critic", default_options=kept),
            ]
            if wrapped:
                wrap(agents, session, conversation="one")
            for agent in agents:
                given = agent.run(TASK, stream=stream, options={"model": client.model})
                assert (await (given.get_final_response() if stream else given)).text
            found[wrapped] = provider.requests[-1].body
    assert found[True] == found[False]
    assert [call.agent for call in session.calls] == ["planner"]
    assert any("requests of Delegating are neither measured nor changed" in note for note in session.report().notes)
    assert session.failures == {}


OVER = {
    "openai-chat": {"messages": [{"role": "user", "content": "What?"}], "tool_choice": "none"},
    "openai-responses": {"input": "What?", "instructions": "Be brief.", "tool_choice": "none"},
    "anthropic": {
        "messages": [{"role": "user", "content": "What?"}],
        "system": "Be brief.",
        "tools": [{"name": "other", "input_schema": {"type": "object"}}],
    },
}
CASES = [(api, name) for api, fields in OVER.items() for name in fields]


@pytest.mark.parametrize(("api", "name"), CASES)
async def test_what_the_application_puts_over_a_body_takes_no_part_of_a_fork_away(servers, api, name):
    """``extra_body`` took the role's text, or the shared one, or the tools that the fork's choice named."""
    options, found = {**NOT_KEPT.get(api, {}), "extra_body": {name: OVER[api][name]}}, {}
    for wrapped in (False, True):
        session = shared()
        async with served(servers, api) as (client, provider):
            agents = [role(client, each, tools=[look()], default_options=options) for each in NAMES]
            if wrapped:
                wrap(agents, session, conversation="one")
            for agent in agents:
                await agent.run(TASK)
            found[wrapped] = [texts(prompt) for prompt in prompts(provider)]
    assert found[True] == found[False]
    assert {tuple(one.why for one in call.reasons) for call in session.calls} == {("own_prompt",)}


async def test_an_answer_that_is_named_over_a_body_is_kept_by_the_service(servers):
    """Its history stands there, so that a fork would say the shared text and the role's in it once more."""
    async with served(servers, "openai-responses") as (client, provider):
        first = await role(client, "planner", default_options={"store": True}).run(TASK)
        options = {"store": False, "extra_body": {"previous_response_id": first.response_id}}
        for agent in wrap(
            [role(client, name, default_options=options) for name in NAMES], shared(), conversation="one"
        ):
            await agent.run("Go on.")
        bodies = [record.json for record in provider.requests[1:]]
    assert [len(body["input"]) for body in bodies] == [1, 1, 1]
    assert all("planner" in body["instructions"] or HANDBOOK in body["instructions"] for body in bodies)


@pytest.mark.parametrize("choice", ["required", {"mode": "required"}])
@pytest.mark.parametrize("api", APIS)
async def test_a_forced_call_can_only_be_one_of_the_roles_own(servers, api, choice):
    """Of the union the model may call another role's tool, which is refused, and the framework forces none again."""
    async with served(servers, api) as (client, provider):
        session = shared()
        for name in NAMES:
            options = {**NOT_KEPT.get(api, {}), **({"tool_choice": choice} if name == "writer" else {})}
            agent = role(client, name, tools=[look(f"look_{name}")], default_options=options)
            await wrap(agent, session, conversation="one").run(TASK)
        forced = provider.requests[2].json
    assert [(tool.get("function") or tool)["name"] for tool in forced["tools"]] == ["look_writer"]
    assert "forced_tool" in [one.why for one in session.calls[2].reasons]


_FOREIGN = {"mode": "required", "required_function_name": "look_planner"}


@pytest.mark.invalid_requests
@pytest.mark.parametrize("own", [True, False], ids=["own tools", "no tools"])
@pytest.mark.parametrize("choice", [_FOREIGN, {"mode": "auto", "allowed_tools": ["look_planner"]}], ids=str)
@pytest.mark.parametrize("api", APIS)
async def test_a_choice_of_another_agents_tool_is_what_it_is_without_us(servers, api, choice, own):
    """The provider refuses it, or the client leaves it out: of the union the model called that tool."""
    found = {}
    for wrapped in (False, True):
        async with served(servers, api) as (client, provider):
            session = shared()
            for name in NAMES:
                options = {**NOT_KEPT.get(api, {}), **({"tool_choice": choice} if name == "writer" else {})}
                tools = [look(f"look_{name}")] if own or name != "writer" else None
                agent = role(client, name, tools=tools, default_options=options)
                try:
                    await (wrap(agent, session, conversation="one") if wrapped else agent).run(TASK)
                except ChatClientException as error:
                    assert name == "writer"
                    found[wrapped] = str(error)
            last = provider.requests[-1].json
            listed = [(tool.get("function") or tool)["name"] for tool in last.get("tools") or ()]
            found[wrapped] = (found.get(wrapped), listed, last.get("tool_choice"))
            assert session.failures == {}
    assert found[True] == found[False]


class Background(httpx2.AsyncBaseTransport):
    """A service whose answer is asked for until it is there."""

    def __init__(self, polls):
        self.polls, self.asked = polls, []

    async def handle_async_request(self, request):
        self.asked.append(request.method)
        done = len(self.asked) > self.polls
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
        said = [{**message, "content": [{"type": "output_text", "text": "Done.", "annotations": []}]}]
        counts = {"input_tokens": 1_400, "output_tokens": 3, "total_tokens": 1_403}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {**counts, **details} if done else None
        told = {"status": "completed" if done else "in_progress", "output": said if done else [], "usage": usage}
        fixed = {"id": "r", "object": "response", "created_at": 0, "model": "gpt-5.6", "tools": []}
        return httpx2.Response(200, json={**fixed, "parallel_tool_calls": True, "tool_choice": "auto", **told})


@pytest.mark.parametrize("mode", ["fork", "observe"])
async def test_asking_for_a_background_answer_is_no_request(mode):
    """Each time counted as one of the same prompt; what it cost came with the last one."""
    told, session = {}, Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0), mode=mode)
    for wrapped in (False, True):
        service = Background(2)
        sdk = openai.AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=service))
        agent = role(OpenAIChatClient(model="gpt-5.6", async_client=sdk), "planner")
        if wrapped:
            wrap(agent, session)
        held = agent.create_session()
        answer = await agent.run(TASK, session=held, options={"background": True})
        while answer.continuation_token is not None:
            token = answer.continuation_token
            answer = await agent.run(session=held, options={"background": True, "continuation_token": token})
        told[wrapped] = answer.text, service.asked
        await sdk.close()
    assert told[True] == told[False] == ("Done.", ["POST", "GET", "GET"])
    assert [call.usage and call.usage.input_tokens for call in session.calls] == [1_400]
    assert session.failures == {}


UNSENT = {"openai-responses": "Messages are required", "anthropic": "messages: expected a list"}
"""What an application is told that asks without any message: by the framework's client, and by the provider."""


@pytest.mark.parametrize("mode", ["fork", "observe"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", UNSENT)
@pytest.mark.invalid_requests
@pytest.mark.filterwarnings("error")
async def test_a_request_without_messages_is_refused_as_it_was(servers, api, stream, mode):
    """It is no failure of ours; and no role's text makes a request of it, whose answer nobody asked for."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0), mode=mode)
    async with served(servers, api) as (client, provider):
        agents = [role(client, name, default_options=NOT_KEPT.get(api)) for name in NAMES[:2]]
        for wrapped in (False, True):
            if wrapped:
                wrap(agents, session, conversation="one")
            given = agents[0].run([], stream=stream)
            with pytest.raises(ChatClientException, match=UNSENT[api]):
                await (given.get_final_response() if stream else given)
        assert len(provider.requests) == (2 if api == "anthropic" else 0)
        answer = await agents[1].run(TASK)
    assert answer.text
    assert len(session.calls) == 1
    assert session.failures == {}


class Heard:
    """Middlewares of a run that note what passes them, and one that stops a tool."""

    def __init__(self):
        self.heard = []

    @property
    def each(self):
        """A guard of requests, and one of tool calls."""

        @chat_middleware
        async def asked(context, call_next):
            self.heard.append(("asked", [message.text for message in context.messages]))
            await call_next()

        @function_middleware
        async def ran(context, call_next):
            self.heard.append(("ran", context.function.name))
            if context.arguments["query"] == "secret":
                context.result = "Not for you."
            else:
                await call_next()

        return [asked, ran]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("own", ["none", "tool's", "run's", "an agent's"])
@pytest.mark.parametrize("mode", ["fork", "observe"])
async def test_guards_among_a_run_s_client_arguments_are_asked_as_without_us(servers, mode, own, stream):
    """The framework drops them for an agent that has a middleware of its own, which ours are not."""
    found = {}
    for door in ("unwrapped", "wrap", "prefix_middleware"):
        steps = {"planner": [call("look", query="secret"), "Done."]}
        session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0), mode=mode)
        async with served(servers, "openai-chat", **steps) as (client, provider):
            ran, of_run, mine = [], Heard(), Heard()
            made = {"tool's": mine.each[1:], "an agent's": [passing]}.get(own, [])
            ours = prefix_middleware(session, role="planner") if door == "prefix_middleware" else []
            planner = role(client, "planner", tools=[look(ran=ran)], middleware=[*made, *ours])
            if door == "wrap":
                wrap([planner, role(client, "critic")], session, conversation="one")
            given = {"client_kwargs": {"middleware": of_run.each}, "middleware": mine.each if own == "run's" else None}
            if stream:
                answer = await planner.run(TASK, stream=True, **given).get_final_response()
            else:
                answer = await planner.run(TASK, **given)
            found[door] = [answer.text, ran, of_run.heard, mine.heard]
            assert len(provider.requests) == 2
            assert session.failures == {}
        assert bool(of_run.heard) is (own in ("none", "an agent's"))
    assert found["wrap"] == found["prefix_middleware"] == found["unwrapped"]


@pytest.mark.filterwarnings("ignore:.*MiddlewareBundle is experimental")
async def test_a_run_s_guard_may_stand_bare_and_one_that_cannot_be_asked_is_refused(servers):
    """As without us: a bundle with a part that no client takes."""
    for wrapped in (False, True):
        async with served(servers, "openai-chat") as (client, _):
            planner, heard = role(client, "planner"), Heard()
            if wrapped:
                wrap(planner, shared())
            await planner.run(TASK, client_kwargs={"middleware": heard.each[0]})
            assert len(heard.heard) == 1
            bundle = MiddlewareBundle([passing])
            with pytest.raises(MiddlewareException, match="only chat, function"):
                await planner.run(TASK, client_kwargs={"middleware": [bundle]})


@agent_middleware
async def passing(context, call_next):
    """Let a run pass."""
    await call_next()
