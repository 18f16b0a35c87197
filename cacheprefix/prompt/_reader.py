"""What all codecs share: reading a body into units, each unit into sections, with memory of units seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cacheprefix.errors import BodyError
from cacheprefix.prompt._json import dumps, dumps_sorted, loads
from cacheprefix.prompt._memo import Content, Memo
from cacheprefix.prompt._runs import PLAIN, Row
from cacheprefix.prompt._sections import ABOUT, Envelope, Kind, Marker, Prompt, Section, Tier, section

MARKER_FIELDS = ("cache_control", "prompt_cache_breakpoint")

EMPTY = b"null"
"""Data of the one section that stands for a message without content; no block can be this."""

RESERVED = frozenset({"+", "item", "instructions"})
"""Heads with a meaning of their own, which no role may be mistaken for."""

Split = Callable[["Reader", Tier, str, Any], "list[Section]"]


class Reader:
    """Reads the units (a tool, a system block, a message) of one body."""

    def __init__(
        self,
        api: str,
        model: str,
        count: Callable[[str, str], int],
        memo: Memo | None,
        same: Sequence[Section] = (),
        envelope: Envelope = ABOUT,
    ) -> None:
        self.api = api
        self.model = model
        self._count = count
        self._memo = memo
        self._envelope = envelope
        self._row: Row | None = None
        self._same = {(one.tier, one.kind, one.head, one.data): one for one in same}
        """Sections whose digest and tokens are known: those of a unit that is read again for its markers."""

    def count(self, text: str) -> int:
        """Tokens of a text for this body's model."""
        return self._count(text, self.model)

    def unit(self, tier: Tier, path: str, value: Any, split: Split) -> Sequence[Section]:
        """The sections of one unit, from memory when the same bytes stood at the same place before."""
        if self._memo is None:
            return split(self, tier, path, value)
        key = (self.api + tier, self.model, path, _content(value, path))
        known = self._memo.get(key)
        if known is None:
            known = tuple(split(self, tier, path, value))
            self._memo.put(key, known)
        return known

    def row(self, messages: Sequence[Any], plain: frozenset[str] = PLAIN, kind: str = "") -> Row:
        """The messages of a body, as far as an earlier one began with them; ``add`` the rest.

        ``plain`` are the fields whose order in a message of texts does not matter to how it is read; messages of
        another ``kind`` are read in another way.
        """
        key = (self.api + kind, self.model)
        self._row = Row(key, messages, plain) if self._memo is None else self._memo.runs.row(key, messages, plain)
        return self._row

    def keep(self, prompt: Prompt) -> None:
        """Remember what was read, for a body that begins like it."""
        if self._memo is not None and self._row is not None:
            self._memo.runs.keep(self._row, prompt, len(prompt.sections) - len(self._row.sections))

    def make(
        self, tier: Tier, path: str, kind: Kind, head: str, data: bytes, marker: Marker | None = None
    ) -> Section:
        """One section, counted by this reader."""
        known = self._same.get((tier, kind, head, data)) if self._same else None
        if known is not None:
            return Section(tier, path, kind, head, data, known.digest, known.tokens, marker)
        return section(tier, path, kind, head, data, self.count, marker, self._envelope)

    def text(self, tier: Tier, path: str, head: str, text: str, marker: Marker | None = None) -> Section:
        """A text section."""
        return self.make(tier, path, "text", head, text.encode("utf-8", "surrogatepass"), marker)

    def json(
        self, tier: Tier, path: str, kind: Kind, head: str, value: Any, marker: Marker | None = None
    ) -> Section:
        """A section whose data is the value as JSON, key order kept."""
        return self.make(tier, path, kind, head, dumps(value, path), marker)


def _content(value: Any, path: str) -> Content:
    """What tells whether a unit is the same: its fields where all are texts (Python keeps their hashes), else JSON."""
    if type(value) is dict and all(type(field) is str for field in value.values()):
        return tuple(value.items())
    return dumps(value, path)


def envelope(role: str, **fields: Any) -> str:
    """The head of a message: its role, and as JSON whatever else the envelope carries."""
    extra = {name: value for name, value in fields.items() if value is not None}
    plain = not extra and role not in RESERVED and not role.startswith("{")
    return role if plain else dumps({"role": role, **extra}, "role").decode()


def open_envelope(head: str) -> dict[str, Any]:
    """The message fields that ``envelope`` wrote."""
    if head.startswith("{"):
        opened: dict[str, Any] = loads(head)
        return opened
    return {"role": head}


def pop_marker(block: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], Marker | None]:
    """The block without its cache marker, and the marker; the very same block when it has none."""
    marker = None
    for name in MARKER_FIELDS:
        value = block.get(name)
        if name in block:
            block = {key: inner for key, inner in block.items() if key != name}
        if isinstance(value, Mapping):
            ttl = value.get("ttl")
            if ttl is not None and not isinstance(ttl, str):
                raise BodyError(f"{path}.{name}.ttl", f"expected a string, found {type(ttl).__name__}")
            marker = Marker(ttl)
        elif value is not None:
            raise BodyError(f"{path}.{name}", f"expected an object, found {type(value).__name__}")
    return block, marker


def mapping(value: Any, path: str) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else a ``BodyError`` at ``path``."""
    if not isinstance(value, Mapping):
        raise BodyError(path, f"expected an object, found {type(value).__name__}")
    return value


def items(value: Any, path: str) -> Sequence[Any]:
    """``value`` if it is a JSON array, else a ``BodyError`` at ``path``."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BodyError(path, f"expected a list, found {type(value).__name__}")
    return value


def string(value: Any, path: str) -> str:
    """``value`` if it is a string, else a ``BodyError`` at ``path``."""
    if not isinstance(value, str):
        raise BodyError(path, f"expected a string, found {type(value).__name__}")
    return value


def settings_of(
    body: Mapping[str, Any], content: frozenset[str], headers: Mapping[str, str] | None
) -> dict[str, str]:
    """Every field that is not content, as canonical JSON, and the headers as ``header:name``."""
    settings = {
        name: dumps_sorted(value, name)
        for name, value in body.items()
        if name not in content and value is not None
    }
    for name, value in (headers or {}).items():
        settings[f"header:{name.lower()}"] = dumps_sorted(value, f"header:{name}")
    return settings
