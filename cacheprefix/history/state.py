"""The history that a conversation keeps itself, as a value, and pure functions over it.

Every function returns a new state, so a call that fails leaves no trace, and a fork is the state itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cacheprefix.errors import BudgetError, SetupError, StateError
from cacheprefix.history.budget import PLAIN, Cutting, ToolResultBudget, budget_results
from cacheprefix.history.groups import is_open
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.transitions import Mode, TransitionHook
from cacheprefix.history.window import ContextStats
from cacheprefix.history.zones import Zone
from cacheprefix.locks import Lock
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.views import MESSAGE_TOKENS, Count, MessageView, Role, digest_of
from cacheprefix.wire.apply_decisions import apply, sendable, text_message
from cacheprefix.wire.frozen import FrozenDict, freeze
from cacheprefix.wire.message_views import view_of, views_of
from cacheprefix.wire.messages import Form
from cacheprefix.wire.openai_responses import is_reasoning

_GROWING = Lock()


class Log:
    """Messages in a row, and what is read off each once. Immutable.

    Logs share the lists that they are the beginning of: a message more costs one step, and a copy only where another
    log went on from here. Copied each time, 8,000 messages would take 0.4 s longer to append than the 0.2 s they take.
    """

    __slots__ = ("_messages", "_views", "_wire", "size", "tokens")

    def __init__(self) -> None:
        self._messages: list[FrozenDict] = []
        self._wire: list[FrozenDict] = []
        self._views: list[MessageView] = []
        self.size = 0
        self.tokens = 0

    @classmethod
    def of(cls, messages: Iterable[Mapping[str, Any]], api: Form, count: Count) -> Log:
        """The log of plain messages. Raises ``BodyError`` for a malformed one."""
        frozen = [freeze(message, f"messages[{n}]") for n, message in enumerate(messages)]
        return cls().extended(frozen, views_of(frozen, api, count))

    def extended(self, messages: Sequence[FrozenDict], views: Sequence[MessageView]) -> Log:
        """The log with messages appended."""
        bare: list[Any] = sendable(messages)
        new, size = Log(), self.size
        with _GROWING:
            # No log went on from here yet: the lists are shared. Else this one goes on with copies of its own.
            newest = len(self._messages) == size
            new._messages = self._messages if newest else self._messages[:size]
            new._wire = self._wire if newest else self._wire[:size]
            new._views = self._views if newest else self._views[:size]
            new._messages += messages
            new._wire += [one if isinstance(one, FrozenDict) else FrozenDict(one) for one in bare]
            new._views += views
            new.size = size + len(messages)
        new.tokens = self.tokens + sum([view.tokens for view in views])
        return new

    @property
    def messages(self) -> list[FrozenDict]:
        """The messages with their marks."""
        return self._messages[: self.size]

    @property
    def wire(self) -> list[FrozenDict]:
        """The messages as they are sent."""
        return self._wire[: self.size]

    @property
    def views(self) -> list[MessageView]:
        """The messages' views."""
        return self._views[: self.size]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Log) and self.messages == other.messages

    __hash__ = None  # type: ignore[assignment]  # messages are dicts

    def __len__(self) -> int:
        return self.size


MODES: tuple[Mode, ...] = ("none", "manual", "agent_cycle")
FORMS: tuple[Form, ...] = ("openai-chat", "openai-responses", "anthropic")


@dataclass(frozen=True, slots=True)
class ContextState:
    """Everything a conversation must remember; the system text and volatile text live outside.

    Its messages are frozen dicts that prompts share; use ``append_message`` and the functions beside it.
    """

    api: Form = "openai-chat"
    mode: Mode = "none"
    system_digest: str = ""
    """Digest of the static system text this state belongs to; empty when it was not given."""
    zones: tuple[Zone, ...] = ()
    committed: Log = field(default_factory=Log)
    turn: Log = field(default_factory=Log)
    """Messages of the turn that is not committed yet (modes manual and agent_cycle)."""
    pending: tuple[FrozenDict, ...] = ()
    """A tool call and its results so far, while some are missing; whole, since a turn is budgeted at its join."""
    waiting: tuple[FrozenDict, ...] = ()
    """Context that came during an open tool call and stands after it."""
    ledger: Ledger = field(default_factory=Ledger)
    since_removal: int = 0
    last_removed: int = 0

    @property
    def messages(self) -> list[FrozenDict]:
        """The history in order, marks included."""
        return [*self.committed.messages, *self.turn.messages, *self.pending, *self.waiting]

    @property
    def views(self) -> list[MessageView]:
        """Views of all messages but those of an open call."""
        return [*self.committed.views, *self.turn.views]

    @property
    def tokens(self) -> int:
        """Tokens of all messages but those of an open call."""
        return self.committed.tokens + self.turn.tokens


