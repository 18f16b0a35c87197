"""Single agents, wrapped or given the middlewares: what is sent, measured, refused, kept and left alone."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from agent_framework import (
    Agent,
    AgentContext,
    AgentSession,
    Content,
    FunctionTool,
    Message,
    TruncationStrategy,
    function_middleware,
    tool,
)
from agent_framework.exceptions import ChatClientException
from agent_framework.orchestrations import SequentialBuilder
from maf_driver import KINDS, RULES
from maf_teams import HANDBOOK, LONG, NAMES, TASK, call, look, prompts, role, served, tail_at, texts
from pydantic import BaseModel

import cacheprefix
from cacheprefix import Caching, Compaction, Gate, History, RequestBudget, Session, SharedPrefix, ToolResultBudget
from cacheprefix.errors import BudgetError, SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix.stores import MemoryStore
from cacheprefix.toolcache import DEFAULT_ALLOW, ToolSpec
from cacheprefix_maf import PrefixChatMiddleware, PrefixFunctionMiddleware, prefix_middleware, session_of, unwrap, wrap

APIS = tuple(RULES)


def session_for(api, **options):
    """A session that has the handbook and counts as the provider does."""
    options = {"gate": Gate(price=0.0), **options}  # waits however slow this machine is
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api], counter=ESTIMATE), **options)


def team(client, session, api="openai-chat", **options):
    """Three wrapped roles on one client."""
    if api == "openai-responses":
        options["default_options"] = {"store": False}
    return [wrap(role(client, name, **options), session) for name in NAMES]


async def said(agent, *, stream):
    """One answer, streamed or not."""
    if not stream:
        return await agent.run(TASK)
    pieces = agent.run(TASK, stream=True)
    async for _ in pieces:
        pass
    return await pieces.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_agents_that_are_asked_different_things_read_the_shared_text(servers, api, stream):
    """In the instructions of the Responses API it could carry no mark, and none of them read it."""
    session = session_for(api)
    async with served(servers, api) as (client, provider):
        for agent in team(client, session, api):
            asked = f"What does the {agent.name} say?"
            if stream:
                async for _ in agent.run(asked, stream=True):
                    pass
            else:
                await agent.run(asked)
        reads = [record.outcome.read_tokens for record in provider.requests]
        said = [str(record.json).count(HANDBOOK.strip()) for record in provider.requests]
    assert min(reads[1:]) > 1_000
    assert set(said) == {1}
    assert not session.failures


@pytest.mark.parametrize("api", APIS)
async def test_an_agent_in_its_own_layout_is_told_the_shared_text(servers, api):
    """Where requests are too short to share too; one that says it itself is told nothing twice."""
    texts = {"planner": "You plan.", "critic": "You object.", "writer": "Be brief.\n\nYou write."}
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    session = Session(SharedPrefix(system="Be brief."))
    async with served(servers, api) as (client, provider):
        for name, text in texts.items():
            await wrap(Agent(client, text, name=name, **options), session).run("What now?")
    systems = ["\n".join(one.text for one in record.prompt.tier("system")) for record in provider.requests]
    assert [text.count("Be brief.") for text in systems] == [1, 1, 1]
    assert all(one in text for one, text in zip(texts.values(), systems, strict=True))


@pytest.mark.parametrize("other", ["session", "scope", "no scope", "volatile"])
async def test_an_agent_that_is_made_once_for_all_is_wrapped_for_one(servers, other):
    """Wrapped for a second user it would go on under the first scope, and be told what only the first is to know."""
    first, again = Session(), {"scope": "alice", "volatile": lambda: {"me": "I am alice."}}
    async with served(servers, "openai-chat") as (client, _):
        agent = wrap(role(client, "planner"), first, **again)
        assert wrap(agent, first, **again) is wrap(agent) is agent
        changed = {"session": Session(), "scope": "bob", "volatile": lambda: {"me": "I am bob."}}.get(other)
        other = other.removeprefix("no ")
        options = {"session": first, **again, other: changed}
        with pytest.raises(SetupError, match=f"wrapped already with another {other}; unwrap it first"):
            wrap(agent, **options)
        assert wrap(unwrap(agent), **options) is agent
        assert session_of(agent) is options["session"]


async def test_what_was_said_to_one_conversation_is_told_in_no_other(servers):
    """Agents made once for all go on in the conversation that they were wrapped with: another one is refused."""
    session, users = Session(), ("alice", "bob")
    for user in users:
        session.conversation(user).set_zone("me", f"I am {user}-secret.")
    async with served(servers, "openai-chat") as (client, provider):
        agents = [role(client, name) for name in NAMES]
        for user in users:
            workflow = SequentialBuilder(participants=agents).build()
            if user == "bob":
                with pytest.raises(SetupError, match="wrapped already with another conversation; unwrap it first"):
                    wrap(workflow, session, conversation=user)
                unwrap(workflow)
            await wrap(workflow, session, conversation=user).run(TASK)
    said = [[user for user in users if f"{user}-secret".encode() in one.body] for one in provider.requests]
    assert said == [["alice"]] * 3 + [["bob"]] * 3


@pytest.mark.parametrize("layout", ["fork", "own"])
async def test_durable_context_and_zones_are_said_once(servers, layout):
    """In a fork and in an agent's own layout; text that cannot be said behind the history is named."""
    fact, zone = "It is raining in Bern.", "The customer prefers trains."
    session = Session(SharedPrefix(system=HANDBOOK if layout == "fork" else "", context={"weather": fact}))
    session.conversation("one").set_zone("memories", zone)
    async with served(servers, "openai-chat") as (client, provider):
        for name in NAMES:
            agent = role(client, name) if layout == "fork" else Agent(client, "Be brief.", name=name)
            await wrap(agent, session, conversation="one").run("What now?")
            session.conversation("one").append_context("The line is closed.", key="news")
    assert {call.layout for call in session.calls[1:]} == {layout}
    said = [record.body.decode() for record in provider.requests]
    assert [(one.count(fact), one.count(zone)) for one in said] == [(1, 1)] * 3
    assert session.failures == {}
    assert any("append_context" in note for note in session.report().notes)


