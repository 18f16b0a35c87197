"""Conversations that nobody named: a request belongs to the one that it goes on from, else to one of its own.

A client, an agent or a process serves many people, so none of them is a conversation. What is recorded of one is a
hash a message, and no text. Those that were not gone on with for longest are let go.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from cacheprefix.locks import Lock

Owner = tuple[str, str]
"""Session name and scope: conversations of two are never one."""

KEPT: Final = 1_000
"""Conversations without a name that are kept at most."""
_MARK: Final = "unnamed-"
_RUN: Final = "unnamed-run-"


def new_name(*, of_run: bool = False) -> str:
    """An id that no other conversation has; ``of_run`` where a run says which requests are its."""
    return f"{_RUN if of_run else _MARK}{secrets.token_hex(16)}"


def is_of_run(conversation: str) -> bool:
    """Whether a conversation without a name is that of a run, and not told by what is said in it alone."""
    return conversation.startswith(_RUN)


def is_named(conversation: str) -> bool:
    """Whether the application, or its framework, gave a conversation its id."""
    return bool(conversation) and not conversation.startswith(_MARK)


def common_key(conversation: str) -> str:
    """The id for what is no conversation's own, as the tools of a role: all that nobody named have one."""
    return conversation if is_named(conversation) else ""


class _Said(NamedTuple):
    """What a conversation's longest request said."""

    length: int
    whole: int
    last: int
    before: int | None
    """The message before the last one, by which a history that was cut at its front is known."""
    kin: str
    """The conversation that its first request seemed to be an altered history of."""


class Found(NamedTuple):
    """A request's conversation."""

    conversation: str
    gone: Sequence[tuple[Owner, str]]
    """Those that are forgotten to make room for it."""


class Unnamed:
    """What the newest request of each unnamed conversation said. Thread-safe, bounded."""

    def __init__(self, keep: int = KEPT) -> None:
        self._keep = keep
        self._lock = Lock()
        self._said: OrderedDict[tuple[Owner, str], _Said] = OrderedDict()
        """By owner and conversation, the one recorded longest ago first."""
        self._runs: OrderedDict[tuple[Owner, int], tuple[object, str]] = OrderedDict()
        """The conversation of each run. The run is held, so that no other object gets its ``id``."""
        self._ends: dict[tuple[Owner, int], set[str]] = {}
        """The conversations of an owner whose last recorded message has this hash."""

    def __len__(self) -> int:
        return len(self._said)

    def find(self, owner: Owner, messages: Sequence[Hashable], *, run: object = None) -> Found:
        """The one conversation of ``owner`` whose recorded messages a request begins with; a new one's id if none.

        Of several the one with most messages counts; two that said the very same are nobody's. The request is
        recorded. Requests of one ``run``, an object that is there as long as that, are one conversation.
        """
        # Privacy: hashes are held, no texts; and everything here is looked up by owner, so that a request never joins a
        # conversation of another tenant or session, whatever it says.
        said = [hash(message) for message in messages]
        with self._lock:
            kin = ""
            found = self._of_run(owner, run)
            if found is None:
                # Privacy: a run that begins with no more than another one has said may be another user's.
                found = self._continued(owner, said, most=len(said) - (run is not None))
            if found is None:
                found, kin = new_name(of_run=run is not None), self._resembles(owner, said)
            if run is not None:
                self._note_run(owner, run, found)
            known = self._said.get((owner, found))
            # What a member of a run says to itself goes on from nothing that the others know of.
            gone = [] if known is not None and not _begins(said, known) else self._record(owner, found, said, kin)
        return Found(found, gone)

    def _of_run(self, owner: Owner, run: object) -> str | None:
        """The conversation of an earlier request of the same run."""
        known = None if run is None else self._runs.get((owner, id(run)))
        return None if known is None else known[1]

    def _note_run(self, owner: Owner, run: object, conversation: str) -> None:
        """Note whose a run's requests are; the runs that asked longest ago are let go."""
        self._runs[owner, id(run)] = run, conversation
        self._runs.move_to_end((owner, id(run)))
        while len(self._runs) > self._keep:
            self._runs.popitem(last=False)

    def _continued(self, owner: Owner, said: Sequence[int], most: int) -> str | None:
        """The conversation that a request goes on from: all of what is recorded of it stands at the request's start.

        That may be ``most`` messages. None where no conversation is, or where several are.
        """
        for length in range(most, 0, -1):
            ends = self._ends.get((owner, said[length - 1]), ())
            # Privacy: a last message that is the same (``ok``) is no proof. All before it must be the same as well.
            alike = [one for one in ends if self._said[owner, one].length == length]
            alike = [one for one in alike if _begins(said, self._said[owner, one])]
            if alike:
                # Privacy: two people may have said the very same so far. Whose this is nobody can tell, so it is
                # neither's and begins one of its own.
                return alike[0] if len(alike) == 1 else None
        return None

    def kin(self, owner: Owner, conversation: str) -> str | None:
        """The conversation that this one seems to be an altered history of, empty if none; None for a named one."""
        known = self._said.get((owner, conversation))
        return None if known is None else known.kin

    def _resembles(self, owner: Owner, said: Sequence[int]) -> str:
        """The conversation whose last two messages, an answer and what was said to it, stand in a request.

        Privacy: that is a likeness and no proof, so the request is only compared with it, to name what was edited. It
        does not become a part of that conversation, and nothing of it is used.
        """
        for at in range(len(said) - 1, 0, -1):
            for one in self._ends.get((owner, said[at]), ()):
                if self._said[owner, one].before == said[at - 1]:
                    return one
        return ""

    def _record(self, owner: Owner, conversation: str, said: Sequence[int], kin: str) -> list[tuple[Owner, str]]:
        """Put a request in the place of what is recorded of its conversation; those that are let go for it."""
        if not said:
            return []
        key = (owner, conversation)
        known = self._said.get(key)
        kin = kin if known is None else known.kin
        self._leave(key)
        before = said[-2] if len(said) > 1 else None
        self._said[key] = _Said(len(said), hash(tuple(said)), said[-1], before, kin)
        self._ends.setdefault((owner, said[-1]), set()).add(conversation)
        gone = []
        while len(self._said) > self._keep:
            gone.append(next(iter(self._said)))
            self._leave(gone[-1])
        return gone

    def _leave(self, key: tuple[Owner, str]) -> None:
        """Let go what is recorded of a conversation."""
        known = self._said.pop(key, None)
        if known is None:
            return
        ends = self._ends[key[0], known.last]
        ends.discard(key[1])
        if not ends:
            del self._ends[key[0], known.last]


def _begins(said: Sequence[int], known: _Said) -> bool:
    """Whether messages begin with what is recorded."""
    length = known.length
    return len(said) >= length and said[length - 1] == known.last and hash(tuple(said[:length])) == known.whole
