"""Prompt caching under test: record prompts, hold what they share, freeze a prefix, run an adapter's conformance.

The pytest plugin (fixtures ``prefix_recorder`` and ``prefix_snapshot``, option ``--cacheprefix-update``) is loaded by
entry point and does nothing until a test asks for it. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix.server import Queue, Reply, Rule, Rules, SimulatedProvider, ToolCall
    from cacheprefix.testing._assertions import assert_prefix_stable, assert_shared_prefix, shared_shares
    from cacheprefix.testing._conformance import AdapterConformance
    from cacheprefix.testing._driver import Driver, Role, Team, Way, play
    from cacheprefix.testing._recorder import PrefixRecorder, RecordedCall
    from cacheprefix.testing._requests import assert_valid_requests, request_errors
    from cacheprefix.testing._scripted import ScriptedModel
    from cacheprefix.testing._snapshot import PrefixSnapshot, frozen_prefix

_HOMES = {
    "AdapterConformance": "testing._conformance",
    "Driver": "testing._driver",
    "PrefixRecorder": "testing._recorder",
    "PrefixSnapshot": "testing._snapshot",
    "Queue": "server",
    "RecordedCall": "testing._recorder",
    "Reply": "server",
    "Role": "testing._driver",
    "Rule": "server",
    "Rules": "server",
    "ScriptedModel": "testing._scripted",
    "SimulatedProvider": "server",
    "Team": "testing._driver",
    "ToolCall": "server",
    "Way": "testing._driver",
    "assert_prefix_stable": "testing._assertions",
    "assert_shared_prefix": "testing._assertions",
    "assert_valid_requests": "testing._requests",
    "frozen_prefix": "testing._snapshot",
    "play": "testing._driver",
    "request_errors": "testing._requests",
    "shared_shares": "testing._assertions",
}

__all__ = [
    "AdapterConformance",
    "Driver",
    "PrefixRecorder",
    "PrefixSnapshot",
    "Queue",
    "RecordedCall",
    "Reply",
    "Role",
    "Rule",
    "Rules",
    "ScriptedModel",
    "SimulatedProvider",
    "Team",
    "ToolCall",
    "Way",
    "assert_prefix_stable",
    "assert_shared_prefix",
    "assert_valid_requests",
    "frozen_prefix",
    "play",
    "request_errors",
    "shared_shares",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'cacheprefix.testing' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"cacheprefix.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
