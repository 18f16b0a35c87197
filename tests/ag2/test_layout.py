"""Where things stand in the requests of wrapped ag2 agents, and which agents share."""

from __future__ import annotations

import asyncio

import openai
import pytest
from ag2 import Agent, MemoryStream, tool
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import Hub, HubClient, LocalLink, Passport
from ag2.tools.subagents import persistent_stream
from ag2_driver import HANDBOOK, RULES, agent, configured, head, role_text, texts
from pydantic import BaseModel

from cacheprefix import Caching, Compaction, Gate, History, RequestBudget, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Fault, Latency, Queue, Reply, SimulatedProvider, ToolCall, fill
from cacheprefix.stores import MemoryStore
from cacheprefix_ag2 import PrefixConfig, PrefixPolicy, session_of, wrap
from cacheprefix_ag2 import team as team_module

NAMES = ("planner", "critic", "writer")


class Verdict(BaseModel):
    good: bool


def named(name, says="noted"):
    """A tool without arguments."""
    return tool(lambda: says, name=name, description=f"The tool {name}.", schema={"type": "object", "properties": {}})


def session(**options):
    """A session that counts as the provider does."""
    return Session(
        caching=Caching(counter=ESTIMATE), **{"gate": Gate(price=0.0), **options}
    )  # waits however slow this machine is


async def discuss(agents, questions, kind="discussion"):
    """The agents answer a person's questions on a channel of ag2's network."""
    hub = await Hub.open(MemoryKnowledgeStore())
    client = HubClient(LocalLink(hub))
    try:
        for each in agents:
            await client.register(each, attach_plugin=False)
        person = await client.register_human(Passport(name="user"))
        channel = await person.open(type=kind, target=[each.name for each in agents])
        for at, question in enumerate(questions, 1):
            await person.send(channel.channel_id, question)
            for _ in range(500):
                state = await client.adapter_state(channel.channel_id)
                if state.turn_count >= at * (len(agents) + 1):
                    break
                await asyncio.sleep(0.01)
    finally:
        await client.close()
        await hub.close()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
async def test_agents_that_are_asked_different_things_read_the_shared_text(fresh, api, streaming):
    """In the instructions of the Responses API it could carry no mark, and none of them read it."""
    made, provider = session(), fresh(api)
    async with configured(api, provider, streaming=streaming) as config:
        for each in wrap([agent(name, config) for name in NAMES], made):
            await each.ask(f"What does the {each.name} say?")
    assert min(record.outcome.read_tokens for record in provider.requests[1:]) > 1_000
    assert not made.failures


