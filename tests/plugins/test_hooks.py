"""Every hook reaches a plugin with its arguments, and its answers count as declared."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from cacheprefix import hookspecs
from cacheprefix.plugins import HookName, Plugins

ARGUMENTS = {
    "wrap": ("target", "session"),
    "preview": ("target", "session", "task"),
    "freeze": ("prefix",),
    "fork": ("fork",),
    "replace_tool_result": ("result", "budget"),
    "compact": ("view", "policy"),
    "count_tokens": ("text", "model"),
    "place_breakpoints": ("prompt", "profile"),
    "profiles": ("register",),
    "tool_cacheable": ("tool", "arguments"),
    "before_call": ("prompt",),
    "after_call": ("call", "verdict"),
    "cache_break": ("verdict",),
    "trace_readers": ("register",),
    "commands": ("cli",),
}
FIRST = {"wrap", "preview", "replace_tool_result", "compact", "count_tokens", "place_breakpoints", "tool_cacheable"}


class Recorder:
    """A plugin with one hook, written as a user writes it: a function with the hook's own arguments."""

    def __init__(self, hook, answer):
        self.seen = []
        names = ", ".join(ARGUMENTS[hook])
        scope = {"seen": self.seen, "answer": answer}
        exec(f"def hook({names}):\n    seen.append(({names},))\n    return answer", scope)
        setattr(self, f"cacheprefix_{hook}", scope["hook"])


def _plugins(*registered):
    return Plugins(plugins=registered, discover=False)


def _given(hook):
    return {name: object() for name in ARGUMENTS[hook]}


def test_the_hooks_are_those_of_the_table():
    """There is a specification for each hook in the table and for no other."""
    specified = {name for name in dir(hookspecs) if name.startswith("cacheprefix_")}
    assert specified == {f"cacheprefix_{name}" for name in ARGUMENTS}
    assert set(ARGUMENTS) == set(get_args(HookName))


@pytest.mark.parametrize("hook", ARGUMENTS)
def test_a_hook_has_exactly_these_arguments(hook):
    """Plugins are written against the argument names, so they may not change unnoticed."""
    specification = getattr(hookspecs, f"cacheprefix_{hook}")
    assert tuple(inspect.signature(specification).parameters) == ARGUMENTS[hook]


@pytest.mark.parametrize("hook", ARGUMENTS)
def test_a_plugin_gets_the_very_objects_of_the_call(hook):
    """Nothing is copied or wrapped on the way to a plugin."""
    plugin = Recorder(hook, None)
    arguments = _given(hook)
    _plugins(plugin).call_all(hook, **arguments)
    assert plugin.seen == [tuple(arguments.values())]


@pytest.mark.parametrize("hook", ARGUMENTS)
def test_an_answer_comes_back(hook):
    """What a plugin returns is what the caller gets."""
    answer = object()
    assert _plugins(Recorder(hook, answer)).call_first(hook, **_given(hook)) is answer


@pytest.mark.parametrize("hook", ARGUMENTS)
def test_without_a_plugin_there_is_no_answer(hook):
    """No plugin means None, or no results."""
    assert _plugins().call_first(hook, **_given(hook)) is None
    assert _plugins().call_all(hook, **_given(hook)) == []


@pytest.mark.parametrize("hook", sorted(FIRST))
def test_a_deciding_hook_stops_at_the_first_answer(hook):
    """The last registered plugin decides, and the others are not asked any more."""
    early, late = Recorder(hook, "early"), Recorder(hook, "late")
    assert _plugins(early, late).call_first(hook, **_given(hook)) == "late"
    assert early.seen == []


@pytest.mark.parametrize("hook", sorted(set(ARGUMENTS) - FIRST))
def test_a_watching_hook_asks_everyone(hook):
    """Every plugin is told, the last registered first."""
    early, late = Recorder(hook, "early"), Recorder(hook, "late")
    assert _plugins(early, late).call_all(hook, **_given(hook)) == ["late", "early"]
