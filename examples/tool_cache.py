"""Three researchers look things up, and what one has looked up the others need not look up again.

python examples/tool_cache.py --layout shared

Only tools declared pure are cached, errors never, and a write outdates what depends on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from _plain import HANDBOOK, Example, main

from cacheprefix import ForkPolicy
from cacheprefix.server import Reply, Request, Script, ToolCall
from cacheprefix.toolcache import ToolResultCache, ToolSpec

TOPICS = ("brakes", "chains", "tyres")
LOOKUP = {
    "name": "look_up",
    "description": "Look a topic up in the catalogue.",
    "parameters": {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]},
}
NOTE = {
    "name": "take_note",
    "description": "Correct the catalogue's text about a topic.",
    "parameters": {
        "type": "object",
        "properties": {"topic": {"type": "string"}, "text": {"type": "string"}},
        "required": ["topic", "text"],
    },
}
SPECS = {
    "look_up": ToolSpec("look_up", cacheable=True, reads=("catalogue:topic",)),
    "take_note": ToolSpec("take_note", mutates=("catalogue:topic",)),
}


def script() -> Script:
    """Offline, each researcher looks up every topic; the second corrects one of them in between."""

    def answer(request: Request) -> Reply:
        if request.rounds < len(TOPICS):
            if request.rounds == 1 and 'name="critic"' in request.text:
                return Reply(tool_calls=(ToolCall("take_note", {"topic": "brakes", "text": "Discs only."}),))
            return Reply(tool_calls=(ToolCall("look_up", {"topic": TOPICS[request.rounds]}),))
        return Reply("I have seen all there is.")

    return answer


def tool_cache(example: Example) -> str:
    """Reader, critic and writer, each with its own tool loop."""
    catalogue = {topic: f"{topic}: " + f"a long text about {topic}. " * 60 for topic in TOPICS}
    ran: Counter[str] = Counter()
    cache = ToolResultCache()

    def work(name: str, arguments: Mapping[str, Any]) -> str:
        ran[name] += 1
        if name == "take_note":
            catalogue[arguments["topic"]] = str(arguments["text"])
            return "noted"
        return catalogue.get(arguments["topic"], "nothing is known")

    def execute(_id: str, name: str, arguments: Mapping[str, Any]) -> str:
        if not example.shared:
            return work(name, arguments)
        return cache.call(SPECS[name], arguments, lambda: work(name, arguments))

    text = ""
    for role in ("reader", "critic", "writer"):
        system = HANDBOOK if example.shared else f"You are the {role}.\n\n{HANDBOOK}"
        text = example.session.fork(
            "Look everything up before you answer.",
            body=example.body([{"role": "user", "content": "What do we know about bicycles?"}], system, (LOOKUP, NOTE)),
            api=example.kind,
            send=example.send,
            role=role,
            tool_executor=execute,
            policy=ForkPolicy(skip_transcript=True),
        ).text
    example.extra["tools_run"] = dict(ran)
    return text


if __name__ == "__main__":
    main(tool_cache, script, tools=[LOOKUP, NOTE])
