"""Options of a session from ``cacheprefix.toml``, ``[tool.cacheprefix]`` in pyproject.toml, and the environment.

The nearest file upwards from the working directory counts; in one folder ``cacheprefix.toml`` comes before
pyproject.toml. A variable such as ``CACHEPREFIX_BUDGET_MAX_TOKENS`` wins over the file, key by key, and what the
program says wins over both. ``CACHEPREFIX_CONFIG`` names the file, or with an empty value none.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheprefix.config_fields import FIELDS, SHORT, line_of, scalar
from cacheprefix.effects import in_a_loop
from cacheprefix.errors import SHOW, ConfigError, SetupError
from cacheprefix.history import Compaction, RequestBudget, ToolResultBudget, extract
from cacheprefix.options import Caching, Gate, History
from cacheprefix.plugins import VARIABLE as PLUGINS
from cacheprefix.profiles import default_registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from cacheprefix.events import S

__all__ = ["FILE", "PREFIX", "Config", "Setting", "load", "variables"]

FILE = "CACHEPREFIX_CONFIG"
"""The variable that names the file; empty for none."""
PREFIX = "CACHEPREFIX_"
_OTHERS = frozenset({FILE, PLUGINS, SHOW})
_TABLES = frozenset(SHORT)
_OURS = re.compile(r"""tool["']?\s*\.\s*["']?cacheprefix\b""")
"""Where a pyproject.toml that cannot be parsed shows that it was meant to configure us."""
_BY_NAME = frozenset({"budget.by_tool", "tool_cache.ttls"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One value in force, and where it comes from."""

    key: str
    """Its dotted name, ``budget.max_tokens``."""
    value: Any
    source: str
    """``pyproject.toml:12``, or the name of a variable."""


@dataclass(frozen=True, slots=True)
class Config:
    """What was configured. Immutable."""

    settings: tuple[Setting, ...] = ()
    path: Path | None = None
    """The file; None when there is none."""
    unknown: tuple[str, ...] = ()
    """Variables that begin like ours and say nothing we know."""

    def get(self, key: str) -> Any:
        """The value of a dotted key; None when it is not set."""
        return next((one.value for one in self.settings if one.key == key), None)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``Session``. Raises ``ConfigError`` for values that do not go together."""
        made: dict[str, Any] = {}
        said = {one.key: one.value for one in self.settings}
        if "mode" in said:
            made["mode"] = said["mode"]
        names = ("tail", "role_as", "provider", "scope", "fork_share", "lifetime", "routing_keys")
        caching: dict[str, Any] = {key: said[key] for key in names if key in said}
        files = self.get("profiles")
        if files:
            registry = default_registry().copy()
            for file in files:
                self._built("profiles", registry.load, Path(file))
            caching["profiles"] = registry
        if caching:
            made["caching"] = Caching(**caching)
        waits = {field: said[key] for key, field in (("gate", "limit"), ("gate_price", "price")) if key in said}
        if waits:
            made["gate"] = Gate(**waits) if waits.get("limit", True) else None
        for name, kind in (("budget", ToolResultBudget), ("compaction", _compaction)):
            values = self._table(name)
            if values is not None:
                made[name] = self._built(name, kind, **values)
        values = self._table("request_budget")
        if values is not None:
            made["history"] = History(self._built("request_budget", RequestBudget, **values))
        cache = self._table("tool_cache")
        if cache is not None:
            from cacheprefix.toolcache import ToolResultCache  # noqa: PLC0415 - most sessions have none

            made["tool_cache"] = self._built("tool_cache", ToolResultCache.from_config, cache)
        return made

    def bind(self, session: S) -> S:
        """Have the session write its events where ``events`` says. Raises ``ConfigError`` where that cannot be."""
        events = self.get("events")
        if not events:
            return session
        from cacheprefix.events import EventLog  # noqa: PLC0415 - most configurations write none

        log: EventLog = self._built("events", EventLog, Path(events))
        return log.bind(session)

    def _table(self, name: str) -> dict[str, Any] | None:
        """The values of a table; None where it is absent or switched off."""
        if self.get(name) is False:
            return None
        values = {one.key.partition(".")[2]: one.value for one in self.settings if one.key.startswith(f"{name}.")}
        return values or None

    def _built(self, name: str, make: Any, *given: Any, **values: Any) -> Any:
        """What ``make`` makes of an option's values; its refusal becomes a ``ConfigError`` with the file and line."""
        try:
            return make(*given, **values)
        except (SetupError, TypeError) as error:
            where = next((one.source for one in self.settings if one.key.partition(".")[0] == name), "configuration")
            file, _, line = where.rpartition(":")
            found = int(line) if file and line.isdigit() else None
            raise ConfigError(file or where, found, name, str(error)) from error


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    start: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration in force.

    ``path`` names the file; without it, ``CACHEPREFIX_CONFIG`` or the nearest one upwards from ``start`` (the working
    directory) counts. In an event loop, which must not wait for a disk, the nearest one is that of when this module was
    imported. Raises ``ConfigError`` with file and line, or the variable, and what is expected there.
    """
    variable = os.environ if environ is None else environ
    chosen = path if path is not None else variable.get(FILE)
    if chosen is not None:
        file = Path(chosen) if str(chosen) else None
        found = None if file is None else (file, _table_of(file, _text(file), required=True))
    elif start is None and in_a_loop():
        found = _first_look()
    else:
        found = _nearest(Path(start) if start is not None else _here())
    settings: dict[str, Setting] = {}
    if found is not None and found[1] is not None:
        settings = {one.key: one for one in _from_file(found[0], found[1])}
    unknown, known = [], variables()
    for name in sorted(variable):
        if not name.startswith(PREFIX) or name in _OTHERS:
            continue
        key = known.get(name)
        if key is None:
            unknown.append(name)
            continue
        if key == "mode" and not variable[name].strip():
            # As ``mode_override`` has it: a variable that is there and says nothing takes nothing back.
            continue
        value = _from_variable(name, key, variable[name])
        _override(settings, Setting(key if value is False and key in SHORT else SHORT.get(key, key), value, name))
    return Config(tuple(settings.values()), found[0] if found else None, tuple(unknown))


def variables() -> Mapping[str, str]:
    """The variables that are read, and the dotted key of each."""
    # Tables of tools by name are for files.
    keys = [key for key in FIELDS if key not in _BY_NAME] + list(SHORT)
    return {PREFIX + key.upper().replace(".", "_"): key for key in keys}


def _override(settings: dict[str, Setting], new: Setting) -> None:
    """A table switched off takes its keys with it; a key that is set switches its table on again."""
    table = new.key.partition(".")[0]
    if new.key in _TABLES:
        for key in [key for key in settings if key.partition(".")[0] == table]:
            del settings[key]
    else:
        settings.pop(table, None)
    settings[new.key] = new


def _from_variable(name: str, key: str, said: str) -> Any:
    if key in SHORT and scalar(said) is False:
        return False
    field = FIELDS[SHORT.get(key, key)]
    try:
        return field.read(field.parse(said))
    except ValueError as error:
        raise ConfigError(name, None, key, f"{said!r} is not {error}") from None


def _here() -> Path | None:
    """The working directory; None where it was removed under the program."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


_FIRST: list[tuple[Path, Mapping[str, Any] | None] | ConfigError | None] = []


def _first_look() -> tuple[Path, Mapping[str, Any] | None] | None:
    """The nearest file as it was read when this module was imported; what was wrong with it is raised when asked."""
    if not _FIRST:
        try:
            _FIRST.append(None if os.environ.get(FILE) is not None else _nearest(_here()))
        except ConfigError as error:
            _FIRST.append(error)
    found = _FIRST[0]
    if isinstance(found, ConfigError):
        raise found
    return found


def _nearest(start: Path | None) -> tuple[Path, Mapping[str, Any] | None] | None:
    """The nearest file with our settings, from a folder upwards, and its table; None where there is none."""
    if start is None:
        return None
    for folder in (start.absolute(), *start.absolute().parents):
        file = folder / "cacheprefix.toml"
        if _is_file(file):
            return file, _table_of(file, _text(file), required=True)
        file = folder / "pyproject.toml"
        table = _table_of_pyproject(file) if _is_file(file) else None
        if table is not None:
            return file, table
    return None


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # a folder above that this process may not look into
        return False


def _table_of_pyproject(file: Path) -> Mapping[str, Any] | None:
    """Our table; None also where the file is somebody else's, in whatever state that one is."""
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return None
    if "cacheprefix" not in text:
        return None
    try:
        return _table_of(file, text, required=False)
    except ConfigError as error:
        if error.key or _OURS.search(text):
            raise
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(str(file), None, "", f"cannot be read: {reason}") from error


def _table_of(file: Path, text: str, *, required: bool) -> Mapping[str, Any] | None:
    """Our table of a file: ``[tool.cacheprefix]`` of a pyproject.toml, the whole of any other. None without one.

    ``required`` raises ``ConfigError`` in place of that.
    """
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        raise ConfigError(str(file), int(at.group(1)) if at else None, "", f"is not TOML: {error}") from None
    if file.name != "pyproject.toml":
        return data
    tool = data.get("tool")
    table = tool.get("cacheprefix") if isinstance(tool, Mapping) else None
    if table is None and required:
        raise ConfigError(str(file), None, "", "has no table [tool.cacheprefix]")
    if table is not None and not isinstance(table, Mapping):
        raise ConfigError(str(file), line_of(text, ("tool", "cacheprefix")), "tool.cacheprefix", "takes a table")
    return table


def _from_file(file: Path, table: Mapping[str, Any]) -> Iterator[Setting]:
    """The settings of a file's table, each with its line; raises ``ConfigError`` for unknown and wrong ones."""
    text = _text(file)
    above = ("tool", "cacheprefix") if file.name == "pyproject.toml" else ()
    for key, value in _flat(table):
        line = line_of(text, (*above, *key.split(".")))
        if key in SHORT and value is False:
            yield Setting(key, value, f"{file}:{line}")
            continue
        full = SHORT.get(key, key)
        field = FIELDS.get(full)
        if field is None:
            near = difflib.get_close_matches(key, [*FIELDS, *SHORT], 1, 0.6)
            known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join([*FIELDS])}"
            raise ConfigError(str(file), line, key, f"no such key; {known}")
        try:
            made = field.read(value)
        except ValueError as error:
            raise ConfigError(str(file), line, key, f"{value!r} is not {error}") from None
        if full in ("profiles", "events"):
            # A file's paths are its folder's, wherever the program runs.
            made = tuple(str(file.parent / one) for one in made) if full == "profiles" else str(file.parent / made)
        yield Setting(full, made, f"{file}:{line}")


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and key in _TABLES:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _compaction(**values: Any) -> Compaction:
    writer = values.pop("summarise", None)
    if writer is not None:
        values["summarise"] = {"extract": extract, "fork": "fork", "none": None}[writer]
    return Compaction(**values)


# A front door without a session may be called in an event loop.
if not in_a_loop():
    with contextlib.suppress(ConfigError):
        _first_look()
