"""What the simulated provider's cache answers: tokens read, written and neither, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from cacheprefix.errors import CacheprefixError

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile

_NOTHING: Mapping[str, int] = MappingProxyType({})


class RefusedError(CacheprefixError):
    """The provider answers this request with HTTP ``status`` (400 unless said otherwise)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class CacheOutcome:
    """What became of a request's input. Tokens; read + written + uncached is always the whole input."""

    input_tokens: int
    read_tokens: int = 0
    write_tokens: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """Written tokens by the name of their lifetime (``5m``, ``1h``); only writes the provider bills."""
    read_sections: int = 0
    """Whole sections read; a block cache may have read a part of the next one as well."""

    @property
    def written_tokens(self) -> int:
        """Written tokens of all lifetimes."""
        return sum(self.write_tokens.values())

    @property
    def uncached_tokens(self) -> int:
        """Tokens neither read nor written."""
        return self.input_tokens - self.read_tokens - self.written_tokens

    def cost_units(self, profile: Profile) -> float:
        """Price of the input, one uncached input token being 1."""
        writes = sum(profile.ttl(name).write * tokens for name, tokens in self.write_tokens.items())
        return self.uncached_tokens + self.read_tokens * profile.read + writes
