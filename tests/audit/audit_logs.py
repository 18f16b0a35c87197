"""Logs made for the tests: conversations of one or more agents, with what breaks them put in on purpose."""

import gzip
import json
import random
from pathlib import Path

_TEXT = """the cache keeps what it has read and a request that begins alike is served from there while every
word that moves costs the whole rest again so agents append and never edit
order refund ticket flight seat price ledger"""
WORDS = _TEXT.split()


def prose(seed, words):
    """Text that is the same for the same seed."""
    return " ".join(random.Random(repr(seed)).choices(WORDS, k=words))


def tool(name, words=30):
    """A tool as Anthropic takes it."""
    return {
        "name": name,
        "description": prose(name, words),
        "input_schema": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": prose(name + "q", 8)}},
        },
    }


def chat_tool(name, words=30):
    """The same tool as OpenAI takes it."""
    plain = tool(name, words)
    return {
        "type": "function",
        "function": {"name": name, "description": plain["description"], "parameters": plain["input_schema"]},
    }


class Conversation:
    """One agent's growing request, on Anthropic's or OpenAI's wire."""

    def __init__(self, *, api="openai-chat", model=None, system=None, tools=("search", "book"), seed=0, words=120):
        self.api = api
        self.model = model or ("claude-sonnet-4-5" if api == "anthropic" else "gpt-4.1")
        self.system = prose(("system", seed), 1_400) if system is None else system
        self.tools = list(tools)
        self.seed = seed
        self.words = words
        self.messages = [{"role": "user", "content": prose(("task", seed), words)}]
        self.settings = {}

    def turn(self):
        """The model's answer and the next message."""
        count = len(self.messages)
        self.messages.append({"role": "assistant", "content": prose((self.seed, count, "a"), self.words)})
        self.messages.append({"role": "user", "content": prose((self.seed, count, "u"), self.words)})

    def body(self):
        if self.api == "anthropic":
            mark = {"cache_control": {"type": "ephemeral"}}
            *earlier, last = self.messages
            return {
                "model": self.model,
                "max_tokens": 1000,
                "tools": [tool(name) for name in self.tools],
                "system": [{"type": "text", "text": self.system, **mark}],
                "messages": [
                    *(dict(message) for message in earlier),
                    {**last, "content": [{"type": "text", "text": last["content"], **mark}]},
                ],
                **self.settings,
            }
        return {
            "model": self.model,
            "tools": [chat_tool(name) for name in self.tools],
            "messages": [{"role": "system", "content": self.system}, *(dict(message) for message in self.messages)],
            **self.settings,
        }

    def line(self, ts, **more):
        provider = "anthropic" if self.api == "anthropic" else "openai"
        return {"ts": ts, "provider": provider, "session": f"s{self.seed}", "request": self.body(), **more}


def quiet(turns=6, *, api="openai-chat", start=1_000.0, **options):
    """A conversation in which nothing goes wrong."""
    talk = Conversation(api=api, **options)
    lines = []
    for number in range(turns):
        if number:
            talk.turn()
        lines.append(talk.line(start + 20 * number, agent="coder"))
    return lines


def team(rounds=4, *, api="openai-chat", roles=("planner", "coder", "critic"), start=1_000.0, shared_tools=False):
    """Agents with a system and tools of their own that speak about one transcript."""
    talks = [
        Conversation(
            api=api,
            system=f"{prose('handbook', 1_400)}\nYou are the {role}. {prose(role, 60)}",
            tools=("search", "book") if shared_tools else ("search", f"only_{role}"),
        )
        for role in roles
    ]
    lines = []
    for number in range(rounds):
        for at, (role, talk) in enumerate(zip(roles, talks, strict=True)):
            if number or at:
                talk.turn()
            talk.messages = list(talks[0].messages)
            for other in talks:
                other.messages = list(talk.messages)
            lines.append(talk.line(start + 60 * number + 15 * at, agent=role))
    return lines


def write(path, lines, *, packed=False):
    """Lines as JSONL; text stands as it is given."""
    data = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    Path(path).write_bytes(gzip.compress(data) if packed else data)
    return str(path)
