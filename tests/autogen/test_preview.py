"""What a preview says of a team is what the team then sends, and nothing comes of the preview itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_agentchat.agents import MessageFilterAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.agents._message_filter_agent import MessageFilterConfig, PerSourceFilter
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core.memory import ListMemory
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.tools import FunctionTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_teams import HANDBOOK, ROLES, TASK, role, search

from cacheprefix import Caching, Session, SharedPrefix, preview
from cacheprefix.dry_run import AgentPreview, Preview
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, Request
from cacheprefix_autogen import ForkAgent, wrap

RULES = {"openai": "openai", "anthropic": "anthropic"}
LONG_TASK = TASK * 5


def brief(_: Request) -> Reply:
    """An answer that hardly counts in what others read; the next speaker is always the same."""
    return Reply("reader")


def fan_out(client: Any, **options: Any) -> GraphFlow:
    """Three roles side by side."""
    agents = [role(name, client, **options) for name in ROLES]
    graph = DiGraphBuilder()
    for agent in agents:
        graph.add_node(agent)
    return GraphFlow(agents, graph.build())


def in_turn(client: Any, **options: Any) -> RoundRobinGroupChat:
    """Three roles one after the other."""
    return RoundRobinGroupChat([role(name, client, **options) for name in ROLES], max_turns=3)


def with_tools(client: Any) -> RoundRobinGroupChat:
    """Each role with a tool of its own, and one whose context is bounded."""
    agents = [role(name, client, tools=[search(f"search_{name}")]) for name in ROLES]
    bounded = role("reader", client, model_context=BufferedChatCompletionContext(4))
    return RoundRobinGroupChat([*agents, bounded], max_turns=4)


def unlike(client: Any) -> RoundRobinGroupChat:
    """Long duties of their own, and nothing in common."""
    agents = [role(n, client, system_message=f"You are the {n}. {f'Duty of {n}. ' * 900}") for n in ROLES]
    return RoundRobinGroupChat(agents, max_turns=3)


def chosen(client: Any) -> SelectorGroupChat:
    """A model says who speaks."""
    agents = [role(name, client) for name in ("reader", *ROLES)]
    return SelectorGroupChat(agents, client, termination_condition=MaxMessageTermination(2))


def alone(client: Any) -> RoundRobinGroupChat:
    """One agent, by itself."""
    return RoundRobinGroupChat([role("reader", client)], max_turns=1)


async def foreseen(*given: Any, **options: Any) -> Preview:
    """A preview, made beside the event loop."""
    return await asyncio.to_thread(preview, *given, **options)


def agrees(seen: AgentPreview, call: Any) -> None:
    """An agent's preview and its first call, but for what the answers that nobody could foresee come to."""
    assert (seen.agent, seen.model, seen.layout) == (call.agent, call.model, call.layout)
    for one, came in zip(seen.reasons, call.reasons, strict=True):
        assert (one.why, one.name) == (came.why, came.name)
        assert dict(one.numbers) == pytest.approx(dict(came.numbers), rel=0.02)


def counted(one: Any) -> list[float]:
    """What a request comes to."""
    return [one.input_tokens, one.shared_tokens, one.units, one.unmodified_units]


def first_calls(session: Session) -> dict[str, Any]:
    """Each agent's first call."""
    found: dict[str, Any] = {}
    for call in session.calls:
        found.setdefault(call.agent, call)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("build", [fan_out, in_turn, with_tools, unlike, chosen, alone])
async def test_what_was_foreseen_is_what_is_sent(provide, new_client, build, api):
    """Agent, layout, reasons, tokens and costs of each first request, by the provider's own count."""
    provider = provide(RULES[api], brief)
    build_team = lambda: build(new_client(provider, api=api))  # noqa: E731
    seen = await foreseen(build_team(), Session(), task=LONG_TASK)
    assert not provider.requests
    session = Session()
    await wrap(build_team(), session).run(task=LONG_TASK)
    calls = first_calls(session)
    asked = [one for one in seen.requests if one.agent in calls]
    assert len(asked) == len(calls)
    for one in asked:
        agrees(one, calls[one.agent])
    told, came = [counted(one) for one in asked], [counted(calls[one.agent]) for one in asked]
    if build is fan_out:
        # Of those that ask side by side, chance says which one writes what the others read, and which one ends first.
        told, came = (sorted(each, key=lambda counts: counts[1]) for each in (told, came))
    for one, call in zip(told, came, strict=True):
        assert one == pytest.approx(call, rel=0.02)


