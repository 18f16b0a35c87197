"""The same requests laid out otherwise: for the question what they could have cost."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, NamedTuple, TypeAlias

from cacheprefix.cache import equal_digests
from cacheprefix.errors import BodyError
from cacheprefix.prompt import (
    Prompt,
    Section,
    Tier,
    estimate_tokens,
    loads,
    section,
    shared_characters,
    shared_sections,
)
from cacheprefix.prompt.compare import shared_ending
from cacheprefix.prompt.sections import with_front, with_sections

VOLATILE = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?(?: ?[AP]M)?\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b\d+(?:\.\d+)?\b",
    re.IGNORECASE,
)
"""What changes from call to call in otherwise equal text: dates, times, UUIDs, counters."""


_VOLATILE_SIGNS = b"0123456789abcdefABCDEFtTzZpPmM-:.,+ "
"""All characters, of ASCII, that it can take."""
_REACH = 64
"""Characters, more than the longest of these has."""
_DIGIT = re.compile(r"\d")
_VARIANTS = 8
"""Systems of a team that a new one is compared with, the latest: its agents take turns."""
_USUAL = 0.9
"""Share of a team's requests whose systems decide what is common to all."""


class Laid(NamedTuple):
    """A prompt in another layout; ``tail`` is how many sections at its end are this call's own."""

    prompt: Prompt
    tail: int = 0


class VolatileText:
    """Finds sections that differ between calls in nothing but times, ids and counters, and moves those away."""

    def __init__(self) -> None:
        self._found: set[bytes] = set()
        self._moved: dict[bytes, tuple[Section, str]] = {}

    def compare(self, before: Prompt, after: Prompt) -> None:
        """Learn from two requests of one agent in one session."""
        shared = equal_digests(before.digests, after.digests)
        self._compare(before.sections[shared:], after.sections[shared:])

    def compare_fronts(self, fronts: Iterable[tuple[Section, ...]]) -> None:
        """Learn from the systems of a team, or what stands before the messages of requests that begin a conversation.

        Each may be an earlier one with another time or id.
        """
        latest: deque[tuple[Section, ...]] = deque(maxlen=_VARIANTS)
        for front in fronts:
            any(self._compare(before, front) for before in reversed(latest))
            latest.append(front)

    def _compare(self, before: Sequence[Section], after: Sequence[Section]) -> bool:
        """Whether they differ in such text, up to the first other difference."""
        found = False
        for left, right in zip(before, after, strict=False):
            if left.digest == right.digest:
                continue
            if (left.tier, left.kind, left.head) != (right.tier, right.kind, right.head):
                break
            if not _same_but_volatile(left.text, right.text):
                break
            self._found.update((left.digest, right.digest))
            found = True
        return found

    def __bool__(self) -> bool:
        return bool(self._found)

    def lay(self, prompt: Prompt) -> Laid:
        """The prompt with such text at its end."""
        if self._found.isdisjoint(prompt.digests):
            return Laid(prompt)
        kept: list[Section] = []
        moved: list[str] = []
        for one in prompt.sections:
            if one.digest in self._found:
                made = self._moved.get(one.digest)
                if made is None:
                    made = self._moved[one.digest] = self._split(one)
                kept.append(made[0])
                moved.append(made[1])
            else:
                kept.append(one)
        return Laid(with_sections(prompt, (*kept, _tail("\n".join(moved)))), 1)

    def _split(self, one: Section) -> tuple[Section, str]:
        """A section with 0 in place of all that is volatile in it, and what was taken out, to go behind everything."""
        moved: list[str] = []

        def taken(found: re.Match[str]) -> str:
            moved.append(found[0])
            return "0"

        stable = VOLATILE.sub(taken, one.text)
        made = section(one.tier, one.path, one.kind, one.head, _bytes(stable), _count, one.marker)
        return made, " ".join(moved)


