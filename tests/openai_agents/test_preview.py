"""What a preview says of agents is what they then send, and nothing comes of the preview itself."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, AgentHooks, InputGuardrail, Runner, handoff
from agents_driver import HANDBOOK, MODELS, model_for, tool

from cacheprefix import Caching, Session, cli, preview
from cacheprefix.errors import SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix_openai_agents import wrap

TASK = "Compare the two proposals, and say which one should be built first. " * 40
NAMES = ["planner", "critic", "writer", "judge"]


def session():
    """One that counts as the provider does."""
    return Session(caching=Caching(counter=ESTIMATE))


def team(model, ran=None):
    """A planner with a tool, a critic behind it whose tool is a judge, and a writer behind that."""

    def look():
        (ran if ran is not None else []).append("tool")
        return "found"

    def made(name, **options):
        return Agent(name, instructions=f"You are the {name}.\n\n{HANDBOOK}", model=model, **options)

    judge = made("judge")
    critic = made("critic", tools=[judge.as_tool("ask_judge", "Ask.")], handoffs=[handoff(made("writer"))])
    looks = tool("look", "Looks.", {"type": "object", "properties": {}}, look)
    return made("planner", tools=[looks], handoffs=[critic])


def by_name(first):
    """The four agents."""
    critic = first.handoffs[0]
    writer, judge = critic.handoffs[0]._agent_ref(), critic.tools[0]._agent_instance
    return dict(zip(NAMES, (first, critic, writer, judge), strict=True))


@pytest.mark.parametrize("api", tuple(MODELS))
def test_what_was_foreseen_is_what_is_sent(provider, api):
    """Agent, layout, reasons, tokens and costs of each first request, by the provider's own count."""
    seen = preview(team(model_for(api, provider)), session(), task=TASK)
    assert not provider.requests
    own = session()

    async def play():
        first = wrap(team(model_for(api, provider)), own, conversation="talk")
        for agent in by_name(first).values():
            await Runner.run(agent, TASK)

    asyncio.run(play())
    assert [one.agent for one in seen.requests] == [call.agent for call in own.calls] == NAMES
    for one, call in zip(seen.requests, own.calls, strict=True):
        assert (one.layout, one.reasons) == (call.layout, call.reasons)
        assert one.input_tokens == pytest.approx(call.input_tokens, abs=8)
        assert one.shared_tokens == pytest.approx(call.shared_tokens, abs=8)
        assert one.units == pytest.approx(call.units, rel=0.05)
        assert one.unmodified_units == pytest.approx(call.unmodified_units, rel=0.05)


def test_agents_and_their_session_are_as_they_were(provider):
    """Wrapped or not."""
    own, first = session(), team(model_for("openai-chat", provider))
    before = {name: dict(vars(agent)) for name, agent in by_name(first).items()}
    seen = preview(first, own, task=TASK)
    assert {name: dict(vars(agent)) for name, agent in by_name(first).items()} == before
    assert own.calls == ()
    assert own.prefix.text == ""
    wrap(first, own)
    assert preview(first, own, task=TASK).requests == seen.requests
    assert not provider.requests


def test_nothing_of_the_application_is_run(provider, monkeypatch):
    """No tool, guardrail or hook, and no key is asked for: what only they know is said."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ran = []

    class Hooks(AgentHooks):
        async def on_start(self, *_):
            ran.append("hook")

    def guards(*_):
        ran.append("guardrail")

    first = team(model_for("openai-responses", provider), ran)
    agents = by_name(first)
    first.input_guardrails = [InputGuardrail(guards)]
    first.hooks = Hooks()
    agents["critic"].instructions = lambda *_: ran.append("instructions") or "You are the critic."
    agents["writer"].model = "gpt-5.6"
    agents["judge"].tools = [tool("late", "Late.", {"type": "object", "properties": {}}, lambda: "")]
    agents["judge"].tools[0].is_enabled = lambda context, agent: context.context.anything
    seen = preview(first, session(), task=TASK)
    assert not ran
    assert not provider.requests
    assert [one.agent for one in seen.requests] == ["planner", "writer"]
    told = "\n".join(seen.notes)
    assert "critic: its instructions are known when it is asked" in told
    assert "judge: what it asks is known in the run alone (AttributeError" in told


def test_what_asks_in_no_role_yet_is_named(provider):
    """A model by itself is asked by whoever runs; the way out is said."""
    with pytest.raises(SetupError, match="give the requests themselves"):
        preview(model_for("openai-chat", provider), session())


APP = """
import openai
from agents import Agent, OpenAIChatCompletionsModel

client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k")
HANDBOOK = "Every statement needs a source. " * 200

def agent(name, model, **options):
    model = OpenAIChatCompletionsModel(model, openai_client=client)
    return Agent(name, instructions=f"You are the {name}.\\n\\n{HANDBOOK}", model=model, **options)

writer = agent("writer", "gpt-5.6")
team = agent("planner", "gpt-5.6", handoffs=[agent("critic", "gpt-5.6", handoffs=[writer])])

def mixed():
    first = agent("planner", "gpt-5.6", handoffs=[agent("critic", "gpt-5.6"), agent("writer", "gpt-4.1")])
    return first
"""


def test_doctor_says_it_of_a_program(tmp_path, capsys):
    """With exit code 1 and the way out where an agent does not share and could."""
    path = tmp_path / "agents_app.py"
    path.write_text(APP, encoding="utf-8")
    assert cli.main(["doctor", f"{path}:team", "--task", TASK]) == 0
    text = capsys.readouterr().out
    assert [line.partition(":")[0] for line in text.splitlines()[:3]] == ["planner", "critic", "writer"]
    assert "shared with an earlier request" in text
    code = cli.main(["doctor", f"{path}:mixed", "--task", TASK])
    assert (code, "writer: use one model for all roles" in capsys.readouterr().out) == (1, True)