async def test_what_is_foreseen_of_further_conversations_is_what_they_cost(provide, new_client):
    """Teams made anew for each of many short conversations: the report from the second one on."""
    provider = provide("openai", brief)

    def build():
        client = new_client(provider, model="gpt-4.1-2025-04-14")
        agents = [
            role(name, client, tools=[search(f"search_{name}")], system_message=f"{HANDBOOK}\n\nYou are the {name}.")
            for name in ROLES
        ]
        return RoundRobinGroupChat(agents, max_turns=3)

    caching = Caching(provider="openai", counter=ESTIMATE)
    seen = await foreseen(build(), Session(caching=caching), task="Which one?")
    session = Session(caching=caching)
    for number in range(4):
        await wrap(build(), session).run(task=f"{number}: which one?")
    further = session.calls[len(ROLES) :]
    assert len(further) == 3 * len(ROLES)
    cost, own = sum(one.units for one in further), sum(one.unmodified_units for one in further)
    assert seen.further_ratio == pytest.approx(cost / own, rel=0.02)
    assert seen.ratio < 0.9
    assert seen.further_ratio > 1.0


async def test_a_client_of_autogen_0_7_4_is_foreseen_too(provide, new_client):
    """Which has the tools that it repeats no sooner than with its first request that has some."""
    client = new_client(provide("anthropic", brief), api="anthropic", fresh=True)
    vars(client).pop("_last_used_tools", None)
    seen = await foreseen(with_tools(client), Session(), task=LONG_TASK)
    assert len(seen.requests) > 1
    assert not any("failed" in note for note in seen.notes)


async def bodies(provider: Any, team: Any, session: Session) -> list[bytes]:
    """What a team's run sends."""
    before = len(provider.requests)
    await wrap(team, session).run(task=LONG_TASK)
    return [record.body for record in provider.requests[before:]]


@pytest.mark.parametrize("build", [fan_out, in_turn, with_tools, chosen])
async def test_a_run_after_a_preview_sends_what_it_would_have_sent(provide, new_client, build):
    """Byte for byte; the team, its session and its clients are as they were."""
    provider = provide("openai", brief)
    client = new_client(provider)
    team, session = build(client), Session()
    state = [dict(vars(one)) for one in (team, *team._participants, client, client._client)]
    first = await foreseen(team, session, task=LONG_TASK)
    assert [dict(vars(one)) for one in (team, *team._participants, client, client._client)] == state
    assert session.calls == () == session.prefix.tools
    assert session.prefix.text == ""
    assert (await foreseen(team, session, task=LONG_TASK)).as_dict() == first.as_dict()
    after = await bodies(provider, team, session)
    assert sorted(after) == sorted(await bodies(provider, build(client), Session()))


async def test_a_team_that_has_run_is_seen_from_its_beginning(provide, new_client):
    """Wrapped or not; its conversation goes on untouched."""
    provider = provide("openai", brief)
    client = new_client(provider)
    team, session = in_turn(client), Session()
    first = await foreseen(team, session, task=LONG_TASK)
    wrap(team, session)
    await team.run(task=LONG_TASK)
    state = await team.save_state()
    assert (await foreseen(team, session, task=LONG_TASK)).requests == first.requests
    assert await team.save_state() == state
    assert len(provider.requests) == 3


async def test_nothing_of_the_application_is_run(provide, new_client):
    """No tool, memory, person or model: what only they know is said."""
    provider = provide("openai", brief)
    client, ran = new_client(provider), []

    def look(query: str) -> str:
        """Looks."""
        ran.append(query)
        return query

    def asked(*_: Any) -> str:
        ran.append("person")
        return ""

    class Remembers(ListMemory):
        async def update_context(self, model_context):
            ran.append("memory")
            return await super().update_context(model_context)

    helper = AgentTool(role("helper", client))
    team = RoundRobinGroupChat(
        [
            role("reader", client, tools=[FunctionTool(look, "Looks."), helper], memory=[Remembers()]),
            MessageFilterAgent(
                "filter", role("critic", client), MessageFilterConfig(per_source=[PerSourceFilter(source="x")])
            ),
            ForkAgent(role("writer", client), Session()),
            SocietyOfMindAgent("mind", RoundRobinGroupChat([role("inner", client)], max_turns=1), client),
            UserProxyAgent("person", input_func=asked),
            role("replayed", ReplayChatCompletionClient(["never"])),
        ],
        max_turns=1,
    )
    seen = await foreseen(team, Session(SharedPrefix(system=HANDBOOK)), task=LONG_TASK)
    assert not ran
    assert not provider.requests
    assert [one.agent for one in seen.requests] == [
        "reader",
        "helper/helper",
        "critic",
        "writer",
        "mind",
        "replayed",
        "mind/inner",
    ]
    notes = "\n".join(seen.notes)
    for part in ("reader: what its memory adds", "helper: works as a tool", "mind: what it asks", "person: asks no"):
        assert part in notes
    assert isinstance(seen, Preview)
    assert not getattr(helper._task_runner, "__cacheprefix__", None)
