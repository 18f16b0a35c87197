"""What may never break, on recorded requests of real teams."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, FunctionExecutionResult, FunctionExecutionResultMessage, UserMessage
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.autogen_workloads import WORKLOADS
from benchmarks.bench_autogen import RULES, run, summed
from cacheprefix import CacheprefixWarning, Compaction, Session, SharedPrefix, ToolResultBudget
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import chain, lane_key
from cacheprefix.server import Reply, ToolCall
from cacheprefix_autogen import session_of, wrap
from cacheprefix_autogen.history import Views, condensed
from cacheprefix_autogen.member import Member
from tests.drawn import examples

STEPS = {name: (ToolCall("search", {"query": name}), f"{name} is done") for name in ROLES}


def _team(client, **options):
    return RoundRobinGroupChat(
        [role(n, client, tools=[search()], reflect_on_tool_use=True, **options) for n in ROLES], max_turns=4
    )


def _without_ids(value):
    """Call ids follow from the whole prompt at the simulated provider; here only what was said counts."""
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in ("id", "tool_call_id")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_every_fork_begins_with_the_same_prefix_in_the_same_lane(provide, new_client, api):
    """Tools, system text and what was said before are equal section for section; lane and salts too."""
    provider = provide(api, Says(STEPS))
    own = {name: search(f"look_{name}") for name in ROLES}
    agents = [role(n, new_client(provider, api=api), tools=[own[n]], reflect_on_tool_use=True) for n in ROLES]
    steps = {name: (ToolCall(f"look_{name}", {"query": name}), f"{name} is done") for name in ROLES}
    provider.simulator.script = Says(steps)
    team = wrap(RoundRobinGroupChat(agents, max_turns=3))
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert len(sent) == 6
    rules = default_registry().profile_for(sent[0].model, api=sent[0].api).settings
    assert len({lane_key(prompt, rules) for prompt in sent}) == 1
    for before, after in pairwise(sent):
        end = tail_index(before)
        assert common(before, after) >= end
        assert chain(before, rules)[end - 1] == chain(after, rules)[end - 1]
    assert session_of(team).failures == {}


async def test_a_saved_ledger_replays_byte_for_byte_under_another_budget(provide, new_client):
    """What was shortened once stays shortened the same way, whatever budget the new session has."""

    def wrapped(tokens):
        session = Session(budget=None if tokens is None else ToolResultBudget(max_tokens=tokens))
        team = RoundRobinGroupChat([role(n, new_client(provider), tools=[search()]) for n in ROLES], max_turns=2)
        return wrap(team, session)

    provider = provide("openai", Says({n: (ToolCall("search", {"query": "q"}),) for n in ROLES}))
    team = wrapped(100)
    await team.run(task=TASK)
    state = json.loads(json.dumps(await team.save_state()))
    provider.requests.clear()
    await team.run(task="Go on.")
    uninterrupted = [_without_ids(record.json) for record in provider.requests]
    for tokens in (400, None):
        provider.requests.clear()
        other = wrapped(tokens)
        await other.load_state(state)
        await other.run(task="Go on.")
        first = uninterrupted[0]["messages"]
        assert _without_ids(provider.requests[0].json)["messages"] == first
    assert len(first[2]["content"]) < 1000 < len(search()("q"))


def _turn(number: int, results: list[int]) -> list:
    calls = [FunctionCall(id=f"c{number}_{i}", name="search", arguments="{}") for i in range(len(results))]
    answers = [
        FunctionExecutionResult(content="found " * size, name="search", call_id=call.id)
        for call, size in zip(calls, results, strict=True)
    ]
    tools = [AssistantMessage(content=calls, source="a"), FunctionExecutionResultMessage(content=answers)]
    return [UserMessage(content=f"[user]\nask {number} " * 40, source="user"), *(tools if calls else [])]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(st.integers(0, 900), max_size=3), min_size=1, max_size=8))
def test_no_call_is_parted_from_its_result(turns):
    """Whatever is shortened or compacted, calls and results come in pairs and in order, and nothing is empty."""
    messages = [message for number, results in enumerate(turns) for message in _turn(number, results)]
    session = Session(budget=ToolResultBudget(max_tokens=100), compaction=1500)
    found = condensed(Views(session.adapter, "gpt-4o"), session.conversation("c"), messages, first_own=len(messages))
    out = found.messages
    assert found.first_own == len(out)
    open_calls: list[str] = []
    for message in out:
        if isinstance(message, FunctionExecutionResultMessage):
            assert [result.call_id for result in message.content] == open_calls
            open_calls = []
            continue
        assert open_calls == []
        assert message.content
        if isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.content]
    again = condensed(Views(session.adapter, "gpt-4o"), session.conversation("c"), messages, first_own=len(messages))
    assert again.messages == out


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_no_call_is_parted_from_its_result_on_the_wire(provide, new_client, api):
    """Parallel calls, an unknown one and large results stay in pairs and in order under budget and compaction."""
    calls = (*(ToolCall("search", {"query": f"q{n}"}) for n in range(3)), ToolCall("no_such_tool", {"a": "\u20ac"}))
    provider = provide(api, lambda request: Reply(tool_calls=calls) if request.rounds < 3 else Reply("Found. " * 40))
    client = new_client(provider, api=api)
    agents = [role(n, client, tools=[search()], max_tool_iterations=4) for n in ROLES]
    session = Session(budget=ToolResultBudget(max_tokens=250), compaction=4200)
    await wrap(RoundRobinGroupChat(agents, max_turns=5), session).run(task=TASK)
    assert session.failures == {}
    assert session.adapter.known(session.calls[0].conversation).ledger.epoch > 0
    assert max(len(record.json["messages"]) for record in provider.requests) > 6
    for record in provider.requests:
        waiting: list[str] = []
        for message in record.json["messages"]:
            called, answered = _pairs(message)
            if answered:
                assert answered == waiting[: len(answered)]
                waiting = waiting[len(answered) :]
            else:
                assert waiting == []
                waiting = called
                assert called or message["content"]
        assert waiting == []


def _pairs(message):
    """Ids of a wire message's calls, and of those it answers."""
    blocks = message["content"] if isinstance(message.get("content"), list) else []
    called = [call["id"] for call in message.get("tool_calls") or ()]
    called += [block["id"] for block in blocks if block.get("type") == "tool_use"]
    answered = [message["tool_call_id"]] if "tool_call_id" in message else []
    return called, answered + [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]


