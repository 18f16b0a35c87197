"""Questions beside a crew's work."""

from __future__ import annotations

from typing import Any

import pytest
from crew_wire import INPUTS, heads, outputs, prompts, raw, shared
from crewai import Agent, Task
from crewai.flow.flow import Flow, start
from pydantic import BaseModel

from benchmarks.crewai_workloads import SearchTool, agents, crew, tasks
from cacheprefix import ForkPolicy
from cacheprefix.errors import SetupError
from cacheprefix.server import Echo, Queue, Reply, ToolCall
from cacheprefix_crewai import ask, install


class Built(BaseModel):
    """What a task answers."""

    built: str


KINDS = ("openai", "responses", "anthropic", "litellm", "litellm-anthropic")


@pytest.fixture
def ran(servers, new_llm):
    """``ran(kind)`` gives a provider, an installed crew that has worked, and its installation."""

    def go(kind: str = "openai", *, tools: bool = True, **options: Any):
        provider = servers("anthropic" if "anthropic" in kind else "openai")
        llm = new_llm(provider, kind, **options)
        who = agents(lambda: llm, tools=tools)
        team = crew(who, tasks(who))
        installed = install(team)
        team.kickoff(inputs=INPUTS)
        return provider, team, installed

    return go


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_side_question_reads_the_crews_prefix_and_leaves_no_trace(ran, kind) -> None:
    """It continues the newest request, is read from the cache, and the next kickoff is what it would have been."""
    provider, team, installed = ran(kind, tools=kind == "openai", stream=kind == "openai")
    before = raw(provider)
    script, provider.simulator.script = provider.simulator.script, Queue([Reply("Forty-two.")])
    answer = ask(team, "How much is it?")
    provider.simulator.script = script
    assert answer.text == "Forty-two."
    parent, fork = prompts(provider)[-2:]
    assert shared(parent, fork) == len(parent.sections)
    assert "How much is it?" in fork.sections[-1].text
    assert answer.verdicts[0].reported_tokens > 1_500
    team.kickoff(inputs=INPUTS)
    assert raw(provider)[len(before) + 1 :] == before
    installed.undo()
    helpers = [call for call in installed.session.calls if call.agent == "helper"]
    assert [call.purpose for call in helpers] == ["ephemeral_helper"]
    assert installed.session.failures == {}


def test_a_question_behind_an_answer_by_a_schema_says_its_beta_in_a_header(servers, new_llm) -> None:
    """CrewAI puts the names of betas into the parameters that it sends, and Anthropic refuses them in a body."""
    provider = servers("anthropic")
    llm = new_llm(provider, "anthropic")
    who = agents(lambda: llm, tools=False)
    made = tasks(who)
    made[-1].output_pydantic = Built
    provider.simulator.script = lambda _: Reply('{"built": "it"}')
    team = crew(who, made)
    with install(team) as installed:
        team.kickoff(inputs=INPUTS)
        provider.simulator.script = Queue([Reply("Forty-two.")])
        assert ask(team, "How much is it?").text == "Forty-two."
    assert "structured-outputs" in provider.requests[-1].headers["anthropic-beta"]
    assert installed.session.failures == {}


def test_a_question_knows_what_every_finished_task_found(ran) -> None:
    """Results that the newest request does not hold stand before the question, each with its agent."""
    provider, team, installed = ran()
    result = team.tasks[0].output.raw
    team.tasks[0].output.raw = "A figure that nobody was told."
    ask(team, "What is the figure?")
    installed.undo()
    tail = provider.requests[-1].prompt.sections[-1].text
    assert "[result of task 1 by Senior Market Researcher]\nA figure that nobody was told." in tail
    assert result not in tail


