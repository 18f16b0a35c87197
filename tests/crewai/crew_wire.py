"""Reading recorded requests: what the tests of this folder look at on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.crewai_workloads import prose
from cacheprefix.prompt import Prompt, shared_sections

BRIEF = prose(1_600)
"""Long enough to be cached without the tokens of tools."""
INPUTS = {"brief": BRIEF}


def bodies(provider: Any) -> list[dict[str, Any]]:
    """The recorded bodies, in order of arrival."""
    return [record.json for record in provider.requests]


def raw(provider: Any) -> list[bytes]:
    """The recorded bodies as they came."""
    return [record.body for record in provider.requests]


def prompts(provider: Any) -> list[Prompt]:
    """The recorded requests in cache order: tools, system, messages."""
    return [record.prompt for record in provider.requests]


def shared(a: Prompt, b: Prompt) -> int:
    """Leading sections that two prompts have in common, in cache order."""
    return shared_sections(a.sections, b.sections)


def heads(sent: Sequence[Prompt]) -> set[tuple[bytes, ...]]:
    """The different beginnings (tools and system text) among requests."""
    return {tuple(s.data for s in prompt.sections if s.tier != "messages") for prompt in sent}


def outputs(result: Any) -> list[str]:
    """The raw output of each task."""
    return [output.raw for output in result.tasks_output]
