"""What a run sent, was told and printed, as lines of text with digests, and the difference of two such texts in words.

A request is a row of sections: ``form`` (address and order of the fields), one a setting, ``tools[2]``, ``system[0]``,
``messages[3]`` and its blocks ``messages[3].content[1]``, each with the digest of its JSON; last the cache marks, by
where they stand. What a request has in common with an earlier one of the same file, from its beginning, is not written
again, so that a change shows once, at the first request that has it. The sections are read from the JSON alone: the
package's own reading of a body is among what is recorded, not what records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from typing import Any

MARKS = ("cache_control", "prompt_cache_breakpoint", "cachePoint")
"""Fields that only mark a place for the provider's cache."""

LISTS = ("tools", "system", "instructions", "messages", "input", "contents", "systemInstruction", "toolConfig")
"""Fields of a body that hold the prompt, in cache order; the others are settings."""

_RANDOM = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # a UUID
    r"|\b[0-9a-f]{32}\b"  # its hex
    r"|/tmp/[\w./-]+"  # temporary folders
    r"|127\.0\.0\.1:\d+"  # a free port
    r"|\b0x[0-9a-f]{6,}\b"  # an object's address
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:\+00:00|Z)?"  # a time
)
_NAMED = re.compile(r'<role name=\\*"([^"\\]+)|You now speak as \\*"([^"\\]+)|You are(?: the| an?)? ([A-Za-z][\w-]*)')
_PACE = re.compile(r"calls a minute")
"""Advice that depends on the speed of the machine."""
_TIMED = re.compile(r"_ms|wall|seconds|ttft|gave_up|at_once|fan_outs")
_CLOCK = re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|seconds?)\b")


@dataclass(frozen=True)
class Request:
    """One request as its provider saw it: who asked, and its sections in cache order with their digests."""

    agent: str
    sections: Sequence[tuple[str, str]]
    order: tuple[int, str]
    """Number of messages and their text: what puts an agent's requests in order."""


@dataclass
class Side:
    """One run of a workload: what it sent, in order of arrival, its sessions' reports, and what it printed."""

    requests: list[Request] = field(default_factory=list)
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    printed: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    """Results that are numbers already, such as a benchmark's."""
    chance: bool = False
    """Whether it is chance which of several requests comes first, and so leads, writes and is not read."""
    joined: bool = False
    """Whether the framework joins answers in the order in which they come, which is chance too."""


class Names:
    """Random names of one request or report, numbered as they appear, so that no run differs."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def plain(self, text: str) -> str:
        """The text with every random id, address, time and temporary path replaced by a number of its own."""
        return _RANDOM.sub(lambda found: self._seen.setdefault(found[0], f"<{len(self._seen)}>"), text)


def digest(value: Any) -> str:
    """Eight hexadecimal digits of a JSON value, in the order of its fields."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def request(path: str, headers: Mapping[str, str], body: bytes) -> Request:
    """A request from what came over the wire."""
    text = Names().plain(body.decode("utf-8", "surrogatepass"))
    fields = json.loads(text)
    marks: list[tuple[str, Any]] = []
    order = [name for name in fields if name not in MARKS]
    found = [("form", digest([path, sorted(headers.items()), order]))]
    settings = sorted(set(fields) - set(LISTS))
    found += [(name, digest(fields[name])) for name in settings if name not in MARKS]
    marks += [("the request", fields[name]) for name in settings if name in MARKS]
    for name in LISTS:
        if name in fields:
            found += _sections(name, fields[name], marks)
    found += [(f"mark on {where}", digest(value)) for where, value in marks]
    talk = next((fields[name] for name in ("messages", "input", "contents") if name in fields), ())
    return Request(_agent(fields), found, (len(talk), json.dumps(talk, ensure_ascii=False) + text))


def _agent(fields: Mapping[str, Any]) -> str:
    """Who asks: the role that the prompt names last, else its first words."""
    text = "".join(json.dumps(fields[name], ensure_ascii=False) for name in LISTS[1:] if name in fields)
    named = _NAMED.findall(text)
    words = next(filter(None, named[-1])) if named else " ".join(re.findall(r"\w+", _first_text(fields))[:3])
    return re.sub(r"\W+", "-", words).strip("-").lower() or "someone"


