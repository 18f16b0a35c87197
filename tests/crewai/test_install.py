"""Installing and taking back: nothing is left behind, nobody else is touched."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
import threading
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from crewai import Agent, BaseLLM, Crew, Task
from pydantic import BaseModel

from benchmarks.crewai_workloads import BRIEF, CrewModel, SearchTool, agents, crew, tasks
from cacheprefix import Gate, Session, SharedPrefix, wrap
from cacheprefix.adapter import ToolSource
from cacheprefix.errors import ConfigError, SetupError
from cacheprefix_crewai import callback, conversation_of, install, session_of, uninstall
from cacheprefix_crewai.tools import crew_tools

INPUTS = {"brief": BRIEF}


def run(provider: Any, team: Any) -> list[bytes]:
    """Kick off once; the bodies as they came."""
    provider.reset()
    team.kickoff(inputs=INPUTS)
    return [record.body for record in provider.requests]


@pytest.fixture
def team(provide, new_llm):
    """``team(kind)`` gives a provider and a crew on it."""

    def make(kind: str = "openai", **options: Any):
        provider = provide("anthropic" if "anthropic" in kind else "openai")
        who = agents(lambda: new_llm(provider, kind), **options)
        return provider, crew(who, tasks(who))

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "litellm", "litellm-anthropic"])
def test_observing_changes_no_byte(team, kind) -> None:
    """In ``observe`` mode all requests are those of the crew as it was."""
    provider, plain = team(kind)
    before = run(provider, plain)
    with install(plain, Session(mode="observe")) as installed:
        assert run(provider, plain) == before
    assert len(installed.session.calls) == len(before) == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "anthropic", "litellm"])
def test_taking_it_back_restores_every_byte(team, kind) -> None:
    """After ``with`` the requests are byte-identical to those before it."""
    provider, plain = team(kind)
    before = run(provider, plain)
    with install(plain):
        assert run(provider, plain) != before
    assert run(provider, plain) == before


def test_taking_it_back_leaves_no_trace_on_the_objects(team) -> None:
    """Classes and instance dicts are what they were."""
    _, plain = team()
    watched = [plain, *plain.agents, *(agent.llm for agent in plain.agents)]
    before = [(type(one), sorted(vars(one))) for one in watched]
    with install(plain):
        assert [(type(one), sorted(vars(one))) for one in watched] != before
    assert [(type(one), sorted(vars(one))) for one in watched] == before


def test_models_and_crews_stay_what_they_are(team) -> None:
    """An installed model is still the same object of the same class to everyone who asks."""
    _, plain = team()
    llm, kind = plain.agents[0].llm, type(plain.agents[0].llm)
    with install(plain):
        assert plain.agents[0].llm is llm
        assert isinstance(llm, kind)
        assert type(llm).__name__ == kind.__name__
        assert isinstance(plain, type(plain).__mro__[1])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kickoff", "kickoff_async", "kickoff_for_each"])
def test_what_replaces_a_crews_method_later_is_asked(team, monkeypatch, way) -> None:
    """A tracer that comes after us has its span, and a test its fake, while it is there and no longer."""
    provider, plain = team()
    kind, given = type(plain), [INPUTS] if way == "kickoff_for_each" else INPUTS
    fake, kickoff, seen = Mock(return_value="its own"), kind.kickoff, []

    def traced(self, *given, **named):
        seen.append(self)
        return kickoff(self, *given, **named)

    def ran() -> Any:
        result = getattr(plain, way)(inputs=given)
        return asyncio.run(result) if way == "kickoff_async" else result

    with install(plain) as installed:
        with monkeypatch.context() as replaced:
            replaced.setattr(kind, "kickoff", fake)
            assert ran() in ("its own", ["its own"])
            assert not provider.requests
            assert fake.call_count == 1
            assert len(fake.call_args.args) <= 2, "as without us: inputs and files, no crew"
            replaced.setattr(kind, "kickoff", traced)
            ran()
        assert len(seen) == 1
        ran()
    assert len(seen) == fake.call_count == 1
    assert len(installed.session.calls) == len(provider.requests) == 16


def test_installing_twice_is_once(team) -> None:
    """The second call with the same session finds the first."""
    _, plain = team()
    session = Session()
    install(plain, session)
    install(plain, session)
    uninstall(plain)
    assert session_of(plain) is None


def test_another_session_takes_over(team) -> None:
    """The last session that was installed is the one in force."""
    _, plain = team()
    first, second = Session(), Session()
    install(plain, first)
    install(plain, second)
    assert session_of(plain) is second
    uninstall(plain)


def test_the_last_who_leaves_takes_it_back(team) -> None:
    """A helper that installs what is installed already ends nothing for those around it."""
    _, plain = team()
    session = Session()
    with install(plain, session) as outer:
        with install(plain, session) as inner:
            assert session_of(plain) is session
        assert (inner.active, outer.active) == (False, True)
        assert session_of(plain) is session
        inner.undo()
        assert session_of(plain) is session
    assert session_of(plain) is None


@pytest.mark.parametrize("mode", ["fork", "observe", "off"])
def test_a_report_that_saw_no_call_says_what_was_probably_installed_amiss(team, mode) -> None:
    """Until a request comes; nothing of it where cacheprefix is off."""
    _, made = team("openai")
    session = Session(mode=mode)
    with install(made, session):
        said = [note for note in session.report().notes if "no request has come from crew" in note]
        assert len(said) == (mode != "off")
        made.kickoff(inputs={"brief": BRIEF})
    assert not [note for note in session.report().notes if "no request has come" in note]


def test_where_no_model_is_known_the_report_says_that_alone() -> None:
    """Nothing was installed amiss: the application's own class of model is what keeps its requests from being seen."""
    session = Session()

    class Own(BaseLLM):
        """Answers without any provider."""

        def call(self, *_: Any, **__: Any) -> str:
            """The same each time."""
            return "Thought: I know\nFinal Answer: so"

    agent = Agent(role="reader", goal="Read.", backstory="Reads.", llm=Own(model="mine"))
    made = Crew(agents=[agent], tasks=[Task(description="Read.", expected_output="So.", agent=agent)])
    with install(made, session):
        made.kickoff()
    (note,) = session.report().notes
    assert "Own: requests of this model class are neither changed nor measured" in note


