"""A flow that is installed: crews and agents that it makes in its methods share the long texts of its state."""

from __future__ import annotations

import asyncio
import contextvars
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any

import pytest
from crew_wire import BRIEF, bodies, prompts, raw

from benchmarks.crewai_workloads import CrewModel, SearchTool, agents, crew, prose, tasks
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix_crewai import ask, conversation_of, install, session_of, uninstall

PLANS = ("research", "analysis", "writing")


def flow_of(llm: Any, *, kind: str = "crews", tools: bool = False) -> Any:
    """Three steps on one brief, each with a crew (or an agent) that its method makes."""
    from crewai import Task
    from crewai.flow.flow import Flow, listen, start

    def asked(self: Any, at: int) -> str:
        who = agents(lambda: llm, tools=False)[at]
        who.tools = [SearchTool()] if tools else []
        about = f"Do your part (plan {PLANS[at] if tools else 'none'}).\n\nThe brief:\n"
        before = f"\n\nBefore: {self.state.get('draft', '')}"
        if kind == "agents":
            self.state["draft"] = who.kickoff(f"{about}{self.state['brief']}{before}").raw
        else:
            task = Task(description=f"{about}{{brief}}{before}", expected_output="A text.", agent=who)
            self.state["draft"] = crew([who], [task]).kickoff(inputs={"brief": self.state["brief"]}).raw
        return str(self.state["draft"])

    class Paper(Flow):  # type: ignore[misc, type-arg]
        """One after the other."""

        @start()
        def collect(self) -> str:
            """First."""
            return asked(self, 0)

        @listen(collect)
        def work_out(self) -> str:
            """Second."""
            return asked(self, 1)

        @listen(work_out)
        def write(self) -> str:
            """Last."""
            return asked(self, 2)

    made = Paper()
    made.memory = None
    return made


def board_of(lead: Any, team: Any = None) -> Any:
    """The class of a flow that asks an agent, then a crew if there is one, both made once for all users."""
    from crewai.flow.flow import Flow, listen, start

    class Board(Flow):  # type: ignore[misc, type-arg]
        """One after the other."""

        def said(self) -> str:
            return f"{self.state.get('user', 'alice')} asks. {BRIEF}"

        @start()
        def ask(self) -> str:
            """By itself."""
            return str(lead.kickoff(self.said()).raw)

        @listen(ask)
        def work(self) -> str:
            """Together."""
            return "" if team is None else str(team.kickoff(inputs={"brief": self.said()}).raw)

    return Board


def units(server: Any, rules: str = "openai") -> float:
    """What the requests cost."""
    profile = default_registry().get(rules)
    return sum(cost_units(normalise_usage(one.usage, one.api), profile) for one in server.requests)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["kickoff", "kickoff_async", "akickoff"])
@pytest.mark.parametrize("kind", ["crews", "agents"])
def test_one_call_shares_a_flows_text_between_what_its_methods_make(servers, new_llm, kind, start) -> None:
    """Its crews and agents begin with the brief, for much less, and say what they said before."""
    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)

    def go(flow: Any) -> Any:
        found = getattr(flow, start)(inputs={"brief": BRIEF})
        return asyncio.run(found) if asyncio.iscoroutine(found) else found

    expected, plain = go(flow_of(llm, kind=kind)), units(server)
    server.reset()
    flow, session = flow_of(llm, kind=kind), Session()
    with install(flow, session) as installed:
        assert go(flow) == expected
        assert session_of(flow) is session
    assert units(server) < 0.56 * plain
    heads = {one.sections[0].data for one in prompts(server)}
    assert len(heads) == 1
    assert BRIEF in next(iter(heads)).decode()
    assert len(session.calls) == 3
    assert {call.conversation.rpartition(":")[0] for call in session.calls} == {installed.conversation}
    assert session.failures == {}


