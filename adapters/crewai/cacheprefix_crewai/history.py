"""A task's history within the session's limits: large tool results, compaction, the request budget."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cacheprefix.adapter import (
    AdapterSession,
    Bounded,
    Circumstances,
    Cutting,
    ReplaceResult,
    RestOfRequest,
    dumps,
    plan_compaction,
    replay,
)
from cacheprefix.wire import apply, form_of, sendable, views_of
from cacheprefix_crewai.binding import binding_of
from cacheprefix_crewai.clients import sender
from cacheprefix_crewai.tools import ToolHooks, name_of

if TYPE_CHECKING:
    from cacheprefix import Conversation
    from cacheprefix.adapter import Api, Decision, MessageView
    from cacheprefix_crewai.binding import Binding

_KEEP = 2_000
_KEEP_OVER = 100
_REF = re.compile(r"\bread_full_result\(ref='(\w+)'")
_FEWEST_LOOPS = 2.0
"""Further requests of a task with tools that are reckoned with at least: a guess, since one is asked to use them."""


class ReadableRefs:
    """Which cut results each kickoff of an installation may read in full: those whose refs it was shown."""

    def __init__(self, _: Binding) -> None:
        self._shown: Bounded[str, set[str]] = Bounded(_KEEP)

    def of(self, kickoff: str) -> set[str]:
        """The refs of one kickoff, to which more are added; outside of a kickoff a set that nobody keeps."""
        # Privacy: without a kickoff nobody can tell whose result it is.
        return self._shown.of(kickoff, set) if kickoff else set()


def readable_refs(binding: Binding) -> set[str]:
    """The refs of the cut results that the kickoff under way here may read."""
    return binding.part(ReadableRefs).of(binding.kickoff_id)


def add_shown(refs: set[str], decisions: Sequence[Decision]) -> None:
    """Add the refs that stand in the place of cut results, now that the model is shown them."""
    refs.update(ref for one in decisions if isinstance(one, ReplaceResult) for ref in _REF.findall(one.text))


@dataclass
class Execution:
    """One run of one task by one agent: the decisions on its history, and its newest request.

    Every run starts anew, so that a kickoff that is repeated decides again at the same places: a decision of the
    run before would take away results that this one has not read yet.
    """

    conversation: Conversation
    kickoff: str = ""
    """The id of its kickoff, a crew's or an agent's own; empty outside of one."""
    llm: Any = None
    api: Api = "openai-chat"
    body: Mapping[str, Any] = field(default_factory=dict)
    """As it was before it was marked for the cache."""
    crew: weakref.ref[Any] | None = None
    """The crew whose task it is, perhaps a copy of the one installed; None for an agent without one."""
    asker: weakref.ref[Any] | None = None
    """The agent that asked, perhaps a copy too."""
    agent: str = ""
    answer: str = ""
    """The newest answer in text; empty while tools are being called."""
    said: bool = False
    """Whether a request of it was answered."""
    steps: int = 0
    """Requests so far."""
    tokens: int = 0
    """Of the newest request."""
    refs: set[str] = field(default_factory=set)
    """Of the cut results that its kickoff may read in full."""
    beside: str = ""
    """Names what its layout goes by beside its own words."""
    opening: Any = None
    """The very message that its history begins with, which outside of a kickoff tells it from others that began alike.
    """


class Executions:
    """The runs of tasks that an installation has seen, the newest of which is continued by ``ask``."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._kept: Bounded[tuple[str, str, int], Execution] = Bounded(_KEEP)
        """By kickoff, opening and agent; outside of a kickoff by the very object of the first message."""
        self._opened = self._looped = self._further = 0
        self._newest: Bounded[str, Execution] = Bounded(_KEEP)
        """The run whose request was answered last, by kickoff; the last one of all under the empty name."""
        self._over: Bounded[str, Execution] = Bounded(_KEEP_OVER)
        """The same of kickoffs that are over, which can still be asked."""

    @property
    def newest(self) -> Execution | None:
        """The run whose request was answered last: in a kickoff of this installation, of that kickoff alone."""
        # Privacy: another kickoff, before this one or beside it, is somebody else's.
        own = self._binding.own_kickoff
        return self._newest.get(own) or self._over.get(own)

    @property
    def none_yet(self) -> bool:
        """Whether no request was answered yet, in any kickoff."""
        return not self._newest

    def newest_of(self, crew: Any, agents: Sequence[Any]) -> Execution | None:
        """The newest run of a crew, or without one of these agents, that was answered, outside of a kickoff."""
        askers = {id(agent) for agent in agents}

        def theirs(run: Execution) -> bool:
            by = run.asker if crew is None else run.crew
            one = None if by is None else by()
            return run.said and (id(one) in askers if crew is None else one is crew)

        with self._binding.lock:
            runs = (*reversed(self._kept.values()), *reversed(self._over.values()))
            return next(filter(theirs, runs), None)

    def ended(self, kickoff: str) -> None:
        """A kickoff is over: what it said is let go, but for its newest request."""
        with self._binding.lock:
            for key in [key for key, run in self._kept.items() if run.kickoff == kickoff]:
                del self._kept[key]
            newest = self._newest.pop(kickoff, None)
            if newest is not None:
                self._over[kickoff] = newest

    def answered(self, execution: Execution) -> None:
        """A run's request was answered."""
        with self._binding.lock:
            execution.said = True
            self._newest[self._binding.own_kickoff] = self._newest[""] = execution

    def of(self, digest: str, agent: Any, messages: Sequence[Any], *, first: bool) -> Execution:
        """The run of a task that a request belongs to. Without an ``agent``, the kickoff's newest with this opening."""
        with self._binding.lock:
            key = self._key(digest, agent, messages[0])
            if first:
                self._kept.pop(key, None)
            return self._kept.of(key, lambda: self._new(messages[0]))

    def known(self, digest: str, agent: Any, messages: Sequence[Any]) -> Execution | None:
        """The run of a task that a later request belongs to; None where no request of it was seen."""
        with self._binding.lock:
            return self._kept.get(self._key(digest, agent, messages[0]))

    def _key(self, digest: str, agent: Any, opening: Any) -> tuple[str, str, int]:
        """By what the run of a task is kept that a request belongs to."""
        kickoff = self._binding.kickoff_id
        # Privacy: agents and tasks are run without a crew too, for several people at a time who may ask alike. The list
        # of messages is copied for some requests, its messages are not.
        key = (kickoff, digest, id(agent if kickoff else opening))
        if agent is not None or not kickoff:
            return key
        # Privacy: one of another kickoff that began alike is somebody else's.
        return next((known for known in reversed(self._kept) if known[:2] == (kickoff, digest)), key)

    def _new(self, opening: Any) -> Execution:
        """A run with decisions of its own."""
        # Privacy: its decisions are its kickoff's, or this run's alone; the next one asks for somebody else.
        conversation = self._binding.held.fork()
        conversation.id = self._binding.kickoff_id or self._binding.new_kickoff_id()
        # Kept, so that no other message has its place in memory meanwhile.
        refs, kickoff = readable_refs(self._binding), self._binding.own_kickoff
        return Execution(conversation, kickoff, refs=refs, opening=opening)

    def asked(self, execution: Execution, *, has_tools: bool) -> None:
        """Count a request; of tasks with tools, those that began and those that went on."""
        with self._binding.lock:
            execution.steps += 1
            if has_tools:
                self._opened += execution.steps == 1
                self._looped += execution.steps == 2
                self._further += execution.steps > 1

    @property
    def loops(self) -> float:
        """Further requests that a run of a task with tools makes after its first: as seen so far, two at least.

        Runs are counted and not tasks: the tasks of a crew that is kicked off again are run again.
        """
        with self._binding.lock:
            return max(_FEWEST_LOOPS, self._further / self._opened) if self._opened else _FEWEST_LOOPS

    @property
    def go_on(self) -> bool:
        """Whether a task's first request is worth a mark at its end: at least one task in three went on so far.

        Writing a token costs a quarter more than sending it, and reading it again saves nine tenths of it: a mark
        pays from ``0.25 / 0.9``, a little over one task in four. The first task is taken to go on with its tools.
        """
        with self._binding.lock:
            return (self._looped + 1) * 3 >= self._opened


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around a history in its request, and the model that reads it."""

    model: str
    head: int
    """Messages of the opening: they always stay."""
    tools: Sequence[Any] | None = None
    volatile: str = ""
    """Text behind the history, for this request only."""


def limits(session: AdapterSession) -> bool:
    """Whether the session bounds histories, so that CrewAI need not."""
    return session.histories.compaction is not None or session.histories.request_budget is not None


def condensed(session: AdapterSession, execution: Execution, messages: Sequence[Any], around: Around) -> list[Any]:
    """The messages within the session's limits: compacted where that is due, and as compacted before.

    Those of the opening always stay. Fails open, but for ``BudgetError`` where a request budget cannot be met.
    """
    views = session.attempt("compaction", lambda: _views(session, messages, around), None)
    if views is None:
        return list(messages)
    beside = [dumps(tool, f"tool {name_of(tool)}").decode() for tool in around.tools or ()]
    static = sum(session.count(text, around.model) for text in (*beside, around.volatile) if text)
    held, ask = execution.conversation, None
    rules = session.histories.compaction
    # Of Gemini's and Bedrock's answers the core reads no text: there, old steps go without a summary.
    if rules is not None and rules.summarise == "fork" and execution.body and form_of(execution.api):
        ask = session.side_forks.summary(
            body=execution.body,
            api=execution.api,
            send=sender(execution.llm, execution.api),
            conversation=held.id,
            scope=held.scope,
        )
    rest = RestOfRequest(static, tools=tuple(map(name_of, around.tools or ())))
    decisions = session.histories.condense(held, views, around.model, execution.api, rest, ask=ask)
    add_shown(execution.refs, decisions)
    return session.attempt("compaction", lambda: _applied(messages, decisions), list(messages))


def compact_now(session: AdapterSession, execution: Execution, messages: Sequence[Any], around: Around) -> bool:
    """Halve a history that the provider refused as too long. False when nothing of it may go."""
    rules = session.histories.compaction
    if rules is None:
        return False
    views = _views(session, messages, around)
    count = session.counter(around.model)
    held = execution.conversation
    budget = session.histories.budget
    tokens = replay(views, held.ledger, budget, Cutting(count)).tokens
    kept = Circumstances(budget=budget, readable=True)
    smaller = replace(rules, trigger=max(2, tokens - 1), target=max(1, tokens // 2))
    plan = plan_compaction(views, held.ledger, smaller, kept, count=count, force=True)
    if not plan.due:
        return False
    held.merge(plan.commit(session.histories.results, scope=held.scope))
    return True


def _views(session: AdapterSession, messages: Sequence[Any], around: Around) -> list[MessageView]:
    """The messages as the core decides on them; it touches none of the opening."""
    views = views_of(messages, "openai-chat", session.counter(around.model))
    return [replace(view, pinned=True) if at < around.head else view for at, view in enumerate(views)]


def _applied(messages: Sequence[Any], decisions: Sequence[Any]) -> list[Any]:
    """The messages with the decisions carried out, and without the core's mark on a summary."""
    return sendable(apply(messages, decisions, "openai-chat")) if decisions else list(messages)


