"""What a model class is about to send: its own body where the class shows it, else a likeness for measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool

from cacheprefix.adapter import AdapterSession, Api, compacts
from cacheprefix.wire import gemini_sdk_body
from cacheprefix_langgraph.converse import converse_body, converse_of

TRANSPORT = ("stream", "stream_options")
"""Body fields that say how the answer comes; they belong to no prompt."""

BASE = "__cacheprefix_base__"
"""On a wrapped model's class: the class it was made from."""

_ONE_STREAM = ("modalities", "audio", "response_format", "text_format", "prediction")
"""Fields whose answers a stream puts together differently, or not at all."""


_CLASSES = ("response_format", "text_format")
"""Fields that hold a class where the SDK is to parse the answer into it."""


@dataclass(frozen=True, slots=True)
class Body:
    """A request body as far as the class lets us see it."""

    payload: dict[str, Any]
    api: Api
    own: bool
    """Whether it is what goes out, so that it may be marked; a likeness is only measured."""

    @property
    def streamable(self) -> bool:
        """Whether the answer is the same when it is streamed and put together again."""
        return self.payload.get("n") in (None, 1) and not any(self.payload.get(name) for name in _ONE_STREAM)


def base_of(model: Any) -> Any:
    """The class a wrapped model was made from."""
    return getattr(type(model), BASE)


