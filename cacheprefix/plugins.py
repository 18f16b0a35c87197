"""Which plugins there are, and how their hooks are called without ever breaking the user's call.

Built-in behaviour is registered first, then what the ``cacheprefix`` entry points bring, then what the
application passes. Of several answers the last registered plugin's counts (pluggy's order; ``tryfirst`` and
``trylast`` change it), so an application overrides an installed plugin, and that one overrides a built-in.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import pluggy

from cacheprefix import hookspecs
from cacheprefix.errors import APPLICATIONS, SetupError, plain, told
from cacheprefix.hookspecs import PREFIX, HookName, hookimpl
from cacheprefix.locks import RLock, reset_in_child

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "VARIABLE", "CacheprefixPluginWarning", "HookName", "PluginInfo", "Plugins", "hookimpl"]

GROUP = "cacheprefix"
"""Entry point group under which installed distributions register plugins."""

VARIABLE = "CACHEPREFIX_PLUGINS"
"""Environment variable: unset loads every entry point, empty none, else a comma list of entry point names."""

Origin = Literal["built-in", "entry point", "registered"]

log = logging.getLogger("cacheprefix")

SLOW = 1.0
"""Seconds of one hook's call from which the plugin is named: the call waits for its hooks, and its event loop too."""

_SET_UP: frozenset[str] = frozenset({"wrap", "preview", "commands"})
"""Hooks that no request waits for: they may load a framework."""

_USERS = (KeyboardInterrupt, SystemExit)
"""What a hook raises that is no failure of its plugin: the user or the application wants the program to end.

All else is one, also what is no ``Exception``: nobody else cancels or closes a plain function, and Rust panics so."""

_HOOKS: tuple[str, ...] = tuple(PREFIX + name for name in get_args(HookName))

_named: set[tuple[str, str]] = set()
"""Entry points already named as broken in this process; a second session need not hear of them again."""


class CacheprefixPluginWarning(UserWarning):
    """A plugin failed, and the call went on without it; or it took long. Every plugin is named once for each."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin as ``cacheprefix doctor`` shows it."""

    name: str
    origin: Origin
    hooks: tuple[HookName, ...]
    distribution: str | None = None
    """Name and version of the distribution that brought it, for an entry point."""
    problem: str | None = None
    """Why it was not loaded; None for a working plugin."""


