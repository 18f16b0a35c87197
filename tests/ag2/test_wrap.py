"""What wrapping keeps, measures, saves and takes back."""

from __future__ import annotations

import json

import pytest
from ag2 import Agent, MemoryStream, TaskConfig
from ag2.events import ModelMessageChunk
from ag2.history import MemoryStorage
from ag2.policies import ConversationPolicy
from ag2.testing import TestConfig as ScriptedConfig
from ag2_driver import HANDBOOK, RULES, agent, configured, role_text, texts
from test_layout import named, session

import cacheprefix
from cacheprefix import Caching, History, RequestBudget, Session, SharedPrefix, ToolResultBudget
from cacheprefix.errors import BudgetError, ConfigError, SetupError
from cacheprefix.server import Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix_ag2 import PrefixConfig, PrefixPolicy, PrefixState, session_of, unwrap, wrap

APIS = ("openai-chat", "openai-responses", "anthropic")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_the_usage_is_the_providers_own(fresh, api, streaming):
    """Of every call, streamed or not, with what was read; and ag2 reports the same to the application."""
    server, chunks = fresh(api), []
    async with configured(api, server, streaming=streaming) as config:
        agents = wrap([agent("planner", config), agent("critic", config)], session())
        stream = MemoryStream()
        stream.where(ModelMessageChunk).subscribe(lambda event: chunks.append(event.content))
        for each in agents:
            reply = await each.ask("What now?", stream=stream)
    calls, records = session_of(agents).calls, server.requests
    assert [call.usage.cache_read_tokens for call in calls] == [record.outcome.read_tokens for record in records]
    assert [call.usage.input_tokens for call in calls] == [record.outcome.input_tokens for record in records]
    assert records[1].outcome.read_tokens > 1_000
    assert (await reply.usage()).total.cache_read_input_tokens == sum(r.outcome.read_tokens for r in records)
    assert bool(chunks) is streaming
    assert all((call.first_token_at is not None) is streaming for call in calls)


async def test_marks_stand_where_sharing_ends(fresh):
    """ag2 marks the system text and the newest message; in a fork that is the role's own text, and nobody reads it."""
    server = fresh("anthropic")
    async with configured("anthropic", server) as config:
        agents = wrap([agent("planner", config), agent("critic", config)], session())
        stream = MemoryStream()
        for each in agents:
            await each.ask("What now?", stream=stream)
        await unwrap(agents[0]).ask("What now?")
    _, fork, plain = server.requests
    *shared, own = fork.json["messages"]
    assert "cache_control" in str(shared[-1])
    assert "cache_control" not in str(own)
    assert role_text("critic") in str(own)
    assert "cache_control" in str(plain.json["messages"][-1])


async def test_a_stream_resumed_elsewhere_sends_the_same_bytes(fresh):
    """The decisions on its tool results are events of its history, and another budget does not change them."""
    server = fresh("openai-chat")
    long = "\n".join(f"line {number} of the log" for number in range(2_000))

    async def play(stream, budget, events=()):
        async with configured("openai-chat", server) as config:
            # A policy of the application's own that lets nothing but the conversation through.
            agents = [agent("planner", config, tools=[named("look", long)], assembly=[ConversationPolicy()])]
            agents.append(agent("critic", config))
            wrap(agents, session(budget=ToolResultBudget(max_tokens=budget)))
            if events:
                await stream.history.replace(events)
            else:
                await agents[0].ask("Call look.", stream=stream)
                await agents[1].ask("And you?", stream=stream)
            await agents[0].ask("What now?", stream=stream)

    first = MemoryStream()
    await play(first, 200)
    saved = list(await first.history.get_events())
    assert long not in str(server.requests[-1].json)
    sent = server.requests[-1].body
    # What a storage does with events, and without those of the last turn.
    last = max(at for at, event in enumerate(saved) if type(event).__name__ == "ModelRequest")
    loaded = [type(event).from_dict(event.to_dict()) if isinstance(event, PrefixState) else event for event in saved]
    assert any(isinstance(event, PrefixState) for event in loaded[:last])
    await play(MemoryStream(id=first.id), 1_500, loaded[:last])
    assert server.requests[-1].body == sent


