"""Prompt caching under test: record prompts, hold what they share, freeze a prefix, run an adapter's conformance.

The pytest plugin (fixtures ``prefix_recorder`` and ``prefix_snapshot``, option ``--cacheprefix-update``) is loaded by
entry point and does nothing until a test asks for it. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.lazy_names import lazy

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

__getattr__, __dir__ = lazy(
    globals(),
    {
        "server": "Reply ToolCall",
        "testing.assertions": "assert_forked assert_prefix_stable assert_shared_prefix",
        "testing.conformance": "AdapterConformance",
        "testing.driver": "Driver Role Team Way play",
        "testing.equal_information": "information",
        "testing.recorder": "PrefixRecorder",
        "testing.requests": "assert_valid_requests request_errors",
        "testing.scripted_model": "ScriptedModel",
        "testing.snapshot": "PrefixSnapshot frozen_prefix",
    },
)

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
