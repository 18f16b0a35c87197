"""The crews that CrewAI's documentation builds, in their shapes and with words of our own."""

from __future__ import annotations

from typing import Any

from benchmarks.crewai_workloads import SearchTool, StyleTool, TableTool, crew


def _agent(llm: Any, role: str, *tools: Any, **options: Any) -> Any:
    from crewai import Agent

    words = {"goal": f"Do well as a {role}.", "backstory": f"Known for careful work as a {role}."}
    return Agent(
        role=role,
        llm=llm,
        tools=list(tools),
        **{**words, "respect_context_window": False, "use_better_compaction": False, **options},
    )


def _task(plan: str, words: str, agent: Any, **options: Any) -> Any:
    from crewai import Task

    return Task(name=words, description=f"{words} (plan {plan})", expected_output="Text.", agent=agent, **options)


def quickstart(llm: Any) -> tuple[Any, Any]:
    """Researcher and reporting analyst on a topic of a year; the report goes into a file, in Markdown."""
    year = {"goal": "Follow {topic}", "backstory": "You know {topic} inside out."}
    one, two = _agent(llm, "{topic} researcher", SearchTool(), **year), _agent(llm, "{topic} analyst", **year)
    tasks = [
        _task("research", "Find what matters on {topic} in {current_year}.", one),
        _task("none", "Write the report on {topic}.", two, markdown=True, output_file="report.md"),
    ]
    made = crew([one, two], tasks)
    return made, {"topic": "heat pumps", "current_year": "2026"}


def article(llm: Any) -> tuple[Any, Any]:
    """Planner, writer and editor, one after the other, each on what the one before wrote."""
    who = [_agent(llm, role, allow_delegation=False) for role in ("planner", "writer", "editor")]
    plans = ("research", "analysis", "writing")
    words = ("Plan an article on {topic}.", "Write it.", "Edit it.")
    made = crew(who, [_task(plan, text, agent) for plan, text, agent in zip(plans, words, who, strict=True)])
    return made, {"topic": "district heating"}


def trip(llm: Any) -> tuple[Any, Any]:
    """A city is chosen and looked at side by side, then the trip is planned from both."""
    who = [_agent(llm, role, SearchTool(), TableTool()) for role in ("city expert", "local guide", "concierge")]
    choose = _task("research", "Choose a city from {cities}.", who[0], async_execution=True)
    look = _task("analysis", "Gather what {cities} offer in {season}.", who[1], async_execution=True)
    plan = _task("none", "Plan seven days.", who[2], context=[choose, look])
    made = crew(who, [choose, look, plan])
    return made, {"cities": "Bergen, Porto or Ghent " * 20, "season": "spring"}


def managed(llm: Any) -> tuple[Any, Any]:
    """A manager hands two tasks to a team, with its own agent given."""
    from crewai import Process

    who = [_agent(llm, role, StyleTool()) for role in ("Senior Market Researcher", "Financial Analyst")]
    manager = _agent(llm, "Crew Manager", allow_delegation=True)
    tasks = [_task("research", "Look into the market.", None), _task("analysis", "Work out the figures.", None)]
    made = crew(who, tasks, process=Process.hierarchical, manager_agent=manager)
    return made, {}


def conditional(llm: Any) -> tuple[Any, Any]:
    """A task that is only done when the one before it gave too little."""
    from crewai.tasks.conditional_task import ConditionalTask

    one, two = _agent(llm, "collector", SearchTool()), _agent(llm, "summariser")
    more = ConditionalTask(
        description="Collect more. (plan analysis)",
        expected_output="Text.",
        agent=one,
        condition=lambda output: len(output.raw) < 10,
    )
    made = crew([one, two], [_task("research", "Collect events.", one), more, _task("none", "Sum up.", two)])
    return made, {}


def many(llm: Any) -> tuple[Any, Any]:
    """One analyst for each of several data sets."""
    one = _agent(llm, "data analyst", TableTool())
    made = crew([one], [_task("analysis", "Average of (item {name}) in {data}.", one)])
    sets = [{"name": name, "data": "1, 2, 3, 4 " * 30} for name in ("ages", "heights")]
    return made, sets


def checked(llm: Any) -> tuple[Any, Any]:
    """A guardrail sends the first answer back; callbacks hear of every task."""
    one = _agent(llm, "writer", StyleTool(), max_iter=4)
    tried: list[str] = []

    def short(output: Any) -> Any:
        """Refuse once."""
        tried.append(output.raw)
        return (len(tried) > 1, output.raw if len(tried) > 1 else "shorter, please")

    short.__annotations__.clear()
    made = crew([one], [_task("writing", "Write a post.", one, guardrail=short, guardrail_max_retries=2)])
    return made, {}


CREWS = (quickstart, article, trip, managed, conditional, many, checked)
"""Each gives a crew, and the inputs of its kickoff, or of several."""


def go(made: Any, inputs: Any) -> list[Any]:
    """Run a crew once, or once for each of a list of inputs."""
    return made.kickoff_for_each(inputs=inputs) if isinstance(inputs, list) else [made.kickoff(inputs=inputs)]