def test_what_was_in_force_before_is_so_again(team) -> None:
    """Another session inside a block rules there, and nowhere else; taken back in whatever order."""
    _, plain = team()
    first, second = Session(), Session()
    outer = install(plain, first)
    with install(plain, second):
        assert session_of(plain) is second
    assert session_of(plain) is first
    inner = install(plain, second)
    outer.undo()
    assert session_of(plain) is second
    inner.undo()
    assert session_of(plain) is None
    assert not any("__cacheprefix__" in vars(one) for one in (plain, *plain.agents))


def test_crews_may_share_their_agents(provide, new_llm) -> None:
    """Each crew's requests are its own installation's, after the other one's was taken back too."""
    provider = provide()
    who = agents(lambda: new_llm(provider), tools=False)
    one, two = crew(who, tasks(who)), crew(who, tasks(who))
    first, second = Session(), Session()
    outer = install(one, first)
    with install(two, second):
        run(provider, one)
        run(provider, two)
    run(provider, one)
    assert outer.active
    assert (first.report().total.calls, second.report().total.calls) == (6, 3)
    outer.undo()


def test_installing_asks_for_nothing_that_crewai_deprecates(team) -> None:
    """Its warning would be about what the application never named."""
    _, plain = team()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with install(plain, Session(mode="observe")):
            pass


def test_copies_belong_to_the_installation_and_pickles_to_nobody(team) -> None:
    """What stands on an agent goes with its copies; a pickle holds nothing that only we could load."""
    _, plain = team()
    with install(plain):
        owned = vars(plain.agents[0])["__cacheprefix__"]
        made = copy.deepcopy(owned)
        assert made is not owned
        assert made.found() is owned.found() is not None
        assert pickle.loads(pickle.dumps(owned)) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"use_system_prompt": False},
        {"system_template": "<s>{{ .System }}", "prompt_template": "<u>{{ .Prompt }}"},
    ],
    ids=["no system message", "templates"],
)
def test_prompts_of_the_applications_own_keep_their_layout(provide, new_llm, options) -> None:
    """An agent that is to have no system message, or words of its own, gets none of ours."""
    provider = provide()
    sent = []
    for installed in (False, True):
        who = agents(lambda: new_llm(provider), tools=False, **options)
        team = crew(who, tasks(who))
        if installed:
            install(team)
        run(provider, team)
        sent.append([record.json["messages"] for record in provider.requests])
    assert sent[0] == sent[1]
    assert all(len(messages) == 1 for messages in sent[1])


