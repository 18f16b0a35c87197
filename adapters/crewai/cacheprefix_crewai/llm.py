"""The crew's model objects: their class is replaced by a generated subclass that lays requests out anew.

The object stays the same one, with its settings, clients and counters, and every ``isinstance`` holds.
What the executor keeps (``messages``, task outputs) is not touched: only the request is a fork.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cacheprefix.adapter import BlockVar, RLock, digest_of, dumps
from cacheprefix.wire import gemini_sdk_body, written_by_sdk
from cacheprefix_crewai.azure import as_arguments, as_body
from cacheprefix_crewai.binding import KEY, Binding, Owners, binding_for, owners_of, subclassed
from cacheprefix_crewai.history import limits
from cacheprefix_crewai.native import alternating, gemini_arguments
from cacheprefix_crewai.sending import PendingRequest, halved
from cacheprefix_crewai.task_layout import LLMCall

if TYPE_CHECKING:
    from cacheprefix.adapter import Api

REQUEST: BlockVar[PendingRequest] = BlockVar("cacheprefix_crewai_request")
"""The request that is being sent here."""

_SWAPPING = RLock()
"""Two threads may ask a model that joins with that call."""

_KINDS: Mapping[str, str] = {
    "crewai.llms.providers.openai.completion": "openai",
    "crewai.llms.providers.anthropic.completion": "anthropic",
    "crewai.llms.providers.azure.completion": "azure",
    "crewai.llms.providers.gemini.completion": "gemini",
    "crewai.llms.providers.bedrock.completion": "bedrock",
    "crewai.llm": "litellm",
}
_SENDERS = {
    "gemini": (
        "_handle_completion",
        "_ahandle_completion",
        "_handle_streaming_completion",
        "_ahandle_streaming_completion",
    ),
    "bedrock": (
        "_handle_converse",
        "_ahandle_converse",
        "_handle_streaming_converse",
        "_ahandle_streaming_converse",
    ),
}
"""The methods of classes that make no body of their own, which give their SDK's client what it sends."""
_MAKERS = ("_prepare_completion_params",)
"""The method in which the others make their body."""
_APIS: Mapping[str, Api] = {"anthropic": "anthropic", "gemini": "gemini", "bedrock": "bedrock"}
"""The APIs of kinds of model classes, but for OpenAI's."""
_DEFERRED = 0.25
"""Share of the window above which CrewAI moves a tool result to a file (crewai 1.15.30, base_llm.py)."""
_USAGE = ("_extract_openai_token_usage", "_extract_responses_token_usage", "_extract_anthropic_token_usage")
_AZURE_USAGE = ("_extract_azure_token_usage", "_extract_finish_reason_and_id")
"""The second one sees each chunk of a stream, whose usage the class reads without what was cached."""
_EVENTS = (
    "_emit_call_started_event",
    "_emit_call_completed_event",
    "_handle_emit_call_events",
    "_emit_call_failed_event",
    "_emit_thinking_chunk_event",
)
"""The methods that tell the application of a call."""
_READERS = {"azure": _AZURE_USAGE, "gemini": ("_extract_token_usage",)}


def kind_of(llm: Any) -> str | None:
    """Which of the wire forms that this adapter knows a model object sends; None for any other."""
    for base in type(llm).__mro__:
        kind = _KINDS.get(base.__module__)
        if kind == "azure" and getattr(llm, "api", None) == "responses":
            return None  # asked by a model object of OpenAI's class that nobody else sees
        if kind is not None and all(hasattr(base, name) for name in _SENDERS.get(kind, _MAKERS)):
            return kind
        if base.__module__.startswith("crewai.llms.providers.") and base.__module__ not in _KINDS:
            # A provider that derives from another one (Azure, compatible servers) is its own kind.
            return "openai" if "openai_compatible" in base.__module__ else None
    return None


def swap(llm: Any, binding: Binding) -> bool:
    """Give a model object the class that knows forks. False, with a note, for models of unknown wire form."""
    kind = kind_of(llm)
    if kind is None:
        base = type(llm)
        binding.session.unseen(
            f"{base.__module__}.{base.__qualname__}: requests of this model class are neither changed nor measured"
        )
        return False
    with _SWAPPING:
        owners = owners_of(llm)
        if owners is None:
            owners = vars(llm)[KEY] = Owners()
            own: Any = type(llm)
            object.__setattr__(llm, "__class__", _subclass(own, kind))
        owners.add(binding)
    return True


