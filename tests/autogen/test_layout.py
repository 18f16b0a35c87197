"""What a wrapped team sends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import ToolCall
from cacheprefix_autogen import session_of, wrap


async def test_the_roles_text_stands_at_the_end_and_nowhere_else(provide, new_client):
    """What differs between agents is only said in the last message."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=3))
    await team.run(task=TASK)
    for name, prompt in zip(ROLES, prompts(provider.requests), strict=True):
        assert prompt.sections[0].text == HANDBOOK.strip()
        assert f"You are the {name}." in prompt.sections[-1].text
        assert not any("You are the" in section.text for section in prompt.sections[:-1])


async def test_speakers_are_named_in_the_text_and_as_senders_whoever_looks_at_it(provide, new_client):
    """OpenAI gets each message's own sender, the agent's own and the application's among them."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=4))
    await team.run(task=TextMessage(content=TASK, source="alice"))
    messages = provider.requests[-1].json["messages"][1:]
    assert {message["role"] for message in messages} == {"user"}
    speakers = ["alice", "planner", "critic", "writer"]
    assert [message["name"] for message in messages] == [*speakers, "user"]
    assert [message["content"].split("\n")[0] for message in messages[:-1]] == [f"[{name}]" for name in speakers]


async def test_the_tools_are_one_union_in_order_of_names_in_every_request(provide, new_client):
    """Agents with different tools send the same array, reflection included."""
    steps = {name: (ToolCall(f"z_{name}", {"query": "q"}), "done") for name in ROLES}
    provider = provide("openai", Says(steps))
    team = RoundRobinGroupChat(
        [role(n, new_client(provider), tools=[search(f"z_{n}")], reflect_on_tool_use=True) for n in ROLES],
        max_turns=3,
    )
    wrap(team)
    await team.run(task=TASK)
    arrays = [record.json["tools"] for record in provider.requests]
    assert len(arrays) == 6
    assert [tool["function"]["name"] for tool in arrays[0]] == ["z_critic", "z_planner", "z_writer"]
    assert all(array == arrays[0] for array in arrays)


async def test_a_role_is_kept_to_its_own_tools_by_tool_choice_and_reflection_to_none(provide, new_client):
    """On OpenAI the restriction is in allowed_tools, which is no part of the cached prompt."""
    steps = {name: (ToolCall(f"z_{name}", {"query": "q"}), "done") for name in ROLES}
    provider = provide("openai", Says(steps))
    team = RoundRobinGroupChat(
        [role(n, new_client(provider), tools=[search(f"z_{n}")], reflect_on_tool_use=True) for n in ROLES],
        max_turns=1,
    )
    wrap(team)
    await team.run(task=TASK)
    first, reflection = (record.json["tool_choice"] for record in provider.requests)
    assert first["allowed_tools"]["tools"] == [{"type": "function", "function": {"name": "z_planner"}}]
    assert reflection == "none"


def _found(provider, new_client, **options):
    """A team of which the planner looks something up and the critic has no tools."""
    steps = {"planner": (ToolCall("search", {"query": "q"}), "planner has found it")}
    provider.simulator.script = Says(steps)
    planner = role("planner", new_client(provider), tools=[search()], reflect_on_tool_use=True)
    return wrap(RoundRobinGroupChat([planner, role("critic", new_client(provider))], max_turns=3), **options)


async def test_an_agent_reads_its_own_tool_results_again_and_nobody_else_does(provide, new_client):
    """As without us: call and result stand in the planner's second turn, and in no request of the critic's."""
    provider = provide("openai")
    await _found(provider, new_client).run(task=TASK)
    texts = [[section.text for section in record.prompt.tier("messages")] for record in provider.requests]
    assert len(texts) == 5
    assert [sum("search for q" in text for text in one) for one in texts] == [0, 1, 0, 1, 2]
    assert [any("planner has found it" in text for text in one) for one in texts] == [False, False, True, True, True]


async def test_dropping_tool_memory_is_an_option(provide, new_client):
    """With tool_memory="drop" an agent reads in later turns what it said, and not what it had called."""
    provider = provide("openai")
    await _found(provider, new_client, tool_memory="drop").run(task=TASK)
    texts = [[section.text for section in record.prompt.tier("messages")] for record in provider.requests]
    assert [sum("search for q" in text for text in one) for one in texts] == [0, 1, 0, 0, 1]


async def test_an_unknown_tool_memory_is_refused_with_the_ones_there_are(provide, new_client):
    """Before anything is wrapped."""
    agent = role("planner", new_client(provide("openai")))
    with pytest.raises(SetupError, match=r"'keep', 'drop'.*'private'"):
        wrap(agent, tool_memory="private")
    assert session_of(agent) is None


async def test_a_declared_prefix_wins_over_what_the_agents_have_in_common(provide, new_client):
    """The session's own system text is the one that is sent."""
    provider = provide("openai", Says())
    ending = "Sign every answer with your name. " * 10
    agents = [role(n, new_client(provider), system_message=f"You are the {n}.\n\n{ending}") for n in ROLES]
    team = RoundRobinGroupChat(agents, max_turns=2)
    session = Session(SharedPrefix(system="Rules of this house. " * 100))
    wrap(team, session)
    await team.run(task=TASK)
    assert session_of(team) is session
    assert all(prompt.sections[0].text == "Rules of this house. " * 100 for prompt in prompts(provider.requests))
    assert ending.strip() in provider.requests[0].prompt.sections[-1].text