@pytest.mark.parametrize("rules", ["openai", "anthropic"])
def test_a_flow_of_one_crew_costs_no_more(servers, new_llm, rules) -> None:
    """Where no method follows that starts another one, a text that one task holds stays where it is."""
    from crewai import Task
    from crewai.flow.flow import Flow, listen, start

    server = servers(rules, CrewModel(tools=False))
    llm = new_llm(server, "anthropic" if rules == "anthropic" else "openai")

    class Lone(Flow):  # type: ignore[misc, type-arg]
        """A crew, and what is done with its answer."""

        @start()
        def ask(self) -> str:
            """The crew."""
            who = agents(lambda: llm, tools=False)[:1]
            task = Task(description="Do it (plan none).\n{brief}", expected_output="A text.", agent=who[0])
            return str(crew(who, [task]).kickoff(inputs={"brief": self.state["brief"]}).raw)

        @listen(ask)
        def keep(self) -> str:
            """No crew."""
            return "kept"

    Lone().kickoff(inputs={"brief": BRIEF})
    plain = units(server, rules)
    server.reset()
    flow = Lone()
    with install(flow, Session()):
        flow.kickoff(inputs={"brief": BRIEF})
    assert units(server, rules) <= plain


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["openai", "anthropic"])
def test_a_hierarchical_crew_of_a_flow_shares_as_it_does_by_itself(servers, new_llm, rules) -> None:
    """Its manager repeats the state's text in each task, for about what it costs where the crew alone is installed."""
    from crewai import Process
    from crewai.flow.flow import Flow, start

    server = servers(rules, CrewModel(tools=False))

    def team() -> Any:
        llm = new_llm(server, "anthropic" if rules == "anthropic" else "openai")
        who = agents(lambda: llm, tools=False)
        return crew(who, tasks([None] * 3), process=Process.hierarchical, manager_llm=llm)

    class Report(Flow):  # type: ignore[misc, type-arg]
        """One crew."""

        @start()
        def write(self) -> str:
            """All of it."""
            return str(team().kickoff(inputs={"brief": self.state["brief"]}).raw)

    costs = {}
    for way in ("plain", "crew", "flow"):
        server.reset()
        session, flow = Session(), Report()
        flow.memory = None
        if way == "crew":
            alone = team()
            with install(alone, session):
                alone.kickoff(inputs={"brief": BRIEF})
        else:
            held = install(flow, session) if way == "flow" else None
            flow.kickoff(inputs={"brief": BRIEF})
            if held is not None:
                held.undo()
        costs[way] = units(server, rules)
    assert {call.layout for call in session.calls if "Manager" in call.agent} == {"fork"}
    assert costs["crew"] < 0.8 * costs["plain"]
    assert costs["flow"] <= 1.01 * costs["crew"]
    assert session.failures == {}


@pytest.mark.parametrize("first", ["openai", "anthropic"])
def test_tools_of_agents_that_ask_another_model_are_in_no_request(servers, new_llm, first) -> None:
    """A flow's second crew asks another model: it carries none of the first one's, and is called no outlier."""
    from crewai import Task
    from crewai.flow.flow import Flow, listen, start

    kinds = (first, "anthropic" if first == "openai" else "openai")
    made = {kind: servers(kind, CrewModel(tools=False)) for kind in kinds}

    def ran(flow: Any, at: int) -> str:
        llm = new_llm(made[kinds[at]], kinds[at])
        who = agents(lambda: llm, tools=False)[:2]
        for number, one in enumerate(who):
            one.role, one.tools = f"{one.role} {at}", [SearchTool(name=f"search_{number}")] if at == 0 else []
        work = [Task(description="Do your part.\n{brief}", expected_output="A text.", agent=one) for one in who]
        return str(crew(who, work).kickoff(inputs={"brief": flow.state["brief"]}).raw)

    class Both(Flow):  # type: ignore[misc, type-arg]
        """One after the other."""

        @start()
        def one(self) -> str:
            """First."""
            return ran(self, 0)

        @listen(one)
        def other(self) -> str:
            """Last."""
            return ran(self, 1)

    flow, session = Both(), Session(mode="strict")
    flow.memory = None
    with install(flow, session):
        flow.kickoff(inputs={"brief": BRIEF})
    carried = [[len(body.get("tools") or ()) for body in bodies(made[kind])] for kind in kinds]
    assert carried == [[2, 2], [0, 0]]
    assert not [call for call in session.calls for reason in call.reasons if reason.why == "other_model"]
    assert session.failures == {}