async def test_on_a_stream_of_its_own_the_role_stands_behind_the_first_request(fresh):
    """For good: later turns only append, so nothing is paid for twice."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        planner, _ = wrap([agent("planner", config), agent("critic", config)], session())
        stream = MemoryStream()
        await planner.ask("What now?", stream=stream)
        await planner.ask("And then?", stream=stream)
    first, second = [texts(record) for record in server.requests]
    assert first == ["What now?", f'<role name="planner">\n{role_text("planner")}\n</role>']
    assert second[:2] == first
    assert second[-1] == "And then?"


@pytest.mark.parametrize("talk", ["one", lambda _: "one"], ids=["an id", "what gives it"])
@pytest.mark.parametrize("layout", ["fork", "own"])
async def test_durable_context_and_zones_are_said_once(fresh, layout, talk):
    """Of the conversation that the application names; text that cannot be said behind the history is named."""
    server, fact, zone = fresh("openai-chat"), "It is raining in Bern.", "The customer prefers trains."
    shared = Session(SharedPrefix(system=HANDBOOK if layout == "fork" else "", context={"weather": fact}))
    shared.conversation("one").set_zone("memories", zone)
    async with configured("openai-chat", server) as config:
        made = [agent(n, config) if layout == "fork" else Agent(n, "Be brief.", config=config) for n in NAMES]
        stream = MemoryStream()
        for each in wrap(made, shared, conversation=talk):
            await each.ask("What now?", stream=stream)
            shared.conversation("one").append_context("The line is closed.", key="news")
    assert {call.layout for call in shared.calls[1:]} == {layout}
    said = [record.body.decode() for record in server.requests]
    assert [(one.count(fact), one.count(zone)) for one in said] == [(1, 1)] * 3
    assert shared.failures == {}
    assert any("append_context" in note for note in shared.report().notes)


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
async def test_a_conversations_first_request_is_compacted_with_the_tools_that_it_has(fresh, api):
    """Nobody has had them there before; without so large a tool the same history is sent whole."""
    compaction, counts = Compaction(6_000, 5_500, keep_turns=1, keep_users=False, horizon=10_000), []
    for more in ("", " It has many rooms." * 700):
        server, stream = fresh(api), MemoryStream()
        schema = {"type": "object", "properties": {}}
        house = tool(lambda: "noted", name="house", description=f"Asks the house.{more}", schema=schema)
        async with configured(api, server) as config:
            for at in range(8):
                await Agent("guest", "Be brief.", config=config).ask(f"Question {at}? " * 100, stream=stream)
            server.reset()
            shared = Session(
                SharedPrefix(system=HANDBOOK), compaction=compaction, caching=Caching(counter=ESTIMATE), gate=None
            )
            for user in ("alice", "bob"):
                made = Agent("planner", f"You help {user}.\n\n{HANDBOOK}", config=config, tools=[house])
                planner = wrap(made, shared, conversation=user)
            await planner.ask("And now?", stream=stream)
        counts.append(sum("Question" in text for text in texts(server.requests[0])))
        assert shared.failures == {}
    assert counts[0] == 8 > counts[1]


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
async def test_a_request_fits_the_window_with_tools_that_came_with_it(fresh, api):
    """Nobody shares them, and the model reads them all the same."""
    server, stream, schema = fresh(api), MemoryStream(), {"type": "object", "properties": {}}
    told = "Asks the house." + " It has many rooms." * 700
    house = tool(lambda: "noted", name="house", description=told, schema=schema)
    shared = session(prefix=SharedPrefix(system=HANDBOOK), history=History(request_budget=RequestBudget(6_000)))
    async with configured(api, server) as config:
        for at in range(8):
            await Agent("guest", "Be brief.", config=config).ask(f"Question {at}? " * 100, stream=stream)
        server.reset()
        _, critic = wrap([agent(name, config) for name in ("planner", "critic")], shared)
        await critic.ask("And now?", stream=stream, tools=[house])
    assert 4_000 < server.requests[0].prompt.tokens <= 6_000
    assert shared.failures == {}


async def test_agents_of_a_channel_stay_as_they_are_where_reading_their_own_words_costs_more():
    """ag2 leaves those out of an agent's requests; at half the price two others' long answers do not pay for them."""
    costs, made = [], session()
    for forked in (False, True):
        with SimulatedProvider("openai", lambda request: Reply(fill(f"Answer {request.index}:", 600))) as server:
            async with configured("openai-chat", server, model="gpt-4o") as config:
                agents = [Agent(n, f"{role_text(n)}\n\n{HANDBOOK[:1_400]}", config=config) for n in NAMES]
                await discuss(wrap(agents, made) if forked else agents, ("One?", "Two?"))
            costs.append(sum(one.prompt.tokens - one.outcome.read_tokens / 2 for one in server.requests))
    assert costs[1] <= costs[0]
    assert len(made.calls) == 6


async def test_what_agents_have_in_common_is_found_beside_given_context(fresh):
    """Both are shared, and an agent without the text that was found is told the context alone."""
    server, fact = fresh("openai-chat"), "It is raining in Bern."
    shared = Session(SharedPrefix(context={"weather": fact}), caching=Caching(counter=ESTIMATE))
    async with configured("openai-chat", server) as config:
        made = [agent(name, config) for name in NAMES] + [Agent("guest", "You are the guest.", config=config)]
        stream = MemoryStream()
        for each in wrap(made, shared):
            await each.ask("What now?", stream=stream)
    said = [record.body.decode() for record in server.requests]
    assert [(HANDBOOK[:200] in one, one.count(fact)) for one in said] == [(True, 1)] * 3 + [(False, 1)]
    assert [call.layout for call in shared.calls] == ["fork"] * 3 + ["own"]
    assert all(record.outcome.read_tokens > 900 for record in server.requests[1:3])


async def test_one_with_another_prompt_keeps_it_and_the_others_share(fresh):
    """The outlier is not shown what the others have in common."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        team = [agent(name, config) for name in NAMES]
        odd = Agent("auditor", "You are the auditor. You look at prices alone.", config=config)
        stream, shared = MemoryStream(), session()
        for each in wrap([*team, odd], shared):
            await each.ask("What now?", stream=stream)
    assert [call.layout for call in shared.calls] == ["fork"] * 3 + ["own"]
    assert shared.calls[-1].reasons[0].why == "other_text"
    assert [HANDBOOK[:100] in str(record.json) for record in server.requests] == [True] * 3 + [False]