async def test_each_turns_requests_only_grow_at_their_end(provide, new_client):
    """Each begins with the whole one before it, or with all that was said: an agent's own last one, where it stayed."""
    loop = {name: (*(ToolCall("search", {"query": f"q{n}"}) for n in range(2)), "Found.") for name in ROLES}
    provider = provide("openai", Says(loop))
    agents = [role(n, new_client(provider), tools=[search()], max_tool_iterations=4) for n in ROLES]
    await wrap(RoundRobinGroupChat(agents, max_turns=4)).run(task=TASK)
    sent = prompts(provider.requests)
    assert len(sent) == 12
    for at, (before, after) in enumerate(pairwise(sent), 1):
        # The fourth turn is the planner's second: behind its role's text stand its own results, which it reads again.
        last = sent[2] if at == 9 else before
        assert common(last, after) == (len(last.sections) if at % 3 or at == 9 else tail_index(before))


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
async def test_observing_leaves_every_byte(provide, new_client, api, stream):
    """In observe mode the bodies are those of the unwrapped team, byte for byte."""
    bodies = []
    for session in (None, Session(mode="observe")):
        provider = provide(api, Says(STEPS))
        team = _team(new_client(provider, api=api), model_client_stream=stream)
        if session is not None:
            wrap(team, session, volatile=lambda: {"now": "noon"})
        await team.run(task=TASK)
        bodies.append([record.body for record in provider.requests])
    assert bodies[0] == bodies[1]
    assert len(session.calls) == len(bodies[1])


