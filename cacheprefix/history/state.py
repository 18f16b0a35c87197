"""The state of a conversation that keeps its own history, as a value, and pure functions over it.

Every function returns a new state, so a call that fails leaves no trace, and a fork is the state itself. Appending
must not copy the history all the same: states share one growing list (``Log``) and each knows how much of it is its
own. Appending to the newest costs one step; an older state that is appended to (a fork) takes a copy first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cacheprefix.errors import BudgetError, SetupError, StateError
from cacheprefix.history.budget import Replace, Results, ToolResultBudget, budget_results
from cacheprefix.history.groups import is_open
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.transitions import Mode, TransitionHook
from cacheprefix.history.window import ContextStats
from cacheprefix.history.zones import Zone
from cacheprefix.locks import Lock
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.views import Count, MessageView, Role, digest_of
from cacheprefix.wire.apply_decisions import apply, sendable, text_message
from cacheprefix.wire.frozen import FrozenDict, freeze
from cacheprefix.wire.message_views import view_of, views_of
from cacheprefix.wire.messages import Form
from cacheprefix.wire.openai_responses import is_reasoning


class _Shared:
    """The lists behind logs: messages, the same without marks, views, and tokens up to each."""

    __slots__ = ("lock", "messages", "sums", "views", "wire")

    def __init__(self) -> None:
        self.messages: list[FrozenDict] = []
        self.wire: list[FrozenDict] = []
        self.views: list[MessageView] = []
        self.sums: list[int] = []
        self.lock = Lock()

    def copy(self, size: int) -> _Shared:
        new = _Shared()
        new.messages = self.messages[:size]
        new.wire = self.wire[:size]
        new.views = self.views[:size]
        new.sums = self.sums[:size]
        return new


class Log:
    """The first ``size`` entries of shared lists. Immutable."""

    __slots__ = ("_shared", "size")

    def __init__(self, shared: _Shared | None = None, size: int = 0) -> None:
        self._shared: Final = shared or _Shared()
        self.size: Final = size

    @property
    def messages(self) -> list[FrozenDict]:
        """The messages with their marks."""
        return self._shared.messages[: self.size]

    @property
    def wire(self) -> list[FrozenDict]:
        """The messages as they are sent."""
        return self._shared.wire[: self.size]

    def send_to(self, out: list[Any]) -> None:
        """Append the messages as they are sent; one copy where the log is the newest of its kind."""
        wire, start = self._shared.wire, len(out)
        if len(wire) > 2 * self.size:
            out += wire[: self.size]
            return
        out += wire
        # Another thread may have appended to the shared list, also in this very moment.
        del out[start + self.size :]

    @property
    def views(self) -> list[MessageView]:
        """The messages' views."""
        return self._shared.views[: self.size]

    @property
    def tokens(self) -> int:
        """Tokens of all messages."""
        return self._shared.sums[self.size - 1] if self.size else 0

    def view(self, index: int) -> MessageView:
        """One view, by index from the start."""
        return self._shared.views[index]

    def extended(self, entries: Iterable[tuple[FrozenDict, MessageView]]) -> Log:
        """The log with entries appended."""
        shared, size = self._shared, self.size
        with shared.lock:
            if len(shared.messages) != size:
                shared = shared.copy(size)
            tokens = shared.sums[-1] if shared.sums else 0
            for message, view in entries:
                tokens += view.tokens
                bare: Any = sendable([message])[0]
                shared.messages.append(message)
                shared.wire.append(bare if isinstance(bare, FrozenDict) else FrozenDict(bare))
                shared.views.append(view)
                shared.sums.append(tokens)
            return Log(shared, len(shared.messages))

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
    durable_tokens: int = 0
    since_removal: int = 0
    last_removed: int = 0

    @property
    def messages(self) -> list[FrozenDict]:
        """The history in order, marks included."""
        return [*self.committed.messages, *self.turn.messages, *self.pending, *self.waiting]


def new_state(
    api: Form = "openai-chat",
    *,
    mode: Mode = "none",
    system: str = "",
    initial_context: str | Sequence[Any] | None = None,
    context_key: str = "context",
    zones: Mapping[str, str] | None = None,
    count: Count | None = None,
) -> ContextState:
    """An empty conversation; ``initial_context`` is the same as ``append_context`` on it.

    ``zones`` are texts before the history, most stable first (project, memories).
    """
    if mode not in MODES:
        raise SetupError(f"mode {mode!r} is unknown; use one of {', '.join(MODES)}")
    if api not in FORMS:
        raise SetupError(f"api {api!r} is not a message form of this room; use one of {', '.join(FORMS)}")
    state = ContextState(
        api,
        mode,
        digest_of(system) if system else "",
        tuple(Zone(name, text) for name, text in (zones or {}).items()),
    )
    if initial_context is None:
        return state
    return append_context(state, initial_context, context_key, count=count)


