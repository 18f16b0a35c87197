"""LangChain's class for Amazon Bedrock's Converse API, which builds its body as arguments of its client.

A subclass cannot finish such a body, but what the class has for a client can: it is given all of it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from langchain_core.messages import BaseMessage, ToolMessage

from cacheprefix_langgraph.pending import SENDING

_HOME: Final = "langchain_aws.chat_models.bedrock_converse"
_CLIENT: Final = "client"
"""The field of the class that has its client."""
_SENDS: Final = ("converse", "converse_stream")
SCHEMA: Final = ("output_config", "outputConfig")
"""Options that hold a schema for the answer."""
CONFIG: Final = "toolConfig"
"""The option beside which the class takes no ``tools``: it holds those that Amazon runs, and then all."""
_GUARDS: Final = ("guardrail_config", "guardrailConfig")
_NUMBER: Final = "index"
"""Where a block that was streamed says which of its answer's it is."""
_PREFILLS: Final = "prompt_prefill"
"""The way of asking for an answer by a schema in which the application begins the answer itself."""


def converse_of(kind: type) -> type | None:
    """LangChain's own class for this API, where a model class is made from it, or is it."""
    return next((one for one in kind.__mro__ if one.__module__ == _HOME and "_generate" in vars(one)), None)


class _KeptError(Exception):
    """Carries a body out of the class, which goes no further."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.body = body


class _Keeping:
    """A client that sends nothing."""

    def converse(self, **body: Any) -> None:
        raise _KeptError(body)


def converse_body(model: Any, kind: Any, messages: Any, stop: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a model of the class ``kind`` would give to its client. Raises what the class raises."""
    shown = kind.__new__(kind)
    for slot in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(shown, slot, getattr(model, slot))
    object.__setattr__(shown, "__dict__", {**model.__dict__, _CLIENT: _Keeping()})
    # Whether the answer is streamed stands in no body.
    options = {name: value for name, value in kwargs.items() if name != "stream"}
    generate: Any = vars(converse_of(kind))["_generate"]
    try:
        # LangChain's own, past an application's: what that does beside asking is not done twice. What it changes of the
        # request is seen when it sends (``finished``). The class puts other messages into its list.
        generate(shown, list(messages), stop, None, **options)
    except _KeptError as kept:
        return kept.body
    raise TypeError("the class asked nothing of its client")


class Client:
    """In the place of the field: while a request of ours is under way, what is sent goes through ``finish`` first.

    ``finish`` is given the model and the body, and gives the body to send. The client itself stays where it is among
    the model's fields, so that copies, comparisons and dumps see nothing else. On a class there is nothing of this
    name, as there is not for a field; pydantic would take it for the field's default where it makes a class of this.
    """

    def __init__(self, finish: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
        self._finish = finish

    def __get__(self, model: Any, kind: Any = None) -> Any:
        own = None if model is None else vars(model).get(_CLIENT, self)
        if own is self or model is None:
            raise AttributeError(_CLIENT)
        return own if own is None or SENDING.get() is None else _Asking(own, partial(self._finish, model))

    def __set__(self, model: Any, client: Any) -> None:
        vars(model)[_CLIENT] = client


class _Asking:
    """A client whose requests are finished before they are sent; in all else the one that it stands for."""

    def __init__(self, own: Any, finish: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._own, self._finish = own, finish

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name)
        return partial(self._sent, found) if name in _SENDS else found

    def _sent(self, send: Callable[..., Any], **body: Any) -> Any:
        return send(**self._finish(body))


def system_tool(tool: Any) -> Any:
    """What a request says of a tool that Amazon runs; None of any other."""
    return tool.get("systemTool") if isinstance(tool, Mapping) else None


def is_point(tool: Any) -> bool:
    """Whether it is a cache point, by which an application marks the tools before it."""
    return isinstance(tool, Mapping) and "cachePoint" in tool


def words_itself(model: Any, kwargs: Mapping[str, Any]) -> str:
    """The setting for which a request of this class keeps the application's own layout; empty where there is none."""
    if converse_of(type(model)) is None:
        return ""
    if getattr(model, "raw_blocks", None) is not None:
        return "raw_blocks"  # sent in the place of all messages
    if getattr(model, "guardrail_config", None) or any(kwargs.get(name) for name in _GUARDS):
        # It judges what users say and no system text: a role's text among that would be judged too.
        return "guardrail_config"
    asked = kwargs.get("ls_structured_output_format")
    method = asked.get("kwargs", {}).get("method") if isinstance(asked, Mapping) else None
    # The model goes on from the application's last words, behind which nothing may stand.
    return _PREFILLS if method == _PREFILLS else ""


def in_blocks(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages with what neighbours of one kind say as blocks that stay apart.

    The class joins such neighbours, and two texts, or two blocks of a stream with one number, into one: the end of what
    was cached would stand within it. A message without such a neighbour is sent alike in both ways, and stays as it is.
    """
    return [_in_blocks(message) if _joins(message, messages, at) else message for at, message in enumerate(messages)]


def _in_blocks(message: BaseMessage) -> BaseMessage:
    content: list[Any]
    if isinstance(message.content, str):
        content = [{"type": "text", "text": message.content}] if message.content.strip() else []
    else:
        numbered = [isinstance(block, dict) and _NUMBER in block for block in message.content]
        content = [*map(_without_number, message.content)] if any(numbered) else []
    return message.model_copy(update={"content": content}) if content else message


def _without_number(block: Any) -> Any:
    return {name: value for name, value in block.items() if name != _NUMBER} if isinstance(block, dict) else block


def _joins(message: BaseMessage, messages: Sequence[BaseMessage], at: int) -> bool:
    """Whether the class joins a message with the one before or behind it."""
    beside = (*messages[max(0, at - 1) : at], *messages[at + 1 : at + 2])
    kind = type(message)
    return kind is not ToolMessage and any(isinstance(one, kind) or isinstance(message, type(one)) for one in beside)
