"""A task's history in the session's limits: compaction in place of CrewAI's summariser, and the request budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cacheprefix.history import plan_compaction, replay
from cacheprefix.prompt import dumps
from cacheprefix.wire import apply, views_of
from cacheprefix_crewai.tools import name_of

if TYPE_CHECKING:
    from cacheprefix import Conversation, Session
    from cacheprefix.prompt import Api, MessageView

_MARKS = "_cacheprefix"
"""Where the core notes that a message is a summary; no provider knows the field."""


@dataclass
class Execution:
    """One run of one task by one agent: the decisions on its history, and its newest request.

    Every run starts anew, so that a kickoff that is repeated decides again at the same places: a decision of the
    run before would take away results that this one has not read yet.
    """

    conversation: Conversation
    llm: Any = None
    api: Api = "openai-chat"
    body: Mapping[str, Any] = field(default_factory=dict)
    """As it was before it was marked for the cache."""
    agent: str = ""
    answer: str = ""
    """The newest answer in text; empty while tools are being called."""
    steps: int = 0
    """Requests so far."""


def limits(session: Session) -> bool:
    """Whether the session bounds histories, so that CrewAI need not."""
    return session.compaction is not None or session.request_budget is not None


def condensed(
    session: Session,
    execution: Execution,
    messages: Sequence[Any],
    head: int,
    tools: Sequence[Any] | None,
    model: str,
    beside: int = 0,
) -> list[Any]:
    """The messages with what was decided on them; those of the opening (the first ``head``) always stay.

    ``beside`` are tokens of volatile text. Fails open, but for ``BudgetError`` where a request budget cannot be met.
    """
    views = session.attempt("compaction", lambda: _views(session, messages, head, model), None)
    if views is None:
        return list(messages)
    static = beside + _tool_tokens(session, tools, model)
    ask = None
    if session.compaction is not None and session.compaction.summarise == "fork" and execution.body:
        from cacheprefix_crewai.asking import sender  # noqa: PLC0415 - only where a model writes the summaries

        send = sender(execution.llm, execution.api)
        held = execution.conversation
        ask = session.summary_by_fork(
            body=execution.body, api=execution.api, send=send, conversation=held.id, scope=held.scope
        )
    decisions = session.condense(execution.conversation, views, model, execution.api, static_tokens=static, ask=ask)
    return session.attempt("compaction", lambda: _applied(messages, decisions), list(messages))


def compact_now(session: Session, execution: Execution, messages: Sequence[Any], head: int, model: str) -> bool:
    """Halve a history that the provider refused as too long. False when nothing of it may go."""
    rules = session.compaction
    if rules is None:
        return False
    views = _views(session, messages, head, model)
    count = session.counter(model)
    ledger = execution.conversation.ledger
    tokens = replay(views, ledger, session.budget, count=count).tokens
    smaller = replace(rules, trigger=max(2, tokens - 1), target=max(1, tokens // 2))
    plan = plan_compaction(views, ledger, smaller, count=count, budget=session.budget, readable=True, force=True)
    if not plan.due:
        return False
    execution.conversation.merge(plan.commit(session.results, scope=execution.conversation.scope))
    return True


def _views(session: Session, messages: Sequence[Any], head: int, model: str) -> list[MessageView]:
    views = views_of(messages, "openai-chat", session.counter(model))
    return [replace(view, pinned=True) if at < head else view for at, view in enumerate(views)]


def _applied(messages: Sequence[Any], decisions: Sequence[Any]) -> list[Any]:
    if not decisions:
        return list(messages)
    return [
        {key: value for key, value in message.items() if key != _MARKS} if _MARKS in message else message
        for message in apply(messages, decisions, "openai-chat")
    ]


def _tool_tokens(session: Session, tools: Sequence[Any] | None, model: str) -> int:
    return sum(session.count(dumps(tool, f"tool {name_of(tool)}").decode(), model) for tool in tools or ())
