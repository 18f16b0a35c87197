"""Whether what an adapter works on lies within the range that its distribution declares.

An adapter says which distribution it is when its front door is loaded (``supported``), which is when files may be read.
Its front doors then say what lies outside, once a process and in each session's report; ``cacheprefix doctor`` says the
same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires

__all__ = ["installed", "outside", "supported", "within"]

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;\s*(.*))?$")
_CLAUSE = re.compile(r"\s*(===|[<>=!~]=|[<>])\s*([^,\s]+)")

_OUTSIDE: dict[str, None] = {}
_told: set[str] = set()


def supported(distribution: str) -> None:
    """Look up what an adapter declares and what is there; nothing where the adapter is no installed distribution."""
    try:
        declared = requires(distribution) or []
    except PackageNotFoundError:
        return
    for line in declared:
        _OUTSIDE.update(dict.fromkeys(_outside(distribution, line)))


def _outside(distribution: str, line: str) -> Iterator[str]:
    """What there is to say of one declared requirement; nothing where its package is missing."""
    parts = _REQUIREMENT.match(line)
    if parts is None:
        return
    name, ranges, marker = parts.groups()
    # Extras are optional: what counts is the package that is there. Other markers are other Pythons' or systems'.
    if marker and "extra" not in marker:
        return
    found = installed(name)
    if found and name != distribution and not within(found, ranges):
        yield (
            f"{name} {found} lies outside of what {distribution} is tested with ({ranges.strip()}): requests that it "
            "cannot work with go out as without it; cacheprefix doctor shows what is installed"
        )


def installed(distribution: str) -> str | None:
    """The version that is there; None where there is none, or only the folder that a broken removal left behind."""
    try:
        said = metadata(distribution)
    except PackageNotFoundError:
        return None
    # Asking for what it lacks is a warning from Python 3.12 on, and no adapter may fail for such a folder.
    if "Version" not in said:
        return None
    return said["Version"]


def outside(warn: Callable[[str, str], None]) -> tuple[str, ...]:
    """What lies outside its range, for a session's notes; ``warn(key, text)`` is called once a process for each."""
    # A copy: another thread may import an adapter meanwhile.
    for text in tuple(_OUTSIDE):
        if text not in _told:
            _told.add(text)
            warn(text, text)
    return tuple(_OUTSIDE)


def within(found: str, ranges: str) -> bool:
    """Whether a version lies in a range such as ``>=1.2,<2,!=1.5``; a pre-release counts as its release.

    Loading ``packaging`` would take longer than the rest of an adapter.
    """
    here = _release(found)
    return all(_holds(here, sign, wanted) for sign, wanted in _CLAUSE.findall(ranges))


def _holds(here: tuple[int, ...], sign: str, wanted: str) -> bool:
    limit = _release(wanted)
    size = max(len(here), len(limit))
    mine, other = (one + (0,) * (size - len(one)) for one in (here, limit))
    if sign == "~=":
        return mine >= other and here[: len(limit) - 1] == limit[:-1]
    same = here[: len(limit)] == limit if wanted.endswith(".*") else mine == other
    answers = {"==": same, "===": same, "!=": not same, ">=": mine >= other, "<=": mine <= other}
    return {**answers, ">": mine > other, "<": mine < other}[sign]


def _release(text: str) -> tuple[int, ...]:
    found = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found[1].split("."))) if found else ()
