"""What an SDK writes of a body that holds more than JSON: its own answers, iterators, dates, what is left out."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, MappingView, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime
from io import IOBase
from os import PathLike
from typing import Any

_CHARACTERS = (str, bytes, bytearray, memoryview)
_FILES = (IOBase, PathLike)
"""Files and paths. An open file is an iterator too, and can be read once: that is the SDK's to do."""


class _NotWrittenError(Exception):
    """The SDK refuses to write it."""


class _IteratorFoundError(Exception):
    """It holds an iterator, which can be read once."""


@dataclass(frozen=True, slots=True)
class Written:
    """A body, and what an SDK writes of it."""

    body: Any
    """As it was given; where it holds iterators, a copy with what they gave in their place."""
    extra: Any
    """What is put over it, the same."""
    plain: dict[str, Any] | None
    """Both as JSON, whose parts are the very same objects where they are JSON already. None for what the SDK itself
    refuses to write, which is the application's error, and where ``failed`` says why it could not be read."""
    failed: RecursionError | None = None


def written(body: dict[str, Any], extra: Mapping[str, Any], *, prepares: bool) -> Written:
    """What an SDK writes of ``body`` with ``extra`` over it.

    Whatever comes of it, no iterator is lost: ``Written.body`` gives once more what was read. ``prepares`` says that
    the SDK makes lists of iterators and sets, and dicts of all mappings, as Anthropic's does from 2.0 on; the others
    have done so by now where their types say it, and refuse the rest.
    """
    try:
        return Written(body, extra, *_read(body, extra, prepares=prepares))
    except _IteratorFoundError:
        body, extra = _spooled([body, extra])
    try:
        return Written(body, extra, *_read(body, extra, prepares=prepares))
    except _IteratorFoundError:
        # One that raised: the SDK reads what it gave before, and raises the same.
        return Written(body, extra, None)


def _read(
    body: Mapping[str, Any], extra: Mapping[str, Any], *, prepares: bool
) -> tuple[dict[str, Any] | None, RecursionError | None]:
    """``Written.plain`` and ``Written.failed``."""
    whole = {**body, **extra}
    given = {name: value for name, value in whole.items() if not _left_out(value)}
    try:
        return _plain(given, set(), prepares=prepares), None
    except _NotWrittenError:
        return None, None
    except RecursionError as error:
        try:
            # Deeper than this walk goes. The SDKs' writer goes deeper, but not much.
            json.dumps(given, default=str, skipkeys=True)
        except RecursionError:
            return None, None
        return None, error


def _plain(value: Any, around: set[int], *, prepares: bool) -> Any:
    """A value as JSON, the very same where it is that already. ``around`` are the ids of what holds it."""
    if isinstance(value, str):
        if not value.isascii():
            # Half a character is refused.
            _its_own(value.encode)
        return value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise _NotWrittenError
    mapping = isinstance(value, dict) or (prepares and isinstance(value, Mapping))
    if mapping or isinstance(value, (list, tuple)) or (prepares and _sent_as_list(value)):
        if id(value) in around:
            raise _NotWrittenError
        if prepares and isinstance(value, Iterator):
            raise _IteratorFoundError
        around.add(id(value))
        made = (_plain_mapping if mapping else _plain_list)(value, around, prepares=prepares)
        around.discard(id(value))
        return made
    if hasattr(value, "__pydantic_fields_set__"):
        hidden = getattr(value, "__api_exclude__", None)
        return _its_own(lambda: value.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=hidden))
    if isinstance(value, date if prepares else datetime):
        return value.isoformat()
    raise _NotWrittenError


def _plain_mapping(value: Mapping[Any, Any], around: set[int], *, prepares: bool) -> Any:
    same = type(value) is dict
    made: dict[str, Any] = {}
    for name, one in _its_own(lambda: list(value.items())):
        if prepares and _left_out(one):
            same = False
            continue
        if prepares and name == "data" and isinstance(one, _FILES) and value.get("type") == "base64":
            made[name] = one
            continue
        plain = one if type(one) is str and one.isascii() else _plain(one, around, prepares=prepares)
        same = same and plain is one and isinstance(name, str)
        made[name if isinstance(name, str) else _key(name)] = plain
    return value if same else made


def _key(name: Any) -> str:
    """A key as JSON has it, as of a number."""
    return str(next(iter(_its_own(lambda: json.loads(json.dumps({name: 0}))))))


def _plain_list(value: Any, around: set[int], *, prepares: bool) -> Any:
    listed = value if isinstance(value, list) else _its_own(lambda: list(value))
    made = [_plain(one, around, prepares=prepares) for one in listed]
    return listed if all(map(operator.is_, made, listed)) else made


def _its_own(work: Callable[[], Any]) -> Any:
    """What an object of the application's gives; where it raises, the SDK meets the same."""
    try:
        return work()
    except RecursionError:
        raise
    except Exception as error:
        raise _NotWrittenError from error


def _sent_as_list(value: Any) -> bool:
    """Whether an SDK that prepares bodies writes it as a list."""
    return isinstance(value, (Sequence, AbstractSet, MappingView, Iterator)) and not isinstance(
        value, (*_CHARACTERS, *_FILES)
    )


def _left_out(value: Any) -> bool:
    return type(value).__name__ in ("Omit", "NotGiven")


def _spooled(values: list[Any]) -> list[Any]:
    """Copies of values, in which what the iterators gave stands in their place, in the order in which the SDK reads."""
    # Without recursion: however deep it is, and also where it holds itself, nothing that was read may be lost.
    copies: dict[int, tuple[Any, Any]] = {}
    pending: list[tuple[Any, Any]] = [(values, at) for at in reversed(range(len(values)))]
    while pending:
        holder, key = pending.pop()
        value = holder[key]
        if id(value) in copies:
            holder[key] = copies[id(value)][1]
            continue
        if isinstance(value, Mapping):
            made: Any = _copied(dict, value)
        elif _sent_as_list(value):
            made = _drained(value) if isinstance(value, Iterator) else _copied(list, value)
        else:
            continue
        holder[key] = made
        # An iterator that stands in two places has nothing more to give in the second.
        if not isinstance(value, Iterator):
            copies[id(value)] = value, made
        places = made if isinstance(made, dict) else range(len(made)) if isinstance(made, list) else ()
        pending.extend((made, place) for place in reversed([*places]))
    return values


def _copied(kind: Callable[[Any], Any], value: Any) -> Any:
    """A copy; the very same of what cannot be read, as the SDK will find."""
    try:
        return kind(value)
    except Exception:
        return value


def _drained(given: Iterator[Any]) -> Any:
    """What an iterator gives, as a list; where it raises, an iterator that gives and raises the same."""
    read: list[Any] = []
    try:
        for one in given:
            read.append(one)  # noqa: PERF402 - what came before it raised counts
    except Exception as error:
        return _again(read, error)
    return read


def _again(read: list[Any], error: Exception) -> Iterator[Any]:
    yield from read
    raise error
