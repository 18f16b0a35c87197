"""``Agent.kickoff(response_format=...)``: agents who answer by one schema share, as those who answer in words do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from crew_wire import BRIEF, heads, shared
from crewai import Agent
from pydantic import BaseModel
from test_equal_information import words

from cacheprefix import Session
from cacheprefix.profiles import cost_units, normalise_usage
from cacheprefix.server import Reply
from cacheprefix_crewai import install
from cacheprefix_crewai.framing import SYSTEM

KINDS = ["openai", "responses", "anthropic"]


class Verdict(BaseModel):
    """What is asked for."""

    text: str
    parts: int


class Count(BaseModel):
    """Something else."""

    parts: int


Asked = tuple[type[BaseModel] | None, ...]


@pytest.fixture
def ran(servers, new_llm) -> Callable[..., tuple[list[Any], list[Any]]]:
    """``ran(kind, asked, session)`` has agents answer one after another: what the application saw, and the requests."""

    def run(kind: str, asked: Asked, session: Session | None, *, waits: bool = False, untold: int = 0) -> Any:
        answer = json.dumps({"text": "Sound.", "parts": 2})
        provider = servers("anthropic" if kind == "anthropic" else "openai", lambda _: Reply(answer))
        llm = new_llm(provider, kind)
        who = [
            Agent(role=f"Judge {k}", goal="Judge.", backstory=f"Long a judge, {k}.", llm=llm)
            for k in range(untold or 3)
        ]
        seen = []
        held = None if session is None else install(who, session, shared_context="" if untold else BRIEF)
        for k, schema in enumerate(asked):
            one, text = who[k % len(who)], f"Judge part {k}.\n\n{BRIEF}"
            given: dict[str, Any] = {} if schema is None else {"response_format": schema}
            made = asyncio.run(one.kickoff_async(text, **given)) if waits else one.kickoff(text, **given)
            said = [{key: value for key, value in message.items() if key != "id"} for message in made.messages]
            seen.append((made.pydantic, made.raw, made.agent_role, said))
        if held is not None:
            held.undo()
        return seen, list(provider.requests)

    return run


def spent(requests: list[Any], session: Session) -> float:
    """What the provider billed, in cost units."""
    profile = session.calls[0].profile
    return sum(cost_units(normalise_usage(one.usage, one.api, profile=profile), profile) for one in requests)


def schema_in(request: Any) -> Any:
    """The schema that a request asks its answer by."""
    return next(
        (request.json[key] for key in ("response_format", "text", "output_format") if key in request.json), None
    )


@pytest.mark.parametrize(("kind", "waits"), [*((kind, False) for kind in KINDS), ("openai", True)])
def test_agents_who_answer_by_one_schema_share_and_the_application_sees_no_difference(ran, kind, waits) -> None:
    """Each says what it said, once, by the same schema; two read what the first one wrote."""
    session, asked = Session(), (Verdict,) * 3
    plain, own = ran(kind, asked, None, waits=waits)
    seen, sent = ran(kind, asked, session, waits=waits)
    assert seen == plain
    assert isinstance(seen[0][0], Verdict)
    assert [call.layout for call in session.calls] == ["fork"] * 3
    assert len(heads([one.prompt for one in sent])) == 1
    for mine, theirs in zip(sent, own, strict=True):
        assert schema_in(mine) == schema_in(theirs) is not None
        assert words(mine, ours=(SYSTEM,)) == words(theirs)
    assert spent(sent, session) < 0.5 * spent(own, session)
    assert sum(call.units for call in session.calls) == spent(sent, session)
    assert session.report().total.unmodified_units == pytest.approx(spent(own, session), rel=0.02)
    assert [str(call.verdict.cause) for call in session.calls] == ["cold_start", "hit", "hit"]
    assert not session.failures


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_another_schema_and_none_are_lanes_of_their_own(ran, kind) -> None:
    """What one of them has cached no other reads, and the report expects none to."""
    session = Session()
    _, sent = ran(kind, (Verdict, None, Count, Verdict, None, Count), session)
    read = [call.usage.cache_read_tokens for call in session.calls]
    assert [bool(tokens) for tokens in read] == [False] * 3 + [True] * 3
    assert [str(call.verdict.cause) for call in session.calls] == ["cold_start"] * 3 + ["hit"] * 3
    assert shared(sent[0].prompt, sent[1].prompt) > 0


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize(("asked", "agents"), [((None, None, Verdict), 6), ((Verdict, None, None, Verdict), 4)])
def test_what_others_said_in_words_counts_for_nobody_who_answers_by_a_schema(ran, kind, asked, agents) -> None:
    """Nobody told of a text: the last request keeps its own layout, since it could read nothing of those forks."""
    session = Session()
    _, own = ran(kind, asked, None, untold=agents)
    _, sent = ran(kind, asked, session, untold=agents)
    assert [call.layout for call in session.calls][-2:] == ["fork", "own"]
    assert words(sent[-1]) == words(own[-1])
    assert spent(sent[-1:], session) <= spent(own[-1:], session)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_observed_no_byte_changes(ran, kind) -> None:
    """The session is told of the schema; the request is the application's."""
    session = Session(mode="observe")
    plain, own = ran(kind, (Verdict, None, Verdict), None)
    seen, sent = ran(kind, (Verdict, None, Verdict), session)
    assert seen == plain
    assert [one.body for one in sent] == [one.body for one in own]
    assert len(session.calls) == 3
    assert not session.failures
