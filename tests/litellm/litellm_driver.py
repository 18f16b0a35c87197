"""Drives LiteLLM's functions and routers through the team of the conformance suite."""

from __future__ import annotations

import asyncio

import litellm
from litellm.router import Router

from cacheprefix.testing import play
from cacheprefix_litellm import role as in_role
from cacheprefix_litellm import wrap

MODELS = {"openai": "openai/gpt-5.6", "anthropic": "anthropic/claude-sonnet-4-6"}
RULES = {"openai": "openai-5.6", "anthropic": "anthropic"}
HANDBOOK = "The handbook says that every statement needs a source. " * 130
ROLES = ("planner", "critic", "writer")


def place(vendor, provider):
    """Where a call goes."""
    base = provider.anthropic_base_url if vendor == "anthropic" else provider.openai_base_url
    return {"api_base": base, "api_key": "k", "max_retries": 0}


def router_for(*deployments, **options):
    """A router whose groups are the vendors; each of these is one, and its provider."""
    listed = [
        {"model_name": vendor, "litellm_params": {"model": MODELS[vendor], **place(vendor, provider)}}
        for vendor, provider in deployments
    ]
    return Router(model_list=listed, num_retries=0, **options)


def messages(name, question="How do we find the slow step?"):
    """What an agent of that name asks."""
    return [{"role": "system", "content": f"You are the {name}.\n\n{HANDBOOK}"}, {"role": "user", "content": question}]


class LiteLLMDriver:
    """All roles ask by one function of LiteLLM's, or by one router."""

    api = "openai-chat"
    ways = ("invoke", "stream", "ainvoke", "astream")
    budgets = True

    def __init__(self, vendor, *, router=False):
        self.vendor, self.router = vendor, router
        self.rules = RULES[vendor]

    def run(self, team, provider, session):
        """Play the team."""
        if self.router:
            router = router_for((self.vendor, provider))
            asking = router if session is None else wrap(router, session)
            ask, aask, model, options = asking.completion, asking.acompletion, self.vendor, {}
        else:
            both = litellm.completion, litellm.acompletion
            ask, aask = both if session is None else (wrap(each, session) for each in both)
            model, options = MODELS[self.vendor], place(self.vendor, provider)

        def prepared(body):
            return {**body, **options, **({"stream": True} if "stream" in team.way else {})}

        def send(role, body):
            with in_role(role.name, conversation=team.thread):
                answer = ask(**prepared(body))
            return litellm.stream_chunk_builder(list(answer)) if team.way == "stream" else answer

        async def sent(role, body):
            with in_role(role.name, conversation=team.thread):
                answer = await aask(**prepared(body))
            chunks = [chunk async for chunk in answer] if team.way == "astream" else []
            return litellm.stream_chunk_builder(chunks) if chunks else answer

        async def later():
            loop = asyncio.get_running_loop()

            def send(role, body):
                return asyncio.run_coroutine_threadsafe(sent(role, body), loop).result()

            return await asyncio.to_thread(play, team, "openai-chat", model, send)

        return asyncio.run(later()) if team.way.startswith("a") else play(team, "openai-chat", model, send)
