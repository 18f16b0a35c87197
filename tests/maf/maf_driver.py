"""Drives agents of the framework through the team of the conformance suite."""

from __future__ import annotations

import asyncio
import ssl

import anthropic
import openai
from agent_framework import Agent, FunctionTool, Message
from agent_framework.anthropic import AnthropicClient
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

from cacheprefix_maf import wrap

# Reading them takes longer than all the calls that a client of these tests makes.
_CERTIFICATES = ssl.create_default_context()
RULES = {"openai-chat": "openai-5.6", "openai-responses": "openai-5.6", "anthropic": "anthropic"}
MODELS = {"openai-chat": "gpt-5.6", "openai-responses": "gpt-5.6", "anthropic": "claude-sonnet-4-6"}
KINDS = {"openai-chat": OpenAIChatCompletionClient, "openai-responses": OpenAIChatClient}


def make_client(api, provider, hooks=None):
    """The framework's own client for an API; ``hooks`` are httpx's."""
    if api == "anthropic":
        http = anthropic.DefaultAsyncHttpxClient(verify=_CERTIFICATES, event_hooks=hooks)
        sdk = anthropic.AsyncAnthropic(
            base_url=provider.anthropic_base_url, api_key="k", max_retries=0, http_client=http
        )
        return AnthropicClient(model=MODELS[api], anthropic_client=sdk)
    http = openai.DefaultAsyncHttpxClient(verify=_CERTIFICATES, event_hooks=hooks)
    sdk = openai.AsyncOpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0, http_client=http)
    return KINDS[api](model=MODELS[api], async_client=sdk)


async def close(client):
    """Close the connections of a client."""
    await (getattr(client, "anthropic_client", None) or client.client).close()


class MafDriver:
    """Drives this adapter for the conformance suite."""

    ways = ("ainvoke", "astream")
    budgets = True

    def __init__(self, api):
        self.api = api
        self.rules = RULES[api]

    def run(self, team, provider, session):
        """Play the team with agents that all see the transcript."""
        return asyncio.run(self._run(team, provider, session))

    async def _run(self, team, provider, session):
        client = make_client(self.api, provider)
        agents = [
            Agent(
                client,
                team.system(role),
                name=role.name,
                tools=[_tool(team, tool) for tool in team.tools],
                default_options={"store": False} if self.api == "openai-responses" else None,
            )
            for role in team.roles
        ]
        if session is not None:
            for agent in agents:
                wrap(agent, session, conversation=team.thread)
        transcript, texts = [], []
        for question in team.questions:
            transcript.append(Message("user", [question]))
            for agent in agents:
                if team.way == "astream":
                    stream = agent.run(list(transcript), stream=True)
                    async for _ in stream:
                        pass
                    answer = await stream.get_final_response()
                else:
                    answer = await agent.run(list(transcript))
                texts.append(answer.text)
                transcript.append(Message("user", [f"{agent.name}: {answer.text}"]))
        await close(client)
        return texts


def _tool(team, tool):
    def run(**arguments):
        return team.run_tool(tool["name"], arguments)

    return FunctionTool(
        name=tool["name"], description=tool["description"], func=run, input_model=dict(tool["parameters"])
    )
