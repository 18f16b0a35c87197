"""How a fork behaves towards its parent, and how it is stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cacheprefix.errors import AbortedError, SetupError
from cacheprefix.locks import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPolicy:
    """What a fork shares with its parent and leaves behind. Every field has an effect on the run."""

    cache_safe: bool = True
    """Check before the first call that the fork can read the parent's prefix; raise ``UnsafeForkError`` if not."""
    isolated: bool = True
    """Decisions the fork takes (budget, ledger) stay with it; False merges them into the parent's conversation."""
    share_state: bool = False
    """Tools of the fork get the parent's state mapping itself; False gives them a deep copy."""
    share_abort: bool = False
    """Stopping the parent stops the fork."""
    skip_transcript: bool = False
    """Leave no trace in the parent's history; False appends the fork's messages to it when it has finished."""
    skip_cache_write: bool = False
    """Mark nothing behind the shared part, so that a tail nobody reads again is not paid for as a write."""
    max_output_tokens: int | None = None
    """Upper bound of each reply, sent in the provider's own field."""
    max_turns: int = 10
    """Model calls at most; the loop ends with the last reply even if it asks for another tool."""
    purpose: str = "helper"
    """A label for reports and telemetry."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise SetupError(f"ForkPolicy(max_turns={self.max_turns}): a fork makes at least one call")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise SetupError(f"ForkPolicy(max_output_tokens={self.max_output_tokens}): use None for no limit")

    @classmethod
    def ephemeral(cls) -> ForkPolicy:
        """A side question: one call, no trace, nothing written behind the shared part."""
        return cls(skip_transcript=True, skip_cache_write=True, max_turns=1, purpose="ephemeral_helper")

    @classmethod
    def background_summary(cls) -> ForkPolicy:
        """A summary that rides on the cached prefix."""
        return replace(cls.ephemeral(), purpose="background_summary")

    @classmethod
    def memory_update(cls) -> ForkPolicy:
        """Extracts what to remember from a conversation."""
        return replace(cls.ephemeral(), purpose="memory_update")

    @classmethod
    def worker(cls) -> ForkPolicy:
        """A specialist with its own tool loop; it stops when its parent is stopped."""
        return cls(share_abort=True, skip_transcript=True, purpose="worker")

    @classmethod
    def rewrite(cls) -> ForkPolicy:
        """A deliberate rewrite that is not expected to read the parent's prefix."""
        return cls(cache_safe=False, purpose="rewrite")


class AbortHandle:
    """Stops a fork, and the forks below it that share it. Safe to use from any thread."""

    def __init__(self) -> None:
        self._aborted = False
        self._children: list[AbortHandle] = []
        self._lock = Lock()

    def child(self) -> AbortHandle:
        """A handle that is triggered together with this one; triggering it does not reach up."""
        handle = AbortHandle()
        with self._lock:
            self._children.append(handle)
            aborted = self._aborted
        if aborted:
            handle.abort()
        return handle

    def abort(self) -> None:
        """Trigger this handle and all below it."""
        with self._lock:
            self._aborted = True
            children = tuple(self._children)
        for handle in children:
            handle.abort()

    @property
    def aborted(self) -> bool:
        """Whether the handle was triggered."""
        return self._aborted

    def check(self) -> None:
        """Raise ``AbortedError`` when the handle was triggered."""
        if self.aborted:
            raise AbortedError("the fork was stopped by its abort handle")
