"""The request as the application's own client would have sent it, without sending it."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from cacheprefix import Conversation
from cacheprefix.adapter import Api
from cacheprefix.wire import sdk_arguments
from cacheprefix_autogen.messages import Seen

Forms = Seen[list[dict[str, Any]]]
"""Messages in a client's wire form."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an agent hands to its model client."""

    messages: Sequence[LLMMessage]
    tools: Sequence[Tool | ToolSchema] = ()
    tool_choice: Any = "auto"
    json_output: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    volatile: str = ""
    """Text for this request alone; it is sent behind everything, and no layout holds it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What came beside the messages and tools, by name."""
    talk: Conversation | None = None
    """Where what is decided on it stands; None where nothing is decided."""


def schema_of(tool: Tool | ToolSchema) -> Mapping[str, Any]:
    """A tool's schema in AutoGen's form: name, description, parameters."""
    schema: Mapping[str, Any] = tool if isinstance(tool, Mapping) else tool.schema
    return schema


def name_of(tool: Tool | ToolSchema) -> str:
    """A tool's name."""
    return str(schema_of(tool)["name"])


def api_of(client: Any) -> Api | None:
    """The wire form an AutoGen client speaks; None for clients without an SDK that can be watched."""
    if hasattr(client, "_process_create_args"):
        return "openai-chat"
    return "anthropic" if hasattr(client, "_merge_system_messages") else None


def model_of(client: Any) -> str:
    """The model's name as it goes out."""
    args = getattr(client, "_create_args", None)
    return str(args.get("model", "")) if isinstance(args, Mapping) else ""


def put_over(client: Any, given: Request) -> Mapping[str, Any]:
    """The fields that the application has its SDK put over the finished body (``extra_body``)."""
    args = getattr(client, "_create_args", None)
    return {**(args if isinstance(args, Mapping) else {}), **given.extra}.get("extra_body") or {}


def restore_tools(client: Any, tools: Sequence[Tool | ToolSchema]) -> None:
    """Give a client the tools again that it sends with results where a request has none of its own.

    AutoGen's client for Anthropic keeps the ones of its newest request, which may have been ours.
    """
    if api_of(client) == "anthropic":
        from autogen_ext.models.anthropic import _anthropic_client as native  # noqa: PLC0415 - an extra of AutoGen

        client._last_used_tools = native.convert_tools(tools)


def body_of(
    client: ChatCompletionClient,
    given: Request,
    forms: Forms | None = None,
    last: Sequence[Tool | ToolSchema] | None = None,
) -> tuple[Api, dict[str, Any]]:
    """API form and body; a plain rendering for clients whose wire form is not known.

    ``forms`` remembers the wire forms of this client's messages. ``last`` are the tools that the application sent last,
    which AutoGen's client for Anthropic repeats; by default those that went out, which may have been ours.
    """
    api = api_of(client)
    given = replace(given, messages=_unshared(given.messages))
    if api == "openai-chat":
        return api, _openai(client, given, forms or Forms())
    if api == "anthropic":
        results = any(isinstance(message, FunctionExecutionResultMessage) for message in given.messages)
        given = replace(given, tools=last) if last and results and not given.tools else given
        return api, _anthropic(client, given, forms or Forms())
    return "openai-chat", _plain(client, given)


