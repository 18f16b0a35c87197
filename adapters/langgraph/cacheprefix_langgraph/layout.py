"""The layout of a fork: one shared system text, the conversation as it is, the role's text where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from cacheprefix import Prompt
from cacheprefix.adapter import (
    NEXT,
    AdapterSession,
    CountedHistory,
    Cutting,
    RequestPlan,
    RestOfRequest,
    digest_of,
    dumps,
    replay,
)
from cacheprefix.errors import BudgetError
from cacheprefix_langgraph.fork_context import Frame, Rewritten
from cacheprefix_langgraph.history import Decided, carried_out
from cacheprefix_langgraph.parts import Parts, paused
from cacheprefix_langgraph.views import Views, is_answer, is_raw, thinks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cacheprefix import Conversation
    from cacheprefix.adapter import MessageView, SummaryRequest

    Summarise = Callable[[list[BaseMessage], SummaryRequest], str]
    AsyncSummarise = Callable[[list[BaseMessage], SummaryRequest], Awaitable[str]]

TAIL_KEY = "cacheprefix_tail"
"""Marks our own tail messages in ``additional_kwargs``, which no provider sees."""
_BETWEEN: Final = "cacheprefix_between"
_HANDED_BACK: Final = "__is_handoff_back"
"""In the metadata of what a supervisor's worker is made to say right behind its answer: nobody is asked in between."""


def parted(done: Decided, session: AdapterSession, model: str) -> Decided:
    """The conversation with a mark's place behind each answer that ended a request, or may end this one's shared part.

    GPT-5.6 reads what ends at a breakpoint, and takes one on the words of users and tools alone (langchain4j's
    ``OpenAiOfficialPromptCacheBreakpoint``, read 2026-11-21). Where one role follows another without a user between
    them, each answer would be sent uncached with every later request: a short message of the user's carries the mark.

    Where one is put goes by the messages alone, so every fork and every later request has the same.
    """
    profile = session.profile(model)
    if session.mode == "observe" or profile.markers != "openai" or profile.match != "breakpoint":
        return done
    out: list[BaseMessage] = []
    border = done.border
    for index, message in enumerate(done.messages):
        out.append(message)
        if _ends_a_request(message, done.messages[index + 1 : index + 2], shared_ends=index + 1 == done.border):
            out.append(HumanMessage(NEXT, additional_kwargs={_BETWEEN: True}))
            border += index < done.border
    return done if len(out) == len(done.messages) else done._replace(messages=out, border=border)


