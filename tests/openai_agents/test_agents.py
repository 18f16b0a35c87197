"""Teams of the OpenAI Agents SDK on the wire: what is shared, what is left alone, what the application sees."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import sys
from pathlib import Path

import agents
import openai
import pytest
from agents import (
    Agent,
    ModelProvider,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    retry_policies,
)
from agents.memory import OpenAIResponsesCompactionSession
from agents.tracing import TracingProcessor
from agents_driver import HANDBOOK, MODELS, model_for, tool
from pydantic import BaseModel

from cacheprefix import Caching, Session, SharedPrefix, ToolResultBudget
from cacheprefix.errors import SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Fault, Queue, Reply, SimulatedProvider
from cacheprefix_openai_agents import unwrap, wrap
from cacheprefix_openai_agents.plugin import cacheprefix_wrap
from tests.noting import note, noted

ROOT = Path(__file__).resolve().parents[2]
APIS = tuple(MODELS)


def session(**options):
    """A session without a text of its own, which counts as the provider does."""
    return Session(caching=Caching(counter=ESTIMATE), **options)


def agent(name, model, **options):
    """An agent whose instructions are its role and the handbook."""
    return Agent(name, instructions=f"You are the {name}.\n\n{HANDBOOK}", model=model, **options)


def team_of(model):
    """A planner that hands off to a critic, who hands off to a writer; each with a tool of its own."""

    def tool_of(name):
        @function_tool(name_override=f"{name}_tool")
        def run() -> str:
            """A tool."""
            return "done"

        return run

    writer = agent("writer", model, tools=[tool_of("writer")])
    critic = agent("critic", model, tools=[tool_of("critic")], handoffs=[writer])
    return agent("planner", model, tools=[tool_of("planner")], handoffs=[critic])


async def play(first, *, streamed=False, question="Call transfer_to_critic.", **options):
    """Two questions: the first is handed off, the second asked of who speaks then. Events, where they are streamed."""
    events, said, result = [], [], None
    for text in (question, "Call transfer_to_writer."):
        said.append({"role": "user", "content": text})
        if streamed:
            result = Runner.run_streamed(first, said, **options)
            seen = [event async for event in result.stream_events()]
            events += [(event.type, getattr(getattr(event, "data", None), "type", "")) for event in seen]
        else:
            result = await Runner.run(first, said, **options)
        said, first = result.to_input_list(), result.last_agent
    return events, result


def units(provider):
    """What a provider's requests cost, by its rules: a read is 0.1, a write 1.25."""
    cost = 0.0
    for record in provider.requests:
        usage = record.usage
        total = usage.get("input_tokens", usage.get("prompt_tokens"))
        details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details")
        read, written = details.get("cached_tokens", 0), details.get("cache_write_tokens", 0)
        cost += total - read - written + 0.1 * read + 1.25 * written
    return cost


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True], ids=["", "stream"])
@pytest.mark.parametrize("api", APIS)
def test_a_team_of_handoffs_costs_less_than_unmodified(provider, api, streamed):
    """The tools of all, hand-offs included, and what all instructions say are one prefix; events stay as they are."""

    async def both():
        plain, _ = await play(team_of(model_for(api, provider)), streamed=streamed)
        cost = units(provider)
        provider.reset()
        own = session()
        forked, result = await play(wrap(team_of(model_for(api, provider)), own), streamed=streamed)
        return plain, forked, cost, own, result

    plain, forked, cost, own, result = asyncio.run(both())
    assert units(provider) < 0.75 * cost
    assert forked == plain
    assert {call.layout for call in own.calls} == {"fork"}
    assert [call.agent for call in own.calls] == ["planner", "critic", "critic", "writer"]
    assert all(call.usage.input_tokens for call in own.calls)
    assert result.last_agent.name == "writer"
    assert len({json.dumps(record.json["tools"]) for record in provider.requests}) == 1
    assert not own.failures


