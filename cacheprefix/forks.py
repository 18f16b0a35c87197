"""Side forks: a request that extends a conversation on its cached prefix, its tool loop, and what it leaves behind."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from typing_extensions import TypedDict, Unpack

from cacheprefix.cache import Verdict
from cacheprefix.calls.begin import Request, Requests
from cacheprefix.calls.history_runner import HistoryRunner
from cacheprefix.calls.pending import PendingCall
from cacheprefix.conversation import Conversation
from cacheprefix.effects import Call, Flow, adrive, drive
from cacheprefix.errors import UnsafeForkError
from cacheprefix.history import SummaryRequest
from cacheprefix.history.settling import Ask, AsyncAsk
from cacheprefix.layout import AbortHandle, Compatibility, Fork, ForkPolicy, compatibility
from cacheprefix.profiles import NO_CALLS, Usage, normalise_usage
from cacheprefix.prompt import Api, Prompt, dumps, reason
from cacheprefix.wire import apply, encode, form_of, views_of
from cacheprefix.wire.answers import (
    Answer,
    ToolRequest,
    history_field,
    limited,
    read_answer,
    result_messages,
    user_message,
)
from cacheprefix.wire.openai_chat import tool_name

Stopped = Literal["done", "max_turns"]
ToolExecutor = Callable[..., Any]
"""``executor(id, name, arguments)`` or ``executor(id, name, arguments, state)``; sync or async; its result is sent
back to the model as text, an exception as an error result."""


@dataclass(frozen=True, slots=True)
class ForkResult:
    """What came of a fork."""

    text: str
    """The last non-empty text of the model."""
    messages: tuple[Mapping[str, Any], ...]
    """Everything behind the parent's messages, in wire form: the tail, answers, tool results."""
    turns: int
    stopped: Stopped
    compatibility: Compatibility
    verdicts: tuple[Verdict, ...]
    policy: ForkPolicy
    usage: Usage = NO_CALLS
    """What all its requests used, as the provider reported it; ``usage.calls`` says how many they were."""


class AskOptions(TypedDict, total=False):
    """How something is asked beside a conversation; options of every adapter's ``ask``."""

    role: str
    """Who asks; ``helper`` by default."""
    policy: ForkPolicy | None
    """How much the fork may do, and what it leaves behind; ``ForkPolicy.ephemeral()`` by default in an adapter's."""
    overrides: Mapping[str, Any] | None
    """Replaces fields of the body; what then no longer shares raises ``UnsafeForkError`` before any call."""
    abort: AbortHandle | None
    """Its parent's: stops it too where the policy says so (``share_abort``, ``ForkPolicy.worker()``)."""


def ask_options(given: AskOptions, kind: type[AskOptions] = AskOptions) -> AskOptions:
    """Those of ``given`` that say how it is asked: one call that keeps nothing, unless a policy says otherwise.

    Raises ``TypeError`` for what is no option of ``kind``.
    """
    _check_names(given, kind, "ask()")
    return {
        "role": given.get("role", "helper"),
        "policy": given.get("policy") or ForkPolicy.ephemeral(),
        "overrides": given.get("overrides"),
        "abort": given.get("abort"),
    }


def _check_names(given: AskOptions, kind: type[AskOptions], called: str) -> None:
    """Raise ``TypeError`` where what was called was given an option that is none of ``kind``."""
    unknown = sorted(set(given) - set(kind.__annotations__))
    if unknown:
        raise TypeError(f"{called} takes no option {unknown[0]!r}; there are {', '.join(sorted(kind.__annotations__))}")


class ForkOptions(AskOptions, total=False):
    """How a side fork is asked and run; the options of ``Session.fork``."""

    tool_executor: ToolExecutor | None
    """Runs tools; without one, and when it raises, the model gets an error result."""
    conversation: str
    """The parent's id."""
    scope: str | None
    """The tenant whose cache it is, the session's by default."""
    state: Any
    """The executor's fourth argument; a copy of it, unless the policy shares it."""
    commit: Callable[[Sequence[Mapping[str, Any]]], None] | None
    """Takes the fork's messages afterwards, unless the policy skips the transcript."""


