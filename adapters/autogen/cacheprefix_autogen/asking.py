"""``ask``: something beside a conversation, on its cached prefix: a side question, a summary, what to remember."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken
from autogen_core.models import LLMMessage, SystemMessage, UserMessage
from typing_extensions import Unpack

from cacheprefix import Conversation
from cacheprefix.adapter import AskOptions, ForkResult, ask_options
from cacheprefix.errors import SetupError
from cacheprefix_autogen.binding import binding_of
from cacheprefix_autogen.history import Views, as_decided
from cacheprefix_autogen.member import Member, system_texts
from cacheprefix_autogen.messages import SENDER, durable, durable_in
from cacheprefix_autogen.provider_clients import Request, api_of, body_beside, model_of, sender
from cacheprefix_autogen.tool_restriction import shared_schema
from cacheprefix_autogen.transcript import View


async def ask(target: BaseChatAgent | BaseGroupChat, text: str, **options: Unpack[AskOptions]) -> ForkResult:
    """Ask a fork of a wrapped agent, or of a team's transcript, and leave no trace in it.

    ``policy`` is ``ForkPolicy.ephemeral()`` by default: one call, nothing kept, nothing written behind the
    shared part. Under a policy with more turns the fork may call the agent's own tools, ``policy.isolated``
    keeping its decisions on their results to itself. ``overrides`` replaces fields of the request body.
    Raises ``SetupError`` for what is not wrapped or has no SDK underneath, ``UnsafeForkError`` when the fork
    could not read the parent's cache, ``AbortedError`` when it is stopped.
    """
    agent, member, view = _asked(target)
    session = member.session
    client = agent._model_client
    native = client._innermost()
    api = api_of(native)
    if api is None:
        message = f"{type(native).__name__} has no SDK that cacheprefix knows; ask works on OpenAI's and Anthropic's"
        raise SetupError(message)
    own = system_texts(agent)
    # Privacy: text that was found in other agents' prompts is shown to none that does not hold it.
    found = session.holds_shared(["\n\n".join(own)])
    system = session.prefix.text if found else "\n\n".join(filter(None, (*own, session.unsaid(own))))
    messages: list[LLMMessage] = [SystemMessage(content=system)] if system else []
    talk = session.conversation(member.conversation, scope=member.options.scope)
    messages += _said(member, view, talk, native)
    # Privacy: of the tools that others brought to the session, those alone that the conversation's requests carry.
    tools = list(map(shared_schema, session.prefix.among(session.union_in(talk))))
    body = body_beside(native, api, Request(messages, tools))

    async def run_tool(_: str, name: str, arguments: Mapping[str, Any]) -> str:
        return await _call_tool(agent, name, arguments)

    return await session.side_forks.arun(
        text,
        body=body,
        api=api,
        send=sender(native, api),
        tool_executor=run_tool,
        conversation=member.conversation,
        scope=member.options.scope,
        **ask_options(options),
    )


def _said(member: Member, view: View, talk: Conversation, native: Any) -> list[LLMMessage]:
    """The public messages as the conversation's next request would hold them, with what was said to all its agents.

    Nothing is decided on them here: zones stand as the agents' requests have them, and before the first request, and
    where no request of ours holds them, in front. What no agent was told yet comes last.
    """
    public: list[LLMMessage] = [form for entry in view.everything() for form in entry.forms]
    if member.session.mode == "observe":
        return public
    # Cost: a conversation's requests begin with its zones, as recorded; without them nothing behind is read.
    made = as_decided(Views(member.session, model_of(native)), talk, public)
    zones = [zone.text() for zone in (one.refreshed() for one in talk.state.zones) if zone.shown]
    # Cost: a zone that came later stands in no agent's request until the next compaction, and so in no question's.
    if zones and (not public or (member.bounded and all(any(one is form for form in public) for one in made))):
        made = [UserMessage(content="\n\n".join(zones), source=SENDER), *made]
    # Of what was appended, the entries of ``public`` are those that agents were told so far.
    told = sum(isinstance(one, UserMessage) and durable_in(one) is not None for one in public)
    appended = [(view.key, view.text) for view in talk.state.views if view.key is not None]
    return [*made, *(durable(key, text) for key, text in appended[told:])]


def _asked(target: BaseChatAgent | BaseGroupChat) -> tuple[Any, Member, View]:
    """The agent whose client is used, its member and view: that of those inside which has read the most."""
    binding = binding_of(target)
    found = [
        (each.patches.target, each.member, each.member.view)
        for each in (binding.whole if binding is not None else [])
        if each.member is not None and each.member.view is not None and not each.member.alone
    ]
    if not found:
        message = f"ask takes a wrapped agent or team that shares a prefix, {target.name!r} is not one; wrap it first"
        raise SetupError(message)
    return max(found, key=lambda each: len(each[2].everything()))


async def _call_tool(agent: Any, name: str, arguments: Mapping[str, Any]) -> str:
    """What one of an agent's tools answers. Raises ``LookupError`` for a tool that it has not got."""
    for workbench in getattr(agent, "_workbench", None) or []:
        if any(tool["name"] == name for tool in await workbench.list_tools()):
            result = await workbench.call_tool(name, arguments, cancellation_token=CancellationToken())
            return str(result.to_text())
    raise LookupError(f"tool {name!r} is not one of {agent.name!r}'s; called with {json.dumps(dict(arguments))}")
