"""The store of one machine: one file and several processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cacheprefix.errors import StoreError
from cacheprefix.stores import MemoryStore, SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "store.db"


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another process; text on its standard output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_another_process_reads_what_was_written(path: Path) -> None:
    """Entries and generations are shared through the file."""
    store = SqliteStore(path)
    store.set("k", b"from here", 60)
    code = """
import sys
from cacheprefix.stores import SqliteStore
store = SqliteStore(sys.argv[1])
print(store.read("k", ["g"]))
store.set("back", b"from there")
store.bump(["h"])
store.close()
"""
    before = store.generations(["g"]), store.generations(["h"])
    out, err = python(code, path).communicate(timeout=60)
    assert out.strip() == repr((b"from here", before[0])), err
    assert store.get("back") == b"from there"
    assert store.generations(["g"]) == before[0]
    assert store.generations(["h"]) != before[1]
    store.close()


def test_many_processes_make_and_fill_one_file(path: Path) -> None:
    """Six processes that create the file at once lose no write and raise nothing."""
    code = """
import sys
from cacheprefix.stores import SqliteStore
store = SqliteStore(sys.argv[1], timeout=20)
for i in range(50):
    store.set(f"{sys.argv[2]}:{i}", sys.argv[2].encode(), 60)
store.close()
"""
    workers = [python(code, path, i) for i in range(6)]
    for worker in workers:
        _, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err
    store = SqliteStore(path)
    assert len(store.sizes()) == 300
    store.close()


def test_it_outlasts_the_object(path: Path) -> None:
    """A new store on the same file finds the entries, and a closed one opens again."""
    store = SqliteStore(path)
    store.set("k", b"1", 60)
    store.close()
    assert SqliteStore(path).get("k") == b"1"
    assert store.get("k") == b"1"
    store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_only_the_user_reads_the_file(path: Path) -> None:
    """Tool results may be private, also in the files that SQLite keeps beside."""
    store = SqliteStore(path)
    store.set("k", b"private")
    assert {file.stat().st_mode & 0o077 for file in path.parent.glob("store.db*")} == {0}
    store.close()


def test_a_folder_that_is_missing_is_a_typed_error(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(StoreError, match="nowhere"):
        SqliteStore(tmp_path / "nowhere" / "store.db")


def test_a_read_is_not_failed_by_the_notes_it_leaves(path: Path) -> None:
    """While another process writes, an expired entry is a miss and a live one is read."""
    store = SqliteStore(path, timeout=0.05)
    store.set("dying", b"1", 0.01)
    store.set("alive", b"1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store._touched = dict.fromkeys(f"k{i}" for i in range(2_000))
    time.sleep(0.02)
    assert store.get("dying") is None
    assert store.get("alive") == b"1"
    other.execute("ROLLBACK")
    other.close()
    store.close()


def test_entries_are_bounded_by_true_use(path: Path) -> None:
    """A read entry stays although the reads are written down late."""
    store = SqliteStore(path, max_entries=3)
    gone: list[tuple[str, str]] = []
    store.listen(lambda key, why: gone.append((key, why)))
    for key in "abc":
        store.set(key, b"1")
    store.get("a")
    store.set("d", b"1")
    store.get("c")
    store.set("e", b"1")
    assert set(store.sizes()) == {"c", "d", "e"}
    assert gone == [("b", "evicted"), ("a", "evicted")]
    store.close()


def test_bytes_are_bounded(path: Path) -> None:
    """Values leave until the rest fits; replacing one counts its new size; too large is not kept."""
    store = SqliteStore(path, max_bytes=10)
    store.set("a", b"1234")
    store.set("b", b"1234")
    store.set("b", b"123456")
    assert set(store.sizes()) == {"a", "b"}
    store.set("c", b"12345")
    assert set(store.sizes()) == {"c"}
    store.set("c", b"1" * 11)
    assert store.sizes() == {}
    store.close()


def test_the_expired_leave_before_the_living(path: Path, clock, wall) -> None:
    """When room is needed, dead entries make it."""
    store = SqliteStore(path, max_entries=2, clock=clock, wall=wall)
    gone: list[tuple[str, str]] = []
    store.listen(lambda key, why: gone.append((key, why)))
    store.set("alive", b"1", 100)
    store.set("dying", b"1", 5)
    store.get("dying")
    clock.seconds += 6
    wall.seconds += 6
    store.set("new", b"1", 100)
    assert set(store.sizes()) == {"alive", "new"}
    assert gone == [("dying", "expired")]
    store.close()


def test_a_sweep_clears_dead_entries_and_leases(path: Path, clock, wall) -> None:
    """Without any lookup the dead leave with a later write."""
    store = SqliteStore(path, clock=clock, wall=wall)
    store.set("dying", b"1", 5)
    store.acquire("l", "one", 5)
    clock.seconds += 100
    wall.seconds += 100
    store.set("new", b"1")
    assert store._query("SELECT key FROM entries") == [("new",)]
    assert store._query("SELECT key FROM leases") == []
    store.close()


def test_a_wall_clock_that_goes_back_brings_nothing_to_life(path: Path, clock, wall) -> None:
    """An entry that has expired stays expired when the wall clock is set back an hour."""
    store = SqliteStore(path, clock=clock, wall=wall)
    store.set("k", b"1", 10)
    clock.seconds += 11
    wall.seconds -= 3_600
    assert store.get("k") is None
    store.close()


def test_a_wall_clock_that_goes_back_blocks_nobody(path: Path, clock, wall) -> None:
    """A lease ends after its seconds although the wall clock says that it is an hour too early."""
    store = SqliteStore(path, clock=clock, wall=wall)
    assert store.acquire("l", "dead", 10)
    wall.seconds -= 3_600
    assert not store.acquire("l", "next", 10)
    clock.seconds += 11
    assert store.acquire("l", "next", 10)
    store.close()


def test_after_a_restart_of_the_machine_the_wall_clock_counts(path: Path, clock, wall) -> None:
    """The steady clock starts at zero again: entries live by the wall, and none from the wall's future."""
    store = SqliteStore(path, clock=clock, wall=wall)
    store.set("short", b"1", 10)
    store.set("long", b"1", 1_000)
    store._boot = b"another start"
    clock.seconds = 1.0
    wall.seconds += 100
    assert store.get("short") is None
    assert store.get("long") == b"1"
    wall.seconds -= 5_000
    assert store.get("long") is None
    store.close()


