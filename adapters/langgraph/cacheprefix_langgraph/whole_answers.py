"""A whole answer that is received as a stream, so that waiting siblings start with its first token.

The application asked for a whole answer and gets exactly that: the SDK puts its own stream together, and LangChain's
class reads the result as it reads any other. No callback hears of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_core.outputs import ChatResult

from cacheprefix.adapter import begins

if TYPE_CHECKING:
    from cacheprefix.adapter import Api

_READERS: Mapping[str, tuple[str, ...]] = {
    "openai-chat": ("client", "async_client", "_create_chat_result"),
    "openai-responses": ("root_client", "root_async_client"),
    "anthropic": ("_client", "_async_client", "_format_output"),
}


class UnfinishedError(Exception):
    """The stream did not hold all that a whole answer has."""


class BrokenError(Exception):
    """The stream broke off after it had begun."""


def can_stream(model: Any, api: Api) -> bool:
    """Whether the class has what it takes to receive a whole answer as a stream."""
    needs = _READERS.get(api)
    if needs is None or any(getattr(type(model), name, None) is None and not hasattr(model, name) for name in needs):
        return False
    # Headers belong to the one response of a plain call, and gateways describe themselves in them.
    return not (getattr(model, "include_response_headers", False) or getattr(model, "_uses_gateway", False))


def streamed(model: Any, api: Api, payload: Mapping[str, Any], started: Callable[[], None]) -> ChatResult:
    """The answer to ``payload``; ``started`` is called when it begins.

    Raises what a plain call raises where the provider refuses, ``BrokenError`` where the stream breaks off, and
    ``UnfinishedError`` where something is lacking.
    """
    with _errors(api):
        if api == "anthropic":
            with _anthropic(model._client, payload).stream(**_plain(payload)) as stream:
                with _reading(api):
                    for event in stream:
                        _heard(event, started)
                    message = stream.get_final_message()
                return _of_message(model, payload, message)
        if api == "openai-responses":
            final = None
            with model.root_client.responses.create(**{**payload, "stream": True}) as stream, _reading(api):
                for event in stream:
                    _heard(event, started)
                    final = _finished(event) or final
            return _of_response(model, final)
        state = _state()
        with model.client.create(**_as_stream(payload)) as stream, _reading(api):
            for chunk in stream:
                _heard(chunk, started)
                state.handle_chunk(chunk)
        return _of_completion(model, state)


async def astreamed(model: Any, api: Api, payload: Mapping[str, Any], started: Callable[[], None]) -> ChatResult:
    """``streamed`` for coroutines."""
    with _errors(api):
        if api == "anthropic":
            async with _anthropic(model._async_client, payload).stream(**_plain(payload)) as stream:
                with _reading(api):
                    async for event in stream:
                        _heard(event, started)
                    message = await stream.get_final_message()
                return _of_message(model, payload, message)
        if api == "openai-responses":
            final = None
            async with await model.root_async_client.responses.create(**{**payload, "stream": True}) as stream:
                with _reading(api):
                    async for event in stream:
                        _heard(event, started)
                        final = _finished(event) or final
            return _of_response(model, final)
        state = _state()
        async with await model.async_client.create(**_as_stream(payload)) as stream:
            with _reading(api):
                async for chunk in stream:
                    _heard(chunk, started)
                    state.handle_chunk(chunk)
        return _of_completion(model, state)


class _errors:  # noqa: N801 - a context manager is called like a function
    """LangChain's own errors for those of the SDK, as its classes raise them."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, Exception):
            return
        family = "anthropic" if self._api == "anthropic" else "openai"
        sdk = _sdk(self._api)
        home = import_module(f"langchain_{family}.chat_models{'.base' if family == 'openai' else ''}")
        if isinstance(error, sdk.BadRequestError):
            getattr(home, f"_handle_{family}_bad_request", _nothing)(error)
        elif isinstance(error, sdk.APIError):
            getattr(home, f"_handle_{family}_api_error", _nothing)(error)


@contextmanager
def _reading(api: Api) -> Iterator[None]:
    """What breaks off a stream that has begun: from openai 3 on it is told as a connection that failed before it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, _sdk(api).APIConnectionError):
            raise BrokenError from error
        raise


def _sdk(api: Api) -> Any:
    return import_module("anthropic" if api == "anthropic" else "openai")


def _nothing(_: object) -> None:
    """Releases without a handler of their own raise what the SDK raises."""


def _plain(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in payload.items() if name != "stream"}


def _as_stream(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {**payload, "stream": True, "stream_options": {"include_usage": True}}


def _anthropic(client: Any, payload: Mapping[str, Any]) -> Any:
    return client.beta.messages if "betas" in payload else client.messages


def _of_message(model: Any, payload: Mapping[str, Any], message: Any) -> ChatResult:
    """LangChain's result of a message that Anthropic's SDK put together."""
    # The SDK's streams give a class of their own, with fields that a plain answer has not.
    home, name = ("anthropic.types.beta", "BetaMessage") if "betas" in payload else ("anthropic.types", "Message")
    data = {key: value for key, value in message.to_dict().items() if key != "parsed_output"}
    data["content"] = [{k: v for k, v in block.items() if k != "parsed_output"} for block in data.get("content") or ()]
    result: ChatResult = model._format_output(getattr(import_module(home), name).model_validate(data))
    return result


def _heard(event: Any, started: Callable[[], None]) -> None:
    if begins(event):
        started()


def _finished(event: Any) -> Any:
    """The finished response where the event holds it."""
    return event.response if event.type in ("response.completed", "response.incomplete", "response.failed") else None


def _of_response(model: Any, response: Any) -> ChatResult:
    """LangChain's result of a finished response. Raises ``UnfinishedError`` where there is none."""
    if response is None:
        raise UnfinishedError
    home = import_module("langchain_openai.chat_models.base")
    result: ChatResult = home._construct_lc_result_from_responses_api(
        response, schema=None, metadata={}, output_version=model.output_version
    )
    return result


def _state() -> Any:
    return import_module("openai.lib.streaming.chat").ChatCompletionStreamState()


def _of_completion(model: Any, state: Any) -> ChatResult:
    """LangChain's result of a chat completion that OpenAI's SDK put together.

    Raises ``UnfinishedError`` where it lacks usage or choices. Fields that only streams have are taken out.
    """
    found = state.current_completion_snapshot.to_dict()
    if not found.get("usage") or not found.get("choices"):
        # A plain answer says what it used.
        raise UnfinishedError
    for choice in found["choices"]:
        message = choice["message"]
        message.pop("parsed", None)
        message.setdefault("refusal", None)
        choice.setdefault("logprobs", None)
        for call in message.get("tool_calls") or ():
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    kind = import_module("openai.types.chat").ChatCompletion
    result: ChatResult = model._create_chat_result(kind.model_validate(found), {})
    return result
