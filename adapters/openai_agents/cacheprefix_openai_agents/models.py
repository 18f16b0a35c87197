"""``wrap``: makes agents send forks, with all the agents that they hand off to or call as a tool.

A model of the Agents SDK sends with OpenAI's client. A wrapped agent gets a copy of its model with a watched client,
which sends in the agent's role. Agents, sessions and what the application sees of them stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import agents
from agents.models import chatcmpl_converter, openai_responses
from agents.tracing import get_current_span, get_current_trace

from cacheprefix import Session, adapter
from cacheprefix.errors import SetupError, check_id, found_instead

__all__ = ["unwrap", "wrap"]

T = TypeVar("T")
Conversation = str | Callable[[], str]


def known(target: object) -> bool:
    """Whether ``wrap`` takes it."""
    return isinstance(target, (agents.Agent, agents.Model, agents.ModelProvider))


def wrap(
    target: T,
    session: Session | None = None,
    *,
    conversation: Conversation = "",
    provider: agents.ModelProvider | None = None,
) -> T:
    """An agent, made to ask in the session with all that it hands off to or has as a tool; or a model, or a provider.

    Agents stay the same objects, until ``unwrap``: each has a model of its own in place of its model, or of the name of
    one, which ``provider`` resolves. In place of a name, that model is the same text too, for what goes by it. A model,
    or a provider for ``RunConfig``, is copied; who asks is the agent that runs. Where the session's prefix has no
    system text, what most of the agents' instructions have in common is shared.

    Args:
        target: what to wrap.
        session: made from the configuration without one.
        conversation: its id, or what gives it; without one the run's ``group_id``, else the history decides.
        provider: of models that agents name; by default as the Agents SDK finds them.

    Raises ``SetupError`` for anything else, for a conversation that is no id, and for an agent that is wrapped already,
    in another session or conversation. A model or a provider that was wrapped is copied as what it was before.
    """
    if not known(target):
        raise SetupError(f"wrap takes an agent, a model or a provider of models, {found_instead(target)}")
    check_id("conversation", conversation)
    joined = adapter.given_or_configured(session)
    if joined.off:
        return target
    adapter.compacts_by(agents.memory.OpenAIResponsesCompactionSession, joined)
    if isinstance(target, agents.Agent):
        by = adapter.claimed(target, team_of, joined, conversation)
        bind([*team_of(target)], by, _plain(provider or agents.MultiProvider()))
        return target
    made: T = (_provider if isinstance(target, agents.ModelProvider) else _model)(target, joined, "", conversation)
    return made


def unwrap(agent: T) -> T:
    """The agent, and all that it reaches, with their own models again; but for what another wrapped agent reaches."""
    for one in [each for each in team_of(agent) if adapter.released(each, agent)]:
        one.model = _own(one.model)
    return agent


def bind(team: list[Any], by: adapter.Wrap, provider: agents.ModelProvider) -> None:
    """Give each agent a model of its own that asks in the session."""
    session = by.session
    texts = [one.instructions for one in team if isinstance(one.instructions, str)]
    forks = session.mode != "observe"
    if forks and not (session.prefix.system or session.prefix.roles) and len(texts) > 1:
        session.adopt_system(adapter.majority_text(texts)[0], with_context=True)
    for agent in team:
        session.join(agent.name)
        own = model_of(agent, provider)
        if forks:
            session.attempt("tools", partial(_adopt, session, agent, own), None)
        made = _model(own, session, agent.name, by.conversation)
        made.cacheprefix_own, made.cacheprefix_wrap, agent.model = _own(agent.model), by, made


def _adopt(session: adapter.AdapterSession, agent: Any, model: agents.Model) -> None:
    adapter.adopt_declared(session, agent.name, _declared(agent, model), text=str(agent.instructions))


def model_of(agent: Any, provider: agents.ModelProvider) -> agents.Model:
    """The agent's own model; where it has only a model's name, the provider's model of that name, which is it too."""
    own = _own(agent.model)
    return own if isinstance(own, agents.Model) else adapter.named(provider.get_model(own), own)


