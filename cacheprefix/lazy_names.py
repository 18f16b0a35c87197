"""Names of a package whose modules are loaded when one of their names is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: dict[str, Any], homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package, of which ``package`` is what ``globals()`` gives there.

    ``homes`` has the names in each module, between spaces; modules are named as behind the outermost package.
    """
    outermost = package["__name__"].partition(".")[0]
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        package[name] = value = getattr(import_module(f"{outermost}.{home}"), name)
        return value

    return load, lambda: sorted({*package, *home_of})