async def test_unwrapping_gives_everything_back(fresh):
    """The config, the middleware and the bytes."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        agents = [agent("planner", config, tools=[named("look")]), agent("critic", config)]
        await agents[0].ask("What now?")
        before = agents[0].middleware
        unwrap(wrap(agents, session()))
        assert agents[0].config is config
        assert agents[0].middleware == before
        assert session_of(agents) is None
        await agents[0].ask("What now?")
    assert server.requests[0].body == server.requests[1].body


@pytest.mark.parametrize("api", APIS)
async def test_a_reply_goes_on_as_its_agent_is_wrapped_by_then(api):
    """No longer, or with another session: its large results went out shortened, and the first session counted it."""
    long, bodies = "\n".join(f"line {number} of the log" for number in range(2_000)), {}
    for how in ("never", "before", "anew"):
        first, second = session(budget=ToolResultBudget(max_tokens=200)), session()
        called = Reply(tool_calls=(ToolCall("look", {}, id="call_1"),))
        with SimulatedProvider(RULES[api], Queue([called, "Seen.", "Sure."])) as server:
            async with configured(api, server) as config:
                agents = [agent("planner", config, tools=[named("look", long)]), agent("critic", config)]
                if how != "never":
                    wrap(agents, first)
                reply = await agents[0].ask("Look.")
                if how != "never":
                    unwrap(agents)
                if how == "anew":
                    wrap(agents, second)
                await reply.ask("Sure?")
            bodies[how] = server.requests[-1].body
        assert len(first.calls) == (0 if how == "never" else 2)
        assert [call.layout for call in second.calls] == (["fork"] if how == "anew" else [])
    assert bodies["before"] == bodies["never"]


@pytest.mark.parametrize("api", APIS)
async def test_agents_that_are_wrapped_behind_another_library_are_laid_out_once(fresh, api, monkeypatch):
    """One that puts itself around ag2's turns, as for traces: an empty message of a user went out, which is refused."""
    server = fresh(api)
    async with configured(api, server) as config:
        wrap([agent("guide", config), agent("greeter", config)], session())
        turn, turns = Agent._drive_scope, []

        def traced(self, event, **named):
            turns.append(self.name)
            return turn(self, event, **named)

        monkeypatch.setattr(Agent, "_drive_scope", traced)
        stream = MemoryStream()
        for each in wrap([agent("planner", config), agent("critic", config)], session()):
            await each.ask("What now?", stream=stream)
    assert turns == ["planner", "critic"]
    for record, name in zip(server.requests, turns, strict=True):
        said = texts(record)
        assert [text for text in said if not text.strip()] == []
        assert ["<role" in text for text in said] == [*[False] * (len(said) - 1), True]
        assert role_text(name) in said[-1]


async def test_sub_tasks_are_measured():
    """Under one name, though ag2 gives each a new one; and they keep their own layout."""
    run = ToolCall("run_subtask", {"task": "Look."})
    with SimulatedProvider("openai-5.6", Queue([Reply(tool_calls=(run,)), "Looked.", "So it is."])) as server:
        async with configured("openai-chat", server) as config:
            shared = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=cacheprefix.prompt.ESTIMATE))
            planner = wrap(agent("planner", config, tasks=TaskConfig()), shared)
            assert (await planner.ask("What now?")).body == "So it is."
        assert [call.agent for call in shared.calls] == ["planner", "subtask", "planner"]
        assert texts(server.requests[1]) == ["Look."]