class Judged(BaseModel):
    """An answer by a schema."""

    good: bool


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("rounds", [1, 3])
def test_an_agent_whose_answer_alone_follows_a_schema_is_not_dearer(provider, api, rounds):
    """The schema stands before the tools: of what others wrote nothing is read, so it carries its own tools alone."""

    def judging(wrapped):
        provider.reset()
        model = model_for(api, provider)
        form = {"type": "object", "properties": {}}
        kits = [[tool(f"{name}_{n}", f"{name} {n} " * 60, form, str) for n in range(2)] for name in ("ask", "weigh")]
        judge = agent("judge", model, tools=kits[1], output_type=Judged)
        asker = agent("asker", model, tools=kits[0], handoffs=[judge])
        if wrapped is not None:
            wrap(asker, wrapped, conversation="talk")
        return asker, judge

    async def asked(wrapped):
        asker, judge = judging(wrapped)
        said = []
        for number in range(rounds):
            for one in (judge, asker):
                said.append({"role": "user", "content": f"Judge. This is question {number}."})
                said = (await Runner.run(one, said)).to_input_list()
        return units(provider), [json.loads(record.body) for record in provider.requests]

    own = session()
    plain, before = asyncio.run(asked(None))
    forked, after = asyncio.run(asked(own))
    assert [len(one["tools"]) for one in after[::2]] == [len(one["tools"]) for one in before[::2]]
    assert forked <= 1.005 * plain
    assert not own.failures


@pytest.mark.parametrize("api", APIS)
def test_durable_context_stands_beside_what_the_instructions_have_in_common(provider, api):
    """A session that was given context alone still finds the handbook in the agents' instructions, and says both."""
    fact = "The office is closed on Mondays."
    own = Session(SharedPrefix(context={"office": fact}), caching=Caching(counter=ESTIMATE))
    asyncio.run(play(wrap(team_of(model_for(api, provider)), own)))
    assert {call.layout for call in own.calls} == {"fork"}
    assert all(body.count(fact) == 1 for body in (record.body.decode() for record in provider.requests))
    assert HANDBOOK.strip() in own.adapter.prefix.system


def test_an_agent_as_a_tool_reads_the_same_prefix(provider):
    """Its run is a conversation of its own, on the prefix that who calls it has written."""
    model = model_for("openai-responses", provider)
    critic = agent("critic", model)
    planner = agent("planner", model, tools=[critic.as_tool("ask_critic", "Ask the critic.")])
    own = session()
    asyncio.run(Runner.run(wrap(planner, own), "Call ask_critic."))
    called = next(call for call in own.calls if call.agent == "critic")
    assert called.layout == "fork"
    assert called.usage.cache_read_tokens > 1_024
    assert len({call.conversation for call in own.calls}) == 2


@pytest.mark.parametrize("api", APIS)
def test_observing_changes_no_byte(provider, api):
    """And neither does an agent that was unwrapped, which has its own model again."""
    seen = []
    for mode in (None, "observe", "fork"):
        provider.reset()
        model = model_for(api, provider)
        first = team_of(model)
        if mode:
            wrap(first, session(mode=mode))
        if mode == "fork":
            unwrap(first)
            assert first.model is first.handoffs[0].model is model
        asyncio.run(play(first))
        seen.append([json.loads(record.body) for record in provider.requests])
    for one in (each for bodies in seen for each in bodies):
        one.pop("prompt_cache_key", None)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("differs", ["session", "conversation"])
def test_an_agent_of_two_teams_asks_for_one_session_and_conversation_alone(provider, differs):
    """One tenant's shared text, or a user's own, would stand in the other one's runs; nothing is changed then."""
    model = model_for("openai-responses", provider)
    shared = agent("critic", model)
    one, two = (agent(name, model, handoffs=[shared]) for name in ("first", "second"))
    own = session()
    wrap(one, own, conversation="one")
    asking = shared.model
    with pytest.raises(SetupError, match="'critic' is wrapped already, with 'first'"):
        wrap(two, session() if differs == "session" else own, conversation="one" if differs == "session" else "two")
    assert shared.model is asking
    assert two.model is model
    # What reaches the whole team would take it over, with runs that are under way.
    with pytest.raises(SetupError, match="wrapped already"):
        wrap(agent("head", model, handoffs=[one, two]), session())
    wrap(agent("head", model, handoffs=[unwrap(one), two]), session())


