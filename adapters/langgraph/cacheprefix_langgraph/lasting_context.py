"""Context that lasts: keyed messages that no compaction touches, and what a turn leaves in the history."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, TransitionHook, default_counter
from cacheprefix.errors import BudgetError, SetupError
from cacheprefix_langgraph.history import without
from cacheprefix_langgraph.state import messages_in
from cacheprefix_langgraph.views import KEY, PINNED, is_text

COMMITTED = "cacheprefix_committed"
"""In ``additional_kwargs``, which no provider sees: the last message of a turn that was committed."""


def context_message(
    text: str,
    key: str = "context",
    *,
    limit: int | None = None,
    beside: Iterable[BaseMessage] = (),
    session: Session | None = None,
) -> HumanMessage:
    """Durable context as a message to append to a state: a fact, a profile, a plan, under a key.

    It is appended where the conversation stands, so that nothing before it changes, and is never dropped, cut or
    summarised by a compaction. ``limit`` is how many tokens all keyed context among ``beside`` and this text may have,
    by ``session``'s counter or the default one; beyond it ``BudgetError`` is raised at once, with ``over_by``.
    """
    if limit is not None:
        count = session.adapter.count if session is not None else default_counter("")
        tokens = sum(count(one.text, "") for one in beside if KEY in one.additional_kwargs) + count(text, "")
        if tokens > limit:
            message = (
                f"durable context {key!r} brings all keyed context to {tokens} tokens, {tokens - limit} more than the "
                f"{limit} allowed; shorten it"
            )
            raise BudgetError(message, tokens - limit)
    return HumanMessage(text, additional_kwargs={KEY: key})


def pinned(message: BaseMessage) -> BaseMessage:
    """A copy of a message that no decision touches: neither cut nor dropped."""
    return message.model_copy(update={"additional_kwargs": {**message.additional_kwargs, PINNED: True}})


def commit_turn(
    session: Session, hook: TransitionHook, *, messages_key: str = "messages"
) -> Callable[[Any], dict[str, Any]]:
    """A node that commits the turn to the history through ``hook``; put it where a turn of your graph ends.

    The turn is what was said since the last commit. ``hook`` gets copies as OpenAI-style message dicts (Anthropic's
    content blocks stay blocks) and returns what is kept; ``cacheprefix.history`` ships ``trim_tool_outputs`` and
    ``drop_tool_messages``. An open tool call and what follows it stay uncommitted. A hook that fails, or leaves a tool
    result without its call, is counted and named, and the turn stands as it was. What it changes is written to the
    cache once more with the next request, so a hook pays where it removes much.
    """

    def commit(state: Any) -> dict[str, Any]:
        return committed(session.adapter, hook, messages_in(state, messages_key) or [], messages_key)

    return commit


class CommitMiddleware(AgentMiddleware):
    """Commits an agent's turn through ``hook`` when its final answer is there; see ``commit_turn``."""

    def __init__(self, session: Session, hook: TransitionHook) -> None:
        super().__init__()
        self.session = session
        self.hook = hook

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Rewrite the turn in the state."""
        return committed(self.session.adapter, self.hook, messages_in(state, "messages") or [], "messages") or None

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Rewrite the turn in the state."""
        return self.after_agent(state, runtime)


def committed(
    session: AdapterSession, hook: TransitionHook, messages: Sequence[BaseMessage], key: str
) -> dict[str, Any]:
    """The state update that commits a turn; empty where there is nothing to commit."""
    start = next((i + 1 for i in range(len(messages) - 1, -1, -1) if COMMITTED in messages[i].additional_kwargs), 0)
    end = _open_at(messages, start)
    turn = messages[start:end]
    if session.mode == "observe" or not turn:
        return {}
    done = session.attempt("transition hook", lambda: _through(hook, turn), list(turn))
    if done:
        marks = {**done[-1].additional_kwargs, COMMITTED: True}
        done[-1] = done[-1].model_copy(update={"additional_kwargs": marks})
    return {key: [RemoveMessage(id=REMOVE_ALL_MESSAGES), *messages[:start], *done, *messages[end:]]}


def _open_at(messages: Sequence[BaseMessage], start: int) -> int:
    """Where the first tool call without all its results stands; the end where there is none."""
    answered = {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}
    for index in range(start, len(messages)):
        message = messages[index]
        if isinstance(message, AIMessage) and any(call["id"] not in answered for call in message.tool_calls):
            return index
    return len(messages)


def _through(hook: TransitionHook, turn: Sequence[BaseMessage]) -> list[BaseMessage]:
    """A turn as the hook leaves it. Raises ``SetupError`` where a tool result or its call is left without the other."""
    forms = [_form(message, place) for place, message in enumerate(turn)]
    changed = hook(copy.deepcopy(forms))
    made = [one for form in changed if (one := _made(form, forms, turn)) is not None]
    calls: set[Any] = set()
    for message in made:
        if isinstance(message, ToolMessage) and message.tool_call_id not in calls:
            name = getattr(hook, "__name__", repr(hook))
            problem = f"the transition hook {name} returned a tool result ({message.tool_call_id!r}) without its call"
            raise SetupError(problem + "; drop both or neither")
        if isinstance(message, AIMessage):
            calls |= {call["id"] for call in message.tool_calls}
    gone = calls - {one.tool_call_id for one in made if isinstance(one, ToolMessage)}
    if gone:
        raise SetupError(f"the transition hook left tool calls without their results: {sorted(map(str, gone))}")
    return made


_PLACE = "_place"
"""In a message's dict: where in the turn it stood, so that what a hook leaves alone stays the same object."""


def _form(message: BaseMessage, place: int) -> dict[str, Any]:
    """A message as the hook is given it: as OpenAI's API has it, or Anthropic's where it has tool calls as blocks."""
    content: Any = message.content
    blocks = isinstance(content, list) and any(
        isinstance(one, Mapping) and one.get("type") == "tool_use" for one in content
    )
    if isinstance(content, list) and not blocks and all(is_text(one) or _is_item(one) for one in content):
        content = message.text
    role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
    form: dict[str, Any] = {"role": role, "content": content, _PLACE: place}
    if isinstance(message, ToolMessage):
        form["tool_call_id"] = message.tool_call_id
    if isinstance(message, AIMessage) and message.tool_calls and not blocks:
        form["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["args"]}}
            for call in message.tool_calls
        ]
    return form


def _is_item(block: Any) -> bool:
    """Whether a block is an item of the responses API that stands beside the text."""
    return isinstance(block, Mapping) and block.get("type") in ("function_call", "reasoning")


def _made(
    form: Mapping[str, Any], forms: Sequence[Mapping[str, Any]], turn: Sequence[BaseMessage]
) -> BaseMessage | None:
    """The message that a dict stands for: the very same object where nothing in it changed."""
    place: int | None = form.get(_PLACE)
    if place is None:
        return AIMessage(form["content"]) if form["role"] == "assistant" else HumanMessage(form["content"])
    message: BaseMessage = turn[place]
    content: Any = form["content"]
    if form == forms[place]:
        return message
    update: dict[str, Any] = {} if content == forms[place]["content"] else {"content": content}
    if isinstance(message, AIMessage):
        blocks = content if isinstance(content, list) else ()
        left = {one.get("id") for one in blocks if isinstance(one, Mapping) and one.get("type") == "tool_use"}
        left |= {call["id"] for call in form.get("tool_calls") or ()}
        gone = {str(call["id"]) for call in message.tool_calls if call["id"] not in left}
        changed = message.model_copy(update=update)
        return without(changed, gone, set()) if gone else changed
    return message.model_copy(update=update)