async def test_requests_below_the_providers_minimum_are_left_alone_and_noted(provide, new_client):
    """What cannot be cached keeps its own layout."""
    provider = provide("openai", Says())
    agents = [role(n, new_client(provider), system_message=f"You are the {n}.") for n in ROLES]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2))
    await team.run(task="Short.")
    assert [record.json["messages"][0]["content"] for record in provider.requests] == [
        "You are the planner.",
        "You are the critic.",
    ]
    assert any("minimum" in note for note in session_of(team).report().notes)


@pytest.mark.parametrize("rules", ["openai", "openai-5.6", "anthropic"])
async def test_short_requests_are_those_of_agents_that_say_the_handbook_themselves(provide, new_client, rules):
    """What only the session knows, shared text and role card, is put in front where an agent leaves it out."""
    house, card = "House rule: be brief.", "You are the writer."
    provider = provide(rules, Says(dict.fromkeys(ROLES, ("Done.",))))
    api = "anthropic" if rules == "anthropic" else "openai"
    client = new_client(provider, api=api, **({"model": "gpt-5.6"} if rules == "openai-5.6" else {}))
    duties = ("You are the planner.", "You are the critic.")
    whole = [*(f"{house}\n\n{duty}" for duty in duties), f"{house}\n\n{card}"]
    sent = []
    for texts in (whole, [*duties, None]):
        provider.reset()
        agents = [role(name, client, system_message=text) for name, text in zip(ROLES, texts, strict=True)]
        team = RoundRobinGroupChat(agents, max_turns=3)
        wrap(team, Session(SharedPrefix(system=house, roles={"writer": card}), caching=Caching(tail="cards")))
        await team.run(task="Short.")
        assert session_of(team).failures == {}
        sent.append([record.body for record in provider.requests])
    assert ["".join(part.text for part in record.prompt.tier("system")) for record in provider.requests] == whole
    assert sent[0] == sent[1]


async def test_a_short_request_with_a_memory_and_no_system_message_keeps_to_one(provide, new_client):
    """Anthropic's client refuses system messages apart, so the handbook joins the memory's."""
    provider = provide("anthropic", Says())
    client = new_client(provider, api="anthropic")
    memory = ListMemory(memory_contents=[MemoryContent(content="Fact.", mime_type="text/plain")])
    agents = [role(name, client, system_message=None, memory=[memory]) for name in ROLES[:2]]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2), Session(SharedPrefix(system="House rule.")))
    await team.run(task="Short.")
    for prompt in prompts(provider.requests):
        text = "".join(part.text for part in prompt.tier("system"))
        assert text.startswith("House rule.\n\n")
        assert "Fact." in text


