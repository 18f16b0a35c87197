"""Which calls are identical."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import json
import math
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.stores import MemoryStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


def reversed_keys(value: Any) -> Any:
    """The same value with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {k: reversed_keys(v) for k, v in reversed(value.items())}
    return [reversed_keys(v) for v in value] if isinstance(value, list) else value


def runs(*calls: tuple[ToolSpec, dict[str, Any]], **options: Any) -> int:
    """How often a tool ran for these calls in turn."""
    cache, count = ToolResultCache(options=ToolCacheOptions(**options)), itertools.count()
    for spec, arguments in calls:
        cache.call(spec, arguments, lambda: next(count))
    return next(count)


@given(ARGUMENTS)
def test_the_order_of_keys_does_not_matter(arguments: dict[str, Any]) -> None:
    """At any depth."""
    spec = ToolSpec("read", cacheable=True, version="1")
    assert runs((spec, arguments), (spec, reversed_keys(arguments))) == 1


@given(ARGUMENTS, ARGUMENTS)
def test_calls_are_identical_exactly_when_their_json_is(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Equal canonical JSON gives one run, anything else two."""
    spec = ToolSpec("read", cacheable=True, version="1")
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert runs((spec, one), (spec, two)) == (1 if same else 2)


def test_values_of_different_types_differ() -> None:
    """1, 1.0, True and "1", as nothing, null and the empty text, are different arguments."""
    spec = ToolSpec("read", cacheable=True, version="1")
    values = [1, 1.0, True, "1", 0, 0.0, False, "", None, [], {}, "null", "true", [1], ["1"]]
    assert runs(*((spec, {"v": v}) for v in values), (spec, {})) == len(values) + 1


def test_the_border_between_name_and_value_counts() -> None:
    """No two calls run together into one key."""
    calls = [
        (ToolSpec("read", cacheable=True, version="1"), {"a": "b,c"}),
        (ToolSpec("read", cacheable=True, version="1"), {"a": "b", "c": ""}),
        (ToolSpec("read", cacheable=True, version="1"), {"a,b": "c"}),
        (ToolSpec("read", cacheable=True, version="1", environment={"a": "b"}), {}),
        (ToolSpec("read", cacheable=True, version="1"), {"environment": {"a": "b"}}),
    ]
    assert runs(*calls) == len(calls)


class _Colour(str, enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        b"bytes",
        (1, 2),
        math.nan,
        math.inf,
        2**80,
        "\ud800",
        _Colour.RED,
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
        uuid.UUID(int=1),
        Path("a"),
        {1: "int key"},
        {"deep": [{"deeper": {1, 2}}]},
    ],
)
def test_arguments_that_json_cannot_tell_exactly_are_not_cached(value: Any) -> None:
    """They run every time rather than share a key with something else."""
    assert runs(*[(ToolSpec("read", cacheable=True, version="1"), {"v": value})] * 2) == 2


def test_arguments_that_hold_themselves_are_not_cached() -> None:
    """Endless nesting is refused, not followed."""
    loop: list[Any] = []
    loop.append(loop)
    assert runs(*[(ToolSpec("read", cacheable=True, version="1"), {"v": loop})] * 2) == 2


def test_scopes_never_meet() -> None:
    """The same call of another tenant runs the tool, and each gets its own result."""
    cache, spec = ToolResultCache(), ToolSpec("read", cacheable=True, version="1")
    assert cache.call(spec, {}, lambda: "of a", scope="a") == "of a"
    assert cache.call(spec, {}, lambda: "of b", scope="b") == "of b"
    assert cache.call(spec, {}, lambda: "of nobody") == "of nobody"
    assert cache.call(spec, {}, lambda: "again", scope="a") == "of a"


@given(st.text(max_size=6), st.text(max_size=6))
def test_any_two_scopes_are_apart(one: str, two: str) -> None:
    """Also scopes that hold the separators of keys."""
    cache, spec = ToolResultCache(), ToolSpec("read", cacheable=True, version="1")
    cache.call(spec, {}, lambda: "one", scope=one)
    assert (cache.call(spec, {}, lambda: "two", scope=two) == "one") == (one == two)


def test_a_cache_has_a_scope_of_its_own() -> None:
    """What a call does not name comes from the cache; two caches on one store stay apart."""
    store, spec = MemoryStore(), ToolSpec("read", cacheable=True, version="1")
    a, b = ToolResultCache(store, ToolCacheOptions(scope="a")), ToolResultCache(store, ToolCacheOptions(scope="b"))
    assert a.call(spec, {}, lambda: "of a") == "of a"
    assert b.call(spec, {}, lambda: "of b") == "of b"
    assert b.call(spec, {}, lambda: "again", scope="a") == "of a"


def test_the_environment_is_part_of_the_key() -> None:
    """Another working directory or version is another call; the tool's word wins over the cache's."""
    calls = [
        (ToolSpec("read", cacheable=True, version="1", environment={"cwd": cwd}), {"path": "a"})
        for cwd in ("/one", "/two", "/one")
    ]
    assert runs(*calls) == 2
    assert runs(*calls, environment={"cwd": "/all", "version": "1"}) == 2
    assert (
        runs(
            (ToolSpec("read", cacheable=True, version="1"), {}),
            (ToolSpec("read", cacheable=True, version="1", environment={"cwd": "/all"}), {}),
            environment={"cwd": "/all"},
        )
        == 1
    )


def test_origin_is_part_of_the_key() -> None:
    """An MCP tool of the same name is another tool."""
    local, foreign = (
        ToolSpec("read", cacheable=True, version="1"),
        ToolSpec("read", cacheable=True, version="1", origin="mcp"),
    )
    assert runs((local, {}), (foreign, {}), allow=["read", "mcp:read"]) == 2


def test_keys_in_the_store_are_digests() -> None:
    """Scope, tool, arguments and paths do not stand in the store's keys or generation names."""
    store = MemoryStore()
    cache = ToolResultCache(store)
    spec = ToolSpec("read", cacheable=True, version="1", reads=("path",))
    cache.call(spec, {"path": "/home/secret.txt"}, lambda: "text", scope="tenant-9")
    names = [*store.sizes(), *store._generations]
    assert len(names) > 3
    assert not [n for n in names if "tenant" in n or "secret" in n or "read" in n or "home" in n]


def test_the_same_call_has_the_same_key_in_every_process() -> None:
    """Keys do not depend on Python's hash seed or on the process."""
    import subprocess
    import sys

    code = """
from cacheprefix.stores import MemoryStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
store = MemoryStore()
spec = ToolSpec("read", cacheable=True, version="1")
ToolResultCache(store).call(spec, {"b": 1, "a": [True, None]}, lambda: "text", scope="t")
print(*store.sizes())
"""
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
