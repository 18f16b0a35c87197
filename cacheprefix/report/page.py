"""One HTML file that shows an audit: no network, no prompt text unless the audit kept some."""

from __future__ import annotations

from importlib.resources import files
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from cacheprefix.audit import CHANGES, HOW, WORTH, totals_of
from cacheprefix.cache import MEANINGS
from cacheprefix.prompt import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cacheprefix.audit import Audit, CallRow

SHOWN_CALLS = 20_000
"""Calls a page holds: about 5 MB. The totals and the breaks are always those of the whole log."""

SHOWN_BREAKS = 500

_COLUMNS = (
    "index", "agent", "session", "model", "verdict", "cause", "path", "ancestor", "expected", "read", "simulated",
    "lost", "lost_usd", "at", "place", "input", "written", "counted", "tiers", "sections", "shared", "broke",
    "break_at", "offset", "size", "reason", "rule", "units", "usd", "excerpt", "diff",
)  # fmt: skip


class _Names:
    """Strings that many rows share, each written once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str | None) -> int:
        """The place of ``name`` in the list; -1 for None."""
        return -1 if name is None else self._numbers.setdefault(name, len(self._numbers))

    def list(self) -> list[str]:
        """All names, in order of their numbers."""
        return list(self._numbers)


def write_page(audit: Audit, stream: IO[str]) -> None:
    """The report of an audit as one HTML document, with a row for each of the first ``SHOWN_CALLS`` calls."""
    template = files("cacheprefix.report").joinpath("page.html").read_text(encoding="utf-8")
    head, tail = template.split("__DATA__")
    stream.write(head)
    stream.write(_embedded(page_data(audit)))
    stream.write(tail)


def page_data(audit: Audit, calls: int = SHOWN_CALLS) -> dict[str, Any]:
    """What the page shows, in the form its script reads."""
    names = {name: _Names() for name in ("agent", "session", "model", "verdict", "cause", "path")}
    rows: list[list[Any]] = []
    fixes: dict[str, str] = {group.cause: group.fix for group in audit.totals.breaks}
    timed = False
    for row in islice(audit.rows, calls):
        timed = timed or row.view["at"] >= 1.0
        rows.append(_row(row, names))
    return {
        "columns": _COLUMNS,
        "calls": rows,
        "agents": names["agent"].list(),
        "sessions": names["session"].list(),
        "models": names["model"].list(),
        "verdicts": names["verdict"].list(),
        "causes": names["cause"].list(),
        "paths": names["path"].list(),
        "fixes": fixes,
        "totals": totals_of(audit),
        "files": list(audit.files),
        "timed": timed,
        "include_text": audit.include_text,
        "what_if": [saving.as_dict() for saving in audit.what_if],
        "changes": CHANGES,
        "how": HOW,
        "worth": WORTH,
        "meanings": {cause: MEANINGS[cause] for cause in names["cause"].list()},
        "breaks": [{**group.as_dict(), "calls": group.calls[:1]} for group in audit.totals.breaks[:SHOWN_BREAKS]],
    }


def _row(row: CallRow, names: Mapping[str, _Names]) -> list[Any]:
    """A call's values in the order of ``_COLUMNS``, repeated names as numbers."""
    call, view = row.public, row.view
    values = {
        **view,
        **{name: held.number(call[name]) for name, held in names.items()},
        "index": call["index"],
        "ancestor": call["ancestor_index"],
        "expected": call["expected_cached_tokens"],
        "simulated": int(call["cached_source"] == "simulated"),
        "lost": call["lost_tokens"],
        "lost_usd": call["lost_usd"],
        "at": round(view["at"], 3),
        "excerpt": call["excerpt"],
    }
    return [values.get(name) for name in _COLUMNS]


def _embedded(value: Any) -> str:
    """JSON that may stand inside a script element whatever its strings hold."""
    text = dumps(value, "page").decode("utf-8", "surrogatepass")
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return escaped.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
