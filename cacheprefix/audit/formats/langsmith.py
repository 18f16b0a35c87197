"""LangSmith run exports: one run a line, an array of runs, or ``{"runs": [...]}``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cacheprefix.audit.formats.messages import first_text, from_langchain, mapping
from cacheprefix.audit.log_records import Record, seconds, text_or_empty
from cacheprefix.errors import BodyError
from cacheprefix.prompt import Api

_MODEL_FIELDS = ("model", "model_name", "model_id", "model_deployment_name")
_NO_SETTINGS = frozenset({"_type", "stop", "stream", "streaming", "stream_options", "n", "messages", "input"})


def recognises(value: Mapping[str, Any]) -> bool:
    """Whether this is a run, or a list of runs in its envelope."""
    return "run_type" in value or isinstance(value.get("runs"), list)


def read(value: Mapping[str, Any]) -> Iterator[Record]:
    """A record for every run of type ``llm``; chains and tools are none."""
    runs = value["runs"] if isinstance(value.get("runs"), list) else [value]
    for index, run in enumerate(runs):
        if not isinstance(run, Mapping):
            raise BodyError(f"runs[{index}]", f"expected an object, found {type(run).__name__}")
        if run.get("run_type") == "llm":
            yield _record(run)


def _record(run: Mapping[str, Any]) -> Record:
    """The request of one run: its body as sent, or as LangChain tells messages and parameters."""
    extra = mapping(run.get("extra"))
    parameters = mapping(extra.get("invocation_params"))
    metadata = {**mapping(run.get("metadata")), **mapping(extra.get("metadata"))}
    inputs = mapping(run.get("inputs"))
    model = first_text(
        [
            *(parameters.get(name) for name in _MODEL_FIELDS),
            metadata.get("ls_model_name"),
            *(inputs.get(name) for name in _MODEL_FIELDS),
        ]
    )
    # What wrap_openai records as inputs is the body itself; LangChain keeps all but the messages in the parameters.
    fields = {
        name: value
        for name, value in {**inputs, **parameters}.items()
        if name not in _NO_SETTINGS and name not in _MODEL_FIELDS and not name.startswith("_") and name != "prompts"
    }
    provider = first_text((metadata.get("ls_provider"),))
    api: Api = "openai-chat"
    if "model" in inputs and "messages" not in inputs and isinstance(inputs.get("input"), (list, str)):
        api, body = "openai-responses", {"input": inputs["input"], **fields}
    elif provider == "anthropic" and "max_tokens" in inputs and _of_the_wire(inputs.get("messages")):
        api, body = "anthropic", {**_unfolded(inputs["messages"]), **fields}
    else:
        messages = _messages(inputs)
        body = {} if messages is None else {"messages": messages, **fields}
    return Record(
        body={"model": model, **body} if body else None,
        api=api,
        model=model,
        provider=provider or None,
        wire=api != "openai-chat",
        ts=seconds(run.get("start_time"), "start_time"),
        session=first_text(
            [
                *(metadata.get(name) for name in ("thread_id", "session_id", "conversation_id")),
                text_or_empty(run.get("trace_id")),
                text_or_empty(run.get("id")),
            ]
        ),
        agent=first_text(metadata.get(name) for name in ("agent_name", "lc_agent_name", "langgraph_node")),
        usage=_usage(mapping(run.get("outputs")), metadata, run),
        response_id=text_or_empty(mapping(run.get("outputs")).get("id")),
        response_started_ts=_first_token(run),
        response_ended_ts=seconds(run.get("end_time"), "end_time"),
        failed=bool(run.get("error")),
    )


def _of_the_wire(messages: Any) -> bool:
    return isinstance(messages, list) and all(isinstance(one, Mapping) and "role" in one for one in messages)


def _unfolded(messages: list[Any]) -> dict[str, Any]:
    """What ``wrap_anthropic`` folds into one list: the system prompt, and the messages behind it."""
    if messages and messages[0]["role"] == "system":
        return {"system": messages[0].get("content"), "messages": messages[1:]}
    return {"messages": messages}


def _messages(inputs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a run, in OpenAI's form, whatever key its inputs have them under; None where there are none."""
    given = inputs.get("messages", inputs.get("input"))
    if given is None and inputs.get("prompts"):
        prompts = inputs["prompts"]
        given = [{"role": "user", "content": prompts[0] if isinstance(prompts, list) else prompts}]
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if given is None:
        return None
    if not isinstance(given, list):
        raise BodyError("inputs.messages", f"expected a list, found {type(given).__name__}")
    # A chat model's run holds a batch of conversations; LangChain makes one run for each.
    rows = given[0] if given and isinstance(given[0], list) and not _is_pair(given[0]) else given
    return [from_langchain(message, f"inputs.messages[{index}]") for index, message in enumerate(rows)]


def _is_pair(value: list[Any]) -> bool:
    return len(value) == 2 and all(isinstance(part, str) for part in value)


def _usage(outputs: Mapping[str, Any], metadata: Mapping[str, Any], run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The usage of a run, from whichever of its outputs and metadata holds one; None where none does."""
    generations = outputs.get("generations")
    message: Any = generations
    while isinstance(message, list) and message:
        message = message[0]
    said = mapping(mapping(message).get("message"))
    kwargs = mapping(said.get("kwargs")) or said
    model_output = mapping(outputs.get("llm_output"))
    candidates = (
        kwargs.get("usage_metadata"),
        outputs.get("usage_metadata"),
        outputs.get("usage"),
        model_output.get("token_usage"),
        model_output.get("usage"),
        metadata.get("usage_metadata"),
        run.get("usage_metadata"),
    )
    usage = next((found for found in candidates if isinstance(found, Mapping) and found), None)
    if usage is None and run.get("prompt_tokens"):
        # An export without outputs still has the run's sums.
        usage = {"input_tokens": run["prompt_tokens"], "output_tokens": run.get("completion_tokens")}
        details = run.get("prompt_token_details")
        return {**usage, "input_token_details": details} if isinstance(details, Mapping) else usage
    if usage is not None and metadata.get("ls_provider") == "anthropic" and "input_tokens" in usage:
        # ``wrap_anthropic`` leaves counts of nothing out (langsmith 0.14.17).
        return {**usage, "input_token_details": {"cache_read": 0, **mapping(usage.get("input_token_details"))}}
    return usage


def _first_token(run: Mapping[str, Any]) -> float | None:
    if run.get("first_token_time") is not None:
        return seconds(run["first_token_time"], "first_token_time")
    for event in run.get("events") or []:
        if isinstance(event, Mapping) and event.get("name") == "new_token":
            return seconds(event.get("time"), "events.time")
    return None
