"""Drives ag2's own agents and clients through the team of the conformance suite."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager

import httpx2
from ag2 import Agent, MemoryStream, tool
from ag2.config import AnthropicConfig, OpenAIConfig, OpenAIResponsesConfig

from cacheprefix_ag2 import wrap

# Reading them takes longer than all the calls that a client of these tests makes.
_CERTIFICATES = ssl.create_default_context()
RULES = {"openai-chat": "openai-5.6", "openai-responses": "openai-5.6", "anthropic": "anthropic"}
MODELS = {"openai-chat": "gpt-5.6", "openai-responses": "gpt-5.6", "anthropic": "claude-sonnet-4-6"}
CONFIGS = {"openai-chat": OpenAIConfig, "openai-responses": OpenAIResponsesConfig, "anthropic": AnthropicConfig}


HANDBOOK = "The handbook says that every statement needs a source. " * 90


def role_text(name):
    """What only this agent's prompt says."""
    return f"You are the {name}."


def agent(name, config, *, tools=(), **options):
    """An agent whose prompt is its role and the handbook."""
    return Agent(name, f"{role_text(name)}\n\n{HANDBOOK}", config=config, tools=tools, **options)


def texts(record):
    """The texts of a request's messages in order; system text and tools left out."""
    return [section.text for section in record.prompt.tier("messages")]


def head(record, name):
    """All sections of a request before the text of a role, tools and system first."""
    sections = record.prompt.sections
    end = next(at for at, one in enumerate(sections) if role_text(name) in one.text)
    return [(one.tier, one.data) for one in sections[:end]]


@asynccontextmanager
async def configured(api, provider, **options):
    """ag2's own config for an API, with one HTTP client for all that is made from it."""
    base = provider.anthropic_base_url if api == "anthropic" else provider.openai_base_url
    if api == "openai-responses":
        options.setdefault("store", False)
    async with httpx2.AsyncClient(verify=_CERTIFICATES) as http:
        settings = {"api_key": "k", "base_url": base, "http_client": http, "max_retries": 0}
        yield CONFIGS[api](**{"model": MODELS[api], **settings, **options})


def tools_of(team):
    """The team's tools as ag2's."""

    def made(spec):
        def run(lines: int = 0, name: str = "") -> str:
            """What the tool gives back."""
            return team.run_tool(spec["name"], {})

        return tool(run, name=spec["name"], description=spec["description"], schema=dict(spec["parameters"]))

    return [made(spec) for spec in team.tools]


class Ag2Driver:
    """All roles take their turns on one stream, as ag2's agents share a conversation."""

    budgets = True

    def __init__(self, api):
        self.api = api
        # One client of OpenAI's and that of Anthropic are called both ways.
        self.ways = ("astream",) if api == "openai-responses" else ("ainvoke", "astream")
        self.rules = RULES[api]

    def run(self, team, provider, session):
        """Play the team."""
        return asyncio.run(self._run(team, provider, session))

    async def _run(self, team, provider, session):
        async with configured(self.api, provider, streaming=team.way == "astream") as config:
            agents = [Agent(role.name, team.system(role), config=config, tools=tools_of(team)) for role in team.roles]
            if session is not None:
                wrap(agents, session, conversation=lambda context: team.thread)
            stream, texts = MemoryStream(), []
            for question in team.questions:
                for at, agent in enumerate(agents):
                    reply = await agent.ask(question if not at else f"{agent.name}, it is your turn.", stream=stream)
                    texts.append(reply.body)
            return texts