def _unshared(messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """AutoGen's clients strip the last assistant message in place; that one is copied."""
    given = list(messages)
    if given and isinstance(given[-1], AssistantMessage):
        given[-1] = copy.copy(given[-1])
    return given


def _openai(client: Any, given: Request, forms: Forms) -> dict[str, Any]:
    """The client's own arguments, with the messages between the first and the last rendered once and remembered."""
    from autogen_ext.models.openai import _openai_client as native  # noqa: PLC0415 - an extra of AutoGen

    messages, args = given.messages, client._create_args | dict(given.extra)

    def form(message: LLMMessage) -> list[dict[str, Any]]:
        made: Any = native.to_oai_type(
            message,
            prepend_name=client._add_name_prefixes,
            model=args.get("model", "unknown"),
            model_family=client._model_info["family"],
            include_name_in_message=client._include_name_in_message,
        )
        return list(made)

    start = 0
    while start < len(messages) and isinstance(messages[start], SystemMessage):
        start += 1
    middle = list(messages[start:-1])
    if any(isinstance(message, SystemMessage) for message in middle):
        middle = []
    asked = [*messages[:start], messages[-1]] if middle else messages
    made = client._process_create_args(asked, given.tools, given.tool_choice, given.json_output, given.extra)
    at = len(made.messages) - (len(form(messages[-1])) if middle else 0)
    between = [item for message in middle for item in forms.of(message, form)]
    body = {**made.create_args, "messages": [*made.messages[:at], *between, *made.messages[at:]]}
    if made.tools:
        body["tools"] = list(made.tools)
    if made.response_format is not None:
        body["response_format"] = _schema(made.response_format)
    return body


def _schema(output: type[BaseModel]) -> dict[str, Any]:
    """The schema of an answer's class, as OpenAI's API takes it."""
    return {"type": "json_schema", "json_schema": {"name": output.__name__, "schema": output.model_json_schema()}}


def _anthropic(client: Any, given: Request, forms: Forms) -> dict[str, Any]:
    """The body that AutoGen's client for Anthropic makes."""
    from autogen_ext.models.anthropic import _anthropic_client as native  # noqa: PLC0415 - an extra of AutoGen

    merged = client._merge_system_messages(given.messages)
    body: dict[str, Any] = {"model": model_of(client), "messages": []}

    def form(message: LLMMessage) -> list[dict[str, Any]]:
        made: Any = native.to_anthropic_type(message)
        return [_dumped(item) for item in (made if isinstance(made, list) else [made])]

    for message in merged:
        if isinstance(message, SystemMessage):
            body["system"] = native.to_anthropic_type(message)
        else:
            body["messages"] += forms.of(message, form)
    has_results = any(isinstance(message, FunctionExecutionResultMessage) for message in merged)
    # AutoGen 0.7.4 has them from the first request on that has tools.
    last = getattr(client, "_last_used_tools", []) if has_results else []
    converted = native.convert_tools(given.tools) if given.tools else last
    if converted:
        body["tools"] = list(converted)
    thinking = given.extra.get("thinking") or client._create_args.get("thinking")
    if thinking:
        body["thinking"] = thinking
    return body


def _dumped(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of Anthropic's SDK as JSON has it."""
    content = message["content"]
    if isinstance(content, list):
        content = [block.model_dump(exclude_none=True) if isinstance(block, BaseModel) else block for block in content]
    return {**message, "content": content}


def _role(message: LLMMessage) -> str:
    """Whose message it is, in OpenAI's words."""
    if isinstance(message, SystemMessage):
        return "system"
    return "user" if isinstance(message, UserMessage) else "assistant"


def _plain(client: Any, given: Request) -> dict[str, Any]:
    """A request in OpenAI's form, for a client whose own body is not known."""
    body: dict[str, Any] = {"model": model_of(client), "messages": []}
    for message in given.messages:
        if isinstance(message, FunctionExecutionResultMessage):
            body["messages"] += [
                {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
                for result in message.content
            ]
            continue
        plain: dict[str, Any] = {"role": _role(message)}
        if isinstance(message, AssistantMessage) and isinstance(message.content, list):
            plain["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in message.content
            ]
        elif isinstance(message.content, str):
            plain["content"] = message.content
        else:
            plain["content"] = [{"type": "text", "text": str(part)} for part in message.content]
        body["messages"].append(plain)
    if given.tools:
        body["tools"] = [{"type": "function", "function": dict(schema_of(tool))} for tool in given.tools]
    if isinstance(given.json_output, type):
        body["response_format"] = _schema(given.json_output)
    return body


def body_beside(native: Any, api: Api, given: Request) -> dict[str, Any]:
    """The body of something that is asked beside a conversation, with all that its API wants."""
    body = body_of(native, given)[1]
    if api == "anthropic":
        body.setdefault("max_tokens", native._create_args.get("max_tokens", 4096))
        if body.get("tools"):
            body["tool_choice"] = {"type": "auto"}
    return body


def sender(native: Any, api: Api) -> Callable[[dict[str, Any]], Awaitable[Any]]:
    """Sends a body through the SDK under one of AutoGen's own clients."""
    sdk = native._client

    async def send(wanted: dict[str, Any]) -> Any:
        create = sdk.messages.create if api == "anthropic" else sdk.chat.completions.create
        return await create(**sdk_arguments(wanted, create))

    return send
