"""What a call cost, in uncached input tokens and in US dollars, and how large a model's window is: from one library."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cacheprefix.effects import in_a_loop
from cacheprefix.errors import MissingExtraError
from cacheprefix.locks import IMPORTS
from cacheprefix.profiles.model_names import provider_of, read_model
from cacheprefix.profiles.usage import Usage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from cacheprefix.profiles.profile import Profile


_TABLE = Path(__file__).with_name("prices.toml")
_PER_MILLION = 1e-6
_DATES = (1e9, 4e9)
"""September 2001 to October 2096: a clock that shows else does not count seconds from 1970, and tells no day."""
_NATURAL = (
    "openai", "anthropic", "gemini", "deepseek", "xai", "mistral", "moonshot", "zai", "dashscope", "minimax",
)  # fmt: skip
"""Providers whose price stands in where the rules in force belong to no provider (``exact``)."""

GENAI_PROVIDERS = {
    "anthropic": "anthropic", "openai": "openai", "azure": "azure", "bedrock": "aws", "vertex": "google",
    "gemini": "google", "deepseek": "deepseek", "xai": "x-ai", "mistral": "mistral", "groq": "groq",
    "cerebras": "cerebras", "moonshot": "moonshotai", "zai": "zai", "minimax": "minimax",
}  # fmt: skip


class ListPrice(NamedTuple):
    """One model's input price in the shipped table."""

    input_usd_per_mtok: float
    read: float
    write: float
    source: str
    checked_on: date


@dataclass(frozen=True, slots=True)
class Money:
    """What the input of a call cost, in USD, and who says so."""

    usd: float
    source: str
    """``genai-prices VERSION``, or the shipped table's source."""


class Amount:
    """A sum in USD that is looked up when it is first asked for.

    The library of prices takes 0.1 s to import and 0.1 ms a question, and of most calls nobody asks.
    """

    __slots__ = ("_ask", "_usd")

    def __init__(self, ask: Callable[[], float | None] | None = None, usd: float | None = None) -> None:
        self._ask, self._usd = ask, usd

    @property
    def usd(self) -> float | None:
        """The sum; ``None`` where nobody knows the price."""
        if self._ask is not None:
            self._usd, self._ask = self._ask(), None
        return self._usd

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and self.usd == other.usd

    def __hash__(self) -> int:
        return hash(self.usd)

    def __repr__(self) -> str:
        return f"Amount(usd={self.usd!r})"


def cost_units(usage: Usage, profile: Profile) -> float:
    """The input's cost in uncached input tokens: uncached + read at its rate + written at their rates.

    What was not reported counts as nothing, so an unreported read is paid in full: an upper bound. Output
    is left out, since no layout changes it.
    """
    return units_of(usage.input_tokens or 0, usage.cache_read_tokens or 0, usage.cache_write or {}, profile)


def units_of(total: int, read: int, written: Mapping[str, int], profile: Profile) -> float:
    """The same of an input of ``total`` tokens, of which so many were read, and written by lifetime."""
    rest, units = total - read, 0.0
    for ttl, count in written.items():
        rest -= count
        units += count * profile.ttl(ttl).write
    return max(0, rest) + read * profile.read + units


def money(usage: Usage, model: str, profile: Profile, *, at: float | None = None) -> float | None:
    """The input's price in USD; ``None`` if nobody knows the model's. See ``priced``."""
    found = priced(usage, model, profile, at=at)
    return None if found is None else found.usd


def priced(usage: Usage, model: str, profile: Profile, *, at: float | None = None) -> Money | None:
    """The input's price and its source; None where the count or the price is not known.

    From genai-prices where the extra ``prices`` is installed and knows the model at this provider with a
    price for cached tokens, its long-context tiers included; else the shipped input price times
    ``cost_units``. Prices are floats: providers bill in fractions far above a float's error. For a sum
    of calls the average call picks the tier, so add up calls one by one where tiers matter.

    ``at`` is when the call was made, in seconds since the epoch, now by default: genai-prices knows prices that
    have changed, and prices by the hour (DeepSeek's). The shipped table has one price.
    """
    if usage.input_tokens is None:
        return None
    library = _genai_price(usage, model, profile.provider, at)
    if library is not None:
        return library
    listed = list_price(model, profile.provider)
    if listed is None:
        return None
    return Money(cost_units(usage, profile) * listed.input_usd_per_mtok * _PER_MILLION, listed.source)


