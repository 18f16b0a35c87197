"""One thread, team run or kickoff: its ledger of decisions and, where the application wants it, its history."""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cacheprefix import history
from cacheprefix.effects import Flow, Promise, adrive, drive
from cacheprefix.errors import BodyError, SetupError, StateError
from cacheprefix.history import (
    Boundaries,
    Built,
    Circumstances,
    Compaction,
    Consolidate,
    ContextState,
    ContextStats,
    Cutting,
    Ledger,
    Plan,
    RequestBudget,
    ToolResultBudget,
    TransitionHook,
)
from cacheprefix.history import Mode as CommitMode
from cacheprefix.history.rewriting import carried_out, check_fixed, standing, with_beside
from cacheprefix.history.saved import PLACES, read, written
from cacheprefix.history.settling import Ask, AsyncAsk, Attempt, HistoryAccess, Terms, plainly, settling
from cacheprefix.history.shape import Shape
from cacheprefix.history.state import appended, closes_cycle
from cacheprefix.history.zones import ZONES, blocks_of
from cacheprefix.locks import Guarded, RLock
from cacheprefix.prompt import MessageView, Role, digest_of
from cacheprefix.unnamed import is_named
from cacheprefix.wire import Form, decode, views_of
from cacheprefix.wire.apis import CHATS

_ASKING: ContextVar[tuple[Conversation, ...]] = ContextVar("cacheprefix_asking", default=())
"""Conversations whose summary is being asked for here: what that itself asks must not wait for it."""
_REF = re.compile("[a-z2-7]{16}")
"""What a store of results calls a text; a model may ask for anything."""
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
    """What the checkpoint itself holds."""
    returned: bool = True
    """Whether what is decided comes into the checkpoints that follow."""

    def loose(self) -> Ledger:
        """What no checkpoint will hold."""
        return Ledger() if self.returned else self.twin.ledger.since(self.base)


class _FreshZones(NamedTuple):
    """The zones' texts where they are not what is shown."""

    address: str
    value: str
    live: list[str]
    """Addresses of what is shown."""


