"""The order of plugins, and what happens when one of them is wrong or fails."""

from __future__ import annotations

import asyncio
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from cacheprefix.errors import SetupError
from cacheprefix.plugins import CacheprefixPluginWarning, Plugins, hookimpl

COUNT = {"text": "a few words", "model": "gpt-4o"}


class Answers:
    def __init__(self, answer):
        self.answer = answer

    def cacheprefix_count_tokens(self):
        return self.answer


class Raises:
    def __init__(self):
        self.calls = 0

    def cacheprefix_count_tokens(self, text):
        self.calls += 1
        raise ZeroDivisionError(text)

    def cacheprefix_before_call(self):
        raise ZeroDivisionError


class Watches:
    def __init__(self):
        self.prompts = []

    def cacheprefix_before_call(self, prompt):
        self.prompts.append(prompt)


def _plugins(*registered, builtins=()):
    return Plugins(builtins, registered, discover=False)


def _quietly(call, *args, **kwargs):
    with pytest.warns(CacheprefixPluginWarning):
        return call(*args, **kwargs)


def test_a_users_plugin_overrides_a_builtin():
    """Built-ins are registered first, so they are asked last."""
    assert _plugins(Answers(2), builtins=[("counting", Answers(1))]).call_first("count_tokens", **COUNT) == 2


def test_a_builtin_answers_where_the_user_has_no_opinion():
    """None passes the question on."""
    assert _plugins(Answers(None), builtins=[Answers(1)]).call_first("count_tokens", **COUNT) == 1


def test_trylast_lets_a_user_stand_behind_the_builtins():
    """Pluggy's options hold through the guard."""

    class Last:
        @hookimpl(trylast=True)
        def cacheprefix_count_tokens(self):
            return 2

    assert _plugins(Last(), builtins=[Answers(1)]).call_first("count_tokens", **COUNT) == 1


def test_a_wrapper_changes_the_answer_of_the_others():
    """A hook wrapper extends a built-in instead of replacing it."""

    class Doubles:
        @hookimpl(wrapper=True)
        def cacheprefix_count_tokens(self):
            return 2 * (yield)

    assert _plugins(Doubles(), Answers(21)).call_first("count_tokens", **COUNT) == 42


@pytest.mark.parametrize("before", [True, False])
def test_a_failing_wrapper_leaves_the_answer_as_it_was(before):
    """Whether it raises before or after the others were asked."""

    class Fails:
        @hookimpl(wrapper=True)
        def cacheprefix_count_tokens(self):
            if before:
                raise ZeroDivisionError
            yield
            raise ZeroDivisionError

    assert _quietly(_plugins(Fails(), Answers(21)).call_first, "count_tokens", **COUNT) == 21


def test_a_wrapper_that_yields_twice_is_reported():
    """It is broken, and the answer stays."""

    class Twice:
        @hookimpl(wrapper=True)
        def cacheprefix_count_tokens(self):
            yield
            yield

    broken = _plugins(Twice(), Answers(21))
    assert _quietly(broken.call_first, "count_tokens", **COUNT) == 21
    assert sum(broken.failures.values()) == 1


def test_specname_gives_a_function_another_name():
    """A plugin may name its function as it likes when it says which hook it is."""

    class Named:
        @hookimpl(specname="cacheprefix_count_tokens")
        def my_counter(self):
            return 7

    assert _plugins(Named()).call_first("count_tokens", **COUNT) == 7


def test_a_module_is_a_plugin():
    """Functions of a module are hooks without any marker."""
    module = types.ModuleType("my_plugin")
    module.cacheprefix_count_tokens = lambda text, model: len(text)
    assert _plugins(module).call_first("count_tokens", **COUNT) == len("a few words")


def test_the_call_goes_on_without_a_failing_plugin():
    """The next plugin answers."""
    assert _quietly(_plugins(Answers(1), Raises()).call_first, "count_tokens", **COUNT) == 1


def test_the_others_still_watch_when_one_raises():
    """One watcher's exception keeps nothing from the others, before or after it."""
    first, last = Watches(), Watches()
    _quietly(_plugins(first, Raises(), last).call_all, "before_call", prompt="p")
    assert first.prompts == last.prompts == ["p"]


def test_a_failing_plugin_is_named_once():
    """The warning carries the plugin's name and its error, and comes once for all its hooks."""
    several = _plugins(Answers(1))
    name = several.register(Raises(), "my counter")
    named = "'my counter' failed in count_tokens.*ZeroDivisionError"
    with pytest.warns(CacheprefixPluginWarning, match=named) as seen:
        several.call_first("count_tokens", **COUNT)
        several.call_first("count_tokens", **COUNT)
        several.call_all("before_call", prompt="p")
    assert len(seen) == 1
    assert several.failures == {name: 3}


def test_a_failing_plugin_is_asked_again():
    """A failure may pass, so the plugin stays registered."""
    plugin = Raises()
    several = _plugins(plugin)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            several.call_first("count_tokens", **COUNT)
    assert plugin.calls == 3


