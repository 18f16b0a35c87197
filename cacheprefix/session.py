"""Session and Conversation: the only objects an adapter talks to."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from cacheprefix._calls import Break, Call, Line, Report, breaks_of, tally, units_of
from cacheprefix._conversation import Conversation
from cacheprefix._turn import Seen, Turn
from cacheprefix.cache import (
    Breakpoint,
    CacheModel,
    CacheStatus,
    Expectation,
    Verdict,
    mark,
    plan_breakpoints,
)
from cacheprefix.context import MessageView, ReplaceResult, Results, ResultView, ToolResultBudget
from cacheprefix.errors import BodyError, CacheprefixError, SetupError
from cacheprefix.plugins import Plugins
from cacheprefix.prefix import Fork, ForkPolicy, SharedPrefix, TailPlacement, Tool, tail_text
from cacheprefix.profiles import Profile, Registry, Usage, default_registry, money, normalise_usage
from cacheprefix.prompt import Api, Counter, Memo, Prompt, decode, default_counter
from cacheprefix.stores import MemoryStore, ResultStore

Mode = Literal["observe", "fork"]
T = TypeVar("T")

log = logging.getLogger("cacheprefix")

_KEEP_CALLS = 20_000
_KEEP_CONVERSATIONS = 10_000


class CacheprefixWarning(UserWarning):
    """Something did not go as it should, once named; the application went on."""


class Session:
    """A team's shared prefix, policies, prompt trees and totals. Make one and bind it to the front doors.

    Safe to share between threads, tasks and conversations. ``mode="observe"`` changes nothing that is sent.
    ``clock`` gives seconds. ``on_break`` is called with every verdict that is an alarm, beside the log.
    """

    def __init__(
        self,
        prefix: SharedPrefix | str | None = None,
        *,
        mode: Mode = "fork",
        budget: ToolResultBudget | None = None,
        tail: TailPlacement = "tail",
        provider: str | None = None,
        scope: str = "",
        profiles: Registry | None = None,
        counter: Counter | None = None,
        results: Results | None = None,
        plugins: Sequence[object] = (),
        on_break: Callable[[Verdict], None] | None = None,
        clock: Callable[[], float] = time.time,
        name: str = "",
    ) -> None:
        if mode not in ("observe", "fork"):
            message = f'Session(mode={mode!r}): use "observe" or "fork"'
            raise SetupError(message)
        if tail not in ("tail", "sticky", "cards"):
            message = f'Session(tail={tail!r}): use "tail", "sticky" or "cards"'
            raise SetupError(message)
        self.mode = mode
        self.budget = budget
        self.results: Results = results if results is not None else ResultStore(MemoryStore())
        self.tail = tail
        self.scope = scope
        self.name = name
        self.clock = clock
        self.provider = provider
        self.on_break = on_break
        self.plugins = Plugins.with_builtins(plugins)
        self._counter = counter
        self._registry = self._profiles(profiles or default_registry())
        self._lock = threading.RLock()
        self._memo = Memo()
        self.model = CacheModel(clock=clock)
        self._unmodified = CacheModel(clock=clock)
        self._calls: list[Call] = []
        self._folded: dict[str, Line] = {}
        self._folded_breaks: list[Break] = []
        self._agents: set[str] = set()
        self._notes: dict[str, None] = {}
        self._conversations: OrderedDict[tuple[str, str, str], Conversation] = OrderedDict()
        self._sharing: set[tuple[str, str, str]] = set()
        self.failures: Tally[str] = Tally()
        self._said: set[str] = set()
        self.last_call: Call | None = None
        given = prefix if isinstance(prefix, SharedPrefix) else SharedPrefix(system=prefix or "")
        self._prefix = self._freeze(given)
        self._parent: Session | None = None

    # ------------------------------------------------------------------ the prefix

    @property
    def prefix(self) -> SharedPrefix:
        """The frozen prefix."""
        return self._prefix

    @property
    def root(self) -> Session:
        """The session that holds trees and totals: itself, or that which ``child`` was called on."""
        return self if self._parent is None else self._parent.root

    def child(self, name: str, prefix: SharedPrefix | None = None) -> Session:
        """A session for a nested team: its own agents and prefix, the same trees, policies and totals."""
        if not name:
            message = "Session.child(name) needs a name"
            raise SetupError(message)
        child = object.__new__(Session)
        child.__dict__.update(self.__dict__)
        child._parent = self
        child.name = f"{self.name}/{name}" if self.name else name
        if prefix is not None:
            child._prefix = self._freeze(prefix)
        return child

    def adopt_tools(
        self, tools: Iterable[Any], render: Callable[[Any], Mapping[str, Any]]
    ) -> tuple[Tool, ...]:
        """The union of the prefix's tools and ``tools``, frozen; for adapters, before the first request.

        Raises ``ToolClashError`` when one name has two schemas. A tool that arrives after the first request
        stays outside the union and is noted, since it would change every prompt from its beginning.
        """
        with self._lock:
            union = self._prefix.with_tools(tools, render)
            added = [tool.name for tool in union.tools if tool.name not in self._prefix.tool_names]
            if added and self.root.last_call is not None:
                self.note(
                    f"tools {', '.join(added)} came after the first request and stay outside the shared union"
                )
            elif union.tools != self._prefix.tools or any(
                not isinstance(t, Tool) for t in self._prefix.tools
            ):
                self._prefix = union
            return self._prefix.tools

    def tail_for(
        self,
        role: str,
        instruction: str,
        *,
        tools: Sequence[str] | None = None,
        volatile: Mapping[str, str] | None = None,
    ) -> str:
        """The text that makes a request this role's: the only thing that differs between forks."""
        card = self.tail == "cards" and self._prefix.roles.get(role) == instruction
        return tail_text(role, instruction, card=card, tools=tools, volatile=volatile)

    def profile(self, model: str, api: Api | None = None, provider: str | None = None) -> Profile:
        """The provider rules in force for a model."""
        return self._registry.profile_for(model, provider=provider or self.provider, api=api)

    def shares(self, conversation: str, model: str, tokens: Callable[[], int]) -> bool:
        """Whether requests of a conversation are to become forks: its shared part must be long enough to be cached.

        ``tokens`` counts what the next request shares beside the prefix's own text. Once a conversation shares,
        it goes on, because its layout must not change. What is left alone is noted once.
        """
        root = self.root
        key = (conversation, model, self._prefix.key)
        if key in root._sharing:
            return True
        profile = self.profile(model)
        if profile.control == "none":
            self.note(f"{model}: {profile.name} has no prompt cache, requests are left as they are")
            return False
        found = tokens() + self.count(self._prefix.text, model)
        if found < profile.min_tokens:
            self.note(
                f"{model}: requests share fewer tokens than the minimum of {profile.min_tokens:,} that "
                f"{profile.name} caches, and are left as they are until they share more"
            )
            return False
        with self._lock:
            if len(root._sharing) > _KEEP_CALLS:
                root._sharing.clear()
            root._sharing.add(key)
        return True

    # ------------------------------------------------------------------ conversations

    def conversation(self, id: str = "", *, scope: str | None = None) -> Conversation:  # noqa: A002
        """The conversation of a thread or run id, made when it is new.

        The most recent 10,000 are kept; what must last longer belongs into the framework's own state.
        """
        root = self.root
        key = (self.name, self.scope if scope is None else scope, id)
        with self._lock:
            found = root._conversations.get(key)
            if found is None:
                found = Conversation(id, scope=key[1], prefix_key=self._prefix.key)
                root._conversations[key] = found
                if len(root._conversations) > _KEEP_CONVERSATIONS:
                    root._conversations.popitem(last=False)
            else:
                root._conversations.move_to_end(key)
        return found

    def shorten(
        self, conversation: Conversation, views: Sequence[MessageView], model: str = ""
    ) -> tuple[ReplaceResult, ...]:
        """What stands in place of large tool results, decided once and replayed; empty when it fails."""
        if self.mode == "observe" or (self.budget is None and not len(conversation.ledger)):
            return ()
        return self.attempt(
            "tool-result budget",
            lambda: conversation.shorten(
                views,
                self.budget,
                count=lambda text: self.count(text, model),
                store=self.results,
                replace=self._replacement if self.plugins.overrides("replace_tool_result") else None,
            ),
            (),
        )

    def _replacement(self, result: ResultView) -> str | None:
        answer = self.plugins.call_first("replace_tool_result", result=result, budget=self.budget)
        return answer if isinstance(answer, str) else None

    # ------------------------------------------------------------------ one request

    def begin(
        self,
        body: Mapping[str, Any],
        api: Api,
        *,
        agent: str = "",
        conversation: str = "",
        boundary: Callable[[Prompt], int | None] | int | None = None,
        original: Callable[[Prompt], Prompt | None] | None = None,
        headers: Mapping[str, str] | None = None,
        provider: str | None = None,
        rewrite: bool = True,
        policy: ForkPolicy | None = None,
        scope: str | None = None,
    ) -> Turn:
        """Observe a request that is about to be sent, and in ``fork`` mode mark it for the cache.

        ``boundary`` is the number of leading sections shared with siblings, or a function that finds it in the
        decoded prompt. ``original`` gives, from the prompt as sent, the prompt as the application made it, for the
        estimate of what it would have cost. ``rewrite=False`` only observes. Never raises: whatever fails, ``turn.body`` is ``body``.
        """
        try:
            return self._begin(
                body, api, agent, conversation, boundary, original, headers, provider, rewrite, policy, scope
            )
        except Exception as error:
            self.failed("begin", error)
            return Turn(body)

    def _begin(
        self,
        body: Mapping[str, Any],
        api: Api,
        agent: str,
        conversation: str,
        boundary: Callable[[Prompt], int | None] | int | None,
        original: Callable[[Prompt], Prompt | None] | None,
        headers: Mapping[str, str] | None,
        provider: str | None,
        rewrite: bool,
        policy: ForkPolicy | None,
        scope: str | None,
    ) -> Turn:
        now = self.clock()
        model = str(body.get("model", body.get("modelId", "")))
        profile = self.profile(model, api, provider)
        prompt = self.decode(body, api, headers=headers)
        sent = body
        if rewrite and self.mode == "fork":
            limit = boundary(prompt) if callable(boundary) else boundary
            sent, prompt = self._marked(body, api, prompt, profile, limit, policy)
        self.plugins.call_all("before_call", prompt=prompt)
        agent = f"{self.name}/{agent}" if self.name else agent
        where = self.scope if scope is None else scope
        observation = self.model.begin(
            prompt, profile, scope=where, agent=agent, session=conversation, at=now
        )
        unmodified = self._estimate(prompt, original, profile, where, agent, conversation, now)
        purpose = policy.purpose if policy else ""
        seen = Seen(prompt, profile, observation, agent, conversation, purpose, now, unmodified)
        return Turn(sent, seen, self._finished, self._failed, self._begun)

    def decode(
        self, body: Mapping[str, Any], api: Api, *, headers: Mapping[str, str] | None = None
    ) -> Prompt:
        """A body as a prompt, counted by this session's counter; history seen before costs next to nothing."""
        return decode(body, api, headers=headers, count=self.count, memo=self._memo)

    def _marked(
        self,
        body: Mapping[str, Any],
        api: Api,
        prompt: Prompt,
        profile: Profile,
        boundary: int | None,
        policy: ForkPolicy | None,
    ) -> tuple[Mapping[str, Any], Prompt]:
        chosen: Sequence[Breakpoint] | None = self.plugins.call_first(
            "place_breakpoints", prompt=prompt, profile=profile
        )
        if chosen is None:
            skip = policy is not None and policy.skip_cache_write
            chosen = plan_breakpoints(prompt, profile, boundary=boundary, skip_tail=skip)
        marked: Mapping[str, Any] = mark(body, api, prompt, chosen) if chosen else body
        key = profile.routing_key
        if key and not key.startswith("header:") and api.startswith("openai") and key not in body:
            marked = {**marked, key: self._prefix.key}
        if marked is body:
            return body, prompt
        return marked, self.decode(marked, api)

    def _estimate(
        self,
        sent: Prompt,
        original: Callable[[Prompt], Prompt | None] | None,
        profile: Profile,
        scope: str,
        agent: str,
        conversation: str,
        now: float,
    ) -> Usage | None:
        if original is None:
            return None
        prompt = self.attempt("estimate", lambda: original(sent), None)
        if prompt is None:
            return None
        observation = self._unmodified.begin(
            prompt, profile, scope=scope, agent=agent, session=conversation, at=now
        )
        self._unmodified.finish(observation, None, now)
        return observation.expectation.usage

    def _begun(self, turn: Turn, at: float | None) -> None:
        turn.first_token_at = self.clock() if at is None else at
        seen = turn.seen
        if seen is not None:
            self.attempt(
                "first_token",
                lambda: self.model.first_token(seen.observation, at or self.clock()),
                None,
            )  # type: ignore[union-attr,arg-type]

    def _failed(self, turn: Turn) -> None:
        seen = turn.seen
        if seen is not None:
            self.attempt("fail", lambda: self.model.fail(seen.observation), None)

    def _finished(
        self, turn: Turn, raw: Any, at: float | None, diagnostics: Mapping[str, Any] | None
    ) -> Call | None:
        return self.attempt("finish", lambda: self._record(turn, raw, at, diagnostics), None)

    def _record(
        self, turn: Turn, raw: Any, at: float | None, diagnostics: Mapping[str, Any] | None
    ) -> Call | None:
        seen = turn.seen
        if seen is None:
            return None
        ended = self.clock() if at is None else at
        usage = raw if isinstance(raw, Usage) else normalise_usage(raw, seen.prompt.api)
        verdict = self.model.finish(seen.observation, usage, ended, diagnostics=diagnostics)
        expectation: Expectation = seen.observation.expectation
        units = units_of(usage, expectation.usage, seen.profile)
        root = self.root
        with self._lock:
            first = seen.agent not in self._agents
            self._agents.add(seen.agent)
            call = Call(
                index=verdict.index,
                agent=seen.agent,
                conversation=seen.conversation,
                model=seen.prompt.model,
                profile=seen.profile,
                input_tokens=seen.prompt.tokens,
                shared_tokens=expectation.shared_tokens,
                first_of_agent=first,
                usage=usage,
                verdict=verdict,
                unmodified_units=units
                if seen.unmodified is None
                else units_of(seen.unmodified, seen.unmodified, seen.profile),
                units=units,
                money=money(usage, seen.prompt.model, seen.profile),
                started_at=seen.started_at,
                first_token_at=turn.first_token_at,
                ended_at=ended,
                purpose=seen.purpose,
            )
            root._remember(call)
        self.plugins.call_all("after_call", call=call, verdict=verdict)
        if verdict.alarm:
            self.plugins.call_all("cache_break", verdict=verdict)
            if self.on_break is not None:
                self.attempt("on_break", lambda: self.on_break(verdict), None)  # type: ignore[misc]
        return call

    def _remember(self, call: Call) -> None:
        self.last_call = call
        self._calls.append(call)
        if len(self._calls) > _KEEP_CALLS:
            half = _KEEP_CALLS // 2
            old, self._calls = self._calls[:half], self._calls[half:]
            for agent in {item.agent for item in old}:
                line = tally(agent, (item for item in old if item.agent == agent))
                self._folded[agent] = (
                    line if agent not in self._folded else _sum(agent, (self._folded[agent], line))
                )
            self._folded_breaks.extend(breaks_of(old))

    # ------------------------------------------------------------------ what came of it

    @property
    def calls(self) -> tuple[Call, ...]:
        """The recent calls (the newest 10,000 at least)."""
        return tuple(self.root._calls)

    @property
    def last_verdict(self) -> Verdict | None:
        """What the cache did on the last finished call."""
        last = self.root.last_call
        return None if last is None else last.verdict

    def cache_status(self) -> CacheStatus:
        """Recent hit rate, last read and write, last break."""
        return self.model.status()

    def report(self) -> Report:
        """Tokens, cost units and money by agent, against the unmodified layout; breaks with their causes."""
        root = self.root
        with self._lock:
            calls = list(root._calls)
            folded = dict(root._folded)
            old_breaks = list(root._folded_breaks)
        lines = []
        for agent in sorted(folded.keys() | {call.agent for call in calls}):
            line = tally(agent, (call for call in calls if call.agent == agent))
            lines.append(_sum(agent, (folded[agent], line)) if agent in folded else line)
        return Report(
            tuple(lines),
            _sum("all", lines),
            _merged([*old_breaks, *breaks_of(calls)]),
            self.counter_name,
            tuple(root._notes),
            dict(root.failures),
        )

    @property
    def counter_name(self) -> str:
        """Which token counter is in force; shown in every report."""
        if self._counter is not None:
            return self._counter.name
        if self.plugins.overrides("count_tokens"):
            return "plugin"
        last = self.root.last_call
        return default_counter(last.model if last else "").name

    # ------------------------------------------------------------------ failing open

    def attempt(self, step: str, work: Callable[[], T], otherwise: T) -> T:
        """Do our own work; whatever it raises is counted and named once, and ``otherwise`` is the answer."""
        try:
            return work()
        except Exception as error:
            self.failed(step, error)
            return otherwise

    def failed(self, step: str, error: Exception) -> None:
        """Count a failure of ours and warn about its kind once."""
        root = self.root
        with self._lock:
            root.failures[step] += 1
            key = f"{step}:{type(error).__name__}"
            new = key not in root._said
            root._said.add(key)
        if new:
            kind = "the body" if isinstance(error, BodyError) else "cacheprefix"
            text = f"{step}: {kind} could not be handled ({type(error).__name__}: {error}); the request goes out as it was"
            log.warning(text, exc_info=not isinstance(error, CacheprefixError))
            warn(text)

    def note(self, text: str) -> None:
        """Remember something the user should know, once; it stands in the report and the log."""
        root = self.root
        with self._lock:
            new = text not in root._notes
            root._notes[text] = None
        if new:
            log.info(text)

    def warn_once(self, key: str, text: str) -> None:
        """Warn about something the user did, once a session."""
        root = self.root
        with self._lock:
            new = key not in root._said
            root._said.add(key)
        if new:
            log.warning(text)
            warn(text)

    # ------------------------------------------------------------------ hooks

    def count(self, text: str, model: str = "") -> int:
        """Tokens of a text, by the counter given, a plugin, or the default for the model."""
        if self._counter is not None:
            return self._counter(text, model)
        if self.plugins.overrides("count_tokens"):
            counted = self.plugins.call_first("count_tokens", text=text, model=model)
            if isinstance(counted, int):
                return counted
        return default_counter(model)(text, model)

    def _freeze(self, prefix: SharedPrefix) -> SharedPrefix:
        frozen = self.plugins.call_first("freeze", prefix=prefix)
        return frozen if isinstance(frozen, SharedPrefix) else prefix

    def _profiles(self, registry: Registry) -> Registry:
        added: list[Profile] = []
        self.plugins.call_all("profiles", register=added.append)
        return registry.with_profiles(added) if added else registry

    def forked(self, fork: Fork) -> Fork:
        """Let plugins change a fork's tail; anything else they change is refused and named."""
        for changed in self.plugins.call_all("fork", fork=fork):
            if not isinstance(changed, Fork):
                continue
            if changed.prefix is fork.prefix or changed.prefix == fork.prefix:
                fork = replace(fork, tail=changed.tail, policy=changed.policy)
            else:
                self.warn_once(
                    "fork-hook", "a plugin's fork hook changed the shared prefix; only the tail may change"
                )
        return fork

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        """Copies of an application share the session, as they share its cache."""
        return self