def _own(model: Any) -> Any:
    return getattr(model, "cacheprefix_own", model)


def team_of(agent: Any) -> Iterator[Any]:
    """The agent and all that it can hand off to or call, each once."""
    found, seen = [agent], {id(agent)}
    for one in found:
        for each in (*one.handoffs, *one.tools):
            reference = getattr(each, "_agent_ref", None)
            to = reference() if reference else getattr(each, "_agent_instance", each)
            if isinstance(to, agents.Agent) and id(to) not in seen:
                seen.add(id(to))
                found.append(to)
        yield one


def _declared(agent: Any, model: agents.Model) -> list[Any]:
    """The tools that an agent's requests declare, in the API's form, as far as they are known before a run."""
    functions = [one for one in agent.tools if isinstance(one, agents.FunctionTool)]
    handoffs = [one if isinstance(one, agents.Handoff) else agents.handoff(one) for one in agent.handoffs]
    if isinstance(model, agents.OpenAIChatCompletionsModel):
        chat = chatcmpl_converter.Converter
        return [*map(chat.tool_to_openai, functions), *map(chat.convert_handoff_tool, handoffs)]
    return list(openai_responses.Converter.convert_tools([*functions], handoffs).tools)


def _plain(given: Any) -> Any:
    """A copy of a model or a provider, as it was before ``wrap``."""
    made = copy.copy(given)
    # Privacy: what an earlier ``wrap`` said, one user's conversation, would count behind what a later one says.
    made.__class__ = vars(type(given)).get("__unwrapped__", type(given))
    return made


def _provider(given: Any, session: adapter.AdapterSession, role: str, conversation: Conversation) -> Any:
    made = _plain(given)
    base = type(made)

    def get_model(self: Any, model_name: str | None) -> Any:
        return _model(base.get_model(self, model_name), session, role, conversation)

    made.__class__ = adapter.derived(base, get_model=get_model)
    return made


def _model(given: Any, session: adapter.AdapterSession, role: str, conversation: Conversation) -> Any:
    """A copy of a model whose requests are in ``role``; if that is empty, in the role of the agent that runs."""
    made = _plain(given)
    base = type(made)

    def asking() -> AbstractContextManager[None]:
        name = _whole(role or _speaker())
        talk = conversation() if callable(conversation) else conversation
        talk = talk or _whole(str(getattr(get_current_trace(), "group_id", None) or ""))
        # The Agents SDK takes any name: who has none asks as without us.
        return adapter.in_role(name, conversation=talk) if name.strip() else nullcontext()

    whole, streamed = base.get_response, base.stream_response
    asks = {"get_response": adapter.inside(asking, whole, whole), "stream_response": adapter.within(asking, streamed)}
    made.__class__ = adapter.derived(base, **asks)
    if (client := sdk_of(given)) is None:
        session.unseen(f"{base.__qualname__}: requests of this model class are neither changed nor measured")
    else:
        made._client = adapter.watched_client(client, session, adapter.current_role, parses=True)
    return made


def sdk_of(model: agents.Model) -> Any:
    """The SDK client with which a model sends; None where its requests cannot be watched, as over a websocket."""
    client = None if isinstance(model, openai_responses.OpenAIResponsesWSModel) else getattr(model, "_client", None)
    return client if adapter.vendor_of(client) else None


def _whole(name: str) -> str:
    """A name that can be written: half a character is spelled out, so that two names stay two."""
    return name.encode("utf-8", "backslashreplace").decode()


def _speaker() -> str:
    """The name of the agent whose turn it is, from the current trace span; empty where there is none."""
    data = getattr(get_current_span(), "span_data", None)
    return str(getattr(data, {"turn": "agent_name", "agent": "name"}.get(getattr(data, "type", ""), ""), ""))


adapter.supported("cacheprefix-openai-agents")
