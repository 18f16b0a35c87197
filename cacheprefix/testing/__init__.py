"""Prompt caching under test: record prompts, hold what they share, freeze a prefix, run an adapter's conformance.

The pytest plugin (fixtures ``prefix_recorder`` and ``prefix_snapshot``, option ``--cacheprefix-update``) is loaded by
entry point and does nothing until a test asks for it. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix.server import Reply, ToolCall
    from cacheprefix.testing.assertions import assert_forked, assert_prefix_stable, assert_shared_prefix
    from cacheprefix.testing.conformance import AdapterConformance
    from cacheprefix.testing.driver import Driver, Role, Team, Way, play
    from cacheprefix.testing.equal_information import information
    from cacheprefix.testing.recorder import PrefixRecorder
    from cacheprefix.testing.requests import assert_valid_requests, request_errors
    from cacheprefix.testing.scripted_model import ScriptedModel
    from cacheprefix.testing.snapshot import PrefixSnapshot, frozen_prefix

_HOMES = {
    "AdapterConformance": "testing.conformance",
    "Driver": "testing.driver",
    "PrefixRecorder": "testing.recorder",
    "PrefixSnapshot": "testing.snapshot",
    "Reply": "server",
    "Role": "testing.driver",
    "ScriptedModel": "testing.scripted_model",
    "Team": "testing.driver",
    "ToolCall": "server",
    "Way": "testing.driver",
    "assert_prefix_stable": "testing.assertions",
    "assert_forked": "testing.assertions",
    "assert_shared_prefix": "testing.assertions",
    "assert_valid_requests": "testing.requests",
    "frozen_prefix": "testing.snapshot",
    "information": "testing.equal_information",
    "play": "testing.driver",
    "request_errors": "testing.requests",
}

__all__ = [
    "AdapterConformance",
    "Driver",
    "PrefixRecorder",
    "PrefixSnapshot",
    "Reply",
    "Role",
    "ScriptedModel",
    "Team",
    "ToolCall",
    "Way",
    "assert_forked",
    "assert_prefix_stable",
    "assert_shared_prefix",
    "assert_valid_requests",
    "frozen_prefix",
    "information",
    "play",
    "request_errors",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cacheprefix.testing' has no attribute {name!r}")
    value = getattr(import_module(f"cacheprefix.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
