"""Fields that the application puts over its models' bodies: they are sent as they came, no part of a fork is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from crew_wire import INPUTS, bodies, outputs
from crewai import Agent, Crew, Task
from crewai.tools import tool

from cacheprefix import Gate, Session
from cacheprefix.server import Reply, ToolCall
from cacheprefix_crewai import install

SAID = [{"role": "user", "content": "What?"}]
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "other", "parameters": SCHEMA}}
OVER = {
    "openai": {"messages": SAID, "tools": [TOOL], "tool_choice": "none"},
    "responses": {
        "input": SAID,
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "other", "parameters": SCHEMA}],
        "tool_choice": "none",
    },
    "litellm": {"messages": SAID, "tool_choice": "none"},
}
CASES = [(kind, name) for kind, fields in OVER.items() for name in fields]


def _crew(llm: Any, *, ends: bool = False) -> Crew:
    """Three agents with a tool each, who work on one brief; ``ends`` makes a tool's result the answer."""

    def look(name: str) -> Any:
        @tool(f"look_{name}", result_as_answer=ends)
        def run(query: str) -> str:
            """Look something up."""
            return query

        return run

    who = [
        Agent(role=name, goal="Do it well.", backstory=f"Long a {name}.", llm=llm, tools=[look(name)])
        for name in ("planner", "critic", "writer")
    ]
    work = [Task(description=f"Do it as {one.role}.\n\n{{brief}}", expected_output="A page.", agent=one) for one in who]
    return Crew(agents=who, tasks=work)


def _kickoff(crew: Crew, *, waits: bool) -> list[str]:
    return outputs(asyncio.run(crew.akickoff(inputs=INPUTS)) if waits else crew.kickoff(inputs=INPUTS))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_field_that_a_layout_is_made_of_keeps_the_applications(servers, new_llm, kind, name, waits):
    """Under other tools the fork's ``tool_choice`` named what was not there: the provider refused each request."""
    sent, told = [], []
    for session in (None, Session(gate=Gate(price=0.0))):
        provider = servers("openai", lambda _: Reply("Done."))
        crew = _crew(new_llm(provider, kind, additional_params={"extra_body": {name: OVER[kind][name]}}))
        held = None if session is None else install(crew, session)
        told.append(_kickoff(crew, waits=waits))
        if held is not None:
            held.undo()
        fields = ("input", "messages", "instructions", "tools", "tool_choice")
        # LiteLLM sends CrewAI's own mark as a field that no provider knows; it is taken off.
        mark = ", 'cache_breakpoint': True"
        sent.append([str([body.get(field) for field in fields]).replace(mark, "") for body in bodies(provider)])
    assert sent[0] == sent[1]
    assert told[0] == told[1]
    assert {tuple(one.why for one in call.reasons) for call in session.calls} == {("own_prompt",)}
    assert not session.failures


@pytest.mark.parametrize("kind", ["openai", "responses", "litellm"])
def test_a_setting_that_no_layout_is_made_of_leaves_the_forks(servers, new_llm, kind):
    """The key is the application's."""
    session = Session(gate=Gate(price=0.0))
    provider = servers("openai", lambda _: Reply("Done."))
    crew = _crew(new_llm(provider, kind, additional_params={"extra_body": {"prompt_cache_key": "mine"}}))
    with install(crew, session):
        _kickoff(crew, waits=False)
    assert {body["prompt_cache_key"] for body in bodies(provider)} == {"mine"}
    assert {call.layout for call in session.calls} == {"fork"}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("choice", ["required", "look_writer"])
@pytest.mark.parametrize("kind", ["openai", "responses", "litellm"])
@pytest.mark.parametrize("over", [False, True])
def test_a_forced_call_can_only_be_one_of_the_agents_own(servers, new_llm, kind, choice, over, waits):
    """Of the union the model could call another agent's, which is not found, or refused and asked again."""
    chosen = {"type": "function", **({"name": choice} if kind == "responses" else {"function": {"name": choice}})}
    fields = {"tool_choice": choice if choice == "required" else chosen}
    told = {}
    for session in (None, Session(gate=Gate(price=0.0))):
        provider = servers("openai", _calls_another)
        writing = new_llm(provider, kind, additional_params={"extra_body": fields} if over else fields)
        crew = _crew(new_llm(provider, kind), ends=True)
        crew.agents[2].llm = writing
        held = None if session is None else install(crew, session)
        said = _kickoff(crew, waits=waits)
        if held is not None:
            held.undo()
        told[session is None] = said, [
            ([(tool.get("function") or tool)["name"] for tool in body["tools"]], str(body.get("tool_choice")))
            for body in bodies(provider)
            if "You are writer" in str(body)
        ]
    assert told[True] == told[False]
    assert told[True][1]
    assert all(offered == ["look_writer"] for offered, _ in told[True][1])
    # CrewAI puts a choice of its own over a client's, but not over that of an SDK's.
    assert all(choice in made for _, made in told[True][1]) or (kind != "litellm" and not over)
    assert not session.failures


def _calls_another(request: Any) -> Reply:
    """Calls a tool where it may, and another agent's rather than the agent's own."""
    body = request.body
    offered = [(tool.get("function") or tool)["name"] for tool in body.get("tools") or ()]
    own = "look_writer" if "You are writer" in request.text else ""
    if not own or not offered:
        return Reply("Done.")
    return Reply(tool_calls=(ToolCall(min(offered, key=lambda name: name == own), {"query": "q"}),))
