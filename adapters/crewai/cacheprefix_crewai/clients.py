"""Requests by the SDK client of a model object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.wire import for_litellm, sdk_arguments

if TYPE_CHECKING:
    from cacheprefix.adapter import Api


def is_claude(llm: Any) -> bool:
    """Whether a model is Anthropic's by way of LiteLLM."""
    return bool(getattr(llm, "is_litellm", False)) and "claude" in str(getattr(llm, "model", "")).lower()


_PASSING_ON = ("crewai.llms.providers.openai.completion", "crewai.llm")
"""The modules whose model classes send what they are given as ``additional_params`` (crewai 1.15.30)."""


def over(llm: Any) -> Mapping[str, Any]:
    """The fields that the application puts over the bodies that a model's class makes, by itself or by its SDK."""
    if not any(base.__module__ in _PASSING_ON for base in type(llm).__mro__):
        return {}
    given = getattr(llm, "additional_params", None) or {}
    behind = given.get("extra_body")
    return {**given, **behind} if isinstance(behind, Mapping) else given


def system_first(body: dict[str, Any]) -> dict[str, Any]:
    """A body for Claude by LiteLLM, its system text in front of the message that CrewAI puts before it.

    CrewAI begins such a body with a user's "." (1.15.30, llm.py). LiteLLM takes the system text out from any place.
    """
    messages = body.get("messages") or []
    lead = next((at for at, one in enumerate(messages) if one.get("role") == "system"), 0)
    # Money: only a system text that leads is marked behind its end, which is where the next role reads up to.
    return {**body, "messages": [messages[lead], *messages[:lead], *messages[lead + 1 :]]} if lead == 1 else body


def sender(llm: Any, api: Api) -> Callable[[dict[str, Any]], Any]:
    """A function that sends a body by the SDK client of a CrewAI model and gives the SDK's answer."""
    if getattr(llm, "is_litellm", False):

        def by_litellm(body: dict[str, Any]) -> Any:
            from litellm import completion  # noqa: PLC0415 - an extra of CrewAI

            return completion(**(for_litellm(body) if is_claude(llm) else body))

        return by_litellm

    def by_client(body: dict[str, Any]) -> Any:
        client = llm._get_sync_client()
        if api == "anthropic":
            # A provider's rule: betas are a header, which the SDK's method for them writes; in a body they are refused.
            create = (client.beta if "betas" in body else client).messages.create
        else:
            create = client.responses.create if api == "openai-responses" else client.chat.completions.create
        return create(**sdk_arguments(body, create))

    return by_client
