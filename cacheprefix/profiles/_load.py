"""Reads profile rows from TOML and says exactly what is wrong with a row that cannot be used."""

from __future__ import annotations

import sys
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheprefix.errors import ProfileError
from cacheprefix.profiles._fields import CONFIDENCES, Where, names_of, shown, text_of, value_of
from cacheprefix.profiles._profile import Confidence, Evidence, Profile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
