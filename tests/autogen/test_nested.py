"""Teams within teams, agents as tools, filters, and what goes on while a team runs."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise

import pytest
from autogen_agentchat.agents import MessageFilterAgent, MessageFilterConfig, PerSourceFilter, SocietyOfMindAgent
from autogen_agentchat.conditions import ExternalTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index

from cacheprefix import Session, SharedPrefix
from cacheprefix.errors import SHOW, SetupError
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_autogen import PrefixClient, session_of, unwrap, wrap


async def test_a_society_of_mind_shares_the_outer_prefix_and_keeps_the_task(provide, new_client):
    """The inner team is reset every turn; the outer agents still read all that was said."""
    provider = provide("openai", Says())
    inner = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES[:2]], max_turns=2)
    society = SocietyOfMindAgent("society", team=inner, model_client=new_client(provider))
    team = wrap(RoundRobinGroupChat([society, role("writer", new_client(provider))], max_turns=4))
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    planner, critic, _, writer, planner_again, *_ = sent
    assert common(planner, critic) == tail_index(planner)
    assert [s.text.split("\n")[0] for s in writer.tier("messages")[:2]] == ["[user]", "[society]"]
    assert common(planner, planner_again) == tail_index(planner)
    assert any("[writer]" in section.text for section in planner_again.sections)
    agents = {call.agent for call in session_of(team).calls}
    assert agents == {"society/planner", "society/critic", "society", "writer"}
    mind = [call.reasons for call in session_of(team).calls if call.agent == "society"]
    assert {str(reason) for reasons in mind for reason in reasons} == {"own_prompt a society's mind"}
    assert not any("have not the text" in note for note in session_of(team).report().notes)


async def test_a_team_as_participant_shares_the_outer_transcript(provide, new_client):
    """What the inner team is given begins with the bytes that the outer agents were sent."""
    provider = provide("openai", Says())
    inner = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES[:2]], max_turns=2, name="inner")
    team = wrap(RoundRobinGroupChat([role("writer", new_client(provider)), inner], max_turns=3))
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert len(sent) == 4
    assert all(common(a, b) == tail_index(a) for a, b in pairwise(sent))


async def test_agents_as_tools_start_from_their_own_task(provide, new_client):
    """A sub-agent reads the common handbook and its task, not the lead's conversation."""
    steps = {
        "lead": (ToolCall("reader", {"task": "Read it."}), ToolCall("checker", {"task": "Check it."}), "done"),
    }
    provider = provide("openai", Says(steps))
    subs = [role(n, new_client(provider)) for n in ("reader", "checker")]
    lead = role("lead", new_client(provider), tools=[AgentTool(sub) for sub in subs], max_tool_iterations=3)
    wrap(lead)
    await lead.run(task=TASK)
    sent = prompts(provider.requests)
    reader, checker = sent[1], sent[3]
    assert not any(TASK[:40] in section.text for prompt in (reader, checker) for section in prompt.sections)
    assert common(reader, checker) == 1
    assert reader.sections[0].text == HANDBOOK.strip()
    assert {call.agent for call in session_of(lead).calls} == {"lead", "reader/reader", "checker/checker"}


async def test_an_agent_that_calls_others_as_tools_keeps_its_own_messages(provide, new_client):
    """Its tools stand in front of all that it asks, so that nobody reads what follows: its role is not moved."""
    sent = []
    for wrapped in (False, True):
        provider = provide("openai", Says({"lead": (ToolCall("reader", {"task": "Read it."}), "done")}))
        tool = AgentTool(role("reader", new_client(provider)))
        lead = role("lead", new_client(provider), tools=[tool], max_tool_iterations=3)
        await (wrap(lead) if wrapped else lead).run(task=TASK)
        sent.append([record.json["messages"] for record in provider.requests if record.json.get("tools")])
    assert sent[0] == sent[1] != []


async def test_a_team_as_a_tool_is_wrapped_with_its_caller(provide, new_client):
    """TeamTool's team shares among its own agents."""
    steps = {"lead": (ToolCall("crew", {"task": TASK}), "done")}
    provider = provide("openai", Says(steps))
    inner = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=3)
    tool = TeamTool(inner, name="crew", description="A crew.")
    lead = role("lead", new_client(provider), tools=[tool], max_tool_iterations=2)
    wrap(lead)
    await lead.run(task=TASK)
    crew = prompts(provider.requests)[1:4]
    assert all(common(a, b) == tail_index(a) for a, b in pairwise(crew))