async def test_on_a_stream_of_several_the_role_stands_at_the_end(fresh):
    """All that stands before is everybody's, tool calls too."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        agents = wrap([agent(name, config, tools=[named("look")]) for name in NAMES], session())
        stream = MemoryStream()
        for each in agents:
            await each.ask("Call look.", stream=stream)
    last = server.requests[-1]
    assert role_text("writer") in texts(last)[-1]
    assert sum("noted" in text for text in texts(last)) == 3
    # The critic's last request is the beginning of the writer's last one.
    assert head(last, "writer")[: len(head(server.requests[3], "critic"))] == head(server.requests[3], "critic")


async def test_a_channel_has_one_transcript_for_everyone(fresh):
    """With each agent's own words in it, which ag2 leaves out, and the speaker's name before them."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        await discuss(wrap([agent(name, config) for name in NAMES], session()), ("One?", "Two?"))
    second = server.requests[3:]
    said = [[text for text in texts(record) if "<role" not in text] for record in second]
    assert said[0] == said[1] == said[2]
    assert [text.split(" ")[0] for text in said[0]] == ["[user]:", "[planner]:", "[critic]:", "[writer]:", "[user]:"]
    assert all("<role" in texts(record)[-1] for record in second)
    assert second[-1].outcome.read_tokens > 1_200


async def test_two_on_a_channel_are_named_too(fresh):
    """ag2 tells two participants apart by the assistant's role alone, which is another for each."""
    server = fresh("anthropic")
    async with configured("anthropic", server) as config:
        shared = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
        await discuss(wrap([agent("planner", config)], shared), ("One?", "Two?"), kind="conversation")
    said = texts(server.requests[1])[:3]
    assert [text.split(" ")[0] for text in said] == ["[user]:", "[planner]:", "[user]:"]


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
async def test_roles_carry_one_union_of_tools(fresh, api):
    """In order of names; a role is kept to its own by ``tool_choice`` where that breaks nothing, else by words."""
    server = fresh(api)
    async with configured(api, server) as config:
        agents = [agent("planner", config, tools=[named("look"), named("write")])]
        agents += [agent("critic", config, tools=[named("look")])]
        stream = MemoryStream()
        for each in wrap(agents, session()):
            await each.ask("What now?", stream=stream)
    first, second = server.requests
    assert [one.data for one in first.prompt.tier("tools")] == [one.data for one in second.prompt.tier("tools")]
    assert len(second.prompt.tier("tools")) == 2
    assert "tool_choice" not in first.json
    if api == "anthropic":
        assert "Tools you may use in this role: look." in texts(second)[-1]
    else:
        assert second.json["tool_choice"]["type"] == "allowed_tools"
        assert "write" not in str(second.json["tool_choice"])


