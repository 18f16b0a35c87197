"""Which tools are cached."""

from __future__ import annotations

from typing import Any

import pytest

from cacheprefix.toolcache import DEFAULT_ALLOW, ToolCacheOptions, ToolResultCache, ToolSpec


def cached(spec: ToolSpec, arguments: dict[str, Any] | None = None, **options: Any) -> bool:
    """Whether the second of two identical calls does not run."""
    runs: list[int] = []
    cache = ToolResultCache(options=ToolCacheOptions(**options))
    for _ in range(2):
        cache.call(spec, arguments or {}, lambda: runs.append(1))
    return len(runs) == 1


@pytest.mark.parametrize("name", DEFAULT_ALLOW)
def test_known_readers_are_cached(name: str) -> None:
    """The ready-made list of names, for those who allow it: by default no name is enough."""
    assert cached(ToolSpec(name), allow=DEFAULT_ALLOW)
    assert not cached(ToolSpec(name))


@pytest.mark.parametrize(
    "name",
    [
        *("bash", "write", "edit", "delete", "move", "memory_save", "memory_search", "scheduler"),
        *("delete_path", "move_path", "copy_path", "create_directory", "set_working_directory", "write_file"),
        *("Bash", "EDIT", "Write_File"),
    ],
)
def test_tools_that_act_are_never_cached(name: str) -> None:
    """Not by default, not when everything is allowed, not when declared pure: deny wins."""
    assert not cached(ToolSpec(name))
    assert not cached(ToolSpec(name), allow=["*"])
    assert not cached(ToolSpec(name, cacheable=True))
    assert not cached(ToolSpec(name), cacheable=lambda spec, arguments: True)


@pytest.mark.parametrize("name", ["get_weather", "reader", "read_file", "mcp_read", ""])
def test_unknown_tools_are_not_cached(name: str) -> None:
    """Only a declaration or a pattern allows a tool."""
    assert not cached(ToolSpec(name))
    assert cached(ToolSpec(name, cacheable=True))
    assert cached(ToolSpec(name), allow=["*"])


def test_a_tool_that_is_declared_impure_is_not_cached() -> None:
    """Its author knows better than a pattern."""
    assert not cached(ToolSpec("read", cacheable=False))
    assert not cached(ToolSpec("read", cacheable=False), allow=["*"])


@pytest.mark.parametrize("mutates", [True, ("path",)])
def test_a_tool_that_changes_something_is_not_cached(mutates: Any) -> None:
    """Whatever its name, its declaration and the hook say."""
    spec = ToolSpec("read", cacheable=True, mutates=mutates)
    assert not cached(spec, {"path": "/a"})
    assert not cached(spec, {"path": "/a"}, cacheable=lambda spec, arguments: True)


def test_mcp_tools_are_known_by_origin_and_not_by_name() -> None:
    """A foreign tool called read is not the read that the list means, and a local mcp_read is local."""
    foreign = ToolSpec("read", origin="mcp")
    assert not cached(foreign)
    assert not cached(foreign, allow=["*"])
    assert not cached(foreign, allow=["read"])
    assert cached(foreign, allow=["mcp:read"])
    assert cached(foreign, allow=["mcp:*"])
    assert not cached(ToolSpec("read"), allow=["mcp:*"])
    assert cached(ToolSpec("mcp_read"), allow=["mcp_*"])


def test_denied_names_are_denied_for_mcp_too() -> None:
    """Allowing a server's tools does not allow its bash; a pattern may deny its tools alone."""
    assert not cached(ToolSpec("bash", origin="mcp"), allow=["mcp:*"])
    assert not cached(ToolSpec("look", origin="mcp"), allow=["*", "mcp:*"], deny=["mcp:look"])
    assert cached(ToolSpec("look"), allow=["*", "mcp:*"], deny=["mcp:look"])


def test_both_lists_are_configurable() -> None:
    """Wildcards and any case; an empty deny list denies nothing."""
    assert cached(ToolSpec("fetch_page"), allow=["fetch_*"])
    assert not cached(ToolSpec("fetch_page"), allow=["fetch_*"], deny=["*_page"])
    assert cached(ToolSpec("Read"), allow=["read"])
    assert cached(ToolSpec("bash", cacheable=True), deny=[])


def test_a_hook_decides_by_arguments() -> None:
    """True and False overrule lists and declaration, None leaves it to them."""

    def hook(spec: ToolSpec, arguments: Any) -> bool | None:
        return {"yes": True, "no": False}.get(arguments.get("say"))

    assert cached(ToolSpec("unknown"), {"say": "yes"}, cacheable=hook)
    assert not cached(ToolSpec("read"), {"say": "no"}, cacheable=hook, allow=["read"])
    assert cached(ToolSpec("read"), {"say": "well"}, cacheable=hook, allow=["read"])


def test_a_hook_that_raises_caches_nothing() -> None:
    """The tool runs and the failure is counted."""

    def hook(spec: ToolSpec, arguments: Any) -> bool | None:
        raise RuntimeError("hook")

    cache = ToolResultCache(options=ToolCacheOptions(cacheable=hook, allow=["read"]))
    assert cache.call(ToolSpec("read"), {}, lambda: "content") == "content"
    assert cache.stats().store_errors == 1
    assert not cached(ToolSpec("read"), cacheable=hook, allow=["read"])