def test_an_answer_that_is_asked_for_in_another_form_is_counted(provide, new_llm) -> None:
    """CrewAI names no agent where it turns an answer into a model."""

    class Answer(BaseModel):
        headline: str

    provider = provide()
    who = agents(lambda: new_llm(provider))[1:]
    with install(who) as installed:
        for agent in who:
            agent.kickoff("Do your part of the work. (plan writing)", response_format=Answer)
    assert len(provider.requests) > 2 * len(who)
    assert installed.session.report().total.calls == len(provider.requests)
    assert {call.agent for call in installed.session.calls} == {agent.role for agent in who}


def test_only_crews_and_agents_can_be_installed_on() -> None:
    """Anything else is refused with the name of what it was."""
    with pytest.raises(SetupError, match="found str"):
        install("a crew")
    with pytest.raises(SetupError, match="found an empty list"):
        install([])


def test_the_core_finds_the_adapter_for_a_crew(team) -> None:
    """``cacheprefix.wrap`` installs and gives the crew back."""
    _, plain = team()
    session = Session()
    if not any(info.name == "crewai" for info in session.plugins.loaded):
        pytest.skip("the adapter is on the path but not installed, so that no entry point names it")
    assert wrap(plain, session) is plain
    assert session_of(plain) is session
    uninstall(plain)


def test_the_callback_form_installs_at_kickoff(team) -> None:
    """A crew with the callback sends forks; the user's own callbacks fire as before."""
    provider, plain = team()
    fired: list[str] = []
    session = Session()
    plain.before_kickoff_callbacks = [callback(session), lambda inputs: fired.append("before") or inputs]
    plain.after_kickoff_callbacks = [lambda output: fired.append("after") or output]
    plain.task_callback = lambda output: fired.append("task")
    sent = run(provider, plain)
    assert len({body.split(b'"role":"user"', 1)[0] for body in sent}) == 1
    assert fired == ["before", "task", "task", "task", "after"]
    assert len(session.calls) == 8
    uninstall(plain)


def test_two_crews_that_share_a_model_do_not_meet(provide, new_llm) -> None:
    """Installing one crew leaves every byte of the other, and its calls are not counted."""
    provider = provide("openai")
    llm = new_llm(provider)
    first, second = (crew(who, tasks(who)) for who in (agents(lambda: llm), agents(lambda: llm)))
    before = run(provider, second)
    with install(first) as installed:
        assert run(provider, second) == before
        assert installed.session.calls == ()
        run(provider, first)
        assert len(installed.session.calls) == 8
    assert run(provider, second) == before


def test_two_installed_crews_in_threads_keep_their_sessions(provide, new_llm) -> None:
    """Crews that run at the same time count into their own sessions, on one model object."""
    provider = provide("openai")
    llm = new_llm(provider)
    teams = [crew(who, tasks(who)) for who in (agents(lambda: llm), agents(lambda: llm))]
    installed = [install(one) for one in teams]
    threads = [threading.Thread(target=one.kickoff, kwargs={"inputs": INPUTS}) for one in teams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(one.session.calls) for one in installed] == [8, 8]
    for one in installed:
        one.undo()