@pytest.mark.parametrize("differs", ["session", "conversation"])
def test_an_agent_that_is_made_once_for_all_is_wrapped_for_one(provider, differs):
    """Wrapped for bob while alice's run was under way it told that run what only bob was to know."""
    own, model = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE)), model_for(APIS[0], provider)
    its = {user: own.child(user, scope=user) if differs == "session" else own for user in ("alice", "bob")}
    team = [agent(name, model) for name in ("planner", "critic")]
    for user, one in its.items():
        one.conversation(user).set_zone("memories", f"The word of {user} is secret.")

    async def go():
        for one in team:
            wrap(one, its["alice"], conversation="alice")
        await Runner.run(team[0], "I am alice.")
        for one in team:
            with pytest.raises(SetupError, match=r"is wrapped already, with .*unwrap that first"):
                wrap(one, its["bob"], conversation="bob")
        await Runner.run(team[1], "I am alice.")
        for one in team:
            await Runner.run(wrap(unwrap(one), its["bob"], conversation="bob"), "I am bob.")

    asyncio.run(go())
    told = [re.findall("The word of (?:alice|bob)", record.body.decode()) for record in provider.requests]
    assert told == [["The word of alice"]] * 2 + [["The word of bob"]] * 2


@pytest.mark.parametrize("what", ["a model", "a provider", "an agent's model", "an agent's provider"])
def test_what_is_wrapped_again_for_another_user_asks_for_that_one(provider, what):
    """The conversation that it was wrapped with first stood in front: bob was shown what only alice was to be told."""

    class Mine(ModelProvider):
        def get_model(self, model_name):
            return model_for("openai-chat", provider)

    own = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    first, given = {"model": model_for("openai-chat", provider), "provider": Mine()}[what.split()[-1]], {}
    for user in ("alice", "bob"):
        own.conversation(user).set_zone("memories", f"The word of {user} is secret.")
        first = given[user] = wrap(first, own, conversation=user)

    def asks(user, name):
        if what == "an agent's model":
            return Runner.run(wrap(agent(name, given["alice"]), own, conversation=user), f"I am {user}.")
        if what == "an agent's provider":
            one = wrap(agent(name, "gpt-5.6"), own, conversation=user, provider=given["alice"])
            return Runner.run(one, f"I am {user}.")
        how = {"model" if what == "a model" else "model_provider": given[user]}
        return Runner.run(agent(name, None), f"I am {user}.", run_config=RunConfig(**how))

    async def go():
        for user in given:
            for name in ("planner", "critic"):
                await asks(user, name)

    asyncio.run(go())
    told = [re.findall("The word of (?:alice|bob)", record.body.decode()) for record in provider.requests]
    assert told == [["The word of alice"]] * 2 + [["The word of bob"]] * 2


def test_an_agent_of_two_teams_is_undone_with_the_last_of_them(provider):
    """Unwrapping one team leaves the other one's whole."""
    model = model_for("openai-responses", provider)
    shared = agent("critic", model)
    one, two = (agent(name, model, handoffs=[shared]) for name in ("first", "second"))
    own = session()
    wrap(one, own)
    wrap(two, own)
    unwrap(one)
    assert one.model is model
    assert shared.model is not model
    asyncio.run(Runner.run(two, [{"role": "user", "content": "Call transfer_to_critic."}]))
    assert [call.agent for call in own.calls] == ["second", "critic"]
    unwrap(two)
    assert two.model is shared.model is model


