"""Questions beside a conversation."""

from __future__ import annotations

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_teams import ROLES, TASK, Says, common, prompts, role, search, tail_index

from cacheprefix import ForkPolicy
from cacheprefix.errors import SetupError
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_autogen import ask, session_of, wrap


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
