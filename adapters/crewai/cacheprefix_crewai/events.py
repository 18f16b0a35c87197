"""What the cache did, on CrewAI's own event bus, for those who listen."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacheprefix import Call
from cacheprefix.adapter import AdapterSession


@functools.cache
def cache_event() -> type[Any]:
    """``PrefixCallEvent``: one finished model request. Made at first use, since CrewAI loads slowly."""
    from crewai.events.base_events import BaseEvent  # noqa: PLC0415

    class PrefixCallEvent(BaseEvent):
        """One finished model request of an installed crew: tokens, cost units and the verdict. Holds no prompt text."""

        type: str = "cacheprefix_call"
        model: str
        input_tokens: int
        cache_read_tokens: int | None
        cache_write_tokens: int | None
        cost_units: float
        unmodified_cost_units: float | None
        cause: str
        path: str | None
        lost_tokens: int

    return PrefixCallEvent


def announce(session: AdapterSession, llm: Any, task: str, call: Call) -> None:
    """Emit the event of a finished request, if anyone listens for it; failures stay ours."""
    session.attempt("event", lambda: _emit(llm, task, call), None)


def _emit(llm: Any, task: str, call: Call) -> None:
    """``announce``, raising where it fails."""
    from crewai.events.event_bus import crewai_event_bus  # noqa: PLC0415

    # Nobody has asked for its class: it would be found by who listens to all kinds of events that there are.
    if not cache_event.cache_info().currsize or not _listened(crewai_event_bus, event := cache_event()):
        return
    crewai_event_bus.emit(
        llm,
        event=event(
            agent_role=call.agent,
            task_name=task,
            model=call.model,
            input_tokens=call.input_tokens if call.usage.input_tokens is None else call.usage.input_tokens,
            cache_read_tokens=call.usage.cache_read_tokens,
            cache_write_tokens=call.usage.cache_write_tokens,
            cost_units=call.units,
            unmodified_cost_units=call.unmodified_units,
            cause=call.verdict.cause,
            path=call.verdict.path,
            lost_tokens=call.verdict.lost_tokens,
        ),
    )


def _listened(bus: Any, event: type[Any]) -> bool:
    """Whether the application waits for these events; else one would only stand in CrewAI's order and checkpoints."""
    tables = [getattr(bus, name, None) for name in ("_sync_handlers", "_async_handlers")]
    return any(table is None or any(map(_applications, table.get(event, ()))) for table in tables)


def _applications(handler: Any) -> bool:
    """Whether a handler is the application's: CrewAI's own for checkpoints waits for every kind of event there is."""
    return not str(getattr(handler, "__module__", "")).startswith("crewai.")
