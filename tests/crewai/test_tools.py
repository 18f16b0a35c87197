"""Whose tools a request carries: runs of crews that are made for several people, by turns and at the same time."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix import Session, SharedPrefix
from cacheprefix_crewai.binding import KICKOFF, Binding, Options
from cacheprefix_crewai.tools import RunTools, adopt, differing, offer, render

NAMES = ("ask_question_to_coworker", "look", "mails", "search")
TOOLS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2)), max_size=3, unique_by=lambda one: one[0])
REQUESTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), TOOLS), max_size=12)
"""Each with its crew, with the run of that crew, and with the agent's tools."""


def _tool(name: str, version: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    function = {"name": name, "description": f"{name} for {version}. coworkers: {version}", "parameters": parameters}
    return {"type": "function", "function": {**function, "strict": True}}


def _said(tools: Any) -> set[str]:
    return {str(render(tool)["description"]) for tool in tools or ()}


class _House:
    """Crews on one session, of which each may run for several people at a time; what each run may be shown."""

    def __init__(self, everybodys: Any, crews: Any) -> None:
        self.everybodys = everybodys
        prefix = SharedPrefix(system="The house.", tools=[_tool(*one)["function"] for one in everybodys])
        self.session = Session(prefix, gate=None)
        self.crews = [Binding(self.session.adapter, Options(), "crewai:crew:alike") for _ in crews]
        self.own = crews
        self.runs: dict[tuple[int, int], str] = {}
        self.brought: dict[tuple[int, int], set[str]] = {}

    def install(self, at: int) -> None:
        adopt(self.crews[at], [_tool(*one) for one in self.own[at]])

    def asks(self, crew: int, run: int, tools: Any) -> tuple[Any, set[str]] | None:
        """What a request of a run carries and what it may be shown; None where it keeps its own layout."""
        binding, own = self.crews[crew], [_tool(*one) for one in tools]
        id_ = self.runs.setdefault((crew, run), binding.new_kickoff_id())
        with KICKOFF.within((id_,)):
            if binding.clash:
                return None
            self.brought.setdefault((crew, run), _said(own))
            binding.part(RunTools).bring(own, asks=True, grows=not run)
            if differing(binding, own):
                return None
            sent = offer(binding, "gpt-5", SimpleNamespace(is_litellm=False), own).tools
        may = {*self.brought[crew, run], *_said(own)}
        for one in (*self.everybodys, *self.own[crew]):
            may |= _said([_tool(*one)])
        return sent, may


@settings(max_examples=60, deadline=None)
@given(
    everybodys=TOOLS.map(lambda tools: tools[:1]),
    crews=st.lists(TOOLS, min_size=3, max_size=3),
    late=st.integers(0, 3),
    requests=REQUESTS,
)
def test_no_run_is_shown_what_another_came_with_and_none_misses_its_own(everybodys, crews, late, requests) -> None:
    """Tools of equal names among them; ``late`` of the crews are installed behind the first requests."""
    house = _House(everybodys, crews)
    for at in range(3 - late):
        house.install(at)
    for number, (crew, run, tools) in enumerate(requests):
        if number == 3:
            for at in range(3 - late, 3):
                house.install(at)
        if number < 3 and crew >= 3 - late:
            continue
        found = house.asks(crew, run, tools)
        if found is not None:
            sent, may = found
            assert _said(sent) <= may
            own = [render(_tool(*one)) for one in tools]
            names = {str(one["name"]) for one in own}
            carried = {str(render(tool)["name"]): str(render(tool)["description"]) for tool in sent or ()}
            assert names <= set(carried)
            plain = names - {"ask_question_to_coworker"}
            assert {carried[name] for name in plain} == {one["description"] for one in own if one["name"] in plain}
    assert not house.session.failures


def test_what_is_written_into_the_tools_of_a_request_is_in_no_other() -> None:
    """A listener of CrewAI's events changes them in place, or LiteLLM: another crew may run for another user."""
    house = _House([("look", 1)], [[], [("mails", 2)]])
    for at in range(2):
        house.install(at)

    def sent(crew: int, *own: tuple[str, int]) -> dict[str, Any]:
        tools, _ = house.asks(crew, 0, own) or ([], None)
        return {str(render(tool)["name"]): dict(render(tool)) for tool in tools}

    given = [("look", 1), ("mails", 2)]
    for inner in sent(1, *given).values():
        inner["parameters"]["note"] = "of Ann's"
    house.runs.clear()
    assert list(sent(1, *given).values()) == [_tool(*one)["function"] for one in given]


def test_the_tools_of_a_crew_that_is_gone_are_nobodys() -> None:
    """A process may make a crew for each request; nobody but the crew knew them, so that they may be let go."""
    session = Session(SharedPrefix(system="The house."), gate=None)
    binding = Binding(session.adapter, Options(), "crewai:crew:alike")
    adopt(binding, [_tool("look", 1)])
    owner = binding.owner
    assert session.adapter.tools_open_to(owner) == {"look"}
    del binding
    gc.collect()
    assert session.adapter.tools_open_to(owner) == frozenset()