@pytest.mark.parametrize("scope", [None, "tenant"])
def test_agents_of_one_crew_carry_the_tools_of_their_own_model(servers, new_llm, scope) -> None:
    """Also of a tenant's other crew, which is installed beside it."""
    server = servers("openai", CrewModel(tools=False))
    llms = [new_llm(server) for _ in range(2)]
    llms[1].model = "gpt-5"
    teams = []
    for name in ("left", "right"):
        who = agents(lambda: llms[0], tools=False)
        who[1].llm = llms[1]
        who[0].tools, who[1].tools = [SearchTool(name=f"{name}_0")], [SearchTool(name=f"{name}_1")]
        teams.append(crew(who, tasks(who, context=[])))
    session = Session()
    with install(teams[0], session, scope=scope), install(teams[1], session, scope=scope):
        teams[1].kickoff(inputs={"brief": BRIEF})
    both = ["left", "right"] if scope else ["right"]
    carried = [(body["model"], [one["function"]["name"] for one in body["tools"]]) for body in bodies(server)]
    # The second agent has nobody to share with.
    assert carried == [
        (llms[0].model, [f"{name}_0" for name in both]),
        (llms[1].model, ["right_1"]),
        (llms[0].model, [f"{name}_0" for name in both]),
    ]
    assert session.failures == {}


def test_agents_are_shown_no_text_of_the_state_that_they_do_not_hold(servers, new_llm) -> None:
    """A secret in the state reaches nobody who was not told of it."""
    server = servers("openai", CrewModel(tools=False))
    flow = flow_of(new_llm(server))
    with install(flow, Session()):
        flow.kickoff(inputs={"brief": BRIEF, "secret": f"SECRET {prose(200, 4)}"})
    assert "SECRET" not in json.dumps(bodies(server))


@pytest.mark.parametrize("once", [True, False], ids=["one flow", "a flow each"])
def test_a_tool_that_is_made_while_a_flow_runs_is_shown_in_no_other_run(servers, new_llm, once) -> None:
    """It may be made for the one whom the flow runs for; crews of that run share it."""
    from crewai import Task
    from crewai.flow.flow import Flow, listen, start

    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)

    def asked(state: Any, *tools: Any) -> None:
        who = agents(lambda: llm, tools=False)[:2]
        who[0].tools = list(tools)
        said = [Task(description="Do it. {brief}", expected_output="A text.", agent=one) for one in who]
        crew(who, said).kickoff(inputs={"brief": state["brief"]})

    class Mails(Flow):  # type: ignore[misc, type-arg]
        """Two crews, of which the first has a tool."""

        @start()
        def read(self) -> None:
            """For the one who asks."""
            user = self.state["user"]
            asked(self.state, SearchTool(name=f"mails_{user}", description=f"Mails of {user}."))

        @listen(read)
        def write(self) -> None:
            """Without a tool."""
            asked(self.state)

    flows = [Mails(suppress_flow_events=True)] * 2 if once else [Mails(suppress_flow_events=True) for _ in range(2)]
    session = Session(gate=None)
    for flow, user in zip(flows, ("alice", "bob"), strict=True):
        flow.memory = None
        with install(flow, session):
            flow.kickoff(inputs={"user": user, "brief": BRIEF})
    shown = [[user for user in ("alice", "bob") if f"Mails of {user}" in json.dumps(body)] for body in bodies(server)]
    assert shown[:4] == [["alice"]] * 4
    assert shown[4] == ["bob"]
    assert not any("alice" in one for one in shown[4:])
    assert session.failures == {}


