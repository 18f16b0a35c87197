"""A planned compaction: what it would do, what it costs, and how it gets into the ledger."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Literal

from cacheprefix.context._budget import Results
from cacheprefix.context._ledger import Ledger
from cacheprefix.context._prices import Estimate
from cacheprefix.context._shape import Shape
from cacheprefix.context._summary import SummaryRequest, fitted
from cacheprefix.context._views import Count, digest_of
from cacheprefix.errors import StoreError
from cacheprefix.prompt import estimate_tokens

Reason = Literal["none", "window", "cold", "trigger", "forced"]


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of thing a plan does, and how often."""

    kind: str
    """``results cleared``, ``tool uses dropped``, ``thinking dropped``, ``messages removed``, ``summaries``."""
    count: int
    tokens: int
    """Tokens that it takes out; negative for what it adds."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """A result that the plan clears: its address, its tokens, and the text to keep in the store."""

    address: str
    tokens: int
    text: str


STUCK = (
    "what must stay is above nine tenths of the trigger, so a compaction would come back at once: "
    "raise the trigger, keep fewer turns or pins, or bound tool results"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A compaction that has been thought through and not done.

    ``due`` says whether it should be done now: it changes something, and the window forces it, the
    cache is cold anyway, or it pays within the expected turns.
    """

    reason: Reason
    before: int
    """Tokens of the whole request as it stands."""
    after: int
    kept: int
    """Tokens at the start that stay unchanged and are still read from the cache."""
    price: Estimate
    due: bool
    actions: tuple[Action, ...] = ()
    refusals: tuple[str, ...] = ()
    """What was not done although the settings ask for it, and why."""
    stuck: bool = False
    """Whether nothing is done because the next request would be above the trigger again."""
    request: SummaryRequest | None = None
    """The summary to ask the model for before ``commit``; without an answer an extract stands."""
    horizon: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    entries: tuple[tuple[str, str, str], ...] = ()
    clearings: tuple[Clearing, ...] = ()
    summary_at: str = ""
    count: Count = estimate_tokens
    shape: Shape | None = field(default=None, repr=False, compare=False)
    """What was read off the history that was planned for, so that carrying the plan out need not read it again."""

    def with_summary(self, text: str) -> Plan:
        """The plan with a model's summary in the place of the extract, cut to what was asked for."""
        if not text.strip() or not self.summary_at or self.request is None:
            return self
        written = fitted(text.strip(), self.request.max_tokens, self.count)
        entries = tuple(
            (section, key, _with_text(old, written) if (section, key) == ("inserts", self.summary_at) else old)
            for section, key, old in self.entries
        )
        return replace(self, entries=entries)

    def commit(self, store: Results | None = None, *, scope: str = "") -> Ledger:
        """The ledger with the plan recorded, as a new epoch; ``replay`` then carries it out.

        The texts of cleared results go into ``store``; one that it cannot take stays in the prompt.
        """
        if not self.entries and not self.clearings:
            return self.ledger
        entries = list(self.entries)
        for clearing in self.clearings:
            ref = ""
            if store is not None:
                try:
                    ref = store.put(clearing.text, scope=scope)
                except StoreError:
                    continue
            entries.append(("actions", clearing.address, f"x:{clearing.tokens}:{ref}"))
        name = digest_of(*(part for entry in entries for part in entry))
        entries.append(("epochs", name, f"{self.reason}:{self.before}:{self.after}"))
        return self.ledger.record(entries)

    def preview(self) -> str:
        """The plan in words, for a person."""
        if not self.actions:
            return f"nothing to do: {self.before:,} tokens"
        price = self.price
        even = "never" if price.break_even is None else f"{price.break_even:.1f} turns"
        lines = [
            f"{self.before:,} -> {self.after:,} tokens ({self.reason}); {self.kept:,} at the start stay cached",
            *(f"  {action.kind}: {action.count} ({action.tokens:,} tokens)" for action in self.actions),
            f"  now {price.rewrite:+,.0f} cost units, then {price.saving:,.0f} saved a turn; break-even {even}",
            *(f"  not done: {refusal}" for refusal in self.refusals),
            f"  {'due' if self.due else 'not due'} (expected turns {self.horizon:.0f})",
        ]
        return "\n".join(lines)


def _with_text(value: str, text: str) -> str:
    role, _, *spans = json.loads(value)
    return json.dumps([role, text, *spans])
