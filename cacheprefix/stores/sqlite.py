"""The store of one machine: a SQLite file that several processes share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from cacheprefix.errors import StoreError
from cacheprefix.locks import RLock, rest_while_forking
from cacheprefix.stores.clock import boot_id, steady
from cacheprefix.stores.protocol import Departure, Listener

T = TypeVar("T")

_FORMAT = 2

# The value stands last, so that scans of the small columns need not walk through large values.
_SCHEMA = (
    """CREATE TABLE entries (key TEXT PRIMARY KEY, used INTEGER NOT NULL, size INTEGER NOT NULL,
       boot INTEGER, until REAL, wall_since REAL, wall_until REAL, value BLOB NOT NULL)""",
    "CREATE INDEX entries_used ON entries (used)",
    "CREATE TABLE generations (name TEXT PRIMARY KEY, token BLOB NOT NULL)",
    """CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL,
       boot INTEGER, until REAL, wall_since REAL, wall_until REAL)""",
    """CREATE TABLE marks (name TEXT NOT NULL, writer TEXT NOT NULL,
       boot INTEGER, until REAL, wall_since REAL, wall_until REAL, PRIMARY KEY (name, writer))""",
    "CREATE TABLE totals (id INTEGER PRIMARY KEY, entries INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "INSERT INTO totals VALUES (1, 0, 0)",
    """CREATE TRIGGER entries_in AFTER INSERT ON entries BEGIN
       UPDATE totals SET entries = entries + 1, bytes = bytes + new.size; END""",
    """CREATE TRIGGER entries_change AFTER UPDATE OF size ON entries BEGIN
       UPDATE totals SET bytes = bytes + new.size - old.size; END""",
    """CREATE TRIGGER entries_out AFTER DELETE ON entries BEGIN
       UPDATE totals SET entries = entries - 1, bytes = bytes - old.size; END""",
)

_SINCE_1 = _SCHEMA[4:5]
"""What files of format 1 lack."""

# Dead by either clock is dead: the steady one where it is this start of the machine, and the
# wall clock, which after a restart also may not lie before the moment of writing.
_DEAD = "wall_until <= :wall OR (boot = :boot AND until <= :now) OR (boot <> :boot AND wall_since > :wall)"
# A mark of unknown age keeps results from being kept; one that is dead does no more than that either.
_ALIVE = "wall_until > ? AND (boot <> ? OR until > ?)"
_SWEEP_SECONDS = 60.0
_TOUCH_LIMIT = 1_024
_MAX_GENERATIONS = 65_536

# Connections that the parent could not close: a forked child may neither use nor close them.
_abandoned: list[sqlite3.Connection] = []


class SqliteStore:
    """Entries in one file, for all threads and processes of a machine.

    ``max_entries`` and ``max_bytes`` (values only) bound the file; what was used least
    recently goes first. Uses are written down together with the next entry, so another process
    sees them a little late. ``timeout`` is how many seconds a call waits for another process's
    write before it raises.

    Times to live follow the machine's steady clock, so that setting the wall clock neither brings an
    expired entry back nor keeps a lease from ending. After a restart of the machine, and between
    processes where the system does not name its start (only Linux does), the wall clock counts:
    what was written in its future is dropped. Generations do not survive a restart of the
    machine, because a power cut may have lost the last bump.

    A writer that finds the file locked outdates everything through a second, tiny file beside it
    (``PATH-outdated``), which needs no lock. When the file is deleted or replaced under an open
    store, the next call opens the new one. After a lock that lasted ``timeout``, writes raise at
    once for ``cooldown`` seconds.

    Raises:
        StoreError: the file cannot be opened, is no database of this kind, is locked for
            longer than ``timeout``, or the disk is full.
    """

    shared = True
    blocking = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_entries: int | None = 100_000,
        max_bytes: int | None = 1024 * 1024 * 1024,
        timeout: float = 2.0,
        cooldown: float = 1.0,
        clock: Callable[[], float] = steady,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self._timeout = timeout
        self._cooldown = cooldown
        self._locked_until = 0.0
        self._beside = Path(f"{self.path}-outdated")
        self._inode: tuple[int, int] | None = None
        self._clock = clock
        self._wall = wall
        # Where the system does not name its start, a random name matches no row: only the wall clock counts then.
        named = boot_id()
        self._boot = int.from_bytes(hashlib.blake2b(named or os.urandom(16), digest_size=7).digest(), "big")
        self._suffix = self._boot.to_bytes(8, "big") if named else b""
        self._lock = RLock()
        self._resting = False
        self._connection: sqlite3.Connection | None = None
        self._touched: dict[str, None] = {}
        self._swept = clock()
        self._listeners: list[Listener] = []
        self._query("SELECT entries FROM totals")
        rest_while_forking(self)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    def get(self, key: str) -> bytes | None:
        """See ``Store.get``."""
        return self._live(key, self._row(key, ()))

    def read(self, key: str, names: Sequence[str]) -> tuple[bytes | None, bytes]:
        """See ``Store.read``."""
        row = self._row(key, names)
        return self._live(key, row), self._tokens(names, row)

    def set(self, key: str, value: bytes, ttl: float | None = None) -> None:
        """See ``Store.set``."""
        if (ttl is not None and ttl <= 0) or (self.max_bytes is not None and len(value) > self.max_bytes):
            self.delete(key)
            return
        row = (key, len(value), *self._span(ttl), value)
        gone: list[tuple[str, Departure]] = []

        def work(connection: sqlite3.Connection) -> None:
            gone.clear()
            self._settle(connection)
            connection.execute(
                """INSERT INTO entries (key, used, size, boot, until, wall_since, wall_until, value)
                VALUES (?, (SELECT ifnull(max(used), 0) + 1 FROM entries), ?, ?, ?, ?, ?, ?)
                ON CONFLICT (key) DO UPDATE SET used = excluded.used, size = excluded.size,
                boot = excluded.boot, until = excluded.until,
                wall_since = excluded.wall_since, wall_until = excluded.wall_until, value = excluded.value""",
                row,
            )
            over = self._over(connection)
            if over or self._clock() - self._swept >= _SWEEP_SECONDS:
                gone.extend(self._sweep(connection))
                over = self._over(connection)
            while over:
                gone.extend(self._evict(connection))
                over = self._over(connection)

        self._write(work)
        self._report(gone)

    def delete(self, key: str) -> bool:
        """See ``Store.delete``."""
        return self._write(lambda c: c.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount > 0)

    def generations(self, names: Sequence[str]) -> bytes:
        """See ``Store.generations``."""
        return self._tokens(names, self._row("", names))

    def mark(self, names: Sequence[str], writer: str, ttl: float) -> None:
        """See ``Store.mark``."""
        tokens = [(name, os.urandom(8)) for name in names]
        rows = [(name, writer, *self._span(ttl)) for name in names]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO generations VALUES (?, ?)", tokens)
            connection.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?)", rows)

        self._change(work)

    def bump(self, names: Sequence[str], writer: str = "") -> None:
        """See ``Store.bump``."""
        tokens = [(name, os.urandom(8)) for name in names]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO generations VALUES (?, ?)", tokens)
            connection.executemany("DELETE FROM marks WHERE name = ? AND writer = ?", [(n, writer) for n in names])

        self._change(work)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See ``Store.sizes``."""
        sql = f"SELECT key, size FROM entries WHERE key >= :low AND key < :high AND ({_DEAD}) IS NOT TRUE"  # noqa: S608 - constants only
        return dict(self._query(sql, self._times() | _range(prefix)))

    def clear(self, prefix: str = "") -> int:
        """See ``Store.clear``."""

        def work(connection: sqlite3.Connection) -> int:
            span = _range(prefix)
            connection.execute("DELETE FROM generations WHERE name >= :low AND name < :high", span)
            return connection.execute("DELETE FROM entries WHERE key >= :low AND key < :high", span).rowcount

        return self._write(work)

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        """See ``Store.acquire``."""
        taken = f"SELECT 1 FROM leases WHERE key = :key AND owner <> :owner AND ({_DEAD}) IS NOT TRUE"  # noqa: S608 - constants only
        asked = self._times() | {"key": key, "owner": owner}
        # Waiters ask often: a look that needs no write lock first.
        if self._query(taken, asked):
            return False

        def work(connection: sqlite3.Connection) -> bool:
            if connection.execute(taken, asked).fetchone():
                return False
            row = (key, owner, *self._span(ttl))
            connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?)", row)
            return True

        return self._write(work)

    def renew(self, key: str, owner: str, ttl: float) -> bool:
        """See ``Store.renew``."""
        sql = f"""UPDATE leases SET boot = :b, until = :u, wall_since = :ws, wall_until = :wu
            WHERE key = :key AND owner = :owner AND ({_DEAD}) IS NOT TRUE"""  # noqa: S608 - constants only
        values = self._times() | {"key": key, "owner": owner}
        values |= dict(zip(("b", "u", "ws", "wu"), self._span(ttl), strict=True))
        return self._write(lambda c: c.execute(sql, values).rowcount > 0)

    def release(self, key: str, owner: str) -> bool:
        """See ``Store.release``."""
        sql = "DELETE FROM leases WHERE key = ? AND owner = ?"
        return self._write(lambda c: c.execute(sql, (key, owner)).rowcount > 0)

    def listen(self, listener: Listener) -> None:
        """See ``Store.listen``."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Close this process's connection; the file stays, and the next call opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def before_fork(self) -> None:
        """Close the connection, once a write of another thread's has ended, and open none until the fork is done.

        SQLite notes its locks on a file once for the whole process. A child inherits that note without the locks: it
        would take the file for locked by a write that was under way, for ever, and its own connection would not
        keep the last one that closes elsewhere from taking the side files away, in which its writes then get lost.
        """
        # In the middle of a call of this very thread's nothing can be closed, nor where a write does not end.
        if not self._lock.mine and self._lock.acquire(timeout=self._timeout + 1):
            self._resting = True
            with contextlib.suppress(sqlite3.Error):
                self.close()

    def forked(self) -> None:
        """Go on after a fork, with a new connection."""
        if self._lock.mine and self._resting:
            self._resting = False
            self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: go on likewise, and leave alone a connection of the parent's that was not closed."""
        self.forked()
        if self._connection is not None:
            _abandoned.append(self._connection)
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        """Open the file, creating it or bringing it to the present format where needed."""
        # Privacy: only this user may read the file; SQLite's side files take its mode.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        try:
            self._to_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            # Two processes may create the file at once: only the one inside the lock sees format 0.
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found in {0, 1}:
                for statement in _SCHEMA if found == 0 else _SINCE_1:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        if found not in {0, 1, _FORMAT}:
            connection.close()
            raise StoreError(
                f"{self.path}: made by another version (format {found}, this one reads {_FORMAT}); "
                "give this version a file of its own"
            )
        self._inode = _inode(self.path)
        return connection

    def _to_wal(self, connection: sqlite3.Connection) -> None:
        """Let readers work beside a writer (WAL). Repeated while busy, as SQLite itself does not wait here."""
        until = time.monotonic() + self._timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:  # noqa: PERF203 - a file that is busy is asked again
                if time.monotonic() >= until:
                    raise
                time.sleep(0.005)
            else:
                return

    def _opened(self) -> sqlite3.Connection:
        """This process's connection to the file that is at ``path`` now."""
        # A deleted or replaced file stays open in the processes that had it: without this check they would see only
        # each other's writes.
        if self._connection is not None and _inode(self.path) != self._inode:
            self.close()
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _query(self, sql: str, values: Any = ()) -> list[Any]:
        try:
            with self._lock:
                return self._opened().execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in a write transaction; once the file was locked, fail at once for the cooldown's seconds."""
        try:
            with self._lock:
                connection = self._opened()
                if self._clock() < self._locked_until:
                    raise sqlite3.OperationalError("database was locked a moment ago, and is asked again soon")
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    self._locked_until = self._clock() + self._cooldown
                    raise
                try:
                    result = work(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    # A full disk ends the transaction by itself.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
                return result
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _change(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Write generations or marks; where the file refuses, outdate all entries by a second file beside it."""
        try:
            self._write(work)
        except StoreError:
            # Every read looks at the file beside (``_outdated``), so that its change outdates all kept results.
            try:
                self._beside.touch(0o600)
                with self._beside.open("ab") as beside:
                    beside.write(os.urandom(8))
            except OSError:
                # A full disk takes no byte; the file's time can still be set.
                with contextlib.suppress(OSError):
                    os.utime(self._beside)
            raise

    def _failure(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self.path}: {error}; nothing was read or kept. If the file is damaged, delete it: "
            "it holds only what can be made again"
        )

    def _times(self) -> dict[str, Any]:
        return {"wall": self._wall(), "now": self._clock(), "boot": self._boot}

    def _span(self, ttl: float | None) -> tuple[int | None, float | None, float | None, float | None]:
        if ttl is None:
            return None, None, None, None
        now, wall = self._clock(), self._wall()
        return self._boot, now + ttl, wall, wall + ttl

    def _live(self, key: str, row: Sequence[Any]) -> bytes | None:
        """The value of an entry's row, and note its use; None where it expired (it is then deleted) or is no bytes."""
        value, boot, until, wall_until = row[-4:]
        if until is not None and (
            self._wall() >= wall_until or (self._clock() >= until if boot == self._boot else self._from_the_future(key))
        ):
            # Where the file is locked, the next sweep deletes it.
            with contextlib.suppress(StoreError):
                sql = "DELETE FROM entries WHERE key = ? AND wall_until = ?"
                if self._write(lambda c: c.execute(sql, (key, wall_until)).rowcount > 0):
                    self._report([(key, "expired")])
            return None
        # Not written by this class.
        if not isinstance(value, bytes):
            return None
        self._touched.pop(key, None)
        self._touched[key] = None
        if len(self._touched) > _TOUCH_LIMIT:
            # Uses that cannot be written now are forgotten: a read must not fail for the order of eviction.
            with contextlib.suppress(StoreError):
                self._write(self._settle)
        return value

    def _from_the_future(self, key: str) -> bool:
        """Whether an entry was written after the wall clock's present time, so that the clock was set back."""
        rows = self._query("SELECT wall_since FROM entries WHERE key = ?", (key,))
        return bool(rows and rows[0][0] is not None and rows[0][0] > self._wall())

    def _row(self, key: str, names: Sequence[str]) -> Sequence[Any]:
        times = (self._wall(), self._boot, self._clock()) if names else ()
        values = [value for name in names for value in (*times, name)]
        row: Sequence[Any] = self._query(_read_sql(len(names)), (*values, key))[0]
        return row

    def _tokens(self, names: Sequence[str], row: Sequence[Any]) -> bytes:
        """The generations of ``names`` joined; unknown names get new ones."""
        tokens = row[:-4]
        if None in tokens:
            fresh = [(name, os.urandom(8)) for name in names]
            self._write(lambda c: c.executemany("INSERT OR IGNORE INTO generations VALUES (?, ?)", fresh))
            # Another process may have inserted its tokens first: read those.
            tokens = self._row("", names)[:-4]
        # A name that is being written has an empty token: a random one in its place matches nothing.
        joined = b"".join([t if isinstance(t, bytes) and len(t) == 8 else os.urandom(8) for t in tokens])
        return joined + self._suffix + self._outdated()

    def _outdated(self) -> bytes:
        """Bytes that change whenever a process could not write a generation into the file itself."""
        if not os.access(self.path, os.W_OK):
            # As after an error of the disk (mounted read-only): another process's change can be written down nowhere,
            # and random bytes match nothing.
            return os.urandom(8)
        try:
            found = self._beside.stat()
        except OSError:
            return b""
        return struct.pack(">QQQ", found.st_ino, found.st_size, found.st_mtime_ns)

    def _settle(self, connection: sqlite3.Connection) -> None:
        """Write the order in which entries were read since the last time."""
        touched, self._touched = self._touched, {}
        if touched:
            top = connection.execute("SELECT ifnull(max(used), 0) FROM entries").fetchone()[0]
            # Readers note uses without the lock: copy in one step; a note that comes later may be lost.
            rows = [(top + i, key) for i, key in enumerate(list(touched), 1)]
            connection.executemany("UPDATE entries SET used = ? WHERE key = ?", rows)

    def _over(self, connection: sqlite3.Connection) -> bool:
        entries, size = connection.execute("SELECT entries, bytes FROM totals").fetchone()
        return (self.max_entries is not None and entries > self.max_entries) or (
            self.max_bytes is not None and size > self.max_bytes
        )

    def _sweep(self, connection: sqlite3.Connection) -> list[tuple[str, Departure]]:
        """Delete expired entries, leases and marks, and the oldest generations; return the expired keys."""
        self._swept = self._clock()
        times = self._times()
        gone = connection.execute(f"SELECT key FROM entries WHERE {_DEAD}", times).fetchall()  # noqa: S608 - constants only
        connection.executemany("DELETE FROM entries WHERE key = ?", gone)
        for table in ("leases", "marks"):
            connection.execute(f"DELETE FROM {table} WHERE {_DEAD}", times)  # noqa: S608 - constants only
        connection.execute(
            "DELETE FROM generations WHERE rowid <= (SELECT max(rowid) FROM generations) - ?",
            (_MAX_GENERATIONS,),
        )
        return [(row[0], "expired") for row in gone]

    def _evict(self, connection: sqlite3.Connection) -> list[tuple[str, Departure]]:
        rows = connection.execute("SELECT key FROM entries ORDER BY used LIMIT 1").fetchall()
        connection.executemany("DELETE FROM entries WHERE key = ?", rows)
        return [(row[0], "evicted") for row in rows]

    def _report(self, gone: list[tuple[str, Departure]]) -> None:
        for key, why in gone:
            for listener in self._listeners:
                listener(key, why)


@lru_cache(maxsize=64)
def _read_sql(names: int) -> str:
    # Gives exactly one row, with or without an entry; a generation that is marked as being written reads as x''. No
    # numbered placeholders: Python 3.12.0 to 3.12.3 warn of them at each read, an error where warnings are errors.
    marked = f"EXISTS (SELECT 1 FROM marks WHERE marks.name = generations.name AND {_ALIVE})"  # noqa: S608 - constants only
    token = f"(SELECT CASE WHEN {marked} THEN x'' ELSE token END FROM generations WHERE name = ?), "  # noqa: S608 - the same
    return f"SELECT {token * names}value, boot, until, wall_until FROM (SELECT 1) LEFT JOIN entries ON key = ?"  # noqa: S608 - the same


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _range(prefix: str) -> dict[str, str]:
    # All keys are at or above "" and below the last code point.
    high = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\U0010ffff"
    return {"low": prefix, "high": high}
