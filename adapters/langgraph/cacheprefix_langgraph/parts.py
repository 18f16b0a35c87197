"""A call's messages taken apart: whose texts they are, and what of the shared text stands in them already.

A fork begins with the shared text, so that what the application's own request holds of it, in whichever message and
with whatever white space, is taken out of there: every text stands in the request once. In the application's own layout
it is the other way round: what the request does not hold yet is put in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Any, Final, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage

from cacheprefix.adapter import context_block, find_text, mostly_holds
from cacheprefix.wire import paused_turn
from cacheprefix_langgraph.fork_context import Frame
from cacheprefix_langgraph.views import is_answer, is_text, text_in

Found = Literal["whole", "behind", "part"]
"""How far a node's messages hold the state's conversation: all of it from the start, all of it behind or between
messages that the node adds, or only a part of it, as where the node cuts it or writes it anew."""

_LEADING: Final = ("system", "developer")

_LONG: Final = 200
"""Characters from which on a text in the conversation is the shared one, and not somebody who says the same."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The messages of a call, taken apart."""

    lead: list[BaseMessage]
    """The application's system messages at the front."""
    rest: list[BaseMessage]
    """The conversation, without the shared text in it."""
    head: list[BaseMessage]
    """The system message that a fork begins with."""
    given: list[BaseMessage]
    """All messages as the application made them."""
    border: int
    """How many messages of ``rest`` are the shared conversation."""
    hoisted: list[BaseMessage] = field(default_factory=list)
    """System messages behind others that the model's class would put in front, as it does with a single one."""
    originals: Mapping[int, Sequence[BaseMessage]] = field(default_factory=dict)
    """By the identity of a message of ``rest``: what stands there in the application's own request."""
    found: Found = "whole"

    @property
    def texts(self) -> tuple[str, ...]:
        """The application's system texts."""
        return tuple(message.text for message in (*self.lead, *self.hoisted))

    @property
    def whole(self) -> bool:
        """Whether ``rest`` is the application's own conversation, message by message."""
        return not self.originals and not self.hoisted

    @property
    def begins_shared(self) -> bool:
        """Whether the application's own request begins with the very text that a fork begins with."""
        return bool(self.lead and self.head) and self.lead[0].text.lstrip().startswith(self.head[0].text.strip())

    @property
    def shared_at(self) -> int | None:
        """Characters of the leading message in front of the shared text; None where that stands elsewhere."""
        span = find_text(self.head[0].text, self.lead[0].text) if self.lead and self.head else None
        return None if span is None else len(self.lead[0].text[: span[0]].strip())

    def own(self, history: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Messages of ``rest``, or what was decided on them, with what was taken out of them put back."""
        back = [one for message in history for one in self.originals.get(id(message), (message,))]
        return [*back, *self.hoisted]


def taken_apart(messages: Sequence[BaseMessage], frame: Frame, *, hoists: bool = False) -> Parts:
    """What a call's messages are made of.

    ``hoists`` says that the model's class puts a system message in front wherever it stands, and takes one alone.
    """
    rest = list(dropwhile(leads, messages))
    lead = list(messages[: len(messages) - len(rest)])
    prefix = frame.session.prefix
    # An agent alone keeps its own order, and nothing is moved.
    known = [] if frame.base is not None else [text for text in _shared(frame) if len(text) >= _LONG]
    border, found = shared_count(rest, frame.shared, known)
    hoisted = [message for message in rest if leads(message)] if hoists and not lead else []
    if hoisted:
        border -= sum(map(leads, rest[:border]))
        rest = [message for message in rest if not leads(message)]
    system = prefix.text if frame.base is None else frame.base
    bare, originals, border = _bare(rest, known, border, [message.text for message in messages if leads(message)])
    head: list[BaseMessage] = [SystemMessage(system)] if system else []
    if frame.base is not None and len(lead) == 1 and lead[0].text.startswith(system):
        head = [_beginning(lead[0], system)]
    return Parts(lead, bare, head, list(messages), border, hoisted, originals, found)


def _beginning(message: BaseMessage, text: str) -> BaseMessage:
    """What of an agent's own system message says ``text``, which it begins with, in its own blocks."""
    if message.text == text:
        return message
    said = ""
    for index, block in enumerate(message.content if isinstance(message.content, list) else ()):
        said += text_in(block) if is_text(block) else ""
        if said == text:
            return message.model_copy(update={"content": message.content[: index + 1]})
    return SystemMessage(text)


def own_text(messages: Sequence[BaseMessage], frame: Frame) -> str:
    """The system text of a request in the application's own layout, behind what that leaves to us to say."""
    return "\n\n".join((*missing(messages, frame), *(one.text for one in takewhile(leads, messages))))


def goes_on_from(base: str, messages: Sequence[BaseMessage], frame: Frame) -> bool:
    """Whether a request's own system text begins with ``base``, and what follows is a line or a block by itself.

    Of "You serve Ann Lee." a fork of "You serve Ann" would say each half in another place.
    """
    text = own_text(messages, frame)
    if not text.startswith(base):
        return False
    rest, last = text[len(base) :], [*takewhile(leads, messages)][-1:]
    content = last[0].content if last else []
    blocks = [text_in(one) for one in content if is_text(one)] if isinstance(content, list) else []
    whole = not base or not rest or base.endswith("\n") or rest.startswith("\n")
    return whole or any("".join(blocks[at:]) == rest for at in range(len(blocks)))


def _bare(
    messages: list[BaseMessage], known: Sequence[str], border: int, system: Sequence[str]
) -> tuple[list[BaseMessage], dict[int, Sequence[BaseMessage]], int]:
    """The conversation without the shared texts, what stands there in the application's request, and the border.

    What ``system`` texts of the request say as well, a user's message quotes: that stays whole, as it is asked about.
    """
    kept: list[BaseMessage] = []
    originals: dict[int, Sequence[BaseMessage]] = {}
    gone: list[BaseMessage] = []
    moved = border
    for index, message in enumerate(messages):
        if index == border:
            moved = len(kept)
        bare = _without_texts(message, known)
        if bare is not message and not leads(message):
            bare = _without_texts(message, [text for text in known if not _stands(text, system)])
        if bare is None:
            gone.append(message)
            continue
        kept.append(bare)
        if bare is not message or gone:
            originals[id(bare)] = (*gone, message)
            gone = []
    if not kept:
        # Nothing else is said, and no provider takes a request without a message.
        return messages, {}, border
    if border == len(messages):
        moved = len(kept)
    if gone:
        last = kept[-1]
        originals[id(last)] = (*originals.get(id(last), (last,)), *gone)
    return kept, originals, moved


def _stands(text: str, where: Sequence[str]) -> bool:
    """Whether a text stands in one of others."""
    return any(find_text(text, one) is not None for one in where)


def _without_texts(message: BaseMessage, known: Sequence[str]) -> BaseMessage | None:
    """A message without the shared texts; the same object where it has none, None where nothing else is in it.

    What a model or a tool has said stays as it is: that is its answer, whatever is in it.
    """
    if not (isinstance(message, HumanMessage) or leads(message)) or not known:
        return message
    content: Any = message.content
    if isinstance(content, str):
        left = without(content, known)
        return message if left == content else message.model_copy(update={"content": left}) if left else None
    blocks = [block if not is_text(block) else _without_block(block, known) for block in content]
    if all(new is old for new, old in zip(blocks, content, strict=True)):
        return message
    kept = [block for block in blocks if block is not None]
    return message.model_copy(update={"content": kept}) if kept else None


def _without_block(block: Any, known: Sequence[str]) -> Any:
    """A text block without the shared texts; None where nothing else is in it."""
    text = text_in(block)
    left = without(text, known)
    if left == text:
        return block
    return None if not left else left if isinstance(block, str) else {**block, "text": left}


def without(text: str, known: Sequence[str]) -> str:
    """A text without those of the known ones that stand in it, whatever the white space; the same where none does."""
    for one in known:
        # Most texts are shorter than the shared one, and are not looked through.
        while 2 * len(text) >= len(one) and (span := find_text(one, text)) is not None:
            text = f"{text[: span[0]]}{text[span[1] :]}".strip()
            if len(one) < _LONG:
                break
    return text


def _shared(frame: Frame) -> Iterator[str]:
    """The shared text as applications may hold it: all of it, or its parts."""
    prefix = frame.session.prefix
    yield from (text for text in dict.fromkeys((prefix.text, prefix.system, *prefix.context.values())) if text.strip())


def instruction_of(parts: Parts, frame: Frame) -> str:
    """The role's text: its own instruction, then its system texts without the shared part in them."""
    prefix = frame.session.prefix
    # A short text of the context may stand in a role's own words by chance.
    known = [text for text in _shared(frame) if len(text) >= _LONG or text in (prefix.text, prefix.system)]
    if frame.base is None:
        own = [without(text, known) for text in parts.texts]
    else:
        # Its own text is the beginning of its prefix, or all of that.
        own = ["" if text in frame.base else without(text, [frame.base]) for text in parts.texts]
    return "\n\n".join(dict.fromkeys(part for part in (frame.instruction, *own) if part))


def paused(messages: Sequence[BaseMessage]) -> int:
    """How many messages at the end are a turn that the provider runs on from there, behind which no text may stand."""
    results = sum(1 for _ in takewhile(is_answer, reversed(messages)))
    turn = messages[-results - 1] if results < len(messages) else None
    if not isinstance(turn, AIMessage):
        return 0
    result = {"role": "user", "content": [{"type": "tool_result"}]}
    return paused_turn([{"role": "assistant", "content": turn.content}, *([result] * results)])


def at_end(messages: Sequence[Any], said: Sequence[Any]) -> list[Any]:
    """The messages with others at their end, as far as something may stand there."""
    end = len(messages) - paused(messages)
    return [*messages[:end], *said, *messages[end:]]


def completed(given: Sequence[BaseMessage], frame: Frame) -> list[BaseMessage]:
    """A request in the application's own layout, with what it leaves to us to say: shared, role's and passing text.

    The very same messages where it says all of that itself.
    """
    text = "\n\n".join(missing(given, frame))
    given = at_end(given, [HumanMessage(frame.passing)] if frame.volatile else [])
    if not text:
        return given
    at = next((index for index, message in enumerate(given) if leads(message)), None)
    if at is None:
        return [SystemMessage(text), *given]
    # Joined with the first one, wherever that stands: some classes take no second.
    first, content = given[at], given[at].content
    joined: Any = f"{text}\n\n{content}" if isinstance(content, str) else [{"type": "text", "text": text}, *content]
    return [*given[:at], first.model_copy(update={"content": joined}), *given[at + 1 :]]


def missing(given: Sequence[BaseMessage], frame: Frame, beside: str = "") -> list[str]:
    """What a request in the application's own layout does not say yet: of the shared texts, and the role's.

    ``beside`` is what it says outside of its messages. Of the shared system text an older version may stand there
    (``mostly_holds``): then the call's reasons say so, and the request does not get the same a second time.
    """
    system = "\n\n".join((*(message.text for message in given if leads(message)), beside))
    spoken = "\n\n".join(message.text for message in given if isinstance(message, HumanMessage))

    def stands(due: _Due) -> bool:
        # A user may say in passing what a short text says.
        where = f"{system}\n\n{spoken}" if len(due.told_by) >= _LONG else system
        return find_text(due.told_by, where) is not None or (due.versions and mostly_holds(due.told_by, where))

    return [due.text for due in _dues(frame) if not stands(due)]


class _Due(NamedTuple):
    """What each request of a role says."""

    text: str
    told_by: str
    """What a request holds that says it."""
    versions: bool = False
    """Whether an older version of it stands for it."""


def _dues(frame: Frame) -> Iterator[_Due]:
    """What each request of a role says: the shared system text and context, the role's card, its instruction."""
    prefix = frame.session.prefix
    system, card = prefix.system.strip(), ""
    if frame.session.tail == "cards":
        card = prefix.roles.get(frame.role, "").strip()
    texts = [_Due(system, system, versions=True)]
    texts += [_Due(context_block(key, text), text.strip()) for key, text in prefix.context.items()]
    texts.append(_Due(card, card))
    texts.append(_Due(frame.instruction.strip(), frame.instruction.strip()))
    yield from (due for due in texts if due.told_by)


def shared_count(
    messages: Sequence[BaseMessage], shared: Sequence[BaseMessage] | None, known: Sequence[str] = ()
) -> tuple[int, Found]:
    """How many of ``messages`` are the shared conversation, and how far it was found.

    What a node puts in front or adds of the ``known`` texts, which a fork takes out, is no difference.
    """
    if shared is None:
        return len(messages), "whole"
    common = list(dropwhile(leads, shared))
    strict = count = met = strays = 0
    for index, own in enumerate(messages):
        if met == len(common):
            break
        if not _same(own, common[met]):
            left = _without_texts(own, known)
            if left is None:
                continue
            if left is own or _words(left) != _words(common[met]):
                strays += 1
                continue
        met += 1
        count = index + 1
        if not strays:
            strict = count
    if met == len(common):
        return count, "behind" if strays else "whole"
    return strict, "part"


def _same(own: BaseMessage, common: BaseMessage) -> bool:
    return (
        own is common or (own.id is not None and own.id == common.id and own.content == common.content) or own == common
    )


def _words(message: BaseMessage) -> tuple[str, Any]:
    return message.type, message.content


def only_text(message: BaseMessage) -> str | None:
    """The text of a message that is nothing else; None where it has calls, results, pictures or whatever more."""
    blocks = message.content if isinstance(message.content, list) else []
    beside = [*message.additional_kwargs.values(), getattr(message, "tool_calls", None)]
    return None if any(beside) or is_answer(message) or not all(map(is_text, blocks)) else message.text


def leads(message: BaseMessage) -> bool:
    """Whether it is a system message, or OpenAI's of a developer, under its API's own name for the role."""
    return isinstance(message, SystemMessage) or (isinstance(message, ChatMessage) and message.role in _LEADING)
