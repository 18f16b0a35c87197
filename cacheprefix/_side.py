"""Running a fork: a request that extends a conversation, its tool loop, and what it leaves behind."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cacheprefix.errors import UnsafeForkError
from cacheprefix.layout import AbortHandle, Compatibility, Fork, ForkPolicy, compatibility
from cacheprefix.prompt import Api, Prompt, dumps
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

if TYPE_CHECKING:
    from cacheprefix.cache import Verdict
    from cacheprefix.conversation import Conversation
    from cacheprefix.session import Session

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


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run needs, settled before the first call."""

    session: Session
    body: dict[str, Any]
    api: Api
    role: str
    parent: int
    """Messages of the parent."""
    boundary: int
    """Sections of the parent."""
    policy: ForkPolicy
    compatibility: Compatibility
    conversation: Conversation
    conversation_id: str
    scope: str | None
    abort: AbortHandle
    state: Any
    executor: ToolExecutor | None

    def committed(self, result: ForkResult, commit: Callable[[Sequence[Mapping[str, Any]]], None] | None) -> ForkResult:
        """Hand the fork's messages on, unless its policy leaves no trace."""
        if commit is not None and not self.policy.skip_transcript:
            commit(result.messages)
        return result


def fork(
    session: Session,
    text: str,
    *,
    body: Mapping[str, Any],
    api: Api,
    send: Callable[[dict[str, Any]], Any],
    role: str = "helper",
    policy: ForkPolicy | None = None,
    overrides: Mapping[str, Any] | None = None,
    tool_executor: ToolExecutor | None = None,
    conversation: str = "",
    scope: str | None = None,
    abort: AbortHandle | None = None,
    state: Any = None,
    commit: Callable[[Sequence[Mapping[str, Any]]], None] | None = None,
) -> ForkResult:
    """Ask something beside a conversation, on its cached prefix, and run the fork's own tool loop.

    ``body`` is a request body of the parent (its messages, tools and settings); ``send(body)`` makes one
    call and gives the response as a dict or an SDK's object. ``tool_executor(id, name, arguments)`` (or with
    ``state`` as fourth argument) runs tools; without one, and when it raises, the model gets an error result.
    ``overrides`` replaces body fields; what then no longer shares raises ``UnsafeForkError`` before any call.
    ``commit`` takes the fork's messages afterwards unless the policy skips the transcript. ``scope`` is the tenant
    whose cache it is, the session's by default.
    """
    plan = plan_fork(
        session, text, body, api, role, policy, overrides, tool_executor, conversation, abort, state, scope
    )
    return plan.committed(run(plan, send), commit)


async def afork(
    session: Session,
    text: str,
    *,
    body: Mapping[str, Any],
    api: Api,
    send: Callable[[dict[str, Any]], Awaitable[Any]],
    role: str = "helper",
    policy: ForkPolicy | None = None,
    overrides: Mapping[str, Any] | None = None,
    tool_executor: ToolExecutor | None = None,
    conversation: str = "",
    scope: str | None = None,
    abort: AbortHandle | None = None,
    state: Any = None,
    commit: Callable[[Sequence[Mapping[str, Any]]], None] | None = None,
) -> ForkResult:
    """``fork`` with an asynchronous ``send``; the tool executor may be sync or async."""
    plan = plan_fork(
        session, text, body, api, role, policy, overrides, tool_executor, conversation, abort, state, scope
    )
    return plan.committed(await arun(plan, send), commit)


def plan_fork(
    session: Session,
    text: str,
    body: Mapping[str, Any],
    api: Api,
    role: str,
    policy: ForkPolicy | None,
    overrides: Mapping[str, Any] | None,
    tool_executor: ToolExecutor | None,
    conversation: str,
    abort: AbortHandle | None,
    state: Any,
    scope: str | None = None,
) -> Plan:
    """Settle a fork. Raises ``UnsafeForkError`` when it cannot read the parent's prefix and that is not meant."""
    policy = policy or ForkPolicy()
    field = history_field(api)
    parent = session.decode(body, api)
    history = list(body.get(field) or []) if not isinstance(body.get(field), str) else [user_message(body[field])]
    tail = user_message(session.tail_for(role, text))
    changed = {**body, **(overrides or {})}
    forked = limited({**changed, field: [*history, tail]}, api, policy.max_output_tokens)
    prompt = session.decode(forked, api)
    fork = session.forked(Fork(role, parent, prompt.sections[len(parent.sections) :], policy))
    if fork.tail != prompt.sections[len(parent.sections) :]:
        forked = {**forked, field: [*history, *_written(fork, prompt, field)]}
        prompt = session.decode(forked, api)
    policy = fork.policy
    profile = session.profile(prompt.model, api)
    found = compatibility(parent, prompt, profile.settings, min_tokens=profile.min_tokens)
    if not found and policy.cache_safe:
        raise UnsafeForkError(found.reasons)
    for reason in found.reasons:
        session.note(f"fork {role!r}: {reason}")
    owned = session.conversation(conversation, scope=scope)
    return Plan(
        session=session,
        body=forked,
        api=api,
        role=role,
        parent=len(history),
        boundary=len(parent.sections) if found else 0,
        policy=policy,
        compatibility=found,
        conversation=owned.fork() if policy.isolated else owned,
        conversation_id=conversation,
        scope=scope,
        abort=abort.child() if abort is not None and policy.share_abort else AbortHandle(),
        state=state if policy.share_state else copy.deepcopy(state),
        executor=tool_executor,
    )