def test_a_provider_of_models_knows_who_asks(provider):
    """The role is the agent whose turn it is, with task and turn spans and without."""

    class Mine(ModelProvider):
        def get_model(self, model_name):
            return model_for("openai-responses", provider)

    own = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    for spans in (True, False):
        config = RunConfig(model_provider=wrap(Mine(), own), tracing={"include_task_and_turn_spans": spans})
        asyncio.run(play(team_of(None), run_config=config))
    assert [call.agent for call in own.calls] == ["planner", "critic", "critic", "writer"] * 2
    assert own.calls[-1].layout == "fork"


def test_a_conversation_is_taken_up_before_a_provider_of_models_has_met_its_tools(provider):
    """The tools come with the run: another process restores what was decided before it knows any."""

    class Mine(ModelProvider):
        def get_model(self, model_name):
            return model_for("openai-responses", provider)

    def session_of_a_process():
        return Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))

    own, there = session_of_a_process(), session_of_a_process()
    config = RunConfig(model_provider=wrap(Mine(), own, conversation="one"))
    asyncio.run(play(team_of(None), run_config=config))
    assert own.prefix.tool_names
    there.conversation("one").restore(own.conversation("one").dumps())


def test_tracing_shows_what_the_application_asked(provider):
    """Spans, their order and their data are those without us, but for ids, times and usage."""

    class Kept(TracingProcessor):
        def __init__(self):
            self.spans = []

        def on_span_end(self, span):
            found = json.loads(json.dumps(span.span_data.export(), default=str))
            known = {"usage", "response_id", "output", "turn_usage", "task_usage"}
            self.spans.append({name: value for name, value in found.items() if name not in known})

        def on_trace_start(self, trace): ...
        def on_trace_end(self, trace): ...
        def on_span_start(self, span): ...
        def shutdown(self): ...
        def force_flush(self): ...

    seen = []
    agents.set_tracing_disabled(False)
    try:
        for wrapped in (False, True):
            provider.reset()
            kept = Kept()
            agents.set_trace_processors([kept])
            first = team_of(model_for("openai-chat", provider))
            asyncio.run(play(wrap(first, session()) if wrapped else first))
            seen.append(_without_ids(kept.spans))
    finally:
        agents.set_trace_processors([])
        agents.set_tracing_disabled(True)
    assert seen[0] == seen[1]
    assert any(span["type"] == "generation" for span in seen[0])


IDS = ("id", "call_id", "tool_call_id", "metadata", "data")


def _without_ids(value):
    if isinstance(value, dict):
        return {name: _without_ids(one) for name, one in value.items() if name not in IDS}
    return [_without_ids(one) for one in value] if isinstance(value, list) else value


def test_two_users_do_not_mix(provider):
    """The same agents asked at once for two conversations."""
    first = wrap(team_of(model_for("openai-responses", provider)), session())

    def asked(name):
        return play(first, question=f"I am {name}. Call transfer_to_critic.", run_config=RunConfig(group_id=name))

    async def both():
        await asyncio.gather(asked("Anna"), asked("Berta"))

    asyncio.run(both())
    assert not [record for record in provider.requests if b"Anna" in record.body and b"Berta" in record.body]


def test_conversations_have_the_ids_that_the_application_gives(provider):
    """By ``conversation=``, a text or a function of the moment."""
    own = session()
    for name, conversation in (("critic", "talk-1"), ("writer", lambda: "talk-2")):
        first = agent(name, model_for("openai-responses", provider))
        asyncio.run(Runner.run(wrap(first, own, conversation=conversation), "Hello."))
    assert [call.conversation for call in own.calls] == ["talk-1", "talk-2"]


