"""What workers report, and in which form they are asked to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cacheprefix_langgraph.teams.json_answers import object_in, strings_in
from cacheprefix_langgraph.teams.outcomes import Outcome

ReportFormat = Literal["prose", "bullets", "structured"]

FORMATS: Mapping[str, str] = {
    "prose": "",
    "bullets": "Report as a list: one finding a line, each line beginning with '- '.",
    "structured": (
        "Report as one JSON object and nothing else, with the keys summary (a text), findings, evidence, "
        "suggested_actions (lists of texts) and confidence (a number from 0 to 1)."
    ),
}

_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One role's report. ``text`` is what it said; the rest is read from it as far as its form allows."""

    role: str
    text: str
    outcome: Outcome
    format: ReportFormat = "prose"
    summary: str = ""
    findings: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    suggested_actions: tuple[str, ...] = ()
    confidence: float | None = None
    """From 0 to 1; None where the role did not say."""


def report_of(role: str, form: ReportFormat, outcome: Outcome) -> WorkerReport:
    """A report read from what the role said; a structured one that is malformed is taken as prose."""
    text = outcome.text
    first = text.strip().partition("\n\n")[0]
    if form == "structured":
        data = object_in(text)
        if data is not None:
            said = data.get("confidence")
            sure = float(said) if isinstance(said, (int, float)) and not isinstance(said, bool) else None
            return WorkerReport(
                role,
                text,
                outcome,
                form,
                str(data.get("summary") or ""),
                strings_in(data.get("findings")),
                strings_in(data.get("evidence")),
                strings_in(data.get("suggested_actions")),
                None if sure is None else min(max(sure, 0.0), 1.0),
            )
    findings = tuple(match.strip() for match in _BULLET.findall(text)) if form != "prose" else ()
    return WorkerReport(role, text, outcome, form, first, findings)