async def test_what_agents_have_in_common_is_found_beside_given_context(servers):
    """Both are shared, and an agent without the text that was found is told the context alone."""
    fact = "It is raining in Bern."
    session = Session(SharedPrefix(context={"weather": fact}))
    async with served(servers, "openai-chat") as (client, provider):
        agents = [role(client, name) for name in NAMES] + [Agent(client, "You are the guest.", name="guest")]
        for agent in wrap(agents, session, conversation="one"):
            await agent.run(TASK)
    said = [record.body.decode() for record in provider.requests]
    assert [(one.count("The handbook. "), one.count(fact)) for one in said] == [(1, 1)] * 3 + [(0, 1)]
    assert [call.layout for call in session.calls] == ["fork"] * 3 + ["own"]
    assert all(record.outcome.read_tokens > 1_000 for record in provider.requests[1:3])


@pytest.mark.parametrize("api", APIS)
async def test_a_conversations_first_request_is_compacted_with_the_tools_that_it_has(servers, api):
    """Nobody has had them there before; without so large a tool the same history is sent whole."""
    compaction = Compaction(trigger=9_500, target=7_500, keep_turns=1, keep_users=False, horizon=10_000)
    said = [Message(role, [f"{role} says {at}. " * 100]) for at in range(8) for role in ("user", "assistant")]
    counts = []
    for more in ("", " It has many rooms." * 700):
        house = FunctionTool(name="house", description=f"Asks the house.{more}", func=lambda: "noted", input_model={})
        session = session_for(api, compaction=compaction)
        options = {"default_options": {"store": False}} if api == "openai-responses" else {}
        async with served(servers, api) as (client, provider):
            for user in ("alice", "bob"):
                text = f"You help {user}.\n\n{HANDBOOK}"
                made = role(client, "planner", instructions=text, tools=[house], **options)
                planner = wrap(made, session, conversation=user)
            await planner.run([*said, Message("user", [TASK])])
        counts.append(sum("says" in section.text for section in provider.requests[0].prompt.tier("messages")))
        assert session.failures == {}
    assert counts[0] == len(said) > counts[1] > 0


@pytest.mark.parametrize("api", APIS)
async def test_a_request_fits_the_window_with_tools_that_came_with_it(servers, api):
    """Nobody shares them, and the model reads them all the same."""
    house = FunctionTool(
        name="house", description="Asks the house." + " It has many rooms." * 700, func=lambda: "noted", input_model={}
    )
    said = [Message(role, [f"{role} says {at}. " * 100]) for at in range(8) for role in ("user", "assistant")]
    session = session_for(api, history=History(request_budget=RequestBudget(9_000)))
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    async with served(servers, api) as (client, provider):
        planner, _ = (wrap(role(client, name, **options), session) for name in ("planner", "critic"))
        await planner.run([*said, Message("user", [TASK])], tools=[house])
    assert 4_000 < provider.requests[0].prompt.tokens <= 9_000
    assert session.failures == {}


@pytest.mark.parametrize("wrapped", [False, True])
async def test_an_agent_that_works_as_a_tool_is_in_the_report_or_named(servers, wrapped):
    """Its requests are seen where it is wrapped by itself."""
    session = Session()
    async with served(servers, "openai-chat", planner=[call("critic", task="Object."), "Done."]) as (client, provider):
        critic = role(client, "critic")
        planner = role(client, "planner", tools=[critic.as_tool()])
        for agent in (planner, critic) if wrapped else (planner,):
            wrap(agent, session)
        await planner.run(TASK)
    assert len(provider.requests) == 3
    assert [call.agent for call in session.calls] == ["planner", *(["critic"] if wrapped else []), "planner"]
    assert any("'critic' works as a tool of 'planner'" in note for note in session.report().notes) is not wrapped
    assert session.failures == {}