def unmodified(
    prompt: Prompt,
    *,
    system: Sequence[str],
    tools: Sequence[Mapping[str, Any]] | None,
    tail: str,
    count: Callable[[str, str], int],
) -> Prompt:
    """The prompt as the application made it, from the one that is sent: its own system texts and tools, no tail.

    ``tools`` are in the wire form of the prompt's API. Sections of the conversation are taken over as they are.
    """
    body: dict[str, Any] = {"model": prompt.model, "tools": list(tools or [])}
    if prompt.api == "anthropic":
        body["system"] = [{"type": "text", "text": text} for text in system]
    else:
        field = "input" if prompt.api == "openai-responses" else "messages"
        body[field] = [{"role": "system", "content": text} for text in system]
    head = decode(body, prompt.api, count=count).sections
    rest = list(prompt.tier("messages"))
    data = tail.encode("utf-8", "surrogatepass")
    found = next((i for i in range(len(rest) - 1, -1, -1) if rest[i].data == data), None) if tail else None
    if found is not None:
        del rest[found]
    return replace(
        prompt, sections=(*head, *(replace(s, marker=None) if s.marker else s for s in rest)), top_marker=None
    )


def warn(text: str) -> None:
    """Warn without letting a filter that turns warnings into errors reach the user's call."""
    try:
        warnings.warn(text, CacheprefixWarning, stacklevel=3)
    except CacheprefixWarning:
        log.warning("%s (the warning was turned into an error by a filter and is only logged)", text)


