"""What a session does with requests, and the variable that takes it back without a deploy."""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

from cacheprefix.errors import ConfigError

Mode = Literal["off", "observe", "fork", "strict"]
"""``off``: nothing of ours touches a request, and none is observed; ``observe``: requests are measured and go out as
the application makes them; ``fork``: roles share prefixes; ``strict``: as ``fork``, but raises where a role does not
share for a reason that the user can remove."""

MODES: tuple[Mode, ...] = get_args(Mode)
VARIABLE = "CACHEPREFIX_MODE"
"""``observe`` and ``off`` are in force for every session; ``fork`` and ``strict`` for those whose program says nothing
(``Session.from_config``): the variable may take something back, and never turns it on where a program has it off."""


def mode_override() -> Mode | None:
    """The mode that every session has, whatever its program says; None where the variable takes nothing back.

    Raises ``ConfigError`` for a word that is no mode.
    """
    said = os.environ.get(VARIABLE, "")
    word = said.strip().lower()
    if word and word not in MODES:
        raise ConfigError(VARIABLE, None, "mode", f"{said!r} is not one of {', '.join(map(repr, MODES))}")
    return cast("Mode", word) if word in ("off", "observe") else None