def test_a_result_that_was_shortened_stays_so_while_the_session_keeps_it_whole(provider):
    """The second run goes on from the SDK's ``Session`` and begins with what the first one sent."""
    log = "\n".join(f"{second:04d} worker finished a step" for second in range(800))

    @function_tool
    def read_log() -> str:
        """Read the log."""
        return log

    own, kept = session(budget=ToolResultBudget(max_tokens=300)), SQLiteSession("talk-1")
    first = wrap(agent("critic", model_for("openai-responses", provider), tools=[read_log]), own)

    async def talk():
        await Runner.run(first, "Call read_log.", session=kept)
        await Runner.run(first, "And now?", session=kept)
        return await kept.get_items()

    items = asyncio.run(talk())
    assert log in str(items).replace("\\n", "\n")
    inputs = [record.json["input"] for record in provider.requests[1:]]
    sent = [next(one["output"] for one in said if one.get("type") == "function_call_output") for said in inputs]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert len(sent[0]) < len(log) / 4


def test_a_chain_of_answers_goes_on_from_what_each_agent_asked(provider):
    """``auto_previous_response_id``: what a fork said for its role alone is in no other's request."""
    own = session()

    async def chain():
        first = wrap(team_of(model_for("openai-responses", provider)), own)
        return await Runner.run(first, "Call transfer_to_critic.", auto_previous_response_id=True)

    assert asyncio.run(chain()).last_agent.name == "critic"
    assert b"You are the planner" not in provider.requests[-1].body
    assert not own.failures


def test_structured_outputs_are_the_schemas(provider):
    """A request with a schema is of another lane, and its answer the application's type."""

    class Verdict(BaseModel):
        good: bool

    first = wrap(agent("critic", model_for("openai-responses", provider), output_type=Verdict), session())
    assert asyncio.run(Runner.run(first, "Judge.")).final_output == Verdict(good=True)


def test_an_agent_is_not_shown_what_only_others_have_in_common(provider):
    """The shared text was found in most instructions, and this agent's do not hold it."""
    model = model_for("openai-responses", provider)
    guest = Agent("guest", instructions="You are a guest.", model=model)
    critic = agent("critic", model, handoffs=[guest])
    wrap(agent("planner", model, handoffs=[critic]), session())

    async def both():
        await Runner.run(critic, "Hello.")
        await Runner.run(guest, "Hello.")

    asyncio.run(both())
    assert b"every statement needs a source" not in provider.requests[-1].body


def test_errors_are_the_applications_and_ours_are_nobodys(provider, monkeypatch):
    """What the provider refuses reaches the caller; a fault of ours sends the request as it was asked."""
    own = session()
    refusing = SimulatedProvider("openai-5.6", lambda request: Reply(fault=Fault(status=400)))
    with refusing, pytest.raises(openai.BadRequestError):
        asyncio.run(Runner.run(wrap(agent("critic", model_for("openai-chat", refusing)), own), "Hello."))
    assert not own.calls
    monkeypatch.setattr("cacheprefix.bodies._read", lambda *given: 1 / 0)
    own = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    with pytest.warns(UserWarning, match="layout"):
        asyncio.run(Runner.run(wrap(agent("critic", model_for("openai-chat", provider)), own), "Hello."))
    assert provider.requests[0].json["messages"][0]["content"].startswith("You are the critic.")
    assert own.failures["layout"] == 1


