"""The text of a tail: role, task limits, volatile context. Everything that differs between forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cacheprefix.layout.framing import card as card_of
from cacheprefix.layout.framing import role_element, tools_allowed
from cacheprefix.prompt import Api
from cacheprefix.wire.apis import CHATS, form_of

VolatileRole = Literal["user", "system", "developer"]
"""Under which role text for one request alone is sent."""


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
    Anthropic knows no system message there, and takes it as a block of the user's; a body of an API whose messages
    are not written one by one stays as it is.
    """
    form = form_of(api)
    shape = None if form is None else CHATS[form]
    history = None if shape is None else body.get(shape.FIELDS.history)
    if shape is None or not text or not isinstance(history, list):
        return dict(body)
    return {**body, shape.FIELDS.history: shape.with_last(history, text, role)}
