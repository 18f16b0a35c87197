"""One thread, team run or kickoff: its ledger of decisions and, where the application wants it, its history."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from cacheprefix import history
from cacheprefix.errors import BodyError, BudgetError, SetupError, StateError
from cacheprefix.history import (
    Boundaries,
    Built,
    Circumstances,
    Compaction,
    Consolidate,
    ContextState,
    ContextStats,
    Ledger,
    Plan,
    Replace,
    RequestBudget,
    Results,
    SummaryRequest,
    ToolResultBudget,
    TransitionHook,
    append_message,
    compact,
    compact_for_request,
    concatenate,
    from_json,
    plan,
    to_json,
    transition,
)
from cacheprefix.history import Mode as CommitMode
from cacheprefix.locks import Lock, RLock
from cacheprefix.prompt import Count, MessageView, ReplaceResult, Role, digest_of, estimate_tokens
from cacheprefix.unnamed import is_named
from cacheprefix.wire import Form, decode, views_of
from cacheprefix.wire.apis import CHATS

Ask = Callable[[SummaryRequest], str]
"""Asks the model for a summary; ``Session.summary_by_fork`` makes one that rides on the cached prefix."""
AsyncAsk = Callable[[SummaryRequest], Awaitable[str]]
"""The same without blocking the event loop; made by ``Session.asummary_by_fork``."""
Attempt = Callable[[str, Callable[[], Any], Any], Any]
"""Runs our own or a hook's work and answers with its last argument when that fails, as ``Session.attempt`` does."""
T = TypeVar("T")

Steps = Generator["SummaryRequest | Future[None]", "str | bool", T]
"""Work that may want summaries, whose texts it takes, and may wait for a sibling's; it learns whether that ended."""

PATIENCE = 30.0
"""Seconds that a request waits at most for the summary that a sibling is having written."""


def plainly(step: str, work: Callable[[], Any], otherwise: Any) -> Any:  # noqa: ARG001 - one signature for all
    """An ``Attempt`` that lets errors through, for conversations without a session."""
    return work()


def unheard(text: str) -> None:
    """Where there is no session, nobody listens."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a conversation goes by and does not store. A session fills it in from its own settings."""

    system: str = ""
    """The static system text; the state holds its digest alone."""
    static_tokens: int = 0
    """Tokens of whatever else is sent beside the history: the tools."""
    budget: ToolResultBudget | None = None
    store: Results | None = None
    replace_result: Replace | None = None
    compaction: Compaction | None = None
    request: RequestBudget | None = None
    context_limit: int | None = None
    """Tokens that all durable context may have."""
    hook: TransitionHook | None = None
    consolidate: Consolidate = concatenate
    count: Count = estimate_tokens
    fitted: Callable[[Conversation, Compaction], tuple[Compaction, Circumstances]] | None = None
    """Fits a compaction to the provider: prices, warmth of the cache, hooks."""
    attempt: Attempt = plainly
    note: Callable[[str], None] = unheard
    """Takes what the user should know."""

    @property
    def fixed_tokens(self) -> int:
        """Tokens of the static text and the tools."""
        return self.static_tokens + (self.count(self.system) if self.system else 0)


def tell_stuck(planned: Plan, note: Callable[[str], None]) -> None:
    """Say so where a compaction that the settings ask for can never be due."""
    if planned.stuck:
        note(f"nothing is compacted: {planned.refusals[-1]}")


def guarded(attempt: Attempt, step: str, work: Callable[[], T], otherwise: T) -> T:
    """Fail open, but for a budget that cannot be met: what would be sent then is refused anyway."""
    refused: list[BudgetError] = []

    def tried() -> T:
        try:
            return work()
        except BudgetError as error:
            refused.append(error)
            return otherwise

    done: T = attempt(step, tried, otherwise)
    if refused:
        raise refused[0]
    return done