def lost_money(
    tokens: int, model: str, profile: Profile, *, written: bool = False, at: float | None = None
) -> float | None:
    """What it costs, in USD, that ``tokens`` were not read from the cache.

    ``written`` says that they were written anew instead, at the default lifetime's price. ``at`` is as for
    ``priced``. ``None`` if nobody knows the model's price.
    """
    if tokens <= 0:
        return 0.0
    when = None if at is None else at // PRICE_SPAN * PRICE_SPAN
    library = _library_for(model, profile.provider) is not None
    lost = _lost(whole_steps(tokens), model, profile, when, written=written, library=library)
    return None if lost is None else lost * tokens


PRICE_STEP = 1_000
"""Prices change with the size of the input at whole thousands of tokens (128k, 200k, 272k) and nowhere between."""

PRICE_SPAN = 1_800.0
"""Seconds: prices that go by the hour change at whole and half hours."""


def whole_steps(tokens: int) -> int:
    """The next size up at which prices may change."""
    return max(1, -(-tokens // PRICE_STEP)) * PRICE_STEP


@lru_cache(maxsize=4096)
def _lost(
    size: int,
    model: str,
    profile: Profile,
    at: float | None,
    *,
    written: bool,
    library: bool,  # noqa: ARG001 - a key
) -> float | None:
    """What it costs that one token of so many is not read. Whether the library was there is part of the key."""
    paid = Usage(input_tokens=size, cache_read_tokens=0, cache_write={"": size} if written else None)
    ideal = Usage(input_tokens=size, cache_read_tokens=size)
    there, then = (money(usage, model, profile, at=at) for usage in (paid, ideal))
    return None if there is None or then is None else max(0.0, there - then) / size


def list_price(model: str, provider: str | None = None) -> ListPrice | None:
    """The shipped table's price of ``model``, at ``provider`` if that has a table; None for an unknown model."""
    name = read_model(model)
    served_by = provider_of(provider) or name.provider
    tables = _prices()
    order = (served_by,) if served_by in tables else _NATURAL
    for table in order:
        for spelling in _tuned(model, name.spellings):
            found = tables.get(table or "", {}).get(spelling)
            if found is not None:
                return found
    return None


def _tuned(model: str, spellings: tuple[str, ...]) -> tuple[str, ...]:
    """Fine-tuned models have prices of their own, listed under ``ft:`` and the base model's name."""
    return tuple(f"ft:{spelling}" for spelling in spellings) if "ft:" in model.lower() else spellings


@lru_cache(maxsize=1)
def _text() -> str:
    return _TABLE.read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _prices() -> Mapping[str, Mapping[str, ListPrice]]:
    data = tomllib.loads(_text())
    return {
        provider: {model: _listed(row, data) for model, row in rows.items()}
        for provider, rows in data["provider"].items()
    }


def _listed(row: Mapping[str, float], data: Mapping[str, Any]) -> ListPrice:
    write = float(row.get("write", 1.0))
    return ListPrice(float(row["input"]), float(row["read"]), write, data["source"], data["checked_on"])


def load_price_table() -> None:
    """Read the shipped table's file, once, so that no event loop waits for a disk; the first question parses it."""
    _text()


def load_price_library() -> None:
    """Import, once, the library that prices are looked up with; it is slow to import.

    For who may ask where nobody waits for an import; a question imports it too. Never in an event loop, which would
    stand still, and never in a thread of ours: beside the application's own imports a module may be seen half made.
    Where a loop runs, the shipped table prices until it was imported elsewhere.
    """
    _library()


def _library() -> tuple[ModuleType, str] | None:
    """The library; None where there is none, or where it was not imported yet and an event loop runs."""
    return None if in_a_loop() and not _genai.cache_info().currsize else _genai()


@lru_cache(maxsize=1)
def _genai() -> tuple[ModuleType, str] | None:
    """The library ``genai_prices`` and how it is named as a source; None where it is not installed."""
    try:
        with IMPORTS:
            import genai_prices  # noqa: PLC0415 - an extra, and slow to import

            with suppress(LookupError):
                # Its tables come with the first question.
                genai_prices.calc_price(genai_prices.Usage(input_tokens=1), model_ref="gpt-4o")
    except ImportError:
        return None
    return genai_prices, f"genai-prices {genai_prices.__version__}"


def _library_for(model: str, provider: str) -> tuple[ModuleType, str] | None:
    """The library, where it is to be asked: not for who sells nothing, nor for models whose price it does not have."""
    # It matches a fine-tuned model to its base, whose price is another.
    return None if provider not in GENAI_PROVIDERS or "ft:" in model.lower() else _library()


def _genai_price(usage: Usage, model: str, provider: str, at: float | None) -> Money | None:
    """What a usage costs by the installed price library; None where that does not know the model, or fails."""
    library = _library_for(model, provider)
    known = None if library is None else _known(model, provider)
    if library is None or known is None:
        return None
    module, source = library
    calls = max(1, usage.calls)
    counts = {
        "input_tokens": usage.input_tokens or 0,
        "cache_read_tokens": usage.cache_read_tokens or 0,
        "cache_write_tokens": usage.cache_write_tokens or 0,
        "cache_write_1h_tokens": (usage.cache_write or {}).get("1h", 0),
    }
    when = None if at is None or not _DATES[0] <= at < _DATES[1] else datetime.fromtimestamp(at, timezone.utc)
    average = {name: count / calls if calls > 1 else count for name, count in counts.items() if count}
    try:
        found = module.calc_price(
            module.Usage(**average),
            model_ref=known.spelling,
            provider_id=GENAI_PROVIDERS[provider],
            genai_request_timestamp=when,
        )
    except Exception:  # a library's new pricing rule must not stop the report: the table answers
        return None
    if usage.cache_read_tokens and getattr(found.model_price, "cache_read_mtok", None) is None:
        return None  # the library knows no discount for this model; the table may
    return Money(float(found.input_price) * calls, source)


class _Known(NamedTuple):
    """A model that the library knows."""

    spelling: str
    """Its name there."""
    changes: bool
    """Whether it has had several prices, or has prices by the hour."""


@lru_cache(maxsize=4096)
def _known(model: str, provider: str) -> _Known | None:
    """The model in the library; None where it has none of its spellings.

    Looked for once: it compares a name with those of all its models, which takes a millisecond where none fits.
    """
    library = _genai()
    if library is None:
        return None
    module = library[0]
    for spelling in read_model(model).spellings:
        try:
            found = module.calc_price(
                module.Usage(input_tokens=1), model_ref=spelling, provider_id=GENAI_PROVIDERS[provider]
            )
        except LookupError:
            continue
        except Exception:  # as where a price is asked for: it is known, and its rule cannot be followed
            return _Known(spelling, changes=True)
        return _Known(spelling, isinstance(found.model.prices, list))
    return None


def changes_with_time(model: str, provider: str) -> bool:
    """Whether a model has had several prices, or has prices by the hour; False where the shipped table prices it."""
    found = None if _library_for(model, provider) is None else _known(model, provider)
    return found is not None and found.changes


def window_of(model: str, provider: str | None = None) -> int | None:
    """The context window of a model in tokens; None where the library does not know it.

    Source: genai-prices, which keeps one for most models. Raises ``MissingExtraError`` without it.
    """
    try:
        with IMPORTS:
            from genai_prices import Usage, calc_price  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise MissingExtraError("looking a model's window up", "prices", "genai-prices") from None
    name = read_model(model)
    served_by = provider_of(provider) or name.provider
    for at in dict.fromkeys((GENAI_PROVIDERS.get(served_by or ""), None)):
        for spelling in name.spellings:
            try:
                found = calc_price(Usage(input_tokens=1), model_ref=spelling, provider_id=at)
            except LookupError:
                continue
            window = found.model.context_window
            if isinstance(window, int) and window > 0:
                return window
    return None
