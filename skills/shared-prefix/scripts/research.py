"""Deep research in a folder of documents: planner, parallel researchers, writer, all forks of one prompt.

python research.py "What may never break?" --sources docs --model gpt-5.5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheprefix import ForkPolicy, Session, SharedPrefix, ToolResultBudget

SYSTEM = """You are part of a research team that answers a question from a folder of documents.
Work only with what the documents say. Put the file's name behind every claim, in brackets.
Say plainly what the documents do not answer. Do not repeat what another member has already established.
The last message names your role in the team and your task."""
ROLES = {
    "planner": "Split the question into {count} parts that can be looked into separately, one line each, nothing else.",
    "researcher": "Look into this part of the question and write down what you find, with sources: {part}",
    "writer": "Write the report from the notes above: answer first, then the evidence, then what stayed open.",
}
TOOLS = [
    {
        "name": "read",
        "description": "Read a document, or a part of it.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "first_line": {"type": "integer", "minimum": 1}},
            "required": ["name"],
        },
    },
    {
        "name": "search",
        "description": "Find lines that contain all the words, in any document.",
        "parameters": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
    },
]
SUFFIXES = (".md", ".rst", ".txt")
_LINES = 120
_HITS = 20
_LARGE = 1_000_000
_OVERVIEW = 24_000
"""Characters of all beginnings together; also what makes the shared part long enough to be cached."""


class Library:
    """The documents below a folder. Nothing outside of it is ever read."""

    def __init__(self, folder: str | Path) -> None:
        root = Path(folder).resolve()
        self.documents = {
            path.relative_to(root).as_posix(): path
            for path in sorted(root.rglob("*"))
            if path.suffix in SUFFIXES and path.resolve().is_relative_to(root)
            if path.is_file() and path.stat().st_size < _LARGE
        }

    def catalogue(self) -> str:
        """Every document's name and how it begins: what all members know before they look."""
        room = min(2_000, max(300, _OVERVIEW // max(1, len(self.documents))))
        heads = {name: "\n".join(self._lines(name))[:room] for name in self.documents}
        return "\n".join(f'<document name="{name}">\n{head}\n</document>' for name, head in heads.items())

    def use(self, _id: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one of the two tools. Raises ``LookupError`` for a document that is not there."""
        return self.search(str(arguments["words"])) if name == "search" else self.read(**arguments)

    async def ause(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> str:
        """The same from a thread: members work side by side in one event loop, and files are read."""
        return await asyncio.to_thread(self.use, call_id, name, arguments)

    def read(self, name: str, first_line: int = 1) -> str:
        """Up to 120 lines of a document."""
        if name not in self.documents:
            raise LookupError(f"no document {name!r}; there are: {', '.join(self.documents)}")
        lines = self._lines(name)
        start = max(0, first_line - 1)
        rest = len(lines) - start - _LINES
        more = f"\n({rest} more lines from {start + _LINES + 1})" if rest > 0 else ""
        return "\n".join(lines[start : start + _LINES]) + more

    def search(self, words: str) -> str:
        """The first 20 lines that hold all the words."""
        wanted = words.lower().split()
        found = [
            f"{name}:{number}: {line.strip()[:200]}"
            for name in self.documents
            for number, line in enumerate(self._lines(name), 1)
            if all(word in line.lower() for word in wanted)
        ]
        return "\n".join(found[:_HITS]) or "nothing found"

    def _lines(self, name: str) -> list[str]:
        return self.documents[name].read_text("utf-8", errors="replace").splitlines()


@dataclass(frozen=True)
class Asking:
    """How to reach the model: wire form, model, and one call with the provider's own SDK."""

    api: Any
    model: str
    send: Callable[[dict[str, Any]], Awaitable[Any]]

    def body(self, system: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """A request of the team: everything that all members have in common."""
        if self.api == "anthropic":
            tools = [
                {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                for tool in TOOLS
            ]
            blocks = [{"type": "text", "text": system}]
            return {"model": self.model, "max_tokens": 2_000, "system": blocks, "tools": tools, "messages": messages}
        functions = [{"type": "function", "function": tool} for tool in TOOLS]
        return {"model": self.model, "tools": functions, "messages": [{"role": "system", "content": system}, *messages]}


def session_for(library: Library, *, mode: Any = "fork") -> Session:
    """A session whose prefix holds the instructions and the catalogue; large tool results are cut once."""
    system = f"{SYSTEM}\n\nThe documents and how they begin:\n{library.catalogue()}"
    return Session(SharedPrefix(system=system, tools=TOOLS), mode=mode, budget=ToolResultBudget(max_tokens=3_000))


async def research(
    question: str, library: Library, asking: Asking, session: Session, *, researchers: int = 3, alone: bool = False
) -> str:
    """The report. ``alone=True`` gives every member a prompt of its own, as a comparison."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]

    async def member(role: str, name: str, **details: Any) -> str:
        duty = ROLES[role].format(**details)
        system = f"You are the {role} {name}. {duty}\n\n{session.prefix.text}" if alone else session.prefix.text
        result = await session.afork(
            duty,
            body=asking.body(system, list(messages)),
            api=asking.api,
            send=asking.send,
            role=name,
            tool_executor=library.ause,
            # Below the provider's minimum nothing is cached; the research goes on all the same.
            policy=ForkPolicy(cache_safe=False, skip_transcript=True, purpose=role),
        )
        return result.text

    plan = await member("planner", "planner", count=researchers)
    parts = [line.strip(" -*0123456789.") for line in plan.splitlines() if line.strip()][:researchers]
    messages.append({"role": "assistant", "content": f"The parts of the question:\n{plan}"})
    # One goes ahead and writes what the others read; sent all at once, each would pay for it.
    notes = [await member("researcher", "researcher-1", part=parts[0])]
    others = [member("researcher", f"researcher-{n}", part=part) for n, part in enumerate(parts[1:], 2)]
    notes += await asyncio.gather(*others)
    told = "\n\n".join(f"Notes on {part}:\n{note}" for part, note in zip(parts, notes, strict=True))
    messages.append({"role": "user", "content": told})
    return await member("writer", "writer")


def offline_script() -> Any:
    """Answers of the simulated model: a plan, two tool rounds for each researcher, notes, a report."""
    from cacheprefix.server import Reply, ToolCall  # noqa: PLC0415 - only when offline

    def answer(request: Any) -> Any:
        text = request.text
        if 'role name="planner"' in text:
            return Reply("What it is\nHow it is measured\nWhere it ends")
        if 'role name="writer"' in text:
            return Reply("The documents answer the question in part. [architecture.md]")
        if request.rounds == 0:
            return Reply(tool_calls=(ToolCall("search", {"words": "cache"}),))
        if request.rounds == 1:
            return Reply(tool_calls=(ToolCall("read", {"name": "architecture.md"}),))
        return Reply("The rooms and their order are described there. [architecture.md]")

    return answer


def reach(api: str, model: str, url: str | None, key: str | None) -> tuple[Asking, Any]:
    """The provider's asynchronous SDK client, and how to ask through it."""
    options = {name: value for name, value in (("base_url", url), ("api_key", key)) if value}
    if api == "anthropic":
        import anthropic  # noqa: PLC0415 - one of two

        client: Any = anthropic.AsyncAnthropic(**options)
        create = client.messages.create
    else:
        import openai  # noqa: PLC0415 - the other

        client = openai.AsyncOpenAI(**options)
        create = client.chat.completions.create

    async def send(body: dict[str, Any]) -> Any:
        return await create(**body)

    return Asking("anthropic" if api == "anthropic" else "openai-chat", model, send), client


async def run(given: argparse.Namespace, library: Library, url: str | None) -> tuple[str, Session]:
    """Research once with what the command line says."""
    model = given.model or ("claude-sonnet-4-6" if given.api == "anthropic" else "gpt-4.1-2025-04-14")
    session = session_for(library, mode="fork" if given.layout == "shared" else "observe")
    asking, client = reach(given.api, model, url, "offline" if given.offline else None)
    try:
        alone = given.layout == "unmodified"
        report = await research(given.question, library, asking, session, researchers=given.researchers, alone=alone)
    finally:
        await client.close()
    return report, session


def main() -> int:
    """Answer the question; the report goes to standard output, its cost to standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--sources", required=True, help="folder of .md, .rst and .txt files")
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--model")
    parser.add_argument("--researchers", type=int, default=3)
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--offline", action="store_true", help="against the simulated provider, without a key")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    library = Library(given.sources)
    if not library.documents:
        print(f"no {', '.join(SUFFIXES)} files in {given.sources}", file=sys.stderr)
        return 2
    name = given.api.upper()
    url = os.environ.get(f"{name}_BASE_URL")
    if not given.offline and not url and not os.environ.get(f"{name}_API_KEY"):
        print(f"set {name}_API_KEY, or try --offline", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        if given.offline:
            from cacheprefix.server import SimulatedProvider  # noqa: PLC0415 - only when offline

            provider = stack.enter_context(SimulatedProvider(given.api, offline_script()))
            url = provider.anthropic_base_url if given.api == "anthropic" else provider.openai_base_url
        report, session = asyncio.run(run(given, library, url))
    if given.json:
        print(json.dumps({"answer": report, "layout": given.layout, "report": session.report().as_dict()}, indent=1))
    else:
        print(report)
        print(session.report(), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