def answered(steps: Steps[T], ask: Ask | None, attempt: Attempt) -> T:
    """Do work that may want summaries; where ``ask`` fails, an extract stands in its place."""
    try:
        wanted = next(steps)
        while True:
            if isinstance(wanted, Future):
                wanted = steps.send(_waited(wanted))
                continue
            text = "" if ask is None else attempt("summary", partial(ask, wanted), "")
            wanted = steps.send(str(text or ""))
    except StopIteration as stop:
        done: T = stop.value
        return done
    finally:
        steps.close()


async def aanswered(steps: Steps[T], ask: AsyncAsk | None, attempt: Attempt) -> T:
    """``answered`` with an ``ask`` that is awaited."""
    try:
        wanted = next(steps)
        while True:
            if isinstance(wanted, Future):
                wanted = steps.send(await _awaited(wanted))
                continue
            text = ""
            try:
                text = "" if ask is None else await ask(wanted)
            except Exception as error:
                attempt("summary", partial(_raised, error), "")
            wanted = steps.send(str(text or ""))
    except StopIteration as stop:
        done: T = stop.value
        return done
    finally:
        steps.close()


def _waited(future: Future[None]) -> bool:
    """Whether what a sibling does has ended; in an event loop's thread, which that may need, nothing is waited for."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return future.done()
    with suppress(NotDone):
        future.result(PATIENCE)
    return future.done()


async def _awaited(future: Future[None]) -> bool:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def ended(_: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(ready.set)

    future.add_done_callback(ended)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ready.wait(), PATIENCE)
    return future.done()


def _raised(error: Exception) -> str:
    raise error


def appended(state: ContextState, messages: Sequence[Mapping[str, Any]], terms: Terms, scope: str) -> ContextState:
    """The state with messages appended, their results shortened, and the agent cycle closed by its answer."""
    mode = state.mode
    # The cycle is closed below: a transition hook that fails must not take the message with it.
    working = replace(state, mode="manual") if mode == "agent_cycle" else state
    for number, message in enumerate(messages):
        working = _with_results(working, message, terms, scope)
        more = number + 1 < len(messages) and messages[number + 1].get("type") in ("function_call", "reasoning")
        if mode == "agent_cycle" and not working.pending and not more and message.get("role") == "assistant":
            working = transitioned(working, terms.hook, terms)
    return replace(working, mode=mode)


def transitioned(state: ContextState, hook: TransitionHook | None, terms: Terms) -> ContextState:
    """The state with its turn committed, as it is where the hook fails."""
    if hook is not None:
        done = terms.attempt("transition hook", lambda: transition(state, hook, count=terms.count), None)
        if isinstance(done, ContextState):
            return done
    return transition(state, count=terms.count)


def planned_of(state: ContextState, terms: Terms, rules: Compaction, around: Circumstances, *, force: bool) -> Plan:
    """What a compaction of the state would do."""
    readable = terms.store is not None
    return plan(state, rules, around, system=terms.system, readable=readable, force=force, count=terms.count)


def compacted(
    state: ContextState,
    terms: Terms,
    rules: Compaction,
    around: Circumstances,
    *,
    scope: str,
    summary: str,
    force: bool,
) -> ContextState:
    """The state compacted, if that is due."""
    return compact(
        state,
        rules,
        around,
        system=terms.system,
        store=terms.store,
        scope=scope,
        consolidate=terms.consolidate,
        summary=summary,
        force=force,
        count=terms.count,
    )


def fitted_to(
    state: ContextState, terms: Terms, limit: RequestBudget, rules: Compaction, *, scope: str, volatile_tokens: int
) -> ContextState:
    """The state such that its request fits. Raises ``BudgetError`` when it cannot."""
    return compact_for_request(
        state,
        limit,
        rules,
        system=terms.system,
        static_tokens=terms.static_tokens + volatile_tokens,
        store=terms.store,
        scope=scope,
        consolidate=terms.consolidate,
        count=terms.count,
    )


def _with_results(state: ContextState, message: Mapping[str, Any], terms: Terms, scope: str) -> ContextState:
    def add(budget: ToolResultBudget | None) -> ContextState:
        return append_message(
            state,
            message,
            budget=budget,
            store=terms.store,
            scope=scope,
            replace_result=terms.replace_result,
            count=terms.count,
        )

    def shortened() -> ContextState | None:
        try:
            return add(terms.budget)
        except BodyError:
            # The message is malformed, which the caller is told below; no failure of ours.
            return None

    done = None if terms.budget is None else terms.attempt("tool-result budget", shortened, None)
    return done if isinstance(done, ContextState) else add(None)


def rules_of(conversation: Conversation, terms: Terms) -> tuple[Compaction, Circumstances]:
    """The compaction in force, fitted to the provider, and what it depends on beside the history."""
    rules = terms.compaction or Compaction(trigger=None if terms.request else Compaction().trigger)
    around = Circumstances(request=terms.request)
    if terms.fitted is not None:
        rules, around = terms.fitted(conversation, rules)
    return rules, replace(around, static_tokens=around.static_tokens + terms.static_tokens)


def due_of(conversation: Conversation, terms: Terms, volatile_tokens: int) -> tuple[Compaction, Circumstances] | None:
    """By what to plan a compaction; None where none can be due, which most requests learn at no cost."""
    rules, around = rules_of(conversation, terms)
    trigger, target = rules.limits(around.request)
    tokens = conversation.statistics(trigger).tokens + volatile_tokens
    if tokens <= (trigger + target) // 2 or (tokens <= trigger and not around.prices.cold):
        return None
    return rules, replace(around, static_tokens=around.static_tokens + volatile_tokens)


def steps_of(
    conversation: Conversation,
    terms: Terms,
    rules: Compaction,
    around: Circumstances,
    *,
    attempt: Attempt,
    force: bool,
    asks: bool,
) -> Steps[Callable[[ContextState], ContextState] | None]:
    """Yields what a summary is wanted of and takes its text; gives what is to be done to the state, if it is due."""
    plan = partial(planned_of, conversation.state, terms, rules, around, force=force)
    planned: Plan | None = guarded(attempt, "compaction", plan, None)
    if planned is not None:
        tell_stuck(planned, terms.note)
    if planned is None or not planned.due:
        return None
    summary = str((yield planned.request)) if planned.request is not None and asks else ""
    # Planned again on the state as it is then: the model may have taken its time over the summary.
    return partial(
        compacted, terms=terms, rules=rules, around=around, scope=conversation.scope, summary=summary, force=force
    )


VERSION = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved conversation, read and checked."""

    id: str
    ledger: Ledger
    history: ContextState | None
    """None where the framework keeps the history."""
    cold_after: float | None


