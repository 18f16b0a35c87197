"""Drives agents of the OpenAI Agents SDK through the team of the conformance suite."""

from __future__ import annotations

import asyncio
import ssl

import openai
from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner

from cacheprefix_openai_agents import wrap

# Reading them takes longer than all the calls of a test.
_CERTIFICATES = ssl.create_default_context()
MODELS = {"openai-chat": OpenAIChatCompletionsModel, "openai-responses": OpenAIResponsesModel}
HANDBOOK = "The handbook says that every statement needs a source. " * 130


def model_for(api, provider, hooks=None):
    """A model of the SDK's own, asking the provider; ``hooks`` are httpx's."""
    http = openai.DefaultAsyncHttpxClient(verify=_CERTIFICATES, event_hooks=hooks)
    client = openai.AsyncOpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0, http_client=http)
    return MODELS[api]("gpt-5.6", openai_client=client)


def tool(name, description, parameters, run):
    """A function tool, by its schema."""

    async def invoked(context, arguments):
        return run()

    return FunctionTool(name, description, dict(parameters), invoked, strict_json_schema=False)


class AgentsDriver:
    """All roles take their turns in one transcript, as ``to_input_list`` gives it."""

    ways = ("ainvoke", "astream")
    budgets = True
    rules = "openai-5.6"

    def __init__(self, api):
        self.api = api

    def run(self, team, provider, session):
        """Play the team."""
        tools = [
            tool(one["name"], one["description"], one["parameters"], lambda name=one["name"]: team.run_tool(name, {}))
            for one in team.tools
        ]
        return asyncio.run(self._run(team, provider, session, tools))

    async def _run(self, team, provider, session, tools):
        model = model_for(self.api, provider)
        roles = [Agent(role.name, instructions=team.system(role), model=model, tools=tools) for role in team.roles]
        if session is not None:
            for agent in roles:
                wrap(agent, session, conversation=team.thread)
        said, texts = [], []
        for question in team.questions:
            said.append({"role": "user", "content": question})
            for at, agent in enumerate(roles):
                if at:
                    said.append({"role": "user", "content": f"{agent.name}, it is your turn."})
                result = await self._asked(agent, said, team.way)
                said = result.to_input_list()
                texts.append(result.final_output)
        await model._client.close()
        return texts

    async def _asked(self, agent, said, way):
        if way != "astream":
            return await Runner.run(agent, said)
        result = Runner.run_streamed(agent, said)
        async for _ in result.stream_events():
            pass
        return result