@pytest.mark.filterwarnings("ignore:the endpoint of")
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
async def test_a_gateway_that_takes_no_list_of_tools_gets_the_applications_own_request_and_no_list_again(
    api, streaming
):
    """It serves a model by OpenAI's name: its answer alone tells, and the application is not shown that error."""

    def gateway(request):
        refused = isinstance(request.body.get("tool_choice"), dict)
        return Reply(fault=Fault(status=400, message="tool_choice: unknown")) if refused else Reply("So be it.")

    made = session(prefix=SharedPrefix(system=HANDBOOK, roles={"planner": "Plan for a week."}))
    with SimulatedProvider(RULES[api], gateway) as server:
        async with configured(api, server, streaming=streaming) as config:

            def team():
                return [agent(name, config, tools=[named(f"z_{name}")]) for name in NAMES[:2]]

            assert (await team()[0].ask("What now?")).body == "So be it."
            own = server.requests[0].json
            server.reset()
            planner, critic = wrap(team(), made, volatile=lambda: {"now": "It is noon."})
            replies = [await planner.ask("What now?"), await critic.ask("What now?")]
        assert [one.body for one in replies] == ["So be it."] * 2
        assert [record.status for record in server.requests] == [400, 200, 200]
        refused, anew, _ = (record.json for record in server.requests)
    assert refused["tool_choice"]["type"] == "allowed_tools"
    field = "messages" if api == "openai-chat" else "input"
    assert "It is noon." in str(anew[field].pop())
    # The role's text, which the session alone knows, stands in front of the agent's own.
    lead, at = (own["messages"][0], "content") if api == "openai-chat" else (own, "instructions")
    lead[at] = f"Plan for a week.\n{lead[at]}"
    assert {name: value for name, value in anew.items() if name != "prompt_cache_key"} == own
    assert [call.layout for call in made.calls] == ["own", "fork"]
    assert made.calls[0].reasons[-1].why == "list_refused"
    assert made.report().unanswered == 1
    assert not made.failures


async def test_an_error_about_something_else_is_the_applications_and_lists_go_on():
    """A history that is too long says nothing of them."""
    script = Queue([Reply(fault=Fault(status=400, message="context_length_exceeded")), Reply("So be it.")])
    with SimulatedProvider(RULES["openai-chat"], script) as server:
        async with configured("openai-chat", server) as config:
            planner, _ = wrap([agent(name, config, tools=[named(f"z_{name}")]) for name in NAMES[:2]], session())
            with pytest.raises(openai.BadRequestError):
                await planner.ask("What now?")
            await planner.ask("What now?")
        assert [record.json["tool_choice"]["type"] for record in server.requests] == ["allowed_tools"] * 2


async def test_a_tool_of_another_role_is_refused(fresh):
    """ag2 knows only the agent's own tools, tells the model so, and the turn goes on."""
    server = fresh("anthropic")
    used = []
    write = tool(lambda: used.append(1) or "", name="write", description="w", schema={"type": "object"})
    async with configured("anthropic", server) as config:
        agents = wrap([agent("planner", config, tools=[write]), agent("critic", config)], session())
        reply = await agents[1].ask("Call write.")
    assert reply.body.startswith("Answer")
    assert not used
    assert "not found" in " ".join(texts(server.requests[1])).lower()


async def test_a_tool_that_means_two_things_keeps_its_agent_apart(fresh):
    """One name and two schemas make no union; it is noted, and the requests are the agent's own."""
    server = fresh("openai-chat")
    other = tool(lambda: "", name="look", description="Something else.", schema={"type": "object"})
    async with configured("openai-chat", server) as config:
        agents = [agent("planner", config, tools=[named("look")]), agent("critic", config, tools=[other])]
        shared = session()
        for each in wrap(agents, shared):
            await each.ask("What now?")
    assert "Something else." in str(server.requests[1].json["tools"])
    assert any("keeps its own tools" in note for note in shared.report().notes)


async def test_a_response_schema_is_a_lane_of_its_own(fresh):
    """Two agents with the same one share it; the only one with another keeps its own layout."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        judges = [agent(name, config, response_schema=Verdict) for name in ("critic", "judge")]
        agents = wrap([*judges, agent("lone", config, response_schema=list[int]), agent("planner", config)], session())
        question = "Judge this. " + "A long and careful question about the plan. " * 40
        for each in agents:
            reply = await each.ask(question)
            assert each is not agents[0] or (await reply.content()).good
    first, second, lone, plain = server.requests
    assert head(first, "critic") == head(second, "judge")
    assert second.outcome.read_tokens > 1_000
    assert lone.prompt.tier("system")[0].text.startswith(role_text("lone"))
    assert plain.prompt.tier("system")[0].text.startswith(role_text("planner"))


async def test_text_for_one_call_stands_at_the_very_end(fresh):
    """What a prompt hook computes, what another policy adds, and the volatile texts given to ``wrap``."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        agents = [agent("planner", config, tools=[named("look")]), agent("critic", config)]
        agents[0].prompt(lambda: "It is Monday.")
        wrap(agents, session(), volatile=lambda: {"time": "12:01"})
        await agents[0].ask("Call look.")
    for record in server.requests:
        assert texts(record)[-1] == "<context>\nIt is Monday.\n</context>\n\n<time>\n12:01\n</time>"
        assert "Monday" not in str(record.json["messages"][:-1])