def written(id_: str, prefix: str, state: ContextState, cold_after: float | None) -> dict[str, Any]:
    """A conversation in plain JSON types; of the prefix it holds digests alone."""
    data: dict[str, Any] = {"version": VERSION, "id": id_, "prefix": prefix, "ledger": state.ledger.to_json()}
    if state.messages or state.zones:
        data["context"] = to_json(replace(state, ledger=Ledger()))
        data["cold_after"] = cold_after
    return data


def read(saved: str | Mapping[str, Any], prefix: str, terms: Terms, *, rebase: bool) -> Saved:
    """Read what ``written`` wrote, as JSON text too.

    Raises ``StateError`` when it is of another shape or version, or belongs to another prefix than ``prefix`` or
    system text than the terms' and is not to be rebased.
    """
    data = _parsed(saved) if isinstance(saved, str) else saved
    if not isinstance(data, Mapping) or "version" not in data:
        message = "this is no saved conversation: a JSON object with a version is expected"
        raise StateError(message)
    if data["version"] != VERSION:
        message = f"the conversation was saved by version {data['version']} of its format, this one reads {VERSION}"
        raise StateError(message)
    made_under = data.get("prefix")
    if made_under and prefix and made_under != prefix and not rebase:
        message = (
            f"the conversation was saved under prefix {made_under}, the session has {prefix}; "
            "restore the old system text and tools, or pass rebase=True and pay for one rewrite"
        )
        raise StateError(message)
    ledger = data.get("ledger")
    cold = data.get("cold_after")
    return Saved(
        str(data.get("id", "")),
        Ledger() if ledger is None else Ledger.from_json(ledger),
        _history(data["context"], terms, rebase=rebase) if "context" in data else None,
        float(cold) if isinstance(cold, (int, float)) else None,
    )


