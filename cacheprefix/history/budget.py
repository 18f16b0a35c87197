"""The tool-result budget: decides once, when a result is first seen, how much of it is sent.

A decision is a pure function of the result's content and the policy. It is recorded with its parameters, "keep" as
well as "cut", and from then on only the ledger counts: another budget setting, another process or a reused call id
change nothing that was already sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cacheprefix.bounded import PerOwner
from cacheprefix.errors import SetupError, StateError, StoreError
from cacheprefix.history.groups import Group, joins_of
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.strategies import MIN_CHARS, Cut, Run, Strategy, head_tail, none, recorded, strategy_of
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.decisions import ReplaceResult
from cacheprefix.prompt.views import Count, MessageView, ResultView, digest_of

KEEP = "k"
READ_TOOL = "read_full_result"
Limit = int | str | None
"""What ``by_tool`` takes for a tool: tokens, a strategy or its name, None for never cut."""
Replace = Callable[[ResultView], "str | tuple[int, str | Strategy | Run] | None"]
"""Decides on a new result: a text to send instead, a limit in tokens and a strategy, or None for the budget's rule."""


class Results(Protocol):
    """Where full texts are kept; ``cacheprefix.stores.ResultStore`` is one."""

    def put(self, text: str, *, scope: str = "") -> str:
        """Keep a text and return its reference, which depends on the text alone."""
        ...


