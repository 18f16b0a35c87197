"""A long thread of two roles: results are cut once, old ones go when that pays, and all of it is in the state."""

from __future__ import annotations

from typing import Any

from _rows import CONFIG, row
from _run import Example, main, task
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from cacheprefix import Compaction, ToolResultBudget


def page(number: int) -> list[Any]:
    """A turn with a large tool result."""
    call = {"id": f"call_{number}", "name": "read_page", "args": {"number": number}}
    text = f"page {number}: " + "a line that somebody reads once and hardly ever again; " * 80
    return [
        HumanMessage(f"What does page {number} say?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage(text, tool_call_id=call["id"], name="read_page"),
        HumanMessage(f"And what follows from page {number}?"),
    ]


def compaction(example: Example) -> str:
    """Six turns; the state keeps every message in full, the requests do not."""
    graph = row(example)
    graph.invoke(task(), CONFIG)
    for number in range(6):
        out = graph.invoke({"messages": page(number)}, CONFIG)
    example.extra["messages"] = len(out["messages"])
    example.extra["largest"] = max(call.input_tokens for call in example.session.calls)
    return str(out["messages"][-1].text)


if __name__ == "__main__":
    main(
        compaction,
        budget=ToolResultBudget(max_tokens=800),
        compaction=Compaction(trigger=9_000, keep_turns=2),
    )
