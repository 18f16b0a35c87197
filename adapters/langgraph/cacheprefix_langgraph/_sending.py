"""One request between the rewrite and its answer: its body, its turn, and its place behind siblings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from cacheprefix import Session
from cacheprefix.prefix import Pass
from cacheprefix.prompt import Api, Prompt
from cacheprefix.session import Boundary, unmodified
from cacheprefix_langgraph._frame import FRAME, Frame, Rewritten
from cacheprefix_langgraph._rewrite import boundary

if TYPE_CHECKING:
    from langchain_core.outputs import ChatResult

    from cacheprefix.session import Turn

TRANSPORT = ("stream", "stream_options")
"""Body fields that say how the answer comes; they belong to no prompt."""

SESSION = "__cacheprefix_session__"
VIEWS = "__cacheprefix_views__"
ROLE = "__cacheprefix_role__"
"""Name and instruction of the role that a model was bound to."""


@dataclass(slots=True)
class Sending:
    """One request between the rewrite and its answer."""

    frame: Frame | None
    rewritten: Rewritten | None
    tools: Sequence[Any] | None
    """The tools as the application had bound them."""
    conversation: str
    turn: Turn | None = None
    payload: dict[str, Any] | None = None
    """The finished body, where it was made before the class asks for it."""


SENDING: ContextVar[Sending | None] = ContextVar("cacheprefix_langgraph_sending", default=None)


def api_of(payload: Mapping[str, Any], model: BaseChatModel) -> Api:
    """The wire form of a payload that a chat model class built."""
    if "anthropic" in model._llm_type:
        return "anthropic"
    return "openai-responses" if "input" in payload else "openai-chat"


def prepared(
    model: Any, base: type[BaseChatModel], sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any]
) -> bool:
    """Make the body of a fork, after waiting for a sibling that writes its prefix; whether others now wait for it."""
    waiting = _waiting(model, base, sending, messages, stop, kwargs)
    if waiting is None:
        return False
    payload, api, limit = waiting
    leave = _session(model, sending).queue(payload, api, boundary=limit)
    leads = leave.leader
    sending.payload = begin(model, base, payload, sending, leave)
    return leads


async def aprepared(
    model: Any, base: type[BaseChatModel], sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any]
) -> bool:
    """``prepared`` without blocking the event loop."""
    waiting = _waiting(model, base, sending, messages, stop, kwargs)
    if waiting is None:
        return False
    payload, api, limit = waiting
    leave = await _session(model, sending).aqueue(payload, api, boundary=limit)
    leads = leave.leader
    sending.payload = begin(model, base, payload, sending, leave)
    return leads


def _waiting(
    model: Any, base: type[BaseChatModel], sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any]
) -> tuple[dict[str, Any], Api, Boundary] | None:
    """Body, API and boundary of a fork that has not begun yet."""
    done = sending.rewritten
    if done is None or sending.turn is not None or not hasattr(base, "_get_request_payload"):
        return None
    payload: dict[str, Any] = base._get_request_payload(model, messages, stop=stop, **kwargs)
    return payload, api_of(payload, model), _boundary(model, base, payload, sending)


def _session(model: Any, sending: Sending) -> Session:
    frame = sending.frame
    session: Session = frame.session if frame is not None else model.__dict__[SESSION]
    return session


def _boundary(model: Any, base: type[BaseChatModel], payload: dict[str, Any], sending: Sending) -> Boundary:
    done = sending.rewritten
    if done is None:
        return None
    session, api = _session(model, sending), api_of(payload, model)

    def own_sections(messages: list[BaseMessage]) -> int:
        body = base._get_request_payload(model, messages)  # type: ignore[attr-defined]
        return len(session.decode({"messages": [], **body, "tools": []}, api).tier("messages"))

    return boundary(done, own_sections)


def begin(
    model: Any, base: type[BaseChatModel], payload: dict[str, Any], sending: Sending, leave: Pass
) -> dict[str, Any]:
    session = _session(model, sending)
    frame, done = sending.frame, sending.rewritten
    api = api_of(payload, model)

    def original(prompt: Prompt) -> Prompt | None:
        if done is None:
            return None
        if done.given is not None:
            # Messages are gone from the prompt, so the application's own request is built again.
            made = base._get_request_payload(model, done.given)  # type: ignore[attr-defined]
            field = "input" if api == "openai-responses" else "messages"
            kept = [one for one in made[field] if one.get("role") not in ("system", "developer")]
            whole = session.decode({"model": prompt.model, field: kept}, api)
            return unmodified(
                replace(whole, settings=prompt.settings),
                system=done.system,
                tools=sending.tools,
                tail="",
                count=session.count,
            )
        return unmodified(
            prompt,
            system=done.system,
            tools=sending.tools,
            tail=done.tail,
            count=session.count,
            restored=done.restored,
        )

    sending.turn = session.begin(
        payload,
        api,
        agent=frame.role if frame else "",
        conversation=sending.conversation if frame is None or frame.state is None else frame.state,
        boundary=_boundary(model, base, payload, sending),
        original=original if done is not None else None,
        # A routing key of its own would part a lone agent from the helpers that share its tools.
        rewrite=done is not None and not (frame is not None and frame.base is not None and api != "anthropic"),
        policy=frame.policy if frame else None,
        leave=leave,
    )
    body = sending.turn.body
    return body if isinstance(body, dict) else dict(body)


def current() -> tuple[Sending, Token[Sending | None]]:
    """The request under way; a fresh one where the class was called without ``invoke`` (its own batch, an agent)."""
    sending = SENDING.get()
    if sending is None or (sending.turn is not None and sending.payload is None):
        frame = FRAME.get()
        sending = Sending(frame, None, None, frame.conversation if frame else "")
    return sending, SENDING.set(sending)


def fail(sending: Sending) -> None:
    if sending.turn is not None:
        sending.turn.fail()


def finish(sending: Sending, result: ChatResult) -> None:
    turn = sending.turn
    if turn is None:
        return
    message = result.generations[0].message if result.generations else None
    turn.finish(usage_of(message))


def usage_of(message: Any) -> Any:
    """The richest usage a message carries: the provider's own where the class kept it, else LangChain's."""
    if message is None:
        return None
    metadata = getattr(message, "response_metadata", None) or {}
    return metadata.get("token_usage") or metadata.get("usage") or getattr(message, "usage_metadata", None)
