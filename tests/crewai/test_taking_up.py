"""Crews that an error ends in their midst, and that another process takes up from CrewAI's own checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import killing
import pytest
from crew_wire import prompts
from crewai import Agent, Crew, Task
from crewai.events.event_bus import crewai_event_bus
from crewai.state.checkpoint_config import CheckpointConfig
from pydantic import BaseModel

from cacheprefix.server import Fault, Reply, Request, ToolCall


class Verdict(BaseModel):
    """What the judge answers."""

    built: str


STEPS = ("critic", "reader", "judge", "checker", "reader")
"""Who has which task: one without tools, one with long results, one with a schema, and one whose tool comes late."""
TOOLS = {"reader": killing.Read, "checker": killing.Count}


def crew_of(new_llm: Any, provider: Any, kind: str) -> Crew:
    """The crew of ``STEPS``."""
    who = {
        name: Agent(
            role=name, goal="Work", backstory=f"Long a {name}. " * (90 if name == "judge" else 1),
            llm=new_llm(provider, kind, max_retries=0), max_retry_limit=0,
            tools=[TOOLS[name]()] if name in TOOLS else [],
        )
        for name in dict.fromkeys(STEPS)
    }  # fmt: skip
    tasks = [
        Task(
            description=f"Step {at}: (work {at}).", expected_output="Text.", agent=who[name],
            output_pydantic=Verdict if name == "judge" else None,
        )
        for at, name in enumerate(STEPS)
    ]  # fmt: skip
    return Crew(agents=[*who.values()], tasks=tasks, verbose=False)


def step(request: Request) -> int:
    """Which task a request is of."""
    return int(re.findall(r"\(work (\d)\)", request.text)[-1])


def model(failing: int | None = None) -> Any:
    """Calls the tool there is, then answers; one task is refused each time."""

    def says(request: Request) -> Reply:
        at = step(request)
        if request.asked.schema is not None:
            said = Reply(json.dumps({"built": f"Step {at} is built."}))
        elif request.asked.tools and not request.rounds and STEPS[at] in TOOLS:
            name = TOOLS[STEPS[at]]().name
            said = Reply(tool_calls=(ToolCall(name, {"path": f"p{at}"}, id=f"call_{at}"),))
        else:
            said = Reply(f"Step {at} is done.")
        return said if at != failing else Reply("No.", fault=Fault(status=400))

    return says


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "failing"), [("openai", 1), ("openai", 2), ("openai", 4), ("responses", 2), ("anthropic", 3)]
)
def test_a_crew_that_is_taken_up_sends_what_one_that_ran_through_sends(
    servers, new_llm, tmp_path, kind, failing
) -> None:
    """Whoever's request was refused, and whether its tools, schema and role were met before; it gives the same."""
    provider = servers("anthropic" if kind == "anthropic" else "openai", model())
    seen: dict[str, Any] = {}
    sent: dict[str, Any] = {}
    for mode in ("unmodified", "forked"):
        whole = crew_of(new_llm, provider, kind)
        seen[f"{mode} whole"], sent[f"{mode} whole"], _ = ran(whole, provider, mode, model())
        broken = crew_of(new_llm, provider, kind)
        broken.tasks[failing - 1].callback = lambda _, mode=mode: checkpointed(tmp_path / mode)
        _, sent[f"{mode} broken"], saved = ran(broken, provider, mode, model(failing))
        kept = Crew.from_checkpoint(CheckpointConfig(restore_from=min((tmp_path / mode).rglob("*.json"))))
        # CrewAI makes another class from the schema that it wrote down, which says less.
        kept.tasks[STEPS.index("judge")].output_pydantic = Verdict
        seen[f"{mode} again"], sent[f"{mode} again"], _ = ran(kept, provider, mode, model(), saved)
    for when in ("whole", "again"):
        assert seen[f"forked {when}"] == seen[f"unmodified {when}"]
    for mode in ("unmodified", "forked"):
        count = len(sent[f"{mode} again"])
        assert 0 < count < len(sent[f"{mode} whole"])
        assert sent[f"{mode} again"] == sent[f"{mode} whole"][-count:]
        begun = sent[f"{mode} whole"][:-count]
        assert sent[f"{mode} broken"][: len(begun)] == begun


def checkpointed(folder: Path) -> None:
    """Have CrewAI write down where its crew stands, behind a task."""
    # CrewAI's own writer now and then meets an event that comes in just then, and leaves nothing.
    crewai_event_bus.flush()
    crewai_event_bus.runtime_state.checkpoint(str(folder))


def ran(target: Crew, provider: Any, mode: str, says: Any, saved: str = "") -> tuple[Any, list[Any], str]:
    """What a crew's tasks gave, what was sent, and what was decided; a ``saved`` decision is loaded first."""
    provider.reset()
    provider.simulator.script = says
    bound = killing.installed(target, 300) if mode == "forked" else None
    if bound is not None and saved:
        bound.session.conversation(bound.conversation).restore(saved)
    try:
        result: Any = [(one.agent, one.raw, one.to_dict()) for one in target.kickoff().tasks_output]
    except Exception as error:
        result = type(error)
    # Marks go by what a process has seen written, and schemas of tools CrewAI's checkpoints write down otherwise.
    sent = [
        [one.data.partition(b'"description"')[0] if one.tier == "tools" else one.data for one in prompt.sections]
        for prompt in prompts(provider)
    ]
    if bound is None:
        return result, sent, ""
    decided = bound.session.conversation(bound.conversation).dumps()
    assert bound.session.failures == {}
    bound.undo()
    return result, sent, decided
