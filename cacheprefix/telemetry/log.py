"""A log line for every call, with its facts as fields for whatever formats the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cacheprefix.errors import plain
from cacheprefix.telemetry.attributes import attributes_of

if TYPE_CHECKING:
    from cacheprefix import Call
    from cacheprefix.cache import Verdict


class CallLog:
    """A plugin that logs every call: ``Session(HANDBOOK, plugins=[CallLog()])``.

    The line is a short text; the facts are fields of the record (``extra``), named as the attributes of a span with
    ``_`` for ``.``: ``cacheprefix_cause``, ``gen_ai_usage_input_tokens`` … Formatters for JSON and structlog's
    ``ExtraAdder`` pick them up. Level INFO, and WARNING for an alarm.

    Args:
        logger: the logger or its name.
        include_text: whether the characters at which a prompt changed are among the fields.
    """

    def __init__(self, logger: str | logging.Logger = "cacheprefix.calls", *, include_text: bool = False) -> None:
        self._log = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._include_text = include_text

    def cacheprefix_after_call(self, call: Call, verdict: Verdict) -> None:
        """One line for a finished call."""
        level = logging.WARNING if verdict.alarm else logging.INFO
        if not self._log.isEnabledFor(level):
            return
        found = attributes_of(call, verdict, include_text=self._include_text)
        read = "?" if verdict.reported_tokens is None else f"{verdict.reported_tokens:,}"
        self._log.log(
            level,
            "call %d of %s: %s, read %s of %s expected, %s",
            call.index,
            plain(call.agent) or "unnamed",
            verdict.kind,
            read,
            f"{verdict.expected_tokens:,}",
            verdict.cause,
            extra={name.replace(".", "_"): value for name, value in found.items()},
        )
