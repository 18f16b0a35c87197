"""Profile rows from TOML: read, checked value by value, and said exactly what is wrong with one that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from cacheprefix.errors import ProfileError
from cacheprefix.profiles.profile import (
    Confidence,
    Control,
    Evidence,
    MarkerForm,
    Match,
    Profile,
    Readable,
    Restriction,
    Slots,
    Ttl,
)
from cacheprefix.prompt import Api, SettingScope

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable


_PLACEMENTS: tuple[str, ...] = get_args(SettingScope)
CONFIDENCES: tuple[str, ...] = get_args(Confidence)
_APIS: tuple[str, ...] = get_args(Api)
_ENUMS: dict[str, tuple[str, ...]] = {
    "control": get_args(Control),
    "match": get_args(Match),
    "implicit_reads": ("breakpoint", "prefix"),
    "found_by": ("model", "provider", "name"),
    "ttl_from": ("start", "end"),
    "readable": get_args(Readable),
    "markers": get_args(MarkerForm),
    "tool_choice_safe": get_args(Restriction),
    "scope": ("workspace", "organisation", "account", "server", "slot"),
}
_INTS = {"min_tokens": 0, "block_tokens": 1, "max_breakpoints": 0, "lookback": 0, "read_candidates": 1,
         "rate_per_key": 1}  # fmt: skip
_FLAGS = frozenset(spec.name for spec in fields(Profile) if spec.type == "bool")
_TEXTS = frozenset({"provider", "routing_key", "note"})
_SLOTS = tuple(spec.name for spec in fields(Slots))
_OPTIONAL = frozenset(spec.name for spec in fields(Profile) if str(spec.type).endswith("| None"))


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a row in its file, for messages."""

    file: str
    row: str

    def error(self, key: str, problem: str, fix: str) -> ProfileError:
        """The error that names file, row and key, says what is wrong, and how to mend it."""
        return ProfileError(f"{self.file}: {self.row}, key {key!r}: {problem}; {fix}")


def value_of(key: str, value: object, where: Where) -> Any:
    """One value of a row as the profile has it, or an error that names the key."""
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
    """A value that has to be text."""
    if not isinstance(value, str):
        raise where.error(key, f"is {shown(value)}", "write text")
    return value


def _enum(key: str, value: object, where: Where) -> str:
    if value not in _ENUMS[key]:
        raise where.error(key, f"is {shown(value)}", f"use one of: {', '.join(_ENUMS[key])}")
    return str(value)


def names_of(key: str, value: object, where: Where) -> tuple[str, ...]:
    """A value that has to be a list of names, none of them empty."""
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
    """A lifetime of a TOML table; ``key`` and ``where`` say in errors which."""
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
    """How an engine's slots work, of a TOML table; what it leaves out is as in ``Slots``."""
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
    """A value as an error shows it: at most 60 characters."""
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


# What a model row may not change: these say which row it is.
_IDENTITY = frozenset({"name", "provider", "apis", "found_by", "models", "source", "checked_on", "confidence",
                       "evidence", "note"})  # fmt: skip
VALUE_FIELDS = tuple(f.name for f in fields(Profile) if f.name not in _IDENTITY)
"""Names of the fields that state a cache rule."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs from its row for some models."""

    models: tuple[str, ...]
    values: Mapping[str, Any] = field(hash=False)
    evidence: Evidence

    def apply(self, profile: Profile) -> Profile:
        """``profile`` with this variant's values and their evidence."""
        evidence = {**profile.evidence, **dict.fromkeys(self.values, self.evidence)}
        return replace(profile, **self.values, evidence=evidence)


@dataclass(frozen=True, slots=True)
class Row:
    """A profile and what differs for single models; earlier variants win over later ones of equal fit."""

    profile: Profile
    variants: tuple[Variant, ...] = ()


