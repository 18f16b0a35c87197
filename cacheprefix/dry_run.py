"""What requests will look like, what they share and what that should cost, before anything is sent.

A dry run: the requests go through a session that is made alike, has seen nothing and tells nobody, and each counts as
the provider's rules let expect.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from cacheprefix.bodies import Role, fork_body
from cacheprefix.call import Call
from cacheprefix.calls.pending import Unsent
from cacheprefix.errors import SetupError, plain
from cacheprefix.prompt import Api, Layout, Reason

if TYPE_CHECKING:
    from cacheprefix.adapter_session import AdapterSession

__all__ = [
    "AgentPreview",
    "PlannedRequest",
    "Preview",
    "Unsent",
    "play",
    "preview_of",
    "rehearsed",
    "unsent_client",
    "until_sent",
]

_RESOURCES = ("chat", "beta", "messages", "responses", "completions")
"""Attributes under which an SDK's client keeps what sends its requests, once they were used."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request that an application is going to make without a framework."""

    agent: str
    body: Mapping[str, Any]
    """As it would be sent without us."""
    api: Api
    """``openai-chat``, ``openai-responses`` or ``anthropic``."""
    instruction: str = ""
    """The role's text, where it does not stand in the body's system text."""
    volatile: Mapping[str, str] = field(default_factory=dict)
    """Text for this request alone, by key."""


@dataclass(frozen=True, slots=True)
class AgentPreview:
    """One request of a dry run. Counts are tokens by the session's counter, costs are in cost units."""

    agent: str
    model: str
    layout: Layout
    reasons: tuple[Reason, ...]
    input_tokens: int
    shared_tokens: int
    """Those that an earlier request of the run began with too."""
    units: float
    unmodified_units: float | None
    """Those of the request as the application makes it; None where that is unknown."""
    further_units: float | None = None
    """Those in each further conversation that begins while the provider holds what stands before the messages, in
    either layout; None where that is unknown."""
    further_unmodified_units: float | None = None
    """Those as the application makes it, which reads there what its own earlier requests have left; None as above."""

    def __str__(self) -> str:
        """One line: who, in which layout and why, what is shared, what it costs."""
        why = "; ".join(plain(one.said) for one in self.reasons)
        cost = f"{self.units:,.0f} cost units, unmodified {_number(self.unmodified_units)}"
        if self.further_units is not None:
            cost += f"; in each further conversation {self.further_units:,.0f}"
            cost += f", unmodified {_number(self.further_unmodified_units)}"
        sizes = f"{self.input_tokens:,} tokens, {self.shared_tokens:,} shared with an earlier request"
        return f"{plain(self.agent) or 'unnamed'}: {self.layout} ({why}); {sizes}; {cost}"


