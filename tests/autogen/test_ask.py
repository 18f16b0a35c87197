"""Questions beside a conversation."""

from __future__ import annotations

import re

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index

from cacheprefix import Caching, ForkPolicy, Session
from cacheprefix.errors import SetupError
from cacheprefix.history import Compaction
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_autogen import ForkRequest, PrefixClient, ask, session_of, wrap
from cacheprefix_autogen.settings import session_of_settings


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_side_question_reads_the_teams_prefix_and_leaves_no_trace(provide, new_client, api):
    """It shares all that was said, and the next turn is what it would have been."""
    provider = provide(api, Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider, api=api)) for n in ROLES], max_turns=2))
    await team.run(task=TASK)
    provider.simulator.script = Queue([Reply("Forty-two.")], then=Says())
    result = await ask(team, "How much is it?")
    assert result.text == "Forty-two."
    await team.run(task="Go on.")
    sent = prompts(provider.requests)
    assert common(sent[1], sent[2]) == tail_index(sent[1])
    assert "How much is it?" in sent[2].sections[-1].text
    assert not any("How much is it?" in s.text for prompt in sent[3:] for s in prompt.sections)
    assert result.verdicts[0].reported_tokens > 2000
    assert [call.purpose for call in session_of(team).calls if call.agent == "helper"] == ["ephemeral_helper"]


class Summarising:
    """A model that can sum up, and else speaks as its roles do."""

    def __init__(self):
        self._roles = Says()

    def __call__(self, request):
        return Reply("What was said.") if "summar" in request.tail.lower() else self._roles(request)


async def test_whatever_is_asked_beside_a_conversation_stays_with_its_tenant(provide, new_client):
    """Turns, summaries, memory extraction and side questions of two tenants on one session keep to their own lanes."""
    provider = provide("openai", Summarising())
    session = Session(compaction=Compaction(3000, summarise="fork", summary_tokens=120))
    for tenant in ("acme", "beta"):
        team = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=8)
        wrap(team, session, scope=tenant)
        before = len(session.calls)
        await team.run(task=TASK)
        await ask(team, "Why?")
        await ask(team, "What is worth keeping?", role="memory", policy=ForkPolicy.memory_update())
        calls = session.calls[before:]
        assert calls[0].verdict.expected_tokens == 0
        summaries = [call for call in calls if call.agent.endswith("summary")]
        assert summaries
        assert all(call.verdict.expected_tokens > 1500 for call in (*summaries, *calls[-2:]))
        assert session.adapter.known(calls[0].conversation, tenant).ledger.epoch > 0
        assert session.adapter.known(calls[0].conversation) is None
    assert session.failures == {}


async def test_the_tenant_goes_with_a_dumped_client_and_a_fork_request(provide, new_client):
    """Loaded elsewhere, neither finds itself on a session of somebody else's."""
    provider = provide("openai", Says())
    agents = [role(n, new_client(provider)) for n in ROLES]
    wrap(RoundRobinGroupChat(agents, max_turns=1), scope="acme")
    asked = ForkRequest.model_validate_json(ForkRequest.of(agents[0]).model_dump_json())
    assert asked.prefix.scope == "acme"
    client = PrefixClient(new_client(provider), Session(caching=Caching(scope="acme")))
    assert client.dump_component().config["prefix"]["scope"] == "acme"
    before = len(provider.requests)
    await asked.answer(new_client(provider))
    assert len(provider.requests) == before + 1
    assert session_of_settings(asked.prefix).scope == "acme"


async def test_a_worker_uses_the_agents_tools(provide, new_client):
    """A fork with more turns runs its own tool loop on the parent's tools."""
    provider = provide("openai", Says())
    agents = [role(n, new_client(provider), tools=[search()]) for n in ROLES[:2]]
    team = wrap(RoundRobinGroupChat(agents, max_turns=1))
    await team.run(task=TASK)
    provider.simulator.script = Queue([Reply(tool_calls=(ToolCall("search", {"query": "q"}),)), "Found."])
    result = await ask(team, "Look it up.", role="researcher", policy=ForkPolicy.worker())
    assert (result.text, result.turns) == ("Found.", 2)
    assert "search for q" in provider.requests[-1].prompt.sections[-1].text