def load_rows(path: Path, known: Mapping[str, Row]) -> tuple[Row, ...]:
    """The rows of a TOML file, in its order.

    A row named like one in ``known`` changes that row, its model rows included; ``like = "NAME"`` makes
    a new row from an existing one. Raises ProfileError naming file, row, key and fix.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: is not TOML ({error}); correct the line it names") from error
    return parse_rows(data, str(path), known)


def parse_rows(data: Mapping[str, Any], file: str, known: Mapping[str, Row]) -> tuple[Row, ...]:
    """The rows of an already parsed file; see ``load_rows``."""
    top = Where(file, "top level")
    for key in data:
        if key not in {"version", "source", "profile"}:
            raise top.error(key, "is not known", "use [source.NAME] and [[profile]] tables")
    if data.get("version", 1) != 1:
        raise top.error("version", f"is {data['version']!r}", "this release reads version = 1")
    sources = {
        name: _evidence(raw, Where(file, f"source {name!r}"), {})
        for name, raw in _tables(data, "source", top, dict).items()
    }
    rows = dict(known)
    names: dict[str, None] = {}
    for index, raw in enumerate(_tables(data, "profile", top, list)):
        row = _row(raw, Where(file, f"profile {_label(raw, index)}"), sources, rows)
        rows[row.profile.name] = row
        names[row.profile.name] = None
    return tuple(rows[name] for name in names)


def _label(raw: object, index: int) -> str:
    name = raw.get("name") if isinstance(raw, dict) else None
    return repr(name) if isinstance(name, str) else f"number {index + 1}"


def _tables(data: Mapping[str, Any], key: str, where: Where, kind: type) -> Any:
    found = data.get(key, kind())
    if not isinstance(found, kind):
        wanted = "[[profile]] tables" if kind is list else "[source.NAME] tables"
        raise where.error(key, f"is {shown(found)}", f"write it as {wanted}")
    return found


def _row(raw: object, where: Where, sources: Mapping[str, Evidence], known: Mapping[str, Row]) -> Row:
    """One ``[[profile]]`` table as a row; with ``like`` it states only what is otherwise than in that row."""
    if not isinstance(raw, dict):
        raise where.error("profile", f"is {shown(raw)}", "write each row as a [[profile]] table")
    raw = dict(raw)
    name = raw.pop("name", None)
    if not isinstance(name, str) or not name:
        raise where.error("name", "is missing or not text", 'give the row a name, such as name = "my-proxy"')
    like = raw.pop("like", name if name in known else None)
    if like is not None and (not isinstance(like, str) or like not in known):
        raise where.error("like", f"names no row ({like!r})", f"use one of: {', '.join(sorted(known))}")
    parent = known[like] if like is not None else None
    model_rows = raw.pop("model", [])
    evidence_rows = raw.pop("evidence", [])
    own = _evidence(raw, where, sources, pop=True, default=None if parent is None else parent.profile)
    values = {key: value_of(key, value, where) for key, value in raw.items()}
    evidence = {**_inherited(parent, values, own), **_single(evidence_rows, where, sources, own)}
    given: dict[str, Any] = dict(values)
    given.update(name=name, source=own.source, checked_on=own.checked_on, confidence=own.confidence)
    given["evidence"] = evidence
    if parent is None:
        profile = _complete(given, where)
    else:
        if "settings" in values:
            given["settings"] = {**parent.profile.settings, **raw["settings"]}
        profile = replace(parent.profile, **given)
    _consistent(profile, where)
    variants = tuple(_variants(model_rows, where, sources, own))
    if parent is not None:
        variants += _surviving(parent.variants, values)
    for variant in variants:
        _consistent(variant.apply(profile), where)
    return Row(profile, variants)


def _inherited(parent: Row | None, values: Mapping[str, Any], own: Evidence) -> dict[str, Evidence]:
    """Evidence of values the row does not state: what they came with, or that nobody says otherwise."""
    if parent is None:
        trust: Confidence = "low" if own.confidence == "low" else "medium"
        neutral = Evidence(own.source, own.checked_on, trust, "nothing else is said there: the neutral value")
        return {name: neutral for name in VALUE_FIELDS if name not in values}
    kept = {name: parent.profile.evidence_for(name) for name in VALUE_FIELDS if name not in values}
    return {name: evidence for name, evidence in kept.items() if evidence != own}


def _surviving(variants: Iterable[Variant], values: Mapping[str, Any]) -> tuple[Variant, ...]:
    """The parent's variants without what the row now states for all its models."""
    cut = (
        replace(variant, values={k: v for k, v in variant.values.items() if k not in values}) for variant in variants
    )
    return tuple(variant for variant in cut if variant.values)


def _complete(given: Mapping[str, Any], where: Where) -> Profile:
    for spec in fields(Profile):
        if spec.name not in given and spec.default is MISSING and spec.default_factory is MISSING:
            raise where.error(spec.name, "is missing", 'state it, or take it from another row with like = "NAME"')
    return Profile(**given)


