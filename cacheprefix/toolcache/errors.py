"""Which results report a failure: those are never kept, since the next call may do better."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from cacheprefix.prompt import reads_as_error

# Words of HTTP, of clients and of what calls tools (MCP's servers, CrewAI), at the beginning of a text. A text that is
# no failure and begins so runs again.
_TOLD = re.compile(
    r"\s*(?:http(?:/[\d.]+)?[\s:]*(?:error|status)?(?: code)?[\s:]*[45]\d\d\b"
    r"|(?:(?:error|status)(?: code)?|code)[\s:=]+[45]\d\d\b"
    r"|[45]\d\d[\s:-]+(?:client error|server error|bad request|unauthori[sz]ed|payment required|forbidden|not found"
    r"|method not allowed|not acceptable|request timeout|conflict|gone|too many requests|internal server error"
    r"|not implemented|bad gateway|service unavailable|gateway timeout)"
    r"|(?:\w+ )?(?:failed(?: to\b| with\b| for\b|:)|timed out\b|timeout\b)|rate limit|too many requests"
    r"|error (?:executing|calling|invoking) (?:mcp )?tool\b|(?:mcp )?tool execution failed\b"
    r"|(?:mcp )?tool '[^']{1,128}' (?:timed out|not found)\b"
    r"|(?:network connection failed|mcp execution error|server response parsing error):"
    r"|(?:unauthori[sz]ed|forbidden|not found)\s*(?:[.:!]|$)|(?:could not|cannot|unable to) (?:connect|reach)\b"
    r"|(?:permission|access) denied|connection (?:refused|reset|error|aborted|closed))",
    re.IGNORECASE,
)
_FLAGS = ("isError", "is_error")
_CODES = ("status", "status_code", "statusCode", "http_status", "code")
_GOOD = ("success", "succeeded", "ok")
_BAD_STATES = frozenset(
    {
        *("error", "errored", "failed", "failure", "fail", "exception", "timeout", "timed_out", "aborted"),
        *("cancelled", "canceled", "denied", "unauthorized", "forbidden", "not_found", "rate_limited", "unavailable"),
    }
)
_KINDS = "|".join(_BAD_STATES)
# A mapping as Python writes it, which is how some frameworks hand it on (AutoGen): the same fields, in any depth.
_WRITTEN = re.compile(
    r"'(?:error|errors|exception)': (?:True\b|\[(?!\])|\{(?!\})|'(?!')|\"(?!\"))"
    rf"|'(?:{'|'.join(_FLAGS)})': True\b|'(?:{'|'.join(_GOOD)})': False\b"
    rf"|'(?:{'|'.join(_CODES)})': (?:[45]\d\d\b|'(?:[45]\d\d\b|(?:{_KINDS})'))",
    re.IGNORECASE,
)
# A longer JSON text is content; a report of a failure is short.
_SHORT = 16_384
_MISSING = object()


def looks_like_error(result: Any) -> bool:
    """Return whether a result reports a failure in one of the ways that tools use.

    Texts that begin as error reports do (``Error: ...``, ``[error]``, a traceback, ``HTTP 500``, ``404 Not Found``);
    JSON texts, mappings and objects with ``isError``, ``is_error``, a filled ``error``, a ``status`` or code of
    failure (``"failed"``, 400 to 599) or ``success`` or ``ok`` False; exceptions; MCP's lists of such parts, and lists
    and pairs that begin with such a text.
    """
    if isinstance(result, (str, bytes)):
        return _text_fails(result if isinstance(result, str) else result[:_SHORT].decode("utf-8", "replace"))
    if result is None or isinstance(result, (bool, int, float)):
        return False
    if isinstance(result, BaseException):
        return True
    if isinstance(result, Mapping):
        return _fields_fail(lambda name: result.get(name, _MISSING)) or _part_fails(result)
    if isinstance(result, (list, tuple)):
        first = result[0] if result else None
        return any(_part_fails(part) for part in result[:64]) or (isinstance(first, str) and _text_fails(first))
    return _fields_fail(lambda name: getattr(result, name, _MISSING))


def _text_fails(text: str) -> bool:
    if len(text) <= _SHORT and text.lstrip()[:1] == "{":
        try:
            return looks_like_error(orjson.loads(text))
        except ValueError:
            # No JSON after all: Python's own, or its first words speak.
            if _WRITTEN.search(text):
                return True
    return reads_as_error(text) or _TOLD.match(text, 0, 200) is not None


def _part_fails(part: Any) -> bool:
    """Whether one part of an answer in parts (MCP, content blocks) reports a failure."""
    if not isinstance(part, Mapping):
        return False
    if part.get("type") == "error" or any(part.get(flag) is True for flag in _FLAGS):
        return True
    text = part.get("text")
    return part.get("type") == "text" and isinstance(text, str) and _text_fails(text)


def _fields_fail(field: Callable[[str], Any]) -> bool:
    if any(field(flag) is True for flag in _FLAGS) or any(field(name) is False for name in _GOOD):
        return True
    if any(_is_filled(field(name)) for name in ("error", "errors", "exception")):
        return True
    return any(_is_bad(field(name)) for name in _CODES)


def _is_filled(value: Any) -> bool:
    # Only True, text, lists, mappings and exceptions count: a number may be what a linter found, and a method or a
    # default value says nothing.
    return value is True or (isinstance(value, (str, list, Mapping, BaseException)) and bool(value))


def _is_bad(value: Any) -> bool:
    if isinstance(value, str):
        word = value.strip().casefold().replace(" ", "_").replace("-", "_")
        return word in _BAD_STATES or re.match(r"[45]\d\d\b", word.replace("_", " ")) is not None
    return isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599