def test_crews_of_one_flow_delegate_to_their_own_agents(servers, new_llm) -> None:
    """Each names its own coworkers, and not those of the crew that ran before it."""
    from crewai import Task
    from crewai.flow.flow import Flow, listen, start

    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)

    def asked(place: str, brief: str) -> None:
        who = agents(lambda: llm, tools=False, allow_delegation=True)[:2]
        for one in who:
            one.role = f"{one.role} of the {place}"
        crew(who, [Task(description=f"Do it. {brief}", expected_output="A text.", agent=one) for one in who]).kickoff()

    class Places(Flow):  # type: ignore[misc, type-arg]
        """Two crews."""

        @start()
        def north(self) -> None:
            """The first."""
            asked("north", self.state["brief"])

        @listen(north)
        def south(self) -> None:
            """The second."""
            asked("south", self.state["brief"])

    flow, session = Places(suppress_flow_events=True), Session(gate=None)
    flow.memory = None
    with install(flow, session):
        flow.kickoff(inputs={"brief": BRIEF})
    tools = [json.dumps(body["tools"]) for body in bodies(server)]
    named = [[place for place in ("north", "south") if f"of the {place}" in one] for one in tools]
    assert named == [["north"]] * 2 + [["south"]] * 2
    assert session.failures == {}


@pytest.mark.parametrize("asked", [False, True], ids=["installed first", "asked first"])
def test_a_flow_is_shown_no_coworkers_of_a_crew_that_was_installed_before(servers, new_llm, asked) -> None:
    """It was made for somebody else, whose name stands in its roles; the flow delegates to agents of its own."""
    from crewai import Task
    from crewai.flow.flow import Flow, start

    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)

    def made(user: str) -> Any:
        who = agents(lambda: llm, tools=False, allow_delegation=True)[:2]
        for one in who:
            one.role = f"{one.role} of {user}"
        return crew(who, [Task(description=f"Do it. {BRIEF}", expected_output="A text.", agent=one) for one in who])

    class Lone(Flow):  # type: ignore[misc, type-arg]
        """One crew."""

        @start()
        def ask(self) -> None:
            """For another person."""
            made("Bob").kickoff()

    first, flow = made("Alice"), Lone(suppress_flow_events=True)
    session = Session(SharedPrefix(system=f"The house. {prose(1200)}"), gate=None)
    flow.memory = None
    with install(first, session), install(flow, session):
        if asked:
            first.kickoff()
        seen = len(server.requests)
        flow.kickoff()
    sent = raw(server)[seen:]
    assert len(sent) == 2
    assert all(b"of Bob" in body and b"Alice" not in body for body in sent)
    assert session.failures == {}


def test_observing_and_undoing_leave_every_byte_and_class(servers, new_llm) -> None:
    """Observed, requests are counted; taken back, CrewAI's classes are what they were, and made crews nobody's."""
    from crewai import Agent, Crew
    from crewai.flow.flow import Flow

    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)
    kind, methods = type(llm), [(one, one.kickoff) for one in (Agent, Crew, Flow)]
    flow_of(llm).kickoff(inputs={"brief": BRIEF})
    before = raw(server)
    for session in (Session(mode="observe"), None):
        server.reset()
        flow = flow_of(llm)
        if session is None:
            install(flow, Session())
            uninstall(flow)
            assert session_of(flow) is None
            flow.kickoff(inputs={"brief": BRIEF})
        else:
            with install(flow, session):
                flow.kickoff(inputs={"brief": BRIEF})
            assert len(session.calls) == 3
        assert raw(server) == before
        assert type(llm) is kind
        assert [one.kickoff for one, _ in methods] == [method for _, method in methods]


def test_a_crew_of_the_applications_own_class_runs_once(servers, new_llm) -> None:
    """Also where it comes to CrewAI's method from its own; and it is part of the flow from this very run on."""
    from crewai import Crew, Task
    from crewai.flow.flow import Flow, start

    llm, ran = new_llm(servers("openai", CrewModel(tools=False))), []

    class Own(Crew):
        def kickoff(self, *given: Any, **named: Any) -> Any:
            ran.append("kickoff")
            return super().kickoff(*given, **named)

    class Lone(Flow):  # type: ignore[misc, type-arg]
        """One crew."""

        @start()
        def ask(self) -> str:
            """The crew."""
            who = agents(lambda: llm, tools=False)[:1]
            task = Task(description="Do it (plan none).", expected_output="A text.", agent=who[0])
            return str(Own(agents=who, tasks=[task]).kickoff().raw)

    flow, session = Lone(), Session()
    with install(flow, session) as installed:
        flow.kickoff()
    assert ran == ["kickoff"]
    assert [call.conversation.rpartition(":")[0] for call in session.calls] == [installed.conversation]
    assert session.failures == {}