def test_wrapping_is_taken_back(servers):
    """Twice is once, other middleware stays, and what cannot be wrapped is named."""

    async def other(context: AgentContext, call_next):
        await call_next()

    agent = role(KINDS["openai-chat"](model="m", api_key="k"), "planner", middleware=[other])
    session = Session("x")
    assert cacheprefix.wrap(agent, session) is agent
    assert wrap(agent, session) is agent
    assert [type(one) for one in agent.middleware[1:]] == [PrefixChatMiddleware, PrefixFunctionMiddleware]
    assert session_of(agent) is session
    assert unwrap(agent).middleware == [other]
    assert session_of(agent) is None
    with pytest.raises(SetupError, match="wrap takes an agent, a list of them, or a workflow of agent_framework"):
        wrap({}, session)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_usage_is_the_server_s(servers, api, stream):
    """Read and written tokens of every call, streamed or not."""
    session = session_for(api)
    async with served(servers, api) as (client, provider):
        for agent in team(client, session, api):
            await said(agent, stream=stream)
    sent = [record.outcome for record in provider.requests]
    assert [call.usage.input_tokens for call in session.calls] == [one.input_tokens for one in sent]
    assert [call.usage.cache_read_tokens for call in session.calls] == [one.read_tokens for one in sent]
    assert sent[2].read_tokens > 1_000
    assert [call.first_token_at is not None for call in session.calls] == [stream] * 3
    assert session.failures == {}


async def test_the_two_middlewares_need_no_wrap(servers):
    """Given to an agent where it is made, or each by itself."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        own = [PrefixChatMiddleware(session, role="critic"), PrefixFunctionMiddleware(session, role="critic")]
        planner = role(client, "planner", middleware=prefix_middleware(session, role="planner"))
        for agent in (planner, role(client, "critic", middleware=own)):
            await agent.run(TASK)
    assert [texts(prompt)[-1].splitlines()[0] for prompt in prompts(provider)] == [
        '<role name="planner">', '<role name="critic">'
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["", "stream"])
async def test_another_role_s_tool_is_declared_and_refused(servers, stream):
    """The array is the same for all; a foreign call is answered with what the role may use, and not run."""
    ran = []
    session = session_for("anthropic")
    steps = {"planner": [call("write", query="x"), "Then not."]}
    async with served(servers, "anthropic", **steps) as (client, provider):
        planner = wrap(role(client, "planner", tools=[look(ran=ran)]), session)
        critic = wrap(role(client, "critic", tools=[look("write", ran=ran)]), session)
        answer = await (planner.run(TASK, stream=True).get_final_response() if stream else planner.run(TASK))
        await critic.run(TASK)
    found = prompts(provider)
    assert [[one.data for one in prompt.tier("tools")] for prompt in found][1:] == [
        [one.data for one in found[0].tier("tools")]
    ] * 2
    assert "Tools you may use in this role: look." in texts(found[0])[-1]
    assert "'write' was not run: tools available to the role 'planner' are: look." in texts(found[1])[-1]
    assert (answer.text, ran) == ("Then not.", [])
    assert session.failures == {}


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
async def test_where_it_costs_nothing_tool_choice_keeps_a_role_to_its_tools(servers, api):
    """OpenAI's ``allowed_tools`` is no part of the cached prompt."""
    session = session_for(api)
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    async with served(servers, api) as (client, provider):
        planner = wrap(role(client, "planner", tools=[look()], **options), session)
        wrap(role(client, "critic", tools=[look("write")], **options), session)
        await planner.run(TASK)
    choice = provider.requests[0].json["tool_choice"]
    assert choice["type"] == "allowed_tools"
    assert json.dumps(choice).count('"name": "look"') == 1
    assert '"write"' not in json.dumps(choice)
    assert len(provider.requests[0].json["tools"]) == 2


