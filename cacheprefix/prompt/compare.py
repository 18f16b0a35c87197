"""What two prompts share, and where they part."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, AnyStr, Literal

from cacheprefix.errors import BodyError, named_field
from cacheprefix.prompt.canonical_json import dumps, loads
from cacheprefix.prompt.sections import DIGEST_BYTES, TIERS, CountTokens, Prompt, Section, Tier

SettingScope = Literal["lane", "tools", "system", "messages", "none"]
"""Where a setting belongs: it separates lanes, salts a tier and those after it, or does not matter."""

DEFAULT_PLACEMENT = "*"
"""The key of a placement mapping that holds for settings it does not name."""

_AROUND = 24
_GIVEN = frozenset({"input", "arguments", "args", "response"})
"""Fields of a call, and Gemini's of its result, below which names are content too."""

_FIRST_STEP, _LONGER = 64, 8
"""Characters that are compared first, and how many times more are next: most texts part early or not at all."""

_WORD = 32
"""Characters in which a word and the space in front of it are looked for."""
_LAST_WORD = re.compile(r"\s*\S*\s*\Z")


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where ``b`` parts from ``a``. Offsets and excerpts are in characters."""

    sections: int
    """Equal sections from the start."""
    tokens: int
    """Tokens of those sections."""
    path: str | None
    """The first differing place as far down as it can be named (``tools[1].function.description``);
    None when one prompt continues the other."""
    offset: int
    """First differing character within that place."""
    before: str
    after: str
    """A few characters of ``a`` and of ``b`` around the difference."""
    size: int
    """Signed change in characters of the section, ``b`` against ``a``; 0 where sections came, went or moved."""


def shared_sections(a: Sequence[Section], b: Sequence[Section]) -> int:
    """How many sections two rows have in common from the start."""
    shared = 0
    for left, right in zip(a, b, strict=False):
        if left is not right and left.digest != right.digest:
            break
        shared += 1
    return shared


def shared_characters(a: AnyStr, b: AnyStr) -> int:
    """Length of the longest common beginning, by ever longer slices and bisection of the last (compared in C)."""
    low, high, step = 0, min(len(a), len(b)), _FIRST_STEP
    while low < high:
        end = min(low + step, high)
        if a[low:end] != b[low:end]:
            break
        low, step = end, step * _LONGER
    else:
        return high
    return parting(a, b, low, end)


def parting(a: Sequence[Any], b: Sequence[Any], low: int, high: int) -> int:
    """Where two rows part that are alike up to ``low`` and not up to ``high``: by bisection on slices."""
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def shared_ending(a: AnyStr, b: AnyStr, front: int = 0) -> int:
    """Length of the longest common end of what stands behind the first ``front`` characters of both."""
    left, right = len(a), len(b)
    low, high, step = 0, min(left, right) - front, _FIRST_STEP
    while low < high:
        end = min(low + step, high)
        if a[left - end : left - low] != b[right - end : right - low]:
            break
        low, step = end, step * _LONGER
    else:
        return max(0, high)
    high = end
    while high - low > 1:
        middle = (low + high) // 2
        if a[left - middle : left - low] == b[right - middle : right - low]:
            low = middle
        else:
            high = middle
    return low


def shared_tokens(a: Section, b: Section, count: CountTokens, model: str = "") -> int:
    """Tokens that two differing sections begin with alike; 0 when envelope or kind differ, and of images."""
    if a.kind == "image" or a.tier != b.tier or a.kind != b.kind or a.head != b.head:
        return 0
    shared = _shared_text(a.data, b.data)
    tokens = count(shared, model) if shared else 0
    return min(tokens, a.tokens, b.tokens)


def _shared_text(a: bytes, b: bytes) -> str:
    """The characters that two texts in UTF-8 begin with alike. Only they are decoded: most of a long text is not."""
    end = shared_characters(a, b)
    while end and ((end < len(a) and a[end] & 0xC0 == 0x80) or (end < len(b) and b[end] & 0xC0 == 0x80)):
        end -= 1  # Within a character, of which only the first bytes are alike.
    return a[:end].decode("utf-8", "surrogatepass")


def shared_whole_tokens(a: Section, b: Section, count: CountTokens, model: str = "") -> int:
    """The same, without a token that is whole in only one of them: ``You are `` ends in half of `` critic``.

    For engines that compare tokens and not blocks of them, where one token too many is a wrong count.
    """
    if a.tier != b.tier or a.kind != b.kind or a.head != b.head:
        return 0
    left, right = a.text, b.text
    shared = shared_characters(left, right)
    last = _LAST_WORD.search(left[max(0, shared - _WORD) : shared])
    start = shared - (len(last[0]) if last else 0)
    texts = [text[start : shared + _WORD] for text in (left, right)]

    def ends_in_both(at: int) -> bool:
        # Where a token ends, the two sides have as many tokens as the whole; where one is cut, mostly more.
        return all(count(text[:at], model) + count(text[at:], model) == count(text, model) for text in texts)

    end = next((at for at in range(shared - start, 0, -1) if ends_in_both(at)), 0) + start
    tokens = count(left[:end], model) if end else 0
    return min(tokens, a.tokens, b.tokens)


def common_prefix(a: Prompt, b: Prompt) -> Divergence:
    """The last equal section, and the first differing path and character."""
    shared = shared_sections(a.sections, b.sections)
    tokens = sum(section.tokens for section in b.sections[:shared])
    if shared == len(a.sections) or shared == len(b.sections):
        return Divergence(shared, tokens, None, 0, "", "", 0)
    return difference(a.sections[shared], b.sections[shared], shared, tokens)


def difference(a: Section, b: Section, sections: int = 0, tokens: int = 0) -> Divergence:
    """Where two sections differ, down to the JSON field and the character."""
    size = len(b.text) - len(a.text)
    if a.tier != b.tier or a.kind != b.kind or a.head != b.head:
        left, right = _whole(a), _whole(b)
        path = b.path
    else:
        path, left, right = _deepest(b.path, a, b)
    offset = shared_characters(left, right)
    start = max(0, offset - _AROUND)
    return Divergence(
        sections, tokens, path, offset, left[start : offset + _AROUND], right[start : offset + _AROUND], size
    )


def chain(prompt: Prompt, placement: Mapping[str, SettingScope]) -> tuple[bytes, ...]:
    """Running digest up to and including each section, the salts of each tier mixed in where it begins."""
    state = b""
    digests: list[bytes] = []
    entered: list[Tier] = []
    by_tier = {tier: salt(prompt, placement, tier) for tier in TIERS}
    for section in prompt.sections:
        while len(entered) < len(TIERS) and section.tier not in entered:
            tier = TIERS[len(entered)]
            entered.append(tier)
            state += by_tier[tier]
        state = blake2b(state + section.digest, digest_size=DIGEST_BYTES).digest()
        digests.append(state)
    return tuple(digests)


def placed(prompt: Prompt, placement: Mapping[str, SettingScope], where: SettingScope) -> dict[str, str]:
    """The settings of a prompt that the placement puts at ``where``."""
    fallback = placement.get(DEFAULT_PLACEMENT, "none")
    return {name: value for name, value in prompt.settings.items() if placement.get(name, fallback) == where}


def salt(prompt: Prompt, placement: Mapping[str, SettingScope], tier: Tier) -> bytes:
    """Digest of the settings that salt a tier; empty when there are none."""
    chosen = placed(prompt, placement, tier)
    return _digest(tuple(sorted(chosen.items()))) if chosen else b""


def lane_key(prompt: Prompt, placement: Mapping[str, SettingScope], *, provider: str = "", scope: str = "") -> bytes:
    """Key of the requests that can share anything with this one: provider, scope, model, lane settings."""
    lane = sorted(placed(prompt, placement, "lane").items())
    return _digest((("provider", provider), ("scope", scope), ("api", prompt.api), ("model", prompt.model), *lane))


@lru_cache(maxsize=256)
def _digest(pairs: tuple[tuple[str, str], ...]) -> bytes:
    state = blake2b(digest_size=DIGEST_BYTES)
    for name, value in pairs:
        for part in (name, value):
            raw = part.encode("utf-8", "surrogatepass")
            state.update(len(raw).to_bytes(8, "big") + raw)
    return state.digest()


def _whole(section: Section) -> str:
    return f"{section.head}: {section.text}"


def _deepest(path: str, a: Section, b: Section) -> tuple[str, str, str]:
    if a.kind == "text":
        return path, a.text, b.text
    try:
        left, right = loads(a.data, path), loads(b.data, path)
    except BodyError:
        return path, a.text, b.text
    deeper, left, right = _walk(path, left, right, said=b.tier == "messages")
    return deeper, _written(left), _written(right)


def _walk(path: str, a: Any, b: Any, *, said: bool) -> tuple[str, Any, Any]:
    """Go down while exactly one place explains the difference; key order counts. ``said``: among messages."""
    while True:
        # Privacy: the path stands in logs, and the model chose the names of what it calls a tool with.
        if said and path.rpartition(".")[2] in _GIVEN:
            return path, a, b
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if list(a) != list(b):
                return path, a, b
            step = next((key for key in a if not _same(a[key], b[key])), None)
            if step is None:
                return path, a, b
            shown = named_field(str(step))
            path = f"{path}.{shown}" if shown == step else f"{path}[{shown!r}]"
            a, b = a[step], b[step]
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            index = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not _same(x, y)), None)
            if index is None:
                return path, a, b
            path, a, b = f"{path}[{index}]", a[index], b[index]
        else:
            return path, a, b


def _same(a: Any, b: Any) -> bool:
    """Equality that sees key order and the difference between 1, 1.0 and true."""
    return type(a) is type(b) and _written(a) == _written(b)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    return dumps(value, "value").decode()
