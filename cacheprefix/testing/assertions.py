"""What a run's prompts have in common, asserted: with the place where they part and what that costs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cacheprefix.cache import FIXES, Cause, Smell, lint
from cacheprefix.call import Call
from cacheprefix.profiles import CacheprefixProfileWarning, Profile, default_registry, lost_money
from cacheprefix.prompt import Prompt, Section, chain, common_prefix, lane_key, loads, placed
from cacheprefix.wire import decode, guess_api

_VOLATILE: frozenset[Smell] = frozenset({"timestamp", "uuid", "counter", "memory_address", "random_token"})
_CALLS = 1_000
"""The number of calls that a difference is priced for."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a prompt leaves an earlier one, why, and what that costs."""

    cause: Cause
    path: str
    said: str
    tokens: int
    """Tokens of the later prompt that stand behind the difference."""
    price: str

    def __str__(self) -> str:
        return f"{self.cause} at {self.path}: {self.said}\n      {self.price}\n      {FIXES[self.cause]}"


@dataclass(frozen=True, slots=True)
class _Share:
    index: int
    best: int | None
    tokens: int
    prompt: Prompt

    @property
    def share(self) -> float:
        return self.tokens / self.prompt.tokens if self.prompt.tokens else 1.0


def assert_forked(calls: Iterable[Call]) -> None:
    """Assert that every one of a session's ``calls`` that a role made went out as a fork.

    Calls outside of any role are left out. The error names each agent's reasons with their numbers, and what to do
    about those that can be removed.
    """
    __tracebackhide__ = True
    asked = [call for call in calls if all(one.why != "outside_fork" for one in call.reasons)]
    if not asked:
        raise AssertionError("no call was made by a role: is the model wrapped with the session?")
    own = {f"{call.agent or 'unnamed'}: {one.said}{f'; {one.fix}' if one.fix else ''}": None
           for call in asked if call.layout != "fork" for one in call.reasons}  # fmt: skip
    if own:
        raise AssertionError("not all calls are forks of the shared prefix:\n  " + "\n  ".join(own))


def assert_shared_prefix(calls: Any, min_share: float = 0.5, *, provider: str | None = None) -> None:
    """Assert that every call but the first begins with at least ``min_share`` (0 to 1) of an earlier call's prompt.

    ``calls`` is a ``prefix_recorder``, or a list of its calls, of prompts, of a simulated provider's requests or of
    request bodies (dicts or bytes). Shares are in tokens of the call, by exact sections in cache order; prompts of
    another model or with settings that separate them share nothing. ``provider`` names the profile where the
    model's name does not tell. The error names the calls that share too little, where they part, and the price.
    """
    __tracebackhide__ = True
    prompts = prompts_of(calls)
    if len(prompts) < 2:
        raise AssertionError(f"a shared prefix takes two calls at least, found {len(prompts)}: was the run recorded?")
    weak = [one for one in _shares(prompts, provider) if one.index and one.share < min_share]
    if not weak:
        return
    lines = [f"{len(weak)} of {len(prompts) - 1} calls share less than {min_share:.0%} with an earlier call"]
    for one in weak[:_SHOWN]:
        best = one.best or 0
        parting = parted(prompts[best], one.prompt, profile_of(one.prompt, provider))
        lines.append(f"  call {one.index} shares {one.share:.1%} of its {one.prompt.tokens:,} tokens with call {best}")
        if parting is not None:
            lines.append(f"    {parting}")
    if len(weak) > _SHOWN:
        lines.append(f"  and {len(weak) - _SHOWN} more")
    raise AssertionError("\n".join(lines))


def assert_prefix_stable(calls: Any, *, volatile: bool = True, provider: str | None = None) -> None:
    """Assert that all calls of a model begin with the same tools, system text and cache-relevant settings.

    With ``volatile`` it also fails for what will change by itself between two runs: times, identifiers, counters,
    addresses and random values in tools or system text. ``calls`` as in ``assert_shared_prefix``.
    """
    __tracebackhide__ = True
    first: dict[tuple[str, str], tuple[int, Prompt]] = {}
    lines: list[str] = []
    for index, prompt in enumerate(prompts_of(calls)):
        at, begun = first.setdefault((prompt.api, prompt.model), (index, prompt))
        parting = parted(head_of(begun), head_of(prompt), profile_of(prompt, provider))
        if parting is not None:
            lines.append(f"  call {index} begins unlike call {at}: {parting}")
    if volatile:
        for index, prompt in first.values():
            lines += [
                f"  call {index}, {found.path}: {found.smell} ({found.excerpt!r}); {found.fix}"
                for found in lint(prompt)
                if found.smell in _VOLATILE
            ]
    if lines:
        more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise AssertionError("\n".join(["the prompts' beginning is not stable", *lines[:_SHOWN], *more]))


def prompts_of(calls: Any) -> tuple[Prompt, ...]:
    """The prompts of whatever holds some, in order. Raises ``TypeError`` for anything else."""
    return tuple(map(prompt_of, listed(calls)))


def prompt_of(call: Any) -> Prompt:
    """The prompt of one call, by its body where it holds none itself. Raises ``TypeError`` for what is no call."""
    held = call if isinstance(call, Prompt) else getattr(call, "prompt", None)
    if isinstance(held, Prompt):
        return held
    body = body_of(call)
    if isinstance(body, Mapping):
        return decode(body, getattr(call, "api", None) or guess_api(body))
    raise TypeError(f"a {type(call).__name__} is no call: pass recorded calls, prompts or request bodies")


