"""The audit as JSON, written row by row so that its length does not matter."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import orjson

from cacheprefix.prompt import dumps

if TYPE_CHECKING:
    from cacheprefix.audit.replay import Audit

VERSION = 1


def totals_of(audit: Audit) -> dict[str, Any]:
    """Everything under ``totals``."""
    return {
        **audit.totals.as_dict(),
        "understood": audit.totals.understood,
        "previous_request_rule": audit.previous.as_dict(),
        "lint": list(audit.lint),
        "what_if_calls": audit.what_if_calls,
        "what_if_computed_by": "simulated provider cache",
        "token_counters": list(audit.counters),
        "files": list(audit.files),
        "notes": list(audit.notes),
    }


def write_json(audit: Audit, stream: IO[bytes]) -> None:
    """The whole audit: version, totals, calls, breaks, what_if. Holds no prompt text unless it was asked for."""
    stream.write(b'{"version":%d,"totals":' % VERSION)
    stream.write(dumps(totals_of(audit), "totals"))
    stream.write(b',"calls":[')
    for number, row in enumerate(audit.rows):
        stream.write(b",\n" if number else b"\n")
        stream.write(dumps(row.public, "calls"))
    stream.write(b'],"breaks":')
    stream.write(dumps([group.as_dict() for group in audit.totals.breaks], "breaks"))
    stream.write(b',"what_if":')
    stream.write(orjson.dumps([saving.as_dict() for saving in audit.what_if]))
    stream.write(b"}\n")
