"""AutoGen's wrapped teams on a real prefix cache: llama.cpp reports what the session expected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ChatCompletionClient, ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from benchmarks.local_engine import COUNTER, ENVELOPE, MODEL, rules
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix_autogen import wrap

HANDBOOK = "Every statement needs a source that the reader can open. " * 4
ROLES = {"planner": "You plan.", "critic": "You criticise.", "writer": "You write."}


@pytest.fixture
async def client(engine: Any) -> AsyncIterator[ChatCompletionClient]:
    """AutoGen's own client of the engine, whose template shows the model no names, so that they are not sent either."""
    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=False,
        family=ModelFamily.UNKNOWN,
        structured_output=False,
        multiple_system_messages=True,
    )
    common: dict[str, Any] = {"model": MODEL, "api_key": "any", "model_info": info, "max_tokens": 6}
    made = OpenAIChatCompletionClient(base_url=engine.openai_base_url, include_name_in_message=False, **common)
    yield made
    await made.close()


def team(client: ChatCompletionClient, handbook: str) -> RoundRobinGroupChat:
    """Three roles, the role in front of the handbook as applications write it."""
    agents = [
        AssistantAgent(role, model_client=client, system_message=f"{text}\n\n{handbook}")
        for role, text in ROLES.items()
    ]
    return RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(5))


@pytest.mark.slow
async def test_a_wrapped_team_reads_the_shared_part_from_a_real_cache(client, fresh_text) -> None:
    """Every request but the first reads the handbook and the transcript, as the session expected."""
    handbook = fresh_text(HANDBOOK)
    session = Session(
        SharedPrefix(system=handbook), caching=Caching(provider="llama.cpp", profiles=rules(), counter=COUNTER)
    )
    await wrap(team(client, handbook), session).run(task="Begin.")
    first, *others = session.calls
    assert first.usage.cache_read_tokens is not None
    assert first.usage.cache_read_tokens <= ENVELOPE.opening
    assert len(others) == 3
    for call in others:
        read = call.usage.cache_read_tokens or 0
        assert read >= COUNTER(handbook)
        assert read == call.verdict.expected_tokens
        assert call.verdict.cause == "hit"
    assert not session.failures
