"""The rewrite: one shared system text, the conversation as it is, the role's text at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from cacheprefix.prompt import Prompt
from cacheprefix_langgraph._frame import Frame, Rewritten
from cacheprefix_langgraph._views import Views, carry_out

if TYPE_CHECKING:
    from collections.abc import Callable

TAIL_KEY = "cacheprefix_tail"
"""Marks our own tail messages in ``additional_kwargs``, which no provider sees."""


def rewrite(
    messages: Sequence[BaseMessage], frame: Frame, views: Views, *, allowed: Sequence[str] | None, model: str = ""
) -> Rewritten:
    """The messages of a fork. Every message that is not a leading system message stays the same object.

    ``allowed`` names the role's tools where the restriction has to be said in the tail.
    """
    lead = 0
    while lead < len(messages) and isinstance(messages[lead], SystemMessage):
        lead += 1
    texts = tuple(message.text for message in messages[:lead])
    rest = list(messages[lead:])
    shared = shared_count(rest, frame.shared)
    rest, restored = shortened(rest, frame, views, model)
    text = frame.session.tail_for(frame.role, instruction_of(texts, frame), tools=allowed, volatile=frame.volatile)
    system = frame.session.prefix.text if frame.base is None else frame.base
    head: list[BaseMessage] = [SystemMessage(system)] if system else []
    if not text:
        return Rewritten([*head, *rest], "", len(rest) - shared, texts, restored)
    tail = HumanMessage(text, additional_kwargs={TAIL_KEY: frame.role})
    if frame.pinned:
        return Rewritten([*head, *rest[:shared], tail, *rest[shared:]], text, 0, texts, restored)
    return Rewritten([*head, *rest, tail], text, len(rest) - shared, texts, restored)


def shortened(
    messages: list[BaseMessage], frame: Frame, views: Views, model: str
) -> tuple[list[BaseMessage], tuple[tuple[str, str], ...]]:
    """The messages with large tool results shortened, and for each the text sent and the one it stands for."""
    session, state = frame.session, frame.state
    if state is None or (session.budget is None and not len(state.ledger)):
        return messages, ()
    seen = session.attempt("views", lambda: views.of(messages, lambda text: session.count(text, model)), None)
    decisions = session.shorten(state, seen, model) if seen is not None else ()
    if not decisions:
        return messages, ()
    pairs = tuple((decision.text, messages[decision.index].text) for decision in decisions)
    return carry_out(messages, decisions), pairs


def instruction_of(texts: Sequence[str], frame: Frame) -> str:
    """The role's text: its own instruction, then its system texts without the shared part in them."""
    shared = (frame.session.prefix.system if frame.base is None else frame.base).strip()
    own = [text.replace(shared, "", 1).strip() if shared else text for text in texts]
    parts = [frame.instruction, *own]
    return "\n\n".join(dict.fromkeys(part for part in parts if part))


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
            stop = len(rewritten.messages) - (1 if rewritten.tail else 0)
            end -= own_sections(rewritten.messages[stop - rewritten.own : stop])
        return max(end, 0)

    return find
