"""A person decides: the thread waits in its checkpoint, and goes on with the same bytes in front."""

from __future__ import annotations

from typing import Any

from _rows import CONFIG, State, row, speaker
from _run import Example, main, task
from langgraph.types import Command, interrupt


def human_in_the_loop(example: Example) -> str:
    """After draft and cut someone approves or sends it back; the sender then reads all of it from the cache."""

    def approve(state: State) -> Command[Any]:
        said = interrupt({"question": "Shall this be sent?", "draft": state["messages"][-1].text})
        return Command(update={"messages": [("user", f"The decision: {said}")]})

    graph = row(example, approve=approve, sender=speaker(example, "sender", "Send what was approved."))
    graph.invoke(task(), CONFIG)
    waiting = graph.get_state(CONFIG)
    example.extra["asked"] = [pending.value["question"] for pending in waiting.interrupts]
    return str(graph.invoke(Command(resume="yes, but name the date"), CONFIG)["messages"][-1].text)


if __name__ == "__main__":
    main(human_in_the_loop)