@pytest.mark.parametrize(("rules", "stream"), [("openai", True), ("openai-5.6", False), ("anthropic", False)])
async def test_volatile_text_stands_behind_everything_in_every_step_of_a_loop(provide, new_client, rules, stream):
    """The clock changes with each request and costs no cached token: each step begins with the whole one before."""
    calls = tuple(ToolCall("search", {"query": f"q{i}"}) for i in range(2))
    provider = provide(rules, Says(dict.fromkeys(ROLES, (*calls, "Found."))))
    api = "anthropic" if rules == "anthropic" else "openai"
    client = new_client(provider, api=api, **({"model": "gpt-5.6"} if rules == "openai-5.6" else {}))
    ticks = iter(range(100))
    options = {"tools": [search()], "max_tool_iterations": 4, "model_client_stream": stream}
    team = RoundRobinGroupChat([role(name, client, **options) for name in ROLES[:2]], max_turns=2)
    wrap(team, volatile=lambda: {"now": f"tick {next(ticks)}"}, volatile_role="user" if api == "openai" else "system")
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert [prompt.sections[-1].text for prompt in sent] == [f"<now>\ntick {i}\n</now>" for i in range(6)]
    assert not any("tick" in section.text for prompt in sent for section in prompt.sections[:-1])
    for before, after in (*pairwise(sent[:3]), *pairwise(sent[3:])):
        assert common(before, after) == len(before.sections) - 1
    assert common(sent[2], sent[3]) == tail_index(sent[2])
    assert all(prompt.sections[-1].marker is None for prompt in sent)
    session = session_of(team)
    used = [call.usage for call in session.calls]
    if rules != "openai":
        for at in (0, 1, 3, 4):
            written = used[at].cache_read_tokens + used[at].cache_write_tokens
            assert used[at + 1].cache_read_tokens == written
    assert not any(call.verdict.alarm for call in session.calls)
    assert session.failures == {}


async def test_volatile_text_reaches_agents_that_keep_their_own_layout(provide, new_client):
    """With nobody to share with, or no SDK to watch, it stands last too; an error in giving it is the application's."""
    provider = provide("openai", Says())
    given = [{"now": "noon"}]
    agent = wrap(role("planner", new_client(provider)), volatile=given.pop, volatile_role="developer")
    await agent.run(task=TASK)
    with pytest.raises(IndexError, match="pop from empty list"):
        await agent.run(task="Again.")
    (first,) = (record.json["messages"] for record in provider.requests)
    assert first[-1] == {"role": "developer", "content": "<now>\nnoon\n</now>"}
    assert session_of(agent).failures == {}
    seen = []

    class Noting(ReplayChatCompletionClient):
        async def create(self, messages, **options):
            seen.append(list(messages))
            return await super().create(messages, **options)

    await wrap(role("planner", Noting(["yes"])), volatile=lambda: {"now": "noon"}).run(task=TASK)
    assert "noon" in seen[0][-1].content


async def test_one_agent_alone_keeps_its_own_layout_but_not_the_loss_of_its_tools(provide, new_client):
    """With nobody to share with, only the reflection without tools is mended."""
    steps = {"planner": (ToolCall("search", {"query": "q"}), "done")}
    provider = provide("openai", Says(steps))
    agent = wrap(role("planner", new_client(provider), tools=[search()], reflect_on_tool_use=True))
    await agent.run(task=TASK)
    call, reflection = prompts(provider.requests)
    assert "You are the planner." in call.tier("system")[0].text
    assert common(call, reflection) == len(call.sections)
    assert provider.requests[1].json["tool_choice"] == "none"


async def test_an_error_of_the_agents_own_model_context_is_the_applications(provide, new_client, monkeypatch):
    """It is asked for its messages at the beginning of a turn; what that raises is no failure of ours."""

    async def gone():
        raise LookupError("the database is gone")

    context = UnboundedChatCompletionContext()
    client = new_client(provide("openai", Says()))
    members = [role("planner", client, model_context=context), role("critic", client)]
    team = wrap(RoundRobinGroupChat(members, max_turns=2))
    await team.run(task=TASK)
    monkeypatch.setattr(context, "get_messages", gone)
    with pytest.raises(Exception, match="the database is gone"):
        await team.run(task="Again.")
    assert session_of(team).failures == {}


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_an_agent_in_its_own_layout_says_what_it_says_without_us(provide, new_client, api):
    """Not a word and not a tool more or less; marks and the routing key are all that is added."""
    sent = []
    for bind in (lambda team: team, wrap):
        provider = provide(api, Says())
        agents = [
            role(
                name,
                new_client(provider, api=api),
                tools=[search(f"z_{name}_{n}") for n in range(40)],
                system_message=f"You are {name}.",
            )
            for name in ROLES
        ]
        team = bind(RoundRobinGroupChat(agents, max_turns=6))
        await team.run(task="Go.")
        sent.append([[section.text for section in record.prompt.sections] for record in provider.requests])
    assert {call.layout for call in session_of(team).calls} == {"own"}
    assert sent[0] == sent[1]