async def test_a_failure_of_ours_sends_the_applications_request(fresh, monkeypatch):
    """And is counted; what the application wants said with this call is said all the same."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        shared = session()
        agents = [agent("planner", config), agent("critic", config)]
        await agents[0].ask("What now?")
        wrap(agents, shared, volatile=lambda: {"time": "12:01"})
        monkeypatch.setattr(PrefixPolicy, "_laid", lambda *_: 1 // 0)
        with pytest.warns(cacheprefix.CacheprefixWarning, match="layout"):
            await agents[0].ask("What now?")
    plain, failed = (record.json["messages"] for record in server.requests)
    assert failed == [*plain, {"role": "user", "content": "<time>\n12:01\n</time>"}]
    assert shared.failures == {"layout": 1}


async def test_an_error_of_the_applications_own_functions_is_the_applications(fresh):
    """Of what it says with a call, and of how it names conversations: nothing is sent, and nothing of ours failed."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        for options, error in (
            ({"volatile": lambda: 1 // 0}, ZeroDivisionError),
            ({"volatile": lambda: "12:01"}, SetupError),
            ({"conversation": lambda _: 1 // 0}, ZeroDivisionError),
        ):
            shared = session()
            made = agent("planner", config)
            wrap([made, agent("critic", config)], shared, **options)
            with pytest.raises(error):
                await made.ask("What now?")
            assert shared.failures == {}
    assert not server.requests


async def test_by_hand_the_policy_and_the_config_go_together(fresh):
    """The policy alone changes nothing and says so; a config given at the call works as an agent's own."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        shared = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=cacheprefix.prompt.ESTIMATE))
        made = agent("planner", config, assembly=[PrefixPolicy(shared)])
        await made.ask("What now?")
        await made.ask("What now?", config=PrefixConfig(config, shared))
        assert PrefixConfig(config, shared).copy(model="gpt-5.7").model == "gpt-5.7"
    plain, fork = server.requests
    assert texts(plain) == ["What now?"]
    assert texts(fork)[-1] == f'<role name="planner">\n{role_text("planner")}\n</role>'
    assert any("no PrefixConfig" in note for note in shared.report().notes)


@pytest.mark.parametrize("way", ["by hand", "wrapped"])
async def test_a_config_made_once_carries_nothing_of_its_session_into_anothers(fresh, way):
    """The other user's agent was shown the tools of the first one's session, and was in that one's report."""
    server, users = fresh("openai-chat"), ("alice", "bob")
    look = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    async with configured("openai-chat", server) as config:
        sessions = {
            user: Session(SharedPrefix(system=HANDBOOK, tools=[{**look, "description": f"For {user}-secret."}]))
            for user in users
        }
        made = PrefixConfig(config, sessions["alice"])
        for each in sessions.values():
            assembly = [ConversationPolicy(), PrefixPolicy(each)] if way == "by hand" else []
            asked = agent("planner", made, assembly=assembly)
            await (wrap(asked, each) if way == "wrapped" else asked).ask("What now?")
    said = [[user for user in users if f"{user}-secret".encode() in one.body] for one in server.requests]
    assert said == [["alice"], ["bob"] if way == "wrapped" else []]
    assert [len(each.calls) for each in sessions.values()] == ([1, 1] if way == "wrapped" else [2, 0])
    if way == "by hand":
        assert any("of another session" in note for note in sessions["bob"].report().notes)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("again", ["wrapped too", "a second policy"])
async def test_what_a_policy_has_laid_out_is_laid_out_once(fresh, api, again):
    """By the first one: the second put an empty message of a user in its place, which is refused."""
    server, shared = fresh(api), session(prefix=SharedPrefix(system=HANDBOOK))
    policies = [PrefixPolicy(shared)] * (1 if again == "wrapped too" else 2)
    async with configured(api, server) as config:
        made = [agent(n, PrefixConfig(config, shared), assembly=policies) for n in ("planner", "critic")]
        if again == "wrapped too":
            wrap(made, shared)
        stream = MemoryStream()
        for each in made:
            await each.ask("What now?", stream=stream)
    assert [call.layout for call in shared.calls] == ["fork"] * 2
    for record in server.requests:
        said = texts(record)
        assert all(text.strip() for text in said)
        assert ["<role" in text for text in said] == [*[False] * (len(said) - 1), True]


class OneByOne(MemoryStorage):
    """A storage that gives its events as they come, as one that reads them from a server does."""

    async def get_history(self, stream_id):
        """They can be read once."""
        return iter(list(await super().get_history(stream_id)))


@pytest.mark.parametrize("mode", ["observe", "fork"])
async def test_events_that_can_be_read_once_are_the_clients(mode):
    """Of a request that no policy has laid out: it was looked through from the end, which raised ``TypeError``."""
    run = Reply(tool_calls=(ToolCall("run_subtask", {"task": "Look."}),))
    with SimulatedProvider("openai-5.6", Queue([run, "Looked.", "So it is."])) as server:
        async with configured("openai-chat", server) as config:
            shared = session(mode=mode)
            made = [agent("planner", config, tasks=TaskConfig()), agent("critic", config)]
            reply = await wrap(made, shared)[0].ask("What now?", stream=MemoryStream(OneByOne()))
    assert reply.body == "So it is."
    assert [call.agent for call in shared.calls] == ["planner", "subtask", "planner"]


async def test_a_client_without_an_sdk_is_left_alone():
    """As ag2's own scripted one; it is noted."""
    shared = session()
    agents = [agent(name, ScriptedConfig("fine")) for name in ("planner", "critic")]
    wrap(agents, shared)
    assert (await agents[0].ask("What now?")).body == "fine"
    assert any("no SDK to watch" in note for note in shared.report().notes)
    assert shared.report().total.calls == 0


async def test_a_budget_that_cannot_be_met_is_heard_of(fresh):
    """It is no failure of ours that a request does not fit."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        shared = session(history=History(request_budget=RequestBudget(2_000, 100)), compaction=1_900)
        agents = wrap([agent("planner", config), agent("critic", config)], shared)
        with pytest.raises(BudgetError):
            await agents[0].ask("word " * 9_000)


@pytest.mark.parametrize("api", APIS)
async def test_an_agent_in_its_own_layout_is_told_the_shared_text(fresh, api):
    """Where requests are too short to share too; one that says it itself is told nothing twice."""
    server = fresh(api)
    async with configured(api, server) as config:
        prompts = {"planner": "You plan.", "critic": "You object.", "writer": "Be brief.\n\nYou write."}
        made = [Agent(name, prompt, config=config) for name, prompt in prompts.items()]
        for each in wrap(made, Session(SharedPrefix(system="Be brief."))):
            await each.ask("What now?")
    systems = ["\n".join(one.text for one in record.prompt.tier("system")) for record in server.requests]
    assert [text.count("Be brief.") for text in systems] == [1, 1, 1]
    assert all(prompt in text for prompt, text in zip(prompts.values(), systems, strict=True))


async def test_an_old_history_is_compacted_before_the_roles_text(fresh):
    """Which stays, whatever is left out; what is said of it stands once, behind the system text, without our marks."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        agents = wrap([agent("planner", config), agent("critic", config)], session(compaction=4_000))
        stream = MemoryStream()
        for number in range(8):
            await agents[number % 2].ask(f"Question {number}? " + "More of it. " * 150, stream=stream)
    last = texts(server.requests[-1])
    assert "Question 1?" not in str(last)
    assert role_text("critic") in last[-1]
    assert [text.startswith("[Earlier messages were") for text in last].count(True) == 1
    assert all(json.loads(one.body)["messages"][0]["role"] == "system" for one in server.requests)
    assert all(b"_cacheprefix" not in one.body for one in server.requests)


def test_what_cannot_be_wrapped_is_named():
    """And nothing is wrapped."""
    config = ScriptedConfig("fine")
    with pytest.raises(SetupError, match="takes an ag2 Agent, or a list of them, found dict"):
        wrap({}, session())
    made = wrap(Agent("planner", config=config), session())
    with pytest.raises(SetupError, match="'planner' is wrapped already"):
        wrap(made, session())
    with pytest.raises(SetupError, match="two agents are named 'a'"):
        wrap([Agent("a", config=config), Agent("a", config=config)], session())
    assert (unwrap("not an agent"), session_of("not an agent")) == ("not an agent", None)


def test_the_core_finds_the_adapter(monkeypatch):
    """``cacheprefix.wrap`` takes agents; without a session the configuration counts."""
    made = Agent("planner", config=ScriptedConfig("fine"))
    assert cacheprefix.wrap(made) is made
    assert session_of(made).mode == "fork"
    monkeypatch.setenv("CACHEPREFIX_MODE", "sideways")
    with pytest.raises(ConfigError, match="CACHEPREFIX_MODE"):
        wrap(Agent("critic", config=ScriptedConfig("fine")))


def test_volatile_texts_that_nothing_gives_are_refused_before_anything_is_wrapped():
    """A dict in place of what gives one: at run time that would be the application's error."""
    planner = Agent("planner", HANDBOOK)
    with pytest.raises(SetupError, match="volatile is called for each request"):
        wrap([planner], Session(), volatile={"now": "ten"})
    with pytest.raises(SetupError, match="volatile is called for each request"):
        PrefixPolicy(Session(), volatile={"now": "ten"})
    with pytest.raises(SetupError, match=r"conversation is a text, found int; for what has an id use str\(...\)"):
        wrap([planner], Session(), conversation=5)
    with pytest.raises(SetupError, match="conversation is a text, found bytes"):
        PrefixPolicy(Session(), conversation=b"thread")
    assert session_of(planner) is None
