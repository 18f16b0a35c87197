"""Prompts with places to fill: known names only, so that braces of code and JSON stay what they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_PLACE = re.compile(r"(\{?)\{([^{}\n]+)\}(\}?)")


def fill_in(template: str, values: Mapping[str, str], known: Collection[str] = ()) -> str:
    """The template with ``{name}`` replaced for every known name, in one pass.

    ``{{name}}`` gives ``{name}`` as it stands, also for names in ``known`` that have no value here. Any other brace is
    text, and what is filled in is never read again.
    """

    def filled(match: re.Match[str]) -> str:
        before, name, behind = match.groups()
        if before and behind and (name in values or name in known):
            return f"{{{name}}}"
        if name not in values:
            return match[0]
        return f"{before}{values[name]}{behind}"

    return _PLACE.sub(filled, template)


def named_in(template: str, names: Collection[str]) -> set[str]:
    """Which of ``names`` a template has a place for."""
    return {name for before, name, behind in _PLACE.findall(template) if name in names and not (before and behind)}
