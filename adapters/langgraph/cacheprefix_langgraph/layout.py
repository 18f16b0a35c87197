"""The layout of a fork: one shared system text, the conversation as it is, the role's text where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from cacheprefix import Prompt
from cacheprefix.adapter import AdapterSession, History, RequestPlan, RestOfRequest, digest_of, dumps, replay
from cacheprefix.errors import BudgetError
from cacheprefix_langgraph.fork_context import Frame, Rewritten
from cacheprefix_langgraph.history import Decided, carried_out
from cacheprefix_langgraph.views import Views
from cacheprefix_langgraph.zones import has_zones, show_zones, zones_wait

_NEXT: Final = "<next/>"
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
            out.append(HumanMessage(_NEXT, additional_kwargs={_BETWEEN: True}))
            border += index < done.border
    return done if len(out) == len(done.messages) else done._replace(messages=out, border=border)


def together(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation without what ``parted`` put into it."""
    return [message for message in messages if _BETWEEN not in message.additional_kwargs]


def apart(prompt: Prompt) -> Prompt:
    """A prompt without what ``parted`` put into its conversation, for what the application would have sent."""
    data = _NEXT.encode()
    return replace(prompt, sections=tuple(one for one in prompt.sections if one.data != data))


def _ends_a_request(message: BaseMessage, behind: Sequence[BaseMessage], *, shared_ends: bool) -> bool:
    if not isinstance(message, AIMessage) or message.tool_calls or not message.text:
        return False
    spoken = any(isinstance(one, AIMessage) and not one.response_metadata.get(_HANDED_BACK) for one in behind)
    return shared_ends or spoken


def _said(message: BaseMessage) -> list[str]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return [message.text, *(f"{call['name']} {dumps(call['args'], 'tool call').decode()}" for call in calls)]


def _digest(message: BaseMessage) -> str:
    content = message.content if isinstance(message.content, str) else dumps(message.content, "content").decode()
    return digest_of(message.type, content, *_said(message)[1:])


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cacheprefix import Conversation
    from cacheprefix.adapter import MessageView, SummaryRequest

    Summarise = Callable[[list[BaseMessage], SummaryRequest], str]
    AsyncSummarise = Callable[[list[BaseMessage], SummaryRequest], Awaitable[str]]

TAIL_KEY = "cacheprefix_tail"
"""Marks our own tail messages in ``additional_kwargs``, which no provider sees."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The messages of a call, taken apart."""

    lead: list[BaseMessage]
    """The application's system messages."""
    rest: list[BaseMessage]
    """The conversation."""
    head: list[BaseMessage]
    """The system message that a fork begins with."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The application's system texts."""
        return tuple(message.text for message in self.lead)


def taken_apart(messages: Sequence[BaseMessage], frame: Frame) -> Parts:
    """What a call's messages are made of."""
    rest = list(dropwhile(lambda message: isinstance(message, SystemMessage), messages))
    system = frame.session.prefix.text if frame.base is None else frame.base
    return Parts(list(messages[: len(messages) - len(rest)]), rest, [SystemMessage(system)] if system else [])


def history_of(done: Decided, frame: Frame, model: str, text: str) -> History[BaseMessage]:
    """The conversation as decided on; ``text`` may stand anywhere in it, or where it is pinned, in the shared part."""
    count = frame.session.counter(model)
    end = done.border if frame.pinned and text else len(done.messages)

    def tokens(message: BaseMessage) -> int:
        return sum(map(count, _said(message)))

    return History(done.messages[:end], _digest, tokens, done.messages[end:])