@dataclass(slots=True)
class Team:
    """Requests of one lane that met in a session: their different systems and tools."""

    systems: dict[tuple[bytes, ...], tuple[Section, ...]] = field(default_factory=dict)
    tools: dict[tuple[bytes, ...], tuple[Section, ...]] = field(default_factory=dict)
    calls: Counter[tuple[bytes, ...]] = field(default_factory=Counter)
    """How many requests have each system."""
    union: Prompt | None = None
    cut: tuple[tuple[bytes, ...], str] | None = None
    """Digests of the leading system sections all have, and the text that the rest of all holds."""

    def unite(self) -> Prompt:
        """All tools by name, the first of each name, as a prompt that holds nothing else."""
        if self.union is None:
            named: dict[str, Section] = {}
            for row in self.tools.values():
                for tool in row:
                    named.setdefault(_tool_name(tool), tool)
            self.union = Prompt("anthropic", "", tuple(named[name] for name in sorted(named)))
        return self.union

    def common(self) -> tuple[tuple[bytes, ...], str]:
        """How much of the system is the same for (nearly) all requests: sections by digest, and text of the rest.

        Systems that few requests have do not count, so one odd request does not undo what the others share.
        """
        if self.cut is None:
            rows = [self.systems[key] for key in self._usual()]
            first = rows[0]
            sections = min(shared_sections(first, row) for row in rows)
            rest = [row[sections:] for row in rows]
            plain = len({(one.kind, one.head) for row in rest for one in row}) == 1 and all(rest)
            text = _common_lines([_joined(row) for row in rest]) if plain and rest[0][0].kind == "text" else ""
            self.cut = (_digests(first[:sections]), text)
        return self.cut

    def _usual(self) -> list[tuple[bytes, ...]]:
        """The systems that most calls have: at least two, and as many as make up ``_USUAL`` of all calls."""
        wanted = _USUAL * self.calls.total()
        chosen: list[tuple[bytes, ...]] = []
        covered = 0
        for key, count in self.calls.most_common():
            if covered >= wanted and len(chosen) > 1:
                break
            chosen.append(key)
            covered += count
        return chosen


_Keys: TypeAlias = "tuple[tuple[bytes, ...], tuple[bytes, ...]]"


class Teams:
    """Which requests could have shared one prefix."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}
        self._teams: dict[Any, Team] = {}
        self._shared: dict[tuple[bytes, ...], Any] = {}
        self._fronts: dict[tuple[bytes, ...], tuple[tuple[Section, ...], tuple[Section, ...], _Keys]] = {}
        """What stands before the messages, by its digests: its system sections, its tools, and the keys of both."""

    def learn(self, prompt: Prompt, lane: Any, session: str) -> None:
        """Take in one request. Sessions that use one system belong together."""
        front = tuple(prompt.digests[: prompt.head])
        known = self._fronts.get(front)
        if known is None:
            head = prompt.sections[: prompt.head]
            system, tools = (tuple([one for one in head if one.tier == tier]) for tier in ("system", "tools"))
            known = self._fronts[front] = (system, tools, (_digests(system), _digests(tools)))
        system, tools, keys = known
        here = (lane, session)
        root = self._root(here)
        if keys[0]:
            other = self._root(self._shared.setdefault((lane, *keys[0]), here))
            if other != root:
                self._merge(other, root)
                root = other
        team = self._teams.setdefault(root, Team())
        team.systems.setdefault(keys[0], system)
        team.tools.setdefault(keys[1], tools)
        team.calls[keys[0]] += 1

    def __iter__(self) -> Iterator[Team]:
        return iter(self._teams.values())

    def key(self, lane: Any, session: str) -> Any:
        """What the requests of one team have in common, as a key."""
        return self._root((lane, session))

    def of(self, lane: Any, session: str) -> Team:
        """The team of a request that was learned."""
        return self._teams[self._root((lane, session))]

    def with_roles(self) -> bool:
        """Whether any team has more than one system, and the log more than one agent's, whose time or id changes."""
        first, *others = (_joined(system) for team in self for system in team.systems.values())
        return any(len(team.systems) > 1 for team in self) and not all(_same_but_volatile(first, one) for one in others)

    def with_tools(self) -> bool:
        """Whether any team has more than one list of tools."""
        return any(len(team.tools) > 1 for team in self._teams.values())

    def _root(self, key: Any) -> Any:
        """The key that stands for all keys that were found to be the same team's."""
        while self._parent.setdefault(key, key) != key:
            key = self._parent[key]
        return key

    def _merge(self, into: Any, other: Any) -> None:
        """Two teams are one: what was learned of ``other``, if anything, goes to ``into``."""
        self._parent[other] = into
        gone = self._teams.pop(other, None)
        if gone is not None:
            team = self._teams.setdefault(into, Team())
            for key, system in gone.systems.items():
                team.systems.setdefault(key, system)
            for key, tools in gone.tools.items():
                team.tools.setdefault(key, tools)
            team.calls.update(gone.calls)