@pytest.mark.slow
def test_copies_of_a_kickoff_for_each_are_part_of_the_installation(provide, new_llm) -> None:
    """Every run sends forks, on OpenAI natively and through LiteLLM, whose models are made anew by a copy."""
    for kind in ("openai", "litellm"):
        provider = provide("openai")
        who = agents(lambda provider=provider, kind=kind: new_llm(provider, kind))
        team = crew(who, tasks(who, item=True))
        with install(team) as installed:
            team.kickoff_for_each(inputs=[{"brief": BRIEF, "item": item} for item in ("north", "south")])
        heads = {body.split(b'"role":"user"', 1)[0] for body in (record.body for record in provider.requests)}
        assert len(heads) == 1
        assert len(installed.session.calls) == 16


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("way", ["after install", "before_kickoff callback", "task callback", "another agent", "alone"])
def test_what_a_crew_is_given_after_install_is_measured_and_taken_back(provide, new_llm, mode, way) -> None:
    """A callback may choose the model, or the application add an agent: none of its requests goes out unseen."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who))
    late = [new_llm(provider) for _ in who]
    own = type(late[0])

    def changed(given: Any) -> Any:
        if way != "another agent":
            for agent, llm in zip(who, late, strict=True):
                agent.llm = llm
        else:
            new = Agent(role="editor", goal="Edit.", backstory="Long an editor.", llm=late[0])
            team.tasks.append(Task(description="Edit it.\n\n{brief}", expected_output="A page.", agent=new))
        return given

    if way == "before_kickoff callback":
        team.before_kickoff_callbacks.append(changed)
    if way == "task callback":
        team.tasks[0].callback = changed
    with install(who if way == "alone" else team, Session(mode=mode)) as installed:
        if way in ("after install", "another agent", "alone"):
            changed(None)
        if way == "alone":
            for agent in who:
                agent.kickoff(f"Do your part.\n\n{BRIEF}")
        else:
            team.kickoff(inputs=INPUTS)
    assert len(installed.session.calls) == len(provider.requests)
    if mode == "fork" and way in ("after install", "before_kickoff callback", "another agent"):
        assert {call.layout for call in installed.session.calls} == {"fork"}
    assert {type(llm) for llm in late} == {own}
    assert not any(key.startswith("__cacheprefix") for one in (*who, *late, team.tasks[-1].agent) for key in vars(one))


def test_identical_runs_send_identical_bytes(provide, new_llm) -> None:
    """A second kickoff repeats the first request for request."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who))
    with install(team):
        assert run(provider, team) == run(provider, team)


def test_agents_of_a_flow_share_a_context_they_are_told(provide, new_llm) -> None:
    """``shared_context`` stands first in every agent's requests, and not in its task."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    with install(who, shared_context=BRIEF) as installed:
        for agent, name in zip(who, ("research", "analysis", "writing"), strict=True):
            agent.kickoff(f"Do your part. (plan {name})\n\n{BRIEF}")
    heads = {record.body.split(b'"role":"user"', 1)[0] for record in provider.requests}
    assert len(heads) == 1
    assert all(record.body.count(BRIEF[:200].encode()) == 1 for record in provider.requests)
    assert len(installed.session.calls) == 8


def test_without_a_session_the_configuration_counts(team, monkeypatch) -> None:
    """As for ``Session.from_config()``; a mistake is told before the crew is touched."""
    provider, plain = team()
    before = run(provider, plain)
    monkeypatch.setenv("CACHEPREFIX_MODE", "observe")
    with install(plain) as installed:
        assert installed.session.mode == "observe"
        assert run(provider, plain) == before
    monkeypatch.setenv("CACHEPREFIX_MODE", "sideways")
    with pytest.raises(ConfigError, match="CACHEPREFIX_MODE"):
        install(plain)
    with pytest.raises(ConfigError, match="CACHEPREFIX_MODE"):
        callback()
    assert session_of(plain) is None


@pytest.fixture
def equipped(servers, new_llm):
    """A provider and ``made(*names)``, which gives a crew whose agents have a tool of these names each."""
    provider = servers("openai", CrewModel(tools=False))

    def made(*names: str) -> Any:
        who = agents(lambda: new_llm(provider), tools=False)
        for agent, name in zip(who, names, strict=False):
            agent.tools = [SearchTool(name=name)] if name else []
        return crew(who, tasks(who, context=[]))

    return provider, made


def carried(provider: Any) -> list[list[str]]:
    """The names of the tools of each request, in order."""
    return [[tool["function"]["name"] for tool in record.json["tools"]] for record in provider.requests]


def skilled(team: Any, folder: Path) -> None:
    """The second agent may load the text of a skill."""
    (folder / "plain-words").mkdir()
    said = "---\nname: plain-words\ndescription: How the house writes.\n---\n\nUse short words."
    (folder / "plain-words" / "SKILL.md").write_text(said)
    team.agents[1].skills = [str(folder)]


def skilled_crew(team: Any, folder: Path) -> None:
    """All may."""
    skilled(team, folder)
    team.skills, team.agents[1].skills = team.agents[1].skills, None


def told_all(team: Any, folder: Path) -> None:
    """The second agent was given the skill whole, and needs no tool."""
    from crewai.skills.loader import load_skills

    skilled(team, folder)
    team.agents[1].skills = load_skills(team.agents[1].skills, activate=True)


def remembering(team: Any, folder: Path) -> None:
    """The second agent has a memory of its own."""
    from crewai.memory.unified_memory import Memory

    team.agents[1].memory = Memory(llm=team.agents[1].llm, embedder=lambda texts: [[1.0] * 8 for _ in texts])


def looking(team: Any, folder: Path) -> None:
    """The second agent may ask for pictures, which its model does not take itself."""
    team.agents[1].multimodal = True
    team.agents[1].llm.model = "gpt-3.5-turbo"


@pytest.mark.parametrize("equip", [skilled, skilled_crew, told_all, remembering, looking])
def test_what_crewai_adds_to_an_agents_tools_is_known_before_the_first_request(equipped, tmp_path, equip) -> None:
    """A tool that came with the second task would be in no earlier request, which could then share nothing with it."""
    provider, made = equipped
    team = made("plan", "check", "write")
    equip(team, tmp_path)
    names = {tool["function"]["name"] for tool in crew_tools(team, team.agents).schemas}
    with install(team, Session(mode="observe")):
        team.kickoff(inputs={"brief": BRIEF})
    sent = [tool for record in provider.requests for tool in record.json.get("tools", ())]
    assert names == {tool["function"]["name"] for tool in sent}
    assert (names == {"plan", "check", "write"}) == (equip is told_all)


def test_tools_of_one_tenants_crews_are_in_no_other_tenants_requests(equipped) -> None:
    """Crews of one tenant share theirs; all are installed before the session's first request."""
    provider, made = equipped
    session, inputs = Session(f"The house. {BRIEF * 4}"), {"brief": BRIEF}
    first, second, other = made("plan"), made("", "check"), made("write")
    with (
        install(first, session, scope="acme"),
        install(second, session, scope="acme"),
        install(other, session, scope="beta"),
    ):
        for team in (first, second, other):
            team.kickoff(inputs=inputs)
    assert carried(provider) == [["check", "plan"]] * 6 + [["write"]] * 3
    assert session.failures == {}


