"""The store of several machines, on a real Valkey server that stops, restarts and hangs."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cacheprefix.errors import MissingExtraError, StoreError
from cacheprefix.stores import RedisStore


@pytest.fixture
def server(tmp_path: Path, start_valkey: Any) -> Iterator[Any]:
    """A server that the test may ill-treat."""
    own = start_valkey(tmp_path / "server")
    yield own
    own.kill()


@pytest.fixture
def store(server: Any) -> Iterator[RedisStore]:
    """A store that forgives quickly."""
    made = RedisStore(server.url, timeout=0.3, cooldown=0.2)
    yield made
    made.close()


def test_a_stopped_server_raises_quickly(server: Any, store: RedisStore) -> None:
    """Every operation of the protocol raises StoreError, and a hundred of them take no time."""
    store.set("k", b"1")
    server.kill()
    began = time.monotonic()
    for _ in range(10):
        for ask in (
            lambda: store.get("k"),
            lambda: store.read("k", ["g"]),
            lambda: store.set("k", b"1"),
            lambda: store.delete("k"),
            lambda: store.generations(["g"]),
            lambda: store.bump(["g"]),
            store.sizes,
            store.clear,
            lambda: store.acquire("l", "one", 1),
            lambda: store.renew("l", "one", 1),
            lambda: store.release("l", "one"),
        ):
            with pytest.raises(StoreError, match="answer"):
                ask()
    assert time.monotonic() - began < 5


def test_a_server_that_came_back_is_used_again(server: Any, store: RedisStore) -> None:
    """After the cooldown the same store object works, scripts included."""
    assert store.acquire("l", "one", 5)
    server.kill()
    with pytest.raises(StoreError):
        store.get("k")
    server.start()
    time.sleep(0.25)
    store.set("k", b"1")
    assert store.get("k") == b"1"
    assert store.acquire("l", "two", 5)


def test_a_restart_between_two_calls_goes_unnoticed(server: Any, store: RedisStore) -> None:
    """A pooled connection that the restart broke is replaced within the call."""
    store.set("k", b"1")
    server.kill()
    server.start()
    assert store.get("k") is None
    store.set("k", b"2")
    assert store.get("k") == b"2"


def test_a_dropped_connection_is_replaced(store: RedisStore) -> None:
    """When the server closes all connections the next call opens a new one."""
    import redis

    store.set("k", b"1")
    port = store._client.connection_pool.connection_kwargs["port"]
    other = redis.Redis(port=port)
    other.client_kill_filter(_type="normal", skipme=True)
    other.close()
    assert store.get("k") == b"1"


def test_a_restart_outdates_generations_even_when_everything_was_saved(server: Any, store: RedisStore) -> None:
    """A snapshot may be older than the last bump: entries come back, their generation does not."""
    store.set("k", b"1")
    before = store.generations(["g"])
    store._client.save()
    server.kill()
    server.start()
    value, after = store.read("k", ["g"])
    assert value == b"1"
    assert after != before


def test_two_stores_agree_on_generations(server: Any, store: RedisStore) -> None:
    """All clients of one running server see the same."""
    other = RedisStore(server.url)
    assert other.generations(["g"]) == store.generations(["g"])
    other.bump(["g"])
    assert other.generations(["g"]) == store.generations(["g"])
    other.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a process is stopped by a POSIX signal")
def test_a_server_that_hangs_costs_one_timeout(server: Any, store: RedisStore) -> None:
    """A server that accepts and never answers raises after the timeout, then at once."""
    store.set("k", b"1")
    server.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(StoreError):
                store.get("k")
        assert time.monotonic() - began < 1.5
    finally:
        server.send(signal.SIGCONT)
    time.sleep(0.25)
    assert store.get("k") == b"1"


def test_an_answer_that_comes_late_is_never_taken_for_the_next(server: Any, store: RedisStore) -> None:
    """After a timeout the connection is dropped, so no later call reads the old answer."""
    store.set("a", b"answer a")
    store.set("b", b"answer b")
    server.send(signal.SIGSTOP)
    with pytest.raises(StoreError):
        store.get("a")
    server.send(signal.SIGCONT)
    time.sleep(0.25)
    assert store.get("b") == b"answer b"


def test_a_server_that_quotes_what_it_was_sent_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with renamed commands answers an unknown one with its arguments."""
    redis = pytest.importorskip("redis")
    made = RedisStore("redis://localhost:1")

    def quotes(*_: Any, **__: Any) -> None:
        raise redis.ResponseError("unknown command 'SET', with args beginning with: 'k:v' 'the text' ")

    monkeypatch.setattr(made._client, "execute_command", quotes)
    with pytest.raises(StoreError, match=r"refuses: unknown command 'SET'$"):
        made.set("k", b"the text")


def test_a_full_server_is_a_typed_error(server: Any, store: RedisStore) -> None:
    """A server out of memory refuses the write; reading goes on without a cooldown."""
    store.set("k", b"1")
    store._client.config_set("maxmemory", "1")
    with pytest.raises(StoreError, match="refuses"):
        store.set("other", b"1")
    assert store.get("k") == b"1"


@pytest.mark.parametrize("setting", [("CONFIG SET min-replicas-to-write 1"), ("REPLICAOF 127.0.0.1 1")])
def test_a_server_that_takes_no_writes_gives_no_entry(server: Any, store: RedisStore, setting: str) -> None:
    """Another process's change cannot be written down there: what is read may be outdated."""
    other = RedisStore(server.url)
    store.bump(["g"])
    store.set("k", b"1")
    assert store.read("k", ["g"])[0] == b"1"
    other._client.execute_command(*setting.split())
    for ask in (lambda: other.bump(["g"]), lambda: store.read("k", ["g"])):
        with pytest.raises(StoreError, match="refuses"):
            ask()
    other.close()


def test_a_foreign_value_under_our_key_is_a_miss(store: RedisStore) -> None:
    """A list where bytes should be reads as absent, and as a generation it never matches."""
    store._client.rpush("k:v", b"1")
    store._client.rpush("g:g", b"1")
    value, one = store.read("k", ["g"])
    assert value is None
    assert store.read("k", ["g"])[1] != one


def test_a_server_that_hides_its_run_id_still_serves(store: RedisStore) -> None:
    """Where INFO is forbidden the store works, with generations that go by the tokens alone."""
    store._client.execute_command("ACL", "SETUSER", "shy", "on", ">pw", "~*", "+@all", "-info")
    port = store._client.connection_pool.connection_kwargs["port"]
    other = RedisStore(f"redis://shy:pw@127.0.0.1:{port}/0")
    other.set("k", b"1")
    first = other.generations(["g"])
    assert other.read("k", ["g"]) == (b"1", first)
    other.bump(["g"])
    assert other.generations(["g"]) != first
    other.close()


def test_errors_do_not_tell_the_password() -> None:
    """The address in messages holds no secret."""
    store = RedisStore("redis://user:hunter2@127.0.0.1:1/0", timeout=0.2)
    with pytest.raises(StoreError) as caught:
        store.get("k")
    assert "hunter2" not in str(caught.value) + repr(store)


def test_without_redis_py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match=r"cacheprefix\[redis\]"):
        RedisStore()


def test_keys_expire_in_the_server(store: RedisStore) -> None:
    """Entries, generations and leases carry an expiry, so nothing stays for ever by accident."""
    store.set("k", b"1", 60)
    store.generations(["g"])
    store.acquire("l", "one", 5)
    assert 55_000 < store._client.pttl("k:v") <= 60_000
    assert store._client.pttl("g:g") > 0
    assert 0 < store._client.pttl("l:l") <= 5_000