def test_a_retry_of_the_runner_is_one_call():
    """An attempt that failed is none."""
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=retry_policies.http_status([500])))
    own = session()
    with SimulatedProvider("openai-5.6", Queue([Reply(fault=Fault(status=500)), Reply("Fine.")])) as shaky:
        first = wrap(agent("critic", model_for("openai-responses", shaky), model_settings=settings), own)
        assert asyncio.run(Runner.run(first, "Hello.")).final_output == "Fine."
    assert len(own.calls) == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_session_compacts_holds_no_role(wrapped):
    """It asks by the id of the last answer, with a client of its own: all roles go on from what is kept there."""
    asked = []

    async def post(self, path, *, body=None, **options):
        asked.append((path, body))
        raise ValueError(path)

    kind = type("AsyncOpenAI", (openai.AsyncOpenAI,), {"post": post, "__module__": "openai"})
    own = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    plain = kind(api_key="k")
    with SimulatedProvider("openai-5.6", Queue(["Fine."])) as provider:
        critic = agent("critic", model_for("openai-responses", provider))
        wrap(critic, own) if wrapped else None
        kept = OpenAIResponsesCompactionSession(
            "one", agents.SQLiteSession("one"), client=plain, should_trigger_compaction=lambda _: True
        )
        with pytest.raises(ValueError, match="compact"):
            asyncio.run(Runner.run(critic, "Hello.", session=kept))
    ((path, body),) = asked
    assert path == "/responses/compact"
    if wrapped:
        assert body["input"][0] == {"role": "user", "content": "Hello."}
        assert "Fine." in str(body["input"][1])
        assert len(body["input"]) == 2
    assert ("previous_response_id" in body) != wrapped
    assert own.failures == {}
    assert type(kept.client).__name__ == "AsyncOpenAI"


@pytest.mark.parametrize("named", [5, b"thread", ["thread"]])
def test_a_conversation_that_is_no_id_is_refused(named):
    """Each request would fail by it."""
    with pytest.raises(SetupError, match=r"conversation is a text, found .*use str\(...\)"):
        wrap(agents.Agent("critic"), session(), conversation=named)


def test_a_group_that_a_run_is_traced_under_may_be_any_object():
    """It is the application's; only its text names a conversation."""
    with SimulatedProvider("openai-5.6", Queue(["Fine."])) as provider:
        own = session()
        critic = wrap(agent("critic", model_for("openai-responses", provider)), own)
        agents.set_tracing_disabled(False)
        agents.set_trace_processors([])
        try:
            asyncio.run(Runner.run(critic, "Hello.", run_config=RunConfig(group_id=5)))
        finally:
            agents.set_tracing_disabled(True)
    assert own.failures == {}
    assert own.calls[0].conversation == "5"


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("name", ["", " ", "a\ud800", "</role>", "two\nlines", "n" * 300])
def test_an_agent_may_have_any_name(provider, name, mode):
    """The Agents SDK takes them all; a blank one raised ``SetupError`` in the midst of a run."""
    held = session(mode=mode)

    async def main():
        model = model_for("openai-responses", provider)
        first = Agent(name, instructions=f"You plan.\n\n{HANDBOOK}", model=model)
        wrap(first, held)
        for one in (first, first.clone(name=f"{name}2")):
            result = await Runner.run(one, "What now?", run_config=RunConfig(group_id=f"group {name}"))
            assert result.final_output
        await model._client.close()

    asyncio.run(main())
    assert len(held.calls) == len(provider.requests) == 2
    assert not held.failures


def test_only_what_asks_models_can_be_wrapped():
    """The hook of ``cacheprefix.wrap`` leaves the rest to other adapters."""
    with pytest.raises(SetupError, match="agent"):
        wrap(print)
    assert cacheprefix_wrap(print, session()) is None