async def test_a_filtered_agent_sees_what_its_filter_lets_through(provide, new_client):
    """Sharing does not undo the application's message filter."""
    provider = provide("openai", Says())
    writer = MessageFilterAgent(
        name="writer",
        wrapped_agent=role("writer", new_client(provider)),
        filter=MessageFilterConfig(per_source=[PerSourceFilter(source="user"), PerSourceFilter(source="critic")]),
    )
    team = wrap(RoundRobinGroupChat([*(role(n, new_client(provider)) for n in ROLES[:2]), writer], max_turns=3))
    await team.run(task=TASK)
    heads = [s.text.split("\n")[0] for s in provider.requests[-1].prompt.tier("messages")]
    assert heads[:-1] == ["[user]", "[critic]"]


async def test_streaming_gives_the_same_chunks_and_layout(provide, new_client):
    """Chunks arrive as they do without us, and the stream's requests are the same forks."""
    chunks = []
    for wrapped in (False, True):
        provider = provide("openai", Says())
        agents = [role(n, new_client(provider), model_client_stream=True) for n in ROLES]
        team = RoundRobinGroupChat(agents, max_turns=3)
        if wrapped:
            wrap(team)
        seen = [
            event.content
            async for event in team.run_stream(task=TASK)
            if isinstance(event, ModelClientStreamingChunkEvent)
        ]
        chunks.append(seen)
    assert chunks[0] == chunks[1] != []
    sent = prompts(provider.requests)
    assert all(common(a, b) == tail_index(a) for a, b in pairwise(sent))
    assert provider.requests[0].json["stream_options"] == {"include_usage": True}


async def test_a_cancelled_turn_leaves_nothing_half_said(provide, new_client):
    """After a cancellation in the middle of a tool call the next turn begins from the public transcript."""
    started = asyncio.Event()

    async def slow(query: str) -> str:
        """Waits for ever."""
        started.set()
        await asyncio.sleep(60)
        return query

    steps = {"planner": (ToolCall("slow", {"query": "q"}), "planned")}
    provider = provide("openai", Says(steps))
    agents = [role("planner", new_client(provider), tools=[slow]), role("critic", new_client(provider))]
    wrap(RoundRobinGroupChat(agents, max_turns=2))
    # The task is cancelled and not the token: AutoGen waits for ever on a tool that its token cancelled.
    running = asyncio.ensure_future(agents[0].run(task=TASK))
    await started.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await agents[0].run(task="Go on.")
    heads = [s.text.split("\n")[0] for s in provider.requests[-1].prompt.tier("messages")]
    assert heads[:2] == ["[user]", "[user]"]
    assert len(heads) == 3


async def test_a_team_is_stopped_paused_and_resumed_as_before(provide, new_client):
    """External termination ends the run, pause and resume reach the agents, and the next run goes on."""
    provider = provide("openai", Says())
    stop = ExternalTermination()
    agents = [role(n, new_client(provider)) for n in ROLES]
    team = wrap(RoundRobinGroupChat(agents, termination_condition=stop))
    paused = False
    async for message in team.run_stream(task=TASK):
        if getattr(message, "source", "") == "planner" and not paused:
            paused = True
            await team.pause()
            await team.resume()
            stop.set()
    turns = len(provider.requests)
    assert 1 <= turns < 6
    async for message in team.run_stream(task="Go on."):
        if getattr(message, "source", "") in ROLES:
            stop.set()
    assert len(provider.requests) > turns
    assert any("Go on." in section.text for section in provider.requests[turns].prompt.sections)


async def test_a_foreign_tool_call_is_refused_and_asked_again_once(provide, new_client):
    """On Anthropic the restriction is said in the text; a call against it is answered with an error and repeated."""
    steps = {"planner": (ToolCall("z_critic", {"query": "q"}), "planner does without")}
    provider = provide("anthropic", Says(steps))
    agents = [role(n, new_client(provider, api="anthropic"), tools=[search(f"z_{n}")]) for n in ROLES[:2]]
    session = Session()
    team = wrap(RoundRobinGroupChat(agents, max_turns=1), session)
    result = await team.run(task=TASK)
    first, second = provider.requests
    # Money: the application would not have asked a second time.
    assert [bool(call.unmodified_units) for call in session.calls] == [True, False]
    assert "Tools you may use in this role: z_planner." in first.prompt.sections[-1].text
    assert first.json["tool_choice"] == second.json["tool_choice"] == {"type": "auto"}
    assert "was not run" in second.prompt.sections[-1].text
    assert result.messages[-1].content == "planner does without"


