"""What the application says to a crew's conversation: it arrives in every layout, once, and when it was said to."""

from __future__ import annotations

import json
import re
from threading import Thread
from typing import Any

import pytest
from crew_wire import INPUTS, bodies, heads, prompts, raw

import cacheprefix
from benchmarks.crewai_workloads import CrewModel, Finding, agents, crew, tasks
from cacheprefix import Compaction, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix_crewai import conversation_of, install

ZONE = "<project>\nWe build heat pumps.\n</project>"
KEYED = '<context key="world">\nIt rains.\n</context>'


def told(session: Session, target: Any) -> None:
    """A zone and durable context, said before anything is installed."""
    talk = session.conversation(conversation_of(target))
    talk.set_zone("project", "We build heat pumps.")
    talk.append_context("It rains.", key="world")


def said(body: Any) -> str:
    """All that a request says."""
    return "\n".join(str(message["content"]) for message in body["messages"])


CREWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "forks": ({}, {}, INPUTS),
    "own layouts": ({"tools": False}, {}, {"brief": "short"}),
    "own prompts": ({"tools": False, "use_system_prompt": False}, {}, INPUTS),
    "structured answers": ({"tools": False}, {"output_pydantic": Finding}, INPUTS),
}


def made(new_llm: Any, provider: Any, name: str) -> Any:
    """A crew whose requests have that layout."""
    options, of_tasks, _ = CREWS[name]
    who = agents(lambda: new_llm(provider), **options)
    return crew(who, tasks(who, **of_tasks))


@pytest.mark.parametrize("name", CREWS)
def test_zones_and_durable_context_arrive_once_in_every_request(servers, new_llm, name) -> None:
    """Whatever the layout, in front of the role; a preview says so beforehand."""
    provider = servers("openai")
    team, session = made(new_llm, provider, name), Session()
    told(session, team)
    foreseen = cacheprefix.preview(team, session, task=CREWS[name][2])
    with install(team, session):
        team.kickoff(inputs=CREWS[name][2])
    sent = bodies(provider)
    assert [(said(body).count(ZONE), said(body).count(KEYED)) for body in sent] == [(1, 1)] * len(sent)
    assert all(said(body).index(KEYED) < said(body).index("Your personal goal is") for body in sent)
    assert name != "forks" or len(heads(prompts(provider))) == 1
    assert foreseen is not None
    assert foreseen.requests[0].input_tokens == session.calls[0].input_tokens
    assert session.failures == {}


def test_what_a_forgotten_conversation_was_told_is_told_no_more(servers, new_llm) -> None:
    """In the kickoff under way, from the next request on."""
    provider = servers("openai")
    team, session = made(new_llm, provider, "forks"), Session()
    told(session, team)
    asked = []

    def after(_: Any) -> None:
        asked.append(len(provider.requests))
        session.forget(conversation_of(team))

    team.task_callback = after
    with install(team, session):
        team.kickoff(inputs=INPUTS)
    counts = [(said(body).count(ZONE), said(body).count(KEYED)) for body in bodies(provider)]
    assert set(counts[: asked[0]]) == {(1, 1)}
    assert set(counts[asked[0] :]) == {(0, 0)}
    assert session.failures == {}


def test_context_arrives_with_the_next_task_and_a_zone_with_the_next_kickoff(servers, new_llm) -> None:
    """A task goes on with what it began with."""
    provider = servers("openai")
    team, session = made(new_llm, provider, "forks"), Session()
    talk = session.conversation(conversation_of(team))

    def after(_: Any) -> None:
        if not talk.state.messages:
            talk.append_context("It rains.", key="world")
            talk.set_zone("project", "We build heat pumps.")

    team.task_callback = after
    counts = []
    with install(team, session):
        for _ in range(2):
            team.kickoff(inputs=INPUTS)
            counts.append([(KEYED in said(body), ZONE in said(body)) for body in bodies(provider)])
            provider.reset()
    first = sum("facts that the question needs" in said(body) for body in bodies(provider)) or 3
    assert counts[0] == [(False, False)] * first + [(True, False)] * (len(counts[0]) - first)
    assert set(counts[1]) == {(True, True)}
    assert session.failures == {}


def blocks(body: Any) -> list[str]:
    """What a request says under the key ``world``."""
    return re.findall(r'<context key="world">\n(.*?)\n</context>', said(body), re.DOTALL)


