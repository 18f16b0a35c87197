"""The hooks: what a plugin may decide, add or watch.

A plugin is any module or object with functions of these names; it takes those of the arguments it wants.
An answer of None means "no opinion". Exceptions are reported once and never reach the user's call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pluggy

if TYPE_CHECKING:
    from cacheprefix.cache import Breakpoint, Verdict
    from cacheprefix.call import Call
    from cacheprefix.history import Compaction, Situation, Strategy, ToolResultBudget
    from cacheprefix.layout import Fork, SharedPrefix
    from cacheprefix.profiles import Profile
    from cacheprefix.prompt import Decision, Prompt, ResultView

PREFIX = "cacheprefix_"
"""What every hook's function name starts with."""

HookName = Literal[
    "wrap",
    "preview",
    "freeze",
    "fork",
    "replace_tool_result",
    "compact",
    "count_tokens",
    "place_breakpoints",
    "profiles",
    "tool_cacheable",
    "before_call",
    "after_call",
    "cache_break",
    "trace_readers",
    "commands",
]
"""A hook's name without the prefix."""

hookspec = pluggy.HookspecMarker("cacheprefix")
hookimpl = pluggy.HookimplMarker("cacheprefix")
"""Marks a plugin's function where it needs options: ``tryfirst``, ``trylast``, ``wrapper``, ``specname``."""


@hookspec(firstresult=True)
def cacheprefix_wrap(target: object, session: object) -> object | None:
    """The target with ``session``, a ``Session``, bound to it, from the adapter that knows such objects."""


@hookspec(firstresult=True)
def cacheprefix_preview(target: object, session: object, task: object) -> object | None:
    """A ``Preview`` of what the target's agents will send with ``session``, a ``Session``; nothing is sent.

    ``task`` is what the run begins with, in the framework's form or as a text; None where the user did not say.
    """


@hookspec
def cacheprefix_freeze(prefix: SharedPrefix) -> SharedPrefix | None:
    """Another prefix in place of the one about to be frozen; the first answer counts."""


@hookspec
def cacheprefix_fork(fork: Fork) -> Fork | None:
    """The fork with another tail; whatever else differs is refused."""


@hookspec(firstresult=True)
def cacheprefix_replace_tool_result(
    result: ResultView, budget: ToolResultBudget
) -> str | tuple[int, Strategy | str] | None:
    """What stands in place of a tool's result: a text, or tokens and a shipped strategy; decided once and recorded."""


@hookspec(firstresult=True)
def cacheprefix_compact(view: Situation, policy: Compaction) -> Iterable[Decision] | None:
    """How a conversation that outgrew its policy is made shorter: decisions, tried before the policy's own."""


@hookspec(firstresult=True)
def cacheprefix_count_tokens(text: str, model: str) -> int | None:
    """How many tokens a text is for a model."""


@hookspec(firstresult=True)
def cacheprefix_place_breakpoints(prompt: Prompt, profile: Profile) -> Iterable[Breakpoint] | None:
    """Where the provider's cache markers stand in this prompt."""


@hookspec
def cacheprefix_profiles(register: Callable[[Profile], None]) -> None:
    """Call ``register`` with every provider profile to add; it wins over a shipped one of the same name."""


@hookspec(firstresult=True)
def cacheprefix_tool_cacheable(tool: str, arguments: Mapping[str, Any]) -> bool | None:
    """Whether this call of a tool may be answered from the tool cache."""


@hookspec
def cacheprefix_before_call(prompt: Prompt) -> None:
    """A request is about to go out, in its final form."""


@hookspec
def cacheprefix_after_call(call: Call, verdict: Verdict) -> None:
    """A request was answered, and this is what the cache did."""


@hookspec
def cacheprefix_cache_break(verdict: Verdict) -> None:
    """Fewer tokens were read from the cache than an earlier prompt allowed, and the verdict says why."""


@hookspec
def cacheprefix_trace_readers(register: Callable[[Any], None]) -> None:
    """Call ``register`` with every reader that ``cacheprefix audit`` shall try on a log."""


@hookspec
def cacheprefix_commands(cli: Any) -> None:
    """Add sub-commands to the typer application of ``cacheprefix``."""
