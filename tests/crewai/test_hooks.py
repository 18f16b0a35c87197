"""What the application's own code takes out of a request on its way to the model is not sent by us."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from crewai import Agent
from crewai.hooks import before_llm_call, register_before_llm_call_hook, unregister_before_llm_call_hook
from crewai.project import CrewBase

from benchmarks.crewai_workloads import CrewModel, agents, crew, prose, tasks
from cacheprefix import Session, preview
from cacheprefix.errors import NotSharedError
from cacheprefix_crewai import install

SECRET = "4000-0012-3456"
BRIEF = f"{prose(1_500)}\nThe card is {SECRET}, valid until May.\n{prose(200)}"
OPTIONS = ({"shared_inputs": ["brief"]}, {"shared_context": BRIEF})


@contextmanager
def redacting(only: str = "") -> Iterator[None]:
    """CrewAI's hook takes the secret out, of the requests of one role or of all."""

    def redact(context: Any) -> None:
        if only in ("", context.agent.role):
            for one in context.messages:
                if isinstance(one.get("content"), str):
                    one["content"] = one["content"].replace(SECRET, "[removed]")

    register_before_llm_call_hook(redact)
    try:
        yield
    finally:
        unregister_before_llm_call_hook(redact)


def kickoff(team: Any) -> None:
    """In this thread."""
    team.kickoff(inputs={"brief": BRIEF})


def akickoff(team: Any) -> None:
    """In an event loop."""
    asyncio.run(team.akickoff(inputs={"brief": BRIEF}))


@pytest.mark.parametrize("way", [kickoff, akickoff])
@pytest.mark.parametrize("options", OPTIONS, ids=["input", "context"])
@pytest.mark.parametrize("rules", ["openai", "anthropic"])
def test_what_a_hook_took_out_is_in_no_request(servers, new_llm, rules, options, way: Callable[[Any], None]) -> None:
    """Also where the user named the text to be shared; the report says that it is not."""
    provider, session = servers(rules, CrewModel(tools=False)), Session()
    who = agents(lambda: new_llm(provider, "anthropic" if rules == "anthropic" else "openai"), tools=False)
    with redacting(), install(crew(who, tasks(who)), session, **options) as installed:
        way(installed._target)
    sent = [record.body.decode() for record in provider.requests]
    assert len(sent) == 3
    assert not any(SECRET in body for body in sent)
    assert all("[removed]" in body for body in sent)
    assert all("text_not_found" in [reason.why for reason in call.reasons] for call in session.calls)


def test_a_note_and_the_preview_name_the_hook_that_changes_a_shared_input(servers, new_llm) -> None:
    """Nobody would look for it there; in a callback before the kickoff it would be shared."""
    provider, session = servers("openai", CrewModel(tools=False)), Session()
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    with redacting():
        seen = preview(team, session, task={"brief": BRIEF})
        with install(team, session):
            kickoff(team)
    (told,) = [note for note in session.report().notes if "hook" in note]
    assert "redact" in told
    assert "'brief'" in told
    assert "before_kickoff_callbacks" in told
    assert any("redact" in note and "in the run" in note for note in seen.notes)
    untouched = Session()
    with install(team, untouched):
        kickoff(team)
    assert not any("hook" in note for note in (*untouched.report().notes, *preview(team, task={"brief": BRIEF}).notes))


