"""The matrix of faults on an AutoGen team: its result is that of the unmodified one."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from cacheprefix.server import SimulatedProvider
from cacheprefix_autogen import wrap
from tests.fault_matrix import FOUND, HANDBOOK, cases, check, check_event_loop, check_fork, check_stall, names

CASES = cases(answers=False)
KNOWN: dict[str, list[str]] = {}
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.GPT_4O,
    structured_output=True,
    multiple_system_messages=True,
)


async def look(at: str) -> str:
    """Look at a place."""
    return f"{at}: {FOUND}"


@pytest.fixture(scope="module")
def provider():
    """One provider for the whole matrix."""
    with SimulatedProvider("openai") as started:
        yield started


@pytest.fixture(scope="module")
def application(provider):
    """A finder that reflects on its tool, then a writer that streams."""

    async def go(session, replies, client):
        provider.reset()
        provider.simulator.script = replies
        finder = AssistantAgent(
            "finder", client, system_message=f"{HANDBOOK} Find.", tools=[look], reflect_on_tool_use=True
        )
        writer = AssistantAgent("writer", client, system_message=f"{HANDBOOK} Write.", model_client_stream=True)
        team = RoundRobinGroupChat([finder, writer], max_turns=2)
        if session is not None:
            wrap(team, session)
        try:
            result = await team.run(task="Find it and write it down.")
        except Exception as error:
            return [str(error).split(":", 1)[0]]
        finally:
            await client.close()
        return [message.content for message in result.messages if isinstance(message, TextMessage)]

    def run(session, replies):
        # Outside of the event loop, which would stand still while the client loads its certificates.
        client = OpenAIChatCompletionClient(
            model="gpt-4o", base_url=provider.openai_base_url, api_key="k", max_retries=0, model_info=INFO
        )
        return asyncio.run(go(session, replies, client))

    return run


# AutoGen dumps the SDK's parsed answer, which the SDK's own types do not foresee.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_result_is_that_of_the_unmodified_team(case, application, monkeypatch):
    """Whatever raises, is slow, answers rubbish or cannot be reached."""
    check(case, application, monkeypatch, KNOWN)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_store_that_hangs_never_holds_the_event_loop(application):
    """Full texts, kept tool results and the gate, in a store that takes its time for each call."""
    check_event_loop(application)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_event_loop_goes_on_while_a_store_takes_its_time(application):
    """A second and a half for each call, longer than the gate waits for one: no event loop stands still for it."""
    check_stall(application)


def test_a_child_that_is_forked_off_from_a_busy_process_runs_it(application):
    """Prefork servers and pools: no lock of the parent's holds it, and nothing of the parent's is waited for."""
    check_fork(application)
