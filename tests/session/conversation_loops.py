"""Plain SDK loops around a conversation, as an application without a framework writes them."""

from __future__ import annotations

import time

import anthropic
import openai

from cacheprefix import Caching, ForkPolicy, Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, ToolCall

SYSTEM = "The handbook says that every statement needs a source. " * 120
MODEL = {"openai-chat": "gpt-5.6", "openai-responses": "gpt-5.6", "anthropic": "claude-sonnet-4-6"}
RULES = {"openai-chat": "openai-5.6", "openai-responses": "openai-5.6", "anthropic": "anthropic"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = {
    "openai-chat": [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}],
    "openai-responses": [{"type": "function", "name": "look", "description": "Look.", "parameters": SCHEMA}],
    "anthropic": [{"name": "look", "description": "Look.", "input_schema": SCHEMA}],
}


def script(request):
    """Ask for the tool twice where the user says so, then answer."""
    if "use the tool" in request.text and request.rounds < 2 and request.asked.tools:
        return Reply(tool_calls=(ToolCall("look", {"n": request.rounds}),))
    return Reply(text=f"An answer of some length, number {len(request.text)}. " * 3)


class Loop:
    """One conversation, one session, one SDK client."""

    def __init__(self, kind, provider, id_="thread", *, clock=None, conversation=None, **options):
        wanted = conversation or {}
        self.kind = kind
        self.provider = provider
        caching = Caching(counter=ESTIMATE, clock=clock or time.time)
        self.session = Session(SharedPrefix(system=SYSTEM), caching=caching, **options)
        self.conversation = self.session.conversation(id_, api=kind, model=MODEL[kind], **wanted)
        self.id = id_
        self.verdicts = []
        if kind == "anthropic":
            self.client = anthropic.Anthropic(base_url=provider.anthropic_base_url, api_key="k", max_retries=0)
        else:
            self.client = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)

    def body(self, built):
        """The request of an application: built messages beside model and tools."""
        body = {"model": MODEL[self.kind], "tools": TOOLS[self.kind]}
        if self.kind == "openai-responses":
            return body | {"instructions": built.system, "input": built.messages, "store": False}
        body["messages"] = built.messages
        if self.kind == "anthropic":
            body |= {"system": [{"type": "text", "text": built.system}], "max_tokens": 500}
        return body

    def send(self, body):
        """One call of the SDK."""
        if self.kind == "anthropic":
            return self.client.messages.create(**body)
        if self.kind == "openai-responses":
            return self.client.responses.create(**body)
        return self.client.chat.completions.create(**body)

    def call(self, volatile=None):
        """One request on the conversation; its answer is appended."""
        built = self.conversation.build(volatile)
        policy = ForkPolicy(skip_cache_write=True) if volatile else None
        turn = self.session.adapter.begin(
            Request(
                self.body(built), self.kind, agent="one", conversation=self.id, boundary=built.boundary, policy=policy
            )
        )
        try:
            response = self.send(turn.body)
        except Exception:
            turn.fail()
            raise
        self.verdicts.append(turn.finish(response.usage))
        return self._answer(response)

    def say(self, text, volatile=None, result="looked"):
        """The user speaks, and the tools run until there is an answer."""
        self.conversation.append({"role": "user", "content": text})
        while calls := self.call(volatile):
            self.conversation.append(*self._results(calls, result))

    def _answer(self, response):
        if self.kind == "anthropic":
            blocks = [block.model_dump(exclude_none=True) for block in response.content]
            self.conversation.append({"role": "assistant", "content": blocks})
            return [block["id"] for block in blocks if block["type"] == "tool_use"]
        if self.kind == "openai-responses":
            items = [item.model_dump(exclude_none=True) for item in response.output]
            self.conversation.append(*items)
            return [item["call_id"] for item in items if item["type"] == "function_call"]
        message = response.choices[0].message.model_dump(exclude_none=True)
        self.conversation.append(message)
        return [call["id"] for call in message.get("tool_calls") or ()]

    def _results(self, calls, result):
        if self.kind == "anthropic":
            blocks = [{"type": "tool_result", "tool_use_id": call, "content": result} for call in calls]
            return [{"role": "user", "content": blocks}]
        if self.kind == "openai-responses":
            return [{"type": "function_call_output", "call_id": call, "output": result} for call in calls]
        return [{"role": "tool", "tool_call_id": call, "content": result} for call in calls]

    def close(self):
        """Close the SDK's connections."""
        self.client.close()
