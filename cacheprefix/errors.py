"""Every error cacheprefix raises: what happened, where, and what to do about it.

Only misuse at set-up raises. While an application runs, an error in our code or in a
plugin is counted, warned about once, and the user's original request goes out.
"""

from __future__ import annotations

import os
import re
import unicodedata
from hashlib import blake2b
from pathlib import Path
from typing import Any

SHOW = "CACHEPREFIX_SHOW_ERRORS"
"""The variable with which logs and warnings hold the texts of exceptions too; they may quote what prompts say."""

APPLICATIONS = "cacheprefix_applications"
"""The attribute by which a plugin marks an error as the application's own, which gets it as it is from its set-up."""


class CacheprefixError(Exception):
    """Base of all errors raised by cacheprefix."""


class SetupError(CacheprefixError):
    """The application wired cacheprefix up in a way that cannot work; the message names the fix."""


class NotPicklableError(SetupError, TypeError):
    """Something that lives in one process was to be pickled; the message says what another process makes instead.

    A ``TypeError`` too, as Python's own for what cannot be pickled: who tries and goes on without it may.
    """


def check_text(option: str, value: object, *, optional: bool = False) -> None:
    """Raise ``SetupError`` where an option is no text that a request can hold; None too, unless it is ``optional``.

    At run time each request would fail by it, so a mistake of set-up is not to wait for one.
    """
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise SetupError(f"{option} is a text, found {type(value).__name__}; for what has an id use str(...)")
    try:
        value.encode()
    except UnicodeEncodeError:
        found = f"{option} holds half a character (a surrogate), which no request can hold"
        raise SetupError(f"{found}; use text.encode(errors='replace').decode()") from None


def found_instead(value: object, *, several: bool = False) -> str:
    """What was given in place of what is taken, for an error: with what to do; ``several`` where lists are taken."""
    if isinstance(value, type):
        return f"found the class {value.__name__}: give an instance of it"
    if isinstance(value, (list, tuple)) and not value:
        return "found an empty list"
    found = f"found {type(value).__name__}"
    if isinstance(value, (list, tuple, set, dict)) and not several:
        return f"{found}: give one at a time, or what holds them all"
    return found


def check_id(option: str, value: object) -> None:
    """``check_text`` for an id, or for what gives one when it is asked; None and an empty text are none."""
    if not callable(value):
        check_text(option, value, optional=True)


class ConfigError(SetupError):
    """A configuration file or variable holds something that cannot be used.

    ``source`` is the file or the variable, ``line`` counts from 1 and is None where there is none, ``key`` is dotted.
    """

    def __init__(self, source: str, line: int | None, key: str, problem: str) -> None:
        where = source if line is None else f"{source}:{line}"
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")
        self.source = source
        self.line = line
        self.key = key
        self.problem = problem


class BodyError(CacheprefixError):
    """A request or response body cannot be read.

    ``path`` is where in the body the trouble is, in the form ``messages[3].content[0]``.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class ToolClashError(SetupError):
    """Two tools carry one name and different schemas, so no union of tools exists."""

    def __init__(self, name: str, difference: str) -> None:
        super().__init__(
            f"tool {name!r} is declared twice with different schemas ({difference}); "
            "rename one of them or make the two declarations equal"
        )
        self.name = name


class MissingExtraError(SetupError):
    """An optional part is used whose packages are not installed."""

    def __init__(self, feature: str, extra: str, package: str | None = None) -> None:
        what = f" (no module {package!r})" if package else ""
        super().__init__(f'{feature} needs an extra{what}: pip install "cacheprefix[{extra}]"')
        self.feature = feature
        self.extra = extra


class UnsafeForkError(CacheprefixError):
    """A fork would not share its parent's prefix; raised before any call is made.

    ``reasons`` lists what differs. Pass a policy with ``cache_safe=False`` when it is meant.
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__(
            "this fork cannot read the shared prefix: "
            + "; ".join(reasons)
            + " (use ForkPolicy.rewrite() if that is intended)"
        )
        self.reasons = reasons


