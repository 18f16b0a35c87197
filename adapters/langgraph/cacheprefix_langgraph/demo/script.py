"""What the scripted model answers, from nothing but the prompt it is sent: the same in every layout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from cacheprefix.prompt import Prompt, Section
from cacheprefix_langgraph.demo.source import Source

_PLAN = "Plan of the review"
_ROLES = ("security", "correctness", "interfaces")
_SEARCHES = {
    "security": r"compare_digest|normpath|realpath|secure|httponly|redirect",
    "correctness": r"except (Exception|BaseException)|finally:|create_task|anyio\.",
    "interfaces": r"def __init__|DeprecationWarning|@property",
}
_HEADINGS = {
    "security": "Security findings",
    "correctness": "Correctness findings",
    "interfaces": "Interface findings",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A scripted reply: a text, or tool calls as pairs of name and arguments."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def answer(prompt: Prompt, source: Source) -> Answer:
    """The scripted reply to a prompt of the team."""
    sections = prompt.tier("messages")
    plan_at = next((i for i, s in enumerate(sections) if s.kind == "text" and s.text.startswith(_PLAN)), None)
    everything = "\n".join(s.text for s in prompt.sections if s.kind == "text" and s.tier != "tools")
    if "You are the editor" in everything:
        return Answer(_report(sections))
    if plan_at is None:
        return _planning(_rounds(sections), source)
    # "interfaces" is the role of the interface reviewer.
    role = next((name for name in _ROLES if re.search(rf"You are the {name[:9]}\w* reviewer", everything)), _ROLES[0])
    return _reviewing(role, _rounds(sections[plan_at:]), sections[plan_at:], source)


def _planning(done: int, source: Source) -> Answer:
    files = source.largest(5)
    if done == 0:
        return Answer(calls=(("list_files", {}),))
    if done == 1:
        return Answer(calls=tuple(("read_file", {"path": path, "first": 1, "last": 160}) for path in files[:3]))
    if done == 2:
        return Answer(calls=tuple(("read_file", {"path": path, "first": 1, "last": 120}) for path in files[3:5]))
    lines = [f"{_PLAN} of {source.name}.", ""]
    for role in _ROLES:
        lines += [f"- {role}: {path}, the part behind what was read above." for path in files[:3]]
    lines += ["", "Leave out tests, type stubs and anything generated."]
    return Answer("\n".join(lines))


def _reviewing(role: str, done: int, sections: tuple[Section, ...], source: Source) -> Answer:
    if done == 0:
        return Answer(calls=(("search", {"pattern": _SEARCHES[role]}),))
    if done == 1:
        path = source.largest(len(_ROLES))[_ROLES.index(role) % len(source.files)]
        return Answer(calls=(("read_file", {"path": path, "first": 161, "last": 260}),))
    places = [place for s in sections if s.kind in ("text", "tool_result") for place in _places(s.text)][:5]
    findings = [
        f"{number}. minor, likely, `{place}`: the line does what its neighbours expect on ordinary input, and its "
        f"behaviour on empty or repeated input follows from code that the reader of this module cannot see. "
        f"State it in the docstring, or check it at the boundary where the value comes in."
        for number, place in enumerate(places, 1)
    ]
    return Answer("\n".join([f"{_HEADINGS[role]} ({len(findings)}).", "", *findings, "", "The structure should stay."]))


def _report(sections: tuple[Section, ...]) -> str:
    found = [s.text for s in sections if s.kind == "text" and s.text.startswith(tuple(_HEADINGS.values()))]
    lines = [
        "Report. The package can be used as it is; three places deserve a closer look before the next release.",
        "",
    ]
    for text in found:
        first, *rest = text.splitlines()
        lines += [first, *[line for line in rest if line.startswith(("1.", "2."))], ""]
    return "\n".join([*lines, "What should stay: the small modules and the explicit errors."])


def _rounds(sections: tuple[Section, ...]) -> int:
    """Tool rounds so far: assistant messages that call tools."""
    rounds, inside = 0, False
    for section in sections:
        if section.kind == "tool_use" and not inside:
            rounds += 1
        inside = section.kind == "tool_use"
    return rounds


def _places(text: str) -> list[str]:
    return re.findall(r"[\w/]+\.py:\d+", text)