def new_state(
    api: Form = "openai-chat",
    *,
    mode: Mode = "none",
    system: str = "",
    zones: Mapping[str, str] | None = None,
) -> ContextState:
    """An empty conversation; ``zones`` are texts before the history, most stable first (project, memories)."""
    if mode not in MODES:
        raise SetupError(f"mode {mode!r} is unknown; use one of {', '.join(MODES)}")
    if api not in FORMS:
        raise SetupError(f"api {api!r} is not a message form of this room; use one of {', '.join(FORMS)}")
    shown = tuple(Zone(name, text) for name, text in (zones or {}).items())
    return ContextState(api, mode, digest_of(system) if system else "", shown)


def append_message(
    state: ContextState,
    message: Mapping[str, Any],
    *,
    budget: ToolResultBudget | None = None,
    how: Cutting = PLAIN,
    hook: TransitionHook | None = None,
) -> ContextState:
    """The state with one message more.

    In the responses form a message is an item; reasoning and calls of one answer wait for one another.
    Tool results are decided on by ``budget`` when all results of their turn are there. In mode ``agent_cycle`` the
    final answer commits the turn, through ``hook``. Raises ``BodyError`` for a malformed message; later changes of the
    passed object change nothing.
    """
    state = appended(state, message, budget, how)
    return transition(state, hook, count=how.count) if closes_cycle(state, message) else state


def appended(
    state: ContextState, message: Mapping[str, Any], budget: ToolResultBudget | None, how: Cutting
) -> ContextState:
    """The state with one message more; no turn is committed."""
    count = how.count
    frozen: FrozenDict = freeze(message, "message")
    view = view_of(frozen, state.api, count, "message")
    if state.pending and not view.results and not _goes_on(state, view):
        # Whoever speaks before all results are in gives up on them: the open call is closed as it is.
        state = _join(state, budget, how)
    thinks = state.api == "openai-responses" and is_reasoning(frozen)
    if view.calls or state.pending or thinks:
        state = replace(state, pending=(*state.pending, frozen))
        still_open = thinks or is_open(views_of(state.pending, state.api, count))
        return state if still_open else _join(state, budget, how)
    if view.results:
        # A result whose call is not open is budgeted for itself.
        return _join(replace(state, pending=(frozen,)), budget, how)
    return _settled(state, [frozen], [view])


def closes_cycle(state: ContextState, message: Mapping[str, Any]) -> bool:
    """Whether a message that was just appended is the answer that ends an agent's cycle."""
    return state.mode == "agent_cycle" and not state.pending and message.get("role") == "assistant"


def append_context(
    state: ContextState,
    content: str | Sequence[Any],
    key: str = "context",
    *,
    limit: int | None = None,
    role: Role = "user",
    count: Count | None = None,
) -> ContextState:
    """The state with durable context appended under a key, as a delta that only adds to the prompt.

    It stands after an open tool call, never inside it. ``limit`` is what all durable context may have
    in tokens; beyond it ``BudgetError`` is raised at once.
    """
    counter = count or estimate_tokens
    text = content if isinstance(content, str) else _text_of(content)
    frozen: FrozenDict = freeze(text_message(role, text, key), "context")
    view = view_of(frozen, state.api, counter, "context")
    held = () if limit is None else (*state.views, *views_of(state.waiting, state.api, counter))
    durable = view.tokens + sum(one.tokens for one in held if one.key is not None)
    if limit is not None and durable > limit:
        raise BudgetError(
            f"durable context {key!r} brings all keyed context to {durable} tokens, {durable - limit} more than "
            f"the {limit} allowed; shorten it, or consolidate with a hook that does",
            durable - limit,
        )
    if state.pending:
        return replace(state, waiting=(*state.waiting, frozen))
    return _settled(state, [frozen], [view])


def set_zone(state: ContextState, name: str, text: str) -> ContextState:
    """The state with a zone's text staged; it is shown with the next break of the prefix.

    Before the first message there is no prefix yet, and it is shown at once.
    """
    zones = list(state.zones)
    for index, zone in enumerate(zones):
        if zone.name == name:
            zones[index] = replace(zone, staged=text)
            break
    else:
        zones.append(Zone(name, "", text))
    state = replace(state, zones=tuple(zones))
    return state if state.messages else refresh_zones(state)