def run(plan: Plan, send: Callable[[dict[str, Any]], Any]) -> ForkResult:
    """Run a fork with a synchronous ``send(body) -> response`` and executor."""
    steps = _steps(plan)
    answer: Any = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stop:
            result: ForkResult = stop.value
            return result
        answer = _attempted(lambda wanted=wanted: send(wanted) if isinstance(wanted, dict) else _executed(plan, wanted))  # type: ignore[misc]


async def arun(plan: Plan, send: Callable[[dict[str, Any]], Awaitable[Any]]) -> ForkResult:
    """Run a fork with an asynchronous ``send``; the executor may be either."""
    steps = _steps(plan)
    answer: Any = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stop:
            result: ForkResult = stop.value
            return result
        try:
            value = send(wanted) if isinstance(wanted, dict) else _executed(plan, wanted)
            answer = (await value if inspect.isawaitable(value) else value, None)
        except Exception as error:
            answer = (None, error)


def _steps(plan: Plan) -> Generator[dict[str, Any] | ToolRequest, Any, ForkResult]:
    """The loop without its waiting: yields a body to send or a tool to run, takes (value, error)."""
    field = history_field(plan.api)
    messages: list[Any] = list(plan.body[field])
    verdicts: list[Verdict] = []
    text = ""
    stopped: Stopped = "max_turns"
    turns = 0
    while turns < plan.policy.max_turns:
        plan.abort.check()
        turns += 1
        turn = plan.session.begin(
            {**plan.body, field: _shortened(plan, messages)},
            plan.api,
            agent=plan.role,
            conversation=plan.conversation_id,
            boundary=plan.boundary,
            policy=plan.policy,
            scope=plan.scope,
        )
        response, error = yield dict(turn.body)
        if error is not None:
            turn.fail()
            raise error
        answer: Answer = read_answer(response, plan.api)
        verdict = turn.finish(answer.usage)
        if verdict is not None:
            verdicts.append(verdict)
        messages += answer.messages
        text = answer.text or text
        if not answer.calls:
            stopped = "done"
            break
        results = []
        for call in answer.calls:
            plan.abort.check()
            value, error = yield call
            results.append((call, _said(value, error), error is not None))
        messages += result_messages(results, plan.api)
    return ForkResult(
        text,
        tuple(messages[plan.parent :]),
        turns,
        stopped,
        plan.compatibility,
        tuple(verdicts),
        plan.policy,
    )


def _shortened(plan: Plan, messages: Sequence[Any]) -> Sequence[Any]:
    session = plan.session
    form = form_of(plan.api)
    if form is None:
        return messages
    model = str(plan.body.get("model", ""))

    def work() -> Sequence[Any]:
        views = views_of(messages, form, session.counter(model))
        decisions = session.shorten(plan.conversation, views, model)
        return apply(messages, decisions, form) if decisions else messages

    return session.attempt("tool-result budget", work, messages)


def _executed(plan: Plan, call: ToolRequest) -> Any:
    if call.problem:
        raise ValueError(call.problem)
    executor = plan.executor
    if executor is None:
        message = f"tool {call.name!r} cannot run in this fork: it has no tool executor"
        raise LookupError(message)
    arguments = (call.id, call.name, call.arguments)
    return executor(*arguments, plan.state) if _takes_state(executor) else executor(*arguments)


def _takes_state(executor: ToolExecutor) -> bool:
    try:
        parameters = inspect.signature(executor).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _attempted(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _said(value: Any, error: Exception | None) -> str:
    if error is not None:
        return f"error: {type(error).__name__}: {error}"
    return value if isinstance(value, str) else dumps(value, "tool result").decode()


def _written(fork: Fork, prompt: Prompt, field: str) -> Sequence[Any]:
    """The messages of a tail that a plugin changed."""
    tail = encode(replace(prompt, sections=fork.tail, settings={}))
    written: Sequence[Any] = tail[field]
    return written