def test_what_others_put_around_crewais_methods_stays(servers, new_llm, monkeypatch) -> None:
    """A tracer that came later keeps its place when a flow is taken back."""
    from crewai import Crew

    before, flow = Crew.kickoff, flow_of(new_llm(servers("openai", CrewModel(tools=False))))
    installed = install(flow, Session())
    ours, traced = Crew.kickoff, []

    def tracer(self: Any, *given: Any, **named: Any) -> Any:
        traced.append(1)
        return ours(self, *given, **named)

    monkeypatch.setattr(Crew, "kickoff", tracer)
    installed.undo()
    assert Crew.kickoff is tracer
    flow.kickoff(inputs={"brief": BRIEF})
    assert len(traced) == 3
    assert installed.session.calls == ()
    Crew.kickoff = before


def test_what_runs_outside_of_the_flow_is_left_alone(servers, new_llm) -> None:
    """Another flow of the same class, and a crew beside them, send what they sent."""
    server = servers("openai", CrewModel(tools=False))
    llm = new_llm(server)
    flow_of(llm).kickoff(inputs={"brief": BRIEF})
    before = raw(server)
    server.reset()
    with install(flow_of(llm), Session()) as installed:
        flow_of(llm).kickoff(inputs={"brief": BRIEF})
    assert raw(server) == before
    assert installed.session.calls == ()


def test_zones_and_a_handbook_reach_every_crew_of_a_flow(servers, new_llm) -> None:
    """The flow's conversation can be had beforehand."""
    server = servers("openai", CrewModel(tools=False))
    flow, session = flow_of(new_llm(server)), Session("The handbook.", caching=Caching(provider="openai"))
    session.conversation(conversation_of(flow)).set_zone("project", "We build heat pumps.")
    with install(flow, session):
        flow.kickoff(inputs={"brief": BRIEF})
    said = [json.dumps(body) for body in bodies(server)]
    assert [text.count("The handbook.") + text.count("We build heat pumps.") for text in said] == [2, 2, 2]


@pytest.mark.parametrize("made", ["once", "in_the_class"])
def test_what_the_flows_of_two_users_start_is_each_ones_in_its_own_run(servers, new_llm, made) -> None:
    """A crew and an agent that are made once for all: nobody is told what only the other one is to know."""
    from crewai import Crew

    server = servers("openai", CrewModel(tools=False))
    all_of_them = agents(lambda: new_llm(server), tools=False)
    lead, team = all_of_them[0], crew(all_of_them[1:], tasks(all_of_them)[1:])

    board = board_of(lead, team)
    if made == "in_the_class":
        board.lead, board.team = lead, team
    session, users, flows = Session(), ("alice", "bob"), {}
    with ExitStack() as stack:
        for user in users:
            flows[user] = board()
            told = {"me": f"I am {user}-secret."}
            stack.enter_context(install(flows[user], session, scope=user, volatile=lambda told=told: told))
        for user in (*users, "alice"):
            server.reset()
            flows[user].kickoff(inputs={"user": user})
            bodies = raw(server)
            assert len(bodies) == 3
            assert all(f"{user}-secret".encode() in one for one in bodies), user
            assert not any(f"{other}-secret".encode() in one for other in users if other != user for one in bodies)
        server.reset()
        team.kickoff(inputs={"brief": BRIEF})
        lead.kickoff(BRIEF)
        assert not any(b"-secret" in one for one in raw(server))
    assert type(team) is Crew


