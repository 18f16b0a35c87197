"""How far two histories are the same, told by the sizes of their messages alone: what is kept of one holds no text.

Of a history of n messages a few beginnings are kept, the nearer to its end the more: the whole, the first message, and
all of p messages with

    n - p  <=  2 * (the largest power of two that divides p)

which are about ``log2(n)``. A longer history that goes on from it keeps none of p <= n that this one has not, so that
only what is new is counted. Two histories keep the same ones of what they have in common, but for the last of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import pack
from typing import NamedTuple
from zlib import crc32

_WIDTH = 8


class Beginning(NamedTuple):
    """The first messages of a history."""

    messages: int
    tokens: int
    name: int
    """Others that go on from it have it too. Two that are unlike may have one name where their messages are as long:
    that costs tokens, and nothing else."""


NOTHING = Beginning(0, 0, 0)

Said = tuple[Beginning, ...]
"""The beginnings that are kept of a history, the whole of it last."""


def length_gone_on(before: Said, sizes: Callable[[int], Sequence[int]]) -> int:
    """Messages of a history that goes on from an earlier one; 0 where it does not. ``sizes`` as in ``gone_on``.

    The last message of the earlier one may have been that one's alone.
    """
    for known in filter(None, (before, before[:-1])):
        last, less = known[-1], known[-2] if len(known) > 1 else NOTHING
        behind, many = sizes(less.messages), last.messages - less.messages
        if len(behind) >= many and sum(behind[:many]) == last.tokens - less.tokens:
            return less.messages + len(behind)
    return 0


def gone_on(before: Said, sizes: Callable[[int], Sequence[int]]) -> Said:
    """What is kept of a history that goes on from an earlier one; of another one, where it does not.

    ``sizes`` gives the tokens of each of its messages behind so many. Goes by the last message of the earlier one: what
    stands before that only ever grows.
    """
    last, one_less = (before[-1], before[-2] if len(before) > 1 else NOTHING) if before else (NOTHING, NOTHING)
    new = sizes(max(0, last.messages - 1))
    if before and (not new or new[0] != last.tokens - one_less.tokens):
        return gone_on((), sizes)
    new = new[1:] if before else new
    end = last.messages + len(new)
    kept, packed = _kept(end), _packed(new)
    found, at = [one for one in before if one.messages in kept], last
    for messages in sorted(one for one in kept if one > last.messages):
        begin, upto = at.messages - last.messages, messages - last.messages
        name = crc32(packed[begin * _WIDTH : upto * _WIDTH], at.name)
        at = Beginning(messages, at.tokens + sum(new[begin:upto]), name)
        found.append(at)
    return tuple(found)


def longest_of(kept: Iterable[Said], sizes: Sequence[int]) -> Sequence[Beginning]:
    """Of each of several histories, the longest beginning that one of such sizes has too."""
    packed, found = memoryview(_packed(sizes)), []
    for said in kept:
        longest, at, name = NOTHING, 0, 0
        for one in said:
            if one.messages > len(sizes):
                break
            name = crc32(packed[at * _WIDTH : one.messages * _WIDTH], name)
            if name != one.name:
                break
            longest, at = one, one.messages
        found.append(longest)
    return found


def _kept(end: int) -> set[int]:
    """How many messages the beginnings have that are kept of so many."""
    steps = (1 << power for power in range(end.bit_length()))
    near = {at for step in steps for at in range(end - end % step, max(0, end - 2 * step - 1), -step)}
    return near | {1, end} if end else set()


def _packed(sizes: Sequence[int]) -> bytes:
    return pack(f"<{len(sizes)}Q", *sizes)
