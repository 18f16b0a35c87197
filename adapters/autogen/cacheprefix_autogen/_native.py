"""The request as the application's own client would have sent it, without sending it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
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

from cacheprefix.prompt import Api


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
    return "anthropic" if hasattr(client, "_last_used_tools") else None


def model_of(client: Any) -> str:
    """The model's name as it goes out."""
    args = getattr(client, "_create_args", None)
    return str(args.get("model", "")) if isinstance(args, Mapping) else ""


def body_of(
    client: ChatCompletionClient,
    messages: Sequence[LLMMessage],
    tools: Sequence[Tool | ToolSchema],
    tool_choice: Any,
    json_output: Any,
    extra: Mapping[str, Any],
) -> tuple[Api, dict[str, Any]]:
    """API form and body; a plain rendering for clients whose wire form is not known."""
    api = api_of(client)
    given = _unshared(messages)
    if api == "openai-chat":
        made = client._process_create_args(given, tools, tool_choice, json_output, extra)  # type: ignore[attr-defined]
        body = {**made.create_args, "messages": list(made.messages)}
        if made.tools:
            body["tools"] = list(made.tools)
        if made.response_format is not None:
            body["response_format"] = _schema(made.response_format)
        return api, body
    if api == "anthropic":
        return api, _anthropic(client, given, tools, extra)
    return "openai-chat", _plain(client, given, tools, json_output)


def _unshared(messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """AutoGen's clients strip the last assistant message in place; that one is copied."""
    given = list(messages)
    if given and isinstance(given[-1], AssistantMessage):
        given[-1] = copy.copy(given[-1])
    return given


def _schema(output: type[BaseModel]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": output.__name__, "schema": output.model_json_schema()}}


def _anthropic(
    client: Any, messages: Sequence[LLMMessage], tools: Sequence[Tool | ToolSchema], extra: Mapping[str, Any]
) -> dict[str, Any]:
    from autogen_ext.models.anthropic import _anthropic_client as native  # noqa: PLC0415 - an extra of AutoGen

    merged = client._merge_system_messages(messages)
    body: dict[str, Any] = {"model": model_of(client), "messages": []}
    for message in merged:
        form = native.to_anthropic_type(message)
        if isinstance(message, SystemMessage):
            body["system"] = form
        else:
            body["messages"].extend(form if isinstance(form, list) else [form])
    body["messages"] = [_dumped(message) for message in body["messages"]]
    has_results = any(isinstance(message, FunctionExecutionResultMessage) for message in merged)
    converted = native.convert_tools(tools) if tools else (client._last_used_tools if has_results else [])
    if converted:
        body["tools"] = list(converted)
    thinking = extra.get("thinking") or client._create_args.get("thinking")
    if thinking:
        body["thinking"] = thinking
    return body


def _dumped(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list):
        content = [block.model_dump(exclude_none=True) if isinstance(block, BaseModel) else block for block in content]
    return {**message, "content": content}


def _role(message: LLMMessage) -> str:
    if isinstance(message, SystemMessage):
        return "system"
    return "user" if isinstance(message, UserMessage) else "assistant"


def _plain(
    client: Any,
    messages: Sequence[LLMMessage],
    tools: Sequence[Tool | ToolSchema],
    json_output: Any,
) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model_of(client), "messages": []}
    for message in messages:
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
    if tools:
        body["tools"] = [{"type": "function", "function": dict(schema_of(tool))} for tool in tools]
    if isinstance(json_output, type):
        body["response_format"] = _schema(json_output)
    return body