async def test_a_role_without_tools_that_never_heeds_is_asked_at_last_as_the_application_would(provide, new_client):
    """With what only the session knows, and without the tools that it called."""
    call = ToolCall("z_critic", {"query": "q"})
    provider = provide("anthropic", Says({"planner": (call, call, "planner does without")}))
    client, session = new_client(provider, api="anthropic"), Session(SharedPrefix(system="Keep to the rules. " * 300))
    agents = [role("planner", client), role("critic", client, tools=[search("z_critic")])]
    result = await wrap(RoundRobinGroupChat(agents, max_turns=1), session).run(task=TASK)
    assert result.messages[-1].content == "planner does without"
    *_, last = provider.requests
    assert len(provider.requests) == 3
    assert str(session.calls[-1].reasons[-1]) == "asked_again z_critic"
    assert "tools" not in last.json
    assert "Keep to the rules." in str(last.json["system"])


@pytest.mark.filterwarnings("ignore:the endpoint of")
@pytest.mark.parametrize("streams", [False, True])
async def test_a_gateway_that_takes_no_list_of_tools_gets_the_applications_own_request_and_no_list_again(
    provide, new_client, streams
):
    """It serves a model by OpenAI's name: its answer alone tells, and the application is not shown that error."""
    says = Says()

    def gateway(request):
        refused = isinstance(request.body.get("tool_choice"), dict)
        return Reply("", fault=Fault(status=400, message="tool_choice: unknown")) if refused else says(request)

    provider, session = provide("openai-5.6", gateway), Session(SharedPrefix(roles={"planner": "Plan for a week."}))

    def made():
        tools = {name: [search(f"z_{name}")] for name in ROLES[:2]}
        client = new_client(provider, model="gpt-5.6")  # whose cache keeps what is marked
        agents = [role(name, client, tools=tools[name], model_client_stream=streams) for name in tools]
        return RoundRobinGroupChat(agents, max_turns=2)

    await made().run(task=TASK)
    own = provider.requests[0].json
    provider.reset()
    result = await wrap(made(), session, volatile=lambda: {"now": "It is noon."}).run(task=TASK)
    assert [one.source for one in result.messages if one.source != "user" and one.content][-1] == "critic"
    assert [record.status for record in provider.requests] == [400, 200, 200]
    refused, anew, _ = (record.json for record in provider.requests)
    assert refused["tool_choice"]["type"] == "allowed_tools"
    lead, said = own["messages"][0], own["messages"][1:]
    assert anew["messages"][0] == {**lead, "content": f"Plan for a week.\n\n{lead['content']}"}
    assert anew["messages"][1:-1] == said
    assert "It is noon." in anew["messages"][-1]["content"]
    beside = {"messages", "stream_options"}  # by which a stream tells its usage
    assert {name: anew[name] for name in anew.keys() - beside} == {name: own[name] for name in own.keys() - beside}
    assert [call.layout for call in session.calls] == ["own", "fork"]
    assert session.calls[0].reasons[-1].why == "list_refused"
    assert session.report().unanswered == 1
    assert any("refused tool_choice" in note for note in session.report().notes)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_error_about_something_else_is_the_applications_and_lists_go_on(provide, new_client, streams):
    """A history that is too long says nothing of them."""
    provider = provide("openai", lambda _: Reply("", fault=Fault(status=400, message="context_length_exceeded")))
    tools = {name: [search(f"z_{name}")] for name in ROLES[:2]}
    agents = [role(name, new_client(provider), tools=tools[name], model_client_stream=streams) for name in tools]
    team = wrap(RoundRobinGroupChat(agents, max_turns=1), Session())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="context_length_exceeded"):
            await team.run(task=TASK)
    assert [record.json["tool_choice"]["type"] for record in provider.requests] == ["allowed_tools"] * 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the frame that raises again stays")
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("mode", ["observe", "fork"])
async def test_an_error_inside_a_team_that_is_a_tool_tells_the_model_nothing_of_us(
    provide, new_client, mode, streams, caplog, monkeypatch
):
    """AutoGen puts its traceback into the tool's result: the very text that it is without us."""
    monkeypatch.delenv(SHOW)

    async def told(session):
        says = Says({"lead": (ToolCall("inner", {"task": "Do it."}), "done")})
        refused = Reply("", fault=Fault(status=400, message="Zacharias asked for too much"))
        provider = provide("openai", lambda asked: refused if "You are the writer." in asked.text else says(asked))
        writer = role("writer", new_client(provider), model_client_stream=streams)
        tool = TeamTool(RoundRobinGroupChat([writer], max_turns=1), name="inner", description="A team.")
        lead = role("lead", new_client(provider), tools=[tool], max_tool_iterations=3)
        await (lead if session is None else wrap(lead, session)).run(task=TASK)
        return provider.requests[-1].json["messages"][-1]["content"], provider.requests[-1].body

    (plain, body), session = await told(None), Session(mode=mode)
    with caplog.at_level("DEBUG", logger="cacheprefix"):
        found, sent = await told(session)
    assert "Traceback" in plain
    assert found == plain
    assert (sent == body) or mode == "fork"
    # Who looks for a fault of ours finds the whole one, without what the error says: that may quote a prompt.
    logged = "\n".join(map(caplog.handler.format, [one for one in caplog.records if one.name == "cacheprefix"]))
    assert "cacheprefix_autogen" in logged
    assert "Zacharias" in plain
    assert "Zacharias" not in logged
    assert session.failures == {}