@dataclass(frozen=True, slots=True)
class ToolResultBudget:
    """How many tokens of tool results are sent.

    ``max_tokens`` is for one result, ``per_turn`` for all results that answer one assistant message
    (the largest are shortened to one level). ``by_tool`` gives a tool its own tokens, its own
    strategy, both as a pair, or None to leave it alone. Errors and images are never cut.
    """

    max_tokens: int = 8_000
    per_turn: int | None = 32_000
    strategy: str | Strategy | Run = head_tail
    by_tool: Mapping[str, Limit | Strategy | Run | tuple[int, str | Strategy | Run]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tokens in (("max_tokens", self.max_tokens), ("per_turn", self.per_turn)):
            if tokens is not None and (tokens < 1):
                raise SetupError(f"ToolResultBudget.{name} must be a positive number of tokens, found {tokens!r}")
        strategy_of(self.strategy)
        for tool in self.by_tool:
            tokens, _ = self.limit(tool)
            if tokens < 1:
                raise SetupError(f"ToolResultBudget.by_tool[{tool!r}] must be a positive number of tokens")

    def limit(self, tool: str) -> tuple[int, Strategy]:
        """Tokens and strategy for a tool's results."""
        general = strategy_of(self.strategy)
        given = self.by_tool.get(tool, none if tool == READ_TOOL else self.max_tokens)
        if given is None:
            return self.max_tokens, none
        if isinstance(given, int):
            return given, general
        if isinstance(given, tuple):
            return given[0], strategy_of(given[1])
        return self.max_tokens, strategy_of(given)

    def strategies(self) -> dict[str, Strategy]:
        """The strategies this budget names, for replaying what was recorded with them."""
        named = [strategy_of(self.strategy), *(self.limit(tool)[1] for tool in self.by_tool)]
        return {strategy.name: strategy for strategy in named}


@dataclass(frozen=True, slots=True)
class Cutting:
    """How results are cut and where full texts are kept; how much is sent is the budget's."""

    count: Count = estimate_tokens
    store: Results | None = None
    """Keeps the full texts of what is cut; when it fails, the result stays whole. None keeps none."""
    scope: str = ""
    """The tenant whose texts these are."""
    replace: Replace | None = None
    """The user's hook for new results; what it decides is recorded like the budget's decision."""
    readable: bool = True
    """Whether the request has the tool that reads cut results again; without it the notes do not name it."""


PLAIN = Cutting()


@dataclass(frozen=True, slots=True)
class Budgeted:
    """The decisions of a budget on a history, and the ledger with the new ones recorded."""

    decisions: tuple[ReplaceResult, ...]
    ledger: Ledger


def budget_results(
    views: Sequence[MessageView],
    ledger: Ledger,
    budget: ToolResultBudget | None = None,
    how: Cutting = PLAIN,
) -> Budgeted:
    """Decide on results that the ledger does not know, and replay its decisions on all others.

    Without a ``budget`` nothing new is decided. Raises ``StateError`` when a recorded decision names a strategy
    function that this budget does not have.
    """
    if budget is None and not ledger.section("results") and not ledger.section("turns"):
        return Budgeted((), ledger)
    session = _Deciding(ledger, budget, how)
    shown: dict[tuple[int, int], tuple[ResultView, str]] = {}
    for index, view in enumerate(views):
        for result in view.results:
            if _is_cuttable(result):
                shown[index, result.part] = (result, session.decide(result))
    parallel = any(len(view.calls) > 1 or (view.item and view.calls) for view in views)
    for group in joins_of(views) if parallel and shown else ():
        if len(group.results) > 1 and group.complete:
            session.decide_turn(group, shown)
    decisions = []
    for (index, part), (result, value) in shown.items():
        text = session.render(result, value)
        if text is not None:
            decisions.append(ReplaceResult(index, part, text))
    return Budgeted(tuple(decisions), ledger.record(session.fresh))


class _Deciding:
    """One pass over a history: reads decisions from the ledger and collects new ones in ``fresh``."""

    def __init__(self, ledger: Ledger, budget: ToolResultBudget | None, how: Cutting) -> None:
        self.ledger = ledger
        self.budget = budget
        self.how = how
        self.count = how.count
        self.fresh: list[tuple[str, str, str]] = []
        self.known = budget.strategies() if budget else {}
        self._new: dict[tuple[str, str], str] = {}

    def decide(self, result: ResultView) -> str:
        """The decision on one result as the ledger has it: ``KEEP``, ``=text``, or ``c:rule:chars:ref`` for a cut."""
        value = self._get("results", result.digest)
        if value is None:
            if self.budget is None:
                return KEEP
            own = self.how.replace(result) if self.how.replace else None
            if isinstance(own, str):
                value = f"={json.dumps(own)}"
            else:
                tokens, strategy = self.budget.limit(result.name) if own is None else (own[0], strategy_of(own[1]))
                self.known.setdefault(strategy.name, strategy)
                # The limit of a turn applies to a turn with one result too.
                most = tokens if self.budget.per_turn is None else min(tokens, self.budget.per_turn)
                value = self._cut(result, most, strategy)
            self._put("results", result.digest, value)
        return value

    def decide_turn(self, group: Group, shown: dict[tuple[int, int], tuple[ResultView, str]]) -> None:
        """Cut the largest results of one turn further, in ``shown``, so that all are within ``per_turn`` tokens."""
        at = [(index, result.part) for index, result in group.results]
        if not any(place in shown for place in at):
            return
        digest = group.digest
        value = self._get("turns", digest)
        if value is None:
            if self.budget is None or self.budget.per_turn is None:
                return
            value = self._share(group, shown, self.budget, self.budget.per_turn)
            self._put("turns", digest, value)
        if value == KEEP:
            return
        for place, own in zip(at, json.loads(value), strict=True):
            if own and place in shown:
                shown[place] = (shown[place][0], own)

    def render(self, result: ResultView, value: str) -> str | None:
        """The text that a decision sends in a result's place; None where the result is sent as it is."""
        if value == KEEP:
            return None
        if value.startswith("="):
            text: str = json.loads(value[1:])
            return text
        _, rule, chars, ref = value.split(":", 3)
        return self._rendered(result.text or "", self._strategy(rule), int(chars), ref if self.how.readable else "")

    def _rendered(self, text: str, strategy: Strategy, chars: int, ref: str) -> str | None:
        """The text as the strategy shortens it, remembered by counter; None where it stays as it is."""
        key, memo = (text, strategy.name, chars, ref), _RENDERED.of(self.count)
        found = memo.get(key)
        # The very function: one of the application's may have no hash, or be equal to one that says something else.
        if found is None or found[0] is not strategy.run:
            found = (strategy.run, strategy(text, Cut(chars, ref)))
            memo.put(key, found, len(text) + len(found[1]))
        return None if found[1] == text else found[1]

    def _share(
        self,
        group: Group,
        shown: dict[tuple[int, int], tuple[ResultView, str]],
        budget: ToolResultBudget,
        per_turn: int,
    ) -> str:
        """The decision on one turn: ``KEEP``, or a JSON list with a cut (or "") for each result."""
        sizes: list[tuple[int, int]] = []
        fixed = 0
        for number, (index, result) in enumerate(group.results):
            entry = shown.get((index, result.part))
            text = None if entry is None else self.render(*entry)
            tokens = result.tokens if text is None else self.count(text)
            own, strategy = budget.limit(result.name)
            if entry is None or strategy is none or (entry[1] != KEEP and entry[1].startswith("=")):
                fixed += tokens
            else:
                sizes.append((min(tokens, own) if text is not None else tokens, number))
        level = _level(sorted(size for size, _ in sizes), per_turn - fixed)
        if level is None:
            return KEEP
        values = [""] * len(group.results)
        for size, number in sizes:
            if size > level:
                index, result = group.results[number]
                value = self._cut(result, max(level, 1), budget.limit(result.name)[1])
                values[number] = "" if value == KEEP else value
        return json.dumps(values, separators=(",", ":")) if any(values) else KEEP

    def _cut(self, result: ResultView, tokens: int, strategy: Strategy) -> str:
        """The decision to shorten a result to about ``tokens`` tokens; ``KEEP`` where it fits or gets no shorter."""
        text = result.text or ""
        size = self.count(text)
        if size <= tokens or strategy is none:
            return KEEP
        ref = ""
        if self.how.store is not None:
            try:
                ref = self.how.store.put(text, scope=self.how.scope)
            except StoreError:
                # The full text could not be kept to be read again: the result is never cut.
                return KEEP
        chars = max(MIN_CHARS, len(text) * tokens // size)
        while True:
            # Measured with the longer note (the one with a reference), so that the shorter one fits too.
            shorter = self._rendered(text, strategy, chars, ref)
            if shorter is None:
                return KEEP
            if chars <= MIN_CHARS or self.count(shorter) <= tokens:
                break
            chars = max(MIN_CHARS, chars * 9 // 10)
        rule = strategy.rule()
        name = digest_of(rule)[:6]
        self._put("rules", name, rule)
        return f"c:{name}:{chars}:{ref}"

    def _strategy(self, name: str) -> Strategy:
        rule = self._get("rules", name)
        strategy = None if rule is None else recorded(rule, self.known)
        if strategy is None:
            raise StateError(
                f"the ledger was written with the strategy {rule or name}, which this budget does not have; "
                "pass the same function (and version) to ToolResultBudget"
            )
        return strategy

    def _get(self, section: str, key: str) -> str | None:
        return self.ledger.get(section, key) or self._new.get((section, key))

    def _put(self, section: str, key: str, value: str) -> None:
        if self._get(section, key) is None:
            self._new[section, key] = value
            self.fresh.append((section, key, value))


def _is_cuttable(result: ResultView) -> bool:
    # Short results, errors and pictures are never cut, so no decision on them is recorded.
    return not result.is_error and result.text is not None and len(result.text) > MIN_CHARS


def _level(sizes: list[int], room: int) -> int | None:
    """The tokens to which the largest of sorted sizes must be cut so that all fit into ``room``; None when they do."""
    while sizes and sizes[0] <= room // len(sizes):
        room -= sizes[0]
        sizes = sizes[1:]
    return max(room // len(sizes), 0) if sizes else None


_RENDERED: PerOwner[tuple[str, str, int, str], tuple[Run, str]] = PerOwner(64_000_000)
"""Shortened texts by the token counter that they were measured with; bounded to 64 million characters."""


def forget_rendered(count: Count) -> None:
    """Forget the shortened texts that were measured with a counter."""
    _RENDERED.clear(count)