def roles_to_tail(team: Team, laid: Laid) -> Laid:
    """What the team's systems do not share, behind the messages instead of before them."""
    if len(team.systems) < 2:
        return laid
    prompt = laid.prompt
    shared, text = team.common()
    kept = len(shared)
    tools = _tools(prompt)
    system = prompt.sections[tools : prompt.head]
    rest = _joined(system[kept:])
    if _digests(system[:kept]) != shared or text not in rest:
        return laid  # One of the odd ones: it shares nothing with the others as it is.
    head = list(system[:kept])
    if text:
        head.append(_part(system[kept], text))
    role = rest.replace(text, "", 1).strip("\n") if text else rest
    own = (_tail(role),) if role else ()
    sections = (*prompt.sections[:tools], *head, *prompt.sections[prompt.head :], *own)
    return Laid(with_sections(prompt, sections), laid.tail + len(own))


def tools_unified(team: Team, laid: Laid) -> Laid:
    """The union of the team's tools, in one order."""
    if len(team.tools) < 2:
        return laid
    return Laid(with_front(laid.prompt, team.unite(), _tools(laid.prompt)), laid.tail)


def _tools(prompt: Prompt) -> int:
    """How many tools stand at its beginning."""
    return next((at for at, one in enumerate(prompt.sections[: prompt.head]) if one.tier != "tools"), prompt.head)


def fork_points(prompts: Sequence[Prompt]) -> list[int | None]:
    """For each prompt the longest beginning from which the prompts went on in more than one way, in sections."""
    numbers: dict[tuple[int, bytes], int] = {}
    parents, children = [0], [0]
    """Of each number the one before it, and how many ways go on from it."""
    ways: list[list[int]] = []
    """Of each prompt the numbers along it."""
    latest: dict[bytes, int] = {}
    """The latest prompt with each first message: mostly the next one begins with all of it."""
    for at, prompt in enumerate(prompts):
        digests = prompt.digests
        first = digests[min(prompt.head, len(digests) - 1)] if digests else b""
        before = latest.get(first)
        way = [] if before is None else ways[before][: equal_digests(prompts[before].digests, digests)]
        node = way[-1] if way else 0
        for digest in digests[len(way) :]:
            found = numbers.get((node, digest))
            if found is None:
                found = numbers[node, digest] = len(children)
                children[node] += 1
                children.append(0)
                parents.append(node)
            way.append(found)
            node = found
        ways.append(way)
        latest[first] = at
    depths, forks = [0], [0]
    """Of each number its place, and how far the longest such beginning of it goes: the one before it is known first."""
    for number in range(1, len(children)):
        parent = parents[number]
        depths.append(depths[parent] + 1)
        forks.append(depths[number] if children[number] > 1 else forks[parent])
    return [(forks[way[-1]] or None) if way else None for way in ways]


def _same_but_volatile(a: str, b: str) -> bool:
    """Whether two texts differ in nothing but times, ids and counters.

    The pattern is slow on long texts, so only what lies between their common beginning and end is masked, with as much
    around it as a time or an id can reach into.
    """
    front = shared_characters(a, b)
    start = max(0, front - _REACH)
    if not all(_DIGIT.search(text, start, front + _REACH) for text in (a, b)):
        return False
    back = max(0, shared_ending(a, b, front) - _REACH)
    left, right = a[start : len(a) - back], b[start : len(b) - back]
    if left.isascii() and right.isascii():
        # What the pattern never takes has to be equal, which is told two hundred times as fast.
        bare = (text.encode().translate(None, _VOLATILE_SIGNS) for text in (left, right))
        if next(bare) != next(bare):
            return False
    return VOLATILE.sub("\0", left) == VOLATILE.sub("\0", right)


def _joined(row: Sequence[Section]) -> str:
    return "\n\n".join(one.text for one in row)


def _common_lines(texts: Sequence[str]) -> str:
    """The longest run of whole lines that all texts hold: a role stands before the shared text or behind it."""
    block = texts[0].split("\n")
    for text in texts[1:]:
        if "\n".join(("", *block, "")) in f"\n{text}\n":
            continue
        lines = text.split("\n")
        found = SequenceMatcher(None, lines, block, autojunk=False).find_longest_match()
        block = block[found.b : found.b + found.size]
    return "\n".join(block).strip("\n")


def _tail(text: str) -> Section:
    return section("messages", "messages[tail].content", "text", "user", _bytes(text), _count)


def _part(one: Section, text: str) -> Section:
    tier: Tier = one.tier
    return section(tier, one.path, one.kind, one.head, _bytes(text), _count)


def _tool_name(tool: Section) -> str:
    try:
        value = loads(tool.data)
    except BodyError:
        return tool.path
    function = value.get("function") if isinstance(value.get("function"), dict) else value
    name = function.get("name") or value.get("type")
    return name if isinstance(name, str) else tool.path


def _digests(row: Sequence[Section]) -> tuple[bytes, ...]:
    return tuple(one.digest for one in row)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _count(text: str) -> int:
    return estimate_tokens(text)
