"""A long conversation with large tool results, kept short without rewriting it at every turn.

python examples/compaction.py --layout shared

Unmodified, the program keeps the last 24 messages: from then on every request begins differently and nothing is read.
Shared, large results are cut once when they arrive, and old ones are cleared rarely, many at a time, when the price of
the rewrite is earned back.
"""

from __future__ import annotations

from _plain import Example, main, text_of

from cacheprefix import Compaction, ToolResultBudget
from cacheprefix.server import Reply, Request, Script, ToolCall

READ = {
    "name": "read_page",
    "description": "Read one page of the archive.",
    "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]},
}
PAGES = 16
KEEP = 24


def page(number: int) -> str:
    """A page of the archive, some 1,500 tokens; the important line is its last."""
    body = "\n".join(f"{number}.{line} entry about order {number * 100 + line}, delivered" for line in range(120))
    return f"{body}\nnote: page {number} is complete"


def script() -> Script:
    """Offline, the model reads the page it is asked for and then says one sentence."""

    def answer(request: Request) -> Reply:
        if request.rounds == 0 and request.asked.tools:
            return Reply(tool_calls=(ToolCall("read_page", {"page": request.index // 2}),))
        return Reply("The page is complete and holds nothing unusual.")

    return answer


def results(example: Example, message: dict[str, object], text: str) -> list[dict[str, object]]:
    """The tool results that a message asks for; empty where it asks for none."""
    if example.api == "anthropic":
        blocks = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": text}
            for block in message["content"]  # type: ignore[attr-defined]
            if block["type"] == "tool_use"
        ]
        return [{"role": "user", "content": blocks}] if blocks else []
    calls = message.get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]  # type: ignore[attr-defined]


def compaction(example: Example) -> str:
    """Sixteen pages are read and judged, one after the other."""
    history: list[dict[str, object]] = []
    conversation = example.session.conversation("thread-1", api=example.kind, model=example.model)
    message: dict[str, object] = {}
    for number in range(PAGES):
        new: list[dict[str, object]] = [{"role": "user", "content": f"Read page {number} and judge it."}]
        while new:
            if example.shared:
                conversation.append(*new)
                built = conversation.build()
                messages = built.messages if example.api == "anthropic" else built.messages[1:]
                options = {"conversation": conversation, "boundary": built.boundary}
            else:
                history += new
                # A turn is four messages, and the window begins with one of the user's.
                start = max(0, len(history) - KEEP)
                messages, options = history[start + -start % 4 :], {}
            message = example.said(example.call(example.body(messages, tools=[READ]), "reader", **options))
            (conversation.append if example.shared else history.append)(message)
            new = results(example, message, page(number))
    if example.shared:
        example.extra["compactions"] = conversation.ledger.epoch
    return text_of(message)


if __name__ == "__main__":
    main(
        compaction,
        script,
        tools=[READ],
        budget=ToolResultBudget(max_tokens=1_000),
        compaction=Compaction(trigger=14_000, target=9_000),
    )