@dataclass(frozen=True, slots=True)
class Preview:
    """The requests of a dry run, in their order."""

    requests: tuple[AgentPreview, ...]
    notes: tuple[str, ...] = ()
    """What the user should know before the run."""

    @property
    def ratio(self) -> float | None:
        """Cost of all requests against the unmodified ones, in a conversation that finds nothing in the cache.

        None where one of those is unknown.
        """
        return _against((one.units, one.unmodified_units) for one in self.requests)

    @property
    def further_ratio(self) -> float | None:
        """The same in each further conversation, as long as the provider holds what stands before the messages.

        It is what counts where many short conversations follow one another.
        """
        return _against((one.further_units, one.further_unmodified_units) for one in self.requests)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Holds no prompt text."""
        return {
            "version": 1,
            "ratio": self.ratio,
            "further_ratio": self.further_ratio,
            "notes": list(self.notes),
            "requests": [
                {
                    "agent": one.agent,
                    "model": one.model,
                    "layout": one.layout,
                    "reasons": [reason.as_dict() for reason in one.reasons],
                    "input_tokens": one.input_tokens,
                    "shared_tokens": one.shared_tokens,
                    "cost_units": one.units,
                    "unmodified_units": one.unmodified_units,
                    "further_cost_units": one.further_units,
                    "further_unmodified_units": one.further_unmodified_units,
                }
                for one in self.requests
            ],
        }

    def __str__(self) -> str:
        """A line a request, and the cost of all: in a first conversation, and in each further one."""
        first, further = (_number(one, ".2f") for one in (self.ratio, self.further_ratio))
        lines = [str(one) for one in self.requests]
        total = f"expected cost of these first requests against unmodified: {first} in a first conversation (cold)"
        if any(one.further_units is not None for one in self.requests):
            total += (
                f", {further} in each further one while the provider holds what stands before its messages (then "
                "unmodified reads that too)"
            )
        return "\n".join([*lines, total, *map(plain, self.notes)])


def play(session: AdapterSession, requests: Iterable[object]) -> Preview:
    """What the requests will look like when they are made in this order, as turns of one conversation.

    Raises ``SetupError`` for what is no ``PlannedRequest``, and ``BudgetError`` where a request budget cannot be met.
    """
    planned = []
    for one in requests:
        if not isinstance(one, PlannedRequest):
            message = f"preview() takes requests, found a {type(one).__name__}: use PlannedRequest(agent, body, api)"
            raise SetupError(message)
        planned.append(one)
    dry = session.rehearsal()
    # All roles are known to a running team from its first round on; a preview must not call the first one alone.
    for one in planned:
        dry.join(one.agent)
    for one in planned:
        role = Role(one.agent, one.instruction, "preview", one.volatile)
        fork_body(dry, one.body, one.api, role).begin().finish(None)
    return preview_of(dry)


def preview_of(rehearsal: AdapterSession, notes: Iterable[str] = (), *, further: bool = True) -> Preview:
    """What a dry run came to, from the session that it was made in; for adapters, with what they could not know.

    ``further`` is False where what stands before the messages is another text in each conversation.
    """
    part = rehearsal.beside.get(_PART, ())
    seen = list(map(_seen, rehearsal.shared.totals.calls))
    nothing: list[Call] = []
    again = rehearsal.attempt("preview", rehearsal.asked_again, nothing) if further else nothing
    if len(again) == len(seen):
        seen = [
            replace(one, further_units=call.units, further_unmodified_units=call.unmodified_units)
            for one, call in zip(seen, again, strict=True)
        ]
    # What is said in a run alone, mostly the shared text, would cost it unmodified: without it that is no cost of its.
    told = (
        replace(one, unmodified_units=None, further_unmodified_units=None) if one.agent in part else one for one in seen
    )
    return Preview(tuple(told), (*notes, *_notes(rehearsal)))


def known_in_part(rehearsal: AdapterSession, agent: str) -> None:
    """Say that a run adds to what an agent says here, so that its unmodified cost is unknown; for adapters."""
    rehearsal.beside.setdefault(_PART, set()).add(agent)


_PART = "known in part"
"""The key under which a rehearsal keeps those agents."""


def rehearsed(
    session: AdapterSession, play: Callable[[AdapterSession, list[str]], Coroutine[Any, Any, None]]
) -> Preview:
    """What a dry run comes to that ``play`` makes in a rehearsal of the session; for adapters.

    It runs in a thread of its own, since an event loop may be running here already. What it could not know it adds to
    the list that it is given.
    """
    dry, notes = session.rehearsal(), list[str]()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: asyncio.run(play(dry, notes))).result()
    return preview_of(dry, dict.fromkeys(notes))


@contextmanager
def until_sent(agent: str, notes: list[str]) -> Iterator[None]:
    """A block that ends well where a dry run's request would have been sent; what else ends it is noted."""
    try:
        yield
    except Unsent:
        pass
    except Exception as error:
        notes.append(f"{agent}: what it asks is known in the run alone ({type(error).__name__}: {error})")


def unsent_client(sdk: C, seen: Callable[[], None] = lambda: None) -> C:
    """A copy of an SDK's client, OpenAI's or Anthropic's, sync or async, that never sends; for adapters.

    Where a request would go out ``seen`` is called and ``Unsent`` raised, in copies of it (``watched_client``) too. The
    client itself stays as it is.
    """
    base: Any = type(sdk)

    def post(*_: object, **__: object) -> Any:
        seen()
        raise Unsent

    async def apost(*_: object, **__: object) -> Any:
        post()

    own = type(base.__name__, (base,), {"post": apost if inspect.iscoroutinefunction(base.post) else post})
    # A client that is wrapped already is not asked through what wraps it.
    own.__unwrapped__ = own  # type: ignore[attr-defined]  # as ``derived`` has it
    made = copy.copy(sdk)
    for name in (*_RESOURCES, "post"):
        vars(made).pop(name, None)
    made.__class__ = own
    return made


def _against(costs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """All costs against the unmodified ones beside them; None where one is unknown, or all of those are nothing."""
    sent = unmodified = 0.0
    for units, own in costs:
        if units is None or own is None:
            return None
        sent, unmodified = sent + units, unmodified + own
    return sent / unmodified if unmodified else None


def _number(value: float | None, how: str = ",.0f") -> str:
    """A number as it is said, or that it is unknown."""
    return "unknown" if value is None else format(value, how)


def _seen(call: Call) -> AgentPreview:
    return AgentPreview(
        call.agent,
        call.model,
        call.layout,
        call.reasons,
        call.input_tokens,
        call.shared_tokens,
        call.units,
        call.unmodified_units,
    )


def _notes(rehearsal: AdapterSession) -> tuple[str, ...]:
    notices = rehearsal.shared.notices
    return (*notices.notes, *(f"failed: {step} ({count} x)" for step, count in notices.failures.items()))
