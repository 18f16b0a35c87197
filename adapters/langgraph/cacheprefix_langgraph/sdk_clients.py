"""The SDK underneath a chat model: request bodies as the class makes them, sent as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from cacheprefix.adapter import Api
from cacheprefix.errors import SetupError
from cacheprefix.wire import sdk_arguments
from cacheprefix_langgraph.fork_context import Frame
from cacheprefix_langgraph.request_bodies import TRANSPORT, api_of, base_of

if TYPE_CHECKING:
    from cacheprefix.adapter import SummaryRequest


def body_of(model: Any, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Api]:
    """The body of a wrapped model's request, untouched by us, and its wire form.

    Raises ``SetupError`` where the model has no SDK that cacheprefix knows.
    """
    base = base_of(model)
    if not hasattr(base, "_get_request_payload") or _endpoint(model, "openai-chat", later=False) is None:
        raise SetupError(
            f"{base.__name__} has no SDK that cacheprefix knows; side forks work on OpenAI's and Anthropic's, "
            "and forked nodes on every chat model"
        )
    payload = base._get_request_payload(model, list(messages), **kwargs)
    body = {name: value for name, value in payload.items() if name not in TRANSPORT}
    return body, api_of(body, model)


def sender(model: Any, api: Api, *, later: bool = False) -> Callable[[dict[str, Any]], Any]:
    """Sends a body as it is, through the model's own SDK client; a coroutine function with ``later``."""

    def send(body: dict[str, Any]) -> Any:
        create = _endpoint(model, api, later=later, beta=bool(body.get("betas")))
        return create(**sdk_arguments(body, create))

    return send


def summariser(
    model: Any, frame: Frame, kwargs: Mapping[str, Any], *, later: bool = False
) -> Callable[[list[BaseMessage], SummaryRequest], Any]:
    """Asks for a summary by a fork of the request that is about to be compacted, so that its prefix is read.

    What it returns gives the summary's text, and with ``later`` something to await that does.
    """

    def summarise(messages: list[BaseMessage], request: SummaryRequest) -> Any:
        body, api = body_of(model, messages, kwargs)
        forks, send = frame.session.side_forks, sender(model, api, later=later)
        asking: Any = forks.asummary if later else forks.summary
        return asking(body=body, api=api, send=send, conversation=frame.conversation, scope=frame.scope)(request)

    return summarise


def _endpoint(model: Any, api: Api, *, later: bool, beta: bool = False) -> Any:
    """The SDK's function that makes a request; None where the model has none that we know."""
    if "anthropic" in model._llm_type:
        client = getattr(model, "_async_client" if later else "_client", None)
        return None if client is None else (client.beta if beta else client).messages.create
    client = getattr(model, "root_async_client" if later else "root_client", None)
    if client is None:
        return None
    return client.responses.create if api == "openai-responses" else client.chat.completions.create