def _sum(agent: str, lines: Iterable[Line]) -> Line:
    rows = tuple(lines)
    known = [row.unmodified_units for row in rows if row.unmodified_units is not None]
    usd = [row.money for row in rows if row.money is not None]
    return Line(
        agent,
        sum(row.calls for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.cache_read_tokens for row in rows),
        sum(row.cache_write_tokens for row in rows),
        sum(row.uncached_tokens for row in rows),
        sum(row.cost_units for row in rows),
        sum(known) if known else None,
        sum(usd) if usd else None,
        sum(row.unreported for row in rows),
    )


def _merged(breaks: Iterable[Break]) -> tuple[Break, ...]:
    merged: dict[tuple[str, str | None], Break] = {}
    for item in breaks:
        known = merged.get((item.cause, item.path))
        if known is not None:
            usd = [value for value in (known.lost_usd, item.lost_usd) if value is not None]
            item = replace(  # noqa: PLW2901 - the sum takes the item's place
                known,
                count=known.count + item.count,
                lost_tokens=known.lost_tokens + item.lost_tokens,
                lost_usd=sum(usd) if usd else None,
                agents=tuple(sorted({*known.agents, *item.agents})),
            )
        merged[item.cause, item.path] = item
    return tuple(sorted(merged.values(), key=lambda found: -found.lost_tokens))
