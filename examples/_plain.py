"""What the examples without a framework have in common: arguments, an SDK client, a report.

``--layout unmodified`` sends the requests as such programs are usually written and only measures; ``--layout
shared`` makes them forks of one prefix. With ``OPENAI_API_KEY`` or ``OPENAI_BASE_URL`` set that provider is asked
(``ANTHROPIC_...`` with ``--api anthropic``, ``MODEL`` names the model); without, a simulated provider answers and
nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from cacheprefix import Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.server import Script, SimulatedProvider

RULES = (
    "keep every claim next to the place it comes from, so that a reader can check it without asking.",
    "name the file, the line and the reason before you change anything, and change no more than that.",
    "say what you ruled out and how, so that nobody has to rule it out a second time.",
    "prefer the smaller change, and say in one sentence what it leaves undone.",
    "a number without a unit, a date or the command that gave it is not a number.",
    "when two sources disagree, show both, say which one you follow, and say why.",
    "write for someone who was not in the room: no names of meetings, no words that only we use.",
    "stop and ask when the next step cannot be undone; go on when it can.",
)
HANDBOOK = "The handbook of the house.\n" + "\n".join(
    f"{chapter}.{number} In matters of chapter {chapter}: {rule}"
    for chapter in range(1, 25)
    for number, rule in enumerate(RULES, 1)
)
"""What all agents have in common; some 5,000 tokens, more than any provider's minimum."""

MODELS = {"openai": "gpt-4.1-2025-04-14", "anthropic": "claude-opus-4-1"}
KINDS = {"openai": "openai-chat", "anthropic": "anthropic"}


@dataclass
class Example:
    """One run: the session that watches it and the provider it talks to."""

    layout: str
    api: str
    session: Session
    url: str | None
    offline: bool
    extra: dict[str, Any] = field(default_factory=dict)
    """What the example adds to its JSON."""
    foreign: list[Mapping[str, Any]] = field(default_factory=list)
    """Reports of sessions in other processes."""
    clients: list[Any] = field(default_factory=list)

    @property
    def shared(self) -> bool:
        """Whether agents are forks of one prefix."""
        return self.layout == "shared"

    @property
    def kind(self) -> Any:
        """The wire form, as ``AdapterSession.begin`` and ``Session.fork`` want it."""
        return KINDS[self.api]

    @property
    def model(self) -> str:
        """The model's name."""
        return os.environ.get("MODEL") or MODELS[self.api]

    def body(
        self, messages: Sequence[Mapping[str, Any]], system: str = HANDBOOK, tools: Iterable[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """A request body; ``tools`` are ``{"name", "description", "parameters"}``."""
        listed = list(tools)
        if self.api == "anthropic":
            body: dict[str, Any] = {"model": self.model, "max_tokens": 800, "messages": list(messages)}
            # As blocks, so that a cache mark fits on them.
            body["system"] = [{"type": "text", "text": system}]
            if listed:
                named = ("name", "description")
                body["tools"] = [
                    {**{name: tool[name] for name in named}, "input_schema": tool["parameters"]} for tool in listed
                ]
            return body
        body = {"model": self.model, "messages": [{"role": "system", "content": system}, *messages]}
        if listed:
            body["tools"] = [{"type": "function", "function": dict(tool)} for tool in listed]
        return body

    def send(self, body: Mapping[str, Any]) -> Any:
        """One call with the provider's own SDK."""
        client = self._client(asynchronous=False)
        return (client.messages if self.api == "anthropic" else client.chat.completions).create(**body)

    async def asend(self, body: Mapping[str, Any]) -> Any:
        """The same without blocking the event loop."""
        client = self._client(asynchronous=True)
        return await (client.messages if self.api == "anthropic" else client.chat.completions).create(**body)

    def call(self, body: Mapping[str, Any], agent: str = "", **options: Any) -> Any:
        """One request through the session: mark, send, and say what was used. Gives the SDK's response."""
        turn = self.session.adapter.begin(Request(body, self.kind, agent=agent, **options))
        try:
            response = self.send(turn.body)
        except Exception:
            turn.fail()
            raise
        turn.finish(response.usage)
        return response

    def said(self, response: Any) -> dict[str, Any]:
        """The answer as a message for the history."""
        if self.api == "anthropic":
            return {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in response.content]}
        message: dict[str, Any] = response.choices[0].message.model_dump(exclude_none=True)
        return message

    def _client(self, *, asynchronous: bool) -> Any:
        if self.api == "anthropic":
            import anthropic  # noqa: PLC0415 - one of two

            kind: Any = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
        else:
            import openai  # noqa: PLC0415 - the other

            kind = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        found = next((client for client in self.clients if type(client) is kind), None)
        if found is None:
            options = {"base_url": self.url} if self.url else {}
            if not os.environ.get(f"{self.api.upper()}_API_KEY"):
                options["api_key"] = "offline"
            found = kind(**options)
            self.clients.append(found)
        return found

    async def close(self) -> None:
        """Close the clients' connections."""
        for client in self.clients:
            done = client.close()
            if inspect.isawaitable(done):
                await done
        self.clients.clear()


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message in either form."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(block.get("text", "")) for block in content)


def main(
    body: Callable[[Example], Any],
    script: Callable[[], Script] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    prefix: SharedPrefix | None = None,
    **session_options: Any,
) -> None:
    """Parse arguments, run the example (a function or a coroutine function), print its answer and what it cost."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(body))
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    name = options.api.upper()
    url = os.environ.get(f"{name}_BASE_URL")
    offline = not url and not os.environ.get(f"{name}_API_KEY")
    mode: Any = "fork" if options.layout == "shared" else "observe"
    session = Session(prefix or SharedPrefix(system=HANDBOOK, tools=tools), mode=mode, **session_options)
    with ExitStack() as stack:
        if offline:
            provider = stack.enter_context(SimulatedProvider(options.api, script() if script else None))
            url = provider.openai_base_url if options.api == "openai" else provider.anthropic_base_url
        example = Example(options.layout, options.api, session, url, offline)
        answer = asyncio.run(_run(body, example))
    report = session.report()
    workers = {"workers": example.foreign} if example.foreign else {}
    units = report.total.cost_units + sum(one["total"]["cost_units"] for one in example.foreign)
    if options.json:
        told = {"layout": options.layout, "api": options.api, "simulated": offline, "answer": answer}
        print(
            json.dumps({**told, "cost_units": units, "report": report.as_dict(), **workers, **example.extra}, indent=1)
        )
        return
    print(answer, "", report, sep="\n")
    for line in (f"{name}: {value}" for name, value in example.extra.items()):
        print(line)
    if example.foreign:
        print(f"with the other processes: {units:,.0f} cost units")


async def _run(body: Callable[[Example], Any], example: Example) -> str:
    try:
        answer: str | Awaitable[str] = body(example)
        return await answer if inspect.isawaitable(answer) else answer
    finally:
        await example.close()
