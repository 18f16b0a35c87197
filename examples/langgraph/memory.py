"""Session memory: a fork reads the finished conversation from the cache and says what to remember."""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory

from _rows import CONFIG, row
from _run import Example, main, task

from cacheprefix.server import Echo, Reply, Request
from cacheprefix_langgraph import FileMemory, memory_node


def memory(example: Example) -> str:
    """The last node of the graph merges preferences, facts, task state, questions and artifacts into a file."""
    with TemporaryDirectory() as folder:
        keeper = FileMemory(folder)
        graph = row(example, remember=memory_node(example.llm(), keeper=keeper, id="archive"))
        graph.invoke(task(), CONFIG)
        known = keeper.load("archive")
    example.extra["remembered"] = known.as_dict()
    return known.to_markdown() or "Nothing was worth remembering."


class Remembering:
    """Answers offline: a memory for those who ask for one, an echo for the others."""

    def __init__(self) -> None:
        self._echo = Echo(200)

    def __call__(self, request: Request) -> Reply:
        """The answer to a request."""
        if "should be remembered" not in request.text:
            return self._echo(request)
        facts = {"project_facts": ["the lease ends in March"], "open_questions": ["who pays for the insurance?"]}
        return Reply("```json\n" + json.dumps({"additions": facts, "rationale": "both may come up again"}) + "\n```")


if __name__ == "__main__":
    main(memory, Remembering)