@pytest.mark.parametrize("scoped", [True, False])
@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_requests_of_a_server_that_install_on_one_agent_have_each_their_own(servers, new_llm, way, scoped) -> None:
    """Both are under way at once: nobody is told what only the other one is to know."""
    server, session, users = servers("openai", CrewModel(tools=False)), Session(), ("alice", "bob")
    lead = agents(lambda: new_llm(server), tools=False)[0]

    def installed(user: str) -> Any:
        told = {"me": f"I am {user}-secret."}
        return install(lead, session, scope=user if scoped else None, volatile=lambda: told)

    def served(user: str) -> None:
        with installed(user):
            together.wait(30)
            lead.kickoff(f"{user} asks. {BRIEF}")
            together.wait(30)

    async def served_async(user: str) -> None:
        with installed(user):
            await asyncio.sleep(0.1)
            await lead.kickoff_async(f"{user} asks. {BRIEF}")
            await asyncio.sleep(0.1)

    async def both() -> None:
        await asyncio.gather(*map(served_async, users))

    together = Barrier(2)
    if way == "threads":
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(served, users))
    else:
        asyncio.run(both())
    asked = [[user for user in users if f"{user} asks".encode() in one] for one in raw(server)]
    told = [[user for user in users if f"{user}-secret".encode() in one] for one in raw(server)]
    assert sorted(asked) == [["alice"], ["bob"]]
    assert told == asked


def test_who_installs_beside_another_and_asks_for_nothing_is_told_nothing_of_the_others(servers, new_llm) -> None:
    """In a thread of its own; where the other one installed, a second time is the first."""
    server, session = servers("openai", CrewModel(tools=False)), Session()
    lead = agents(lambda: new_llm(server), tools=False)[0]

    def beside() -> str:
        with install(lead, session) as installed:
            lead.kickoff(f"bob asks. {BRIEF}")
            return installed.scope

    with install(lead, session, scope="alice", volatile=lambda: {"me": "I am alice-secret."}) as first:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(beside).result() == session.adapter.scope
        with install(lead, session) as second:
            assert second.scope == first.scope == "alice"
            lead.kickoff(f"alice asks. {BRIEF}")
    assert [b"alice-secret" in one for one in raw(server)] == [False, True]


@pytest.mark.parametrize("way", ["executor", "steps"])
def test_what_a_thread_asks_that_knows_nothing_of_its_request_is_told_nothing(servers, new_llm, way) -> None:
    """Of a pool, or a generator of which each step runs in a context of its own: it had what was installed last."""
    server, session, users = servers("openai", CrewModel(tools=False)), Session(), ("alice", "bob")
    lead = agents(lambda: new_llm(server), tools=False)[0]

    def served(user: str) -> Any:
        told = {"me": f"I am {user}-secret."}
        with install(lead, session, scope=user, volatile=lambda: told):
            yield
            lead.kickoff(f"{user} asks. {BRIEF}")
            yield

    both = [served(user) for user in users]
    contexts = {one: contextvars.copy_context() for one in both}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(str).result()  # its thread was there before
        for step in range(3):
            for one in both:
                if way == "steps":
                    contextvars.copy_context().run(next, one, None)
                elif step == 1:
                    pool.submit(next, one).result()
                else:
                    contexts[one].run(next, one, None)
    assert len(raw(server)) == 2
    assert not any(b"-secret" in one for one in raw(server))
    assert any("asyncio.to_thread" in note for note in session.report().notes)


