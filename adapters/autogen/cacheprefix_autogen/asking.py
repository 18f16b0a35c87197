"""``ask``: something beside a conversation, on its cached prefix: a side question, a summary, what to remember."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken
from autogen_core.models import LLMMessage, SystemMessage
from typing_extensions import Unpack

from cacheprefix.adapter import AskOptions, ForkResult, ask_options
from cacheprefix.errors import SetupError
from cacheprefix_autogen.binding import binding_of
from cacheprefix_autogen.member import Member, system_texts
from cacheprefix_autogen.provider_clients import Request, api_of, body_beside, sender
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
    messages += [form for entry in view.everything() for form in entry.forms]
    # Privacy: of the tools that others brought to the session, those alone that the conversation's requests carry.
    talk = session.conversation(member.conversation, scope=member.options.scope)
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