def together(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation without what ``parted`` put into it."""
    return [message for message in messages if _BETWEEN not in message.additional_kwargs]


def apart(prompt: Prompt) -> Prompt:
    """A prompt without what ``parted`` put into its conversation, for what the application would have sent."""
    data = NEXT.encode()
    return replace(prompt, sections=tuple(one for one in prompt.sections if one.data != data))


def _ends_a_request(message: BaseMessage, behind: Sequence[BaseMessage], *, shared_ends: bool) -> bool:
    """Whether a mark belongs behind a message: an answer that another one follows, or that ends the shared part."""
    if not isinstance(message, AIMessage) or message.tool_calls or not message.text:
        return False
    spoken = any(isinstance(one, AIMessage) and not one.response_metadata.get(_HANDED_BACK) for one in behind)
    return shared_ends or spoken


def _said(message: BaseMessage) -> list[str]:
    """What a message says, its tool calls among it."""
    if is_raw(message):
        return [dumps(message.content, "content").decode()]
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return [message.text, *(f"{call['name']} {dumps(call['args'], 'tool call').decode()}" for call in calls)]


def _digest(message: BaseMessage) -> str:
    """The same for two messages that say the same."""
    content = message.content if isinstance(message.content, str) else dumps(message.content, "content").decode()
    return digest_of(message.type, content, *_said(message)[1:])


def _joined(before: BaseMessage, behind: BaseMessage) -> bool:
    """Whether a provider refuses a text between two messages: a call or a thought, and what came of it."""
    return is_answer(behind) or thinks(before)


def history_of(done: Decided, frame: Frame, model: str, text: str) -> CountedHistory[BaseMessage]:
    """The conversation as decided on; ``text`` may stand anywhere in it, or where it is pinned, in the shared part."""
    count = frame.session.counter(model)
    end = len(done.messages) - paused(done.messages)
    end = min(done.border, end) if frame.pinned and text else end
    # A provider's rule: where a result of the shared part was rewritten, or messages were removed, that part may end
    # between a call and its result.
    while 0 < end < len(done.messages) and _joined(done.messages[end - 1], done.messages[end]):
        end -= 1

    def tokens(message: BaseMessage) -> int:
        return sum(map(count, _said(message)))

    return CountedHistory(done.messages[:end], _digest, tokens, done.messages[end:], _joined)


def laid_out(parts: Parts, done: Decided, frame: Frame, plan: RequestPlan[BaseMessage]) -> Rewritten:
    """The messages of a fork as planned. Each that is not a leading system message stays the same object."""
    at = plan.at if plan.at is not None and plan.text else len(plan.history)
    tail = [HumanMessage(plan.text, additional_kwargs={TAIL_KEY: frame.role})] if plan.text else []
    return Rewritten(
        [*parts.head, *plan.history[:at], *tail, *plan.history[at:]],
        plan.text,
        len(parts.head),
        len(parts.head) + at,
        _own(parts, done, plan, at),
        parts.texts,
        done.restored,
        None if done.lossless and parts.whole else parts.given,
        frame.passing if frame.trails else "",
        frame.volatile_role,
        plan.continues,
        _passes(parts, plan),
    )


def _own(parts: Parts, done: Decided, plan: RequestPlan[BaseMessage], at: int) -> int:
    """How many of the messages before the role's text are its own, behind which nothing is marked for others to read.

    Money: of a node that does not send the conversation as the state has it, that goes by what its messages begin with.
    """
    if _passes(parts, plan):
        return at
    if parts.found == "part" and plan.again:
        return 0
    return max(0, at - done.border)


def _passes(parts: Parts, plan: RequestPlan[BaseMessage]) -> bool:
    """Whether a message in front, another one with each request, lets nobody read what stands behind it."""
    return parts.found == "behind" and not plan.again


@dataclass(frozen=True, slots=True)
class ToSettle:
    """A conversation that is to be decided on, and what the request has that it will stand in."""

    parts: Parts
    frame: Frame
    views: Views
    model: str
    text: str
    """The role's."""
    tools: Sequence[str]
    """Names of those that the request carries."""
    declared: Sequence[Any] = ()
    """Those tools that the application bound, as it declares them."""


async def summarise_first(asked: ToSettle, summarise: AsyncSummarise) -> None:
    """Where a compaction is due, have its summary written; ``settled``, which does not wait, repeats what is recorded.

    A budget that cannot be met is left for ``settled`` to raise.
    """
    work = _settling(asked)
    if work is None:
        return

    async def ask(request: SummaryRequest) -> str:
        return await summarise(work.sent(), request)

    with suppress(BudgetError):
        await work.session.histories.acondense(work.state, work.seen, asked.model, rest=work.rest(), ask=ask)
        work.refreshed()


def settled(asked: ToSettle, summarise: Summarise | None = None) -> Decided:
    """The conversation with large tool results cut, and compacted where that is due; both as recorded once."""
    work, session, messages, border = _settling(asked), asked.frame.session, asked.parts.rest, asked.parts.border
    plain = Decided(messages, border, (), lossless=True)
    if work is None:
        return parted(plain, session, asked.model)
    condense = partial(session.histories.condense, work.state, work.seen, asked.model)
    asks = None if summarise is None else lambda request: summarise(work.sent(), request)
    rest = work.rest()
    decisions = condense(rest=rest, ask=asks)
    if work.refreshed():
        decisions = condense(rest=replace(rest, front_moves=False))
    done = session.attempt("decisions", lambda: carried_out(messages, decisions, border), plain)
    return parted(done, session, asked.model)


@dataclass(frozen=True, slots=True)
class _Settling:
    """A conversation about to be decided on."""

    asked: ToSettle
    session: AdapterSession
    state: Conversation
    seen: list[MessageView]
    static: int
    """Tokens of what all requests have beside the conversation."""
    own: int
    """Tokens of what this one alone has."""
    epoch: int
    """The ledger's, before anything was decided."""

    def sent(self) -> list[BaseMessage]:
        """The request's messages as decided so far: what a summary is asked behind."""
        asked, histories, count = self.asked, self.session.histories, self.session.counter(self.asked.model)
        how = Cutting(count, histories.results, self.state.scope, readable=histories.readable(asked.tools))
        now = replay(self.seen, self.state.ledger, histories.budget, how)
        done = carried_out(asked.parts.rest, now.decisions, asked.parts.border)
        return [*asked.parts.head, *parted(done, self.session, asked.model).messages]

    def rest(self) -> RestOfRequest:
        """What the request has beside the conversation."""
        # Whether a compaction changes what stands before the history, too.
        moves = self.session.attempt("zones", lambda: self.state.zones_wait(self.seen), otherwise=False)
        return RestOfRequest(self.static, self.own, moves, self.asked.tools, self.asked.declared)

    def refreshed(self) -> bool:
        """Record what changes only together with a rewritten prefix; whether that changed the conversation."""
        rewritten = self.state.ledger.epoch > self.epoch

        def shown() -> bool:
            return self.state.show_zones(self.seen, rewritten=rewritten)

        return self.session.attempt("zones", shown, otherwise=False)


def _settling(asked: ToSettle) -> _Settling | None:
    """None where there is nothing to decide on."""
    session, state, messages, head = asked.frame.session, asked.frame.state, asked.parts.rest, asked.parts.head
    if state is None or not session.histories.decides(state):
        return None
    session.histories.note_unsaid(state)
    count = session.counter(asked.model)
    seen = session.attempt("views", lambda: asked.views.of(messages, count), None)
    if seen is None:
        return None
    beside = [message.text for message in head] + [tool.schema.decode() for tool in session.reachable(state)]
    return _Settling(
        asked, session, state, seen, sum(map(count, beside)), own=count(asked.text), epoch=state.ledger.epoch
    )


def boundary(rewritten: Rewritten, own_sections: Callable[[list[BaseMessage]], int]) -> Callable[[Prompt], int | None]:
    """A function that finds the end of the shared part in the wire prompt.

    Providers' clients merge and split messages, so the place is found from the tail's own text; what the
    role put before its tail is counted by ``own_sections``.
    """

    def find(prompt: Prompt) -> int | None:
        end = prompt.last_of(rewritten.tail) if rewritten.tail else len(prompt.sections)
        if end is None:
            return None
        if rewritten.own:
            end -= own_sections(rewritten.messages[rewritten.at - rewritten.own : rewritten.at])
        return max(end, 0)

    return find
