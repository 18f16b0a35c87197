"""The layout of a fork: shared system text, tools, transcript; then the role's text and this turn's messages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import Tool, ToolSchema

from cacheprefix import Conversation, Session
from cacheprefix.bodies import instruction_of
from cacheprefix.profiles import Profile
from cacheprefix_autogen.provider_clients import name_of, schema_of
from cacheprefix_autogen.public_messages import SENDER, called

HELD = 200
"""Characters of a stream that are held back while it may still turn out to call a tool that is refused.

About what a model says before such a call ("Let me look that up."); a longer text is an answer.
"""
ANSWER = "Answer now in text, without calling a tool."
"""Stands behind a turn's own messages where the request must not call tools and ``tool_choice`` must not vary."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an agent hands to its model client."""

    messages: Sequence[LLMMessage]
    tools: Sequence[Tool | ToolSchema]
    tool_choice: Any
    json_output: Any
    extra: Mapping[str, Any]
    volatile: str = ""
    """Text for this request alone; it is sent behind everything, and no layout holds it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What came beside the messages and tools, by name."""
    talk: Conversation | None = None
    """Where what is decided on it stands; None where nothing is decided."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The request as it is to be sent."""

    messages: list[LLMMessage]
    tools: Sequence[Any]
    tool_choice: Any
    shared: int | None
    """Messages behind the system text that siblings share; None where the messages are the application's own."""
    allowed: tuple[str, ...] | None = None
    """Tools to restrict to by ``tool_choice``."""
    permitted: tuple[str, ...] | None = None
    """Tools the role may call; None leaves that to the application."""
    continues: bool = False
    """Whether the role's next turn may begin with this request."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """How a role's tools are told to the model."""

    tools: Sequence[Any]
    tool_choice: Any
    permitted: tuple[str, ...] | None = None
    allowed: tuple[str, ...] | None = None
    said: tuple[str, ...] | None = None
    """Tools to name in the tail."""
    closing: str = ""


def frozen_schema(tool: Tool | ToolSchema) -> dict[str, Any]:
    """A copy of a tool's schema that later changes to the tool do not reach."""
    return copy.deepcopy(dict(schema_of(tool)))


def adopt(session: Session, tools: Sequence[Tool | ToolSchema]) -> None:
    """Put an agent's tools into the shared union."""
    if tools:
        session.adopt_tools([frozen_schema(tool) for tool in tools], lambda schema: schema)


def restrict(
    session: Session,
    profile: Profile,
    given: Request,
    own: Sequence[Tool | ToolSchema],
    role: str,
    *,
    carried: Container[str] | None = None,
) -> Restriction:
    """The union in place of the role's tools, and how the rest of it is kept from the role.

    ``own`` are the role's tools where the request leaves them out, as AutoGen's reflection does; ``carried``
    names those of the union that the role's lane carries (all by default).
    """
    shared = [tool for tool in session.prefix.tools if carried is None or tool.name in carried]
    names = [tool.name for tool in shared]
    schema = isinstance(given.json_output, type)
    choice = given.tool_choice
    forced = choice not in ("auto", "none")
    if forced or schema or not shared:
        if given.tools or not own or forced:
            return Restriction(given.tools, choice)
        return _without_calls(profile, [frozen_schema(tool) for tool in own], tuple(name_of(tool) for tool in own))
    natives = [tool.native if isinstance(tool.native, Mapping) else _schema_dict(tool.schema) for tool in shared]
    extra = [tool for tool in given.tools if name_of(tool) not in names]
    if extra:
        listed = ", ".join(sorted(name_of(tool) for tool in extra))
        session.note(f"tools outside the shared union were appended for role {role!r}: {listed}")
    tools = [*natives, *extra]
    permitted = () if choice == "none" else tuple(name_of(tool) for tool in given.tools)
    if not permitted:
        return _without_calls(profile, tools, tuple(name_of(tool) for tool in own), all_names=set(names))
    if set(permitted) >= set(names):
        return Restriction(tools, "auto")
    if profile.tool_choice_safe == "allowed_tools":
        return Restriction(tools, "auto", permitted, permitted)
    return Restriction(tools, "auto", permitted, said=permitted)


def _without_calls(
    profile: Profile, tools: Sequence[Any], own: tuple[str, ...], all_names: set[str] | None = None
) -> Restriction:
    if profile.tool_choice_safe in ("allowed_tools", "none"):
        said = None
        if profile.tool_choice_safe == "none" and own and all_names and not set(own) >= all_names:
            said = own
        return Restriction(tools, "none", (), said=said)
    said = None if all_names and own and set(own) >= all_names else own
    return Restriction(tools, "auto", (), said=said, closing=ANSWER if own else "")


def _schema_dict(schema: bytes) -> Mapping[str, Any]:
    from cacheprefix.prompt import loads  # noqa: PLC0415 - only for prefixes whose tools were given as other dicts

    plain: Mapping[str, Any] = loads(schema)
    return plain


