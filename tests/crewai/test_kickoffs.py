"""Whose words stand in a prompt: kickoffs of one crew for several people."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from threading import Barrier
from typing import Any

import pytest
from crewai import Agent, Task
from crewai.tools import BaseTool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from benchmarks.crewai_workloads import CrewModel, agents, crew, prose, tasks
from cacheprefix import Compaction, Session, SharedPrefix, ToolResultBudget
from cacheprefix.errors import SetupError
from cacheprefix.server import Reply, ToolCall
from cacheprefix_crewai import ask, install
from tests.noting import note, noted

USERS = ("alice", "bob")
WAYS = ("kickoff", "kickoff_for_each", "kickoff_for_each_async", "akickoff")


def _brief(user):
    return {"brief": "Compare the proposals. " + " ".join(f"{user}-value-{k}" for k in range(300))}


def _run(team, way, inputs):
    async def awaited():
        if way == "akickoff":
            for each in inputs:
                await team.akickoff(inputs=each)
        else:
            await team.kickoff_for_each_async(inputs=inputs)

    if way == "kickoff":
        for each in inputs:
            team.kickoff(inputs=each)
    elif way == "kickoff_for_each":
        team.kickoff_for_each(inputs=inputs)
    else:
        asyncio.run(awaited())


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True], ids=["whole", "bounded"])
@pytest.mark.parametrize("way", WAYS)
def test_a_kickoff_is_a_conversation_of_its_own(servers, new_llm, way, bounded) -> None:
    """Nothing of one person's inputs is in another's prompt, no message is missing, and no kickoff alarms the next."""
    provider = servers("openai", CrewModel())
    options = {"budget": ToolResultBudget(max_tokens=300), "compaction": Compaction(trigger=2_500, horizon=1_000)}
    session = Session(gate=None, **(options if bounded else {}))
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who))
    with install(team, session):
        _run(team, way, [_brief(user) for user in USERS])
    bodies = [record.body.decode() for record in provider.requests]
    assert len(bodies) == 16
    whose = ["".join(user for user in USERS if f"{user}-value" in body) for body in bodies]
    assert sorted(whose) == ["alice"] * 8 + ["bob"] * 8
    for user in USERS:
        mine = [body for body, name in zip(bodies, whose, strict=True) if name == user]
        assert all(f"{user}-value-{k} " in body for body in mine for k in range(299))
    calls = session.calls
    assert {len([c for c in calls if c.conversation == name]) for name in {c.conversation for c in calls}} == {8}
    assert not any(call.verdict.alarm for call in calls)
    assert not session.failures


@pytest.mark.parametrize("way", ["kickoff", "kickoff_for_each_async"])
def test_a_named_input_is_of_the_kickoff_under_way(servers, new_llm, way) -> None:
    """And in no task that says the same whoever asks."""
    provider = servers("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(provider), tools=False)
    says = ("Read it. {brief}", "Take leave.", "Read it again. {brief}")
    work = [
        Task(description=one, expected_output="A text.", agent=a, context=[]) for one, a in zip(says, who, strict=True)
    ]
    team, session = crew(who, work), Session(SharedPrefix(system=f"The house. {prose(1_500)}"), gate=None)
    with install(team, session, shared_inputs=["brief"]):
        _run(team, way, [_brief(user) for user in USERS])
    shown = ["".join(user for user in USERS if f"{user}-value" in record.body.decode()) for record in provider.requests]
    assert sorted(shown) == ["", "", "alice", "alice", "bob", "bob"]
    assert len([record for record in provider.requests if "Take leave." in record.body.decode()]) == 2
    assert not session.failures


@pytest.mark.parametrize("same", [True, False], ids=["one name", "two names"])
def test_a_tool_that_comes_with_a_kickoff_is_shown_in_no_other(servers, new_llm, same) -> None:
    """A crew gets its tools for each person anew, once it was installed."""
    provider = servers("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(provider), tools=False)
    team, session = crew(who, tasks(who)), Session(SharedPrefix(system=f"The house. {prose(1_500)}"), gate=None)
    inputs = {"brief": prose(300)}
    with install(team, session):
        for user in (*USERS, *USERS):
            who[0].tools = [_Look(name="look" if same else f"look_{user}", description=f"Look up {user}-value.")]
            seen = len(provider.requests)
            team.kickoff(inputs=inputs)
            sent = [record.body.decode() for record in provider.requests[seen:]]
            assert f"{user}-value" in sent[0]
            assert not [body for body in sent for other in USERS if other != user and f"{other}-value" in body]
    assert not session.failures


EQUAL = ("the weather", "the market")
PARTS = st.tuples(
    st.integers(0, 2),
    # CrewAI ends a task that calls a tool five times in vain.
    st.lists(st.integers(0, 4), max_size=7).filter(lambda steps: all(steps.count(step) < 4 for step in steps)),
    st.booleans(),
)


class _About(BaseModel):
    about: str = Field(description="What to look up.")


class _Look(BaseTool):
    """Finds something; the same for the same question, whoever asks."""

    name: str = "look"
    description: str = "Look something up."
    args_schema: type[BaseModel] = _About

    def _run(self, about: str) -> str:
        return _found(about)


def _found(about):
    return f"On {about}: " + " ".join(f"{about.replace(' ', '-')}-value-{k}" for k in range(70))


class _Planned:
    """Looks up what a plan names, one after the other, whatever of it is still to be seen."""

    def __init__(self):
        self.plans, self.done = [], []

    def plan(self, user, steps):
        """What ``user`` will look up; its text is what the task says."""
        self.plans.append([EQUAL[step] if step < len(EQUAL) else f"{user} {step}" for step in steps])
        self.done.append(0)
        return f"(plan-{len(self.plans) - 1})"

    def __call__(self, request):
        number = int(re.findall(r"\(plan-(\d+)\)", request.text)[-1])
        done, steps = self.done[number], self.plans[number]
        if done < len(steps) and request.asked.choice != "none":
            self.done[number] += 1
            return Reply(tool_calls=(ToolCall("look", {"about": steps[done]}, id=f"call_{done}"),))
        return Reply("All was found.")

    def held(self, record):
        """What the plan of a request has looked up so far, and what of that stands in it, in order."""
        messages = record.json["messages"]
        (number,) = {int(found) for found in re.findall(r"\(plan-(\d+)\)", json.dumps(messages))}
        rounds = sum(message["role"] == "tool" for message in messages)
        results = [message["content"] for message in messages if message["role"] == "tool"]
        return [_found(about) for about in self.plans[number][:rounds]], results


def _ran(provider, way, team, who, model, parts):
    """Each part is a person's kickoff; some are under way at the same time."""
    users = ("alice", "bob", "carol")
    batch = []
    for number, (user, steps, together) in enumerate(parts):
        said = f"{users[user]} asks." if steps else "Somebody asks."
        batch.append({"said": f"{said} {model.plan(users[user], steps)}"})
        if together and number + 1 < len(parts):
            continue
        if way == "crew":
            asyncio.run(team.kickoff_for_each_async(inputs=batch)) if len(batch) > 1 else team.kickoff(inputs=batch[0])
        else:
            with ThreadPoolExecutor(len(batch)) as pool:
                runs = [
                    pool.submit(who[0].copy().kickoff if len(batch) > 1 else who[0].kickoff, f"Find it. {one['said']}")
                    for one in batch
                ]
                assert all(run.result(60).raw for run in runs)
        batch = []


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True], ids=["whole", "compacted"])
@pytest.mark.parametrize("way", ["crew", "agents"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(PARTS, min_size=2, max_size=5))
def test_pairs_and_triples_of_kickoffs_with_equal_texts_keep_apart(servers, new_llm, way, bounded, parts) -> None:
    """By turns and at the same time: no section of one is in another's prompt, and no message is missing."""
    model = _Planned()
    provider = servers("openai", model)
    options = {"compaction": Compaction(trigger=3_000, horizon=800)} if bounded else {}
    session = Session(SharedPrefix(system=f"The house. {prose(1_100)}"), gate=None, **options)
    who = [
        Agent(role=role, goal="Find it", backstory="Careful.", llm=new_llm(provider), tools=[_Look()], max_iter=40)
        for role in ("Finder", "Checker")
    ]
    work = [
        Task(description=f"{verb}. {{said}}", expected_output="A text.", agent=one)
        for verb, one in zip(("Find", "Check"), who, strict=True)
    ]
    team = crew(who, work)
    with install(team if way == "crew" else who, session):
        _ran(provider, way, team, who, model, parts)
    for record in provider.requests:
        looked, results = model.held(record)
        body = record.body.decode()
        mine = {name for name in ("alice", "bob", "carol") if f"{name} " in body or f"{name}-" in body}
        assert len(mine) < 2, mine
        if "Earlier messages were removed" not in body:
            assert results == looked
    assert not session.failures


class _Named(CrewModel):
    """Names in each answer whose words it was asked with."""

    def __call__(self, request):
        users = " and ".join(user for user in USERS if f"{user}-value" in request.text)
        return Reply(f"For {users}: " + super().__call__(request).text)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_side_question_in_a_kickoff_is_behind_that_kickoffs_words_alone(servers, new_llm, way) -> None:
    """Asked from a task's callback; another person's kickoff came before, or runs beside it."""
    provider = servers("openai", _Named())
    who = agents(lambda: new_llm(provider), tools=False)
    answers: list[tuple[str, str]] = []

    def ask_beside(output):
        said = ask(team, "In one word?").text
        answers.append((output.raw.partition(":")[0], said.partition(":")[0]))

    team = crew(who, tasks(who), task_callback=ask_beside)
    with install(team, Session(gate=None)):
        _run(team, way, [_brief(user) for user in USERS])
    assert len(answers) == 6
    assert {mine for mine, _ in answers} == {f"For {user}" for user in USERS}
    assert all(mine == beside for mine, beside in answers)
    asked = [record.body.decode() for record in provider.requests if "In one word?" in record.body.decode()]
    assert not any("For alice:" in body and "For bob:" in body for body in asked)


def test_nothing_can_be_asked_in_a_kickoff_that_has_said_nothing(servers, new_llm) -> None:
    """What was said last is the kickoff's before, which was another person's."""
    provider = servers("openai", _Named())
    who = agents(lambda: new_llm(provider), tools=False)
    refused: list[str] = []

    def before(inputs):
        with pytest.raises(SetupError, match="nothing was yet") as error:
            ask(team, "In one word?")
        refused.append(str(error.value))
        return inputs

    team = crew(who, tasks(who), before_kickoff_callbacks=[before])
    with install(team):
        for user in USERS:
            team.kickoff(inputs=_brief(user))
    assert len(refused) == 2


ASKS = ContextVar("asks", default="")


class _Own(_Look):
    """Finds what belongs to the person who asks."""

    def _run(self, about: str) -> str:
        return " ".join(f"{ASKS.get()}-value-{about}-{k}" for k in range(150))


class _Searching:
    """Looks something up thirty times in all, and can sum up."""

    def __init__(self):
        self._numbers = iter(range(30))

    def __call__(self, request):
        if "with the summary only" in request.tail:
            users = [user for user in USERS if f"{user}-value" in request.text]
            return Reply("".join(f"{user}-value-summed-up. " for user in users))
        number = next(self._numbers, None)
        if number is None or request.asked.choice == "none":
            return Reply("All was found.")
        return Reply(tool_calls=(ToolCall("look", {"about": f"{number}"}),))


def _finder(llm, tool):
    return Agent(role="Finder", goal="Find it", backstory=prose(1_100), llm=llm, tools=[tool], max_iter=40)


def test_people_who_ask_an_agent_the_same_at_once_are_not_summed_up_together(servers, new_llm) -> None:
    """An agent without a crew; what one of its runs looked up is in no summary that another's history gets."""
    provider = servers("openai", _Searching())
    who = _finder(new_llm(provider), _Own())

    def asked(user):
        ASKS.set(user)
        return who.kickoff("Find what is mine.").raw

    session = Session(gate=None, compaction=Compaction(3_000, summarise="fork", summary_tokens=120))
    with install(who, session), ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(copy_context().run, asked, user) for user in USERS]
        assert all(run.result(60).startswith("All") for run in runs)
    sent = [record.body.decode() for record in provider.requests]
    assert sum("with the summary only" in body for body in sent) > 2
    assert not [body for body in sent if all(f"{user}-value" in body for user in USERS)]
    assert not session.failures