async def test_only_what_is_wrapped_can_be_asked(provide, new_client):
    """The error says what to do."""
    with pytest.raises(SetupError, match="wrap it first"):
        await ask(role("planner", new_client(provide("openai"))), "Why?")


async def test_an_option_that_does_not_exist_is_named(provide, new_client):
    """As for any function: a slip is no option that is silently left out."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=1))
    await team.run(task=TASK)
    with pytest.raises(TypeError, match=r"no option 'polcy'.*policy"):
        await ask(team, "Why?", polcy=ForkPolicy.worker())


async def test_no_team_is_shown_a_text_that_was_found_in_anothers_prompts(provide, new_client):
    """Nobody gave the session a shared text: the first team's is its own, and the second one asks with its own."""
    provider = provide("openai", Says())
    session, client = Session(), new_client(provider)
    for user in ("alice", "bob"):
        text = f"{HANDBOOK}\n\n{user} likes tea."
        agents = [AssistantAgent(name, client, system_message=f"{text}\n\nYou are {name}.") for name in ("one", "two")]
        team = wrap(RoundRobinGroupChat(agents, max_turns=2), session)
        await team.run(task=TASK)
        await ask(team, "What was said?")
        said = provider.requests[-1].body.decode()
        assert re.findall("(alice|bob) likes tea", said) == [user]
        assert said.count("What was said?") == 1
    # Each call counts once for a reason, in its own list and in the report.
    assert all(len({*call.reasons}) == len(call.reasons) for call in session.calls)
    assert {one.count for one in session.report().layouts if one.reason.why == "text_taken"} == {1}
    assert "give Session(SharedPrefix(system=...)) what all teams" in str(session.report())
    assert "the very text of" not in str(session.report())


async def test_no_team_is_shown_a_tool_that_was_made_for_another(provide, new_client):
    """Teams are made anew for each person, whom no tenant tells apart."""
    provider, session = provide("openai", Says()), Session()
    for user, other in (("acme", "beta"), ("beta", "acme")) * 2:

        def run(q: str) -> str:
            return q

        kit = [FunctionTool(run, name=f"house_{user}", description=f"Asks the house of {user}.")]
        agents = [role(n, new_client(provider), tools=kit if n == ROLES[0] else []) for n in ROLES]
        seen = len(provider.requests)
        team = wrap(RoundRobinGroupChat(agents, max_turns=3), session)
        await team.run(task=TASK)
        await ask(team, "Why?")
        shown = b"".join(record.body for record in provider.requests[seen:])
        assert b"house of " + user.encode() in shown
        assert b"house of " + other.encode() not in shown
    assert session.failures == {}


@pytest.mark.parametrize("before", [True, False], ids=["wrapped first", "wrapped later"])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_no_tenant_is_shown_anothers_tool_of_the_same_name(provide, new_client, api, before):
    """Nor are its agents that have none of that name."""
    provider, session = provide(api, Says()), Session()

    def made(tenant):
        def run(q: str) -> str:
            return q

        kit = [FunctionTool(run, name="house", description=f"Asks the house of {tenant}.")]
        agents = [role(n, new_client(provider, api=api), tools=kit if n == ROLES[0] else []) for n in ROLES]
        return wrap(RoundRobinGroupChat(agents, max_turns=3), session, scope=tenant)

    teams = {tenant: made(tenant) for tenant in ("acme", "beta")} if before else {}
    for tenant in ("acme", "beta", "acme"):
        if tenant not in teams:
            teams[tenant] = made(tenant)
        seen = len(provider.requests)
        await teams[tenant].run(task=TASK)
        shown = b"".join(record.body for record in provider.requests[seen:])
        assert b"house of " + tenant.encode() in shown
        assert b"house of " + {"acme": b"beta", "beta": b"acme"}[tenant] not in shown
    assert session.failures == {}
