"""The ledger: an append-only record of decisions, addressed by content.

It holds decisions, their parameters and the algorithm's version, and no texts but those that were
written for it (summaries) and what defines tools that a run brought. Every entry is a set of the
values that were ever recorded for its address; the smallest wins. Union of sets makes ``merge``
associative, commutative and idempotent, so parallel branches may merge in any order and any number
of times.

A ledger is an immutable value: a fork has the very same, and a call that fails leaves none of its decisions.
Entries stand in layers that halve in size, so a new entry costs O(log n) and shares the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cacheprefix.errors import StateError, check_version

VERSION: Final = 1
SECTIONS: Final = (
    "results", "turns", "actions", "inserts", "blocks", "places", "lanes", "kits", "unions", "shares", "rules",
    "epochs", "heard", "tools",
)  # fmt: skip
"""The kinds of decisions. The grammar of their addresses and values, where ``digest`` is that of a message or of a
result's text, and braces stand for what is optional::

    address  = digest{#n}          the message or result, or the (n+1)-th one of the same content in its history
    detail   = address/c<k>        the k-th call of the message
             | address/t           its thinking
             | address/<digest>    one more run, or block, that begins with the message
    text     = address{~n}         a text put before the message, or one more there; ``address~zones`` for the zones
             | text/i              (in ``actions``) that it was taken out again
    span     = address:address:digest    from one message to another, with the digest of all addresses between

    results          k             kept as it is
                     c:<rule>:<chars>:<ref>    cut by a rule, by its key in ``rules``; ref reads the full text
                     =<json>       replaced by this text
    turns            k             no result is cut further
                     <json>        a list with a further cut for each result of the turn, empty for none
    actions          x:<tokens>:<ref>    the result was cleared; ref reads it
                     =<json>       the result was replaced by this text
                     c             the call was dropped
                     t, b          the thinking was dropped: before the current step only, or there too
                     r:<address>:<span>    all messages up to that address were removed, where the span is found
                     d:<span>      the text was taken out, where the span is found
    inserts          <json>        [role, text, span, ...]: applies where all the spans are found

What stands behind ``#``, ``/`` or ``~`` is a detail (``_DETAIL``): without it an address is a digest, by which a
decision is dropped once its content is gone.

``results``: how a result was first cut, or that it was kept, by its digest. ``turns``: how a turn's limit was shared
out, by the digest of its ordered results. ``actions``: what compactions did, by address. ``inserts``: texts put into
the history. ``blocks``: durable context joined to one text a key, with its sources' addresses. ``places``: where long
role texts stood, by the text's digest, the number of messages before it and the last one's digest. ``lanes``:
whether a role's requests carry the tools of all, by the digest of its name and model. ``kits``: that its requests
carried tools of its own, by the digest of those and the model and that of the role. ``unions``: names of the tools
of all, line by line, where more came while the conversation was under way, by their digest. ``shares``: whose requests
have become forks, by the digest of model and prefix, or of role and model. ``rules``: parameters of decisions, by their
own digest. ``epochs``: compactions, by their digest. ``heard``: with which answer schemas roles ask, by the digests of
both, and which share with nobody. ``tools``: what defines a tool of these that a run brought, as JSON, by its name:
another process may not know it."""

_ON_CONTENT: Final = frozenset({"results", "turns", "actions", "inserts", "blocks"})
"""Sections whose decisions are on content of the history; forgotten once that content is gone from it."""

_ON_LAYOUT: Final = frozenset({"lanes", "kits", "unions", "shares", "heard", "tools"})
"""Sections whose decisions are on the layout of requests and not on messages."""

_DETAIL = re.compile("[#/~]")
"""What separates the digest of an address from the rest."""
_RULE = re.compile(r"c:([\w-]+):")
"""Finds the key of the rule by which a result was cut."""

Values = tuple[str, ...]
Key = tuple[str, str]
_Layer = Mapping[Key, Values]


class Ledger:
    """Decisions of one conversation: a short string for each section and address; see ``SECTIONS``."""

    __slots__ = ("_layers",)

    def __init__(self, layers: tuple[_Layer, ...] = ()) -> None:
        self._layers: Final = layers

    # ------------------------------------------------------------------ reading

    def get(self, section: str, key: str) -> str | None:
        """The recorded decision; of conflicting ones the smallest string, so that all processes choose alike."""
        values = self._values((section, key))
        return values[0] if values else None

    def section(self, section: str) -> dict[str, str]:
        """All decisions of one section by address."""
        return {key: values[0] for (name, key), values in self._merged().items() if name == section}

    def keys(self, section: str) -> list[str]:
        """All addresses of a section, sorted."""
        return sorted(key for name, key in self._merged() if name == section)

    @property
    def alters(self) -> bool:
        """Whether any decision changes the content of messages; decisions on the layout do not."""
        return any(section not in ("places", *_ON_LAYOUT) for section, _ in self._merged())

    @property
    def epoch(self) -> int:
        """How many times bytes that were already sent may have changed: by compactions, and by conflicts in merges."""
        epochs = 0
        for (section, _), values in self._merged().items():
            epochs += section == "epochs"
            epochs += section != "rules" and len(values) - 1
        return epochs

    def __len__(self) -> int:
        return len(self._merged())

    def __bool__(self) -> bool:
        return bool(self._layers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._merged() == other._merged()

    def __hash__(self) -> int:
        return hash(frozenset(self._merged().items()))

    def __repr__(self) -> str:
        return f"Ledger({len(self)} entries, epoch {self.epoch})"

    # ------------------------------------------------------------------ growing

    def record(self, entries: Iterable[tuple[str, str, str]]) -> Ledger:
        """The ledger with entries (section, address, decision) added; an address that has a decision keeps it."""
        fresh: dict[Key, Values] = {}
        for section, key, value in entries:
            where = (section, key)
            if where not in fresh and not self._values(where):
                fresh[where] = (value,)
        return Ledger(_grown(self._layers, fresh)) if fresh else self

    def merge(self, other: Ledger) -> Ledger:
        """Both ledgers' decisions. Associative, commutative, idempotent."""
        if other is self or not other._layers:
            return self
        if not self._layers:
            return other
        mine, theirs = self._merged(), other._merged()
        if len(theirs) > len(mine):
            mine, theirs = theirs, mine
            base = other
        else:
            base = self
        fresh = {
            key: values if key not in mine else tuple(sorted({*mine[key], *values}))
            for key, values in theirs.items()
            if mine.get(key) != values
        }
        return Ledger(_grown(base._layers, {at: values for at, values in fresh.items() if mine.get(at) != values}))

    def since(self, older: Ledger) -> Ledger:
        """Only what ``older`` does not hold: ``older.merge(self.since(older)) == older.merge(self)``."""
        if older is self:
            return Ledger()
        known = older._merged()
        fresh = {key: values for key, values in self._merged().items() if known.get(key) != values}
        return Ledger(_grown((), fresh))

    def lost_from(self, older: Ledger) -> list[Key]:
        """Section and address of each entry of ``older`` that is missing here, or lacks a value here."""
        if older is self:
            return []
        return sorted(at for at, values in older._merged().items() if not {*values} <= {*self._values(at)})

    def without(self, keys: Iterable[tuple[str, str]]) -> Ledger:
        """The ledger without the entries of these (section, address) pairs."""
        gone = set(keys)
        return Ledger(_grown((), {at: values for at, values in self._merged().items() if at not in gone}))

    def standing(self, live: Iterable[str]) -> Ledger:
        """The ledger without decisions on content that is not in ``live`` (digests); all other entries stay."""
        return self.without(at for at in self.prune(live).lost_from(self) if at[0] in (*_ON_CONTENT, "rules"))

    def prune(self, live: Iterable[str]) -> Ledger:
        """Forget decisions on content that is gone.

        ``live`` holds the digests still in the history (of results, turns and messages). Rules that
        no decision names go too; epochs stay, they are history.
        """
        alive = set(live)
        merged = self._merged()

        def stands(section: str, key: str, values: Values) -> bool:
            """Whether a decision's content is still there; one on several messages needs the first and the last."""
            if section in ("epochs", "rules", *_ON_LAYOUT):
                return True
            ends = [_content(end) for value in values for end in _ends(section, value)]
            return _content(key) in alive and alive.issuperset(ends)

        kept = {at: values for at, values in merged.items() if stands(*at, values)}
        named = {
            name
            for (section, _), values in kept.items()
            if section in ("results", "turns")
            for value in values
            for name in _RULE.findall(value)
        }
        used = {at: values for at, values in kept.items() if at[0] != "rules" or at[1] in named}
        return Ledger(_grown((), used))

    # ------------------------------------------------------------------ JSON

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and strings, so that a checkpoint of any framework can hold it."""
        out: dict[str, Any] = {"version": VERSION}
        for (section, key), values in sorted(self._merged().items()):
            out.setdefault(section, {})[key] = values[0] if len(values) == 1 else list(values)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Ledger:
        """Read what ``to_json`` wrote, also by an older version; raises ``StateError`` for anything else."""
        if not data:
            return cls()
        given: object = data
        if not isinstance(given, Mapping):
            raise StateError(f"ledger: expected an object, found {type(given).__name__}")
        data = _migrate(data)
        entries: dict[Key, Values] = {}
        for section in SECTIONS:
            part = data.get(section, {})
            if not isinstance(part, Mapping):
                raise StateError(f"ledger.{section}: expected an object, found {type(part).__name__}")
            for key, value in part.items():
                values = (value,) if isinstance(value, str) else value
                if not isinstance(key, str) or not isinstance(values, (list, tuple)) or not values:
                    raise StateError(f"ledger.{section}: {key!r} has no decision")
                if not all(isinstance(item, str) for item in values):
                    raise StateError(f"ledger.{section}[{key!r}]: decisions are strings")
                entries[section, key] = tuple(sorted(set(values)))
        return cls(_grown((), entries))

    def dumps(self) -> str:
        """Compact JSON text with sorted keys; lone surrogates are escaped."""
        return json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> Ledger:
        """Read ``dumps``' text; raises ``StateError`` when it is none."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise StateError(f"ledger: not JSON ({error}); load what Ledger.dumps wrote") from None
        if not isinstance(data, Mapping):
            raise StateError(f"ledger: expected an object, found {type(data).__name__}")
        return cls.from_json(data)

    # ------------------------------------------------------------------ layers

    def _values(self, key: Key) -> Values:
        for layer in reversed(self._layers):
            found = layer.get(key)
            if found is not None:
                return found
        return ()

    def _merged(self) -> Mapping[Key, Values]:
        if len(self._layers) == 1:
            return self._layers[0]
        merged: dict[Key, Values] = {}
        for layer in self._layers:
            merged.update(layer)
        return merged

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        for (section, key), values in sorted(self._merged().items()):
            yield section, key, values[0]


def _grown(layers: tuple[_Layer, ...], fresh: dict[Key, Values]) -> tuple[_Layer, ...]:
    """The layers with ``fresh`` on top, merged with those below it that are at most twice as large."""
    if not fresh:
        return layers
    below = list(layers)
    top: _Layer = fresh
    while below and len(below[-1]) <= 2 * len(top):
        top = {**below.pop(), **top}
    return (*below, top)


def _content(address: str) -> str:
    """The digest of an address, without occurrence and part."""
    return _DETAIL.split(address, maxsplit=1)[0]


def _ends(section: str, value: str) -> list[str]:
    """Further addresses in a decision's value: the last message of a run, and both ends of a compaction."""
    if section == "inserts":
        return [end for span in json.loads(value)[2:] for end in span.split(":")[:2]]
    return value.split(":")[1:4] if section == "actions" and value.startswith("r:") else []


_GONE: Final = "gone"
"""Key of the JSON form, beside the sections: dropped addresses by section, each with the number of its drop."""

_DROPS = 256
"""About how many dropped addresses a saved value names at most; those of one drop are never split."""

_Drops = dict[Key, int]


def merge_json(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any]:
    """``merge`` on the JSON form, for use as a reducer of a framework's state channel; drops of both sides apply.

    A decision made after the last drop of its address stays. The value names the dropped addresses, so that a graph
    around this one, whose own value still has them, drops them too. Associative, commutative, idempotent.
    """
    mine, theirs = _drops(old), _drops(new)
    known = Ledger.from_json(old).without(at for at, number in theirs.items() if number > mine.get(at, 0))
    fresh = Ledger.from_json(new).without(at for at, number in mine.items() if number > theirs.get(at, 0))
    drops = {at: max(mine.get(at, 0), theirs.get(at, 0)) for at in (*mine, *theirs)}
    return _with_drops(known.merge(fresh).to_json(), _newest(drops))


def update_json(before: Mapping[str, Any] | None, after: Ledger) -> dict[str, Any]:
    """The change that ``merge_json`` needs to turn the saved value ``before`` into ``after``; empty without any."""
    held, known = Ledger.from_json(before), _drops(before)
    fresh = after.since(held)
    number = 1 + max(known.values(), default=0)
    drops = dict.fromkeys(after.lost_from(held), number)
    if not len(fresh) and not drops:
        return {}
    # Dropped and decided on again: naming the drop's number here says that the decision is newer than that drop.
    again = {(section, key): known[section, key] for section, key, _ in fresh if (section, key) in known}
    return _with_drops(fresh.to_json(), {**again, **drops})


def _drops(value: Mapping[str, Any] | None) -> _Drops:
    """When entries were forgotten, by section and key, of a saved ledger; what is malformed is left out."""
    found = (value or {}).get(_GONE)
    if not isinstance(found, Mapping):
        return {}
    return {
        (section, key): number
        for section, keys in found.items()
        if isinstance(keys, Mapping)
        for key, number in keys.items()
        if isinstance(number, int)
    }


def _newest(drops: _Drops) -> _Drops:
    """The latest drops, about ``_DROPS`` of them: older ones have reached every saved value by then."""
    ranked = sorted(drops.values(), reverse=True)
    least = ranked[_DROPS - 1] if len(ranked) > _DROPS else 0
    return {at: number for at, number in drops.items() if number >= least}


def _with_drops(value: dict[str, Any], drops: _Drops) -> dict[str, Any]:
    if not drops:
        return value
    gone: dict[str, dict[str, int]] = {}
    for (section, key), number in sorted(drops.items()):
        gone.setdefault(section, {})[key] = number
    return {**value, _GONE: gone}


def _migrate(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A saved ledger in the form of this version; raises ``StateError`` for a later one."""
    version = data.get("version")
    if version == 0:
        # Version 0 is the flat table of the prototypes: decisions on results and nothing else.
        return {"version": VERSION, "results": data.get("r", {}), "rules": data.get("rules", {})}
    check_version(version, VERSION)
    return data
