"""The text of a tail: role, task limits, volatile context. Everything that differs between forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cacheprefix.layout.framing import card as card_of
from cacheprefix.layout.framing import role_element, tools_allowed
from cacheprefix.prompt import Api
from cacheprefix.wire import bedrock
from cacheprefix.wire.apis import CHATS, form_of
from cacheprefix.wire.openai_chat import SYSTEM_ROLES

VolatileRole = Literal["user", "system", "developer"]
"""Under which role text for one request alone is sent."""
RoleAs = Literal["user", "developer"]
"""As whom a role's text speaks where it stands behind the conversation: as a user, or with the authority that a
system text has (OpenAI's developer message, a system message elsewhere) where the model takes one there."""


def tail_text(
    role: str,
    instruction: str,
    *,
    card: bool = False,
    tools: Sequence[str] | None = None,
    volatile: Mapping[str, str] | None = None,
) -> str:
    """What is appended for one call; empty when there is nothing to say.

    ``card`` says that the role's text already stands in the shared system text. ``tools`` names those the
    role may use, where the provider has no way to restrict them without touching the cached part.
    """
    parts: list[str] = []
    if card:
        parts.append(card_of(role))
    elif instruction:
        parts.append(role_element(role, instruction))
    if tools is not None:
        parts.append(tools_allowed(tools))
    parts += [f"<{key}>\n{value}\n</{key}>" for key, value in (volatile or {}).items()]
    return "\n\n".join(parts)


def with_volatile(body: Mapping[str, Any], api: Api, text: str, role: VolatileRole = "user") -> dict[str, Any]:
    """A finished body with ``text`` at its very end; what stands before it is what it was.

    It is added when breakpoints are set, so none stands behind it and nothing is written that no request repeats.
    Anthropic and Bedrock know no system message there, and take it as a block of the user's; Gemini's body stays as it
    is.
    """
    form = form_of(api)
    shape = bedrock if api == "bedrock" else None if form is None else CHATS[form]
    history = None if shape is None else body.get(shape.FIELDS.history)
    if shape is None or not text or not isinstance(history, list):
        return dict(body)
    return {**body, shape.FIELDS.history: shape.with_last(history, text, role)}


def said_with_authority(body: Mapping[str, Any], api: Api, text: str, role: str) -> Mapping[str, Any] | None:
    """The body with the last message that says ``text`` and nothing else under ``role`` instead of the user's.

    None where there is no such message, and where none of that role may stand: before everything that was said, where
    it would become part of the system text, and in Anthropic's API behind anything but a user's message.
    """
    form = form_of(api)
    history = None if form is None else body.get(CHATS[form].FIELDS.history)
    if form is None or not isinstance(history, list):
        return None
    for at in range(len(history) - 1, 0, -1):
        one, before = history[at], history[at - 1]
        if not isinstance(one, Mapping) or one.get("role") != "user" or _said(one.get("content")) != text:
            continue
        known = before.get("role") if isinstance(before, Mapping) else None
        if known in SYSTEM_ROLES or (form == "anthropic" and known != "user"):
            return None
        # The name said who the user is.
        changed = {**{name: value for name, value in one.items() if name != "name"}, "role": role}
        return {**body, CHATS[form].FIELDS.history: [*history[:at], changed, *history[at + 1 :]]}
    return None


def _said(content: object) -> object:
    """A message's words, where it is nothing but one text."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], Mapping):
        return content[0].get("text")
    return content
