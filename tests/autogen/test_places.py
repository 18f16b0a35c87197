"""Where a role's text stands: a long one stays where the role last had it while that costs less than moving it."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cacheprefix import Session
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.server import Reply, SimulatedProvider, ToolCall
from cacheprefix_autogen import session_of, wrap


def _duty(name, tokens):
    """The role's own text."""
    return f"You are the {name}. " + f"Mind rule {len(name)} of a {name}. " * (tokens // 7)


def _team(client, tokens, *, handbook_first=False, **options):
    """Three roles with texts of so many tokens before (or behind) the common handbook; each speaks once a run."""
    agents = []
    for name in ROLES:
        parts = [HANDBOOK, _duty(name, tokens)] if handbook_first else [_duty(name, tokens), HANDBOOK]
        agents.append(role(name, client, system_message="\n\n".join(parts), **options))
    return RoundRobinGroupChat(agents, max_turns=3)


def _answers(words=5):
    """A model that numbers its short answers."""
    numbers = iter(range(10_000))
    return lambda _: Reply(f"Answer {next(numbers)}. " + "word " * words)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_long_role_text_keeps_its_place_and_each_request_begins_with_the_whole_last_one(
    provide, new_client, api
):
    """What is said later stands behind it, so that only that is new; on Anthropic the end is marked for it."""
    provider = provide(api, _answers())
    team = wrap(_team(new_client(provider, api=api), 600))
    for number in range(5):
        await team.run(task=f"Question {number}?")
    assert session_of(team).failures == {}
    sent = prompts(provider.requests)
    for first in range(3):
        # The second turn writes the text where the third one finds it.
        own = sent[3 + first :: 3] if api == "anthropic" else sent[first::3]
        assert len({tail_index(prompt) for prompt in own}) == 1
        for before, after in pairwise(own):
            assert common(before, after) == len(before.sections) < len(after.sections)
    last = provider.requests[-1]
    read = normalise_usage(last.usage, last.api).cache_read_tokens or 0
    assert read > sum(section.tokens for section in sent[-4].sections) - 130


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_short_role_text_stands_behind_everything(provide, new_client, api):
    """It costs little there, and the others read all that stands before it."""
    provider = provide(api, _answers())
    team = wrap(_team(new_client(provider, api=api), 40))
    for number in range(3):
        await team.run(task=f"Question {number}?")
    for prompt in prompts(provider.requests):
        assert tail_index(prompt) == len(prompt.sections) - 1


async def test_a_long_role_text_keeps_its_place_during_a_turn(provide, new_client):
    """A tool loop behind it only grows at its end."""
    steps = {name: (ToolCall("search", {"query": "q"}), f"{name} is done") for name in ROLES}
    provider = provide("openai", Says(steps))
    team = wrap(_team(new_client(provider), 600, tools=[search(result="Found.")], reflect_on_tool_use=True))
    for number in range(3):
        await team.run(task=f"Question {number}?")
    sent = prompts(provider.requests)
    assert len(sent) == 18
    for before, after in zip(sent[::2], sent[1::2], strict=True):
        assert common(before, after) == len(before.sections)
    assert tail_index(sent[-1]) == tail_index(sent[4])


async def test_what_a_memory_says_is_the_agents_own_and_stays_where_it_was_said(provide, new_client):
    """The role's text keeps its place before it, and the requests of an agent only grow."""
    provider = provide("openai", _answers())
    memory = ListMemory()
    await memory.add(MemoryContent(content="Remember this.", mime_type="text/plain"))
    team = wrap(_team(new_client(provider), 200, memory=[memory]))
    for number in range(3):
        await team.run(task=f"Question {number}?")
    sent = prompts(provider.requests)
    assert all(sum("Remember this." in section.text for section in prompt.sections) == 1 for prompt in sent)
    for first in range(3):
        for before, after in pairwise(sent[first::3]):
            assert common(before, after) == len(before.sections) < len(after.sections)


@pytest.mark.parametrize("handbook_first", [False, True])
async def test_a_resumed_team_finds_a_long_role_text_in_its_place(provide, new_client, handbook_first):
    """A new session with the saved state sends the bytes that the first one would have sent."""
    provider = provide("openai", _answers(40))
    team = wrap(_team(new_client(provider), 600, handbook_first=handbook_first))
    for number in range(3):
        await team.run(task=f"Question {number}?")
    state = json.loads(json.dumps(await team.save_state()))
    sent = []
    for again in (team, wrap(_team(new_client(provider), 600, handbook_first=handbook_first))):
        if again is not team:
            await again.load_state(state)
        provider.simulator.script = _answers(40)
        provider.requests.clear()
        await again.run(task="Go on.")
        sent.append([record.json for record in provider.requests])
    assert sent[0] == sent[1]
    forked = "<role name=" in str(sent[0][0]["messages"][2]["content"])
    assert forked is not handbook_first


async def test_agents_whose_requests_begin_alike_share_once_there_is_something_to_share(provide, new_client):
    """With the handbook in front the provider shares it by itself; a fork gains by the conversation alone."""
    began = []
    for task in ("Hello?", TASK):
        provider = provide("openai", _answers())
        await wrap(_team(new_client(provider), 300, handbook_first=True)).run(task=task)
        began.append(["<role name=" in str(record.json["messages"]) for record in provider.requests])
    assert began == [[False] * 3, [True] * 3]


INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.GPT_4O, structured_output=True
)