@pytest.mark.filterwarnings("ignore:the endpoint of")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
async def test_a_gateway_that_takes_no_list_of_tools_gets_the_applications_own_request_and_no_list_again(
    servers, api, stream
):
    """It serves a model by OpenAI's name: its answer alone tells, and the application is not shown that error."""

    def gateway(request):
        refused = isinstance(request.body.get("tool_choice"), dict)
        return Reply(fault=Fault(status=400, message="tool_choice: unknown")) if refused else Reply("So be it.")

    async def ask(agent):
        answer = await (agent.run(TASK, stream=True).get_final_response() if stream else agent.run(TASK))
        return answer.text

    session = Session(SharedPrefix(system=HANDBOOK, roles={"planner": "Plan for a week."}), gate=Gate(price=0.0))
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    async with served(servers, api) as (client, provider):
        provider.simulator.script = gateway

        def made(name):
            return role(client, name, tools=[look(f"z_{name}")], **options)

        assert await ask(made("planner")) == "So be it."
        own = provider.requests[0].json
        provider.reset()
        volatile = {"volatile": lambda: {"now": "It is noon."}}
        team = [wrap(made(name), session, **volatile) for name in ("planner", "critic")]
        assert [await ask(each) for each in team] == ["So be it."] * 2
        assert [record.status for record in provider.requests] == [400, 200, 200]
        refused, anew, _ = (record.json for record in provider.requests)
    assert refused["tool_choice"]["type"] == "allowed_tools"
    field = "messages" if api == "openai-chat" else "input"
    assert "It is noon." in str(anew[field].pop())
    # The role's text, which the session alone knows, stands in front of the agent's own.
    said = json.dumps(anew).replace("Plan for a week.\\n\\n", "", 1)
    assert len(said) < len(json.dumps(anew))
    assert {name: value for name, value in json.loads(said).items() if name != "prompt_cache_key"} == own
    assert [call.layout for call in session.calls] == ["own", "fork"]
    assert session.calls[0].reasons[-1].why == "list_refused"
    assert session.report().unanswered == 1
    assert session.failures == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_about_something_else_is_the_applications_and_lists_go_on(servers, stream):
    """A history that is too long says nothing of them."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        provider.simulator.script = lambda _: Reply(fault=Fault(status=400, message="context_length_exceeded"))
        planner, _ = (wrap(role(client, name, tools=[look(f"z_{name}")]), session) for name in ("planner", "critic"))
        for _ in range(2):
            with pytest.raises(ChatClientException, match="context_length_exceeded"):
                await (planner.run(TASK, stream=True).get_final_response() if stream else planner.run(TASK))
        assert [record.json["tool_choice"]["type"] for record in provider.requests] == ["allowed_tools"] * 2


@pytest.mark.parametrize(("api", "choice"), [("openai-chat", "none"), ("anthropic", {"type": "auto"})])
async def test_a_role_without_tools_carries_the_union(servers, api, choice):
    """Where tool_choice costs nothing it forbids them; where it invalidates messages the tail does, and the loop."""
    session = session_for(api)
    steps = {"writer": [call("look"), "Written."]} if api == "anthropic" else {}
    async with served(servers, api, **steps) as (client, provider):
        planner, writer = role(client, "planner", tools=[look()]), role(client, "writer")
        wrap(planner, session)
        wrap(writer, session)
        await planner.run(TASK)
        answer = await writer.run(TASK)
    bodies = [record.json for record in provider.requests]
    names = [[tool.get("name") or tool["function"]["name"] for tool in body["tools"]] for body in bodies]
    assert names == [["look"]] * len(bodies)
    assert bodies[1]["tool_choice"] == choice
    assert answer.text
    if api == "anthropic":
        assert answer.text == "Written."
        assert "tools available to the role 'writer' are: none" in json.dumps(bodies[2])


async def test_a_tool_of_the_same_name_and_another_schema_keeps_its_role_apart(servers):
    """It is noted; nobody's tools are mixed up."""
    session = session_for("openai-chat")
    other = look()
    other.description = "Something else."
    async with served(servers, "openai-chat") as (client, provider):
        wrap(role(client, "planner", tools=[look()]), session)
        agent = wrap(role(client, "critic", tools=[other]), session)
        await agent.run(TASK)
    assert provider.requests[0].json["tools"][0]["function"]["description"] == "Something else."
    assert any("keeps its own tools" in note for note in session.report().notes)


class Verdict(BaseModel):
    """What a schema asks for."""

    good: bool


@pytest.mark.parametrize("api", APIS)
async def test_a_response_schema_keeps_the_layout(servers, api):
    """It is a lane of its own, measured and parsed as before."""
    session = session_for(api)
    async with served(servers, api, planner=['{"good": true}']) as (client, provider):
        planner = team(client, session, api)[0]
        more = {"store": False} if api == "openai-responses" else {}
        answer = await planner.run(TASK, options={"response_format": Verdict, **more})
    assert answer.value == Verdict(good=True)
    assert prompts(provider)[0].sections[0].text.startswith("You are the planner.")
    assert session.calls[0].usage.reported
    assert session.failures == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_observing_a_response_schema_changes_no_byte(servers, api, stream):
    """Whoever renders the schema, the framework or its SDK."""
    more = {"store": False} if api == "openai-responses" else {}
    async with served(servers, api, planner=['{"good": true}']) as (client, provider):
        planner = role(client, "planner", default_options={"response_format": Verdict, **more})
        await said(planner, stream=stream)
        await said(wrap(planner, session_for(api, mode="observe")), stream=stream)
    plain, observed = (record.body for record in provider.requests)
    assert plain == observed


async def test_a_service_that_keeps_the_history_is_only_measured(servers):
    """OpenAI's responses are stored unless the application says otherwise; then a fork would be stored too."""
    session = session_for("openai-responses")
    plain = None
    async with served(servers, "openai-responses") as (client, provider):
        await role(client, "planner").run(TASK)
        plain = provider.requests[0].body
        for name in NAMES[:2]:
            await wrap(role(client, name), session).run(TASK)
    assert provider.requests[1].body == plain
    assert len(session.calls) == 2
    assert any("store" in note for note in session.report().notes)


async def test_an_application_s_own_compaction_is_left_alone(servers):
    """The whole transcript would undo what it saves."""
    session = session_for("openai-chat")
    cut = TruncationStrategy(max_n=2_000, compact_to=1_000)
    async with served(servers, "openai-chat") as (client, provider):
        agents = [wrap(role(client, name, compaction_strategy=cut), session) for name in NAMES]
        await agents[0].run(TASK)
    assert prompts(provider)[0].sections[0].text.startswith("You are the planner.")
    assert len(session.calls) == 1


@pytest.mark.parametrize("api", APIS)
async def test_volatile_text_stands_behind_the_tool_loop(servers, api):
    """Each request has its own, and what stands before it is what it was."""
    clock = iter(range(10))
    session = session_for(api)
    async with served(servers, api, planner=[call("look"), "Done."]) as (client, provider):
        options = {"default_options": {"store": False}} if api == "openai-responses" else {}
        agents = [role(client, n, tools=[look()], **options) for n in NAMES]
        for agent in agents:
            wrap(agent, session, volatile=lambda: {"time": f"12:0{next(clock)}"})
        await agents[0].run(TASK)
    first, second = prompts(provider)
    assert first.sections[-1].text == "<time>\n12:00\n</time>"
    assert second.sections[-1].text == "<time>\n12:01\n</time>"
    assert [one.data for one in second.sections[: len(first.sections) - 1]] == [one.data for one in first.sections[:-1]]