def headers_of(model: Any, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that a request goes out with, as far as the application gives any: to the model, or to the call."""
    return {**(getattr(model, "default_headers", None) or {}), **(payload.get("extra_headers") or {})}


def shows_body(base: type) -> bool:
    """Whether a chat model class makes its body where a subclass, or what stands for its client, can finish it."""
    return hasattr(base, "_get_request_payload") or converse_of(base) is not None


def only_asks(base: type) -> bool:
    """Whether a class's way to a whole answer is LangChain's own.

    An application's may check an answer, ask twice, or write it down: its code runs for each, which goes by no stream.
    """
    ways = [getattr(base, name, None) for name in ("_generate", "_agenerate", "_create", "_acreate")]
    return all(way is None or way.__module__.startswith("langchain_") for way in ways)


def model_name(model: Any) -> str:
    """The model's name; the deployment's, where a class sends none."""
    # Bedrock's inference profiles have names that say nothing of the model behind them.
    names = ("base_model_id", "model_name", "model", "model_id", "deployment_name")
    return str(next((found for name in names if (found := getattr(model, name, None))), ""))


def only_marked(session: AdapterSession, model: Any) -> bool:
    """Whether the model's provider caches only what a request marks."""
    # Bedrock has rules of its own, whichever model it serves.
    rules = session.profile(model_name(model), "bedrock" if "bedrock" in model._llm_type else None)
    return rules.markers is not None and not rules.implicit_breakpoint


def kept_elsewhere(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the provider keeps a part of the prompt: what stands before, or what others will go on from.

    What a fork says at its end would stay for other roles to read.
    """
    options = _fields(model, kwargs)
    chained = any(options.get(name) is not None for name in ("previous_response_id", "conversation"))
    # Anthropic takes no ``instructions`` beside its system text, which a compaction leaves alone.
    compacted = compacted_elsewhere(model, kwargs) and "anthropic" not in model._llm_type
    kept = bool(getattr(model, "use_previous_response_id", False))
    return compacted or chained or kept or cached_elsewhere(model, kwargs)


def cached_elsewhere(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a request goes on from what was cached by name beforehand (Gemini's ``cached_content``)."""
    return bool(kwargs.get("cached_content") or getattr(model, "cached_content", None))


def compacted_elsewhere(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the provider puts the history together, so that others would read there what a fork says at its end."""
    options = _fields(model, kwargs)
    edits = options.get("context_management") or getattr(model, "context_management", None)
    return compacts({**options, "context_management": edits})


def _fields(model: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a request that the class has no setting for; ``extra_body`` is put over the others by the SDK."""
    fields = {**(getattr(model, "model_kwargs", None) or {}), **kwargs}
    return {**fields, **(fields.get("extra_body") or getattr(model, "extra_body", None) or {})}


def hoists(model: Any) -> bool:
    """Whether the class puts a system message in front wherever it stands, as LangChain's for Anthropic and Bedrock do.

    Anthropic's takes one of them alone, so that none of ours may stand beside it.
    """
    if converse_of(type(model)) is not None:
        return True
    profile = getattr(model, "profile", None) or {}
    return "anthropic" in model._llm_type and not profile.get("mid_conversation_system_messages")


def api_of(payload: Mapping[str, Any], model: BaseChatModel) -> Api:
    """The wire form of a payload that a chat model class built."""
    if converse_of(type(model)) is not None:
        return "bedrock"
    if "anthropic" in model._llm_type:
        return "anthropic"
    return "openai-responses" if "input" in payload else "openai-chat"


def own_body(model: Any, messages: Any, stop: Any, kwargs: Mapping[str, Any]) -> Body:
    """The body that the class itself makes. Raises what the class raises."""
    base = base_of(model)
    if converse_of(base) is not None:
        return Body(converse_body(model, base, messages, stop, kwargs), "bedrock", own=True)
    payload: dict[str, Any] = base._get_request_payload(model, messages, stop=stop, **kwargs)
    return Body(payload, api_of(payload, model), own=True)


def likeness(
    session: AdapterSession, model: Any, messages: Sequence[BaseMessage], stop: Any, kwargs: Any
) -> Body | None:
    """A body with the same content as the one that the class keeps to itself; None when even that fails."""
    base = base_of(model)
    if hasattr(base, "_prepare_request") and "google" in model._llm_type:
        found = session.attempt("body", lambda: _gemini(model, base, messages, stop, kwargs), None)
        if found is not None:
            if session.mode != "observe":
                session.note(
                    f"{base.__name__}: its cache takes no marks, so forks share their beginnings and are measured"
                )
            return found
    forks = "its messages become forks, but no breakpoints and no routing key are set, and "
    if session.mode == "observe":
        forks = ""
    elif only_marked(session, model):
        forks = "its requests stay as they are, since nothing is cached without breakpoints, and "
    session.note(
        f"{base.__name__} does not show its request bodies, so {forks}"
        "reads are foreseen from the messages instead of from the body"
    )
    return session.attempt("body", lambda: _generic(model, messages, kwargs), None)


def readable(payload: dict[str, Any], model: Any) -> dict[str, Any]:
    """The payload as JSON has it: with the model's name, which Azure leaves to the address, and schemas of classes.

    An inference profile of Bedrock's stands for the model behind it.
    """
    changed: dict[str, Any] = {name: _schema(payload[name]) for name in _CLASSES if isinstance(payload.get(name), type)}
    if not isinstance(payload.get("model"), str):
        # Bedrock's request may name another one than the model object does.
        asked = payload.get("modelId", getattr(model, "model_id", None))
        changed["model"] = model_name(model) if asked == getattr(model, "model_id", None) else asked
    return {**payload, **changed} if changed else payload


def as_sent(body: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """``body`` with what ``readable`` changed as the class had it."""
    undone = {name: payload[name] for name in _CLASSES if isinstance(payload.get(name), type)}
    if isinstance(payload.get("model"), str):
        return {**body, **undone} if undone or not isinstance(body, dict) else body
    rest = {name: value for name, value in body.items() if name != "model"}
    return {**rest, **undone, **({"model": payload["model"]} if "model" in payload else {})}


def _schema(kind: type) -> dict[str, Any]:
    """The schema of an answer's class, as OpenAI's API takes it."""
    function = convert_to_openai_tool(kind, strict=True)["function"]
    schema = {"name": function["name"], "schema": function["parameters"], "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _gemini(model: Any, base: Any, messages: Sequence[BaseMessage], stop: Any, kwargs: Mapping[str, Any]) -> Body:
    """What LangChain's class for Gemini gives its SDK, in the spelling of Gemini's API."""
    kwargs = {**kwargs, "cached_content": kwargs.get("cached_content") or getattr(model, "cached_content", None)}
    request = base._prepare_request(model, list(messages), stop=stop, **kwargs)
    return Body(gemini_sdk_body(model_name(model), request["contents"], request.get("config")), "gemini", own=False)


def _generic(model: Any, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any]) -> Body:
    """A request in OpenAI's form, for a class that shows none of its own."""
    payload: dict[str, Any] = {"model": model_name(model), "messages": convert_to_openai_messages(list(messages))}
    tools = [_tool(tool) for tool in kwargs.get("tools") or kwargs.get("functions") or []]
    return Body({**payload, "tools": tools} if tools else payload, "openai-chat", own=False)


def _tool(tool: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    if isinstance(tool, Mapping) and tool.get("type") == "function":
        return dict(tool)
    return convert_to_openai_tool(tool)
