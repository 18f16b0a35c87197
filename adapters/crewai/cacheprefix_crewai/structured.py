"""Requests for an answer by a schema that CrewAI has the library ``instructor`` send, past the model's class.

So it asks for an ``output_json`` that an agent's text does not hold, and by LiteLLM for every ``response_model``: one
message in place of the conversation, a tool of its own, and again where the answer does not fit. None of these requests
is changed; all are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from cacheprefix_crewai.binding import WhileUsed, binding_for, owners_of, replaced_method
from cacheprefix_crewai.llm import REQUEST, kind_of
from cacheprefix_crewai.sending import PendingRequest
from cacheprefix_crewai.task_layout import LLMCall

if TYPE_CHECKING:
    from cacheprefix.adapter import Api

T = TypeVar("T")
_APIS: Mapping[str, Api] = {"litellm": "openai-chat", "openai": "openai-chat", "anthropic": "anthropic"}


def _watch() -> list[Callable[[], object]]:
    """Have what sends such requests tell of each."""
    from crewai.utilities.internal_instructor import InternalInstructor  # noqa: PLC0415 - CrewAI loads slowly

    name = "to_pydantic"
    return [replaced_method(InternalInstructor, name, _telling)] if hasattr(InternalInstructor, name) else []


WATCH_STRUCTURED = WhileUsed(_watch)
"""As long as anything is installed."""


def _telling(method: Any) -> Any:
    """The method that sends, which tells the installation whose model is asked."""

    def to_pydantic(self: Any) -> Any:
        asked = _of(self)
        client: Any = getattr(self, "_client", None)
        if asked is None or not callable(getattr(client, "on", None)):
            return method(self)
        attempts = _Attempts(*asked)
        heard = (
            ("completion:kwargs", attempts.sent),
            ("completion:response", attempts.answered),
            ("completion:error", attempts.failed),
        )
        for event, hears in heard:
            client.on(event, hears)
        try:
            return method(self)
        finally:
            # It may be asked again, and would be counted twice.
            for event, hears in heard:
                client.off(event, hears)

    return to_pydantic


def _of(structured: Any) -> tuple[PendingRequest, Api] | None:
    """The request that is made anew here, and its API; None where no installation's model is asked."""
    llm = structured.llm
    if owners_of(llm) is None:
        return None
    current = REQUEST.get()
    binding = binding_for(llm, None) if current is None else current.binding
    if binding is None:
        return None
    api = _APIS.get(kind_of(llm) or "")
    if api is None:
        binding.session.unseen("answers by a schema that CrewAI asks for past its model's class are not measured")
        return None
    if current is not None and current.call.llm is llm:
        return current, api
    call = LLMCall(llm, [{"role": "user", "content": structured.content}], response_model=structured.model)
    found = binding.session.attempt("layout", lambda: PendingRequest.opened(binding, call), None)
    return None if found is None else (found, api)


class _Attempts:
    """The requests for one answer: another one follows where an answer does not fit."""

    def __init__(self, request: PendingRequest, api: Api) -> None:
        self._made = request
        self._api = api
        self._request: PendingRequest | None = None

    # Fail open: what fails in a hook, ``instructor`` would tell the application as a warning.

    def sent(self, *_: Any, **body: Any) -> None:
        """A request goes out."""
        self._request = self._attempt(lambda: self._made.made_anew(body, self._api))

    def answered(self, response: Any) -> None:
        """Its answer is here."""

        def counted(request: PendingRequest) -> None:
            request.reported(getattr(response, "usage", None), exact=True)
            request.answered(None)

        self._hears(counted)

    def failed(self, *_: Any, **__: Any) -> None:
        """There is none."""
        self._hears(PendingRequest.failed)

    def _hears(self, work: Callable[[PendingRequest], None]) -> None:
        request = self._request
        if request is not None:
            self._attempt(lambda: work(request))

    def _attempt(self, work: Callable[[], T]) -> T | None:
        return self._made.binding.session.attempt("structured answer", work, None)