def laid_out(parts: Parts, done: Decided, frame: Frame, plan: RequestPlan[BaseMessage]) -> Rewritten:
    """The messages of a fork as planned. Each that is not a leading system message stays the same object."""
    at = plan.at if plan.at is not None and plan.text else len(plan.history)
    tail = [HumanMessage(plan.text, additional_kwargs={TAIL_KEY: frame.role})] if plan.text else []
    return Rewritten(
        [*parts.head, *plan.history[:at], *tail, *plan.history[at:]],
        plan.text,
        len(parts.head),
        len(parts.head) + at,
        max(0, at - done.border),
        parts.texts,
        done.restored,
        None if done.lossless else [*parts.lead, *parts.rest],
        frame.passing if frame.trails else "",
        frame.volatile_role,
        plan.continues,
    )


def completed(lead: Sequence[BaseMessage], history: Sequence[BaseMessage], frame: Frame) -> list[BaseMessage]:
    """A request in the application's own layout, with what it leaves to us to say: shared, role's and passing text.

    The very same messages where it says all of that itself.
    """
    text = "\n\n".join(missing("\n\n".join(message.text for message in lead), frame))
    end: list[BaseMessage] = [HumanMessage(frame.passing)] if frame.volatile else []
    if not text:
        return [*lead, *history, *end]
    if not lead:
        return [SystemMessage(text), *history, *end]
    first, content = lead[0], lead[0].content
    joined: Any = f"{text}\n\n{content}" if isinstance(content, str) else [{"type": "text", "text": text}, *content]
    return [first.model_copy(update={"content": joined}), *lead[1:], *history, *end]


def missing(said: str, frame: Frame) -> list[str]:
    """The shared text and the role's, as far as a request in the application's own layout does not say them."""
    shared = frame.session.prefix.system.strip() if frame.base is None else ""
    return [text for text in (shared, frame.instruction.strip()) if text and text not in said]


async def summarise_first(
    parts: Parts, frame: Frame, views: Views, text: str, *, model: str, summarise: AsyncSummarise
) -> None:
    """Where a compaction is due, have its summary written; ``settled``, which does not wait, repeats what is recorded.

    ``text`` is the role's. A budget that cannot be met is left for ``settled`` to raise.
    """
    work = _settling(parts.rest, frame, views, model, parts.head, text)
    if work is None:
        return

    async def ask(request: SummaryRequest) -> str:
        return await summarise(work.sent(), request)

    with suppress(BudgetError):
        beside = RestOfRequest(work.static, work.own, work.front_moves())
        await work.session.acondense(work.state, work.seen, model, rest=beside, ask=ask)
        work.refreshed()


def settled(
    messages: list[BaseMessage],
    frame: Frame,
    views: Views,
    model: str,
    head: Sequence[BaseMessage],
    tail: str,
    summarise: Summarise | None = None,
) -> Decided:
    """The conversation with large tool results cut, and compacted where that is due; both as recorded once."""
    work = _settling(messages, frame, views, model, head, tail)
    if work is None:
        return parted(Decided(messages, shared_count(messages, frame.shared), (), lossless=True), frame.session, model)
    session, state = work.session, work.state
    condense = partial(session.condense, state, work.seen, model)
    asks = None if summarise is None else lambda request: summarise(work.sent(), request)
    rest = RestOfRequest(work.static, work.own, work.front_moves())
    decisions = condense(rest=rest, ask=asks)
    if work.refreshed():
        decisions = condense(rest=replace(rest, front_moves=False))
    plain = Decided(messages, work.border, (), lossless=True)
    done = session.attempt("decisions", lambda: carried_out(messages, decisions, work.border), plain)
    return parted(done, session, model)