async def test_parallel_agents_let_one_write_what_they_share(fresh):
    """The others read it."""
    server = fresh("anthropic")
    async with configured("anthropic", server, streaming=True) as config:
        agents = wrap([agent(name, config) for name in NAMES], session())
        await asyncio.gather(*(each.ask("What now?") for each in agents))
    assert sorted(record.outcome.read_tokens > 1_000 for record in server.requests) == [False, True, True]


async def test_an_agent_called_as_a_tool_is_a_fork_as_well(fresh):
    """On the stream that ag2 gives it."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        critic = agent("critic", config)
        planner = agent("planner", config, tools=[critic.as_tool(name="ask_critic", description="Ask the critic.")])
        shared = session_of(wrap([planner, critic], session()))
        await planner.ask("Call ask_critic.")
    assert shared.failures == {}
    assert len(server.requests) >= 2


async def test_without_a_prefix_what_the_prompts_have_in_common_is_shared(fresh):
    """Agents that have nothing in common, and one alone, are left as they are but for the routing key."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        alone = wrap(Agent("planner", "You plan.", config=config), session())
        assert session_of(wrap([agent(name, config) for name in NAMES])).prefix.system == HANDBOOK.strip()
        await alone.ask("What now?")
    sent = dict(server.requests[0].json)
    sent.pop("prompt_cache_key", None)
    assert [message["content"] for message in sent["messages"]] == ["You plan.", "What now?"]


async def test_agents_made_later_carry_no_tools_of_those_before_in_streams_that_begin_later(fresh):
    """Not those of others that were made before: who is made later may be made for one user, or they were.

    A stream under way keeps those that it began with.
    """
    server, shared = fresh("openai-chat"), session()
    async with configured("openai-chat", server) as config:
        early = wrap([agent("planner", config, tools=[named("plan")]), agent("critic", config)], shared)
        stream, later = MemoryStream(), MemoryStream()
        for each in early:
            await each.ask("What now?", stream=stream)
        late = wrap([agent("writer", config, tools=[named("check")]), agent("editor", config)], shared)
        for each in (*late, early[0]):
            await each.ask("And this?", stream=later)
        for each in early:
            await each.ask("And then?", stream=stream)
    sent = [[one["function"]["name"] for one in record.json["tools"]] for record in server.requests]
    assert sent == [["plan"]] * 2 + [["check"]] * 2 + [["check", "plan"]] + [["plan"]] * 2
    reads = [call.usage.cache_read_tokens > 1_000 for call in shared.calls]
    assert reads == [False, True, False, True, False, True, True]
    assert shared.failures == {}


async def test_streams_of_agents_that_are_named_after_users_go_on_with_their_own_tools(fresh):
    """All were made before the first request, and looked like a team's."""
    server, shared, users = fresh("openai-chat"), session(), ("alice", "bob", "carol", "dave")
    agents = {}
    async with configured("openai-chat", server) as config:
        streams = {user: MemoryStream() for user in users}
        for user in users:
            its = [agent(f"helper_{user}", config, tools=[named(f"house_{user}")]), agent(f"critic_{user}", config)]
            agents[user] = wrap(its, shared)
        for _ in range(2):
            for user in users:
                for each in agents[user]:
                    await each.ask("What now?", stream=streams[user])
    sent = [[one["function"]["name"] for one in record.json["tools"]] for record in server.requests]
    assert sent[:2] == [[f"house_{user}" for user in users]] * 2
    # The fourth user's first request shows it.
    assert sent[6:] == [[f"house_{user}"] for user in ("dave", *users) for _ in "hc"]
    assert shared.failures == {}


