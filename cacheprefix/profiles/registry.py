"""Finds the row in force for a model."""

from __future__ import annotations

import warnings
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cacheprefix.errors import ProfileError, named
from cacheprefix.locks import Lock
from cacheprefix.profiles.model_names import is_known, provider_at, provider_of, read_model
from cacheprefix.profiles.profile import CacheprefixProfileWarning, Profile
from cacheprefix.profiles.rows import Row, load_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cacheprefix.profiles.rows import Variant

_BUILT_IN = Path(__file__).with_name("profiles.toml")
_CACHE_SIZE = 4096  # A gateway's log may name any number of models; memory must not follow it.


class Registry:
    """The profile rows in force. Changing a copy leaves the original as it was.

    Safe to read and change from several threads: every change replaces the whole table.
    """

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self._rows: Mapping[str, Row] = dict(rows)
        self._resolved: dict[tuple[str, str | None, str | None, str | None], Profile] = {}
        self._warned: set[str] = set()
        self._lock = Lock()

    def __iter__(self) -> Iterator[Profile]:
        """The rows, without what differs for single models."""
        return (row.profile for row in self._rows.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all rows."""
        return tuple(self._rows)

    def knows(self, provider: str) -> bool:
        """Whether a name is a row's, or a provider's in any spelling that frameworks and gateways have for it."""
        served_by = provider_of(provider)
        return provider in self._rows or is_known(served_by) or served_by in {one.provider for one in self}

    def copy(self) -> Registry:
        """A registry with the same rows; what is registered there does not show here."""
        return Registry(self._rows)

    def with_profiles(self, profiles: Iterable[Profile]) -> Registry:
        """A copy with these rows registered. Raises ProfileError as ``register`` does."""
        changed = self.copy()
        for profile in profiles:
            changed.register(profile)
        return changed

    def register(self, profile: Profile) -> None:
        """Adds a row, or replaces the one of the same name with all its model rows.

        Raises ProfileError for anything but a Profile: a plugin must hand over a complete row.
        """
        if not isinstance(profile, Profile):
            raise ProfileError(
                f"register() got {type(profile).__name__}, not a Profile; "
                "build one with dataclasses.replace(registry.get('openai'), name=...)"
            )
        self._add((Row(profile),))

    def load(self, path: str | Path) -> tuple[Profile, ...]:
        """Adds the rows of a TOML file; a row named like an existing one changes that one.

        Raises ProfileError naming file, row, key and fix; then nothing is added.
        """
        rows = load_rows(Path(path), self._rows)
        self._add(rows)
        return tuple(row.profile for row in rows)

    def get(self, name: str) -> Profile:
        """The row called ``name``, without what differs for single models. Raises ProfileError."""
        if name not in self._rows:
            raise ProfileError(f"no profile is called {name!r}; there are: {', '.join(self._rows)}")
        return self._rows[name].profile

    def profile_for(
        self,
        model: str,
        provider: str | None = None,
        api: str | None = None,
        base_url: str | None = None,
        *,
        warn: bool = True,
    ) -> Profile:
        """The cache rules for ``model``, its own values put in.

        ``provider`` may be a provider or a row's name and counts most, then the address, then what the
        model's name says, then ``api``. A model nobody knows gets the row ``unknown``, with one warning
        a model unless ``warn`` is false. Never raises for any string.
        """
        key = (model, provider, api, base_url)
        found = self._resolved.get(key)
        if found is None:
            found = self._resolve(*key)
            with self._lock:
                if len(self._resolved) >= _CACHE_SIZE:
                    self._resolved.clear()
                self._resolved[key] = found
        if warn and not found.known and provider != found.name:
            self._warn(model, provider)
        return found

    def _add(self, rows: tuple[Row, ...]) -> None:
        with self._lock:
            self._rows = {**self._rows, **{row.profile.name: row for row in rows}}
            # A new dict: a thread that resolves just now must not put an old answer into the new table.
            self._resolved = {}
            self._warned = set()

    def _resolve(self, model: str, provider: str | None, api: str | None, base_url: str | None) -> Profile:
        """The row that fits best: the one named, else of whoever serves the model, else the model's own rules."""
        rows = self._rows
        name = read_model(model)
        if provider is not None and provider in rows and provider != provider_of(provider):
            return _varied(rows[provider], name.spellings)
        served_by = provider_of(provider) or provider_at(base_url) or name.provider
        open_rows = [row for row in rows.values() if row.profile.found_by != "name"]
        theirs = [row for row in open_rows if row.profile.provider == served_by]
        best = _best(theirs, name.spellings, api)
        if best is None and provider is not None and provider in rows:
            best = rows[provider]
        if best is None and not theirs:
            # A gateway, or a provider without a row: the model's own rules are the best guess there is.
            best = _best([row for row in open_rows if row.profile.found_by == "model"], name.spellings, api)
        return rows["unknown"].profile if best is None else _varied(best, name.spellings)

    def _warn(self, model: str, provider: str | None) -> None:
        """Warn once that a model has no row."""
        if not model:
            return  # a client that does not say its model: no row would find it
        with self._lock:
            if model in self._warned:
                return
            self._warned.add(model)
        at = f" at provider {provider!r}" if provider else ""
        warnings.warn(
            f"no cache profile for model {named(model)!r}{at}: taken as 'automatic, nothing known'. "
            "Name its provider, or add a row in TOML (Registry.load) or by the profiles hook",
            CacheprefixProfileWarning,
            stacklevel=4,
        )


def _best(rows: list[Row], spellings: tuple[str, ...], api: str | None) -> Row | None:
    """The row whose pattern says most about the name, among those that speak ``api`` if any does; None if none fits."""
    ranked = [
        (fit, api is not None and api in row.profile.apis, index, row)
        for index, row in enumerate(rows)
        if (fit := _fit(row.profile.models, spellings)) is not None
    ]
    if api is not None and any(speaks for _, speaks, _, _ in ranked):
        ranked = [entry for entry in ranked if entry[1]]
    return max(ranked, key=lambda entry: entry[:3])[3] if ranked else None


def _fit(patterns: tuple[str, ...], spellings: tuple[str, ...]) -> tuple[int, int] | None:
    """How well the best pattern fits: literal characters first, then how exact the spelling was."""
    fits = [
        (len(pattern) - pattern.count("*"), -index)
        for index, spelling in enumerate(spellings)
        for pattern in patterns
        if fnmatchcase(spelling, pattern.lower())
    ]
    return max(fits, default=None)


def _varied(row: Row, spellings: tuple[str, ...]) -> Profile:
    """The row with every fitting variant put in, the least specific first."""
    fitting: list[tuple[tuple[int, int], int, Variant]] = []
    for index, variant in enumerate(row.variants):
        fit = _fit(variant.models, spellings)
        if fit is not None:
            fitting.append((fit, -index, variant))
    profile = row.profile
    for _, _, variant in sorted(fitting, key=lambda entry: entry[:2]):
        profile = variant.apply(profile)
    return profile


@lru_cache(maxsize=1)
def default_registry() -> Registry:
    """The rows that ship with cacheprefix, read once. Copy it before adding rows of your own."""
    return Registry({row.profile.name: row for row in load_rows(_BUILT_IN, {})})


def profile_for(
    model: str, provider: str | None = None, api: str | None = None, base_url: str | None = None
) -> Profile:
    """``Registry.profile_for`` of the rows that ship with cacheprefix."""
    return default_registry().profile_for(model, provider, api, base_url)


def load_profiles(path: str | Path) -> Registry:
    """A registry of the shipped rows and those of a TOML file. Raises ProfileError."""
    registry = default_registry().copy()
    registry.load(path)
    return registry