def compose(
    session: Session,
    role: str,
    texts: Sequence[str],
    shared: Sequence[UserMessage],
    local: Sequence[LLMMessage],
    restriction: Restriction,
    place: Callable[[str], tuple[int | None, bool]],
) -> Layout | None:
    """The fork's messages. Those of the turn under way stay the same objects; memory moves behind the prefix.

    AutoGen asks an agent's memory once a turn, so its text stands before the turn's own messages. ``place`` says
    how many of the ``shared`` messages stand before the role's text (None for the application's own layout) and
    whether the role's next turn may begin with the request.
    """
    remembered = [str(message.content) for message in local if isinstance(message, SystemMessage)]
    memory = {"memory": "\n\n".join(dict.fromkeys(remembered))} if remembered else {}
    text = session.tail_for(role, instruction_of(texts, session.prefix.system), tools=restriction.said, volatile=memory)
    at, continues = place(text)
    if at is None:
        return None
    opening = session.prefix.text
    messages: list[LLMMessage] = [SystemMessage(content=opening)] if opening else []
    messages += shared[:at]
    if text:
        messages.append(UserMessage(content=text, source=SENDER))
    messages += shared[at:]
    messages += [message for message in local if not isinstance(message, SystemMessage)]
    if restriction.closing:
        messages.append(UserMessage(content=restriction.closing, source=SENDER))
    return Layout(
        messages,
        restriction.tools,
        restriction.tool_choice,
        at,
        restriction.allowed,
        restriction.permitted,
        continues,
    )


def introduced(messages: list[LLMMessage], text: str) -> list[LLMMessage]:
    """The messages with ``text`` in front of their own system text; the very same list where there is none to add."""
    if not text:
        return messages
    # Wherever the first one stands, a memory's too: clients refuse system messages that do not follow each other.
    for at, message in enumerate(messages):
        if isinstance(message, SystemMessage):
            joined = f"{text}\n\n{message.content}" if message.content else text
            return [*messages[:at], message.model_copy(update={"content": joined}), *messages[at + 1 :]]
    return [SystemMessage(content=text), *messages]


def refusal(layout: Layout, result: CreateResult, role: str) -> list[LLMMessage] | None:
    """What to answer when the role called tools it may not use: the call and its errors; None when all is well."""
    names = called(result.content)
    if layout.permitted is None or not names or set(names) <= set(layout.permitted):
        return None
    listed = ", ".join(layout.permitted) or "none"
    assert not isinstance(result.content, str)
    errors = [
        FunctionExecutionResult(
            content=f"Tool {call.name!r} was not run: tools available to the role {role!r} are: {listed}.",
            name=call.name,
            call_id=call.id,
            is_error=True,
        )
        for call in result.content
    ]
    return [
        AssistantMessage(content=result.content, source=role or "assistant"),
        FunctionExecutionResultMessage(content=errors),
    ]


class Held:
    """The beginning of an answer's pieces, held back where a call of the answer may be refused and asked again."""

    def __init__(self, layout: Layout | None) -> None:
        enforced = layout is None or layout.permitted is None or layout.allowed is not None
        self.passed = enforced or (layout is not None and layout.tool_choice == "none")
        """Whether pieces go out as they come: at once where the provider keeps the role to its tools."""
        self._pieces: list[str] = []

    @property
    def said(self) -> str:
        """All pieces so far."""
        return "".join(self._pieces)

    def taken(self, piece: str) -> list[str]:
        """The pieces that go out with this one."""
        self._pieces.append(piece)
        if self.passed:
            return [piece]
        self.passed = len(self.said) > HELD
        return list(self._pieces) if self.passed else []

    def rest(self) -> list[str]:
        """The pieces that are still held back when the answer has turned out to be one."""
        return [] if self.passed else list(self._pieces)


def without_refused(layout: Layout, result: CreateResult, said: str) -> CreateResult:
    """An answer whose text is out already, without the calls that the role may not make."""
    assert not isinstance(result.content, str)
    kept = [call for call in result.content if call.name in (layout.permitted or ())]
    if kept:
        return result.model_copy(update={"content": kept})
    return result.model_copy(update={"content": result.thought or said, "thought": None, "finish_reason": "stop"})


def after_refusal(layout: Layout, again: Sequence[LLMMessage], tries: int) -> Layout | None:
    """The request once more with the refusal in its turn; the second time the application's own."""
    return None if tries else replace(layout, messages=[*layout.messages, *again])


def shared_tokens(
    session: Session, model: str, restriction: Restriction, shared: Sequence[UserMessage]
) -> Callable[[], int]:
    """Counts what the next request shares beside the prefix's own text."""

    def tokens() -> int:
        texts = sum(session.count(_text(message), model) for message in shared)
        carried = {name_of(tool) for tool in restriction.tools}
        tools = (tool for tool in session.prefix.tools if tool.name in carried)
        return texts + sum(session.count(tool.schema.decode(), model) for tool in tools)

    return tokens


def _text(message: UserMessage) -> str:
    content = message.content
    return content if isinstance(content, str) else " ".join(part for part in content if isinstance(part, str))
