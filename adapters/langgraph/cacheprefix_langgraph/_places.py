"""Where a fork's role text stands among its messages: at the end, or still where the role last had it."""

from __future__ import annotations

from dataclasses import replace

from langchain_core.messages import AIMessage, BaseMessage

from cacheprefix.bodies import Lane
from cacheprefix.context import digest_of
from cacheprefix.prompt import dumps
from cacheprefix_langgraph._frame import Frame, Rewritten


def placed(done: Rewritten, frame: Frame, model: str, lane: Lane | None, *, shared: bool) -> Rewritten | None:
    """The request with its role text in its place; None where the application's own layout costs less.

    ``shared`` says whether what stands before the text is long enough to be shared.
    """
    if frame.volatile and not frame.trails:
        # The role's text holds what is for this request alone, and nothing can be read behind that.
        return done if shared else None
    session, start, border = frame.session, done.head, done.at - done.head
    state = frame.state or session.conversation(frame.conversation, scope=frame.scope)
    found = session.place(
        state,
        frame.role,
        done.tail,
        done.messages[start : done.at],
        model,
        digest=_digest,
        tokens=lambda message: sum(session.count(text, model) for text in _said(message)),
        shared=shared,
        lane=lane.name if lane else "",
    )
    if found.at is None:
        return None
    if found.at == border or not done.tail:
        return replace(done, continues=found.continues)
    messages = list(done.messages)
    messages.insert(start + found.at, messages.pop(done.at))
    own = max(0, done.own - (border - found.at))
    return replace(done, messages=messages, at=start + found.at, own=own, continues=found.continues)


def _said(message: BaseMessage) -> list[str]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return [message.text, *(f"{call['name']} {dumps(call['args'], 'tool call').decode()}" for call in calls)]


def _digest(message: BaseMessage) -> str:
    content = message.content if isinstance(message.content, str) else dumps(message.content, "content").decode()
    return digest_of(message.type, content, *_said(message)[1:])
