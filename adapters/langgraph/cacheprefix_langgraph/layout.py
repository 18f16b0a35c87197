"""The layout of a fork: one shared system text, the conversation as it is, the role's text where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from cacheprefix import Prompt
from cacheprefix.adapter import AdapterSession, RestOfRequest, ToolSet, digest_of, dumps, replay
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


def placed(done: Rewritten, frame: Frame, model: str, lane: ToolSet | None, *, shared: bool) -> Rewritten | None:
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


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cacheprefix import Conversation
    from cacheprefix.adapter import MessageView, SummaryRequest

    Summarise = Callable[[list[BaseMessage], SummaryRequest], str]
    AsyncSummarise = Callable[[list[BaseMessage], SummaryRequest], Awaitable[str]]

TAIL_KEY = "cacheprefix_tail"
"""Marks our own tail messages in ``additional_kwargs``, which no provider sees."""


def rewrite(
    messages: Sequence[BaseMessage],
    frame: Frame,
    views: Views,
    *,
    allowed: Sequence[str] | None,
    model: str = "",
    summarise: Summarise | None = None,
) -> Rewritten:
    """The messages of a fork. Every message that is not a leading system message stays the same object.

    ``allowed`` names the role's tools where the restriction has to be said in the tail. ``summarise`` asks the model
    for a summary of messages that a compaction removes. Raises ``BudgetError`` where the session's request budget
    cannot be met.
    """
    texts, rest, head, text = _parts(messages, frame, allowed)
    done = settled(rest, frame, views, model, head, text, summarise)
    sent, shared = done.messages, done.border
    given = None if done.lossless else list(messages)
    end = shared if frame.pinned and text else len(sent)
    laid, at = [*head, *sent], len(head) + end
    if text:
        laid.insert(at, HumanMessage(text, additional_kwargs={TAIL_KEY: frame.role}))
    trailing = frame.passing if frame.trails else ""
    restored, history, own = done.restored, together(sent), end - shared
    return Rewritten(laid, text, len(head), at, own, texts, restored, given, history, trailing, frame.volatile_role)


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
    messages: Sequence[BaseMessage],
    frame: Frame,
    views: Views,
    *,
    allowed: Sequence[str] | None,
    model: str,
    summarise: AsyncSummarise,
) -> None:
    """Where a compaction is due, have its summary written; ``rewrite``, which does not wait, repeats what is recorded.

    A budget that cannot be met is left for ``rewrite`` to raise.
    """
    _, rest, head, text = _parts(messages, frame, allowed)
    work = _settling(rest, frame, views, model, head, text)
    if work is None:
        return

    async def ask(request: SummaryRequest) -> str:
        return await summarise(work.sent(), request)

    with suppress(BudgetError):
        beside = RestOfRequest(work.static, work.own, work.front_moves())
        await work.session.acondense(work.state, work.seen, model, rest=beside, ask=ask)
        work.refreshed()


def _parts(
    messages: Sequence[BaseMessage], frame: Frame, allowed: Sequence[str] | None
) -> tuple[tuple[str, ...], list[BaseMessage], list[BaseMessage], str]:
    """The application's system texts, the conversation, the shared system message, and the role's text."""
    lead = 0
    while lead < len(messages) and isinstance(messages[lead], SystemMessage):
        lead += 1
    texts = tuple(message.text for message in messages[:lead])
    volatile = {} if frame.trails else frame.volatile
    text = frame.session.tail_for(frame.role, instruction_of(texts, frame), tools=allowed, volatile=volatile)
    system = frame.session.prefix.text if frame.base is None else frame.base
    return texts, list(messages[lead:]), [SystemMessage(system)] if system else [], text


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