def test_a_worker_uses_the_agents_tools(ran) -> None:
    """A fork with more turns runs its own tool loop on the crew's tools; a call that fails is told to the model."""
    provider, team, installed = ran()
    calls = (ToolCall("metric_table", {"metric": "orders"}), ToolCall("no_such_tool", {}))
    provider.simulator.script = Queue([Reply(tool_calls=calls), Reply("Found.")])
    result = ask(team, "Look it up.", role="scout", policy=ForkPolicy.worker())
    installed.undo()
    assert (result.text, result.turns) == ("Found.", 2)
    found, missing = (message["content"] for message in provider.requests[-1].json["messages"][-2:])
    assert found.startswith("orders over 5 years")
    assert "no_such_tool" in missing
    assert missing.startswith("error")


def test_a_question_can_be_asked_while_the_crew_runs(servers, new_llm) -> None:
    """From a task callback: it continues that task, and the tasks after it send what they would have sent."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    plain = crew(who, tasks(who))
    with install(plain):
        expected = outputs(plain.kickoff(inputs=INPUTS))
    said: list[str] = []
    team = crew(who, tasks(who), task_callback=lambda _: said.append(ask(team, "In one word?").text))
    provider.reset()
    with install(team):
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    sent = prompts(provider)
    assert len(said) == 3
    assert len(sent) == 6
    assert len(heads(sent)) == 1
    assert not any("In one word?" in section.text for one in sent[::2] for section in one.sections)
    assert all(shared(parent, fork) == len(parent.sections) for parent, fork in zip(sent[::2], sent[1::2], strict=True))


def test_agents_of_a_flow_can_be_asked(servers, new_llm) -> None:
    """A list of agents stands for what they have said, and one of them for what it has said itself."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    with install(who, shared_context=INPUTS["brief"]):
        who[0].kickoff(f"Collect. (plan research)\n\n{INPUTS['brief']}")
        provider.simulator.script = Queue([Reply("Yes."), Reply("Also.")])
        assert ask(who, "Done?").text == "Yes."
        assert ask(who[0], "Really?").text == "Also."
        with pytest.raises(SetupError, match="kick the crew off first"):
            ask(who[1], "Really?")


class _Mails(SearchTool):
    """Finds what is its owner's."""

    owner: str = ""

    def _run(self, query: str, region: str = "all") -> str:
        return f"Mails of {self.owner}"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["agents", "flow"])
def test_whoever_is_asked_of_several_people_tells_and_uses_its_own(servers, new_llm, way) -> None:
    """Agents installed in one list, or crews that one flow made, each for a person and with a tool of one name."""
    provider, asked = servers("openai", Echo()), {}
    for user in ("Alice", "Bob"):
        agent = Agent(
            role=f"Clerk of {user}", goal="g", backstory="b", llm=new_llm(provider), tools=[_Mails(owner=user)]
        )
        task = Task(description=f"{user} asks.", expected_output="A text.", agent=agent)
        asked[user] = agent if way == "agents" else crew([agent], [task])

    class Desk(Flow):  # type: ignore[misc, type-arg]
        @start()
        def open(self) -> None:
            for team in asked.values():
                team.kickoff()

    flow = Desk(suppress_flow_events=True)
    flow.memory = None
    with install(list(asked.values()) if way == "agents" else flow):
        if way == "flow":
            flow.kickoff()
        else:
            for user, agent in asked.items():
                agent.kickoff(f"{user} asks.")
        for user, other in (("Alice", "Bob"), ("Bob", "Alice")):
            call = ToolCall("search_market_data", {"query": "x"})
            provider.simulator.script, seen = (
                Queue([Reply(tool_calls=(call,)), Reply("Found.")]),
                len(provider.requests),
            )
            assert ask(asked[user], "Look it up.", policy=ForkPolicy.worker()).text == "Found."
            first, last = (record.body.decode() for record in provider.requests[seen:])
            assert f"{user} asks." in first
            assert f"Mails of {user}" in last
            assert other not in last


def test_only_what_is_installed_and_has_spoken_can_be_asked(servers, new_llm) -> None:
    """The errors say what to do."""
    who = agents(lambda: new_llm(servers("openai")))
    team = crew(who, tasks(who))
    with pytest.raises(SetupError, match=r"install\(target\) first"):
        ask(team, "Why?")
    with install(team), pytest.raises(SetupError, match="kick the crew off first"):
        ask(team, "Why?")
