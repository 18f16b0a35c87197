"""Where memories are kept: a LangGraph store, or one file each that no id can lead out of its folder."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol

from langgraph.store.base import BaseStore

from cacheprefix.adapter import Lock
from cacheprefix.errors import StoreError
from cacheprefix_langgraph.teams.memory import MemoryUpdate, SessionMemory, memory_from

_KEY = "memory"
_READABLE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


class MemoryKeeper(Protocol):
    """Loads and merges memories by id (a thread's, a user's, a project's)."""

    def load(self, id: str) -> SessionMemory:  # noqa: A002 - the field's word
        """The memory of an id; an empty one where there is none."""

    def merge(self, id: str, update: MemoryUpdate) -> SessionMemory:  # noqa: A002
        """Apply an update and give the memory after it."""


class StoreMemory:
    """Memories in a LangGraph ``BaseStore``, under ``(*namespace, id)``."""

    def __init__(self, store: BaseStore, namespace: tuple[str, ...] = ("cacheprefix", "memory")) -> None:
        self.store = store
        self.namespace = namespace
        self._lock = Lock()

    def load(self, id: str) -> SessionMemory:  # noqa: A002
        """The memory of an id."""
        found = self.store.get(self._place(id), _KEY)
        return memory_from(None if found is None else found.value)

    def merge(self, id: str, update: MemoryUpdate) -> SessionMemory:  # noqa: A002
        """Apply an update. Other processes may write between load and store; the last one then wins."""
        with self._lock:
            memory = self.load(id).updated(update)
            self.store.put(self._place(id), _KEY, memory.as_dict(), index=False)
        return memory

    def _place(self, id_: str) -> tuple[str, ...]:
        # A namespace takes no dots and no empty parts.
        return (*self.namespace, _file_name(id_))


class FileMemory:
    """Memories as JSON files in one folder; a crash leaves the old file or the new one, never half of it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock = Lock()

    def load(self, id: str) -> SessionMemory:  # noqa: A002
        """The memory of an id. Raises ``StoreError`` for a file that is not one of ours."""
        path = self.path(id)
        try:
            data: Any = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return SessionMemory()
        except (OSError, ValueError) as error:
            raise StoreError(f"memory {path}: {error}; move the file away to begin anew") from error
        return memory_from(data.get(_KEY) if isinstance(data, dict) else None)

    def merge(self, id: str, update: MemoryUpdate) -> SessionMemory:  # noqa: A002
        """Apply an update. Raises ``StoreError`` where it cannot be written."""
        with self._lock:
            memory = self.load(id).updated(update)
            text = json.dumps({"id": id, _KEY: memory.as_dict()}, ensure_ascii=True, indent=1)
            path = self.path(id)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with NamedTemporaryFile("w", dir=self.folder, suffix=".tmp", delete=False, encoding="utf-8") as file:
                    file.write(text)
                Path(file.name).replace(path)
            except OSError as error:
                raise StoreError(f"memory {path}: {error}") from error
        return memory

    def path(self, id: str) -> Path:  # noqa: A002
        """The file of an id: always a plain name inside the folder, different for every id."""
        return self.folder / f"{_file_name(id)}.json"


def _file_name(id_: str) -> str:
    digest = blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    readable = "".join(letter if letter in _READABLE else "-" for letter in id_.lower()[:40]).strip("-")
    return f"{readable}-{digest}" if readable else digest