class Conversation(Guarded):
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
        self._asking: tuple[int, Future[None]] | None = None
        """The process in which a summary of it is being written now, and what ends with that; None where none is."""
        self._beside = 0
        """The most tokens that stood beside the history in a request so far: ``room_beside``."""
        self._answers = _Answers()
        self._branches: OrderedDict[str, _Branch] = OrderedDict()
        """What goes on from each checkpoint of a framework that it ran from, by its name, the newest last."""
        self._newest: Conversation | None = None
        """The branch that was asked for last, which is told what is decided here; None before any."""
        self.replaced: set[tuple[str, str]] = set()
        """Sections and keys of decisions that were made anew here."""
        self._files: dict[str, str] = {}
        """Digests of the texts that zones were read from files, by their names."""
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

    def refers_to(self, ref: str) -> bool:
        """Whether a result that was cut or cleared here is kept under ``ref``."""
        if not _REF.fullmatch(ref):
            return False
        ledger = self.ledger
        decided = (value for section in ("results", "turns", "actions") for value in ledger.section(section).values())
        # A history that is kept here has the note in place of the result, and not the decision.
        shown = (result.text or "" for view in self._state.views for result in view.results)
        return any(f":{ref}" in value for value in decided) or any(f"(ref={ref!r}" in text for text in shown)

    def decide(self, section: str, key: str, decision: str = "") -> None:
        """Record one decision in the ledger; a key that has one keeps it."""
        self.merge(self.ledger.record([(section, key, decision)]))

    def decide_anew(self, section: str, key: str, decision: str) -> None:
        """Record one decision in the ledger, in place of what was decided under its key before."""
        made = [(section, key, decision)]
        self.replaced.add((section, key))
        self._change(lambda state: replace(state, ledger=state.ledger.without([(section, key)]).record(made)))
        if self._newest is not None:
            self._newest.decide_anew(section, key, decision)

    def fork(self) -> Conversation:
        """A conversation that starts with the same decisions and history and keeps its own from here on."""
        state = replace(self._state, ledger=self.ledger)
        return self._twin(state, _Answers(self._answers.cold_after, dict(self._answers.epochs)))

    def at(
        self,
        checkpoint: str,
        ledger: Ledger,
        *,
        returned: bool = True,
        first: Callable[[], None] = lambda: None,
    ) -> Conversation:
        """The conversation as a checkpoint of the framework has it, for all that run from there on at a time.

        ``ledger`` is the checkpoint's: whatever this process decided behind it, on another way from there, is left
        out. ``returned`` is False where what is decided will not come into the checkpoints that follow: then it is
        kept here. ``first`` is done once, by the first one to come to the checkpoint.
        """
        with self._lock:
            # Without a checkpoint it begins anew each time.
            branch = self._branches.get(checkpoint) if checkpoint else None
            if branch is None:
                if checkpoint:
                    first()
                branch = self._begin(checkpoint, ledger)
            else:
                # A sibling in the same step may have replaced what the checkpoint still has.
                replaced = branch.twin.replaced
                branch.twin.merge(ledger.without(replaced) if replaced else ledger)
            branch.returned = branch.returned and returned
            self._newest = branch.twin
            return branch.twin

    def _begin(self, checkpoint: str, ledger: Ledger) -> _Branch:
        """A branch of the conversation from a checkpoint on; the oldest of too many are forgotten."""
        # Money: what no checkpoint will hold would be decided anew, and differently, so every later branch has it.
        kept = self._state.ledger
        for known in self._branches.values():
            kept = kept.merge(known.loose())
        self._state = replace(self._state, ledger=kept)
        state = replace(self._state, ledger=ledger.merge(kept))
        branch = self._branches[checkpoint] = _Branch(self._twin(state, self._answers), ledger)
        while len(self._branches) > _BRANCHES:
            self._branches.popitem(last=False)
        return branch

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

    @property
    def waits(self) -> bool:
        """Whether a request from here may wait for ``asking``: what that asks the model itself must not."""
        return self not in _ASKING.get()

    @contextmanager
    def asks(self) -> Iterator[bool]:
        """Whether the caller has the summary written, while others wait for it; False where another one does."""
        own: Promise[None] = Promise()
        with self._lock:
            free = self.asking is None
            if free:
                self._asking = os.getpid(), own
        if not free:
            yield False
            return
        token = _ASKING.set((*_ASKING.get(), self))
        try:
            yield True
        finally:
            with suppress(ValueError):  # closed in another context, which has none of ours
                _ASKING.reset(token)
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
    def keeps_history(self) -> bool:
        """Whether messages were appended here, and not only durable context for a framework's history."""
        return any(view.key is None for view in self._state.views)

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
        self._change(partial(self._appended, messages))

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

    def read_zone(self, name: str, path: str | os.PathLike[str]) -> bool:
        """Stage a zone's text from a file (the project's notes) where that is another one now; says whether it is.

        A file that was changed or emptied since, or is gone, is told in the session's notes; its text is shown with
        the next break of the prefix, as ``set_zone`` says. Raises ``SetupError`` for one that cannot be read.
        """
        try:
            text = Path(path).read_text("utf-8")
        except FileNotFoundError:
            text = ""
        except (OSError, ValueError) as error:
            message = f"zone {name!r}: cannot read {os.fspath(path)!r} ({error}); give a text file in UTF-8"
            raise SetupError(message) from error
        digest = digest_of(text)
        known = self._files.get(name)
        self._files[name] = digest
        if digest == known or (known is None and not text):
            return False
        if known is not None:
            said = "was changed" if text.strip() else "is empty now"
            self._terms.note(f"zone {name!r}: {os.fspath(path)} {said}; told with the next break of the prefix")
        self.set_zone(name, text if text.strip() else "")
        return True

    def show_zones(self, views: Sequence[MessageView], *, rewritten: bool) -> bool:
        """Record the zones' texts as shown before a framework's history, where that breaks nothing; whether it changed.

        Nothing breaks before the first answer, and behind a compaction that rewrites the prefix (``rewritten``). They
        stand in the ledger, so that forks and resumed conversations repeat them.
        """
        fresh = self._fresh_zones(views)
        if fresh is None or (not rewritten and (fresh.live or any(view.role == "assistant" for view in views))):
            return False
        entries = [("actions", f"{key}/i", "d") for key in fresh.live]
        self.merge(self.ledger.record([*entries, ("inserts", fresh.address, fresh.value)]))
        return True

    def zones_wait(self, views: Sequence[MessageView]) -> bool:
        """Whether the next rewrite of the prefix shows other texts than stand before the history now."""
        return self._fresh_zones(views) is not None

    def _fresh_zones(self, views: Sequence[MessageView]) -> _FreshZones | None:
        """The zones' texts and where they stand; None where they are shown already, or there are none."""
        zones = (zone.refreshed() for zone in self._state.zones)
        texts = [zone.text() for zone in zones if zone.shown]
        if not texts or not views:
            return None
        value = json.dumps(["user", "\n\n".join(texts)])
        inserts, actions = self.ledger.section("inserts"), self.ledger.section("actions")
        mark = f"{views[0].digest}{ZONES}"
        known = sorted(key for key in inserts if key.startswith(mark))
        live = [key for key in known if f"{key}/i" not in actions]
        if live and inserts[live[-1]] == value:
            return None
        return _FreshZones(f"{mark}{len(known):04}", value, live)

    def join_context(self) -> int:
        """Join the durable context that was appended here to one block a key; how many texts that is of.

        For an adapter whose requests begin anew with it, in front of what a framework says. What is joined stands in
        the ledger, so that other processes say the same. A consolidation hook that fails leaves the texts apart.
        """
        views, terms, ledger = self._state.views, self._terms, self.ledger
        join = partial(history.join_context, views, ledger, terms.consolidate, terms.base, alone=True)
        nothing: list[tuple[str, str, str]] = []
        entries = terms.attempt("consolidation", join, nothing)
        if entries:
            self.merge(ledger.record(entries))
        return len(views)

    def durable_context(self, joined: int) -> list[tuple[str, str]]:
        """Keys and texts of the durable context that was appended here: of the first ``joined`` texts as blocks."""
        views = self._state.views
        recorded = self.ledger.section("blocks")
        blocks = blocks_of(views[:joined], recorded, Shape(views[:joined]).place) if recorded and joined else []
        at = {block.sources[0]: block.text for block in blocks}
        beside = {index for block in blocks for index in block.sources[1:]}
        texts = ((view.key, at.get(index, view.text)) for index, view in enumerate(views) if index not in beside)
        return [(key, text) for key, text in texts if key is not None and text]

    def commit(self, hook: TransitionHook | None = None) -> None:
        """Commit the turn to the history, through ``hook`` or the conversation's own."""
        self._change(partial(self._committed, hook or self._terms.hook))

    @contextmanager
    def trial(self) -> Iterator[Conversation]:
        """A draft of the conversation that replaces it when the block ends, and leaves no trace when it raises.

        Raises ``StateError`` at the end when the conversation itself was changed meanwhile.
        """
        base, draft = self._state, self.fork()
        yield draft
        with self._lock:
            if replace(self._state, ledger=base.ledger) != base:
                raise StateError(f"conversation {self.id!r} changed while a trial of it ran; append to one of the two")
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
        """The request's messages with what is known about them; pass ``built.boundary`` on in a ``Request``.

        ``volatile`` (time, retrieval, UI state) is for this call alone and stands behind everything cached.
        ``settle`` first compacts if that is due, which ``ask`` may help with a summary. Raises ``BudgetError`` with
        ``over_by`` when the request budget cannot be met.
        """
        terms = self._terms
        if settle:
            drive(self._settling(volatile, ask))
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
        await adrive(self._settling(volatile, ask))
        return history.build(self._state, terms.system, volatile, volatile_role=volatile_role, count=terms.count)

    def plan(self, *, force: bool = False) -> Plan:
        """What ``compact`` would do, what it costs and whether it is due; nothing changes."""
        terms = self._terms
        rules, around = terms.rules(self.model, self.cold_at)
        return history.plan(self._state, rules, around, terms, force=force)

    def preview(self, *, force: bool = False) -> str:
        """The plan in words."""
        return self.plan(force=force).preview()

    def compact(self, *, force: bool = False, ask: Ask | None = None) -> bool:
        """Compact if that is due; says whether it was. ``force`` goes to the target whatever the price."""
        before = self.ledger.epoch
        drive(settling(self._history(plainly), ask, force=force))
        return self.ledger.epoch > before

    async def acompact(self, *, force: bool = False, ask: AsyncAsk | None = None) -> bool:
        """``compact`` with an ``ask`` that is awaited."""
        before = self.ledger.epoch
        await adrive(settling(self._history(plainly), ask, force=force))
        return self.ledger.epoch > before

    def compact_for_request(self, request: RequestBudget | None = None, *, volatile_tokens: int = 0) -> bool:
        """Compact where the whole request does not fit ``request``, and say whether that was so.

        ``volatile_tokens`` are those of a text for that request alone. Raises ``BudgetError`` with ``over_by`` when it
        cannot be made to fit.
        """
        terms = self._terms
        limit = request or terms.request
        if limit is None:
            raise SetupError(
                "compact_for_request needs a RequestBudget, here or as Session(history=History(request_budget=...))"
            )
        check_fixed(terms, limit, volatile_tokens)
        before = self.ledger.epoch
        drive(settling(self._history(plainly, volatile_tokens, limit), None))
        return self.ledger.epoch > before

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

    def to_json(self, *, places: bool = True) -> dict[str, Any]:
        """Plain JSON types: version, prefix key, ledger; and the history, where it is kept here.

        Of the prefix it holds digests alone. ``places`` is False for adapters that save where the roles' texts stand
        beside it.
        """
        data = written(self.id, self.prefix_key, replace(self._state, ledger=self.ledger), self._answers.cold_after)
        held = self._terms.places
        found = held.saved(self.scope, self.id) if held is not None and places else {}
        return {**data, PLACES: found} if found else data

    def dumps(self) -> str:
        """The state as JSON; loaded elsewhere, the same messages give byte-identical prompts."""
        # Keys keep their order: inside a message it is part of the bytes that the cache compares.
        return json.dumps(self.to_json(), separators=(",", ":"))

    def restore(self, state: str | Mapping[str, Any], *, rebase: bool = False, merge: bool = True) -> None:
        """Merge a saved state into this conversation; with ``merge=False`` take it in place of what was decided here.

        The latter goes back to where the state was saved: what was decided behind that, in this process, is dropped.
        Raises ``StateError`` when it is of another shape, of a newer version, or was saved under another
        prefix; ``rebase=True`` takes it over to the prefix now in force. A saved history needs an empty one here.
        """
        terms = self._terms
        saved = read(state, self.prefix_key, terms.system, rebase=rebase, count=terms.count)
        with self._lock:
            now = self._state
            if saved.history is not None:
                if now.messages:
                    raise StateError(f"conversation {self.id!r} already has a history; restore into a new one")
                now = replace(saved.history, ledger=now.ledger)
            if terms.places is not None and (saved.places or not merge):
                try:
                    terms.places.load(self.scope, self.id or saved.id, saved.places, merge=merge)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise StateError(f"conversation.{PLACES}: {error!r}; load what dumps wrote") from None
            if saved.history is not None:
                self._answers.cold_after = saved.cold_after
            self._state = now if merge else replace(now, ledger=saved.ledger)
            if merge:
                self.merge(saved.ledger)
            else:
                self._branches.clear()
                self._newest = None
            self.id = self.id or saved.id

    # ------------------------------------------------------------------ inside

    def _twin(self, state: ContextState, answers: _Answers) -> Conversation:
        """The same conversation with a state of its own; with the same ``answers`` both learn what was answered."""
        twin = Conversation(self.id, scope=self.scope, prefix_key=self.prefix_key, terms=self._terms)
        twin.model, twin._state, twin._answers = self.model, state, answers
        return twin

    def _change(self, change: Callable[[ContextState], ContextState]) -> None:
        """Replace the state by what ``change`` makes of it, with no other change in between."""
        with self._lock:
            self._state = change(self._state)

    def _appended(self, messages: Sequence[Mapping[str, Any]], state: ContextState) -> ContextState:
        """The state with messages appended, their results shortened, and an agent's cycle closed by its answer."""
        terms = self._terms
        how = terms.cutting(self.scope)
        for number, message in enumerate(messages):
            done = None
            if terms.budget is not None:
                cut = partial(_well_formed, state, message, terms.budget, how)
                done = terms.attempt("tool-result budget", cut, None)
            state = appended(state, message, None, how) if done is None else done
            # In the responses form an answer may go on with further items.
            more = number + 1 < len(messages) and messages[number + 1].get("type") in ("function_call", "reasoning")
            if closes_cycle(state, message) and not more:
                state = self._committed(terms.hook, state)
        return state

    def _committed(self, hook: TransitionHook | None, state: ContextState) -> ContextState:
        """The state with its turn committed, as it is where the hook fails."""
        commit = partial(history.transition, state, count=self._terms.count)
        done = None if hook is None else self._terms.attempt("transition hook", partial(commit, hook), None)
        return done if isinstance(done, ContextState) else commit()

    def _settling(self, volatile: str | None, ask: Ask | AsyncAsk | None) -> Flow[None]:
        """What is due before a request."""
        terms = self._terms
        if terms.compaction is not None or terms.request is not None:
            yield from settling(self._history(terms.attempt, terms.count(volatile) if volatile else 0), ask)

    def _history(
        self, attempt: Attempt, volatile_tokens: int = 0, window: RequestBudget | None = None
    ) -> HistoryAccess:
        """The history kept here, before a request. While a summary of it is being written, others go out as it is.

        ``window`` is what the request must fit where nothing else counts.
        """
        around = partial(self._circumstances, volatile_tokens, window)
        return HistoryAccess(
            self, self._terms, lambda: standing(self._state), around, self._rewrite, attempt=attempt, waits=False
        )

    def _circumstances(
        self,
        volatile_tokens: int,
        window: RequestBudget | None,
        tokens: int,  # noqa: ARG002 - as all histories have it
    ) -> tuple[Compaction, Circumstances] | None:
        """By what a compaction is planned; None where nothing may be compacted now."""
        rules, around = self._terms.rules(self.model, self.cold_at)
        if window is None and self.asking is not None:
            # Only the window counts until the summary is there.
            if around.request is None:
                return None
            window = around.request
        if window is not None:
            rules, around = replace(rules, trigger=None, target=None), Circumstances(request=window)
        around = replace(around, static_tokens=around.static_tokens + volatile_tokens)
        return rules, with_beside(self._state, around, self._terms)

    def _rewrite(self, plan: Plan, made: Ledger, epoch: int) -> bool:
        """Carry out a compaction that was planned at ``epoch``; False where another one came first."""
        with self._lock:
            if self.ledger.epoch != epoch:
                return False
            self._state = carried_out(self._state, plan, made, self._terms.count, readable=self._terms.readable())
            return True


def _well_formed(
    state: ContextState, message: Mapping[str, Any], budget: ToolResultBudget, how: Cutting
) -> ContextState | None:
    """The state with a message appended whose results are shortened; None for a malformed message."""
    try:
        return appended(state, message, budget, how)
    except BodyError:
        # The message is malformed, which the caller is told when it is appended; no failure of ours.
        return None