async def test_what_is_known_of_agents_that_are_named_after_users_is_bounded(fresh, monkeypatch):
    """No request looks through the agents of all users; one that comes back goes on as it was laid out."""
    monkeypatch.setattr(team_module, "_LATELY", 4)
    server, shared = fresh("openai-chat"), Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    async with configured("openai-chat", server) as config:
        made = [wrap(agent(f"helper_{n}", config), shared) for n in range(6)]
        streams = [MemoryStream() for _ in made]
        for each, stream in [*zip(made, streams, strict=True)] * 2:
            await each.ask("What now?", stream=stream)
    assert len(team_module.team_of(shared.adapter).seats) == 4
    assert {call.layout for call in shared.calls} == {"fork"}
    for first, again in zip(server.requests, server.requests[6:], strict=False):
        assert again.prompt.sections[: len(first.prompt.sections)] == first.prompt.sections
    assert shared.failures == {}


async def test_an_agent_alone_follows_the_leader_of_another_process(fresh):
    """Two sessions that have only the gate's store in common, as processes do: one writes, the other reads.

    An agent that is alone keeps its own layout, which OpenAI keeps unmarked.
    """
    server, store = fresh("openai-chat"), MemoryStore()
    server.simulator.latency = Latency(base=0.5, uncached=0, cached=0, output=0, scale=1)
    made = [session(gate=Gate(60.0, price=0.0, store=store)) for _ in range(2)]
    async with configured("openai-chat", server) as config:
        agents = [wrap([agent("planner", config)], one)[0] for one in made]
        await asyncio.gather(*(each.ask("What now?") for each in agents))
    server.simulator.latency = Latency()
    assert [[call.layout for call in one.calls] for one in made] == [["own"]] * 2
    assert sorted(record.outcome.read_tokens > 1_000 for record in server.requests) == [False, True]


@pytest.mark.parametrize("door", ["wrap", "by hand"])
@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
async def test_tools_that_come_with_a_call_are_shown_in_no_other_stream(fresh, api, door):
    """They may be made for who asks, with a name in their description; tools of the agents themselves are shared."""
    server, shared = fresh(api), session()

    def files(person):
        def run() -> str:
            """Reads files."""
            return "none"

        return tool(run, name=f"files_of_{person}", description=f"Reads what {person} wrote.")

    async with configured(api, server) as config:
        if door == "wrap":
            agents = wrap([agent(name, config, tools=[named("look")]) for name in NAMES[:2]], shared)
        else:
            ours = PrefixConfig(config, shared)
            agents = [agent(name, ours, tools=[named("look")], assembly=[PrefixPolicy(shared)]) for name in NAMES[:2]]
        for person in ("alice", "bob", ""):
            stream = MemoryStream()
            for each in agents:
                await each.ask("What now?", stream=stream, tools=[files(person)] if person else [])
    bodies = [record.body.decode() for record in server.requests]
    shown = [[person for person in ("alice", "bob") if f"Reads what {person} wrote" in body] for body in bodies]
    assert shown == [["alice"], ["alice"], ["bob"], ["bob"], [], []]
    assert [tool.name for tool in shared.adapter.prefix.tools] == ["look"]
    assert not shared.failures