def body_of(call: Any) -> Any:
    """The body of one call, read where it is bytes or text; the call itself where it has none."""
    given = getattr(call, "body", None) or call
    return loads(given) if isinstance(given, (bytes, str)) else given


def listed(calls: Any) -> Iterable[Any]:
    """What holds calls, as it is. Raises ``TypeError`` for a single one, and for anything else."""
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Iterable):
        raise TypeError(f"expected a list of calls, prompts or bodies, found {type(calls).__name__}")
    return calls


def head_of(prompt: Prompt) -> Prompt:
    """The prompt without its messages."""
    sections = tuple(section for section in prompt.sections if section.tier != "messages")
    return Prompt(prompt.api, prompt.model, sections, prompt.settings)


def profile_of(prompt: Prompt, provider: str | None) -> Profile:
    """The provider rules for a prompt; those of ``unknown``, without a word, for a model nobody knows."""
    with warnings.catch_warnings():
        # The assertion names the rules it went by; that a model has no row is not what is asserted.
        warnings.simplefilter("ignore", CacheprefixProfileWarning)
        return default_registry().profile_for(prompt.model, provider=provider, api=prompt.api)


def parted(earlier: Prompt, later: Prompt, profile: Profile) -> Parting | None:
    """Where ``later`` leaves ``earlier``; None when one of them continues the other in the same lane."""
    if earlier.model != later.model:
        return _parting("model_changed", "model", f"{earlier.model!r} became {later.model!r}", 0, later, profile)
    old, new = placed(earlier, profile.settings, "lane"), placed(later, profile.settings, "lane")
    setting = next((name for name in sorted({*old, *new}) if old.get(name) != new.get(name)), None)
    if setting is not None:
        said = f"{_cut(old.get(setting))} became {_cut(new.get(setting))}"
        return _parting("settings_changed", setting, said, 0, later, profile)
    found = common_prefix(earlier, later)
    at = found.sections
    if at < len(earlier.sections) and at < len(later.sections):
        was, now = earlier.sections[at], later.sections[at]
        tiers = (was.tier, now.tier)
        said = _change(found.before, found.after, found.offset)
        if "tools" in tiers:
            if was.tier != now.tier:
                said = f"{_name(was)} is gone" if was.tier == "tools" else f"{_name(now)} was added"
            return _tools(earlier, later, at, found.path if was.tier == now.tier else None, said, profile)
        cause: Cause = "system_changed" if "system" in tiers else "history_edited"
        return _parting(cause, found.path or now.path, said, at, later, profile)
    if len(earlier.sections) != len(later.sections) and not later.tier("messages"):
        longer = max(earlier, later, key=lambda one: len(one.sections)).sections[at]
        cause = "tools_changed" if longer.tier == "tools" else "system_changed"
        said = f"{longer.path} {'was added' if len(later.sections) > at else 'is gone'}: {_cut(longer.text)}"
        return _parting(cause, longer.path, said, at, later, profile)
    return None


def price_of(tokens: int, model: str, profile: Profile) -> str:
    """What it costs that ``tokens`` are not read from the cache, in words."""
    usd = lost_money(tokens, model, profile)
    if usd is None:
        cost = f"{tokens * (1 - profile.read) * _CALLS:,.0f} uncached input tokens (no price is known for {model!r})"
    else:
        cost = f"${usd * _CALLS:,.2f}"
    return f"{tokens:,} tokens are not read from the cache: {cost} per {_CALLS:,} calls ({profile.name})"


def _shares(prompts: Sequence[Prompt], provider: str | None) -> list[_Share]:
    """Of each prompt the earlier one with which it has most sections in common, and their tokens."""
    seen: dict[tuple[bytes, bytes], int] = {}
    found: list[_Share] = []
    for index, prompt in enumerate(prompts):
        profile = profile_of(prompt, provider)
        lane = lane_key(prompt, profile.settings, provider=profile.provider)
        digests = chain(prompt, profile.settings)
        length = next((at for at in range(len(digests), 0, -1) if (lane, digests[at - 1]) in seen), 0)
        best = seen[lane, digests[length - 1]] if length else None
        tokens = sum(section.tokens for section in prompt.sections[:length])
        found.append(_Share(index, best, tokens, prompt))
        for one in digests:
            seen.setdefault((lane, one), index)
    return found


def _tools(earlier: Prompt, later: Prompt, at: int, path: str | None, said: str, profile: Profile) -> Parting:
    """Tools in another order are another mistake than other tools."""
    old, new = earlier.tier("tools"), later.tier("tools")
    if sorted(one.digest for one in old) == sorted(one.digest for one in new):
        order = f"{', '.join(map(_name, old))} became {', '.join(map(_name, new))}"
        return _parting("tools_reordered", f"tools[{at}]", order, at, later, profile)
    return _parting("tools_changed", path or f"tools[{at}]", said, at, later, profile)


def _parting(cause: Cause, path: str, said: str, at: int, later: Prompt, profile: Profile) -> Parting:
    tokens = sum(section.tokens for section in later.sections[at:])
    return Parting(cause, path, said, tokens, price_of(tokens, later.model, profile))


def _name(section: Section) -> str:
    body = loads(section.data)
    inner = body.get("function") if isinstance(body, Mapping) else None
    found = (inner if isinstance(inner, Mapping) else body).get("name") if isinstance(body, Mapping) else None
    return str(found or section.path)


def _change(before: str, after: str, offset: int) -> str:
    return f"{_cut(before)} became {_cut(after)} (character {offset})"


def _cut(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