class Plugins:
    """The plugins of one session. Safe to call from any thread.

    Args:
        builtins: plugins registered first; pairs of name and plugin, or plugins.
        plugins: the application's own, registered last. Each is a module or object whose functions carry
            a hook's name (``cacheprefix_wrap`` ...); ``hookimpl`` is needed only for its options.
        discover: whether entry points are loaded, at the first hook call and not before.

    Raises:
        SetupError: a plugin that implements no hook, an unknown hook, or takes arguments the hook has not.
    """

    def __init__(
        self, builtins: Iterable[object] = (), plugins: Iterable[object] = (), *, discover: bool = True
    ) -> None:
        self._pm = pluggy.PluginManager(GROUP)
        self._pm.add_hookspecs(hookspecs)
        self._lock = RLock()
        self._failures: Counter[str] = Counter()
        self._slow: set[str] = set()
        self._infos: list[PluginInfo] = []
        self._given: list[object] = []
        self._discovered = not discover
        self._discovering = False
        self._untold: frozenset[str] = frozenset()
        for item in builtins:
            name, plugin = item if isinstance(item, tuple) else (_name_of(item), item)
            self._add(plugin, name, "built-in")
        for plugin in plugins:
            self.register(plugin)
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: go on loading what another thread of the parent was loading."""
        self._discovering = False

    @classmethod
    def with_builtins(cls, plugins: Iterable[object] = ()) -> Plugins:
        """The built-ins of cacheprefix, the installed entry points, and ``plugins`` above them."""
        from cacheprefix.builtin_plugins import BUILTINS  # noqa: PLC0415 - the built-ins import rooms that know this module

        return cls(BUILTINS, plugins)

    def register(self, plugin: object, name: str | None = None) -> str:
        """Add a plugin above all others and return the name it goes by in reports.

        Raises:
            SetupError: as for the class.
        """
        self._discover()
        wanted = name or _name_of(plugin)
        with self._lock:
            taken = {info.name for info in self._infos}
            numbered = (f"{wanted}#{number}" for number in range(2, len(taken) + 3))
            unique = next(label for label in (wanted, *numbered) if label not in taken)
            self._add(plugin, unique, "registered")
        return unique

    def holds(self, plugin: object) -> bool:
        """Whether this very object is registered; a second time it would be told everything twice."""
        with self._lock:
            return any(one is plugin for one in self._given)

    def unheard(self) -> Plugins:
        """The same plugins, but none is told of calls: for requests that are only tried."""
        found = copy.copy(self)
        found.__dict__["_untold"] = frozenset({"before_call", "after_call", "cache_break"})
        return found

    def call_first(self, name: HookName, /, **arguments: object) -> Any:
        """The first answer that is not None, by the order of the plugins; None when there is none.

        For a hook that is not declared as first result every plugin is still asked.
        """
        answer = self._call(name, arguments)
        return answer if self._takes_first(name) else next(iter(answer), None)

    def call_all(self, name: HookName, /, **arguments: object) -> list[Any]:
        """Every answer that is not None, the last registered plugin's first."""
        if name in self._untold:
            return []
        answer = self._call(name, arguments)
        if not self._takes_first(name):
            return list(answer)
        return [] if answer is None else [answer]

    def overrides(self, name: HookName) -> bool:
        """Whether a plugin other than the built-ins implements a hook, so that callers may skip asking."""
        self._discover()
        return any(name in info.hooks for info in self._infos if info.origin != "built-in")

    @property
    def failures(self) -> Mapping[str, int]:
        """How often each plugin raised, by its name; an entry point that did not load counts once."""
        with self._lock:
            return dict(self._failures)

    @property
    def loaded(self) -> tuple[PluginInfo, ...]:
        """All plugins in the order of registration, with those that could not be loaded and why."""
        self._discover()
        with self._lock:
            return tuple(self._infos)

    def _call(self, name: HookName, arguments: dict[str, object]) -> Any:
        self._discover()
        return getattr(self._pm.hook, PREFIX + name)(**arguments)

    def _takes_first(self, name: HookName) -> bool:
        # What a single answer looks like says nothing: it may be a list itself.
        spec = getattr(self._pm.hook, PREFIX + name).spec
        return bool(spec and spec.opts["firstresult"])

    def _add(self, plugin: object, name: str, origin: Origin, distribution: str | None = None) -> None:
        """Register a plugin, its hooks guarded; raises ``SetupError`` for one that the user gave and that has none."""
        proxy, hooks = self._guarded(plugin, name)
        if not hooks and origin == "registered":
            raise SetupError(f"plugin {name!r} implements no hook; the hooks are {', '.join(_HOOKS)}")
        try:
            self._pm.register(proxy, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise SetupError(f"plugin {name!r} cannot be registered: {error}") from error
        self._infos.append(PluginInfo(name, origin, hooks, distribution))
        self._given.append(plugin)

    def _guarded(self, plugin: object, name: str) -> tuple[object, tuple[HookName, ...]]:
        """A copy of the plugin's hooks in which an exception is reported instead of passed on."""
        if inspect.isclass(plugin):
            raise SetupError(f"plugin {name!r} is a class: pass an instance, {plugin.__name__}()")
        # pluggy compares plugins with ==, and two modules are equal only when they are the same.
        proxy = types.ModuleType(name)
        hooks: list[HookName] = []
        for attribute in dir(plugin):
            options = self._pm.parse_hookimpl_opts(plugin, attribute)
            if options is None and not attribute.startswith(PREFIX):
                continue
            function = getattr(plugin, attribute)
            hook = (options and options.get("specname")) or attribute
            _check(name, hook, function, options or {})
            short = cast("HookName", hook.removeprefix(PREFIX))
            guard = self._guard_wrapper if options and options.get("wrapper") else self._guard
            marker = hookimpl(**options) if options else hookimpl
            setattr(proxy, attribute, marker(guard(function, name, short)))
            hooks.append(short)
        return proxy, tuple(hooks)

    def _guard(self, function: Callable[..., Any], plugin: str, hook: HookName) -> Callable[..., Any]:
        """A hook that fails open: its errors are noted with the plugin's name, and its time is watched."""
        @functools.wraps(function)
        def guarded(*arguments: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*arguments)
            except _USERS:
                raise
            except BaseException as error:
                # What the user asks for at set-up is refused by the adapter that knows the object, and by nobody else.
                raised = isinstance(error, SetupError) or hasattr(error, APPLICATIONS)
                if raised and hook in ("wrap", "preview"):
                    raise
                self._report(plugin, hook, error)
                return None
            finally:
                self._timed(plugin, hook, time.monotonic() - began)

        return guarded

    def _guard_wrapper(self, function: Callable[..., Any], plugin: str, hook: HookName) -> Callable[..., Any]:
        """As ``_guard`` for a hook wrapper: when it fails, the answer it wrapped is passed on."""

        @functools.wraps(function)
        def guarded(*arguments: Any) -> Generator[None, Any, Any]:
            began = time.monotonic()
            try:
                wrapper = function(*arguments)
                next(wrapper)
            except _USERS:
                raise
            except BaseException as error:
                self._report(plugin, hook, error)
                return (yield)
            own = time.monotonic() - began
            # The others' time, and what closes this one in the middle, are theirs.
            result = yield
            began = time.monotonic()
            try:
                wrapper.send(result)
            except StopIteration as stop:
                return stop.value
            except _USERS:
                raise
            except BaseException as error:
                self._report(plugin, hook, error)
                return result
            finally:
                self._timed(plugin, hook, own + time.monotonic() - began)
            self._report(plugin, hook, RuntimeError("a hook wrapper yields exactly once"))
            return result

        return guarded

    def _timed(self, plugin: str, hook: str, seconds: float) -> None:
        """Name, once, a plugin that the call waited for."""
        if seconds < SLOW or hook in _SET_UP:
            return
        with self._lock:
            first = plugin not in self._slow
            self._slow.add(plugin)
        if first:
            _warn(f"plugin {plugin!r} took {seconds:.1f} s in {hook}, and the call waited: do long work in a thread")

    def _report(self, plugin: str, hook: str, error: BaseException) -> None:
        with self._lock:
            self._failures[plugin] += 1
            first = self._failures[plugin] == 1
        if first:
            _warn(f"plugin {plugin!r} failed in {hook} and the call went on without it: {told(error)}")

    def _discover(self) -> None:
        if not self._discovered:
            with self._lock:
                self._load_entry_points()

    def _load_entry_points(self) -> None:
        """Load the plugins of installed distributions, all or those that the environment names, once."""
        # Other threads wait for the lock; this one, when a plugin being loaded asks for hooks, goes on.
        if self._discovered or self._discovering:
            return
        self._discovering = True
        wanted = _selection()
        # Some are there already in a child that was forked off while another thread loaded them.
        loaded = {info.name for info in self._infos if info.origin == "entry point"}
        found = [point for point in _entry_points() if wanted is None or point.name in wanted]
        for point in found:
            if point.name not in loaded:
                self._add_entry_point(point)
        for name in sorted((wanted or set()) - {point.name for point in found}):
            self._broken(name, "", None, LookupError(f"{VARIABLE} names it, but it is not installed"))
        self._discovered = True

    def _add_entry_point(self, point: _Installed) -> None:
        try:
            self._add(point.entry.load(), point.name, "entry point", point.distribution)
        except (Exception, SystemExit) as error:
            self._broken(point.name, point.entry.value, point.distribution, error)

    def _broken(self, name: str, value: str, distribution: str | None, error: BaseException) -> None:
        self._failures[name] += 1
        # Nothing was asked of a model yet, so the whole text is shown.
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._infos.append(PluginInfo(name, "entry point", (), distribution, said))
        if (name, value) not in _named:
            _named.add((name, value))
            source = f" of {distribution}" if distribution else ""
            _warn(f"plugin {name!r}{source} was not loaded: {said}")


def look_up_installed() -> None:
    """Read which plugins are installed, once a process: the files of every distribution are looked through."""
    _entry_points()


@dataclass(frozen=True, slots=True)
class _Installed:
    name: str
    entry: EntryPoint
    distribution: str | None


@functools.cache
def _entry_points() -> tuple[_Installed, ...]:
    from importlib.metadata import distribution, distributions  # noqa: PLC0415 - scanning costs more than all of the core

    # As entry_points(group=GROUP), which takes twice the time, since it reads all that every distribution has. Of
    # distributions of one name the first on the path is installed, whatever the others have. A folder that a broken
    # removal left behind has no name, and asking for it is a warning from Python 3.12 on.
    with_ours = (each for each in distributions() if f"[{GROUP}]" in (each.read_text("entry_points.txt") or ""))
    have = [each.name for each in with_ours if "Name" in each.metadata]
    installed = {each.name: each for each in map(distribution, have) if "Name" in each.metadata}
    points = (point for each in installed.values() for point in each.entry_points.select(group=GROUP))
    found = sorted(points, key=lambda point: point.name)
    return tuple(
        _Installed(point.name, point, f"{point.dist.name} {point.dist.version}" if point.dist else None)
        for point in found
    )


def _selection() -> set[str] | None:
    value = os.environ.get(VARIABLE)
    return None if value is None else {name.strip() for name in value.split(",")} - {""}


def _check(plugin: str, hook: str, function: object, options: Mapping[str, Any]) -> None:
    if not callable(function) or hook not in _HOOKS:
        raise SetupError(f"plugin {plugin!r} has {hook!r}, and the only hooks are {', '.join(_HOOKS)}")
    if inspect.iscoroutinefunction(function):
        raise SetupError(f"plugin {plugin!r}: {hook} is async; hooks are plain functions, called from sync code")
    if options.get("hookwrapper"):
        raise SetupError(f"plugin {plugin!r}: {hook} uses hookwrapper=True; use wrapper=True instead")


def _name_of(plugin: object) -> str:
    if isinstance(plugin, types.ModuleType):
        return plugin.__name__
    kind = plugin if inspect.isclass(plugin) else type(plugin)
    return f"{kind.__module__}.{kind.__qualname__}"


def _warn(text: str) -> None:
    """Warn without letting a filter that turns warnings into errors reach the user's call."""
    text = plain(text)
    log.debug(text)
    try:
        warnings.warn(text, CacheprefixPluginWarning, stacklevel=2)
    except CacheprefixPluginWarning:
        log.warning("%s (a filter turned the warning into an error, so it is only logged)", text)