@dataclass(frozen=True, slots=True)
class _Tools:
    """How a fork's tools are run."""

    executor: ToolExecutor | None
    state: Any
    """The executor's fourth argument."""
    abort: AbortHandle

    @classmethod
    def of(cls, options: ForkOptions, policy: ForkPolicy) -> _Tools:
        """How a fork with these options runs its tools under its policy."""
        state, abort = options.get("state"), options.get("abort")
        return cls(
            options.get("tool_executor"),
            # Privacy: what a fork's tools do to the state stays its own, unless its policy shares that.
            state if policy.share_state else copy.deepcopy(state),
            abort.child() if abort is not None and policy.share_abort else AbortHandle(),
        )

    def answers(self, answer: Answer) -> Flow[list[tuple[ToolRequest, str, bool]]]:
        """Run what an answer calls, one after another: each call, the text for the model, and whether it failed."""
        results = []
        for call in answer.calls:
            self.abort.check()
            try:
                value = yield Call(self._run, call)
            except Exception as error:
                # Whatever a tool does, the model is told, and the fork goes on.
                results.append((call, f"error: {type(error).__name__}: {error}", True))
            else:
                said = value if isinstance(value, str) else dumps(value, "tool result").decode()
                results.append((call, said, False))
        return results

    def _run(self, call: ToolRequest) -> Any:
        """What the executor answers; raises what it raises, and for a call that cannot be run."""
        if call.problem:
            raise ValueError(call.problem)
        executor = self.executor
        if executor is None:
            raise LookupError(f"tool {call.name!r} cannot run in this fork: it has no tool executor")
        arguments = (call.id, call.name, call.arguments)
        return executor(*arguments, self.state) if _takes_state(executor) else executor(*arguments)


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that a run needs, settled before the first call."""

    first: Request
    """The first request; those that follow differ in their messages."""
    parent: int
    """Messages of the parent."""
    policy: ForkPolicy
    compatibility: Compatibility
    conversation: Conversation
    tools: _Tools
    commit: Callable[[Sequence[Mapping[str, Any]]], None] | None


@dataclass(frozen=True, slots=True)
class SideForks:
    """Asks something beside a conversation, for one team. Thread-safe."""

    requests: Requests
    history: HistoryRunner

    def run(
        self,
        text: str,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        **options: Unpack[ForkOptions],
    ) -> ForkResult:
        """Ask, and run the fork's own tool loop, with a synchronous ``send(body) -> response`` and executor."""
        return drive(self._flow(text, body, api, send, **options))

    async def arun(
        self,
        text: str,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Awaitable[Any]],
        **options: Unpack[ForkOptions],
    ) -> ForkResult:
        """``run`` with an asynchronous ``send``; the executor may be either."""
        return await adrive(self._flow(text, body, api, send, **options))

    def summary(
        self,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        conversation: str = "",
        scope: str | None = None,
    ) -> Ask:
        """An ``ask`` for compaction: a fork of ``body``, the request as last sent, so that its prefix is read."""
        return lambda request: drive(self._summary(request, body, api, send, conversation, scope))

    def asummary(
        self,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Awaitable[Any]],
        conversation: str = "",
        scope: str | None = None,
    ) -> AsyncAsk:
        """``summary`` with an asynchronous ``send``."""
        return lambda request: adrive(self._summary(request, body, api, send, conversation, scope))

    def changed(self, fork: Fork) -> Fork:
        """A fork as the plugins leave it: its tail may change, anything else is refused and named."""
        for answer in self.requests.plugins.call_all("fork", fork=fork):
            if not isinstance(answer, Fork):
                continue
            if answer.prefix == fork.prefix:
                fork = replace(fork, tail=answer.tail, policy=answer.policy)
            else:
                said = "a plugin's fork hook changed the shared prefix; only the tail may change"
                self.requests.state.notices.warn_once("fork-hook", said)
        return fork

    def _summary(
        self,
        request: SummaryRequest,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        conversation: str,
        scope: str | None,
    ) -> Flow[str]:
        """Ask a fork to summarise, with the same tools, which it may not call where forbidding that costs nothing."""
        # Copied here and not before: adapters make a way to ask for each request, and hardly any compacts.
        body = as_sent(body)
        profile = self.requests.state.services.profile(str(body.get("model", "")), api)
        free = bool(body.get("tools")) and api != "anthropic" and profile.placement("tool_choice") == "none"
        # Room for a model that thinks first; the summary itself is cut to what was asked for.
        policy = replace(ForkPolicy.background_summary(), max_output_tokens=max(1_024, 2 * request.max_tokens))
        result = yield from self._flow(
            request.instruction,
            body,
            api,
            send,
            role="summary",
            policy=policy,
            overrides={"tool_choice": "none"} if free else None,
            conversation=conversation,
            scope=scope,
        )
        # An answer that calls a tool is no summary; an extract then stands in its place.
        return result.text if result.stopped == "done" else ""

    def _flow(
        self,
        text: str,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        **options: Unpack[ForkOptions],
    ) -> Flow[ForkResult]:
        """Ask, run the fork's own tool loop, and hand its messages on unless its policy leaves no trace."""
        plan = self._plan(text, body, api, options)
        result = yield from self._turns(plan, send)
        if plan.commit is not None and not plan.policy.skip_transcript:
            plan.commit(result.messages)
        return result

    def _plan(self, text: str, body: Mapping[str, Any] | PendingCall, api: Api, options: ForkOptions) -> _Plan:
        """Settle a fork before its first call: what it asks, how its tools run, and what becomes of its messages.

        Raises ``UnsafeForkError`` when it cannot read the parent's prefix and that is not meant.
        """
        _check_names(options, ForkOptions, "fork()")
        role, policy = options.get("role", "helper"), options.get("policy") or ForkPolicy()
        conversation, scope = options.get("conversation", ""), options.get("scope")
        body, field = as_sent(body), history_field(api)
        said = body.get(field)
        # The Responses API takes a text alone for the user's one message.
        parents_messages = [user_message(said)] if isinstance(said, str) else list(said or [])
        question = user_message(self.requests.team.tail_for(role, text))
        asked = {**body, **(options.get("overrides") or {}), field: [*parents_messages, question]}
        parent = self.requests.state.decode(body, api)
        forked, prompt, policy = self._forked(parent, limited(asked, api, policy.max_output_tokens), role, policy)
        found = self._shares(parent, prompt, role, policy)
        talk = self.history.conversation(conversation, scope=scope)
        return _Plan(
            first=Request(
                forked,
                api,
                agent=role,
                conversation=conversation,
                boundary=len(parent.sections) if found else 0,
                policy=policy,
                scope=scope,
                layout="fork",
                reasons=(reason("shares", shared=parent.tokens if found else 0),),
            ),
            parent=len(parents_messages),
            policy=policy,
            compatibility=found,
            conversation=talk.fork() if policy.isolated else talk,
            tools=_Tools.of(options, policy),
            commit=options.get("commit"),
        )

    def _forked(
        self, parent: Prompt, body: dict[str, Any], role: str, policy: ForkPolicy
    ) -> tuple[dict[str, Any], Prompt, ForkPolicy]:
        """A fork's body, prompt and policy as the plugins leave them: its tail may change, and nothing else."""
        api = parent.api
        prompt = self.requests.state.decode(body, api)
        tail = prompt.sections[len(parent.sections) :]
        fork = self.changed(Fork(role, parent, tail, policy))
        if fork.tail == tail:
            return body, prompt, fork.policy
        field = history_field(api)
        body = {**body, field: [*body[field][:-1], *_written(fork, prompt, field)]}
        return body, self.requests.state.decode(body, api), fork.policy

    def _shares(self, parent: Prompt, prompt: Prompt, role: str, policy: ForkPolicy) -> Compatibility:
        """Whether a fork reads its parent's prefix; raises ``UnsafeForkError`` where not, and that is not meant."""
        services = self.requests.state.services
        profile = services.profile(prompt.model, parent.api)
        found = compatibility(parent, prompt, profile.settings, min_tokens=profile.min_tokens)
        # Money: a fork that reads nothing pays for the whole history once more. Only where its policy says so.
        if not found and policy.cache_safe:
            raise UnsafeForkError(found.reasons)
        for why in found.reasons:
            self.requests.state.notices.note(f"fork {role!r}: {why}")
        return found

    def _turns(self, plan: _Plan, send: Callable[[dict[str, Any]], Any]) -> Flow[ForkResult]:
        """Send, run the tools that are called, and send again with their results, as often as the policy allows."""
        api, field = plan.first.api, history_field(plan.first.api)
        messages: list[Any] = list(plan.first.body[field])
        verdicts: list[Verdict] = []
        usage, text, turns = NO_CALLS, "", 0
        stopped: Stopped = "max_turns"
        while turns < plan.policy.max_turns:
            plan.tools.abort.check()
            turns += 1
            body = {**plan.first.body, field: self._shortened(plan, messages)}
            pending = self.requests.begin(replace(plan.first, body=body))
            with pending:
                response = yield Call(send, dict(pending.body))
            answer: Answer = read_answer(response, api)
            verdict = pending.finish(answer.usage)
            used = pending.call.usage if pending.call is not None else normalise_usage(answer.usage, api)
            usage = used if usage is NO_CALLS else usage + used
            verdicts += [] if verdict is None else [verdict]
            messages += answer.messages
            text = answer.text or text
            if not answer.calls:
                stopped = "done"
                break
            messages += result_messages((yield from plan.tools.answers(answer)), api)
        made = tuple(messages[plan.parent :])
        return ForkResult(text, made, turns, stopped, plan.compatibility, tuple(verdicts), plan.policy, usage)

    def _shortened(self, plan: _Plan, messages: Sequence[Any]) -> Sequence[Any]:
        """The messages with large tool results cut as the ledger has it; as they are where that fails."""
        body, form = plan.first.body, form_of(plan.first.api)
        if form is None:
            return messages
        model = str(body.get("model", ""))

        def work() -> Sequence[Any]:
            """The same, raising where it fails."""
            views = views_of(messages, form, self.history.services.counter(model))
            tools = [tool_name(tool) for tool in body.get("tools") or ()]
            decisions = self.history.shorten(plan.conversation, views, model, tools)
            return apply(messages, decisions, form) if decisions else messages

        return self.history.services.notices.attempt("tool-result budget", work, messages)


def as_sent(body: Mapping[str, Any] | PendingCall) -> Mapping[str, Any]:
    """A parent's request as it was sent, whatever becomes of its dictionary from now on.

    Of a ``PendingCall`` it is what went out, also where the application has changed the dictionary since.
    """
    if isinstance(body, PendingCall):
        return copy.deepcopy(body.body) if body.seen is None else encode(body.seen.prompt)
    return copy.deepcopy(body)


def _takes_state(executor: ToolExecutor) -> bool:
    """Whether an executor has a fourth positional parameter; False where its parameters cannot be read."""
    try:
        parameters = inspect.signature(executor).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _written(fork: Fork, prompt: Prompt, field: str) -> Sequence[Any]:
    """The messages of a tail that a plugin changed."""
    tail = encode(replace(prompt, sections=fork.tail, settings={}))
    written: Sequence[Any] = tail[field]
    return written