@pytest.mark.parametrize("kind", ["agent", "team"])
@pytest.mark.parametrize("other", ["scope", "volatile", "session"])
async def test_what_works_as_a_tool_is_wrapped_for_one(provide, new_client, kind, other):
    """Made once for the agents of two users it would go on with what only the first one is to be told."""
    told, steps = {"me": "I am alice-secret."}, {"lead": (ToolCall("reader", {"task": "Read it."}), "done")}
    provider, session = provide("openai", Says(steps)), Session()
    if kind == "agent":
        tool = AgentTool(role("reader", new_client(provider)))
    else:
        inner = RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=3)
        tool = TeamTool(inner, name="reader", description="Reads.")

    def lead():
        return role("lead", new_client(provider), tools=[tool], max_tool_iterations=3)

    alices = {"session": session, "scope": "alice", "volatile": lambda: told}
    first = wrap(lead(), **alices)
    bobs = {**alices, other: {"scope": "bob", "volatile": None, "session": Session()}[other]}
    with pytest.raises(SetupError, match=f"as a tool of 'lead', and is wrapped already with another {other}"):
        wrap(lead(), **bobs)
    wrap(lead(), **alices)
    for each in (first, tool._task_runner):
        unwrap(each)
    second = wrap(lead(), **{**bobs, "volatile": None}, copy=True)
    await second.run(task=TASK)
    assert len(provider.requests) == (3 if kind == "agent" else 5)
    assert not any(b"alice-secret" in record.body for record in provider.requests)


async def test_what_works_as_a_tool_may_be_wrapped_by_itself_for_all(provide, new_client):
    """Its user has chosen what it is told; not so where it is one tenant's."""
    provider = provide("openai", Says({"lead": (ToolCall("reader", {"task": "Read it."}), "done")}))
    session, reader = Session(), role("reader", new_client(provider))

    def lead():
        return role("lead", new_client(provider), tools=[AgentTool(reader)], max_tool_iterations=3)

    wrap(reader, session, volatile=lambda: {"now": "It is noon."})
    for user in ("alice", "bob"):
        told = {"me": f"I am {user}-secret."}
        await wrap(lead(), session, scope=user, volatile=lambda told=told: told).run(task=TASK)
    said = [[text for text in (b"noon", b"alice-s", b"bob-s") if text in one.body] for one in provider.requests]
    assert said == [[one] for one in (b"alice-s", b"noon", b"alice-s", b"bob-s", b"noon", b"bob-s")]
    reader = wrap(role("reader", new_client(provider)), session, scope="alice")
    with pytest.raises(SetupError, match="another scope"):
        wrap(lead(), session, scope="bob")


def test_agents_that_are_each_others_tools_are_wrapped_and_unwrapped(provide, new_client):
    """Neither is inside the other one without an end."""
    provider = provide("openai", lambda _: "said")
    first = role("first", new_client(provider))
    second = role("second", new_client(provider), tools=[AgentTool(first)])
    first._workbench[0]._tools.append(AgentTool(second))
    models = [first._model_client, second._model_client]
    wrap(first, Session())
    assert all(isinstance(one._model_client, PrefixClient) for one in (first, second))
    unwrap(first)
    assert [first._model_client, second._model_client] == models
