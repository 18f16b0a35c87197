"""One request between CrewAI's call and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cacheprefix.layout import VolatileRole, Worth, with_volatile
from cacheprefix.prompt import Api, Prompt
from cacheprefix_crewai.events import announce
from cacheprefix_crewai.fork_context import Frame, unmarked, volatile_text
from cacheprefix_crewai.history import Execution, condensed, limits
from cacheprefix_crewai.tools import Offer, foreign_call, name_of, offer, rules_for, with_choice

if TYPE_CHECKING:
    from cacheprefix import Conversation
    from cacheprefix.layout import Pass
    from cacheprefix.session import PendingCall
    from cacheprefix_crewai.binding import Binding

_MARK = "prompt_cache_breakpoint"
_REFUSAL = (
    "Tools are not available here: none of your calls was run. Answer now, in text, with what you know already."
)


@dataclass
class Sending:
    """What is sent, what it was, and what came of it."""

    binding: Binding
    llm: Any
    messages: Any
    tools: Any
    given: Any
    """The application's messages (with what they leave to the session to say) and, in ``given_tools``, its tools."""
    given_tools: Any
    agent: str
    task: str
    from_agent: Any = None
    from_task: Any = None
    frame: Frame | None = None
    offer: Offer | None = None
    executor: bool = False
    """Whether an agent's executor asks; helpers are measured and left alone."""
    execution: Execution | None = None
    """The run of the task that asks; None for helpers."""
    volatile: str = ""
    key: bytes = b""
    passed: Pass | None = None
    turn: PendingCall | None = None
    usage: Any = None
    tried: bool = False
    undone: bool = False
    """Whether the application's own request has taken the place of the one laid out, which could not be begun."""

    @classmethod
    def opened(
        cls,
        binding: Binding,
        llm: Any,
        messages: Any,
        tools: Any,
        from_task: Any,
        from_agent: Any,
        response_model: Any,
    ) -> Sending | None:
        """The request in its frame's layout; as it is when it has none, and when laying out fails."""
        session = binding.session
        agent = str(getattr(from_agent, "role", "") or "").strip()
        task = getattr(from_task, "name", None) or getattr(from_task, "description", None) or ""
        plain = cls(
            binding, llm, messages, tools, messages, tools, agent or "crewai", str(task)[:60], from_agent, from_task
        )
        if not isinstance(messages, list):
            return plain
        model = str(getattr(llm, "model", ""))
        frame = session.attempt(
            "layout", lambda: binding.frame(model, messages, tools, from_agent, from_task), None
        )
        if frame is None:
            from cacheprefix_crewai.binding import asks_for  # noqa: PLC0415 - the two modules know each other

            if from_agent is not None or asks_for(llm, binding):
                return plain
            newest = binding.newest
            if newest is None or newest.llm is not llm or not _repeats(messages, newest.answer):
                return None
            # CrewAI asks again for the agent's answer in another form, and names nobody.
            return replace(plain, agent=newest.agent)
        plain.frame, plain.agent, plain.task, plain.executor = frame, frame.role, frame.task, True
        first = len(messages) <= frame.opening.rest
        plain.execution = session.attempt(
            "layout", lambda: binding.execution(frame.opening.digest, from_agent, first=first), None
        )
        if not binding.rewrites:
            return plain
        if response_model is not None:
            plain.messages = _clean(plain, messages)
            return plain
        if not frame.forked:
            plain.given = frame.own(messages)
            plain.messages = _clean(plain, plain.given)
            return plain._bounded(model, frame.own_head)
        laid = session.attempt("layout", lambda: plain._laid_out(model, messages, tools, from_agent), plain)
        return laid._bounded(model, frame.opening.rest if laid is plain else frame.head)

    def _laid_out(self, model: str, messages: Sequence[Any], tools: Any, from_agent: Any) -> Sending:
        frame = self.frame
        assert frame is not None
        session = self.binding.session
        offered = frame.offer
        if from_agent is None and not tools and offered.tools:
            # The forced final answer: CrewAI drops the tools, which would change the request from its start.
            safe = session.profile(model).tool_choice_safe != "keep"
            offered = replace(offered, choice=() if safe else None, forbidden=True)
        elif [name_of(tool) for tool in tools or ()] != [name_of(tool) for tool in frame.tools or ()]:
            found = offer(session, rules_for(session, model, self.llm), tools)
            offered = found if found is not None else Offer(list(tools) if tools else None)
        laid = replace(self, messages=frame.messages(messages), tools=offered.tools, offer=offered)
        laid.messages = self.binding.shortened(laid.messages, model)
        laid.key = frame.key + model.encode() + b"".join(name_of(tool).encode() for tool in offered.tools or ())
        return laid

    def _bounded(self, model: str, head: int) -> Sending:
        """This request within the session's limits, with what is volatile. Raises ``BudgetError`` as they do."""
        session, execution = self.binding.session, self.execution
        self.volatile = volatile_text(session, self.binding.options.volatile)
        if execution is not None and limits(session):
            beside = session.count(self.volatile, model) if self.volatile else 0
            self.messages = condensed(session, execution, self.messages, head, self.tools, model, beside)
        return self

    # ------------------------------------------------------------------ the gate

    def enter(self) -> None:
        """Wait for the one that writes the shared part, when several start on it together."""
        worth = self._worth()
        if worth is not None:
            self.passed = self.binding.session.attempt("gate", lambda: self.binding.enter(self.key, worth), None)

    async def aenter(self) -> None:
        """``enter`` without blocking the event loop."""
        worth = self._worth()
        if worth is not None:
            self.passed = await self.binding.aenter(self.key, worth)

    def _worth(self) -> Worth | None:
        """What waiting for the shared part gains; None where it is warm or small."""
        session, frame, llm = self.binding.session, self.frame, self.llm
        if frame is None or not self.key or self.binding.is_warm(self.key):
            return None
        model, kind = str(getattr(llm, "model", "")), self._api

        def found() -> Worth | None:
            shared = [frame.system, *(piece.block for piece in frame.log), *map(str, self.tools or ())]
            cold = sum(session.count(text, model) for text in shared)
            return session.worth(model, kind, cold=cold, streams=bool(getattr(llm, "stream", False)))

        return session.attempt("gate", found, None)

    @property
    def _api(self) -> Api:
        """The wire form that the model's class most likely speaks, before it has made a body."""
        return "anthropic" if "anthropic" in type(self.llm).__module__ else "openai-chat"

    def _release(self, *, ok: bool) -> None:
        ok = ok and not self.undone
        if ok and self.key:
            self.binding.warmed(self.key)
        if self.passed is not None:
            self.passed.release(ok=ok)

    # ------------------------------------------------------------------ the wire

    def begin(self, params: dict[str, Any], api: Api, original: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """The finished body: restricted, marked for the cache, and observed.

        Where that fails, it is the application's own, which ``original`` makes of its messages and tools.
        """
        session = self.binding.session
        self.undone = False
        sent = session.attempt("begin", lambda: self._begun(params, api, original), None)
        if sent is None:
            sent = self._own(params, original)
        if not self.volatile:
            return sent
        # LiteLLM would move a system message to the front of Anthropic's request, before all that is cached.
        role: VolatileRole = "user" if self._claude_by_litellm(api) else self.binding.options.volatile_role
        return with_volatile(sent, api, self.volatile, role)

    def _begun(
        self, params: dict[str, Any], api: Api, original: Callable[[Any, Any], Any]
    ) -> dict[str, Any] | None:
        """None where the session could not begin it."""
        if self.turn is not None:
            self.turn.fail()  # the class sends the request again
            self.usage = None
        elif self.frame is not None and self.execution is not None:
            self.binding.asked(self.frame, self.execution)
        session, frame = self.binding.session, self.frame
        forked = self.offer is not None and frame is not None
        body = with_choice(params, self.offer.choice, api) if self.offer is not None else params
        held: str | Conversation = self.binding.talk or self.binding.conversation
        if self.execution is not None:
            self.execution.llm, self.execution.api, self.execution.body = self.llm, api, body
            self.execution.agent, self.execution.answer = self.agent, ""
            held = self.execution.conversation
        self.turn = session.begin(
            body,
            api,
            agent=self.agent,
            conversation=held,
            boundary=frame.boundary if forked and frame is not None else None,
            original=self._unmodified(api, original) if forked else None,
            rewrite=self.executor and self.binding.rewrites,
            scope=self.binding.scope,
            leave=self.passed,
            continues=forked and frame is not None and self.binding.continues(frame),
            trailing=bool(self.volatile),
        )
        if self.turn.seen is None:
            return None
        sent = self.turn.body
        if sent is params:
            return params
        return for_litellm(dict(sent)) if self._claude_by_litellm(api) else dict(sent)

    def _own(self, params: dict[str, Any], original: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """The application's own request, in the place of one that could not be begun."""
        if self.turn is not None:
            self.turn.fail()
        if self.messages is self.given and self.tools is self.given_tools:
            return params
        own: dict[str, Any] | None = self.binding.session.attempt(
            "original", lambda: original(self.given, self.given_tools), None
        )
        if own is None:
            return params
        self.undone = True
        self._release(ok=False)
        if self.execution is not None:
            self.execution.body = own
        return own

    def _claude_by_litellm(self, api: Api) -> bool:
        return api == "openai-chat" and is_claude(self.llm)

    def _unmodified(self, api: Api, original: Callable[[Any, Any], Any]) -> Callable[[Prompt], Prompt | None]:
        def rebuilt(_: Prompt) -> Prompt | None:
            body = original(self.given, self.given_tools)
            return self.binding.session.decode(body, api) if isinstance(body, Mapping) else None

        return rebuilt

    def first_token(self) -> None:
        """The answer has begun; the turn lets the others go as soon as they can read what it wrote."""
        if self.turn is not None:
            self.turn.first_token()

    def reported(self, usage: Any, *, exact: bool) -> None:
        """The provider's usage; CrewAI's own reading of it only where nothing better came."""
        if usage is not None and (exact or self.usage is None):
            self.usage = usage

    def answered(self, result: Any) -> None:
        """The answer is complete."""
        self._release(ok=True)
        if self.execution is not None:
            self.execution.answer = result if isinstance(result, str) else ""
            self.binding.newest = self.execution
        turn = self.turn
        if turn is None:
            return
        verdict = turn.finish(_plain(self.usage))
        if verdict is not None and turn.call is not None:
            self.binding.record(self.task, turn.call)
            announce(self, turn.call)

    def failed(self) -> None:
        """There is no answer."""
        self._release(ok=False)
        if self.turn is not None:
            self.turn.fail()

    def refused(self, result: Any, messages: Any, tools: Any) -> Sending | None:
        """What to ask again when tools were called that the application did not offer; None when all is well.

        First with the refusal at the end, then as the application asked.
        """
        if self.undone or self.offer is None or not self.offer.forbidden or not foreign_call(result):
            return None
        session = self.binding.session
        session.note(f"{self.agent}: called a tool where it has none; the call was refused and asked again")
        if self.tried:
            own = (self.binding, self.llm, _clean(self, messages), tools, messages, tools)
            return Sending(*own, self.agent, self.task, tried=True)
        again = [*self.messages, {"role": "user", "content": _REFUSAL}]
        return replace(self, messages=again, turn=None, usage=None, passed=None, tried=True)


def _repeats(messages: Sequence[Any], answer: str) -> bool:
    """Whether an answer stands in a request as a whole."""
    return bool(answer) and any(answer in str(one.get("content")) for one in messages if isinstance(one, Mapping))


def _clean(sending: Sending, messages: Any) -> Any:
    """CrewAI's marks taken off where LiteLLM would send them as an unknown field."""
    if not sending.binding.rewrites or not getattr(sending.llm, "is_litellm", False):
        return messages
    return unmarked(messages)


def is_claude(llm: Any) -> bool:
    """Whether a model is Anthropic's by way of LiteLLM."""
    return bool(getattr(llm, "is_litellm", False)) and "claude" in str(getattr(llm, "model", "")).lower()


def for_litellm(params: dict[str, Any]) -> dict[str, Any]:
    """A body with breakpoints in the form LiteLLM hands on to Anthropic.

    A tool result carries its mark beside its content: inside, Anthropic would not see one, and the text would be
    another than in the request that follows.
    """

    def changed(block: Any) -> Any:
        mark = _mark_of(block)
        if mark is None:
            return block
        return {**{key: value for key, value in block.items() if key != _MARK}, "cache_control": mark}

    def rewritten(message: Any) -> Any:
        content = message.get("content")
        if not isinstance(content, list):
            return message
        if message.get("role") != "tool":
            return {**message, "content": [changed(block) for block in content]}
        mark = next((found for block in content if (found := _mark_of(block)) is not None), None)
        if mark is None or len(content) != 1 or content[0].get("type") != "text":
            return message
        return {**message, "content": content[0]["text"], "cache_control": mark}

    messages = [rewritten(message) for message in params["messages"]]
    return {**{k: v for k, v in params.items() if k != "prompt_cache_options"}, "messages": messages}


def _mark_of(block: Any) -> dict[str, Any] | None:
    """A content block's breakpoint as Anthropic spells it."""
    if not isinstance(block, Mapping) or _MARK not in block:
        return None
    ttl = block[_MARK].get("ttl")
    return {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else value