@pytest.mark.parametrize("what", ["an_agent", "a_crew", "a_flow"])
@pytest.mark.parametrize("within", ["flow", "crew"])
def test_in_a_run_nothing_is_in_force_that_another_request_installed(servers, new_llm, what, within) -> None:
    """What the run starts is its own, whoever has installed on that meanwhile."""
    from crewai import Task
    from crewai.flow.flow import Flow, start

    server, session = servers("openai", CrewModel(tools=False)), Session()
    all_of_them = agents(lambda: new_llm(server), tools=False)
    lead, team = all_of_them[0], crew(all_of_them[1:], tasks(all_of_them)[1:])

    class Outer(Flow):  # type: ignore[misc, type-arg]
        """Starts what is made once for all."""

        @start()
        def go(self) -> str:
            """It."""
            return str(lead.kickoff(f"alice asks. {BRIEF}") if what == "an_agent" else inner.kickoff())

    own = crew([lead], [Task(description=f"alice asks. {BRIEF}", expected_output="A text.", agent=lead)])
    inner, outer = own if what == "a_crew" else board_of(lead)(), Outer()
    team.tasks[0].callback = lambda _: outer.go()
    bobs: dict[str, Any] = {"scope": "bob", "volatile": lambda: {"me": "I am bob-secret."}}
    alices: dict[str, Any] = {"scope": "alice", "volatile": lambda: {"me": "I am alice-secret."}}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(install, lead if what == "an_agent" else inner, session, **bobs).result()
        with install(outer if within == "flow" else team, session, **alices):
            outer.kickoff() if within == "flow" else team.kickoff(inputs={"brief": BRIEF})
        pool.submit(other.undo).result()
    bodies = raw(server)
    assert any(b"alice asks" in one for one in bodies)
    assert not any(b"bob-secret" in one for one in bodies)
    # A crew that a callback starts, and that she has not installed, is counted alone.
    mine = [one for one in bodies if (within, what) != ("crew", "a_crew") or b"alice asks" not in one]
    assert all(b"alice-secret" in one for one in mine)


def test_a_thread_that_has_left_an_installation_joins_it_no_more(servers, new_llm) -> None:
    """A server's thread serves one after the other: another one's request may still hold what the first joined."""
    server, session = servers("openai", CrewModel(tools=False)), Session()
    lead = agents(lambda: new_llm(server), tools=False)[0]
    session.conversation(conversation_of(lead), scope="alice").append_context("I am alice-secret.", key="me")

    def bobs() -> str:
        with install(lead, session) as installed:
            lead.kickoff(f"bob asks. {BRIEF}")
            return installed.scope

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        held = [pool.submit(install, lead, session, scope="alice").result() for pool in (first, second)]
        first.submit(held[0].undo).result()
        assert first.submit(bobs).result() == session.adapter.scope
        second.submit(held[1].undo).result()
    assert [b"alice-secret" in one for one in raw(server)] == [False]


def test_nobody_asks_behind_anothers_flow(servers, new_llm) -> None:
    """Several flows have started the agent, of which one has ended: the question would go on from the other's."""
    server, session = servers("openai", CrewModel(tools=False)), Session()
    lead = agents(lambda: new_llm(server), tools=False)[0]

    alices, bobs = board_of(lead)(), board_of(lead)()
    with install(alices, session, scope="alice"):
        alices.kickoff(inputs={"user": "alice"})
        assert ask(lead, "Who asked?").text
        with install(bobs, session, scope="bob"):
            bobs.kickoff(inputs={"user": "bob"})
        with pytest.raises(SetupError, match="installed"):
            ask(lead, "Who asked?")
        assert ask(alices, "Who asked?").text


def test_callbacks_install_once_whatever_runs_there(servers, new_llm) -> None:
    """A crew that other users' runs kick off is not installed on with each kickoff."""
    from cacheprefix_crewai import callback
    from cacheprefix_crewai.binding import bindings_on

    server, session = servers("openai", CrewModel(tools=False)), Session()
    all_of_them = agents(lambda: new_llm(server), tools=False)
    lead, team = all_of_them[0], crew(all_of_them[1:2], tasks(all_of_them)[1:2])
    team.before_kickoff_callbacks = [callback(session, volatile=lambda: {"now": "Noon."})]
    outer = crew([lead], tasks(all_of_them)[:1])
    outer.tasks[0].callback = lambda _: team.kickoff(inputs={"brief": BRIEF})

    def served(user: str) -> int:
        with install(outer, session, scope=user):
            outer.kickoff(inputs={"brief": BRIEF})
        return len(bindings_on(team))

    counts = []
    for user in ("alice", "bob"):
        with ThreadPoolExecutor(1) as pool:
            counts.append(pool.submit(served, user).result())
    assert counts == [1, 1]
