"""Requests too short to share: the crew's own layout, and in front what only the session knows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from crew_wire import bodies, prompts
from crewai import Agent, Task

from benchmarks.crewai_workloads import CrewModel, StyleTool, agents, crew, prose, tasks
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.server import Reply, ToolCall
from cacheprefix_crewai import install

HANDBOOK = "HANDBOOK: be brief."
KINDS = ("openai", "responses", "anthropic", "litellm", "litellm-anthropic")
INPUTS = {"brief": "Sell more."}


@pytest.fixture
def made(servers, new_llm):
    """``made(kind)`` gives a provider and a crew of three specialists whose requests are short."""

    def make(kind: str, model: Any = None, **changes: Any):
        provider = servers("anthropic" if "anthropic" in kind else "openai", model or CrewModel())
        who = agents(lambda: new_llm(provider, kind), tools=False)
        for one in who:
            for name, value in changes.items():
                setattr(one, name, value)
        return provider, crew(who, tasks(who))

    return make


def answering(_: Any) -> Reply:
    """No tools, no loops."""
    return Reply("Thought: I now can give a great answer\nFinal Answer: ok")


def written(provider: Any) -> list[list[str]]:
    """The texts of the recorded requests, section by section; the mark that LiteLLM hands on to OpenAI is none."""
    texts = [[section.text for section in one.sections] for one in prompts(provider)]
    return [[text for text in one if "cache_breakpoint" not in text] for one in texts]


def runs(provider: Any, team: Any, session: Session) -> list[list[str]]:
    """The texts of the crew as it is; then it runs installed, for its texts to be read."""
    team.kickoff(inputs=INPUTS)
    said = written(provider)
    provider.reset()
    with install(team, session):
        team.kickoff(inputs=INPUTS)
    assert "fewer tokens than the minimum" in str(session.report().notes)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_shared_text_stands_in_front_of_the_agents_own(made, kind) -> None:
    """Nothing else changes, and the sections behind the system text are the crew's."""
    provider, team = made(kind, answering)
    said = runs(provider, team, Session(SharedPrefix(system=HANDBOOK)))
    assert written(provider) == [[f"{HANDBOOK}\n\n{own}", *rest] for own, *rest in said]


@pytest.mark.parametrize("kind", ["openai", "litellm-anthropic"])
def test_an_agent_that_says_it_itself_sends_what_it_sent(made, kind) -> None:
    """The handbook stands in the backstory, so no text changes, in no section."""
    provider, team = made(kind, answering, backstory=f"You know this: {HANDBOOK}")
    said = runs(provider, team, Session(SharedPrefix(system=HANDBOOK)))
    assert written(provider) == said


def test_a_card_of_the_role_stands_beside_the_shared_text(made) -> None:
    """Each role has its own card only, and one without a card has the shared text alone; ours is never sent."""
    provider, team = made("openai", answering)
    cards = {team.agents[0].role: "CARD: count twice."}
    runs(provider, team, Session(SharedPrefix(system=HANDBOOK, roles=cards), caching=Caching(tail="cards")))
    assert [texts[0].startswith(f"{HANDBOOK}\n\nCARD: count twice.\n\nYou are") for texts in written(provider)] == [
        True,
        False,
        False,
    ]
    provider.reset()
    said = runs(provider, team, Session(SharedPrefix(roles=cards), caching=Caching(tail="cards")))
    changed = [f"CARD: count twice.\n\n{said[0][0]}", *(texts[0] for texts in said[1:])]
    assert [texts[0] for texts in written(provider)] == changed


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_agents_without_a_system_message_get_the_shared_text_in_front_of_their_own(made, kind) -> None:
    """``use_system_prompt=False`` is for models that take none: all stays in the user's message."""
    provider, team = made(kind, answering, use_system_prompt=False)
    team.kickoff(inputs=INPUTS)
    said = written(provider)
    provider.reset()
    with install(team, Session(SharedPrefix(system=HANDBOOK))):
        team.kickoff(inputs=INPUTS)
    assert written(provider) == [[f"{HANDBOOK}\n\n{own}", *rest] for own, *rest in said]
    assert not any(message["role"] == "system" for record in provider.requests for message in record.json["messages"])


@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
@pytest.mark.parametrize("kind", ["openai", "litellm-anthropic"])
def test_a_request_that_could_not_be_begun_says_it_too(made, kind, monkeypatch) -> None:
    """The own request that takes its place is the crew's, with the shared text in front."""
    provider, team = made(kind, answering)

    def broken(*_: Any, **__: Any) -> Any:
        """A step of ours that fails."""
        raise RuntimeError("on purpose")

    monkeypatch.setattr("cacheprefix.cache.CacheModel.begin", broken)
    said = runs(provider, team, Session(SharedPrefix(system=HANDBOOK)))
    assert written(provider) == [[f"{HANDBOOK}\n\n{own}", *rest] for own, *rest in said]


def test_observing_and_undeclared_sessions_leave_every_byte(made) -> None:
    """The text is for requests that would be forks if they were longer."""
    provider, team = made("openai", answering)
    team.kickoff(inputs=INPUTS)
    before = bodies(provider)
    for session in (Session(SharedPrefix(system=HANDBOOK), mode="observe"), Session()):
        provider.reset()
        with install(team, session):
            team.kickoff(inputs=INPUTS)
        sent = [{k: v for k, v in one.items() if k != "prompt_cache_key"} for one in bodies(provider)]
        assert sent == before


def test_durable_context_stands_in_every_request(made) -> None:
    """Where sharing does not pay too, in front of the agent's own text; once, if the agent says it itself."""
    provider, team = made("openai", answering)
    prefix = SharedPrefix(context={"world": "DURABLE: it rains."})
    said = runs(provider, team, Session(prefix))
    assert written(provider) == [[f"{prefix.text}\n\n{own}", *rest] for own, *rest in said]


def looking(request: Any) -> Reply:
    """One tool call, then the answer."""
    if request.rounds:
        return Reply("done")
    return Reply(tool_calls=(ToolCall("style_guide", {"kind": "memo"}),))


def test_what_is_left_alone_keeps_its_own_marks_and_no_others(servers, new_llm) -> None:
    """Byte for byte: a mark of ours behind a beginning that the provider did not keep would be paid for in vain."""
    found = []
    for installed in (False, True):
        provider = servers("anthropic", looking)
        who = agents(lambda provider=provider: new_llm(provider, "anthropic"), own_tools=True)
        one = Agent(
            role="Stylist",
            goal="Write.",
            backstory=prose(250),
            llm=who[2].llm,
            tools=[StyleTool()],
            respect_context_window=False,
            use_better_compaction=False,
        )
        work = [Task(description=prose(400, 7), expected_output="Text.", agent=one)]
        team = crew([one], work)
        session = Session()
        held = install(team, session) if installed else None
        team.kickoff()
        if held is not None:
            held.undo()
            assert {call.layout for call in session.calls} == {"own"}
            assert session.report().total.ratio == 1.0
        ids = re.compile(rb"toolu_\w+|call_\w+")
        found.append([ids.sub(b"id", record.body) for record in provider.requests])
    assert found[0] == found[1]
    assert len(found[0]) == 2