def shortened(binding: Binding, messages: list[Any], model: str, tools: Sequence[str] | None = None) -> list[Any]:
    """The messages of a request with large tool results cut to the session's budget, decided once and replayed.

    ``tools`` are the names of those that it carries.
    """
    session, kept = binding.session, binding.held
    if session.histories.budget is None and not kept.ledger.alters:
        return messages

    def work() -> list[Any]:
        views = views_of(messages, "openai-chat", lambda text: session.count(text, model))
        decisions = session.histories.shorten(kept, views, model, tools)
        add_shown(readable_refs(binding), decisions)
        return list(apply(messages, decisions, "openai-chat")) if decisions else messages

    return session.attempt("tool-result budget", work, messages)


def _after_tool(context: Any) -> str | None:
    """Cut a large result when it comes, before CrewAI's own deferral sees it.

    CrewAI stores a result over a quarter of the window in a file of random name and adds a tool to read it, which
    changes every request from its beginning. A result within the budget is never deferred.
    """
    binding = binding_of(context.agent)
    result = context.tool_result
    if binding is None or not binding.rewrites or not isinstance(result, str):
        return None
    if binding.session.histories.budget is None:
        return None
    name, arguments = context.tool_name, str(context.tool_input or {})
    call = {"id": "call_0001", "type": "function", "function": {"name": name, "arguments": arguments}}
    messages: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0001", "name": name, "content": result},
    ]
    model = str(getattr(getattr(context.agent, "llm", None), "model", ""))
    # Without a kickoff nobody can tell whose result it is, so none is read again.
    known = [*(context.agent.tools or ()), *(getattr(context.task, "tools", None) or ())] if binding.kickoff_id else []
    text = shortened(binding, messages, model, [str(tool.name) for tool in known])[-1].get("content")
    return text if isinstance(text, str) and text != result else None


RESULT_BUDGET = ToolHooks(after=_after_tool)
"""Cuts tool results of all crews that were installed with a budget."""