def _consistent(profile: Profile, where: Where) -> None:
    """Refuses rows whose values contradict each other, which would only show much later as wrong advice."""
    if not profile.ttls:
        raise where.error("ttls", "is empty", "state at least one lifetime; its write price is needed")
    if profile.match == "breakpoint" and not profile.max_breakpoints:
        raise where.error("max_breakpoints", "is 0 though reads happen at breakpoints", "state the limit, e.g. 4")
    if profile.markers in ("anthropic", "bedrock", "openai") and not profile.max_breakpoints:
        raise where.error("markers", "are set though no breakpoint is allowed", "state max_breakpoints")


def _variants(raws: object, where: Where, sources: Mapping[str, Evidence], own: Evidence) -> Iterable[Variant]:
    """What differs for some models of a row, of its ``[[profile.model]]`` tables."""
    if not isinstance(raws, list):
        raise where.error("model", f"is {shown(raws)}", "write [[profile.model]] tables")
    for index, given in enumerate(raws):
        place = Where(where.file, f"{where.row}, model row {index + 1}")
        if not isinstance(given, dict):
            raise place.error("model", f"is {shown(given)}", "write a [[profile.model]] table")
        raw = dict(given)
        models = names_of("models", raw.pop("models", None), place)
        note = text_of("note", raw.pop("note", ""), place)
        evidence = _evidence(raw, place, sources, pop=True, default=own, row=own)
        evidence = replace(evidence, note=note or evidence.note)
        for key in raw:
            if key not in VALUE_FIELDS:
                raise place.error(key, "cannot differ by model", f"use one of: {', '.join(VALUE_FIELDS)}")
        values = {key: value_of(key, value, place) for key, value in raw.items()}
        yield Variant(models, values, evidence)


def _single(raws: object, where: Where, sources: Mapping[str, Evidence], own: Evidence) -> dict[str, Evidence]:
    """The sources of single fields, by their names, of a row's ``[[profile.evidence]]`` tables."""
    if not isinstance(raws, list):
        raise where.error("evidence", f"is {shown(raws)}", "write [[profile.evidence]] tables")
    found: dict[str, Evidence] = {}
    for index, raw in enumerate(raws):
        place = Where(where.file, f"{where.row}, evidence {index + 1}")
        if not isinstance(raw, dict):
            raise place.error("evidence", f"is {shown(raw)}", "write a [[profile.evidence]] table")
        names = names_of("fields", raw.get("fields"), place)
        for name in names:
            if name not in VALUE_FIELDS:
                raise place.error("fields", f"names no rule ({name!r})", f"use: {', '.join(VALUE_FIELDS)}")
        evidence = _evidence({k: v for k, v in raw.items() if k != "fields"}, place, sources, row=own)
        found.update(dict.fromkeys(names, evidence))
    return found


def _evidence(
    raw: object,
    where: Where,
    sources: Mapping[str, Evidence],
    *,
    pop: bool = False,
    default: Evidence | Profile | None = None,
    row: Evidence | None = None,
) -> Evidence:
    """``source`` is a name from the file's [source.NAME] tables, or text with a date and confidence.

    ``default`` stands in for all three; ``row`` only for the date and confidence of a text.
    """
    if not isinstance(raw, dict):
        raise where.error("source", f"is {shown(raw)}", "write a table with source, checked_on, confidence")
    taken = raw if pop else dict(raw)
    text, day, trust = (taken.pop(key, None) for key in ("source", "checked_on", "confidence"))
    note = "" if pop else taken.pop("note", "")
    if taken and not pop:
        raise where.error(next(iter(taken)), "is not known", "use source, checked_on, confidence, note")
    base = sources.get(text) if isinstance(text, str) else None
    if base is None and default is not None and text is None:
        base = Evidence(default.source, default.checked_on, default.confidence)
    if text is None and base is None:
        raise where.error("source", "is missing", "say where the rule comes from (an address or a name)")
    known = base or row
    day = (known.checked_on if known else None) if day is None else day
    trust = (known.confidence if known else None) if trust is None else trust
    if text is not None and (not isinstance(text, str) or not text.strip()):
        raise where.error("source", f"is {shown(text)}", "say in words where the rule comes from")
    if isinstance(day, datetime) or not isinstance(day, date):
        raise where.error("checked_on", f"is {shown(day)}", "write the day, as checked_on = 2026-11-21")
    if trust not in CONFIDENCES:
        raise where.error("confidence", f"is {shown(trust)}", f"use one of: {', '.join(CONFIDENCES)}")
    if not isinstance(note, str):
        raise where.error("note", f"is {shown(note)}", "write text")
    return Evidence(base.source if base else str(text), day, trust, note or (base.note if base else ""))
