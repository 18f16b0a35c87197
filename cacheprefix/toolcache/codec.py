"""Encodes results as bytes and back, and adds the checksum and stamp of a store's entries.

Nothing from a store is ever unpickled, as whoever can write there could run code here. A result that JSON cannot hold
exactly is kept as an object in this process only.
"""

from __future__ import annotations

import copy
import math
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

_MAGIC = b"cpt1"
# Magic, checksum of all that follows it, seconds that the tool ran, length of the stamp.
_HEAD = struct.Struct(">4sIdH")
_CHECKED = 8

# Parts of an object that are measured at most for its size.
_MAX_PARTS = 100_000

_PLAIN = frozenset({str, int, bool, type(None)})


class NotKeptError(Exception):
    """A tool's answer is its caller's alone: nothing is kept of it, and the next identical call runs the tool."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A framework's form of answers to tool calls, where they are not what the tool itself returned."""

    keep: Callable[[Any], Any] | None = None
    """What is kept of an answer: text or plain data. Raises ``NotKeptError`` for an answer that is its caller's alone
    (an error put into words, more than a copy would hold)."""
    known: Callable[[Any], Any] = _same
    """The answer made of what was kept; for ``ToolCalls.arun`` it may be a coroutine function."""
    refused: Callable[[str], Any] = _same
    """The answer that tells the model of one repeat too many; likewise."""


class Codec(Protocol):
    """How results become bytes; for results that are neither text nor plain JSON."""

    def encode(self, result: Any) -> bytes | None:
        """Return bytes from which ``decode`` makes an equal result, or None when it cannot."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return a new result. Raising means that the bytes are damaged: the entry is dropped."""
        ...


class JsonCodec:
    """Text, bytes, and JSON values of exactly JSON's types; everything else is refused.

    A tuple, a dataclass or NaN would come back as something else than it was, so they are refused too.
    """

    def encode(self, result: Any) -> bytes | None:
        """See ``Codec.encode``."""
        if type(result) is str:
            try:
                return b"s" + result.encode()
            except UnicodeEncodeError:
                return None
        if type(result) is bytes:
            return b"b" + result
        try:
            data = orjson.dumps(result)
        except (TypeError, ValueError):
            return None
        # Only after dumping, which refuses the endless nesting of a value that holds itself.
        return b"j" + data if is_plain(result) else None

    def decode(self, data: bytes) -> Any:
        """See ``Codec.decode``."""
        kind = data[:1]
        if kind == b"s":
            return data[1:].decode()
        if kind == b"j":
            return orjson.loads(data[1:])
        if kind == b"b":
            return data[1:]
        raise ValueError("not written by this codec")


class Kept:
    """A result as it is kept: encoded bytes, or a private copy of the object."""

    __slots__ = ("_codec", "payload", "seconds", "thing")

    def __init__(self, codec: Codec, payload: bytes | None, thing: Any, seconds: float) -> None:
        self._codec = codec
        self.payload = payload
        self.thing = thing
        self.seconds = seconds

    def fresh(self) -> Any:
        """Return a new copy of the result, so that callers cannot change each other's."""
        return copy.deepcopy(self.thing) if self.payload is None else self._codec.decode(self.payload)

    def size(self) -> int:
        """Return about how many bytes it holds."""
        return _footprint(self.thing) if self.payload is None else len(self.payload)


def keep(result: Any, seconds: float, codec: Codec) -> Kept | None:
    """Return a result in the form that is kept; None where it cannot be copied (generators, open files)."""
    payload = codec.encode(result)
    if payload is not None:
        return Kept(codec, payload, None, seconds)
    try:
        thing = copy.deepcopy(result)
    except Exception:
        # Whatever a foreign __deepcopy__ raises, it says the same: this cannot be copied.
        return None
    # An object whose ``__deepcopy__`` returns itself is not kept: callers would share and change it.
    return None if thing is result and hasattr(result, "__deepcopy__") else Kept(codec, None, thing, seconds)


def seal(check: int, stamp: bytes, kept: Kept) -> bytes:
    """Return an entry's bytes, with a checksum that includes ``check``, the plan's checksum of the key."""
    rest = stamp + (kept.payload or b"")
    head = _HEAD.pack(_MAGIC, 0, kept.seconds, len(stamp))
    check = zlib.crc32(rest, zlib.crc32(head[_CHECKED:], check))
    return _HEAD.pack(_MAGIC, check, kept.seconds, len(stamp)) + rest


def unseal(check: int, data: bytes, codec: Codec) -> tuple[bytes, Kept] | None:
    """Return stamp and content of an entry, or None when its bytes are damaged or belong to another key."""
    if len(data) < _HEAD.size:
        return None
    magic, found, seconds, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or found != zlib.crc32(data[_CHECKED:], check):
        return None
    content = _HEAD.size + length
    return data[_HEAD.size : content], Kept(codec, data[content:], None, seconds)


def is_plain(value: Any) -> bool:
    """Return whether a value consists of JSON's own types only, so that JSON tells it exactly."""
    rest = [value]
    for item in rest:
        kind = type(item)
        if kind in _PLAIN:
            continue
        if kind is dict:
            for name, inner in item.items():
                if type(name) is not str:
                    return False
                if type(inner) not in _PLAIN:
                    rest.append(inner)
        elif kind is list:
            rest.extend(item)
        elif kind is not float or not math.isfinite(item):
            return False
    return True


def _footprint(thing: Any) -> int:
    """About how many bytes an object takes: each part once, as far as containers and attributes show."""
    seen: set[int] = set()
    rest = [thing]
    total = 0
    while rest and len(seen) < _MAX_PARTS:
        item = rest.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item, 64)
        if isinstance(item, Mapping):
            rest.extend(item.keys())
            rest.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            rest.extend(item)
        else:
            rest.extend(getattr(item, "__dict__", {}).values())
            rest.extend(getattr(item, name, None) for name in getattr(type(item), "__slots__", ()))
    return total
