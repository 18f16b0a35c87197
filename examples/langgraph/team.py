"""``prefix_team``: a coordinator plans, specialists report side by side, the coordinator joins their reports."""

from __future__ import annotations

from _run import Example, main, task

from cacheprefix_langgraph import TeamRole, prefix_team, team_result

ROLES = [
    TeamRole(name="cost", instructions="You work out what it costs.", report="bullets"),
    TeamRole(name="risk", instructions="You say what could go wrong.", report="bullets"),
    TeamRole(name="time", instructions="You work out how long it takes."),
]


def team(example: Example) -> str:
    """A normal compiled graph: it could be streamed, checkpointed, drawn or be a part of another."""
    values = prefix_team(example.llm(), ROLES).invoke(task())
    result = team_result(values, ROLES)
    example.extra["cached_share"] = result.cached_share
    example.extra["reports"] = {report.role: len(report.findings) for report in result.reports}
    return result.synthesis


if __name__ == "__main__":
    main(team)