def test_a_method_of_a_crews_class_that_is_a_hook_for_some_agents_is_named_as_it_is_written(servers, new_llm) -> None:
    """CrewAI registers a function of its own around it."""

    @CrewBase
    class Office:
        @before_llm_call(agents=["Nobody"])
        def redact(self, context: Any) -> None: ...

    provider = servers("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(provider), tools=False)
    office: Any = Office()
    try:
        seen = preview(crew(who, tasks(who)), Session(), task={"brief": BRIEF})
    finally:
        for _, hook in office._registered_hook_functions:
            unregister_before_llm_call_hook(hook)
    (told,) = [note for note in seen.notes if "hook" in note]
    assert "Office.redact" in told
    assert "filtered" not in told


@pytest.mark.parametrize("options", OPTIONS, ids=["input", "context"])
def test_the_others_share_what_one_does_not_hold(servers, new_llm, options) -> None:
    """Of three agents a hook leaves two as they are."""
    provider, session = servers("openai", CrewModel(tools=False)), Session()
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    with redacting(who[1].role), install(team, session, **options):
        kickoff(team)
    assert [SECRET in record.body.decode() for record in provider.requests] == [True, False, True]
    assert ["text_not_found" in [reason.why for reason in call.reasons] for call in session.calls] == [
        False,
        True,
        False,
    ]
    assert session.calls[2].layout == "fork"


def test_strict_mode_tells_of_it_before_anything_is_sent(servers, new_llm) -> None:
    """The text that was to be shared is not."""
    provider = servers("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    strict = Session(mode="strict")
    with redacting(), install(team, strict, shared_inputs=["brief"]), pytest.raises(NotSharedError, match="brief"):
        kickoff(team)
    assert not provider.requests


def test_strict_mode_tells_of_an_input_whose_white_space_a_hook_changes(servers, new_llm) -> None:
    """It is shared with its very characters alone: a table with other tabs is another one."""

    def untab(context: Any) -> None:
        for one in context.messages:
            one["content"] = one["content"].replace("\t", "  ")

    provider = servers("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    register_before_llm_call_hook(untab)
    try:
        with (
            install(team, Session(mode="strict"), shared_inputs=["brief"]),
            pytest.raises(NotSharedError, match="brief"),
        ):
            team.kickoff(inputs={"brief": BRIEF.replace(" ", "\t")})
    finally:
        unregister_before_llm_call_hook(untab)
    assert not provider.requests


def test_a_context_that_nobody_holds_is_in_no_request(servers, new_llm) -> None:
    """Of agents without a crew."""
    provider, session = servers("openai", CrewModel(tools=False)), Session()
    who = [Agent(role=f"Agent{n}", goal="Goal.", backstory="Past.", llm=new_llm(provider)) for n in range(2)]
    with install(who, session, shared_context=BRIEF):
        for one in who:
            one.kickoff("Say something.")
    assert not any(SECRET in record.body.decode() for record in provider.requests)
    assert all(call.reasons[0].why == "text_not_found" for call in session.calls)


def subclasses() -> Any:
    """Two of an application's own: one takes the secret out of the user's messages alone, and both pass on no agent."""
    from crewai.llms.providers.openai.completion import OpenAICompletion

    def redacted(messages: Any) -> Any:
        return [
            {**one, "content": one["content"].replace(SECRET, "[removed]")} if one["role"] == "user" else one
            for one in messages
        ]

    class Sync(OpenAICompletion):
        """Asked in a thread."""

        def call(self, messages: Any, tools: Any = None, *_: Any, **__: Any) -> Any:
            """CrewAI's own."""
            seen.append([len(messages), [one["role"] for one in messages]])
            return super().call(redacted(messages), tools)

    class Both(Sync):
        """In an event loop too."""

        async def acall(self, messages: Any, tools: Any = None, *_: Any, **__: Any) -> Any:
            """CrewAI's own."""
            seen.append([len(messages), [one["role"] for one in messages]])
            return await super().acall(redacted(messages), tools)

    seen: list[Any] = []
    return Sync, Both, seen


@pytest.mark.parametrize("way", [kickoff, akickoff])
def test_what_a_model_class_takes_out_is_in_no_request(servers, new_llm, way: Callable[[Any], None]) -> None:
    """By the place at which it stands without us; what it is given is what it was, and the rest is shared."""
    provider = servers("openai", CrewModel(tools=False))
    _, both, seen = subclasses()
    llm = both(model="gpt-4.1", base_url=provider.openai_base_url, api_key="any")
    who = agents(lambda: llm, tools=False)
    team = crew(who, tasks(who))
    way(team)
    plain = list(seen)
    seen.clear()
    provider.reset()
    with install(team, Session()) as installed:
        way(team)
    assert seen == plain
    assert not any(SECRET in record.body.decode() for record in provider.requests)
    assert [call.agent for call in installed.session.calls] == [one.role for one in who]
    assert installed.session.failures == {}
    assert llm.__class__ is both


def test_a_model_class_of_ones_own_shares_in_the_way_that_it_has_not_worded(servers, new_llm) -> None:
    """Its ``call`` is its own, and its ``acall`` CrewAI's; what it lets stand is shared in both."""
    provider = servers("openai", CrewModel(tools=False))
    sync, _, _ = subclasses()
    llm = sync(model="gpt-4.1", base_url=provider.openai_base_url, api_key="any")
    who = agents(lambda: llm, tools=False)
    team = crew(who, tasks(who))
    with install(team, Session()) as installed:
        for way in ("kickoff", "akickoff"):
            found = getattr(team, way)(inputs={"brief": prose(1_500)})
            if asyncio.iscoroutine(found):
                asyncio.run(found)
    assert [call.layout for call in installed.session.calls] == ["fork"] * 6
    assert len(provider.requests) == 6
