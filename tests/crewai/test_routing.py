"""The routing key of a crew's requests: by what they share."""

from __future__ import annotations

from typing import Any

import pytest
from crew_wire import BRIEF, INPUTS, bodies

from benchmarks.crewai_workloads import CrewModel, SearchTool, agents, crew, tasks
from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Queue, Reply
from cacheprefix_crewai import ask, install


@pytest.fixture
def made(servers, new_llm):
    """A provider and ``team(tag)``, a crew whose agents are known by it."""
    server = servers("openai", CrewModel(tools=False))

    def team(tag: str, *, tool: str = "") -> Any:
        who = agents(lambda: new_llm(server), tools=False)
        for one in who:
            one.goal = f"{tag}: {one.goal}"
            one.tools = [SearchTool(name=tool)] if tool else []
        return crew(who, tasks(who, context=[]))

    return server, team


def key(server: Any, team: Any, session: Session, **options: Any) -> str:
    """The one key of a kickoff's requests."""
    server.reset()
    with install(team, session, **options):
        team.kickoff(inputs=INPUTS)
    (found,) = {body["prompt_cache_key"] for body in bodies(server)}
    return str(found)


@pytest.mark.parametrize("tool", ["", "look"], ids=["without tools", "with tools"])
def test_crews_that_have_nothing_in_common_have_a_key_each(made, tool) -> None:
    """On one session; the same crew has the same one for each tenant, and in a process that knows no other crew."""
    server, team = made
    session = Session()
    first = key(server, team("first", tool=tool), session, scope="ann")
    other = key(server, team("other", tool=tool and "find"), session, scope="bob")
    assert first != other
    assert key(server, team("other", tool=tool and "find"), session, scope="cid") == other
    assert key(server, team("other", tool=tool and "find"), Session(name="alone")) == other


def test_crews_share_the_key_of_what_the_user_gave_them(made) -> None:
    """A handbook."""
    server, team = made
    session = Session(SharedPrefix(system=f"The house. {BRIEF}"))
    assert key(server, team("first"), session, scope="ann") == key(server, team("other"), session, scope="bob")


def test_a_question_has_the_key_of_what_it_goes_on_from(made) -> None:
    """The machine that it goes to holds the kickoff's requests."""
    server, team = made
    asked, session = team("first"), Session()
    with install(asked, session):
        asked.kickoff(inputs=INPUTS)
        server.simulator.script = Queue([Reply("Yes.")])
        assert ask(asked, "Done?").text == "Yes."
    assert len({body["prompt_cache_key"] for body in bodies(server)}) == 1
