"""The rows of an audit: kept outside memory, because a log may hold millions of calls."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cacheprefix.prompt import dumps, loads

_IN_MEMORY = 16_000_000


@dataclass(frozen=True, slots=True)
class CallRow:
    """One judged call: ``public`` is its entry in the JSON output, ``view`` what only the pages show."""

    public: dict[str, Any]
    view: dict[str, Any]


class Rows:
    """Rows written once and read in order of their index. Beyond 16 MB they are in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - lives as long as the audit
        self._starts = array("q")
        self._end = 0

    def __len__(self) -> int:
        """Rows written."""
        return sum(start >= 0 for start in self._starts)

    def add(self, row: CallRow) -> None:
        """Write a row; its index is that of the call."""
        index = row.public["index"]
        while len(self._starts) <= index:
            self._starts.append(-1)
        line = dumps([row.public, row.view], "row")
        self._starts[index] = self._end
        self._file.seek(self._end)
        self._file.write(len(line).to_bytes(8, "big") + line)
        self._end += 8 + len(line)

    def __iter__(self) -> Iterator[CallRow]:
        for start in self._starts:
            if start >= 0:
                yield self._read(start)

    def __getitem__(self, index: int) -> CallRow:
        """The row of one call."""
        return self._read(self._starts[index])

    def close(self) -> None:
        """Give the temporary file back."""
        self._file.close()

    def _read(self, start: int) -> CallRow:
        self._file.seek(start)
        length = int.from_bytes(self._file.read(8), "big")
        public, view = loads(self._file.read(length))
        return CallRow(public, view)
