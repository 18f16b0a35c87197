"""A planned compaction: what it would do, what it costs and saves, and how it gets into the ledger."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Literal

from cacheprefix.errors import SetupError, StoreError
from cacheprefix.history.budget import Results
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.shape import Shape
from cacheprefix.history.summary import SummaryRequest, fitted, opening_of
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.views import Count, digest_of


@dataclass(frozen=True, slots=True)
class Prices:
    """Token prices of one model relative to its uncached input, and whether the cache is still there.

    ``read`` and ``write`` come from the provider's profile (Anthropic 0.1 and 1.25, OpenAI before
    GPT-5.6 0.1 to 0.5 and 1.0). ``cold`` says that the entry's lifetime has passed, so that the next
    request is written anew whatever it holds.
    """

    read: float = 0.1
    write: float = 1.25
    cold: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.read <= 1 or self.write < 0:
            raise SetupError(f"prices are relative to one uncached token: read {self.read}, write {self.write}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The price of a compaction. ``break_even`` is in turns; None when it never pays."""

    rewrite: float
    """Cost units that the next request costs more than it would without; negative when it costs less."""
    saving: float
    """Cost units that every later request costs less."""

    @property
    def break_even(self) -> float | None:
        """Turns after which the compaction has paid for itself."""
        if self.rewrite <= 0:
            return 0.0
        return self.rewrite / self.saving if self.saving > 0 else None

    def pays(self, turns: float) -> bool:
        """Whether it pays within a number of turns."""
        return self.break_even is not None and self.break_even <= turns


def estimate(before: int, after: int, kept: int, prices: Prices, *, asked: int = 0) -> Estimate:
    """Price, in cost units, of going from ``before`` to ``after`` tokens with the first ``kept`` unchanged.

    The ``kept`` tokens are read from the cache, all behind them are written anew. ``asked`` are the input tokens of a
    further request that asks the model for the summary.

    ``rewrite = (kept + asked) * read + (after - kept) * max(write, read) - before * read``, with a cold cache
    ``(after + asked - before) * write``; ``saving = (before - after) * read`` for each later request.
    """
    if prices.cold:
        without, with_ = before * prices.write, (after + asked) * prices.write
    else:
        without = before * prices.read
        with_ = (kept + asked) * prices.read + (after - kept) * max(prices.write, prices.read)
    return Estimate(with_ - without, (before - after) * prices.read)


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
    """A planned compaction, which nothing has been changed by yet.

    ``due`` says whether it should be done now: it changes something, and the window forces it, the
    cache is cold anyway, or it pays within the expected turns.
    """

    reason: Reason
    before: int
    """Tokens of the whole request as it stands."""
    after: int
    kept: int
    """Tokens at the start of the request that do not change and are still read from the cache."""
    price: Estimate
    due: bool
    actions: tuple[Action, ...] = ()
    refusals: tuple[str, ...] = ()
    """What was not done although the settings ask for it, and why."""
    stuck: bool = False
    """Whether nothing is done because the next request would be above the trigger again."""
    request: SummaryRequest | None = None
    """The summary to ask the model for before ``commit``; without an answer, an extract is used."""
    horizon: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    entries: tuple[tuple[str, str, str], ...] = ()
    clearings: tuple[Clearing, ...] = ()
    summary_at: str = ""
    opening: str = ""
    """The numbered opening of a summary by the model, where several are kept; else empty."""
    count: Count = estimate_tokens
    joins: bool = False
    """Whether durable context is joined at the same time, into one block for each key."""
    shape: Shape | None = field(default=None, repr=False, compare=False)
    """Groups and addresses of the planned history, so that carrying out need not compute them again."""

    @classmethod
    def nothing(cls, tokens: int, prices: Prices, ledger: Ledger, count: Count) -> Plan:
        """The plan to leave a request of so many tokens as it is."""
        price = estimate(tokens, tokens, tokens, prices)
        return cls("none", tokens, tokens, tokens, price, due=False, ledger=ledger, count=count)

    def with_summary(self, text: str) -> Plan:
        """The plan with a model's summary in the place of the extract, cut to what was asked for."""
        if not text.strip() or not self.summary_at or self.request is None:
            return self
        written, place = fitted(text.strip(), self.request.max_tokens, self.count), ("inserts", self.summary_at)
        entries = tuple(
            (section, key, _with_text(old, written, self.opening) if (section, key) == place else old)
            for section, key, old in self.entries
        )
        return replace(self, entries=entries)

    def commit(self, store: Results | None = None, *, scope: str = "") -> Ledger:
        """The ledger with the plan recorded, as a new epoch; ``replay`` then carries it out.

        The texts of cleared results are kept in ``store``; a result that it refuses is not cleared.
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


def _with_text(value: str, text: str, opening: str) -> str:
    role, old, *spans = json.loads(value)
    # An extract that found nothing to keep is a note without a number: then the opening gives it.
    return json.dumps([role, f"{opening_of(old) or opening}{text}", *spans])