class _Asking(_Own):
    """Asks beside the run that calls it, once the other one has said something too."""

    beside: Any
    meet: Any
    answers: list[tuple[str, str]] = Field(default_factory=list)

    def _run(self, about: str) -> str:
        self.meet.wait(30)
        self.answers.append((ASKS.get(), self.beside()))
        return super()._run(about)


class _Telling(_Searching):
    """Says who asked it."""

    def __call__(self, request):
        if "In one word?" in request.tail:
            return Reply(" and ".join(user for user in USERS if f"{user} asks" in request.text))
        return super().__call__(request) if not request.rounds else Reply("All was found.")


@pytest.mark.parametrize("way", ["kickoff", "kickoff_async", "akickoff"])
def test_a_side_question_beside_an_agents_own_run_is_behind_that_runs_words_alone(servers, new_llm, way) -> None:
    """Asked from a tool while another person's run of the same agent is under way."""
    provider = servers("openai", _Telling())
    tool = _Asking(beside=lambda: ask(who, "In one word?").text, meet=Barrier(2))
    who = _finder(new_llm(provider), tool)

    def asked(user):
        ASKS.set(user)
        run = getattr(who, way)(f"{user} asks: find what is mine.")
        return run.raw if way == "kickoff" else asyncio.run(_awaited(run)).raw

    with install(who, Session(gate=None)), ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(copy_context().run, asked, user) for user in USERS]
        assert all(run.result(60) == "All was found." for run in runs)
    assert sorted(tool.answers) == [(user, user) for user in USERS]