@pytest.mark.parametrize("first", ["acme", "beta"])
def test_no_tenant_is_shown_anothers_tool_of_the_same_name(equipped, first) -> None:
    """Both crews are installed before either is kicked off."""
    provider, made = equipped
    session, crews = Session(f"The house. {BRIEF * 4}"), {}
    for tenant in ("acme", "beta"):
        crews[tenant] = made("house")
        crews[tenant].agents[0].tools[0].description = f"Asks the house of {tenant}."
    with install(crews["acme"], session, scope="acme"), install(crews["beta"], session, scope="beta"):
        for tenant in (first, "beta" if first == "acme" else "acme", first):
            seen = len(provider.requests)
            crews[tenant].kickoff(inputs={"brief": BRIEF})
            shown = b"".join(record.body for record in provider.requests[seen:])
            assert b"house of " + tenant.encode() in shown
            assert b"house of " + {"acme": b"beta", "beta": b"acme"}[tenant] not in shown
    assert session.failures == {}


@pytest.mark.parametrize("when", ["each before its kickoff", "all before the first request", "behind another crew"])
def test_no_crew_is_shown_the_tools_of_a_crew_that_was_made_for_somebody_else(equipped, when) -> None:
    """Crews are made anew for each person, whom no tenant tells apart; what the session was given is everybody's."""
    provider, made = equipped
    everybodys = {"name": "clock", "description": "Tells the time.", "parameters": {"type": "object"}}
    session = Session(SharedPrefix(system=f"The house. {BRIEF * 4}", tools=[everybodys]))
    if when == "behind another crew":
        first = made("plan")
        with install(first, session):
            first.kickoff(inputs={"brief": BRIEF})
    users, crews = ("acme", "beta"), {}
    for user in users:
        crews[user] = made(f"house_{user}")
        crews[user].agents[0].tools[0].description = f"Asks the house of {user}."
        if when == "all before the first request":
            install(crews[user], session)
    seen = len(provider.requests)
    for user in (*users, *users):
        if when != "all before the first request":
            install(crews[user], session)
        crews[user].kickoff(inputs={"brief": BRIEF})
    for user in users:
        uninstall(crews[user])
    assert carried(provider)[seen:] == [["clock", f"house_{user}"] for user in (*users, *users) for _ in range(3)]
    assert session.failures == {}


