"""What the LangGraph examples have in common: their arguments, their chat model, and their report.

``--layout unmodified`` only observes; ``--layout shared`` makes the calls forks of one prefix. With
``OPENAI_API_KEY`` or ``OPENAI_BASE_URL`` set, that provider is asked (``ANTHROPIC_API_KEY`` or
``ANTHROPIC_BASE_URL`` with ``--api anthropic``); without, a simulated one answers, and nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Script, SimulatedProvider
from cacheprefix_langgraph import wrap_model


def _numbered(title: str, lines: tuple[str, ...], times: int) -> str:
    return f"{title}\n" + "\n".join(f"{number}. {line}" for number, line in enumerate(lines * times, 1))


HANDBOOK = _numbered(
    "The handbook of the house.",
    (
        "Keep every claim next to the place it comes from.",
        "Name the file, the line and the reason before you change anything.",
        "Say what you ruled out, so that nobody has to rule it out again.",
        "Prefer the smaller change, and say what it leaves undone.",
        "A number without a unit is not a number.",
        "When two sources disagree, show both and say which one you follow and why.",
    ),
    14,
)
BRIEF = _numbered(
    "Shall we move the archive to the new building? What we know so far:",
    (
        "The archive holds 4,100 boxes on 310 m of shelves, two thirds of them not opened since 2015.",
        "The new building has 290 m of shelves, a lift for 600 kg, and is damp in the north wing.",
        "Three offers were made for the transport, between 18,000 and 31,000 euros, none of them with insurance.",
        "The lease of the old building ends in March and can be prolonged by the month.",
    ),
    14,
)


def role(name: str, duty: str) -> str:
    """A system message as applications write it: the role first, then what all have in common."""
    return f"You are the {name}. {duty}\n\n{HANDBOOK}"


def task(text: str = BRIEF) -> dict[str, Any]:
    """The state that a graph is invoked with."""
    return {"messages": [HumanMessage(text, id="task")]}


@dataclass
class Example:
    """One run: the chat model, and the session that watches it or shares its prefix."""

    layout: str
    api: str
    session: Session
    model: BaseChatModel
    extra: dict[str, Any] = field(default_factory=dict)
    """What the example adds to its JSON."""

    @property
    def shared(self) -> bool:
        """Whether calls are to become forks."""
        return self.layout == "shared"

    def llm(self, role: str | None = None) -> Any:
        """The model, wrapped with the session; bound to a role for graphs that call it in nodes of their own."""
        return wrap_model(self.model, self.session, role=role) if role else wrap_model(self.model, self.session)


def chat_model(api: str, base_url: str | None, *, keyless: bool) -> BaseChatModel:
    """LangChain's own client of the provider in use."""
    options: dict[str, Any] = {"base_url": base_url} if base_url else {}
    if keyless:
        options["api_key"] = "offline"
    if api == "openai":
        from langchain_openai import ChatOpenAI  # noqa: PLC0415 - one of two

        return ChatOpenAI(model=os.environ.get("MODEL") or "gpt-4.1-2025-04-14", **options)
    from langchain_anthropic import ChatAnthropic  # noqa: PLC0415 - the other

    return ChatAnthropic(model_name=os.environ.get("MODEL") or "claude-sonnet-4-5-20250929", **options)


def main(body: Callable[[Example], str], script: Callable[[], Script] | None = None, **session_options: Any) -> None:
    """Parse arguments, run the example, print what it came to and what its input cost."""
    parser = argparse.ArgumentParser(description=(body.__doc__ or "").strip())
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    variable = options.api.upper()
    base_url = os.environ.get(f"{variable}_BASE_URL")
    keyless = not os.environ.get(f"{variable}_API_KEY")
    offline = keyless and not base_url
    mode = "fork" if options.layout == "shared" else "observe"
    session = Session(SharedPrefix(system=HANDBOOK), mode=mode, **session_options)  # type: ignore[arg-type]
    with ExitStack() as stack:
        if offline:
            provider = stack.enter_context(SimulatedProvider(options.api, script() if script else None))
            base_url = provider.openai_base_url if options.api == "openai" else provider.anthropic_base_url
        model = chat_model(options.api, base_url, keyless=keyless)
        example = Example(options.layout, options.api, session, model)
        answer = body(example)
    if options.json:
        result = {
            "layout": options.layout,
            "api": options.api,
            "simulated": offline,
            "answer": answer,
            "report": session.report().as_dict(),
        }
        print(json.dumps({**result, **example.extra}, indent=1))
        return
    print(answer)
    print()
    print(session.report())
