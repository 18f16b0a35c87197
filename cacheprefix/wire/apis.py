"""The APIs by name: what a module of each has to say, and which one a path or a bare body belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from cacheprefix.errors import SetupError
from cacheprefix.prompt.decisions import Decision
from cacheprefix.prompt.sections import Api, Prompt, Section
from cacheprefix.prompt.views import Count, MessageView
from cacheprefix.wire import anthropic, bedrock, gemini, openai_chat, openai_responses
from cacheprefix.wire.body_copy import BodyCopy
from cacheprefix.wire.messages import Answer, Form, Found, Message, Takes, ToolRequest
from cacheprefix.wire.reader import Fields, Reader, Split


class Shape(Protocol):
    """What the module of an API knows: all that there is to know of how its bodies look."""

    FIELDS: Fields

    def sections(self, body: Mapping[str, Any], reader: Reader) -> list[Section]:
        """The sections of a body in cache order. Raises ``BodyError`` at what cannot be read."""

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The canonical body of sections, without model and settings."""

    def carries(self, prompt: Prompt, section: Section) -> bool:
        """Whether a breakpoint can stand on a section that is neither thinking nor empty."""

    def mark(self, copy: BodyCopy, section: Section, number: int, block: int, ttl: str | None) -> None:
        """Set a breakpoint on block ``block`` of the tool, system block or message ``number``, where one can stand."""

    def errors(self, body: Mapping[str, Any], takes: Takes) -> Found:
        """What the API would refuse a body for, in the order in which it stands."""


class ChatShape(Shape, Protocol):
    """An API whose histories are shortened, compacted and gone on with, message by message."""

    def unit(self, body: Mapping[str, Any], field: str, number: int) -> tuple[Any, Split]:
        """The tool, system block or message that a path names, and how it is read."""

    def view(self, message: Message, path: str, count: Count) -> MessageView:
        """What a message says, calls and answers. Raises ``BodyError`` where it is malformed."""

    def changed(self, message: Message, decisions: Sequence[Decision]) -> Message | None:
        """The message with the decisions carried out; None where nothing is left of it."""

    def answer(self, data: Mapping[str, Any]) -> Answer:
        """What an answer says and calls. Raises ``BodyError`` when it is none."""

    def tool(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A tool's declaration; ``schema`` has its name, description and parameters."""

    def declares(self, given: Mapping[str, Any]) -> bool:
        """Whether a tool is declared in this API's form."""

    def allowed_choice(self, names: Sequence[str]) -> Any:
        """The ``tool_choice`` that allows only ``names``, and none of the tools for no names."""

    def with_last(self, history: Sequence[Any], text: str, role: str) -> list[Any]:
        """The messages with a text behind them, under ``role`` where one of that role may stand there."""

    def results(self, told: Sequence[tuple[ToolRequest, str, bool]]) -> list[dict[str, Any]]:
        """Messages that answer tool calls: request, text, and whether it is an error."""


CHATS: Mapping[Form, ChatShape] = {
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "openai-chat": openai_chat,
}
# In the order in which a bare body is asked whose it is: chat completions have no sign of their own.
SHAPES: Mapping[Api, Shape] = {
    "gemini": gemini,
    "openai-responses": openai_responses,
    "bedrock": bedrock,
    "anthropic": anthropic,
    "openai-chat": openai_chat,
}
_FORMS: Mapping[Api, Form] = {form: form for form in CHATS}


def form_of(api: Api) -> Form | None:
    """The message form of an API; None for those whose messages this room cannot read."""
    return _FORMS.get(api)


def chat_of(api: Api) -> ChatShape:
    """The shape of an API whose messages are read and written one by one. Raises ``SetupError`` for the others."""
    form = form_of(api)
    if form is None:
        message = f"forks run on openai-chat, openai-responses, anthropic; for {api} send the fork's body yourself"
        raise SetupError(message)
    return CHATS[form]


def guess_api(body: Mapping[str, Any]) -> Api:
    """The API form of a bare body, from the fields it has."""
    for api, shape in SHAPES.items():
        if any(name in body for name in shape.FIELDS.signs):
            return api
    return "anthropic" if anthropic.recognises(body) else "openai-chat"


def api_of_path(path: str) -> tuple[Api, str | None] | None:
    """The API of a request to ``path``, and the model where the path names it.

    None for a path that asks no model for an answer (embeddings, counting tokens, lists of models). ``path`` is that
    of a URL, without the query.
    """
    for api, shape in SHAPES.items():
        found = shape.FIELDS.path.search(path)
        if found is not None:
            model = found.groupdict().get("model")
            return api, None if model is None else unquote(model)
    return None