def test_what_a_run_is_given_is_crewais_to_judge(servers, new_llm) -> None:
    """It takes a run without inputs among others, and refuses what is none by an error of its own."""
    who = agents(lambda: new_llm(servers("openai", CrewModel(tools=False))), tools=False)
    team = crew(who[:1], tasks(who, brief=False)[:1])
    with install(team) as installed:
        for inputs in ([None], [{"item": "north"}, None]):
            assert len(team.kickoff_for_each(inputs=inputs)) == len(inputs)
        with pytest.raises(TypeError, match="inputs must be a dict or Mapping, got int"):
            team.kickoff_for_each(inputs=[1])
    assert installed.session.failures == {}


def test_a_crew_that_ran_before_it_was_installed_tells_nobody_whom_it_ran_for(servers, new_llm) -> None:
    """Its roles name an input, and delegation names the roles."""
    provider = servers("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(provider), tools=False, allow_delegation=True)
    for agent in who:
        agent.role = f"{agent.role} of {{customer}}"
    team, session = crew(who, tasks(who)), Session(f"The house. {BRIEF * 4}")
    team.kickoff(inputs={"brief": BRIEF, "customer": "Alice"})
    seen = len(provider.requests)
    with install(team, session):
        team.kickoff(inputs={"brief": BRIEF, "customer": "Bob"})
    assert {call.layout for call in session.calls} == {"fork"}
    assert all(b"of Bob" in record.body and b"Alice" not in record.body for record in provider.requests[seen:])
    assert session.failures == {}


@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("given", ["before install", "behind it"])
def test_crews_that_describe_a_tool_differently_share_each_among_their_own_tasks(equipped, scoped, given) -> None:
    """Crews made for a user each, by turns; a tool stays its user's, and cause and way out are told."""
    provider, made = equipped
    session = Session(f"The house. {BRIEF * 4}", mode="strict")
    for user in ("ann", "bob", "bob", "ann"):
        team, tool = made("", "plan"), SearchTool(name="house", description=f"Asks the house of {user}.")
        team.agents[0].tools = [tool] if given == "before install" else []
        with install(team, session, **({"scope": user} if scoped else {})) as installed:
            assert installed.session is session
            team.agents[0].tools = [tool]
            seen = len(provider.requests)
            team.kickoff(inputs={"brief": BRIEF})
        shown = [record.body for record in provider.requests[seen:]]
        assert all(f"house of {user}".encode() in body for body in shown)
        assert not any({"ann": b"of bob", "bob": b"of ann"}[user] in body for body in shown)
    assert {call.layout for call in session.calls} == {"fork"}
    assert carried(provider) == [["house", "plan"]] * 12
    # The first request of each user's first crew writes what all their others read.
    reads = [call.usage.cache_read_tokens > 1_000 for call in session.calls]
    assert reads == [False, True, True, False, *[True] * 8]
    (told,) = [note for note in session.report().notes if "'house'" in note]
    assert "different definitions" in told
    assert "describe the tool alike for all" in told
    assert session.failures == {}


def test_a_tool_that_contradicts_the_sessions_own_is_named_and_so_are_two_agents(equipped) -> None:
    """No prefix of the crew's own would help: all carry what the session was given."""
    provider, made = equipped
    session = Session(SharedPrefix(tools=[{"name": "house", "description": "A house.", "parameters": {}}]))
    with install(one := made("house"), session, scope="ann"):
        one.kickoff(inputs=INPUTS)
    assert any(note.startswith("SharedPrefix(tools=...) has a tool 'house'") for note in session.report().notes)
    one, session = made("house", "house"), Session()
    one.agents[0].tools[0].description = "Asks another house."
    with install(one, session):
        one.kickoff(inputs=INPUTS)
    assert any(note.startswith("two agents have different tools") for note in session.report().notes)
    assert provider.requests


def test_crews_that_delegate_to_their_own_agents_share_each_among_their_own_tasks(servers, new_llm) -> None:
    """CrewAI names the coworkers in the tools, so that two crews' differ; nobody words them, and nothing is told."""
    provider, session = servers("openai", CrewModel(tools=False)), Session(f"The house. {BRIEF * 4}")
    for house in ("north", "south"):
        who = agents(lambda: new_llm(provider), tools=False, allow_delegation=True)
        who[0].role = f"Head of the {house}"
        with install(team := crew(who, tasks(who)), session):
            team.kickoff(inputs=INPUTS)
    assert {call.layout for call in session.calls} == {"fork"}
    assert not [note for note in session.report().notes if "definition" in note]


def test_no_crew_is_shown_a_tool_that_another_frameworks_request_brought(equipped) -> None:
    """Before the session's first request: a LangGraph node may bind one while it runs."""
    provider, made = equipped
    session, team = Session(f"The house. {BRIEF * 4}"), made("plan")
    with install(team, session):
        brought = {"name": "mails", "description": "Mails of Alice.", "parameters": {"type": "object"}}
        session.adapter.adopt_tools([brought], dict, grows=True, source=ToolSource(of_run=True))
        team.kickoff(inputs={"brief": BRIEF})
    assert carried(provider) == [["plan"]] * 3
    assert session.failures == {}


def test_a_crew_that_is_installed_later_shares_its_own_tools(equipped) -> None:
    """They are in all of its tasks' requests, and the first crew's begin as they did."""
    provider, made = equipped
    session = Session(f"The house. {BRIEF * 4}")
    first, second = made("plan"), made("check", "", "write")
    with install(first, session):
        first.kickoff(inputs={"brief": BRIEF})
        with install(second, session):
            second.kickoff(inputs={"brief": BRIEF})
        first.kickoff(inputs={"brief": BRIEF})
    assert carried(provider) == [["plan"]] * 3 + [["check", "write"]] * 3 + [["plan"]] * 3
    reads = [call.usage.cache_read_tokens > 1_000 for call in session.calls]
    assert reads == [False, True, True, False, *[True] * 5]
    assert session.failures == {}


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"volatile": {"now": "ten"}}, "volatile is called for each request and gives texts by name, found dict"),
        ({"shared_inputs": "brief"}, "shared_inputs takes names in a list, found a text; use shared_inputs=['brief']"),
        ({"volatile_role": "tool"}, "volatile_role is one of 'user', 'system', 'developer', found 'tool'"),
        ({"scope": 7}, "scope is a text, found int"),
        ({"shared_inputs": 3}, "shared_inputs takes names in a list, found int"),
        ({"shared_inputs": [3]}, "a name in shared_inputs is a text, found int"),
        ({"shared_context": ["x"]}, "shared_context is a text, found list"),
        ({"gate": Gate(1.0)}, "Session(gate=Gate(...))"),
        ({"gate": None}, "gate is True or False"),
    ],
)
@pytest.mark.parametrize("way", ["install", "callback"])
def test_what_no_request_could_be_given_is_refused_before_anything_is_wrapped(team, option, named, way):
    """A dict in place of what gives one, and roles that no provider has; as a callback before any crew starts."""
    _, made = team("openai")
    with pytest.raises(SetupError, match=re.escape(named)):
        install(made, Session(), **option) if way == "install" else callback(Session(), **option)
    assert session_of(made) is None


def test_a_callback_takes_no_option_that_install_has_not(team):
    """Its mistakes would be failures of each kickoff."""
    _, made = team("openai")
    with pytest.raises(SetupError, match="found share"):
        callback(Session(), share=1)
    assert session_of(made) is None


def test_what_install_does_not_take_is_named_with_what_to_give(team):
    """A model, a task, a list of crews; and a callback that was not made."""
    _, made = team("openai")
    for wrong, named in (
        (made.agents[0].llm, "give the crew or the agents that ask the model"),
        (made.tasks[0], "give the task's crew, or its agent"),
        ([made, made], "give crews and flows one by one, all with one session"),
    ):
        for door in (install, conversation_of):
            with pytest.raises(SetupError, match=f"^{door.__name__} takes a crew, .*{named}"):
                door(wrong)
    made.before_kickoff_callbacks = [callback]
    with pytest.raises(SetupError, match=re.escape("before_kickoff_callbacks=[callback(session)]")):
        made.kickoff(inputs={"brief": BRIEF})