def test_a_warning_filter_cannot_break_the_call():
    """Where warnings are errors the failure is only logged."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _plugins(Answers(1), Raises()).call_first("count_tokens", **COUNT) == 1


class Strange(BaseException):
    """What is no ``Exception``, as a panic of Rust is."""


def _raising(error, way):
    """A plugin that raises in a hook, in a wrapper before the others are asked, or in one behind them."""

    class Plain:
        def cacheprefix_count_tokens(self):
            raise error

    class Before:
        @hookimpl(wrapper=True)
        def cacheprefix_count_tokens(self):
            raise error
            yield

    class After:
        @hookimpl(wrapper=True)
        def cacheprefix_count_tokens(self):
            yield
            raise error

    return {"plain": Plain, "before": Before, "after": After}[way]()


WAYS = pytest.mark.parametrize("way", ["plain", "before", "after"])


@WAYS
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_swallowed(error, way):
    """Only errors are a plugin's own business; the user's ctrl-c is not, nor is an exit."""
    with pytest.raises(error):
        _plugins(_raising(error, way), builtins=[Answers(21)]).call_first("count_tokens", **COUNT)


@WAYS
@pytest.mark.parametrize("error", [Strange, asyncio.CancelledError, GeneratorExit])
def test_what_is_no_exception_does_not_break_the_call_either(error, way):
    """Nobody cancels or closes a plain function from outside: such an error is the plugin's own."""
    broken = _plugins(_raising(error, way), builtins=[Answers(21)])
    assert _quietly(broken.call_first, "count_tokens", **COUNT) == 21
    assert sum(broken.failures.values()) == 1


@WAYS
def test_a_plugin_that_takes_its_time_is_named_once(monkeypatch, way):
    """With its hook and the seconds for which the call waited; it has not failed, and its answer counts."""
    now = [0.0]
    monkeypatch.setattr("cacheprefix.plugins.time.monotonic", lambda: now[0])

    def sleep(seconds):
        now[0] += seconds

    class Plain:
        def cacheprefix_count_tokens(self):
            sleep(30)
            return 42

    class Wraps:
        @hookimpl(wrapper=True)
        def cacheprefix_count_tokens(self):
            sleep(0 if way == "after" else 30)
            answer = yield
            sleep(30 if way == "after" else 0)
            return 2 * answer

    slow = _plugins(Answers(21))
    name = slow.register(Plain() if way == "plain" else Wraps(), "mine")
    told = r"'mine' took 30\.0 s in count_tokens, and the call waited"
    with pytest.warns(CacheprefixPluginWarning, match=told) as seen:
        assert [slow.call_first("count_tokens", **COUNT) for _ in range(2)] == [42, 42]
    assert len(seen) == 1
    assert name not in slow.failures


def test_what_no_request_waits_for_may_take_its_time(monkeypatch):
    """A preview makes copies of a whole team, and may load a framework first."""
    now = [0.0]
    monkeypatch.setattr("cacheprefix.plugins.time.monotonic", lambda: now[0])

    class Previews:
        def cacheprefix_preview(self):
            now[0] += 30
            return 42

    slow = _plugins()
    slow.register(Previews(), "mine")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert slow.call_first("preview", target=None, session=None, task=None) == 42
    assert seen == []


def test_the_time_of_the_others_is_not_a_wrappers(monkeypatch):
    """The one that sleeps is named, and not the one around it."""
    now = [0.0]
    monkeypatch.setattr("cacheprefix.plugins.time.monotonic", lambda: now[0])

    class Sleeps:
        def cacheprefix_count_tokens(self):
            now[0] += 30
            return 21

    class Doubles:
        @hookimpl(wrapper=True)
        def cacheprefix_count_tokens(self):
            return 2 * (yield)

    several = _plugins()
    several.register(Sleeps(), "sleeps")
    several.register(Doubles(), "doubles")
    with pytest.warns(CacheprefixPluginWarning, match="'sleeps' took") as seen:
        assert several.call_first("count_tokens", **COUNT) == 42
    assert len(seen) == 1


def test_two_plugins_of_one_class_have_two_names():
    """Reports tell them apart."""
    names = [info.name for info in _plugins(Answers(1), Answers(2)).loaded]
    assert len(set(names)) == 2


def test_overrides_ignores_the_builtins():
    """It says whether asking can give anything but the built-in answer."""
    assert not _plugins(builtins=[Answers(1)]).overrides("count_tokens")
    assert _plugins(Answers(1)).overrides("count_tokens")
    assert not _plugins(Answers(1)).overrides("freeze")


def test_loaded_tells_where_each_plugin_is_from():
    """As doctor shows it."""
    info = _plugins(Raises(), builtins=[("counting", Answers(1))]).loaded
    assert [(item.origin, item.hooks) for item in info] == [
        ("built-in", ("count_tokens",)),
        ("registered", ("before_call", "count_tokens")),
    ]


def test_many_threads_count_every_failure():
    """Counting and naming hold under parallel calls."""
    several = _plugins(Raises())
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        for _ in range(50):
            several.call_first("count_tokens", **COUNT)

    with pytest.warns(CacheprefixPluginWarning) as seen, ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sum(several.failures.values()) == 400
    assert len(seen) == 1


class Misspelt:
    def cacheprefix_count_token(self):
        return 1


class Unknown:
    def cacheprefix_count_tokens(self, words):
        return len(words)


class Async:
    async def cacheprefix_count_tokens(self):
        return 1


class OldWrapper:
    @hookimpl(hookwrapper=True)
    def cacheprefix_count_tokens(self):
        yield


class NotCallable:
    cacheprefix_count_tokens = 1


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (Misspelt(), "'cacheprefix_count_token'.*the only hooks are .*cacheprefix_count_tokens"),
        (Unknown(), "words"),
        (Async(), "async"),
        (OldWrapper(), "wrapper=True"),
        (NotCallable(), "cacheprefix_count_tokens"),
        (Answers, r"Answers\(\)"),
        (object(), "implements no hook"),
    ],
)
def test_a_wrong_plugin_is_refused_at_set_up(plugin, says):
    """The error names the plugin and what is wrong with it."""
    with pytest.raises(SetupError, match=says):
        _plugins(plugin)
