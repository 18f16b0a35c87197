"""JSON in and out, without losing what orjson cannot hold (lone surrogates, huge integers)."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import orjson

from cacheprefix.errors import BodyError

_OPTIONS_SORTED = orjson.OPT_SORT_KEYS
_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_LONG = b"0" * 19
"""Fewer digits than these always fit into 64 bits."""
_STEP = 6
_DENSE = b"0" * (len(_LONG) // _STEP)
"""What so many digits leave of themselves where only each sixth byte is looked at, which costs a sixth."""
_BYTES_A_VALUE = 2_048
"""Looking at one value takes as long as looking at so many bytes."""
_HUGE = 2.0**63
"""Integers from here on are floats where they were rounded."""


def dumps(value: Any, path: str) -> bytes:
    """JSON bytes of ``value`` with its own key order.

    Key order is kept because inference servers render tool schemas in it, so it is part of
    the prompt. Bytes are written as boto3 sends them, in base64. ``path`` only names the place in the ``BodyError``
    raised for unserialisable values.
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
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    else:
        # Of a long text in few values it is cheaper to look at the values.
        few = len(data) // _BYTES_A_VALUE
        huge = _has_huge_float(value, few) if few else None
        if huge is None:
            huge = _may_have_long_number(data) and _has_huge_float(value)
        if not huge:
            return value
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BodyError(path, f"not JSON: {error}") from None


def _may_have_long_number(data: bytes | str) -> bool:
    """Whether so many digits may stand in a row: in a number, or in a text."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return _DENSE in raw[::_STEP].translate(_DIGITS)


def _has_huge_float(value: Any, most: int | None = None) -> bool | None:
    """Whether a number in a JSON value is, or may have been made of, an integer of more than 64 bits.

    None where that takes a look at more than ``most`` values.
    """
    rest = [value]
    for held in rest:
        if most is not None and len(rest) > most:
            return None
        if type(held) is dict:
            rest += [inner for inner in held.values() if type(inner) is not str]
        elif type(held) is list:
            rest += [inner for inner in held if type(inner) is not str]
        elif type(held) is float and abs(held) >= _HUGE:
            return True
    return False


def _slow_dumps(value: Any, path: str, *, sort_keys: bool) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, default=_sent).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyError(path, f"cannot be written as JSON: {error}") from None


def _sent(value: object) -> str:
    """What a value that is no JSON becomes on its way: an image's bytes, which only boto3 takes."""
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    raise TypeError(type(value).__name__)
