"""Answers that a provider keeps and may be asked to go on from, so that no role's text stays in such a history.

OpenAI's Responses API keeps what was asked, too: a request that names an earlier answer is read behind all of that. An
application begins such a history without a sign of it, so what a fork said there is known only to who remembers it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cacheprefix.locks import Lock

Speaker = tuple[str, str]
"""A team's session by name, and a role; the role is empty where a call has none."""
Talk = tuple[str, str, str]
"""Session name, scope and id of a conversation."""

_ANSWERS: Final = 10_000
_TOKENS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class _Answer:
    speaker: Speaker
    talk: Talk
    said: tuple[Any, ...]
    """The application's own items and the answer's; none where the provider keeps these and no others."""
    tokens: int


class KeptAnswers:
    """Who gave the newest answers, and what they are to a reader who is not to see a fork's text. Thread-safe.

    Bounded: at most 10,000 answers, and histories of 2 million tokens (some 8 MB).
    """

    def __init__(self, answers: int = _ANSWERS, tokens: int = _TOKENS) -> None:
        self._limit, self._room = answers, tokens
        self._lock = Lock()
        self._known: OrderedDict[str, _Answer] = OrderedDict()
        self._told: dict[Talk, set[str]] = {}
        self._tokens = 0
        self._begin: set[Speaker] = set()
        self._everybody = False

    def __len__(self) -> int:
        return len(self._known)

    def answered(self, id_: str, speaker: Speaker, talk: Talk, said: Sequence[Any] = (), tokens: int = 0) -> None:
        """Remember an answer; with ``said``, the history as it is without what we added to the one that is kept."""
        with self._lock:
            self._drop(id_)
            self._known[id_] = _Answer(speaker, talk, tuple(said), tokens)
            self._tokens += tokens
            if said:
                self._told.setdefault(talk, set()).add(id_)
            while len(self._known) > self._limit or (self._tokens > self._room and len(self._known) > 1):
                self._drop(next(iter(self._known)))

    def gone_on(self, id_: str, speaker: Speaker) -> tuple[Any, ...]:
        """What stands before a request that goes on from an answer, in place of what the provider kept; none: that.

        From then on whoever gave the answer, and whoever goes on from it, begins histories that may be gone on with.
        Where nobody remembers who it was, everybody does.
        """
        with self._lock:
            found = self._known.get(id_)
            if found is None:
                self._everybody = True
                return ()
            self._begin |= {found.speaker, speaker}
            return found.said

    def said(self, id_: str) -> tuple[Any, ...]:
        """``gone_on`` for who takes the history elsewhere: nobody's own requests begin otherwise for it."""
        with self._lock:
            found = self._known.get(id_)
            return () if found is None else found.said

    def begins(self, speaker: Speaker) -> bool:
        """Whether a history that this role begins may be gone on with."""
        return self._everybody or speaker in self._begin

    def deleted(self, id_: str) -> None:
        """Let the text of one answer go, and know whose it was: who names it still asks the provider for it."""
        with self._lock:
            found = self._known.get(id_)
            if found is not None:
                self._drop(id_)
                self._known[id_] = replace(found, said=(), tokens=0)

    def forget(self, talk: Talk) -> None:
        """Let the texts of a conversation go."""
        with self._lock:
            for id_ in tuple(self._told.get(talk, ())):
                self._drop(id_)

    def _drop(self, id_: str) -> None:
        found = self._known.pop(id_, None)
        if found is None:
            return
        self._tokens -= found.tokens
        told = self._told.get(found.talk, set())
        told.discard(id_)
        if not told:
            self._told.pop(found.talk, None)
