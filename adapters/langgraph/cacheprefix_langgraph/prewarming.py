"""Prewarming: the shared part alone, asked for no answer, so that all siblings read it, the first one too.

Anthropic fills its cache from a request with ``max_tokens: 0`` (documented 2026; not with streams, thinking, an output
format or a forced tool_choice). Siblings then wait for a prefill only, whatever the first answer is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage

from cacheprefix import ForkPolicy
from cacheprefix.adapter import AdapterSession, Flow, Pass, Request, WaitingFor
from cacheprefix_langgraph.request_bodies import Body, headers_of, own_body
from cacheprefix_langgraph.sdk_clients import sender
from cacheprefix_langgraph.wrapping import wrapping

if TYPE_CHECKING:
    from cacheprefix import PendingCall, Prompt
    from cacheprefix_langgraph.pending import Sending

_POLICY = ForkPolicy(purpose="prewarm")


def warms(model: Any, body: Body) -> bool:
    """Whether the first of several siblings warms the cache for all of them before it asks."""
    if not wrapping(model).prewarm or body.api != "anthropic" or not body.own:
        return False
    fields = body.payload
    thinking, choice, output = (fields.get(name) or {} for name in ("thinking", "tool_choice", "output_config"))
    return (
        _type(thinking) in ("", "disabled")
        and _type(choice) in ("", "auto", "none")
        and not (isinstance(output, Mapping) and output.get("format"))
        and not fields.get("output_format")
    )


def warm(model: Any, pending: PendingCall, leave: Pass, session: AdapterSession, *, later: bool) -> Flow[None]:
    """Write the shared part, then let the others go; where the provider refuses, that is counted and they wait on.

    ``later`` is for callers in an event loop.
    """
    try:
        answer = yield WaitingFor(sender(model, "anthropic", later=later), dict(pending.body))
        pending.finish(answer.usage)
        leave.release(ok=True)
    except Exception as error:
        pending.fail()
        session.failed("prewarm", error)
    except BaseException:
        pending.fail()
        raise


def warming(model: Any, body: Body, sending: Sending, stop: Any, kwargs: Mapping[str, Any]) -> PendingCall | None:
    """The request that writes the shared part; None where there is nothing to write."""
    session = sending.session if sending.frame is None else sending.frame.session
    return session.attempt("prewarm", lambda: _turn(model, body, sending, session, stop, kwargs), None)


def _turn(
    model: Any, body: Body, sending: Sending, session: AdapterSession, stop: Any, kwargs: Mapping[str, Any]
) -> PendingCall | None:
    """Begin a request for no answer that ends where the shared part ends; None where it cannot be sent."""
    done = sending.rewritten
    if done is None:
        return None
    shared = done.shared
    if not shared or isinstance(shared[-1], AIMessage):
        # Anthropic's newer models refuse a request whose last message is the assistant's.
        return None
    payload = own_body(model, shared, stop, kwargs).payload
    payload = {**payload, "max_tokens": 0}
    payload.pop("stream", None)
    frame = sending.frame

    def nothing(prompt: Prompt) -> Prompt:
        # The application would not have sent it, so that the whole of it counts as our cost.
        return replace(prompt, sections=())

    asked = Request(
        payload,
        body.api,
        agent=frame.role if frame else "",
        conversation=sending.conversation,
        boundary=lambda prompt: len(prompt.sections),
        original=nothing,
        headers=headers_of(model, body.payload),
        policy=_POLICY,
        scope=sending.scope,
    )
    return session.begin(asked if sending.plan is None else asked.laid_out(sending.plan))


def _type(value: Any) -> str:
    return str(value.get("type", "")) if isinstance(value, Mapping) else ""
