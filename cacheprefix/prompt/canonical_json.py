"""JSON in and out, without losing what orjson cannot hold (lone surrogates, huge integers)."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import orjson

from cacheprefix.errors import BodyError

_OPTIONS_SORTED = orjson.OPT_SORT_KEYS
_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_LONG = b"0" * 19
"""Fewer digits than these always fit into 64 bits."""
_STEP = 3
_DENSE = b"0" * (len(_LONG) // _STEP)
"""What so many digits leave of themselves where only each third byte is looked at, which costs a third."""
_ZEROS = re.compile(b"0*")


def dumps(value: Any, path: str) -> bytes:
    """JSON bytes of ``value`` with its own key order.

    Key order is kept because inference servers render tool schemas in it, so it is part of
    the prompt. ``path`` only names the place in the ``BodyError`` raised for unserialisable values.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return _slow_dumps(value, path, sort_keys=False)


def dumps_sorted(value: Any, path: str) -> str:
    """JSON text of ``value`` with sorted keys, for settings, where order carries no meaning."""
    try:
        return orjson.dumps(value, option=_OPTIONS_SORTED).decode()
    except TypeError:
        return _slow_dumps(value, path, sort_keys=True).decode()


def loads(data: bytes | str, path: str = "body") -> Any:
    """Parse JSON; falls back to the standard library where orjson is stricter than JSON on the wire.

    So it does for integers of more than 64 bits, which orjson would round to floats without a word.
    """
    if not _has_long_number(data):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BodyError(path, f"not JSON: {error}") from None


def _has_long_number(data: bytes | str) -> bool:
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _DENSE not in raw[::_STEP].translate(_DIGITS):
        return False
    digits = raw.translate(_DIGITS)
    at = digits.find(_LONG)
    # A fraction may have as many digits, and is a float either way.
    while at > 0 and raw[at - 1 : at] == b".":
        found = _ZEROS.match(digits, at)
        at = digits.find(_LONG, at if found is None else found.end())
    return at >= 0


def _slow_dumps(value: Any, path: str, *, sort_keys: bool) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyError(path, f"cannot be written as JSON: {error}") from None
