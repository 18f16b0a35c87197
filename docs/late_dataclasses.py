"""What the reader of sources behind the reference must be told: ``cacheprefix.values.dataclass`` makes dataclasses."""

from __future__ import annotations

from typing import Any

import griffe


class LateDataclasses(griffe.Extension):
    """Lets griffe, which knows the standard library's decorator by its path, see signatures and fields."""

    def on_alias_instance(self, *, alias: griffe.Alias, **_: Any) -> None:
        """Resolve the import as a type checker does."""
        if alias.target_path == "cacheprefix.values.dataclass":
            alias.target_path = "dataclasses.dataclass"