@pytest.mark.parametrize(
    "way",
    [
        "tenants wrapped first",
        "tenants wrapped later",
        "conversations",
        "conversations from the first request on",
        "conversations, the first one's alone",
    ],
)
async def test_nobody_is_shown_a_tool_that_was_made_for_another(fresh, way):
    """Tenants are children of one session and have a tool of one name; else agents are made anew for each person."""
    server, shared, anew = fresh("openai-chat"), session(), way.startswith("conversations")

    def has(user):
        return user == "acme" or not way.endswith("alone")

    def made(user, config):
        def run() -> str:
            """Asks."""
            return "none"

        name, its = (f"house_{user}", shared) if anew else ("house", shared.child(user, scope=user))
        house = tool(run, name=name, description=f"Asks the house of {user}.")
        talk = user if anew else "one"
        agents = [agent("planner", config, tools=[house] if has(user) else []), agent("critic", config)]
        return wrap(agents, its, conversation=lambda _: talk)

    async with configured("openai-chat", server) as config:
        before = [agent("greeter", config), agent("guide", config)] if way == "conversations" or not anew else []
        for each in before and wrap(before, shared, conversation=lambda _: "first"):
            await each.ask("Good morning.", stream=MemoryStream())
        teams = {user: made(user, config) for user in ("acme", "beta")} if way == "tenants wrapped first" else {}
        for user, other in (("acme", "beta"), ("beta", "acme")) * 2:
            if user not in teams:
                teams[user] = made(user, config)
            seen = len(server.requests)
            stream = MemoryStream()
            for each in teams[user]:
                await each.ask("What now?", stream=stream)
            shown = [record.body for record in server.requests[seen:]]
            assert (f"house of {user}".encode() in shown[0]) is has(user)
            assert not [body for body in shown if f"house of {other}".encode() in body]
    assert not shared.failures


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
@pytest.mark.parametrize("stream", [None, persistent_stream()], ids=["anew", "kept"])
async def test_who_is_delegated_to_on_a_channel_speaks_on_a_stream_of_its_own(api, stream):
    """Nobody of the channel asks there: the person was said to have asked what another agent did."""
    asks = Reply(tool_calls=(ToolCall("ask_critic", {"objective": "Look into it."}),))
    with SimulatedProvider(RULES[api], Queue([asks, "No.", asks, "Still no.", "So it is."])) as server:
        async with configured(api, server) as config:
            critic = agent("critic", config)
            told = critic.as_tool(name="ask_critic", description="Ask the critic.", stream=stream)
            planner = agent("planner", config, tools=[told])
            wrap([planner, critic], session())
            await discuss([planner], ["What now?"], kind="conversation")
    critics = [texts(record) for record in server.requests if role_text("critic") in str(record.json)]
    assert [said[0] for said in critics] == ["Look into it."] * 2
    assert texts(server.requests[0])[0] == "[user]: What now?"
    own = {call.conversation for call in session_of(critic).calls if call.agent == "critic"}
    assert len(own) == (1 if stream else 2)
    assert len({call.conversation for call in session_of(critic).calls}) == len(own) + 1


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
async def test_one_that_delegates_to_itself_on_a_channel_speaks_on_a_stream_of_its_own(api):
    """It was taken for a speaker of the channel, and its own task for the person's words."""
    asks = Reply(tool_calls=(ToolCall("ask_again", {"objective": "Look into it."}),))
    with SimulatedProvider(RULES[api], Queue([asks, "No.", "So it is."])) as server:
        async with configured(api, server) as config:
            planner = agent("planner", config)
            planner.add_tool(planner.as_tool(name="ask_again", description="Ask yourself."))
            shared = session_of(wrap([planner, agent("critic", config)], session()))
            await discuss([planner], ["What now?"], kind="conversation")
    asked = "[user]: What now?"
    assert [texts(record)[0] for record in server.requests] == [asked, "Look into it.", asked]
    first, own, last = [call.conversation for call in shared.calls]
    assert first == last != own
    assert shared.failures == {}


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
@pytest.mark.parametrize("again", ["wrapped too", "a second policy"])
@pytest.mark.parametrize("alone", [False, True])
async def test_text_for_one_call_is_said_by_whichever_policy_has_it(fresh, api, again, alone):
    """A policy that came second said nothing of its own; what both have under one key is said once."""
    server, shared = fresh(api), session(prefix=SharedPrefix(system="" if alone else HANDBOOK))
    first = PrefixPolicy(shared, volatile=lambda: {"time": "12:01", "place": "Bern"})
    late = {"time": "12:02", "user": "Ann"}
    policies = [first] if again == "wrapped too" else [first, PrefixPolicy(shared, volatile=lambda: late)]
    async with configured(api, server) as config:
        made = agent("planner", PrefixConfig(config, shared), assembly=policies)
        if again == "wrapped too":
            wrap(made, shared, volatile=lambda: late)
        await made.ask("What now?")
    assert [call.layout for call in shared.calls] == ["own" if alone else "fork"]
    said = "<time>\n12:02\n</time>\n\n<place>\nBern\n</place>\n\n<user>\nAnn\n</user>"
    assert texts(server.requests[0])[-1] == said
    assert server.requests[0].body.count(b"<time>") == 1