def _first_text(value: Any) -> str:
    """The text that a prompt begins with."""
    if isinstance(value, Mapping):
        inner = [value[name] for name in (*LISTS[1:], "parts", "content", "text") if name in value]
        return next(filter(None, map(_first_text, inner)), "")
    if isinstance(value, list):
        return next(filter(None, map(_first_text, value)), "")
    return value if isinstance(value, str) else ""


def _sections(name: str, value: Any, marks: list[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """A field's parts with their digests; marks found on the way are put aside."""
    if not isinstance(value, list):
        yield name, digest(_unmarked(value, name, marks))
        return
    for number, each in enumerate(value):
        where = f"{name}[{number}]"
        content = each.get("content") if isinstance(each, dict) else None
        if name in ("messages", "input") and isinstance(content, list):
            # The blocks come first and what is beside them last: a mark never tears one message from its likes.
            for at, block in enumerate(content):
                yield f"{where}.content[{at}]", digest(_unmarked(block, f"{where}.content[{at}]", marks))
            rest = {key: "blocks" if key == "content" else inner for key, inner in each.items()}
            yield where, digest(_unmarked(rest, where, marks))
        else:
            yield where, digest(_unmarked(each, where, marks))


def _unmarked(value: Any, where: str, marks: list[tuple[str, Any]]) -> Any:
    if isinstance(value, dict):
        marks.extend((where, value[name]) for name in MARKS if name in value)
        return {key: _unmarked(inner, where, marks) for key, inner in value.items() if key not in MARKS}
    if isinstance(value, list):
        return [_unmarked(each, where, marks) for each in value]
    return value


def written(sides: Mapping[str, Side]) -> str:
    """The sides of a workload as the text of its file."""
    out: list[str] = []
    known: list[tuple[str, Sequence[tuple[str, str]]]] = []
    for name, side in sides.items():
        out.append(f"[{name}]")
        for label, one in _labelled(side):
            out.append(f"request {label}: {_beside(one, known)}")
            known.append((f"{label} of {name}", one.sections))
        for number, report in enumerate(side.reports):
            out += _reported(report, number, chance=side.chance)
        out += () if side.chance else _told(side.printed)
        out += [f"row {_row(row)}" for row in side.rows]
        out.append("")
    return "\n".join(out)


_TALK = ("messages", "input")
_LEADS = ("form", "stream", "stream_options")
"""What the first of several differs in: it is streamed, so that the others may follow at its first token."""


def _labelled(side: Side) -> Iterator[tuple[str, Request]]:
    """Agents in the order of their names, each one's requests from the shortest on.

    Not in the order of arrival: which of two that go out side by side comes first is chance.
    """
    requests = [Request(one.agent, _steady(one.sections, side), one.order) for one in side.requests]
    for agent in sorted({one.agent for one in requests}):
        mine = sorted((one for one in requests if one.agent == agent), key=lambda one: one.order)
        yield from ((f"{agent} {number}", one) for number, one in enumerate(mine))


def _steady(sections: Sequence[tuple[str, str]], side: Side) -> list[tuple[str, str]]:
    """The sections without what is chance."""
    found = [each for each in sections if not side.chance or each[0] not in _LEADS]
    if not side.joined:
        return found
    said = sorted(value for name, value in found if name.startswith(_TALK))
    where = next((at for at, each in enumerate(found) if each[0].startswith(_TALK)), len(found))
    rest = [each for each in found if not each[0].startswith(_TALK)]
    return [*rest[:where], *((f"some of {_TALK[0]}", value) for value in said), *rest[where:]]


def _beside(one: Request, known: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """The request's sections, without those that it begins with in common with an earlier one."""
    label, shared = "", 0
    for name, sections in known:
        pairs = zip(sections, one.sections, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # The earliest of the longest, so that a later request more or less changes nothing here.
        if common > shared or (common == len(one.sections) == len(sections) and not label):
            label, shared = name, common
    rest = [f"{where} {value}" for where, value in one.sections[shared:]]
    if not shared:
        return ", ".join(rest)
    lead = f"as {label}"
    if rest or shared < len(next(sections for name, sections in known if name == label)):
        lead += f" through {one.sections[shared - 1][0]}"
    return ", ".join([lead, *rest])


_STEADY = ("calls", "input_tokens")
_SUMS = (*_STEADY, "unmodified_cost_units_estimated", "cache_read_tokens", "cache_write_tokens", "cost_units")
"""Where requests go side by side, what they would have cost unmodified goes by who came first, too."""


def _reported(report: Mapping[str, Any], number: int, *, chance: bool) -> Iterator[str]:
    """A report: the sums of each agent as numbers, its notes and failures, and the rest as a digest a field."""
    names = Names()
    for line in (*report["agents"], report["total"]):
        sums = [f"{name} {_cell(line[name])}" for name in (_STEADY if chance else _SUMS)]
        if not chance:
            # ``unsure`` came later than these records, and the unmodified cost above goes by it.
            rest = {key: value for key, value in line.items() if key not in ("agent", "unsure", *_SUMS)}
            sums.append(f"rest {digest(_rounded(rest))}")
        yield f"report {number} {names.plain(line['agent'])}: {', '.join(sums)}"
    # How long siblings waited at the gate is measured by a clock, and how many is chance where they are chance.
    left_out = ("agents", "total", *(("breaks", "gate") if chance else ()))
    rest = {key: value for key, value in report.items() if key not in left_out}
    rest["notes"] = [note for note in report["notes"] if not _PACE.search(note)]
    failed = sum(rest.pop("failures").values())
    yield f"report {number} beside: failures {failed}, {', '.join(_fields(rest, names))}"


def _fields(of: Mapping[str, Any], names: Names) -> Iterator[str]:
    """A digest a field."""
    for key, value in of.items():
        yield f"{key} {digest(names.plain(json.dumps(_rounded(value), ensure_ascii=False)))}"


def _told(printed: str) -> Iterator[str]:
    """What a program printed: a digest a field where it is JSON, a digest a line where it is text.

    Reports are left out, being recorded as such, and so is everything that a clock measured.
    """
    names = Names()
    try:
        value = json.loads(printed)
    except ValueError:
        lines = [_CLOCK.sub("<time>", names.plain(line)) for line in printed.splitlines() if line.strip()]
        yield from (f"printed {number}: {digest(re.sub(r'  +', '  ', line))}" for number, line in enumerate(lines))
        return
    for number, each in enumerate(value if isinstance(value, list) else [value]):
        kept = {key: inner for key, inner in each.items() if key != "report" and not _TIMED.search(key)}
        yield f"printed {number}: {', '.join(_fields(kept, names))}"


def _row(row: Mapping[str, Any]) -> str:
    head = ", ".join(str(row[key]) for key in ("workload", "name", "rules") if key in row)
    rest = {key: value for key, value in row.items() if key not in ("workload", "name", "rules")}
    return f"{head}: " + ", ".join(f"{key} {_cell(value)}" for key, value in rest.items() if value is not None)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + "; ".join(f"{key} {_cell(inner)}" for key, inner in value.items()) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _rounded(value: Any) -> Any:
    """Without what a clock measured, and floats to nine digits: the last ones depend on the order of a sum."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items() if not _TIMED.search(key)}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def changes(old: str, new: str) -> Iterable[str]:
    """What is different, a sentence each: which section of which request, which number of which report."""
    before, after = _read(old), _read(new)
    for key in {**before, **after}:
        side, what = key
        where = f"{side}: {what}"
        if key not in before:
            yield f"{where} is new"
        elif key not in after:
            yield f"{where} is gone"
        elif before[key] != after[key]:
            theirs, mine = _parts(before[key]), _parts(after[key])
            gone = [name for name in theirs if name not in mine]
            new_ones = [name for name in mine if name not in theirs]
            both = [name for name in theirs if name in mine and theirs[name] != mine[name]]
            changed = [f"{name} ({theirs[name]} -> {mine[name]})" for name in both]
            said = [f"{word} {', '.join(_few(found))}" for word, found in
                    (("changed", changed), ("without", gone), ("with", new_ones)) if found]  # fmt: skip
            yield f"{where} {'; '.join(said) or 'has its parts in another order'}"


def _few(names: Sequence[str]) -> Sequence[str]:
    return names if len(names) <= 4 else [*names[:3], f"and {len(names) - 3} more"]


def _read(text: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    side = ""
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            side = line[1:-1]
        elif line:
            what, _, rest = line.partition(": ")
            found[side, what] = rest
    return found


def _parts(line: str) -> dict[str, str]:
    """``as planner 0 of shared through messages[1], messages[2] 1a2b`` as what each part is."""
    parts: dict[str, str] = {}
    for part in line.split(", "):
        if part.startswith("as "):
            parts["what it begins with"] = part[3:]
        else:
            name, _, value = part.rpartition(" ")
            # Joined answers have one name for all.
            parts[name] = f"{parts[name]} {value}" if name in parts else value
    return parts