def refresh_zones(state: ContextState) -> ContextState:
    """The state with all staged zone texts shown; for moments in which the cache is lost anyway."""
    return replace(state, zones=tuple(zone.refreshed() for zone in state.zones))


def transition(state: ContextState, hook: TransitionHook | None = None, *, count: Count | None = None) -> ContextState:
    """The state with the turn's messages committed, through ``hook`` when one is given.

    An open tool call stays uncommitted until its results are there. Raises ``SetupError`` when the
    hook returns a result without its call.
    """
    counter = count or estimate_tokens
    if not len(state.turn):
        return state
    turn = state.turn
    if hook is not None:
        turn = Log.of(hook([copy.deepcopy(message) for message in turn.messages]), state.api, counter)
        _check_pairs(turn.views, hook)
    return replace(state, committed=state.committed.extended(turn.messages, turn.views), turn=Log())


def stats(state: ContextState, limit: int, *, static_tokens: int = 0, count: Count | None = None) -> ContextStats:
    """Where the conversation stands against ``limit`` tokens for the whole request."""
    tokens = static_tokens + state.tokens + tokens_beside(state, "", count or estimate_tokens)
    return ContextStats(
        messages=len(state.messages),
        tokens=tokens,
        limit=limit,
        remaining=max(0, limit - tokens),
        at_capacity=tokens >= limit,
        since_removal=state.since_removal,
        last_removed=state.last_removed,
        epoch=state.ledger.epoch,
    )


def tokens_beside(state: ContextState, system: str, count: Count) -> int:
    """Tokens of what is sent beside ``state.tokens``: the system text, the zones shown, and an open call."""
    return (
        (count(system) + MESSAGE_TOKENS if system else 0)
        + sum(count(zone.text()) + MESSAGE_TOKENS for zone in state.zones if zone.shown)
        + sum(view.tokens for view in views_of([*state.pending, *state.waiting], state.api, count))
    )


def _goes_on(state: ContextState, view: MessageView) -> bool:
    """Whether an item belongs to the answer whose reasoning or calls are pending."""
    if state.api != "openai-responses" or view.role != "assistant":
        return False
    return not any("output" in item and "call_id" in item for item in state.pending)


def _settled(state: ContextState, messages: Sequence[FrozenDict], views: Sequence[MessageView]) -> ContextState:
    since = state.since_removal + len(messages)
    if state.mode == "none":
        return replace(state, committed=state.committed.extended(messages, views), since_removal=since)
    return replace(state, turn=state.turn.extended(messages, views), since_removal=since)


def _join(state: ContextState, budget: ToolResultBudget | None, how: Cutting) -> ContextState:
    """Budget the open group's results as one turn, and let what waited for it follow."""
    api, count = state.api, how.count
    done = budget_results(views_of(state.pending, api, count), state.ledger, budget, how)
    shown = [*apply(state.pending, done.decisions, api), *state.waiting]
    frozen = [freeze(message, f"results[{n}]") for n, message in enumerate(shown)]
    state = replace(state, pending=(), waiting=(), ledger=done.ledger)
    return _settled(state, frozen, views_of(frozen, api, count))


def _check_pairs(views: Sequence[MessageView], hook: TransitionHook) -> None:
    """Raise ``SetupError`` where a transition hook left a tool result without its call."""
    waiting: set[str] = set()
    for view in views:
        for result in view.results:
            if result.call_id not in waiting:
                name = getattr(hook, "__name__", repr(hook))
                raise SetupError(
                    f"the transition hook {name} returned a tool result ({result.call_id!r}) without its call; "
                    "drop both or neither"
                )
            waiting.discard(result.call_id)
        waiting |= {call.id for call in view.calls}


def _text_of(content: Sequence[Any]) -> str:
    texts = [block["text"] for block in content if isinstance(block, Mapping) and isinstance(block.get("text"), str)]
    if len(texts) != len(content):
        raise SetupError("durable context is text or a list of text blocks; send pictures as messages")
    return "\n".join(texts)


def check_system(state: ContextState, system: str) -> None:
    """Raise ``StateError`` when the state was made for another static system text."""
    if state.system_digest and digest_of(system) != state.system_digest:
        raise StateError(
            "this state was made with another static system text, so nothing of its prefix is in the cache; "
            "restore the old text, or begin anew (restore with rebase=True, new_state) and pay for one rewrite"
        )
