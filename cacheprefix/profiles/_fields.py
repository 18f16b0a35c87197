"""Checks the single values of a profile row; every message names file, row, key and fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from cacheprefix.errors import ProfileError
from cacheprefix.profiles._profile import Slots, Ttl

_PLACEMENTS = ("lane", "tools", "system", "messages", "none")
CONFIDENCES = ("high", "medium", "low", "contested")
_APIS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")
_ENUMS: dict[str, tuple[str, ...]] = {
    "control": ("automatic", "explicit", "both", "named", "none"),
    "match": ("block", "breakpoint", "unit"),
    "implicit_reads": ("breakpoint", "prefix"),
    "found_by": ("model", "provider", "name"),
    "ttl_from": ("start", "end"),
    "readable": ("start", "first_token", "end"),
    "markers": ("anthropic", "bedrock", "openai", "gemini"),
    "tool_choice_safe": ("keep", "none", "allowed_tools"),
    "scope": ("workspace", "organisation", "account", "server", "slot"),
}
_INTS = {"min_tokens": 0, "block_tokens": 1, "max_breakpoints": 0, "lookback": 0, "read_candidates": 1,
         "rate_per_key": 1}  # fmt: skip
_FLAGS = frozenset({"collapse_runs", "implicit_breakpoint", "automatic_breakpoint",
                    "cold_parallel_shares", "input_includes_cached", "mid_system", "prefill", "thinking_bound",
                    "recomputes_last"})  # fmt: skip
_TEXTS = frozenset({"provider", "routing_key", "note"})
_SLOTS = tuple(spec.name for spec in fields(Slots))
_OPTIONAL = frozenset({"lookback", "read_candidates", "routing_key", "rate_per_key", "markers", "slots"})


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a row in its file, for messages."""

    file: str
    row: str

    def error(self, key: str, problem: str, fix: str) -> ProfileError:
        return ProfileError(f"{self.file}: {self.row}, key {key!r}: {problem}; {fix}")


def value_of(key: str, value: object, where: Where) -> Any:
    if key in _OPTIONAL and value == "none":
        return None
    check = _CHECKS.get(key)
    if check is None:
        raise where.error(key, "is not known", f"use one of: {', '.join(sorted(_CHECKS))}")
    return check(key, value, where)


def _int(key: str, value: object, where: Where) -> int:
    least = _INTS[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise where.error(key, f"is {shown(value)}", f"write a whole number of at least {least}")
    return value


def _number(key: str, value: object, where: Where) -> float:
    # A comparison with NaN is false, so the condition says what is wanted rather than what is not.
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise where.error(key, f"is {shown(value)}", "write a number of at least 0")
    return float(value)


def _flag(key: str, value: object, where: Where) -> bool:
    if not isinstance(value, bool):
        raise where.error(key, f"is {shown(value)}", "write true or false")
    return value


def text_of(key: str, value: object, where: Where) -> str:
    if not isinstance(value, str):
        raise where.error(key, f"is {shown(value)}", "write text")
    return value


def _enum(key: str, value: object, where: Where) -> str:
    if value not in _ENUMS[key]:
        raise where.error(key, f"is {shown(value)}", f"use one of: {', '.join(_ENUMS[key])}")
    return str(value)


def names_of(key: str, value: object, where: Where) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise where.error(key, f"is {shown(value)}", f'write a list of names, as {key} = ["gpt-9*"]')
    return tuple(value)


def _apis(key: str, value: object, where: Where) -> tuple[str, ...]:
    names = names_of(key, value, where)
    for name in names:
        if name not in _APIS:
            raise where.error(key, f"has {name!r}", f"use: {', '.join(_APIS)}")
    return names


def _settings(key: str, value: object, where: Where) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise where.error(key, f"is {shown(value)}", f'write a table, as {key} = {{ tool_choice = "messages" }}')
    for name, placement in value.items():
        if placement not in _PLACEMENTS:
            raise where.error(f"{key}.{name}", f"is {shown(placement)}", f"use: {', '.join(_PLACEMENTS)}")
    return {"*": "lane", **value}


def _paths(key: str, value: object, where: Where) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(path, str) for path in value.values()):
        raise where.error(key, f"is {shown(value)}", f'write a table of paths, as {key} = {{ read = "..." }}')
    return dict(value)


def _ttls(key: str, value: object, where: Where) -> tuple[Ttl, ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise where.error(key, f"is {shown(value)}", 'write [{ name = "5m", seconds = 300, write = 1.25 }]')
    return tuple(_ttl(f"{key}[{index}]", item, where) for index, item in enumerate(value))


def _ttl(key: str, raw: Mapping[str, Any], where: Where) -> Ttl:
    known = {spec.name for spec in fields(Ttl)}
    for name in raw:
        if name not in known:
            raise where.error(f"{key}.{name}", "is not known", f"use: {', '.join(sorted(known))}")
    for name in ("name", "write"):
        if name not in raw:
            raise where.error(f"{key}.{name}", "is missing", "a lifetime needs a name and a write price")
    seconds = {name: _number(f"{key}.{name}", raw[name], where) for name in ("seconds", "max_seconds") if name in raw}
    return Ttl(
        name=text_of(f"{key}.name", raw["name"], where),
        write=_number(f"{key}.write", raw["write"], where),
        seconds=seconds.get("seconds"),
        refreshed_by_read=_flag(f"{key}.refreshed_by_read", raw.get("refreshed_by_read", True), where),
        max_seconds=seconds.get("max_seconds"),
    )


def _slots(key: str, value: object, where: Where) -> Slots:
    if not isinstance(value, dict):
        raise where.error(key, f"is {shown(value)}", f"write a table, as {key} = {{ count = 1 }}")
    for name in value:
        if name not in _SLOTS:
            raise where.error(f"{key}.{name}", "is not known", f"use: {', '.join(_SLOTS)}")
    found = {name: value.get(name, getattr(Slots(), name)) for name in _SLOTS}
    for name, least in (("count", 1), ("stored_tokens", 0)):
        number = found[name]
        if number == "none" and name == "stored_tokens":
            found[name] = None
        elif isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise where.error(f"{key}.{name}", f"is {shown(number)}", f"write a whole number of at least {least}")
    return Slots(
        count=found["count"],
        similarity=_number(f"{key}.similarity", found["similarity"], where),
        stored_tokens=found["stored_tokens"],
        unified=_flag(f"{key}.unified", found["unified"], where),
    )


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_CHECKS: dict[str, Callable[[str, object, Where], Any]] = {
    **dict.fromkeys(_ENUMS, _enum),
    **dict.fromkeys(_INTS, _int),
    **dict.fromkeys(_FLAGS, _flag),
    **dict.fromkeys(_TEXTS, text_of),
    "models": names_of,
    "apis": _apis,
    "read": _number,
    "slots": _slots,
    "ttls": _ttls,
    "settings": _settings,
    "usage_fields": _paths,
}
