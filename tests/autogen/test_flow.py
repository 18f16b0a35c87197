"""The teams of AutoGen's tutorials, rebuilt with scripted models: wrapping changes no message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix_autogen import wrap

RULES = "House rules. " * 1200
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    family="unknown",
    structured_output=False,
    multiple_system_messages=True,
)


def says(*answers: Any) -> ReplayChatCompletionClient:
    """A model that gives these answers in turn; a dict is a call of a tool."""
    results = [
        a
        if isinstance(a, str)
        else CreateResult(
            finish_reason="function_calls",
            content=[
                FunctionCall(id=f"call_{i}_{n}", name=name, arguments=args) for n, (name, args) in enumerate(a.items())
            ],
            usage=RequestUsage(0, 0),
            cached=False,
        )
        for i, a in enumerate(answers)
    ]
    return ReplayChatCompletionClient(results, model_info=INFO)


async def increment_number(number: int) -> int:
    """Increment a number by 1."""
    return number + 1


def reflection() -> Any:
    """Tutorial "Teams": a poet and a critic until the critic approves."""
    primary = AssistantAgent("primary", says("An ode.", "A better ode."), system_message="You are helpful.")
    critic = AssistantAgent("critic", says("Too short.", "APPROVE"), system_message="Give feedback.")
    return RoundRobinGroupChat([primary, critic], termination_condition=TextMentionTermination("APPROVE"))


def single_agent_team() -> Any:
    """Tutorial "Teams": one agent that counts with a tool until it answers in text."""
    looped = AssistantAgent(
        "looped_assistant",
        says({"increment_number": '{"number": 5}'}, {"increment_number": '{"number": 6}'}, "It is 7. DONE"),
        tools=[increment_number],
        system_message="You are helpful.",
    )
    return RoundRobinGroupChat([looped], termination_condition=TextMentionTermination("DONE"))


def tool_loop() -> Any:
    """Tutorial "Agents": a tool loop within one turn, and reflection."""
    return RoundRobinGroupChat(
        [
            AssistantAgent(
                "counter",
                says({"increment_number": '{"number": 1}'}, {"increment_number": '{"number": 2}'}, "Three."),
                tools=[increment_number],
                max_tool_iterations=5,
            ),
            AssistantAgent(
                "checker",
                says({"increment_number": '{"number": 9}'}, "Ten, fine."),
                tools=[increment_number],
                reflect_on_tool_use=True,
            ),
        ],
        max_turns=2,
    )


def selector() -> Any:
    """Tutorial "Selector group chat": plan, search, analyse."""
    return SelectorGroupChat(
        [
            AssistantAgent("planning", says("1. search 2. analyse", "TERMINATE"), description="Plans."),
            AssistantAgent(
                "search", says({"increment_number": '{"number": 3}'}), tools=[increment_number], description="Searches."
            ),
            AssistantAgent("analyst", says("It doubled."), description="Computes."),
        ],
        says("planning", "search", "nobody at all", "analyst", "planning"),
        termination_condition=TextMentionTermination("TERMINATE") | MaxMessageTermination(25),
    )


def swarm() -> Any:
    """Tutorial "Swarm": a travel agent hands over to a refunder, who asks the user."""
    return Swarm(
        [
            AssistantAgent("travel", says({"transfer_to_refunder": "{}"}), handoffs=["refunder", "user"]),
            AssistantAgent(
                "refunder",
                says({"increment_number": '{"number": 4}'}, {"transfer_to_user": "{}"}),
                tools=[increment_number],
                handoffs=["travel", "user"],
            ),
        ],
        termination_condition=HandoffTermination("user") | MaxMessageTermination(20),
    )


def graph() -> Any:
    """Tutorial "GraphFlow": a writer, two editors side by side, a final reviewer."""
    writer = AssistantAgent("writer", says("A draft."))
    grammar = AssistantAgent("grammar", says("Commas."))
    style = AssistantAgent("style", says("Shorter."))
    final = AssistantAgent("final", says("Done."))
    builder = DiGraphBuilder()
    for node in (writer, grammar, style, final):
        builder.add_node(node)
    builder.add_edge(writer, grammar).add_edge(writer, style).add_edge(grammar, final).add_edge(style, final)
    return GraphFlow([writer, grammar, style, final], builder.build())


def loop() -> Any:
    """Tutorial "GraphFlow": generate and review until approved."""
    generator = AssistantAgent("generator", says("Idea 1.", "Idea 2."))
    reviewer = AssistantAgent("reviewer", says("REVISE", "APPROVE"))
    summary = AssistantAgent("summary", says("In short."))
    builder = DiGraphBuilder()
    builder.add_node(generator).add_node(reviewer).add_node(summary)
    builder.add_edge(generator, reviewer)
    builder.add_edge(reviewer, summary, condition=lambda m: "APPROVE" in m.to_model_text())
    builder.add_edge(reviewer, generator, condition=lambda m: "APPROVE" not in m.to_model_text())
    builder.set_entry_point(generator)
    return GraphFlow([generator, reviewer, summary], builder.build(), termination_condition=MaxMessageTermination(10))


def society() -> Any:
    """Reference: SocietyOfMindAgent between two rounds of a translator."""
    inner = RoundRobinGroupChat(
        [AssistantAgent("a1", says("One.", "Three.")), AssistantAgent("a2", says("Two.", "Four."))], max_turns=2
    )
    mind = SocietyOfMindAgent("society", team=inner, model_client=says("Summed up.", "Summed again."))
    return RoundRobinGroupChat([mind, AssistantAgent("translator", says("Übersetzt.", "Nochmal."))], max_turns=4)


def magentic() -> Any:
    """Tutorial "Magentic-One": one round of ledger, agent and final answer."""
    import json

    def ledger(*, done: bool) -> str:
        entry = {"reason": "r", "answer": done}
        fields = {k: {"reason": "r", "answer": False} for k in ("is_in_loop",)}
        return json.dumps(
            {
                "is_request_satisfied": entry,
                **fields,
                "is_progress_being_made": {"reason": "r", "answer": True},
                "next_speaker": {"reason": "r", "answer": "helper"},
                "instruction_or_question": {"reason": "r", "answer": "Prove it."},
            }
        )

    return MagenticOneGroupChat(
        [AssistantAgent("helper", says("Proved.")), AssistantAgent("other", says("Nothing."))],
        says("facts", "plan", ledger(done=False), ledger(done=True), "The final answer."),
    )


def agent_tool() -> Any:
    """Reference: AgentTool, a writer as the tool of an assistant."""
    writer = AssistantAgent("writer", says("A poem."), description="Writes.")
    lead = AssistantAgent(
        "lead", says({"writer": '{"task": "Write."}'}, "Here it is."), tools=[AgentTool(writer)], max_tool_iterations=2
    )
    return RoundRobinGroupChat([lead], max_turns=1)


TEAMS = (
    reflection, single_agent_team, tool_loop, selector, swarm, graph, loop, society, magentic, agent_tool
)  # fmt: skip


def _plain(message: Any) -> tuple[Any, ...]:
    content = message.content if isinstance(message.content, str) else [_untimed(item) for item in message.content]
    target = message.target if isinstance(message, HandoffMessage) else None
    return type(message).__name__, message.source, content, target


def _untimed(item: Any) -> Any:
    return item.model_dump() if hasattr(item, "model_dump") else str(item)


@pytest.mark.parametrize("build", TEAMS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("mode", ["fork", "observe"])
async def test_a_wrapped_team_gives_the_same_messages(build, mode):
    """Types, speakers and contents of all messages, the stop reason too, are those of the unwrapped team."""
    results = []
    for wrapped in (False, True):
        team = build()
        if wrapped:
            session = Session(SharedPrefix(system=RULES), mode=mode, caching=Caching(provider="openai"))
            wrap(team, session)
        results.append(await asyncio.wait_for(team.run(task="The task."), 30))
    plain, shared = results
    assert [_plain(m) for m in shared.messages] == [_plain(m) for m in plain.messages]
    assert shared.stop_reason == plain.stop_reason
    assert session.failures == {}


@pytest.mark.parametrize("build", TEAMS, ids=lambda build: build.__name__)
async def test_a_wrapped_copy_gives_the_same_messages(build):
    """wrap(copy=True) runs as the original does."""
    plain = await build().run(task="The task.")
    team = wrap(build(), Session(SharedPrefix(system=RULES), caching=Caching(provider="openai")), copy=True)
    shared = await asyncio.wait_for(team.run(task="The task."), 30)
    assert [_plain(m) for m in shared.messages] == [_plain(m) for m in plain.messages]
