"""What may never break, on recorded requests of real teams."""

from __future__ import annotations

import asyncio
import json

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, FunctionExecutionResult, FunctionExecutionResultMessage, UserMessage
from autogen_teams import HANDBOOK, ROLES, TASK, Says, role, search
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.autogen_workloads import WORKLOADS
from benchmarks.bench_autogen import RULES, run, summed
from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.server import ToolCall
from cacheprefix_autogen import session_of, wrap
from cacheprefix_autogen._budget import condensed


def _turn(number: int, results: list[int]) -> list:
    calls = [FunctionCall(id=f"c{number}_{i}", name="search", arguments="{}") for i in range(len(results))]
    answers = [
        FunctionExecutionResult(content="found " * size, name="search", call_id=call.id)
        for call, size in zip(calls, results, strict=True)
    ]
    tools = [AssistantMessage(content=calls, source="a"), FunctionExecutionResultMessage(content=answers)]
    return [UserMessage(content=f"[user]\nask {number} " * 40, source="user"), *(tools if calls else [])]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 900), max_size=3), min_size=1, max_size=8))
def test_no_call_is_parted_from_its_result(turns):
    """Whatever is shortened or compacted, calls and results come in pairs and in order, and nothing is empty."""
    messages = [message for number, results in enumerate(turns) for message in _turn(number, results)]
    session = Session(budget=ToolResultBudget(max_tokens=100), compaction=1500)
    out, own = condensed(session, session.conversation("c"), messages, "gpt-4o", first_own=len(messages))
    assert own == len(out)
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
    again, _ = condensed(session, session.conversation("c"), messages, "gpt-4o", first_own=len(messages))
    assert again == out


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
