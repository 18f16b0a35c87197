"""Delegation in crews whose roles have placeholders: the shared tools name these, and a model may say either name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from crew_wire import BRIEF, bodies

from benchmarks.crewai_workloads import agents, crew, tasks
from cacheprefix import Session
from cacheprefix.server import Reply, Request, ToolCall
from cacheprefix_crewai import install

TOOLS = {
    "delegate_work_to_coworker": {"task": "Write about it.", "context": "Soon."},
    "ask_question_to_coworker": {"question": "What of it?", "context": "Soon."},
}


class Delegates:
    """A model whose first task is given to a writer, by a name that it copies."""

    def __init__(self, tool: str, *, told: bool = False) -> None:
        self._tool = tool
        self._told = told
        """By the name in the message, where there is one: not by that in the tool's description."""
        self.named: list[str] = []
        self.results: list[str] = []

    def __call__(self, request: Request, /) -> Reply:
        """The answer to a request."""
        if "(plan research)" not in request.text:
            return Reply("Written.")
        if request.rounds:
            self.results.append(request.body["messages"][-1]["content"])
            return Reply("Researched.")
        inner = next(one["function"] for one in request.body["tools"] if one["function"]["name"] == self._tool)
        said = str(inner["description"])
        if self._told and (found := re.search(r"Coworkers you can turn to: (.*)\.", request.text)):
            said = f"coworkers: {found[1]}\n"
        names = said.partition("coworkers: ")[2].partition("\n")[0].split(", ")
        self.named.append(next(name for name in names if "Writer" in name))
        return Reply(tool_calls=(ToolCall(self._tool, {**TOOLS[self._tool], "coworker": self.named[-1]}),))


def _team(llm: Any) -> Any:
    who = agents(lambda: llm, tools=False, allow_delegation=True)
    for agent in who:
        agent.role = f"{agent.role} for {{customer}}"
    return crew(who, tasks(who))


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("told", [False, True], ids=["the tool's name", "the message's name"])
def test_a_coworker_is_found_by_the_name_in_the_tool_and_by_the_filled_one(servers, new_llm, tool, told) -> None:
    """In each kickoff it is the coworker of this one, and no request names another kickoff's."""
    script = Delegates(tool, told=told)
    provider, session = servers("openai", script), Session(f"The house. {BRIEF * 4}")
    with install(team := _team(new_llm(provider)), session):
        for customer in ("Alice", "Bob"):
            seen = len(provider.requests)
            output = team.kickoff(inputs={"brief": BRIEF, "customer": customer})
            assert output.tasks_output[0].raw == "Researched."
            sent = provider.requests[seen:]
            assert len(sent) == 5
            assert not any({"Alice": b"Bob", "Bob": b"Alice"}[customer] in record.body for record in sent)
            assert f"You are Report Writer for {customer}." in sent[1].body.decode()
    assert script.results == ["Written."] * 2
    want = ["Report Writer for Alice", "Report Writer for Bob"] if told else ["Report Writer for {customer}"] * 2
    assert script.named == want
    assert {call.layout for call in session.calls} == {"fork"}
    assert len({str(body["tools"]) for body in bodies(provider)}) == 1
    assert session.failures == {}


def test_a_name_that_no_coworker_has_is_refused_in_crewais_words(servers, new_llm) -> None:
    """And so is a placeholder in a crew that is observed: CrewAI's own tool names the filled role there.

    The other crew that is installed is forked, so that CrewAI's tools are watched for both.
    """
    for mode, said in (("fork", "Nobody for {customer}"), ("observe", "Report Writer for {customer}")):
        model = Delegates("delegate_work_to_coworker")

        def script(request: Request, /, model: Any = model, said: str = said) -> Reply:
            reply = model(request)
            for call in reply.tool_calls:
                call.arguments["coworker"] = said
            return reply

        provider = servers("openai", script)
        team, other, handbook = _team(new_llm(provider)), _team(new_llm(provider)), f"The house. {BRIEF * 4}"
        with install(other, Session(handbook)), install(team, Session(handbook, mode=mode)):
            team.kickoff(inputs={"brief": BRIEF, "customer": "Alice"})
        assert model.results[0].startswith("\nError executing tool. coworker mentioned not found"), said
