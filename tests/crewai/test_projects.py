"""Crews that come from elsewhere: JSON projects, tools of MCP servers, answers that fail their schema."""

from __future__ import annotations

import json
import sys
from typing import Any

from crew_wire import BRIEF, INPUTS, bodies, heads, outputs, prompts

from benchmarks.crewai_workloads import CrewModel, Finding, SearchTool, agents, crew, tasks
from cacheprefix import Session
from cacheprefix.server import Reply, Request
from cacheprefix_crewai import install


def test_a_json_project_is_the_crew_that_it_describes(servers, new_llm, tmp_path) -> None:
    """As ``crewai create crew --json`` lays it out: three agents in files of their own, inputs with defaults."""
    from crewai.project.crew_loader import load_crew

    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)
    model = {"model": llm.model, "provider": "openai", "base_url": server.openai_base_url, "api_key": "any"}
    roles = ("researcher", "analyst", "writer")
    (tmp_path / "agents").mkdir()
    for role in roles:
        said = {"role": f"The {role}", "goal": "Do well.", "backstory": f"Long a {role}.", "llm": model}
        (tmp_path / "agents" / f"{role}.jsonc").write_text(json.dumps(said))
    work = [
        {"name": role, "description": "Do your part (plan none).\n\n{brief}", "expected_output": "Text.", "agent": role}
        for role in roles
    ]
    whole = {"name": "paper", "agents": list(roles), "tasks": work, "inputs": INPUTS}
    (tmp_path / "crew.jsonc").write_text(f"// A crew\n{json.dumps(whole)}")
    expected = outputs(load_crew(tmp_path / "crew.jsonc")[0].kickoff(inputs=INPUTS))
    server.reset()
    made, inputs = load_crew(tmp_path / "crew.jsonc")
    with install(made, Session()) as installed:
        assert outputs(made.kickoff(inputs=inputs)) == expected
    assert len(heads(prompts(server))) == 1
    assert [call.layout for call in installed.session.calls] == ["fork"] * 3
    assert [task for task, _ in installed.calls] == list(roles)


SERVER = """
from mcp.server.fastmcp import FastMCP

server = FastMCP("prices")


@server.tool()
def price_list(product: str) -> str:
    "Prices of a product."
    return f"{product}: 12"


server.run()
"""


def test_tools_of_an_mcp_server_join_the_union_with_the_first_request(servers, new_llm, tmp_path) -> None:
    """CrewAI asks the server when a task begins; agents of the same crew then carry its tools in the same place."""
    from crewai.mcp import MCPServerStdio

    program = tmp_path / "prices.py"
    program.write_text(SERVER)
    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)
    who = agents(lambda: llm, tools=False)
    who[0].mcps = [MCPServerStdio(command=sys.executable, args=[str(program)])]
    who[1].tools = [SearchTool()]
    team = crew(who, tasks(who))
    with install(team, Session()) as installed:
        team.kickoff(inputs=INPUTS)
    sent = bodies(server)
    assert "Prices of a product." in json.dumps(sent[0]["tools"])
    assert len({json.dumps(body["tools"]) for body in sent}) == 1
    assert len(installed.session.calls) == len(sent) == 3
    assert installed.session.failures == {}


class Stubborn:
    """Answers without the schema's fields first, as models do."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, request: Request) -> Reply:
        """The first answers fail."""
        self.asked += 1
        good = {"title": "Hubs", "confidence": 0.5}
        return Reply(json.dumps(good) if self.asked > 2 else "No figures yet.")


def test_answers_that_fail_their_schema_are_counted_like_any_other(servers, new_llm) -> None:
    """Of a task and of an agent's own kickoff; what the application sees is what it saw."""

    def go(*, installed: bool) -> tuple[list[Any], int, int]:
        seen: list[Any] = []
        asked, counted = 0, 0
        for way in ("task", "agent"):
            server = servers("openai", Stubborn())
            who = agents(lambda server=server: new_llm(server), tools=False)
            team = crew(who[:1], tasks(who, output_pydantic=Finding)[:1])
            session = Session()
            made = install(team if way == "task" else who[:1], session) if installed else None
            try:
                if way == "task":
                    seen.append(team.kickoff(inputs={"brief": BRIEF}).pydantic)
                else:
                    seen.append(who[0].kickoff(f"Say it. {BRIEF}", response_format=Finding).pydantic)
            except Exception as error:
                seen.append(type(error))
            if made is not None:
                made.undo()
            asked, counted = asked + len(server.requests), counted + len(session.calls)
        return seen, asked, counted

    expected, requests, _ = go(installed=False)
    assert go(installed=True) == (expected, requests, requests)
    assert requests >= 2