def test_generations_do_not_survive_a_restart_of_the_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may have lost the last bump, so nothing from before it counts as current."""
    store = SqliteStore(path)
    before = store.generations(["g"])
    monkeypatch.setattr("cacheprefix.stores.sqlite.boot_id", lambda: b"another start")
    again = SqliteStore(path)
    assert again.generations(["g"]) != before
    store.close()
    again.close()


def test_a_system_that_does_not_name_its_start_goes_by_the_wall(
    path: Path, clock, wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes there agree on generations and on what has expired."""
    monkeypatch.setattr("cacheprefix.stores.sqlite.boot_id", lambda: b"")
    one, two = (SqliteStore(path, clock=clock, wall=wall) for _ in range(2))
    one.set("k", b"1", 10)
    assert two.get("k") == b"1"
    assert one.generations(["g"]) == two.generations(["g"])
    wall.seconds += 11
    assert two.get("k") is None
    one.close()
    two.close()


def test_a_file_that_is_no_database_is_a_typed_error(path: Path) -> None:
    """The error names the file and says what to do."""
    path.write_bytes(b"this is not a database, not even a little" * 100)
    with pytest.raises(StoreError, match=r"store\.db.*delete it"):
        SqliteStore(path)


def test_a_file_damaged_while_open_is_a_typed_error_or_a_miss(path: Path) -> None:
    """Scribbling over the pages never gives wrong bytes and raises nothing but StoreError."""
    store = SqliteStore(path)
    for i in range(200):
        store.set(f"k{i}", bytes([i]) * 500)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for place in range(4096, size - 100, 2048):
            file.seek(place)
            file.write(b"\xa5" * 100)
    try:
        again = SqliteStore(path)
    except StoreError:
        return
    for i in range(200):
        try:
            found = again.get(f"k{i}")
        except StoreError:
            continue
        assert found is None or len(found) == 500
    again.close()