async def _awaited(run):
    return await run


def test_what_a_callback_writes_into_the_tools_of_a_request_is_on_the_wire_of_no_other(
    servers, new_llm, monkeypatch
) -> None:
    """Not of the next agents', who carry that tool as one of all, and not of the next kickoff's: another person's.

    A callback of LiteLLM's, which is told before a request goes out.
    """
    import litellm

    provider, session = servers("openai", CrewModel(tools=False)), Session(gate=None)

    class Noting(litellm.integrations.custom_logger.CustomLogger):  # type: ignore[misc, name-defined]
        def log_pre_api_call(self, model: Any, messages: Any, kwargs: Any) -> None:
            if not provider.requests:
                note([*filter(_searches, kwargs["additional_args"]["complete_input_dict"]["tools"])])

    # Not among ``litellm.callbacks``, which CrewAI sets for each agent.
    monkeypatch.setattr(litellm, "input_callback", [Noting()])
    who = agents(lambda: new_llm(provider, "litellm"), own_tools=True)
    team = crew(who, tasks(who))
    with install(team, session):
        for user in USERS:
            team.kickoff(inputs=_brief(user))
    assert all(any(map(_searches, json.loads(one.body)["tools"])) for one in provider.requests)
    assert noted(provider) == [True] + [False] * 5


def _searches(tool: Any) -> bool:
    """Whether it is the first agent's tool."""
    return tool["function"]["name"] == "search_market_data"
