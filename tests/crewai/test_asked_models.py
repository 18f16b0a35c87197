"""Models that nobody installed and that a run asks, a flow's, its methods' and tools', are counted and left alone."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import json
import re
import sys
import threading
from typing import Any

import pytest
from crew_wire import BRIEF, INPUTS, raw

from benchmarks.crewai_workloads import CrewModel, agents, crew, tasks
from cacheprefix import Session
from cacheprefix.server import Reply, Request
from cacheprefix_crewai import install
from cacheprefix_crewai.asked_models import _model_classes

MODEL = "gpt-4.1-2025-04-14"


@pytest.fixture
def server(servers, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A provider that models find which are made of their names alone."""

    def answers(request: Request) -> Reply:
        if request.asked.schema is not None and "outcome" in json.dumps(request.asked.schema):
            return Reply(json.dumps({"outcome": "approved"}))
        if request.asked.schema is not None and "intent" in json.dumps(request.asked.schema):
            return Reply(json.dumps({"intent": "converse"}))
        return CrewModel(tools=False)(request)

    found = servers("openai", answers)
    monkeypatch.setenv("OPENAI_BASE_URL", found.openai_base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setattr("builtins.input", lambda *_: "Fine.")
    return found


def reviewed(llm: Any) -> tuple[Any, Any]:
    """A person's word on a draft, which a model takes for one of two: ``llm`` is that model, or its name."""
    from crewai.flow import human_feedback
    from crewai.flow.flow import Flow, listen, start

    class Reviewed(Flow):
        """One agent, and a person."""

        @start()
        @human_feedback(message="Is it good?", emit=["approved", "rejected"], llm=llm)
        def draft(self) -> str:
            """Write it."""
            from crewai import LLM

            who = agents(lambda: LLM(model=MODEL), tools=False)[0]
            return str(who.kickoff(f"Do your part (plan none).\n\n{BRIEF}").raw)

        @listen("approved")
        def publish(self) -> str:
            """It is good."""
            return "published"

    return Reviewed(suppress_flow_events=True), lambda flow: flow.kickoff()


def conversing(llm: Any) -> tuple[Any, Any]:
    """CrewAI's own conversation: a router's model and the one that answers."""
    from crewai.flow.conversational import ConversationConfig, RouterConfig
    from crewai.flow.flow import Flow, listen

    @ConversationConfig(system_prompt=BRIEF, llm=llm, router=RouterConfig(routes=["work", "converse"], llm=llm))
    class Chat(Flow):
        """One more route."""

        @listen("work")
        def handle_work(self) -> str:
            """Work on it."""
            return "done"

    def go(flow: Any) -> list[str]:
        return [str(flow.handle_turn(text, session_id="one")) for text in ("Hello.", "And now?")]

    return Chat(suppress_flow_events=True), go


def asking(llm: Any) -> tuple[Any, Any]:
    """Methods that ask a model themselves, side by side and asynchronously too."""
    from crewai import LLM
    from crewai.flow.flow import Flow, listen, start

    def model() -> Any:
        return LLM(model=llm) if isinstance(llm, str) else llm

    class Asking(Flow):
        """Two beginnings, and one that goes on."""

        @start()
        def first(self) -> str:
            """A question."""
            return str(model().call(f"One (plan none). {BRIEF}"))

        @start()
        async def second(self) -> str:
            """Another one."""
            return str(await model().acall([{"role": "user", "content": f"Two (plan none). {BRIEF}"}]))

        @listen(first)
        def third(self, before: str) -> str:
            """One more."""
            return str(model().call(f"Three (plan none). {BRIEF} {before}"))

    return Asking(suppress_flow_events=True), lambda flow: flow.kickoff()


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("one_llm", [True, False], ids=["one model", "models of its own"])
def test_a_crew_that_nobody_installed_is_counted_where_a_tool_kicks_it_off_and_left_alone(
    servers, new_llm, one_llm, mode
) -> None:
    """Its requests are as they were, whatever the session says to the run's agents; alone, it is nobody's."""
    from crewai.tools import tool

    def run(session: Session | None) -> tuple[list[bytes], list[bytes]]:
        server = servers("openai", CrewModel())
        llm = new_llm(server)
        helpers = agents(lambda: llm if one_llm else new_llm(server))
        helping = crew(helpers, tasks(helpers, brief=False))
        began: list[int] = []

        @tool("search_market_data")
        def search(query: str, region: str = "all") -> str:
            """Ask others to find it."""
            if not began:
                began.append(len(server.requests))
                helping.kickoff()
                began.append(len(server.requests))
            return f"Found {query} in {region}."

        who = agents(lambda: llm, tools=False)
        who[0].tools = [search]
        team = crew(who, tasks(who))
        with contextlib.nullcontext() if session is None else install(team, session):
            team.kickoff(inputs=INPUTS)
        sent = raw(server)
        if session is not None:
            assert len(session.calls) == len(sent)
            helping.kickoff()
            assert len(session.calls) == len(sent)
        return sent[: began[0]] + sent[began[1] :], sent[slice(*began)]

    plain, session = run(None), Session(f"The house. {BRIEF * 4}", mode=mode)
    forked, theirs = run(session)
    assert theirs == plain[1]
    assert len(theirs) == 8
    assert (forked == plain[0]) is (mode == "observe")
    assert [call.agent for call in session.calls if call.layout in ("own", "observed")].count("crewai") == 8
    assert all(call.reasons for call in session.calls)
    assert session.failures == {}


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("build", [reviewed, conversing, asking], ids=lambda one: str(one.__name__))
def test_what_a_flow_asks_itself_is_counted_and_sent_as_it_was(server, build, named, mode) -> None:
    """By a model's name, and by a model that stands where ``install`` cannot look."""
    from crewai import LLM

    def run(session: Session | None) -> list[str]:
        server.reset()
        flow, go = build(MODEL if named else LLM(model=MODEL))
        with contextlib.nullcontext() if session is None else install(flow, session):
            go(flow)
        # An agent's own layout has the session's routing key.
        return sorted(re.sub(r',? ?"prompt_cache_key": ?"[^"]*"', "", body.decode()) for body in raw(server))

    plain, session = run(None), Session(mode=mode)
    assert run(session) == plain
    assert len(session.calls) == len(plain) >= 2
    assert session.report().total.unmodified_units == pytest.approx(session.report().total.cost_units)
    assert not session.failures


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_tool_asks_is_counted(server, new_llm, waits) -> None:
    """A model that a tool makes for itself in a crew's run, beside one that the crew's agents have."""
    from crewai import LLM
    from crewai.tools import BaseTool

    class Summary(BaseTool):
        """Asks a model."""

        name: str = "search_market_data"
        description: str = "Summarises."

        def _run(self, **_: Any) -> str:
            return str(LLM(model=MODEL).call("Say it in one word (plan none)."))

    server.simulator.script = CrewModel()
    who = agents(lambda: new_llm(server), tools=False)
    who[0].tools = [Summary()]
    team, session = crew(who, tasks(who)), Session()
    with install(team, session):
        asyncio.run(team.akickoff(inputs=INPUTS)) if waits else team.kickoff(inputs=INPUTS)
    assert len(session.calls) == len(server.requests) == 7
    assert [call.agent for call in session.calls].count("crewai") == 2
    assert session.report().total.ratio is not None
    assert not session.failures


def test_agents_that_a_tool_makes_are_counted_and_say_the_same(server, new_llm) -> None:
    """With a model of their own, without a crew; a ``LiteAgent`` too."""
    from crewai.lite_agent import LiteAgent
    from crewai.tools import BaseTool

    class Helper(BaseTool):
        """Asks two agents."""

        name: str = "search_market_data"
        description: str = "Asks helpers."

        def _run(self, **_: Any) -> str:
            helper = agents(lambda: new_llm(server), tools=False)[2]
            lite = LiteAgent(role="Lite", goal="Help.", backstory="Long.", llm=new_llm(server))
            asked = f"Do your part (plan none).\n\n{BRIEF}"
            return f"{helper.kickoff(asked).raw} {lite.kickoff(asked).raw}"

    def run(session: Session | None) -> list[str]:
        server.reset()
        server.simulator.script = CrewModel()
        who = agents(lambda: new_llm(server), tools=False)
        who[0].tools = [Helper()]
        team = crew(who, tasks(who))
        with contextlib.nullcontext() if session is None else install(team, session):
            return [str(one.raw) for one in team.kickoff(inputs=INPUTS).tasks_output]

    session = Session()
    assert run(session) == run(None)
    assert len(session.calls) == len(server.requests) == 3 + 2 + 4
    assert {"Report Writer", "Lite"} <= {call.agent for call in session.calls}
    assert not session.failures


def test_two_agents_are_not_told_that_there_is_no_other(server, new_llm) -> None:
    """What each would pay and save is said instead, once both have asked."""
    who = agents(lambda: new_llm(server), tools=False)[:2]
    for agent in who:
        agent.backstory = BRIEF
    session = Session()
    with install(who, session):
        for turn in range(2):
            for agent in who:
                agent.kickoff(f"Do your part for turn {turn} (plan none).")
    assert [[reason.why for reason in call.reasons] for call in session.calls][1:] == [["little_to_share"]] * 3


def test_models_outside_of_a_run_are_not_touched_and_another_crews_within_it_are_counted(server, new_llm) -> None:
    """What the application asks beside it is nobody's; a crew that a callback kicks off is not one of the run's."""
    from crewai import LLM

    who = agents(lambda: new_llm(server), tools=False)
    team, session, beside = crew(who, tasks(who)), Session(), LLM(model=MODEL)
    others = agents(lambda: new_llm(server), tools=False)
    other = crew(others, tasks(others))
    with install(team, session):
        beside.call("Hello (plan none).")
        assert type(beside) is type(LLM(model=MODEL))
        assert not session.calls
        team.task_callback = lambda _: other.kickoff(inputs=INPUTS)
        team.kickoff(inputs=INPUTS)
    assert len(server.requests) == 1 + 3 + 9
    assert [call.agent for call in session.calls].count("crewai") == 9
    assert len(session.calls) == 3 + 9


def test_classes_and_models_are_given_back(server) -> None:
    """With the last installation: the classes' methods, and the models that joined."""
    from crewai import LLM
    from crewai.llms.providers.openai.completion import OpenAICompletion

    before = [vars(OpenAICompletion)["call"], vars(OpenAICompletion)["acall"], vars(LLM)["__new__"], vars(LLM)["call"]]
    llm = LLM(model=MODEL)
    flow, go = asking(llm)
    with install(flow, Session()):
        go(flow)
        assert type(llm) is not OpenAICompletion
        assert isinstance(llm, OpenAICompletion)
    after = [vars(OpenAICompletion)["call"], vars(OpenAICompletion)["acall"], vars(LLM)["__new__"], vars(LLM)["call"]]
    assert after == before
    assert type(llm) is OpenAICompletion


def test_a_class_that_is_imported_in_the_run_is_watched_too(server, monkeypatch) -> None:
    """CrewAI imports a provider's when the first model of it is made, here by a flow's method."""
    from crewai import LLM

    monkeypatch.delitem(sys.modules, "crewai.llms.providers.openai.completion")
    flow, go = asking(MODEL)
    session = Session()
    with install(flow, session):
        go(flow)
        found = type(LLM(model=MODEL))
        assert found is sys.modules["crewai.llms.providers.openai.completion"].OpenAICompletion
    assert len(session.calls) == len(server.requests) == 3
    assert "asked_models" not in str(vars(found)["call"].__code__)


class _Imports:
    """Garbage whose finalizer imports a module, as another thread may at any time, and leaves such garbage behind."""

    def __init__(self, left: int) -> None:
        self.itself, self.left = self, left

    def __del__(self) -> None:
        sys.modules[f"{__name__}.{self.left}"] = sys
        if self.left:
            _Imports(self.left - 1)


def test_model_classes_are_looked_for_while_modules_are_imported() -> None:
    """Wherever the garbage collector runs meanwhile."""
    known, thresholds = set(sys.modules), gc.get_threshold()
    _Imports(50)
    gc.set_threshold(1)
    try:
        assert [*_model_classes()]
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
        for name in set(sys.modules) - known:
            if name.startswith(f"{__name__}."):
                del sys.modules[name]


def test_threads_that_ask_one_model_at_once(server) -> None:
    """It joins once, whoever is first."""
    from crewai import LLM
    from crewai.flow.flow import Flow, start
    from crewai.llms.providers.openai.completion import OpenAICompletion

    llm, at_once = LLM(model=MODEL), threading.Barrier(8)

    class Asking(Flow):
        """Eight threads."""

        @start()
        def ask(self) -> None:
            """All of them."""

            def one() -> None:
                at_once.wait()
                llm.call("Hello (plan none).")

            going = [threading.Thread(target=contextvars.copy_context().run, args=(one,)) for _ in range(8)]
            for thread in going:
                thread.start()
            for thread in going:
                thread.join()

    flow, session = Asking(suppress_flow_events=True), Session()
    with install(flow, session):
        flow.kickoff()
        assert type(llm).__mro__[1] is OpenAICompletion
    assert type(llm) is OpenAICompletion
    assert len(session.calls) == 8
    assert not session.failures


def test_an_applications_own_class_is_asked_once(server) -> None:
    """Its ``call`` is CrewAI's with something around it: it runs once, and what it asks is counted."""
    from crewai.flow.flow import Flow, start
    from crewai.llms.providers.openai.completion import OpenAICompletion

    asked = []

    class Mine(OpenAICompletion):
        """Notes what it is asked."""

        def call(self, messages: Any, *given: Any, **named: Any) -> Any:
            asked.append(messages)
            return super().call(messages, *given, **named)

    llm = Mine(model=MODEL)

    class Asking(Flow):
        """Twice."""

        @start()
        def ask(self) -> list[str]:
            """And again."""
            return [str(llm.call(f"{word} (plan none).")) for word in ("One", "Two")]

    flow, session = Asking(suppress_flow_events=True), Session()
    with install(flow, session):
        flow.kickoff()
    assert asked == ["One (plan none).", "Two (plan none)."]
    assert len(session.calls) == len(server.requests) == 2
    assert type(llm) is Mine
    assert not session.failures