def test_a_base_and_what_is_appended_under_its_key_are_joined_with_the_next_kickoff(servers, new_llm) -> None:
    """The hook is given the base first, then what it made; tasks under way go on with what they began with."""
    provider, given = servers("openai"), []

    def join(key: str, texts: Any) -> str:
        given.append((key, tuple(texts)))
        return " / ".join(texts)

    team = made(new_llm, provider, "forks")
    session = Session(SharedPrefix(context={"world": "Sunny."}), compaction=Compaction(100_000, consolidate=join))
    talk = session.conversation(conversation_of(team))
    talk.append_context("It rains.", key="world")

    def after(_: Any) -> None:
        if len(talk.state.messages) == 1:
            talk.append_context("It pours.", key="world")

    team.task_callback = after
    shown = []
    with install(team, session):
        cacheprefix.preview(team, session, task=INPUTS)
        assert given == []
        for _ in range(2):
            team.kickoff(inputs=INPUTS)
            shown.append([blocks(body) for body in bodies(provider)])
            provider.reset()
    assert given == [("world", ("Sunny.", "It rains.")), ("world", ("Sunny. / It rains.", "It pours."))]
    assert shown[0][0] == ["Sunny.", "Sunny. / It rains."]
    assert shown[0][-1] == ["Sunny.", "Sunny. / It rains.", "It pours."]
    assert shown[1] == [["Sunny.", "Sunny. / It rains. / It pours."]] * len(shown[1])
    assert session.failures == {}

    other = made(new_llm, provider, "forks")
    elsewhere = Session(SharedPrefix(context={"world": "Sunny."}))
    elsewhere.conversation(conversation_of(other)).restore(talk.dumps())
    with install(other, elsewhere):
        other.kickoff(inputs=INPUTS)
    assert [blocks(body) for body in bodies(provider)] == shown[1]


def test_other_requests_go_on_while_a_consolidation_hook_runs(servers, new_llm) -> None:
    """It may ask a model: nothing that they need is held meanwhile."""
    provider, asked = servers("openai"), list[Thread]()
    who = agents(lambda: new_llm(provider), tools=False)

    def join(key: str, texts: Any) -> str:
        if not asked:
            asked.append(Thread(target=who[1].kickoff, args=["What else? (plan research)"], daemon=True))
            asked[0].start()
            asked[0].join(30)
            assert not asked[0].is_alive()
        return " / ".join(texts)

    session = Session(SharedPrefix(context={"world": "Sunny."}), compaction=Compaction(100_000, consolidate=join))
    with install(who, session):
        told(session, who)
        who[0].kickoff("What is open? (plan research)")
    assert [blocks(body)[-1] for body in bodies(provider)] == ["Sunny. / It rains."] * 2
    assert session.failures == {}


@pytest.mark.parametrize("name", ["own layouts", "own prompts", "structured answers"])
def test_what_the_session_says_is_no_cost_of_the_unmodified_crew(servers, new_llm, name) -> None:
    """Also where a task keeps its own layout and the text stands in front of it."""
    provider = servers("openai")
    plain = Session(mode="observe")
    team = made(new_llm, provider, name)
    with install(team, plain):
        team.kickoff(inputs=CREWS[name][2])
    team, session = made(new_llm, provider, name), Session(SharedPrefix(system="Name each source that you take. " * 9))
    with install(team, session):
        team.kickoff(inputs=CREWS[name][2])
    first, said_first = plain.calls[0], session.calls[0]
    assert said_first.layout == "own"
    assert said_first.input_tokens > first.input_tokens + 50
    assert said_first.unmodified_units == pytest.approx(first.units, rel=0.02)


def test_observed_crews_are_told_nothing(servers, new_llm) -> None:
    """Every byte is as it was."""
    provider = servers("openai")
    team, session = made(new_llm, provider, "forks"), Session(mode="observe")
    team.kickoff(inputs=INPUTS)
    before = raw(provider)
    provider.reset()
    told(session, team)
    with install(team, session):
        team.kickoff(inputs=INPUTS)
    assert raw(provider) == before


def test_agents_without_a_crew_are_told_too(servers, new_llm) -> None:
    """Each begins with what was said until then."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    session = Session()
    with install(who, session) as installed:
        assert installed.conversation == conversation_of(who)
        who[0].kickoff("What is open? (plan research)")
        told(session, who)
        who[1].kickoff("What is open? (plan research)")
    assert [ZONE in said(body) and KEYED in said(body) for body in bodies(provider)] == [False, True]


def test_the_second_crew_of_a_session_has_its_durable_context_too(servers, new_llm) -> None:
    """Also where it keeps its own layout, though the first crew gave the session its own two sentences."""
    provider = servers("openai")
    session = Session(SharedPrefix(context={"world": "It rains."}))
    for name in ("forks", "own layouts"):
        team = made(new_llm, provider, name)
        with install(team, session):
            team.kickoff(inputs=CREWS[name][2])
    assert all(said(body).count(KEYED) == 1 for body in bodies(provider))


def test_a_task_with_a_file_has_it_in_front_of_the_agents_text(servers, new_llm) -> None:
    """Such a request keeps its layout; the handbook is said nevertheless."""
    provider = servers("openai", CrewModel(tools=False))
    team, session = made(new_llm, provider, "own layouts"), Session("The handbook.")
    told(session, team)
    messages = [
        {"role": "system", "content": f"You are {team.agents[0].role}.", "cache_breakpoint": True},
        {"role": "user", "content": [{"type": "text", "text": "Look. (plan none)"}]},
    ]
    with install(team, session):
        team.agents[0].llm.call(messages, from_agent=team.agents[0], from_task=team.tasks[0])
    (body,) = bodies(provider)
    assert [json.dumps(body).count(text) for text in ("The handbook.", "heat pumps", "It rains.")] == [1, 1, 1]


def test_a_conversation_is_of_what_can_be_installed() -> None:
    """Anything else is refused by name."""
    with pytest.raises(SetupError, match="found str"):
        conversation_of("crew")