async def test_whatever_of_ours_fails_sends_the_applications_own_request(provide, new_client, monkeypatch):
    """When the layout raises, the call goes out as it was, and the failure is counted and named once."""

    def fail(*_):
        message = "broken on purpose"
        raise RuntimeError(message)

    bodies = []
    for broken in (False, True):
        provider = provide("openai", Says(STEPS))
        team = _team(new_client(provider))
        if broken:
            session = Session(mode="fork")
            wrap(team, session)
            monkeypatch.setattr(Member, "layout", fail)
            with pytest.warns(CacheprefixWarning, match="broken on purpose") as caught:
                await team.run(task=TASK)
            assert len(caught) == 1
        else:
            await team.run(task=TASK)
        bodies.append([record.json for record in provider.requests])
    assert [_without_ids(b["messages"]) for b in bodies[0]] == [_without_ids(b["messages"]) for b in bodies[1]]
    assert session.failures["layout"] == len(bodies[1])


async def test_two_teams_on_one_session_and_client_keep_their_conversations(provide, new_client):
    """Nothing that one team said is in the other's requests, run side by side."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    teams = [
        wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=3), session)
        for _ in range(2)
    ]
    await asyncio.gather(*(team.run(task=f"{TASK} mark-{i}") for i, team in enumerate(teams)))
    for record in provider.requests:
        texts = " ".join(section.text for section in record.prompt.sections)
        assert ("mark-0" in texts) != ("mark-1" in texts)
    assert len({call.conversation for call in session.calls}) == 2


async def test_reports_hold_no_prompt_text(provide, new_client):
    """What is printed or saved as a report does not quote the conversation."""
    provider = provide("openai", Says({"planner": (ToolCall("search", {"query": "secret"}), "done")}))
    agents = [role(n, new_client(provider), tools=[search()], reflect_on_tool_use=True) for n in ROLES]
    team = wrap(RoundRobinGroupChat(agents, max_turns=4))
    await team.run(task=f"{TASK} secret")
    report = session_of(team).report()
    assert "secret" not in str(report)
    assert "secret" not in json.dumps(report.as_dict())


@pytest.mark.slow
# AutoGen dumps the SDK's parsed answer, which the SDK's own types do not foresee.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("rules", RULES[:2], ids=lambda rules: f"read {rules.read_price:g}")
@pytest.mark.parametrize(
    "name", ["MagenticOne", "AgentTool", "SelectorGroupChat, allow", "1 agent x3 tasks, tools, max"]
)
def test_the_rows_that_share_least_are_never_dearer(name, rules):
    """Where sharing does not pay, the adapter leaves the application's requests as they are."""
    workload = next(w for w in WORKLOADS if name in w.name)
    plain, _ = run(workload, rules, shared=False)
    wrapped, session = run(workload, rules, shared=True)
    assert summed(wrapped, rules)["cost_units"] <= summed(plain, rules)["cost_units"]
    assert session.failures == {}


async def test_a_compaction_leaves_what_was_said_last_to_an_agent_that_has_called_tools(provide, new_client):
    """Its own calls of earlier turns are older than what it is to answer to, and go before that."""
    said = [f"critic part {n}. " + f"Reason {n} of the critic. " * 300 for n in range(3)]
    provider = provide("openai", Says({"critic": said, "planner": [ToolCall("search", {"query": "q"})]}))
    client, session = new_client(provider), Session(compaction=Compaction(trigger=4_000, horizon=1_000))
    agents = [role("critic", client), role("planner", client, tools=[search(result="Found.")])]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2), session)
    for number in range(3):
        await team.run(task=f"Part {number} of the task.")
    asked = [record.body.decode() for record in list(provider.requests)[1::2]]
    assert any("Earlier messages were removed" in body for body in asked)
    assert [f"critic part {number}." in body for number, body in enumerate(asked)] == [True] * 3
    assert not session.failures