class BudgetError(CacheprefixError):
    """What must be sent does not fit; the message says by how many tokens."""

    def __init__(self, message: str, over_by: int) -> None:
        super().__init__(message)
        self.over_by = over_by


class NotSharedError(CacheprefixError):
    """A role does not share for a reason that the user can remove; raised in ``strict`` mode alone, before any call.

    ``role`` is whose request it is, ``reasons`` are those reasons (``cacheprefix.prompt.Reason``).
    """

    def __init__(self, role: str, reasons: tuple[Any, ...]) -> None:
        told = "; ".join(f"{one.said} ({one.fix})" for one in reasons)
        super().__init__(f"role {role!r} does not share all that it could: {told}")
        self.role = role
        self.reasons = reasons


class StateError(CacheprefixError):
    """A saved state cannot be loaded: wrong shape, unknown version, or another prefix."""

    of_version = False
    """Whether it is for the state's version alone; its text then holds nothing of the application's."""


def check_version(found: object, *reads: int) -> None:
    """Raise ``StateError`` for a saved state of version ``found`` unless it is one of those that this release reads."""
    if found in reads:
        return
    # Privacy: what stands in a damaged state's place for a version may be anybody's text.
    version = f"version {found}" if isinstance(found, int) else "no known version"
    error = StateError(
        f"the saved state is of {version}, this release reads {max(reads)}; load it with the release that wrote it or "
        "a newer one"
    )
    error.of_version = True
    raise error


class ProfileError(SetupError):
    """A provider profile row is missing, malformed or contradicts itself."""


class StoreError(CacheprefixError):
    """A store cannot be opened or answered nonsense."""


class AbortedError(CacheprefixError):
    """The fork's abort handle was triggered before or during the call."""


def plain(text: str, keep: str = "") -> str:
    """``text`` on one line, control characters written out: names and messages steer no terminal, forge no line.

    Lone surrogates, which no file takes, are written out too. ``keep`` names what stays: line ends where text may
    have several.
    """
    if text.isprintable():
        return text
    return "".join(one if one in keep or _harmless(one) else one.encode("unicode_escape").decode() for one in text)


def _harmless(one: str) -> bool:
    # Spaces of other widths, and the joiners that scripts and emoji are made with, steer nothing.
    return one.isprintable() or one in "\u200c\u200d" or unicodedata.category(one) == "Zs"


def named(name: str) -> str:
    """The name of a model or a field where it can be one; else its length and digest, as ``<83 characters, 1a2b3c4d>``.

    A damaged body may hold prompt text in place of a name; what is shown of it tells two of them apart and no more.
    """
    return name if not name or _NAME.fullmatch(name) else _hidden(name)


def named_field(name: str) -> str:
    """The name of a field where it is written like one; else as ``named`` has it. An address of a person's is none."""
    return name if _FIELD.fullmatch(name) else _hidden(name)


def _hidden(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"<{len(name)} characters, {digest}>"


def told(error: BaseException) -> str:
    """What of an exception a log or a warning may hold: its type and where it was raised, as ``TypeError at x.py:12``.

    Its text may quote a prompt, so that is left out, but for errors of ours that speak of files, packages and numbers
    alone. With the variable ``CACHEPREFIX_SHOW_ERRORS=1`` the text stands there too.
    """
    kind = type(error).__name__
    if str(error) and (os.environ.get(SHOW) or isinstance(error, _WITHOUT_PROMPTS)):
        return f"{kind}: {error}"
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    return kind if raised is None else f"{kind} at {Path(raised.tb_frame.f_code.co_filename).name}:{raised.tb_lineno}"


# ASCII alone: a sentence in a script that writes no spaces would be one word.
_NAME = re.compile(r"[\w./:@$+-]{1,100}", re.ASCII)
_FIELD = re.compile(r"[A-Za-z_$][\w$-]{0,99}", re.ASCII)
_WITHOUT_PROMPTS = (BudgetError, MissingExtraError, ProfileError, ConfigError, StoreError)