@dataclass(frozen=True, slots=True)
class _Settling:
    """A conversation about to be decided on."""

    session: AdapterSession
    state: Conversation
    messages: list[BaseMessage]
    head: Sequence[BaseMessage]
    border: int
    seen: list[MessageView]
    model: str
    static: int
    """Tokens of what all requests have beside the conversation."""
    own: int
    """Tokens of what this one alone has."""
    count: Callable[[str], int]
    epoch: int
    """The ledger's, before anything was decided."""

    def sent(self) -> list[BaseMessage]:
        """The request's messages as decided so far: what a summary is asked behind."""
        now = replay(
            self.seen,
            self.state.ledger,
            self.session.budget,
            count=self.count,
            store=self.session.results,
            scope=self.state.scope,
        )
        done = parted(carried_out(self.messages, now.decisions, self.border), self.session, self.model)
        return [*self.head, *done.messages]

    def front_moves(self) -> bool:
        """Whether a compaction changes what stands before the history, too."""
        return self.session.attempt("zones", lambda: has_zones(self.state) and zones_wait(self.state, self.seen), False)  # noqa: FBT003 - what is answered when it fails

    def refreshed(self) -> bool:
        """Record what changes only together with a rewritten prefix; whether that changed the conversation."""
        rewritten = self.state.ledger.epoch > self.epoch

        def shown() -> bool:
            return has_zones(self.state) and show_zones(self.state, self.seen, rewritten=rewritten)

        return self.session.attempt("zones", shown, False)  # noqa: FBT003 - what is answered when it fails


def _settling(
    messages: list[BaseMessage], frame: Frame, views: Views, model: str, head: Sequence[BaseMessage], tail: str
) -> _Settling | None:
    """None where there is nothing to decide on."""
    session, state = frame.session, frame.state
    idle = session.budget is None and session.compaction is None and session.request_budget is None
    if state is None or (idle and not state.ledger.alters and not has_zones(state)):
        return None
    count = session.counter(model)
    seen = session.attempt("views", lambda: views.of(messages, count), None)
    if seen is None:
        return None
    beside = [message.text for message in head] + [tool.schema.decode() for tool in session.prefix.tools]
    border, static = shared_count(messages, frame.shared), sum(map(count, beside))
    own, epoch = count(tail), state.ledger.epoch
    return _Settling(session, state, messages, head, border, seen, model, static, own, count, epoch)


def instruction_of(texts: Sequence[str], frame: Frame) -> str:
    """The role's text: its own instruction, then its system texts without the shared part in them."""
    prefix = frame.session.prefix
    # The whole of it where the application has that, else the part that applications write themselves.
    known = [text for text in ((prefix.text, prefix.system) if frame.base is None else (frame.base,)) if text.strip()]
    own = [_without(text, known) for text in texts]
    parts = [frame.instruction, *own]
    return "\n\n".join(dict.fromkeys(part for part in parts if part))


def _without(text: str, known: Sequence[str]) -> str:
    found = next((one.strip() for one in known if one.strip() in text), None)
    return text if found is None else text.replace(found, "", 1).strip()


def shared_count(messages: Sequence[BaseMessage], shared: Sequence[BaseMessage] | None) -> int:
    """How many of ``messages`` are the shared conversation: equal to it, from its start."""
    if shared is None:
        return len(messages)
    start = 0
    while start < len(shared) and isinstance(shared[start], SystemMessage):
        start += 1
    count = 0
    for own, common in zip(messages, shared[start:], strict=False):
        if (
            own is not common
            and (own.id is None or own.id != common.id or own.content != common.content)
            and own != common
        ):
            break
        count += 1
    return count


def boundary(rewritten: Rewritten, own_sections: Callable[[list[BaseMessage]], int]) -> Callable[[Prompt], int | None]:
    """A function that finds the end of the shared part in the wire prompt.

    Providers' clients merge and split messages, so the place is found from the tail's own text; what the
    role put before its tail is counted by ``own_sections``.
    """

    def find(prompt: Prompt) -> int | None:
        sections = prompt.sections
        end = len(sections)
        if rewritten.tail:
            data = rewritten.tail.encode("utf-8", "surrogatepass")
            found = next((i for i in range(end - 1, -1, -1) if sections[i].data == data), None)
            if found is None:
                return None
            end = found
        if rewritten.own:
            end -= own_sections(rewritten.messages[rewritten.at - rewritten.own : rewritten.at])
        return max(end, 0)

    return find