async def _cost(provider, plan, *, wrapped):
    """Cost units of a team's run, from the usage that the provider reported."""
    model, tokens, words, rounds, handbook_first = plan
    provider.reset()
    provider.simulator.script = _answers(words)
    client = OpenAIChatCompletionClient(model=model, base_url=provider.openai_base_url, api_key="any", model_info=INFO)
    team = _team(client, tokens, handbook_first=handbook_first)
    if wrapped:
        wrap(team)
    for number in range(rounds):
        await team.run(task=f"Question {number}, what now?")
    await client.close()
    records = list(provider.requests)
    profile = default_registry().profile_for(model, api="openai-chat")
    assert len(records) == 3 * rounds
    return sum(cost_units(normalise_usage(record.usage, record.api), profile) for record in records)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, phases=[Phase.generate], derandomize=True)
@given(
    tokens=st.sampled_from([40, 200, 600]),
    words=st.sampled_from([4, 32, 160]),
    rounds=st.integers(1, 6),
    handbook_first=st.booleans(),
)
@pytest.mark.parametrize("model", ["gpt-5.2", "gpt-5.6"])
def test_a_team_is_never_dearer_however_long_roles_and_messages_are(model, tokens, words, rounds, handbook_first):
    """Whatever the lengths, what the provider bills is at most what it bills without us."""
    with SimulatedProvider("openai" if model == "gpt-5.2" else "openai-5.6", _answers()) as provider:
        plan = (model, tokens, words, rounds, handbook_first)
        plain = asyncio.run(_cost(provider, plan, wrapped=False))
        assert asyncio.run(_cost(provider, plan, wrapped=True)) <= plain * 1.001


@pytest.mark.parametrize("tools", [{}, {"max_tool_iterations": 1}, {"max_tool_iterations": 3}])
async def test_customers_whose_data_stand_in_the_system_texts_pay_for_no_write_that_nobody_reads(
    provide, new_client, tools
):
    """Each agent is asked once. One that may go on with a tool writes for the first customers, until none came."""
    provider = provide("anthropic", _answers())
    client, session = new_client(provider, api="anthropic"), Session()
    for number in range(8):
        data = f"The account of customer {number} is {number}. " * 40
        agents = [
            role(name, client, system_message=f"{_duty(name, 40)}\n\n{HANDBOOK}\n\n{data}", **kit)
            for name, kit in (("reader", {"tools": [search], **tools} if tools else {}), ("writer", {}))
        ]
        await wrap(RoundRobinGroupChat(agents, max_turns=2), session).run(task="Go on.")
    assert session.failures == {}
    written = ["cache_control" in json.dumps(one.json) for one in provider.requests[2::2]]
    assert written == [tools.get("max_tool_iterations") == 3] * 3 + [False] * 4
    assert not any("cache_control" in json.dumps(one.json) for one in provider.requests[3::2])
