"""``wrap``: agents whose models' requests are forks, with all that they hand off to or call as a tool.

A model of the Agents SDK sends with a client of OpenAI's; the copy that a wrapped agent has sends with a watched one,
in the role of the agent. Agents, sessions and what the application sees of them stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, TypeVar

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    MultiProvider,
    OpenAIChatCompletionsModel,
    handoff,
)
from agents.models import chatcmpl_converter, openai_responses
from agents.tracing import get_current_span, get_current_trace

from cacheprefix import Session
from cacheprefix.adapter import (
    AdapterSession,
    current_role,
    derived,
    given_or_configured,
    in_role,
    majority_text,
    supported,
    vendor_of,
    watched_client,
)
from cacheprefix.errors import SetupError, ToolClashError

__all__ = ["unwrap", "wrap"]

T = TypeVar("T")
Conversation = str | Callable[[], str]
_WEBSOCKET = openai_responses.OpenAIResponsesWSModel


def known(target: object) -> bool:
    """Whether ``wrap`` takes it."""
    return isinstance(target, (Agent, Model, ModelProvider))


def wrap(
    target: T, session: Session | None = None, *, conversation: Conversation = "", provider: ModelProvider | None = None
) -> T:
    """An agent, made to ask in the session with all that it hands off to or has as a tool; or a model, or a provider.

    Agents stay the same objects, until ``unwrap``: each has a model of its own in place of its model, or of the name of
    one, which ``provider`` resolves. A model, or a provider for ``RunConfig``, is copied; who asks is the agent that
    runs. Where the session's prefix has no text, what most of the agents' instructions have in common is shared.

    Args:
        target: what to wrap.
        session: made from the configuration without one.
        conversation: its id, or what gives it; without one the run's ``group_id``, else the history decides.
        provider: of models that agents name; by default as the Agents SDK finds them.

    Raises ``SetupError`` for anything else.
    """
    if not known(target):
        raise SetupError(f"wrap takes an agent, a model or a provider of models, found {type(target).__name__}")
    joined = given_or_configured(session)
    if joined.off:
        return target
    if isinstance(target, Agent):
        _wrap_team(target, joined, conversation, provider or MultiProvider())
        return target
    made: T = (_provider if isinstance(target, ModelProvider) else _model)(target, joined, "", conversation)
    return made


def unwrap(agent: T) -> T:
    """The agent, and all that it reaches, with their own models again."""
    for one in _team(agent):
        if hasattr(one.model, "cacheprefix_own"):
            one.model = one.model.cacheprefix_own
    return agent


def _wrap_team(target: Any, session: AdapterSession, conversation: Conversation, provider: ModelProvider) -> None:
    team = list(_team(unwrap(target)))
    texts = [one.instructions for one in team if isinstance(one.instructions, str)]
    forks = session.mode != "observe"
    if forks and not session.prefix.text and len(texts) > 1:
        session.adopt_system(majority_text(texts)[0])
    for agent in team:
        session.join(agent.name)
        own = agent.model if isinstance(agent.model, Model) else provider.get_model(agent.model)
        if forks:
            session.attempt("tools", partial(_adopt, session, agent, own), None)
        made = _model(own, session, agent.name, conversation)
        made.cacheprefix_own, agent.model = agent.model, made


def _adopt(session: AdapterSession, agent: Any, model: Model) -> None:
    try:
        session.adopt_tools(_declared(agent, model), dict, grows=True)
    except ToolClashError as error:
        session.note(f"agent {agent.name!r} keeps its own tools, which others share no cache with: {error}")


def _team(agent: Any) -> Iterator[Any]:
    """The agent and all that it can hand off to or call, each once."""
    found, seen = [agent], {id(agent)}
    for one in found:
        to = [each._agent_ref and each._agent_ref() if isinstance(each, Handoff) else each for each in one.handoffs]
        for each in (*to, *(getattr(tool, "_agent_instance", None) for tool in one.tools)):
            if isinstance(each, Agent) and id(each) not in seen:
                seen.add(id(each))
                found.append(each)
        yield one


def _declared(agent: Any, model: Model) -> list[Any]:
    """The functions that requests of an agent declare, as far as they are known before a run."""
    functions = [one for one in agent.tools if isinstance(one, FunctionTool)]
    handoffs = [one if isinstance(one, Handoff) else handoff(one) for one in agent.handoffs]
    if isinstance(model, OpenAIChatCompletionsModel):
        chat = chatcmpl_converter.Converter
        return [*map(chat.tool_to_openai, functions), *map(chat.convert_handoff_tool, handoffs)]
    return list(openai_responses.Converter.convert_tools([*functions], handoffs).tools)


def _provider(given: Any, session: AdapterSession, role: str, conversation: Conversation) -> Any:
    base, made = type(given), copy.copy(given)

    def get_model(self: Any, model_name: str | None) -> Model:
        found: Model = _model(base.get_model(self, model_name), session, role, conversation)
        return found

    made.__class__ = derived(base, get_model=get_model)
    return made


def _model(given: Any, session: AdapterSession, role: str, conversation: Conversation) -> Any:
    """A copy of a model that asks in a role: the given one, or that of the agent that runs."""
    base, made = type(given), copy.copy(given)

    def asking() -> AbstractContextManager[None]:
        name = role or _speaker()
        talk = conversation if isinstance(conversation, str) else conversation()
        talk = talk or getattr(get_current_trace(), "group_id", None) or ""
        return in_role(name, conversation=talk) if name else nullcontext()

    async def get_response(self: Any, *asked: Any, **named: Any) -> Any:
        with asking():
            return await base.get_response(self, *asked, **named)

    async def stream_response(self: Any, *asked: Any, **named: Any) -> AsyncIterator[Any]:
        async with aclosing(base.stream_response(self, *asked, **named)) as stream:
            while True:
                with asking():
                    event = await anext(stream, None)
                if event is None:
                    return
                yield event

    made.__class__ = derived(base, get_response=get_response, stream_response=stream_response)
    if isinstance(given, _WEBSOCKET) or vendor_of(client := getattr(given, "_client", None)) is None:
        session.unseen(f"{base.__qualname__}: requests of this model class are neither changed nor measured")
    else:
        made._client = watched_client(client, session, current_role)
    return made


def _speaker() -> str:
    """The name of the agent whose turn it is."""
    data = getattr(get_current_span(), "span_data", None)
    kind = getattr(data, "type", "")
    return str(getattr(data, {"turn": "agent_name", "agent": "name"}.get(kind, ""), ""))


supported("cacheprefix-openai-agents")