def unswap(llm: Any, binding: Binding) -> None:
    """Take the class back when no other crew uses the model object."""
    with _SWAPPING:
        owners = owners_of(llm)
        if owners is None:
            return
        owners.discard(binding)
        if not owners.alive:
            del vars(llm)[KEY]
            object.__setattr__(llm, "__class__", type(llm).__mro__[1])


def as_made(llm: Any) -> Any:
    """A model of its own class with an installed one's settings, as it was before; any other model itself."""
    with _SWAPPING:
        if owners_of(llm) is None:
            return llm
        made: Any = object.__new__(type(llm).__mro__[1])
    object.__setattr__(made, "__dict__", {name: value for name, value in vars(llm).items() if name != KEY})
    for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(made, name, getattr(llm, name, None))
    return made


@dataclass(frozen=True, slots=True)
class _Taken:
    """Which arguments a model class's ``call`` or ``acall`` takes: an application's may take fewer than CrewAI's."""

    places: tuple[str, ...]
    """Those by position, in their order."""
    tools: bool
    """Whether it can be given tools that it was not called with."""

    @classmethod
    def by(cls, method: Any) -> _Taken:
        """Those of a method, but for ``self``."""
        taken = [*inspect.signature(method).parameters.values()][1:]
        places = [one.name for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        return cls(tuple(places), any(one.name == "tools" or one.kind is one.VAR_KEYWORD for one in taken))

    def named(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """What came, by name."""
        return {**dict(zip(self.places, given, strict=False)), **named}

    def changed(
        self, request: PendingRequest, given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as they came, but for messages and tools of another layout."""
        places, names = list(given), dict(named)
        for name, value in (("messages", request.messages), ("tools", request.tools)):
            if name in self.places[: len(places)]:
                places[self.places.index(name)] = value
            elif name in names or name == "messages" or (value is not None and self.tools):
                names[name] = value
        return tuple(places), names


def _schema_of(llm: Any, model: Any) -> str:
    """A name of an answer's schema, where the model's class sends it beside the messages; else empty."""
    if kind_of(llm) not in ("openai", "anthropic") or not callable(getattr(model, "model_json_schema", None)):
        return ""
    return digest_of(str(model.__name__), dumps(model.model_json_schema(), "response_model").decode())


def _open(llm: Any, asked: Mapping[str, Any]) -> PendingRequest | None:
    """A call's request, laid out; None where the class is to send it as it is."""
    entered = ENTERED.get()
    if entered is not None and entered.llm is llm:
        entered.reached = True
        whose = {name: entered.asked.get(name) for name in ("from_task", "from_agent")}
        asked = {**asked, **{name: one for name, one in whose.items() if one is not None}}
    call = LLMCall(
        llm,
        asked.get("messages"),
        asked.get("tools"),
        asked.get("from_task"),
        asked.get("from_agent"),
        asked.get("response_model"),
    )
    current = REQUEST.get()
    if current is not None and current.messages is call.messages:
        return None  # the class repeats a request of its own, which is laid out already
    binding = binding_for(llm, call.agent)
    if binding is None:
        return None
    schema = binding.session.attempt("layout", lambda: _schema_of(llm, call.response_model), "")
    return PendingRequest.opened(binding, replace(call, schema=schema) if schema else call)


@contextmanager
def _sending(request: PendingRequest) -> Iterator[None]:
    """The class's own methods find the request here; what they raise ends it."""
    token = REQUEST.set(request)
    try:
        yield
    except BaseException:
        request.failed()
        raise
    finally:
        REQUEST.reset(token)


@functools.lru_cache(maxsize=64)
def _subclass(base: Any, kind: str) -> Any:
    """A model class of CrewAI's, or an application's own of it, that knows forks."""
    methods = _making(base, kind) | _telling(base, kind) | _bounding(base)
    crewais = next(one for one in base.__mro__ if one.__module__.split(".")[0] == "crewai")
    before = base.__mro__[: base.__mro__.index(crewais)]
    own = {name for name in ("call", "acall") if any(name in vars(one) for one in before)}
    if not own:
        return subclassed(base, asking_methods(base) | methods)
    # Privacy: the application's own ``call`` may take something out by where it stands, so that it is given what it was
    # without us, and the layout goes by what it passes on.
    entering = {name: method for name, method in _entering(base).items() if name in own}
    return subclassed(base, entering | methods, subclassed(crewais, asking_methods(crewais)))


@dataclass(slots=True)
class _Entered:
    """A call that has come to an application's own ``call``."""

    llm: Any
    asked: Mapping[str, Any]
    """What came, by name: it may pass on less."""
    reached: bool = False
    """Whether it came to CrewAI's."""

    def over(self) -> None:
        """It has answered: where CrewAI's class was not asked, nobody has seen what was."""
        binding = None if self.reached else binding_for(self.llm, self.asked.get("from_agent"))
        if binding is not None:
            kind = type(self.llm).__mro__[1]
            binding.session.unseen(
                f"{kind.__module__}.{kind.__qualname__}: its own call answers without CrewAI's; what it asks then is "
                "neither changed nor measured"
            )


ENTERED: BlockVar[_Entered] = BlockVar("cacheprefix_crewai_entered")
"""The call that an application's own ``call`` is answering here."""


def _entering(base: Any) -> dict[str, Any]:
    """An application's own ``call`` and ``acall`` as they are; CrewAI's behind them finds whose request it is."""
    taken, ataken = _Taken.by(base.call), _Taken.by(base.acall)

    @functools.wraps(base.call)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        entered = _Entered(self, taken.named(given, named))
        with ENTERED.within(entered):
            result = base.call(self, *given, **named)
        entered.over()
        return result

    @functools.wraps(base.acall)
    async def acall(self: Any, *given: Any, **named: Any) -> Any:
        entered = _Entered(self, ataken.named(given, named))
        with ENTERED.within(entered):
            result = await base.acall(self, *given, **named)
        entered.over()
        return result

    return {"call": call, "acall": acall}


def asking_methods(base: Any) -> dict[str, Any]:
    """``call`` and ``acall``: each lays its request out, and asks again where a tool was called that is not offered."""
    taken, ataken = _Taken.by(base.call), _Taken.by(base.acall)

    @functools.wraps(base.call)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        request = _open(self, taken.named(given, named))
        if request is None:
            return base.call(self, *given, **named)
        request.enter()
        while True:
            try:
                with _sending(request):
                    places, names = taken.changed(request, given, named)
                    result = base.call(self, *places, **names)
            except Exception:
                again = request.without_list()
                if again is None:
                    raise
            else:
                request.answered(result)
                again = request.refused(result)
                if again is None:
                    return result
            request = again

    @functools.wraps(base.acall)
    async def acall(self: Any, *given: Any, **named: Any) -> Any:
        request = _open(self, ataken.named(given, named))
        if request is None:
            return await base.acall(self, *given, **named)
        await request.aenter()
        while True:
            try:
                with _sending(request):
                    places, names = ataken.changed(request, given, named)
                    result = await base.acall(self, *places, **names)
            except Exception:
                again = request.without_list()
                if again is None:
                    raise
            else:
                request.answered(result)
                again = request.refused(result)
                if again is None:
                    return result
            request = again

    return {"call": call, "acall": acall}


def _making(base: Any, kind: str) -> dict[str, Any]:
    """The methods that make a request's body, or what an SDK makes it of: the request under way begins in them."""

    def begun(self: Any, params: Any, api: Api, functions: Any = None) -> Any:
        request = REQUEST.get()
        if request is None or request.call.llm is not self or not isinstance(params, dict):
            return params
        return request.begin(params, api, functools.partial(_body, base, kind, self, api, functions))

    def _prepare_completion_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = base._prepare_completion_params(self, *args, **kwargs)
        if kind == "azure":
            body = as_body(params, self.model)
            return as_arguments(params, body, begun(self, body, "openai-chat"))
        # Anthropic's class words ``tool_choice`` by it.
        functions = kwargs.get("available_functions", args[3] if len(args) > 3 else None)
        return begun(self, params, "anthropic" if kind == "anthropic" else "openai-chat", functions)

    def _prepare_responses_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = base._prepare_responses_params(self, *args, **kwargs)
        # Reasoning that the model goes on from (``auto_chain_reasoning``) stands there as objects of the SDK's.
        body = written_by_sdk(params, {}, prepares=False).plain
        if body is None:
            return params  # the SDK refuses it
        sent = begun(self, body, "openai-responses")
        return params if sent is body else sent

    def native(self: Any, said: Any, rest: Any) -> tuple[Any, Any]:
        """The arguments of a class that makes no body, as they are to be sent; the very same without a request."""
        request = REQUEST.get()
        if request is None or request.call.llm is not self:
            return said, rest
        if kind == "bedrock":
            body = {"modelId": self.model_id, "messages": alternating(said) if request.forked else said, **rest}
            sent = begun(self, body, "bedrock")
            return sent["messages"], {name: sent[name] for name in sent if name not in ("modelId", "messages")}
        attempt = request.binding.session.attempt
        body = attempt("body", lambda: gemini_sdk_body(self.model, said, rest), {})
        if not body:
            return said, rest
        sent = begun(self, body, "gemini")
        return attempt("body", lambda: gemini_arguments(said, rest, body, sent), (said, rest))

    made = _known_to(base, _prepare_completion_params, _prepare_responses_params)
    return made | {name: _sending_method(getattr(base, name), native) for name in _SENDERS.get(kind, ())}


def _body(base: Any, kind: str, llm: Any, api: Api, functions: Any, messages: Any, tools: Any) -> Any:
    """The body that a model's class makes of messages and tools, in the shape of its API."""
    if api == "openai-responses":
        params = base._prepare_responses_params(llm, base._format_messages(llm, messages), tools)
        return written_by_sdk(params, {}, prepares=False).plain
    if kind == "openai":
        return base._prepare_completion_params(llm, base._format_messages(llm, messages), tools)
    if kind == "azure":
        formatted = base._format_messages_for_azure(llm, messages)
        return as_body(base._prepare_completion_params(llm, formatted, tools), llm.model)
    if kind == "anthropic":
        formatted, system = base._format_messages_for_anthropic(llm, messages)
        return base._prepare_completion_params(llm, formatted, system, tools, functions)
    if kind == "gemini":
        contents, system = base._format_messages_for_gemini(llm, messages)
        return gemini_sdk_body(llm.model, contents, base._prepare_generation_config(llm, system, tools, None))
    if kind == "bedrock":
        said, system = base._format_messages_for_converse(llm, messages)
        body = {"modelId": llm.model_id, "messages": said}
        body |= {"system": [{"text": system}]} if system else {}
        return {**body, "toolConfig": {"tools": base._format_tools_for_converse(tools)}} if tools else body
    return base._prepare_completion_params(llm, messages, tools, True)  # noqa: FBT003 - as the class itself does


def begin_unsent(request: PendingRequest) -> None:
    """Begin a request whose body is made as its model's class does, but is not sent: for a preview."""
    llm, kind = request.call.llm, kind_of(request.call.llm) or ""
    api: Api = _APIS.get(kind, "openai-chat")
    if getattr(llm, "api", None) == "responses":
        api = "openai-responses"
    make = functools.partial(_body, type(llm).__mro__[1], kind, llm, api, None)
    body = make(request.messages, request.tools)
    if kind == "bedrock" and request.forked:
        body["messages"] = alternating(body["messages"])
    request.begin(body, api, make)


def _telling(base: Any, kind: str) -> dict[str, Any]:
    """The methods in which an answer is told of: its usage, and when it begins."""

    def _track_token_usage_internal(self: Any, usage_data: Any) -> Any:
        request = REQUEST.get()
        if request is not None:
            request.reported(usage_data, exact=kind in ("litellm", "bedrock"))
        told = base._track_token_usage_internal(self, usage_data)
        if request is not None and request.tries and request.call.llm is self:
            # The tokens are on the bill; the application has asked once.
            self._token_usage["successful_requests"] -= 1
        return told

    def _emit_stream_chunk_event(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = REQUEST.get()
        if request is not None:
            request.first_token()
        return _emitted(base._emit_stream_chunk_event, self, args, kwargs)

    readers = {name: _watched(base, name) for name in _READERS.get(kind, _USAGE) if hasattr(base, name)}
    telling = {name: _telling_once(getattr(base, name)) for name in _EVENTS if hasattr(base, name)}
    return _known_to(base, _track_token_usage_internal, _emit_stream_chunk_event) | readers | telling


def _telling_once(method: Any) -> Any:
    """A method that emits one of CrewAI's events; see ``_emitted``."""

    @functools.wraps(method)
    def told(self: Any, *given: Any, **named: Any) -> Any:
        return _emitted(method, self, given, named)

    return told


def _emitted(method: Any, llm: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Emit an event of a request as one of the application's call: what was refused and asked again is in none."""
    request = REQUEST.get()
    if request is None or request.call.llm is not llm:
        return method(llm, *given, **named)
    from crewai.llms import base_llm  # noqa: PLC0415 - CrewAI loads slowly

    here: Any = getattr(base_llm, "_current_call_id", None)  # internal, and may be absent
    if method.__name__ == "_emit_call_started_event":
        if request.tries:
            return None
        request.call_id = None if here is None else here.get()
    else:
        piece = named.get("tool_call")
        if request.refuses([piece] if piece else named.get("response", given[0] if given else None)):
            return None
    if here is None or not request.tries:
        return method(llm, *given, **named)
    token = here.set(request.call_id)
    try:
        return method(llm, *given, **named)
    finally:
        here.reset(token)


def _bounding(base: Any) -> dict[str, Any]:
    """The methods by which CrewAI shortens a history, or a tool result: where the session does that, it need not."""

    def is_context_window_overflowing_threshold(
        self: Any, messages: Any, tools: Any = None, response_model: Any = None
    ) -> Any:
        # CrewAI would upload the history once more, to have it counted.
        if _bounding_binding(self) is not None:
            return False
        return base.is_context_window_overflowing_threshold(self, messages, tools, response_model)

    def is_tool_result_overflowing_threshold(self: Any, tool_result: Any) -> Any:
        binding = binding_for(self, None)
        if binding is None or not binding.rewrites or binding.session.histories.budget is None:
            return base.is_tool_result_overflowing_threshold(self, tool_result)
        tokens = binding.session.count(str(tool_result), str(self.model))
        return tokens > self.get_context_window_size() * _DEFERRED, tokens

    def summarize_messages(self: Any, messages: Any, callbacks: Any, verbose: Any = True) -> Any:  # noqa: FBT002
        binding = _bounding_binding(self)
        if binding is not None and binding.session.attempt(
            "compaction", lambda: halved(binding, LLMCall(self, messages)), otherwise=False
        ):
            return None
        return base.summarize_messages(self, messages, callbacks, verbose)

    made = _known_to(base, is_context_window_overflowing_threshold, summarize_messages)
    counting = getattr(base, "is_tool_result_overflowing_threshold", None)
    if "tuple" in str(getattr(counting, "__annotations__", {}).get("return")):  # another version answers otherwise
        made |= _known_to(base, is_tool_result_overflowing_threshold)
    return made


def _known_to(base: Any, *functions: Callable[..., Any]) -> dict[str, Any]:
    """Those of the functions, by name, that replace a method of the class; another version may lack some."""
    return {function.__name__: function for function in functions if hasattr(base, function.__name__)}


def _sending_method(method: Any, native: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Any:
    """A method that sends its first two arguments, with those that ``native`` gives in their place."""
    first, second = list(inspect.signature(method).parameters)[1:3]

    def changed(self: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        by_name = {**dict(zip((first, second), given, strict=False)), **named}
        sent = native(self, by_name.pop(first), by_name.pop(second))
        return (*sent, *given[2:]), by_name

    def run(self: Any, *given: Any, **named: Any) -> Any:
        places, names = changed(self, given, named)
        return method(self, *places, **names)

    async def arun(self: Any, *given: Any, **named: Any) -> Any:
        places, names = changed(self, given, named)
        return await method(self, *places, **names)

    return functools.wraps(method)(arun if inspect.iscoroutinefunction(method) else run)


def _bounding_binding(llm: Any) -> Binding | None:
    """The installation whose session bounds the histories of this model's requests; None where none does."""
    binding = binding_for(llm, None)
    return binding if binding is not None and binding.rewrites and limits(binding.session) else None


def _watched(base: type, name: str) -> Any:
    """CrewAI's reader of a response's usage; the provider's own object is kept on the way."""

    def read(*given: Any) -> Any:
        request = REQUEST.get()
        if request is not None:
            usage = getattr(given[-1], "usage", None)
            dump = getattr(usage, "as_dict", None)
            counted = getattr(given[-1], "usage_metadata", None)
            if counted is not None:  # Gemini's, in the spelling of its API
                usage = counted.model_dump(mode="json", by_alias=True, exclude_none=True)
            request.reported(dump() if callable(dump) else usage, exact=True)
        return getattr(base, name)(*given)

    return staticmethod(read) if isinstance(inspect.getattr_static(base, name), staticmethod) else read
