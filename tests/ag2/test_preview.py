"""What a preview says of agents is what they then send, and nothing comes of the preview itself."""

from __future__ import annotations

import asyncio

import pytest
from ag2 import Agent, tool
from ag2.testing import TestConfig as ScriptedConfig
from ag2_driver import HANDBOOK, agent, configured

from cacheprefix import Session, cli, preview
from cacheprefix.server import Reply
from cacheprefix_ag2 import wrap

APIS = ("openai-chat", "openai-responses", "anthropic")
TASK = "Compare the two proposals, and say which one should be built first. " * 60
NAMES = ("planner", "critic", "writer")


def look(name):
    """A tool."""

    def run(query: str) -> str:
        """Looks things up."""
        raise AssertionError(query)

    return tool(run, name=name)


def alike(config):
    """Three roles with one handbook."""
    return [agent(name, config) for name in NAMES]


def tooled(config):
    """Each with a tool of its own."""
    return {name: agent(name, config, tools=[look(f"look_{name}")]) for name in NAMES}


def alone(config):
    """One agent, by itself."""
    return agent("planner", config)


def unlike(config):
    """Nothing in common."""
    return [Agent(name, f"You are the {name}. {f'Duty of the {name}. ' * 900}", config=config) for name in NAMES]


def each_of(target):
    """The agents of what is wrapped."""
    if isinstance(target, dict):
        return list(target.values())
    return target if isinstance(target, list) else [target]


async def foreseen(*given, **options):
    """A preview, made beside the event loop."""
    return await asyncio.to_thread(preview, *given, **options)


def counted(one):
    """What of a request is shared, and what it costs against unmodified: the provider counts in tokens of its own."""
    return [one.shared_tokens / one.input_tokens, one.units / one.unmodified_units]


@pytest.mark.parametrize("build", [alike, tooled, alone, unlike])
@pytest.mark.parametrize("api", APIS)
async def test_what_was_foreseen_is_what_is_sent(fresh, api, build, monkeypatch):
    """Agent, layout, reasons, tokens and costs of each first request."""
    server = fresh(api)
    monkeypatch.setattr(server.simulator, "script", lambda _: Reply("ok"))
    async with configured(api, server) as config:
        seen = await foreseen(build(config), Session(), task=TASK)
        assert not server.requests
        session = Session()
        for one in each_of(wrap(build(config), session)):
            await one.ask(TASK)
    assert [one.agent for one in seen.requests] == [call.agent for call in session.calls]
    for one, call in zip(seen.requests, session.calls, strict=True):
        assert one.layout == call.layout
        assert [reason.why for reason in one.reasons] == [reason.why for reason in call.reasons]
        assert counted(one) == pytest.approx(counted(call), abs=0.02)


async def test_the_application_and_its_session_are_as_they_were(fresh):
    """Wrapped or not; what only a run knows is said."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        session, agents = Session(), alike(config)
        agents.append(Agent("scripted", HANDBOOK, config=ScriptedConfig("never")))
        before = [dict(vars(one)) for one in agents]
        first = await foreseen(agents, session, task=TASK)
        assert [dict(vars(one)) for one in agents] == before
        assert session.calls == ()
        assert session.prefix.text == ""
        wrap(agents, session)
        assert (await foreseen(agents, session, task=TASK)).requests == first.requests
    assert not server.requests
    assert any("scripted: asks no model that is known" in note for note in first.notes)


async def test_policies_of_the_applications_own_are_not_run(fresh):
    """What they change is said to be unknown."""

    class Own:
        name = "own"

        async def apply(self, prompts, events, context):
            raise AssertionError(context)

    async with configured("openai-chat", fresh("openai-chat")) as config:
        seen = await foreseen(agent("planner", config, assembly=[Own()]), Session(), task=TASK)
    assert [(one.agent, one.unmodified_units) for one in seen.requests] == [("planner", None)]
    assert any("what its own assembly policies change is known" in note for note in seen.notes)


APP = """
import openai
from ag2 import Agent
from ag2.config import OpenAIConfig

HANDBOOK = "Every statement needs a source. " * 200
config = OpenAIConfig(model="gpt-5.6", base_url="http://127.0.0.1:9/v1", api_key="k")
NAMES = ("planner", "critic", "writer")
team = [Agent(name, f"You are the {name}.\\n\\n{HANDBOOK}", config=config) for name in NAMES]
"""


def test_doctor_says_it_of_a_program(tmp_path, capsys):
    """What each of a team's agents will share, and why, by the command line."""
    path = tmp_path / "ag2_app.py"
    path.write_text(APP, encoding="utf-8")
    assert cli.main(["doctor", f"{path}:team", "--task", TASK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == list(NAMES)
    assert all("fork (laid out as a fork" in line for line in lines[:3])
    assert any(line.startswith("expected cost of these first requests against unmodified: 0.") for line in lines)