def _history(data: Any, terms: Terms, *, rebase: bool) -> ContextState:
    held = from_json(data, count=terms.count)
    if not terms.system:
        return held
    digest = digest_of(terms.system)
    if held.system_digest and held.system_digest != digest and not rebase:
        message = (
            "the conversation was saved with another static system text, so nothing of its prefix is in the "
            "cache; restore the old text, or pass rebase=True and pay for one rewrite"
        )
        raise StateError(message)
    return replace(held, system_digest=digest)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"this is no saved conversation: not JSON ({error})"
        raise StateError(message) from None


_BRANCHES = 4
"""Checkpoints of a conversation from which requests may be under way at a time."""


@dataclass(slots=True)
class _Answers:
    """What was answered last: until when the provider keeps it, and under which decisions each agent asked."""

    cold_after: float | None = None
    epochs: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Branch:
    """A conversation as one checkpoint has it."""

    twin: Conversation
    base: Ledger
    returned: bool = True
    """Whether what is decided comes into the checkpoints that follow."""

    def loose(self) -> Ledger:
        """What no checkpoint will hold."""
        return Ledger() if self.returned else self.twin.ledger.since(self.base)


class Conversation:
    """The state of one conversation. Safe to use from several threads and tasks.

    Adapters use its ``ledger``: the framework keeps the history, they keep ``dumps()`` beside it. A loop without a
    framework gives it the history too: ``append`` what is said, ``build_messages`` what is sent. ``id`` is the
    thread's or run's id, ``scope`` who may share with it. Every method changes all or nothing: when it raises, the
    state is the one before.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the field's word
        *,
        scope: str = "",
        prefix_key: str = "",
        ledger: Ledger | None = None,
        api: Form = "openai-chat",
        mode: CommitMode = "none",
        terms: Terms | None = None,
    ) -> None:
        self.id = id
        self.scope = scope
        self.prefix_key = prefix_key
        self.model = ""
        """The model last used; its profile gives the prices of a compaction."""
        self._terms = terms or Terms()
        state = history.new_state(api, mode=mode, system=self._terms.system)
        self._state = state if ledger is None else replace(state, ledger=ledger)
        self._lock = RLock()
        self._compacting = Lock()
        self._asking: tuple[int, Future[None]] | None = None
        self._beside = 0
        self._answers = _Answers()
        self._branches: OrderedDict[str, _Branch] = OrderedDict()
        self._newest: Conversation | None = None
        self.messages_seen: dict[str, tuple[int, int] | None] = {}
        """The framework's history when it was last seen: its length and its last message's hash, by the name of the
        graph that has it; "" is the outermost."""

    # ------------------------------------------------------------------ decisions on a framework's history

    @property
    def named(self) -> bool:
        """Whether its id was given, and not made for a request that came without one."""
        return is_named(self.id)

    @property
    def ledger(self) -> Ledger:
        """The decisions so far; an immutable value."""
        newest = self._newest
        return self._state.ledger if newest is None else newest.ledger

    def merge(self, other: Ledger | Mapping[str, Any] | None) -> None:
        """Take in decisions made elsewhere (a joined branch, a saved state); order does not matter."""
        if other is None or other is self.ledger:
            return
        ledger = other if isinstance(other, Ledger) else Ledger.from_json(other)
        self._change(lambda state: replace(state, ledger=state.ledger.merge(ledger)))
        if self._newest is not None:
            self._newest.merge(ledger)

    def decided(self, section: str, key: str) -> str | None:
        """What the ledger has under a section and key; None where nothing was decided."""
        return self.ledger.get(section, key)

    def decided_keys(self, section: str) -> Sequence[str]:
        """All keys of a section of the ledger, sorted."""
        return self.ledger.keys(section)

    def decide(self, section: str, key: str, decision: str = "") -> None:
        """Record one decision in the ledger; a key that has one keeps it."""
        self.merge(self.ledger.record([(section, key, decision)]))

    def fork(self) -> Conversation:
        """A conversation that starts with the same decisions and history and keeps its own from here on."""
        state = replace(self._state, ledger=self.ledger)
        return self._twin(state, _Answers(self._answers.cold_after, dict(self._answers.epochs)))

    def at(self, checkpoint: str, ledger: Ledger, *, returned: bool = True) -> Conversation:
        """The conversation as a checkpoint of the framework has it, for all that run from there on at a time.

        ``ledger`` is the checkpoint's: whatever this process decided behind it, on another way from there, is left
        out. ``returned`` is False where what is decided will not come into the checkpoints that follow: then it is
        kept here.
        """
        with self._lock:
            found = self._branches.get(checkpoint) if checkpoint else None
            if found is None:
                for known in self._branches.values():
                    own = known.loose()
                    self._state = replace(self._state, ledger=self._state.ledger.merge(own))
                state = replace(self._state, ledger=ledger.merge(self._state.ledger))
                found = self._branches[checkpoint] = _Branch(self._twin(state, self._answers), ledger)
                while len(self._branches) > _BRANCHES:
                    self._branches.popitem(last=False)
            else:
                found.twin.merge(ledger)
            found.returned = found.returned and returned
            self._newest = found.twin
            return found.twin

    def shorten(
        self,
        views: Sequence[MessageView],
        budget: ToolResultBudget | None,
        *,
        count: Count,
        store: Results | None = None,
        replace: Replace | None = None,
    ) -> tuple[ReplaceResult, ...]:
        """Decide on tool results never seen before, and repeat what was decided on the others."""
        with self._lock:
            done = history.budget_results(
                views, self.ledger, budget, count=count, store=store, scope=self.scope, replace=replace
            )
            self.merge(done.ledger)
        return done.decisions

    @contextmanager
    def compacting(self) -> Iterator[bool]:
        """Whether the caller may compact now; False while another thread does."""
        free = self._compacting.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._compacting.release()

    def keep(self, live: set[str]) -> None:
        """Drop what was decided on messages that are gone: ``live`` holds the digests of those that there are."""
        self._change(lambda state: replace(state, ledger=state.ledger.standing(live)))
        self._branches.clear()
        self._newest = None

    def take_in(self, made: Ledger, epoch: int) -> bool:
        """Take in a compaction that was planned at ``epoch``; False where another one came first."""
        with self._lock:
            if self.ledger.epoch != epoch:
                return False
            self.merge(made)
            return True

    @property
    def asking(self) -> Future[None] | None:
        """What is done once the summary is there that a request of this conversation is having written."""
        asking = self._asking
        # Who asked when the process was forked is not there in the child.
        return None if asking is None or asking[0] != os.getpid() else asking[1]

    @contextmanager
    def asks(self) -> Iterator[bool]:
        """Whether the caller has the summary written, while others wait for it; False where another one does."""
        own: Future[None] = Future()
        with self._lock:
            free = self.asking is None
            if free:
                self._asking = os.getpid(), own
        try:
            yield free
        finally:
            if free:
                self._asking = None
                own.set_result(None)

    def room_beside(self, tokens: int) -> int:
        """The most that any request had beside what it shares, so that siblings' histories are cut alike."""
        with self._lock:
            self._beside = max(self._beside, tokens)
            return self._beside

    @property
    def consolidate(self) -> Consolidate:
        """Joins durable context under one key when a compaction rewrites the prefix."""
        return self._terms.consolidate

    # ------------------------------------------------------------------ the history

    @property
    def state(self) -> ContextState:
        """Ledger, zones and history as an immutable value, for the functions of ``cacheprefix.history``."""
        return self._state

    @property
    def api(self) -> Form:
        """The form of its messages."""
        return self._state.api

    def bind(self, terms: Terms, *, api: Form | None = None, mode: CommitMode | None = None) -> None:
        """Go by these terms from now on. Raises ``SetupError`` when a history exists in another form or mode."""
        with self._lock:
            state = self._state
            api, mode = api or state.api, mode or state.mode
            if (api, mode) != (state.api, state.mode) and (state.messages or state.zones):
                message = f"conversation {self.id!r} has a history of {state.api} messages in mode {state.mode!r}"
                raise SetupError(message)
            if not state.messages:
                fresh = history.new_state(api, mode=mode, system=terms.system)
                state = replace(fresh, ledger=state.ledger, zones=state.zones)
            self._state, self._terms = state, terms

    def append(self, *messages: Mapping[str, Any]) -> None:
        """Append messages in wire form, all or none. Raises ``BodyError`` for a malformed one.

        Tool results are shortened once, when all results of their turn are there; a hook that fails is counted,
        and what it was to change is appended unchanged.
        """
        self._change(lambda state: appended(state, messages, self._terms, self.scope))

    def append_context(self, content: str | Sequence[Any], key: str = "context", *, role: Role = "user") -> None:
        """Append durable context under a key. Raises ``BudgetError`` when it is more than may ever stand.

        That is ``context_limit``, or what the request budget leaves beside the static text and the tools.
        """
        terms = self._terms
        limit = terms.context_limit
        if limit is None and terms.request is not None:
            limit = max(0, terms.request.room - terms.fixed_tokens)
        self._change(
            lambda state: history.append_context(state, content, key, limit=limit, role=role, count=terms.count)
        )

    def set_zone(self, name: str, text: str) -> None:
        """Stage a zone's text (project, memories), most stable first; shown with the next break of the prefix."""
        self._change(lambda state: history.set_zone(state, name, text))

    def commit(self, hook: TransitionHook | None = None) -> None:
        """Commit the turn to the history, through ``hook`` or the conversation's own."""
        terms = self._terms
        self._change(lambda state: transitioned(state, hook or terms.hook, terms))

    @contextmanager
    def trial(self) -> Iterator[Conversation]:
        """A draft of the conversation that replaces it when the block ends, and leaves no trace when it raises.

        Raises ``StateError`` at the end when the conversation itself was changed meanwhile.
        """
        base, draft = self._state, self.fork()
        yield draft
        with self._lock:
            if replace(self._state, ledger=base.ledger) != base:
                message = f"conversation {self.id!r} changed while a trial of it ran; append to one of the two"
                raise StateError(message)
            self._state = replace(draft.state, ledger=draft.ledger.merge(self.ledger))

    # ------------------------------------------------------------------ what is sent

    def build(
        self,
        volatile: str | None = None,
        *,
        volatile_role: Role = "user",
        settle: bool = True,
        ask: Ask | None = None,
    ) -> Built:
        """The request's messages with what is known about them; pass ``built.boundary`` to ``Session.begin``.

        ``volatile`` (time, retrieval, UI state) is for this call alone and stands behind everything cached.
        ``settle`` first compacts if that is due, which ``ask`` may help with a summary. Raises ``BudgetError`` with
        ``over_by`` when the request budget cannot be met.
        """
        terms = self._terms
        if settle:
            steps = self._settling(terms.count(volatile) if volatile else 0, asks=ask is not None)
            answered(steps, ask, terms.attempt)
        return history.build(self._state, terms.system, volatile, volatile_role=volatile_role, count=terms.count)

    def build_messages(
        self, volatile: str | None = None, *, volatile_role: Role = "user", ask: Ask | None = None
    ) -> list[Any]:
        """The messages of ``build`` alone. But for the chat form, the system text goes beside them."""
        return self.build(volatile, volatile_role=volatile_role, ask=ask).messages

    async def abuild(
        self, volatile: str | None = None, *, volatile_role: Role = "user", ask: AsyncAsk | None = None
    ) -> Built:
        """``build`` with an ``ask`` that is awaited; of tasks that come meanwhile none compacts a second time."""
        terms = self._terms
        await aanswered(self._settling(terms.count(volatile) if volatile else 0, asks=True), ask, terms.attempt)
        return history.build(self._state, terms.system, volatile, volatile_role=volatile_role, count=terms.count)

    def plan(self, *, force: bool = False) -> Plan:
        """What ``compact`` would do, what it costs and whether it is due; nothing changes."""
        rules, around = rules_of(self, self._terms)
        return planned_of(self._state, self._terms, rules, around, force=force)

    def preview(self, *, force: bool = False) -> str:
        """The plan in words."""
        return self.plan(force=force).preview()

    def compact(self, *, force: bool = False, ask: Ask | None = None) -> bool:
        """Compact if that is due; says whether it was. ``force`` goes to the target whatever the price."""
        steps = self._compact(*rules_of(self, self._terms), force=force, asks=ask is not None)
        return answered(steps, ask, self._terms.attempt)

    async def acompact(self, *, force: bool = False, ask: AsyncAsk | None = None) -> bool:
        """``compact`` with an ``ask`` that is awaited."""
        steps = self._compact(*rules_of(self, self._terms), force=force, asks=ask is not None)
        return await aanswered(steps, ask, self._terms.attempt)

    def compact_for_request(self, request: RequestBudget | None = None, *, volatile_tokens: int = 0) -> bool:
        """Make the whole request fit ``request``. Raises ``BudgetError`` with ``over_by`` when it cannot."""
        terms = self._terms
        limit = request or terms.request
        if limit is None:
            message = "compact_for_request needs a RequestBudget, here or as Session(request_budget=...)"
            raise SetupError(message)
        rules, _ = rules_of(self, self._terms)
        before = self._state
        self._change(
            lambda state: fitted_to(state, terms, limit, rules, scope=self.scope, volatile_tokens=volatile_tokens)
        )
        return self._state is not before

    def statistics(self, limit: int | None = None) -> ContextStats:
        """Tokens, remaining, at capacity, messages since the last removal; against the budget or trigger in force."""
        terms = self._terms
        if limit is None and terms.request is not None:
            limit = terms.request.room
        if limit is None:
            limit = (terms.compaction or Compaction()).trigger or Compaction().trigger or 0
        return history.stats(self._state, limit, static_tokens=terms.fixed_tokens, count=terms.count)

    def hand_over(self, last: int = 6, *, max_chars: int = 4_000) -> str:
        """The last messages as plain text, for an agent that starts with an empty history."""
        state = self._state
        views = views_of(state.messages, state.api, self._terms.count)
        return history.hand_over(views, last, max_chars=max_chars)

    def boundaries(
        self, volatile: str | None = None, *, tools: Sequence[Any] = (), model: str = "", minimum: int = 0
    ) -> Boundaries:
        """The predicted cacheable prefix of the next request and where its stable parts end; nothing changes."""
        built = self.build(volatile, settle=False)
        fields = CHATS[self.api].FIELDS
        body: dict[str, Any] = {"model": model or self.model, fields.history: built.messages}
        if fields.system and built.system:
            body[fields.system] = built.system
        if tools:
            body["tools"] = list(tools)
        count = self._terms.count
        prompt = decode(body, self.api, count=lambda text, _: count(text))
        return history.boundaries_of(prompt, volatile=len(prompt.sections) - built.boundary(prompt), minimum=minimum)

    # ------------------------------------------------------------------ what the session tells it

    def events_for(self, agent: str) -> tuple[str, ...]:
        """What happened since the agent's last finished request that explains rewritten bytes."""
        return ("compaction",) if self.ledger.epoch > self._answers.epochs.get(agent, 0) else ()

    def answered(self, agent: str, model: str, epoch: int, cold_after: float | None) -> None:
        """A request was answered; the cache holds what it wrote until ``cold_after`` (None: no promise)."""
        with self._lock:
            self.model = model
            answers = self._answers
            answers.cold_after = cold_after
            answers.epochs[agent] = max(epoch, answers.epochs.get(agent, 0))

    def cold_at(self, now: float) -> bool:
        """Whether the provider has forgotten this conversation for certain."""
        cold_after = self._answers.cold_after
        return cold_after is not None and now > cold_after

    # ------------------------------------------------------------------ JSON

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types: version, prefix key, ledger; and the history, where it is kept here.

        Of the prefix it holds digests alone.
        """
        return written(self.id, self.prefix_key, replace(self._state, ledger=self.ledger), self._answers.cold_after)

    def dumps(self) -> str:
        """The state as JSON; loaded elsewhere, the same messages give byte-identical prompts."""
        # Keys keep their order: inside a message it is part of the bytes that the cache compares.
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def loads(cls, text: str, *, scope: str = "", prefix_key: str = "", terms: Terms | None = None) -> Conversation:
        """Read ``dumps``' text, as ``restore`` does."""
        made = cls("", scope=scope, prefix_key=prefix_key, terms=terms)
        made.restore(text)
        return made

    def restore(self, state: str | Mapping[str, Any], *, rebase: bool = False) -> None:
        """Merge a saved state into this conversation.

        Raises ``StateError`` when it is of another shape, of a newer version, or was saved under another
        prefix; ``rebase=True`` takes it over to the prefix now in force. A saved history needs an empty one here.
        """
        saved = read(state, self.prefix_key, self._terms, rebase=rebase)
        with self._lock:
            now = self._state
            if saved.history is not None:
                if now.messages:
                    message = f"conversation {self.id!r} already has a history; restore into a new one"
                    raise StateError(message)
                now = replace(saved.history, ledger=now.ledger)
                self._answers.cold_after = saved.cold_after
            self._state = now
            self.merge(saved.ledger)
            self.id = self.id or saved.id

    # ------------------------------------------------------------------ inside

    def _twin(self, state: ContextState, answers: _Answers) -> Conversation:
        twin = Conversation(self.id, scope=self.scope, prefix_key=self.prefix_key, terms=self._terms)
        twin.model, twin._state, twin._answers = self.model, state, answers
        return twin

    def _change(self, change: Callable[[ContextState], ContextState]) -> None:
        with self._lock:
            self._state = change(self._state)

    def _settling(self, volatile_tokens: int, *, asks: bool) -> Steps[None]:
        """What is due before a request, without its waiting for a summary."""
        terms = self._terms
        if terms.compaction is not None:
            due = guarded(terms.attempt, "compaction", lambda: due_of(self, terms, volatile_tokens), None)
            if due is not None:
                yield from self._compact(*due, attempt=terms.attempt, asks=asks)
        if terms.request is not None:
            fit = partial(self.compact_for_request, volatile_tokens=volatile_tokens)
            guarded(terms.attempt, "request budget", fit, None)

    def _compact(
        self,
        rules: Compaction,
        around: Circumstances,
        *,
        attempt: Attempt = plainly,
        force: bool = False,
        asks: bool = False,
    ) -> Steps[bool]:
        with self.compacting() as free:
            if not free:
                return False
            before = self.ledger.epoch
            change = yield from steps_of(self, self._terms, rules, around, attempt=attempt, force=force, asks=asks)
            if change is not None:
                guarded(attempt, "compaction", partial(self._change, change), None)
            return self.ledger.epoch > before
