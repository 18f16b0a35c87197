"""What every AutoGen example has in common: its arguments, its model client, and its report.

``--layout unmodified`` only observes; ``--layout shared`` makes the agents forks of one prefix. With
``OPENAI_API_KEY`` or ``OPENAI_BASE_URL`` set, that provider is asked (``ANTHROPIC_API_KEY`` or
``ANTHROPIC_BASE_URL`` with ``--api anthropic``); without, a simulated one answers, and nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from autogen_core.models import ChatCompletionClient, ModelFamily, ModelInfo

from cacheprefix import Session
from cacheprefix.server import Script, SimulatedProvider
from cacheprefix_autogen import wrap

HANDBOOK = "The handbook of the house.\n" + "\n".join(
    f"{number}. {rule}"
    for number, rule in enumerate(
        (
            "Keep every claim next to the place it comes from.",
            "Name the file, the line and the reason before you change anything.",
            "Say what you ruled out, so that nobody has to rule it out again.",
            "Prefer the smaller change, and say what it leaves undone.",
            "A number without a unit is not a number.",
            "When two sources disagree, show both and say which one you follow and why.",
        )
        * 14,
        1,
    )
)


def role(name: str, duty: str) -> str:
    """A system message as AutoGen's documentation writes it: the role first, then what all have in common."""
    return f"You are the {name}. {duty}\n\n{HANDBOOK}"


@dataclass
class Example:
    """One run: the client to build agents with, and the session that watches it."""

    layout: str
    api: str
    session: Session
    base_url: str | None
    offline: bool
    clients: list[ChatCompletionClient] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """What the example adds to its JSON."""

    def client(self) -> ChatCompletionClient:
        """AutoGen's own client of the provider in use."""
        openai = self.api == "openai"
        model = os.environ.get("MODEL") or ("gpt-4.1-2025-04-14" if openai else "claude-sonnet-4-5-20250929")
        info = ModelInfo(
            vision=False,
            function_calling=True,
            json_output=True,
            family=ModelFamily.GPT_41 if openai else ModelFamily.CLAUDE_4_SONNET,
            structured_output=openai,
            multiple_system_messages=openai,
        )
        options: dict[str, Any] = {"model": model, "model_info": info}
        if self.base_url:
            options["base_url"] = self.base_url
        if self.offline:
            options["api_key"] = "offline"
        if openai:
            from autogen_ext.models.openai import OpenAIChatCompletionClient  # noqa: PLC0415 - one of two

            self.clients.append(OpenAIChatCompletionClient(**options))
        else:
            from autogen_ext.models.anthropic import AnthropicChatCompletionClient  # noqa: PLC0415 - the other

            self.clients.append(AnthropicChatCompletionClient(**options))
        return self.clients[-1]

    def wrapped(self, target: Any, **options: Any) -> Any:
        """The agent or team with the session bound to it."""
        return wrap(target, self.session, **options)


def main(
    body: Callable[[Example], Awaitable[str]],
    script: Callable[[], Script] | None = None,
    **session_options: Any,
) -> None:
    """Parse arguments, run the example, print its last message and what its input cost."""
    parser = argparse.ArgumentParser(description=(body.__doc__ or "").strip())
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    variable = options.api.upper()
    base_url = os.environ.get(f"{variable}_BASE_URL")
    offline = not base_url and not os.environ.get(f"{variable}_API_KEY")
    session = Session(mode="fork" if options.layout == "shared" else "observe", **session_options)
    with ExitStack() as stack:
        if offline:
            provider = stack.enter_context(SimulatedProvider(options.api, script() if script else None))
            base_url = provider.openai_base_url if options.api == "openai" else provider.anthropic_base_url
        no_key = not os.environ.get(f"{variable}_API_KEY")
        example = Example(options.layout, options.api, session, base_url, offline or no_key)

        async def run() -> str:
            try:
                return await body(example)
            finally:
                for client in example.clients:
                    await client.close()

        last = asyncio.run(run())
    if options.json:
        result = {
            "layout": options.layout,
            "api": options.api,
            "simulated": offline,
            "answer": last,
            "report": session.report().as_dict(),
        }
        print(json.dumps({**result, **example.extra}, indent=1))
        return
    print(last)
    print()
    print(session.report())