@pytest.mark.parametrize("pattern", ["handoffs", "tools"])
def test_the_example_runs_offline_in_both_layouts(monkeypatch, capsys, pattern):
    """The report of each layout is JSON, and the shared one is the cheaper."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "MODEL"):
        monkeypatch.delenv(variable, raising=False)
    cost = {}
    for layout in ("unmodified", "shared"):
        monkeypatch.setattr(sys, "argv", ["team", "--layout", layout, "--pattern", pattern, "--json"])
        runpy.run_path(str(ROOT / "examples" / "openai_agents" / "team.py"), run_name="__main__")
        report = json.loads(capsys.readouterr().out)["report"]
        assert report["failures"] == {}
        cost[layout] = report["total"]["cost_units"]
    assert cost["shared"] < 0.8 * cost["unmodified"]


def test_agents_whose_tools_of_one_name_differ_are_wrapped(provider):
    """Each keeps its own; that is said, and no set-up of the application's fails by it."""
    own, model = session(), model_for("openai-chat", provider)
    schema = {"type": "object", "properties": {}}
    critic, planner = (
        agent(name, model, tools=[tool("look", f"As the {name} looks.", schema, str)]) for name in ("critic", "planner")
    )
    planner.handoffs = [critic]
    wrap(planner, own)
    assert any("look" in note for note in own.report().notes)
    assert own.failures == {}
    assert unwrap(planner).model is critic.model is model


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
def test_nobody_is_shown_a_tool_that_was_made_for_another(provider, way):
    """Tenants are children of one session and have a tool of one name; else agents are made anew for each person."""
    own = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    form, anew = {"type": "object", "properties": {}}, way.startswith("conversations")

    def has(user):
        return user == "acme" or not way.endswith("alone")

    def made(user):
        name = f"house_{user}" if anew else "house"
        house = tool(name, f"Asks the house of {user}.", form, lambda: "")
        model, its = model_for("openai-chat", provider), own if anew else own.child(user, scope=user)
        talk = user if anew else "one"
        kits = {"planner": [house] if has(user) else [], "critic": []}
        return [wrap(agent(name, model, tools=kit), its, conversation=talk) for name, kit in kits.items()]

    async def go():
        if way == "conversations" or not anew:
            first = wrap(agent("greeter", model_for("openai-chat", provider)), own, conversation="first")
            await Runner.run(first, "Good morning.")
        teams = {user: made(user) for user in ("acme", "beta")} if way == "tenants wrapped first" else {}
        for user, other in (("acme", "beta"), ("beta", "acme")) * 2:
            if user not in teams:
                teams[user] = made(user)
            seen = len(provider.requests)
            for each in teams[user]:
                await Runner.run(each, "What now?")
            shown = [record.body for record in provider.requests[seen:]]
            assert (f"house of {user}".encode() in shown[0]) is has(user)
            assert not [body for body in shown if f"house of {other}".encode() in body]

    asyncio.run(go())
    assert own.failures == {}


def test_roles_that_are_named_after_users_stop_sharing_their_tools(provider):
    """All are made before the first request, like a team; four conversations without a common role show it is none."""
    users, form = ("alice", "bob", "carol", "dave", "erin", "frank"), {"type": "object", "properties": {}}
    own = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    model = model_for("openai-chat", provider)
    kits = {user: [tool(f"look_{user}", f"Looks into the inbox of {user}.", form, str)] for user in users}
    helpers = {user: wrap(agent(f"helper_{user}", model, tools=kits[user]), own, conversation=user) for user in users}

    async def go():
        for user in users * 2:
            await Runner.run(helpers[user], "What now?")

    asyncio.run(go())
    seen = [{user for user in users if f"inbox of {user}".encode() in one.body} for one in provider.requests]
    assert max(map(len, seen)) > 1
    assert seen[3:] == [{user} for user in (*users[3:], *users)]
    assert own.failures == {}


@pytest.mark.parametrize("api", APIS)
async def test_what_a_models_client_writes_into_the_tools_of_a_request_is_on_the_wire_of_no_other(provider, api):
    """A client of the application's own class; another agent asks, and each for another user."""
    model = model_for(api, provider)

    class Noting(openai.AsyncOpenAI):
        async def post(self, path, *, body=None, **options):
            if not provider.requests:
                note(body["tools"])
            return await super().post(path, body=body, **options)

    model._client.__class__ = Noting
    made, own = team_of(model), session()
    wrap(made, own)
    critic = made.handoffs[0]
    for first, whose in ((made, "Ann"), (critic, "Ann"), (critic, "Ben"), (made, "Ben")):
        await Runner.run(first, "Go on.", run_config=RunConfig(group_id=whose))
    await model._client.close()
    assert noted(provider) == [True, False, False, False]
    assert [call.layout for call in own.calls] == ["fork"] * 4