def test_a_foreign_value_in_a_row_is_a_miss(path: Path) -> None:
    """A row that does not hold bytes was written by somebody else."""
    store = SqliteStore(path)
    store.set("k", b"1")
    with sqlite3.connect(path) as other:
        other.execute("UPDATE entries SET value = 'text'")
    other.close()
    assert store.get("k") is None
    store.close()


def test_a_file_of_another_version_is_refused(path: Path) -> None:
    """A format that this version does not know is named, and the file is left as it is."""
    SqliteStore(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StoreError, match="format 99"):
        SqliteStore(path)


def test_a_full_disk_is_a_typed_error_and_nothing_is_lost(path: Path) -> None:
    """When SQLite reports a full disk the write is undone, and reading goes on."""
    store = SqliteStore(path)
    store.set("k", b"1")
    pages = store._query("PRAGMA page_count")[0][0]
    store._query(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.set("big", b"1" * 1_000_000)
    assert store.get("k") == b"1"
    assert store.get("big") is None
    store._query("PRAGMA max_page_count = 1000000")
    store.set("big", b"1" * 1_000_000)
    assert len(store.get("big") or b"") == 1_000_000
    store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX")
def test_a_write_that_the_system_refuses_is_a_typed_error(path: Path) -> None:
    """A process that may not write larger files gets StoreError and still reads."""
    code = """
import resource, signal, sys
from cacheprefix.errors import StoreError
from cacheprefix.stores import SqliteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(sys.argv[1])
store.set("k", b"1")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    store.set("big", b"1" * 5_000_000)
except StoreError:
    print("refused", store.get("k"))
"""
    out, err = python(code, path).communicate(timeout=60)
    assert out.strip() == "refused b'1'", err


def test_a_locked_file_raises_after_the_timeout(path: Path, clock: Any) -> None:
    """Another process's endless write costs the timeout, and the calls that follow nothing."""
    store = SqliteStore(path, timeout=0.1, clock=clock)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.set("k", b"1")
    store._timeout = 1e9
    with pytest.raises(StoreError, match="a moment ago"):
        store.set("k", b"1")
    assert store.get("k") is None
    other.execute("ROLLBACK")
    other.close()
    clock.seconds += 1.0
    store.set("k", b"1")
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_its_own_connection(path: Path) -> None:
    """Parent and child both write after a fork, and both writes are there."""
    store = SqliteStore(path)
    store.set("before", b"1")
    child = os.fork()
    if child == 0:
        try:
            store.set("child", store.get("before") or b"")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    store.set("parent", b"1")
    assert set(store.sizes()) == {"before", "child", "parent"}
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_while_a_thread_writes_can_write(path: Path) -> None:
    """A write of the parent's that was under way does not lock the file for the child for ever."""
    store = SqliteStore(path, timeout=0.5)
    inside = threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM entries")
        inside.set()
        time.sleep(0.2)

    writer = threading.Thread(target=store._write, args=(slow,))
    writer.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        written = False
        try:
            store.set("child", b"1")
            written = True
        finally:
            os._exit(0 if written else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.join()
    assert store.get("child") == b"1"
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_parent_and_child_share_the_file_also_when_one_of_them_closed_it(path: Path) -> None:
    """The last connection that closes takes SQLite's side files away: a child's own counts as one."""
    store = SqliteStore(path)
    went_on, go_on = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.set("child", b"before")
            os.write(tell, b"1")
            os.read(went_on, 1)
            store.set("child", b"after")
            os.write(tell, store.get("parent") or b"nothing")
        finally:
            os._exit(0)
    os.read(told, 1)
    store.close()
    store.set("parent", b"written")
    os.write(go_on, b"1")
    assert os.read(told, 100) == b"written"
    os.waitpid(child, 0)
    assert store.get("child") == b"after"
    store.close()
    for end in (went_on, go_on, told, tell):
        os.close(end)


def test_many_reads_are_written_down_before_they_pile_up(path: Path) -> None:
    """What was read is noted in the file now and then, also when nothing is ever set."""
    store = SqliteStore(path)
    for i in range(1_500):
        store.set(f"k{i}", b"1")
    for i in range(1_500):
        store.get(f"k{i}")
    assert len(store._touched) <= 1_024
    store.close()


def test_both_local_stores_agree(path: Path, clock, wall) -> None:
    """Memory and file give the same answers to the same questions."""
    stores = [MemoryStore(clock=clock, max_entries=3), SqliteStore(path, clock=clock, wall=wall, max_entries=3)]
    answers: list[list[object]] = [[], []]
    for store, said in zip(stores, answers, strict=True):
        clock.seconds, wall.seconds = 0.0, 1e9
        for i, key in enumerate("abcadbeacf"):
            said.append(store.get(key))
            store.set(key, key.encode() * i, 4 if i % 2 else None)
            clock.seconds += 1
            wall.seconds += 1
            said.append(sorted(store.sizes()))
    assert answers[0] == answers[1]
    stores[1].close()


def test_a_file_that_is_deleted_or_replaced_is_opened_anew(path: Path) -> None:
    """What is written goes to the file that stands there, and not to one that only this process holds."""
    store = SqliteStore(path)
    store.set("k", b"old")
    before = store.generations(["a"])
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)
    other = SqliteStore(path)
    other.set("k", b"new")
    assert store.get("k") == b"new"
    assert store.generations(["a"]) == other.generations(["a"]) != before
    path.unlink()
    assert store.get("k") is None
    store.set("k", b"newest")
    assert other.get("k") == b"newest"
    for each in (store, other):
        each.close()


def test_a_file_locked_by_others_still_outdates(path: Path) -> None:
    """A writer that cannot write a generation makes every answer of before worthless, in all processes."""
    store, reader = SqliteStore(path, timeout=0), SqliteStore(path)
    before = reader.generations(["a", "b"])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for change in (lambda: store.mark(["a"], "w", 1), lambda: store.bump(["a"], "w")):
        known = reader.generations(["a", "b"])
        with pytest.raises(StoreError, match="locked"):
            change()
        assert reader.generations(["a", "b"]) != known
    other.execute("ROLLBACK")
    other.close()
    assert reader.generations(["a", "b"]) not in {before, known}
    assert Path(f"{path}-outdated").stat().st_mode & 0o777 == 0o600
    for each in (store, reader):
        each.close()


def test_a_file_that_takes_no_writes_outdates(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk mounted read-only after an error takes no change of another process, beside the file neither."""
    store = SqliteStore(path)
    known = store.generations(["a"])
    assert store.generations(["a"]) == known
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    assert store.generations(["a"]) != store.generations(["a"])
    monkeypatch.undo()
    assert store.generations(["a"]) == known
    store.close()


def test_a_file_of_the_first_format_is_read_on(path: Path) -> None:
    """It gains the table of marks; what it kept stays."""
    store = SqliteStore(path)
    store.set("k", b"1")
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute("DROP TABLE marks")
        old.execute("PRAGMA user_version = 1")
    store.mark(["a"], "w", 60)
    assert store.get("k") == b"1"
    assert store.generations(["a"]) != store.generations(["a"])
    store.close()
