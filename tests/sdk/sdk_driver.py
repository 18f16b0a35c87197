"""Drives real clients of the two SDKs through the team of the conformance suite."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import anthropic
import openai

from cacheprefix.testing import Team, play
from cacheprefix_sdk import role as in_role
from cacheprefix_sdk import wrap

# Reading them takes longer than all the calls that a client of these tests makes.
_CERTIFICATES = ssl.create_default_context()
RULES = {"openai-chat": "openai-5.6", "openai-responses": "openai-5.6", "anthropic": "anthropic"}
MODELS = {"openai-chat": "gpt-5.6", "openai-responses": "gpt-5.6", "anthropic": "claude-sonnet-4-6"}


def make_client(api, provider, *, later=False, hooks=None) -> Any:
    """A client of the SDK that speaks ``api``; ``hooks`` are httpx's."""
    sdk = anthropic if api == "anthropic" else openai
    http = (sdk.DefaultAsyncHttpxClient if later else sdk.DefaultHttpxClient)(verify=_CERTIFICATES, event_hooks=hooks)
    if api == "anthropic":
        kind = anthropic.AsyncAnthropic if later else anthropic.Anthropic
        return kind(base_url=provider.anthropic_base_url, api_key="k", max_retries=0, http_client=http)
    kind = openai.AsyncOpenAI if later else openai.OpenAI
    return kind(base_url=provider.openai_base_url, api_key="k", max_retries=0, http_client=http)


def streamer(client, api):
    """The SDK's own helper that streams an answer and puts it together."""
    if api == "anthropic":
        return client.messages.stream
    return client.chat.completions.stream if api == "openai-chat" else client.responses.stream


def creator(client, api):
    """The SDK's method that makes one call."""
    if api == "anthropic":
        return client.messages.create
    return client.chat.completions.create if api == "openai-chat" else client.responses.create


def final(stream, api):
    """The whole answer of a stream: a value, or an awaitable of one."""
    ask = {"anthropic": "get_final_message", "openai-chat": "get_final_completion"}.get(api, "get_final_response")
    return getattr(stream, ask)()


class SdkDriver:
    """Drives the SDK adapter for the conformance suite."""

    ways = ("invoke", "stream", "ainvoke", "astream")
    budgets = True

    def __init__(self, api):
        self.api = api
        self.rules = RULES[api]
        self.model = MODELS[api]

    def run(self, team: Team, provider, session) -> list[str]:
        """Play the team with a wrapped client; every call is made in its role."""
        if team.way.startswith("a"):
            return asyncio.run(self._later(team, provider, session))
        with make_client(self.api, provider) as client:
            used = client if session is None else wrap(client, session)

            def send(role, body):
                with in_role(role.name, conversation=team.thread):
                    if team.way == "stream":
                        with streamer(used, self.api)(**_streamable(body)) as stream:
                            return final(stream, self.api)
                    return creator(used, self.api)(**body)

            return play(team, self.api, self.model, send)

    async def _later(self, team, provider, session):
        loop = asyncio.get_running_loop()
        async with make_client(self.api, provider, later=True) as client:
            used = client if session is None else wrap(client, session)

            async def sent(role, body):
                with in_role(role.name, conversation=team.thread):
                    if team.way == "astream":
                        async with streamer(used, self.api)(**_streamable(body)) as stream:
                            return await final(stream, self.api)
                    return await creator(used, self.api)(**body)

            def send(role, body):
                return asyncio.run_coroutine_threadsafe(sent(role, body), loop).result()

            return await asyncio.to_thread(play, team, self.api, self.model, send)


def _streamable(body):
    """OpenAI's helper for chat streams takes strict tools alone."""
    chat = [tool for tool in body.get("tools", []) if "function" in tool]
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in chat]
    return {**body, "tools": strict} if chat else body