def append_message(
    state: ContextState,
    message: Mapping[str, Any],
    *,
    budget: ToolResultBudget | None = None,
    store: Results | None = None,
    scope: str = "",
    hook: TransitionHook | None = None,
    replace_result: Replace | None = None,
    count: Count | None = None,
) -> ContextState:
    """The state with one message more.

    In the responses form a message is an item; reasoning and calls of one answer wait for one another.
    Tool results are decided on by ``budget`` when all results of their turn are there, or by
    ``replace_result`` (see ``budget_results``). In mode
    ``agent_cycle`` the final answer commits the turn, through ``hook``. Raises ``BodyError`` for a
    malformed message; later changes of the passed object change nothing.
    """
    counter = count or estimate_tokens
    terms = _Terms(budget, store, scope, replace_result, counter)
    frozen: FrozenDict = freeze(message, "message")
    view = view_of(frozen, state.api, counter, "message")
    if state.pending and not view.results and not _goes_on(state, view):
        # Whoever speaks before all results are in gives up on them: the open call is closed as it is.
        state = _join(state, terms)
    thinks = state.api == "openai-responses" and is_reasoning(frozen)
    if view.calls or state.pending or thinks:
        state = replace(state, pending=(*state.pending, frozen))
        if thinks or is_open(views_of(state.pending, state.api, counter)):
            return state
        state = _join(state, terms)
        if view.calls or view.results:
            return state
    else:
        state = _settled(state, [(frozen, view)]) if not view.results else _lone(state, frozen, terms)
    if state.mode == "agent_cycle" and view.role == "assistant":
        return transition(state, hook, count=counter)
    return state


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
    durable = state.durable_tokens + view.tokens
    if limit is not None and durable > limit:
        raise BudgetError(
            f"durable context {key!r} brings all keyed context to {durable} tokens, {durable - limit} more than "
            f"the {limit} allowed; shorten it, or consolidate with a hook that does",
            durable - limit,
        )
    state = replace(state, durable_tokens=durable)
    if state.pending:
        return replace(state, waiting=(*state.waiting, frozen))
    return _settled(state, [(frozen, view)])


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
    messages, views = state.turn.messages, state.turn.views
    if hook is not None:
        changed = hook([copy.deepcopy(message) for message in messages])
        messages = [freeze(message, f"hook[{n}]") for n, message in enumerate(changed)]
        views = list(views_of(messages, state.api, counter))
        _check_pairs(views, hook)
    committed = state.committed.extended(zip(messages, views, strict=True))
    return replace(state, committed=committed, turn=Log())


def stats(state: ContextState, limit: int, *, static_tokens: int = 0, count: Count | None = None) -> ContextStats:
    """Where the conversation stands against ``limit`` tokens for the whole request."""
    counter = count or estimate_tokens
    open_views = views_of([*state.pending, *state.waiting], state.api, counter)
    tokens = (
        static_tokens
        + sum(counter(zone.text()) + 3 for zone in state.zones if zone.shown)
        + state.committed.tokens
        + state.turn.tokens
        + sum(view.tokens for view in open_views)
    )
    return ContextStats(
        messages=state.committed.size + state.turn.size + len(open_views),
        tokens=tokens,
        limit=limit,
        remaining=max(0, limit - tokens),
        at_capacity=tokens >= limit,
        since_removal=state.since_removal,
        last_removed=state.last_removed,
        epoch=state.ledger.epoch,
    )


def _goes_on(state: ContextState, view: MessageView) -> bool:
    """Whether an item belongs to the answer whose reasoning or calls are pending."""
    if state.api != "openai-responses" or view.role != "assistant":
        return False
    return not any("output" in item and "call_id" in item for item in state.pending)


def _settled(state: ContextState, entries: Sequence[tuple[FrozenDict, MessageView]]) -> ContextState:
    since = state.since_removal + len(entries)
    if state.mode == "none":
        return replace(state, committed=state.committed.extended(entries), since_removal=since)
    return replace(state, turn=state.turn.extended(entries), since_removal=since)


@dataclass(frozen=True, slots=True)
class _Terms:
    """By what results are decided on."""

    budget: ToolResultBudget | None
    store: Results | None
    scope: str
    replace: Replace | None
    count: Count


def _join(state: ContextState, terms: _Terms) -> ContextState:
    """Budget the open group's results as one turn, and let what waited for it follow."""
    group = list(state.pending)
    shown, ledger = _budgeted(group, state, terms)
    after = [(message, view_of(message, state.api, terms.count, "context")) for message in state.waiting]
    entries = [*zip(shown, views_of(shown, state.api, terms.count), strict=True), *after]
    state = replace(state, pending=(), waiting=(), ledger=ledger)
    return _settled(state, entries)


def _lone(state: ContextState, message: FrozenDict, terms: _Terms) -> ContextState:
    """A result whose call is not open: it is budgeted for itself."""
    shown, ledger = _budgeted([message], state, terms)
    state = replace(state, ledger=ledger)
    return _settled(state, list(zip(shown, views_of(shown, state.api, terms.count), strict=True)))


def _budgeted(messages: Sequence[FrozenDict], state: ContextState, terms: _Terms) -> tuple[list[FrozenDict], Ledger]:
    views = views_of(messages, state.api, terms.count)
    done = budget_results(
        views,
        state.ledger,
        terms.budget,
        count=terms.count,
        store=terms.store,
        scope=terms.scope,
        replace=terms.replace,
    )
    shown = apply(messages, done.decisions, state.api)
    return [freeze(message, f"results[{n}]") for n, message in enumerate(shown)], done.ledger


def _check_pairs(views: Sequence[MessageView], hook: TransitionHook) -> None:
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
            "pass the same text, or start with new_state"
        )