async def test_volatile_may_say_nothing(servers):
    """A function that gives None for a call has nothing to say with it."""
    said = {"planner": None}
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        agents = [
            wrap(role(client, n), session, volatile=lambda n=n: said.get(n, {"time": "12:01"})) for n in NAMES[:2]
        ]
        for agent in agents:
            await agent.run(TASK)
    assert ["12:01" in prompt.sections[-1].text for prompt in prompts(provider)] == [False, True]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("volatile", "error"), [(lambda: 1 // 0, ZeroDivisionError), (lambda: "12:01", SetupError)], ids=["raises", "text"]
)
async def test_an_error_in_giving_volatile_text_is_the_applications(servers, stream, volatile, error):
    """Nothing is sent, and nothing of ours failed."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        agents = [wrap(role(client, n), session, volatile=volatile) for n in NAMES]

        async def run():
            if not stream:
                return await agents[0].run(TASK)
            return [update async for update in agents[0].run(TASK, stream=True)]

        with pytest.raises(error):
            await run()
    assert not provider.requests
    assert session.failures == {}


async def test_a_failed_layout_keeps_the_volatile_text(servers, monkeypatch):
    """The layout is the application's; what it wants said with this call stands at the end."""
    session = session_for("openai-chat")

    def broken(*_, **__):
        raise RuntimeError("on purpose")

    async with served(servers, "openai-chat") as (client, provider):
        agents = [wrap(role(client, n), session, volatile=lambda: {"time": "12:01"}) for n in NAMES]
        monkeypatch.setattr("cacheprefix_maf.model_call.laid_out", broken)
        with pytest.warns(UserWarning, match="layout"):
            await agents[0].run(TASK)
    assert prompts(provider)[0].sections[-1].text == "<time>\n12:01\n</time>"


async def test_a_repeated_tool_call_is_answered_from_the_cache(servers):
    """Whoever asks again."""
    ran = []
    session = session_for("openai-chat", tool_cache=DEFAULT_ALLOW)
    steps = {name: [call("read", query="q"), "Done."] for name in NAMES}
    async with served(servers, "openai-chat", **steps) as (client, provider):
        for agent in team(client, session, tools=[look("read", ran=ran)]):
            await agent.run(TASK)
    assert ran == ["q"]
    assert sum(texts(prompt)[-1] == f"read for q: {LONG}" for prompt in prompts(provider)) == 3


@pytest.mark.parametrize("way", ["middleware", "client_kwargs", "behind ours"])
@pytest.mark.parametrize("declared", [False, True])
async def test_a_guard_behind_the_tool_cache_is_asked_each_time(servers, way, declared):
    """A run's own, which was not asked about what another one had let pass: who may not read the inbox was given it."""
    ran, asked, told = [], [], []
    kept = [ToolSpec("read", cacheable=True)] if declared else DEFAULT_ALLOW
    session = session_for("openai-chat", tool_cache=kept)

    def guard(user):
        @function_middleware
        async def guarded(context, call_next):
            asked.append(user)
            if user == "bob":
                context.result = "Not for you."
            else:
                await call_next()

        return guarded

    async with served(servers, "openai-chat", planner=[call("read", query="q"), "Done."] * 3) as (client, _):
        planner = wrap(role(client, "planner", tools=[look("read", "Her mail.", ran)]), session, conversation="one")
        ours = planner.middleware
        for user in ("alice", "bob", "alice"):
            given = {"middleware": [guard(user)]}
            if way == "behind ours":
                planner.middleware, given = [*ours, guard(user)], {}
            answer = await planner.run(TASK, **({"client_kwargs": given} if way == "client_kwargs" else given))
            told += [one.result for said in answer.messages for one in said.contents if one.type == "function_result"]
    assert (asked, told[1]) == (["alice", "bob", "alice"], "Not for you.")
    assert told[0] == told[2] == "read for q: Her mail."
    assert ran == ["q", "q"]
    assert session.failures == {}


async def test_a_framework_that_does_not_tell_what_stands_behind_the_tool_cache_has_nothing_kept(servers):
    """What stands there may be a guard: it is asked about each call, and the report says once why nothing is kept."""
    ran, session = [], session_for("openai-chat", tool_cache=DEFAULT_ALLOW)

    @function_middleware
    async def renamed(context, call_next):
        async def some_other_name():
            await call_next()

        await ours(context, some_other_name)

    async with served(servers, "openai-chat", planner=[call("read", query="q"), "Done."] * 3) as (client, _):
        planner = wrap(role(client, "planner", tools=[look("read", ran=ran)]), session, conversation="one")
        at = next(at for at, one in enumerate(planner.middleware) if isinstance(one, PrefixFunctionMiddleware))
        ours = planner.middleware[at].process
        planner.middleware[at] = renamed
        for _ in range(3):
            await planner.run(TASK)
    assert ran == ["q"] * 3
    assert len([note for note in session.report().notes if note.startswith("no tool result is kept")]) == 1
    assert session.failures == {}


@pytest.mark.parametrize("arguments", [{}, {"query": "page {at}"}], ids=["polls", "pages"])
async def test_an_agent_that_pages_or_polls_works_as_without_us(servers, arguments):
    """The same call five times, or page after page, declared by nobody: five answers."""
    asked = [{name: text.format(at=at) for name, text in arguments.items()} for at in range(5)]
    polls, session = iter(range(9)), session_for("openai-chat", tool_cache=True)

    def state(query: str = "") -> str:
        return f"{query}: {next(polls)}"

    tool = FunctionTool(name="state", description="A job's state.", func=state)
    steps = {"planner": [*(call("state", **one) for one in asked), "Done."]}
    async with served(servers, "openai-chat", **steps) as (client, provider):
        planner = team(client, session, tools=[tool])[NAMES.index("planner")]
        assert (await planner.run(TASK)).text == "Done."
    said = [f"{one.get('query', '')}: {at}" for at, one in enumerate(asked)]
    assert [text for text in texts(prompts(provider)[-1]) if text in said] == said


async def test_what_reads_a_tools_answer_for_one_user_is_part_of_the_tool(servers):
    """The function is the same for both: nobody gets what was read for the other."""

    def inbox(path: str) -> str:
        return path

    session = session_for("openai-chat", tool_cache=DEFAULT_ALLOW)
    steps = {name: [call("read", path="a"), "Done."] * 2 for name in NAMES}
    async with served(servers, "openai-chat", **steps) as (client, provider):
        for user in ("alice", "bob"):
            tool = FunctionTool(name="read", func=inbox, result_parser=lambda said, user=user: f"{user}'s {said}")
            for agent in team(client, session, tools=[tool]):
                await agent.run(TASK)
    said = [texts(prompt)[-1] for prompt in prompts(provider)]
    assert [text for text in said if text.endswith("'s a")] == ["alice's a"] * 3 + ["bob's a"] * 3
    assert session.report().tool_cache.total.hits == 4


async def test_a_method_that_is_a_tool_answers_for_its_own_object(servers):
    """It is one function for all objects of its class: bob was given what alice's had read."""

    class Mail:
        def __init__(self, user):
            self.user = user

        @tool(name="read", description="Reads.")
        def inbox(self, path: str) -> str:
            return f"{self.user}'s {path}"

    session = session_for("openai-chat", tool_cache=DEFAULT_ALLOW)
    steps = {name: [call("read", path="a"), "Done."] * 2 for name in NAMES}
    async with served(servers, "openai-chat", **steps) as (client, provider):
        for user in ("alice", "bob"):
            mail = Mail(user)
            for agent in team(client, session, tools=[mail.inbox]):
                await agent.run(TASK)
    said = [texts(prompt)[-1] for prompt in prompts(provider)]
    assert [text for text in said if text.endswith("'s a")] == ["alice's a"] * 3 + ["bob's a"] * 3


async def test_a_saved_session_goes_on_with_the_same_bytes(servers):
    """Decisions on large results are in the AgentSession's own state; another budget changes nothing."""

    async def ask(agent, held, question):
        await agent.run(question, session=held)

    first, later = (session_for("openai-chat", budget=ToolResultBudget(max_tokens=n)) for n in (100, 900))
    async with served(servers, "openai-chat", planner=[call("look"), "Done.", "More."]) as (client, provider):
        held = AgentSession(session_id="s")
        planner = wrap(role(client, "planner", tools=[look()]), first)
        await ask(planner, held, TASK)
        saved = json.loads(json.dumps(held.to_dict()))
        await ask(planner, held, "And then?")
        again = wrap(role(client, "planner", tools=[look()]), later)
        await ask(again, AgentSession.from_dict(saved), "And then?")
    bodies = [record.body for record in provider.requests]
    assert LONG not in bodies[1].decode()
    assert bodies[3] == bodies[2]


@pytest.mark.parametrize(("at", "trigger"), [(1, 4_000), (2, 4_000), (4, 6_000), (6, 5_000)])
async def test_a_session_that_goes_back_sends_what_a_fresh_process_sends(servers, at, trigger):
    """What was decided behind the saved state, in the process that went on, is dropped."""
    compaction = Compaction(trigger=trigger, keep_turns=1, keep_users=False, horizon=10_000)

    def made(client):
        return wrap(role(client, "planner"), session_for("openai-chat", compaction=compaction))

    async with served(servers, "openai-chat", planner=["Said."] * 9) as (client, provider):
        planner, held = made(client), AgentSession(session_id="s")
        for number in range(8):
            if number == at:
                saved = json.dumps(held.to_dict())
            await planner.run(f"{number}: " + "Some words of the task. " * 160, session=held)
        assert b"Earlier messages were removed" in provider.requests[-1].body
        for each in (planner, made(client)):
            await each.run("Go on.", session=AgentSession.from_dict(json.loads(saved)))
    assert provider.requests[-1].body == provider.requests[-2].body


@pytest.mark.parametrize("api", tuple(RULES))
async def test_a_compaction_leaves_the_words_of_a_question_that_brings_an_image(servers, api):
    """Whichever way the client sends them: that of OpenAI's chat makes a message of each."""
    compaction = Compaction(trigger=3_500, horizon=10_000)
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    image = Content.from_uri("data:image/png;base64,AAAA", media_type="image/png")
    async with served(servers, api, planner=["Said. " * 1_500, "Done."]) as (client, provider):
        planner = wrap(role(client, "planner", **options), session_for(api, compaction=compaction))
        held = AgentSession(session_id="s")
        await planner.run(TASK, session=held)
        await planner.run(Message("user", ["What is on it?", image]), session=held)
    body = provider.requests[-1].body
    assert b"Earlier messages were removed" in body
    assert b"What is on it?" in body


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
async def test_conversations_that_nobody_else_has_keep_their_role_in_front(servers, api):
    """Behind the shared system text, before the agent's own history, which is read again with every request."""
    session = session_for(api)
    steps = {name: [call("look"), "Done.", "More."] for name in NAMES}
    async with served(servers, api, **steps) as (client, provider):
        for agent in team(client, session, tools=[look()]):
            held = AgentSession()
            await agent.run(TASK, session=held)
            await agent.run("And then?", session=held)
    found = prompts(provider)
    assert [texts(prompt)[:2] for prompt in found[3:6]] == [
        [HANDBOOK, '<role name="critic">\nYou are the critic.\n</role>']
    ] * 3
    for earlier, later in (found[:2], found[1:3], found[3:5], found[4:6]):
        assert [one.data for one in later.sections[: len(earlier.sections)]] == [one.data for one in earlier.sections]
    outcomes = [record.outcome for record in provider.requests]
    assert outcomes[3].read_tokens > 1_000
    if api == "anthropic":
        assert [one.read_tokens for one in outcomes[4:6]] == [one.input_tokens for one in outcomes[3:5]]


async def test_a_tool_that_comes_later_is_appended(servers):
    """The union stays as it was; the tool is declared behind it and runs."""
    session, ran = session_for("openai-chat"), []
    async with served(servers, "openai-chat", writer=[call("late"), "Done."]) as (client, provider):
        planner, writer = team(client, session)[0], wrap(role(client, "writer"), session)
        await planner.run(TASK)
        await writer.run(TASK, tools=[look("late", ran=ran)])
    assert "tools" not in provider.requests[0].json
    assert [tool["function"]["name"] for tool in provider.requests[1].json["tools"]] == ["late"]
    assert ran == [""]


async def test_one_agent_reads_all_it_wrote(servers):
    """The framework names an agent's messages after its turn, which would change them in the prompt."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat", planner=[call("look"), "Done.", "More."]) as (client, provider):
        planner, held = wrap(role(client, "planner", tools=[look()]), session), AgentSession()
        for question in (TASK, "And then?"):
            await planner.run(question, session=held)
    _, second, third = prompts(provider)
    assert [one.data for one in third.sections[: len(second.sections)]] == [one.data for one in second.sections]
    assert [one.head for one in third.sections[: len(second.sections)]] == [one.head for one in second.sections]


async def test_an_image_goes_out_as_it_came(servers):
    """Whatever is not decided on stays the same object."""
    session = session_for("openai-chat")
    picture = Content.from_uri("https://example.com/a.png", media_type="image/png")
    async with served(servers, "openai-chat") as (client, provider):
        for agent in team(client, session)[:2]:
            await agent.run([Message("user", ["Look.", picture])])
    sent = [[one["content"] for one in record.json["messages"]] for record in provider.requests]
    first, second = (json.dumps(contents[:-1]) for contents in sent)
    assert first == second
    assert "https://example.com/a.png" in first


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_is_left_early_is_a_call(servers, api):
    """And lets the siblings that wait behind it go."""
    session = session_for(api)
    async with served(servers, api) as (client, _):
        planner = team(client, session, api)[0]
        async with planner.run(TASK, stream=True) as pieces:
            async for _ in pieces:
                break
    assert session.report().total.calls == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_provider_reaches_the_application(servers, stream):
    """As itself, and the call leaves no trace in the totals; nobody waits for what it would have written."""
    session = session_for("openai-chat", gate=Gate(600.0, price=0.0))
    async with served(servers, "openai-chat") as (client, provider):
        provider.simulator.script = lambda request: Reply("fine", fault=None if request.index else Fault(400, "no"))
        first, second, _ = team(client, session)
        with pytest.raises(ChatClientException, match="no"):
            await said(first, stream=stream)
        await asyncio.wait_for(said(second, stream=stream), 60)
    assert session.report().total.calls == 1
    assert session.failures == {}


async def test_a_budget_that_cannot_be_met_is_heard_of(servers):
    """It is no failure of ours that a request does not fit."""
    session = session_for(
        "openai-chat", history=History(request_budget=cacheprefix.RequestBudget(2_000, 100)), compaction=1_900
    )
    async with served(servers, "openai-chat") as (client, _):
        with pytest.raises(BudgetError):
            await team(client, session)[0].run("word " * 9_000)


async def test_a_long_session_is_compacted(servers):
    """Old turns go when that pays; calls stay with their results."""
    session = session_for("openai-chat", compaction=2_500)
    async with served(servers, "openai-chat") as (client, provider):
        planner, held = team(client, session)[0], AgentSession()
        for number in range(6):
            await planner.run(f"Part {number}. {LONG}", session=held)
    sizes = [prompt.tokens for prompt in prompts(provider)]
    assert max(sizes) < 4_000
    assert session.failures == {}
    assert "cacheprefix" in held.state


async def test_others_on_the_same_client_notice_nothing(servers):
    """An agent that is not wrapped, and the client itself, send what they always did."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        await role(client, "critic").run(TASK)
        await client.get_response([Message("user", [TASK])])
        await team(client, session)[0].run(TASK)
        await role(client, "critic").run(TASK)
        await client.get_response([Message("user", [TASK])])
    bodies = [record.body for record in provider.requests]
    assert bodies[3:] == bodies[:2]
    assert len(session.calls) == 1


async def test_roles_of_parallel_tasks_do_not_mix(servers):
    """Several conversations at once on one client: each request has its own role and nothing of the others."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        agents = team(client, session)
        await asyncio.gather(*(agent.run(f"{TASK} mark-{number}") for number in range(3) for agent in agents))
    marks = [[f"mark-{n}" in "".join(texts(prompt)) for n in range(3)].count(True) for prompt in prompts(provider)]
    assert marks == [1] * 9
    assert all(tail_at(prompt) == len(prompt.sections) - 1 for prompt in prompts(provider))
    assert sorted(one.agent for one in session.calls) == sorted(NAMES * 3)


@pytest.mark.parametrize("named", [False, True])
async def test_what_a_forgotten_conversation_was_told_does_not_come_back_from_the_agents_session(servers, named):
    """What is said to the next one arrives."""
    async with served(servers, "openai-chat", planner=["Yes."]) as (client, provider):
        session, held = session_for("openai-chat"), AgentSession(session_id="c")
        agent = wrap(role(client, "planner"), session, **({"conversation": "c"} if named else {}))
        session.conversation("c").set_zone("project", "ZONE one.")
        for question in ("One?", "Two?"):
            await agent.run(question, session=held)
        assert [record.body.count(b"ZONE one.") for record in provider.requests] == [1, 1]
        session.forget("c")
        await agent.run("Three?", session=held)
        assert b"ZONE one." not in provider.requests[-1].body
        assert "ZONE one." not in json.dumps(held.to_dict())
        await agent.run("Four?", session=held)
    assert b"ZONE one." not in provider.requests[-1].body
    assert session.failures == {}


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"volatile": {"now": "ten"}}, "volatile is called for each request and gives texts by name, found dict"),
        ({"volatile_role": "tool"}, "volatile_role is one of 'user', 'system', 'developer', found 'tool'"),
        ({"tool_memory": "some"}, "tool_memory is one of 'keep', 'drop', found 'some'"),
        ({"conversation": lambda: "one"}, "conversation is a text, found function"),
        ({"conversation": 0}, "conversation is a text, found int; for what has an id use str(...)"),
        ({"scope": 7}, "scope is a text, found int"),
    ],
)
def test_what_no_request_could_be_given_is_refused_before_anything_is_wrapped(option, named):
    """A dict in place of what gives one, and roles that no provider has."""
    agent = Agent(None, HANDBOOK, name="planner")
    with pytest.raises(SetupError, match=re.escape(named)):
        wrap(agent, Session(), **option)
    with pytest.raises(SetupError, match=re.escape(named)):
        prefix_middleware(Session(), role="planner", **option)
    assert session_of(agent) is None


async def test_an_agent_alone_follows_the_leader_of_another_process(servers):
    """Two sessions that have only the gate's store in common, as processes do: one writes, the other reads.

    An agent that is alone keeps its own layout, which OpenAI keeps unmarked.
    """
    store = MemoryStore()
    async with served(servers, "openai-chat") as (client, provider):
        provider.simulator.latency = Latency(base=0.5, uncached=0, cached=0, output=0, scale=1)
        made = [Session(gate=Gate(60.0, price=0.0, store=store)) for _ in range(2)]
        await asyncio.gather(*(wrap(role(client, "planner"), one).run(TASK) for one in made))
        provider.simulator.latency = Latency()
        assert [[call.layout for call in one.calls] for one in made] == [["own"]] * 2
        assert sorted(record.outcome.read_tokens > 1_000 for record in provider.requests) == [False, True]


@pytest.mark.parametrize("door", ["wrap", "by hand"])
async def test_tools_that_come_with_a_run_are_shown_in_no_other(servers, door):
    """They may be made for who asks, with a name in their description; tools of the agents themselves are shared."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        if door == "wrap":
            agents = [wrap(role(client, name, tools=[look()]), session) for name in ("planner", "critic")]
        else:
            tools = {"planner": [look()], "critic": [look(), look("judge")]}
            agents = [
                role(client, name, tools=own, middleware=prefix_middleware(session, role=name))
                for name, own in tools.items()
            ]
        for person in ("alice", "bob", ""):
            brought = [look(f"files_of_{person}")] if person else []
            for agent in agents:
                await agent.run(f"What of {person or 'nobody'}?", tools=brought)
        bodies = [record.body.decode() for record in provider.requests]
    shown = [[person for person in ("alice", "bob") if f"files_of_{person}" in body] for body in bodies]
    assert shown == [["alice"], ["alice"], ["bob"], ["bob"], [], []]
    if door == "by hand":
        assert [tool.name for tool in session.adapter.prefix.tools] == ["judge", "look"]
    assert not session.failures
