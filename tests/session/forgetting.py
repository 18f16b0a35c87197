"""Conversations with every text marked, forgotten one after the other: what is left of them in this process's memory.

The store of full texts is its owner's: what stands there may be asked for by whoever has the history.
"""

from __future__ import annotations

import gc
from typing import Any

from cacheprefix import Compaction, History, Session, SharedPrefix, ToolResultBudget
from cacheprefix.bodies import Role, fork_body
from cacheprefix.prompt import Api
from cacheprefix.stores import MemoryStore, ResultStore

HANDBOOK = "handbook " * 1_000
LIMITS: dict[Api, dict[str, Any]] = {
    "openai-chat": {},
    "openai-responses": {"compaction": Compaction(3_000)},
    "anthropic": {"budget": ToolResultBudget(200)},
}


def held(*marks: str) -> set[tuple[str, str]]:
    """The marks that stand in texts in memory, with what holds them."""
    gc.collect()
    found = set()
    for each in gc.get_objects():
        parts = gc.get_referents(each)
        for part in parts:
            # The garbage collector does not know of tuples and dicts that can be in no circle.
            if isinstance(part, (tuple, dict)) and not gc.is_tracked(part):
                parts.extend(gc.get_referents(part))
            text = part.decode("utf-8", "replace") if isinstance(part, bytes) else part
            if isinstance(text, str):
                found |= {(mark, type(each).__qualname__) for mark in marks if mark in text and text != mark}
    return found


def told(session: Session, api: Api, conversation: str, mark: str, *, answered: bool = True) -> None:
    """A conversation whose every text has these words in it; the role is the application's.

    Where it is not ``answered``, the last request failed.
    """
    history: list[dict[str, Any]] = []
    result = f"{mark}: a long result. " * 200
    for index in range(20):
        history.append({"role": "user", "content": f"{mark}: question {index} " + "lorem ipsum " * 40})
        if index % 5:
            history.append({"role": "assistant", "content": f"{mark}: answer {index} " * 20})
        elif api == "anthropic":
            use = {"type": "tool_use", "id": f"c{index}", "name": "read", "input": {"page": f"{mark} {index}"}}
            history.append({"role": "assistant", "content": [use]})
            given = {"type": "tool_result", "tool_use_id": f"c{index}", "content": result}
            history.append({"role": "user", "content": [given]})
            history.append({"role": "assistant", "content": f"{mark}: {index}"})
        else:
            call = {"name": "read", "arguments": f'{{"page": "{mark} {index}"}}'}
            if api == "openai-responses":
                history.append({"type": "function_call", "call_id": f"c{index}", **call})
                history.append({"type": "function_call_output", "call_id": f"c{index}", "output": result})
            else:
                calls = [{"id": f"c{index}", "type": "function", "function": call}]
                history.append({"role": "assistant", "content": None, "tool_calls": calls})
                history.append({"role": "tool", "tool_call_id": f"c{index}", "content": result})
        body: dict[str, Any] = {"model": "claude-sonnet-4-6" if api == "anthropic" else "gpt-4o"}
        body["input" if api == "openai-responses" else "messages"] = list(history)
        if api == "anthropic":
            body["max_tokens"] = 50
        if history[-1]["role" if "role" in history[-1] else "type"] == "assistant":
            history.append({"role": "user", "content": f"{mark}: and then?"})
            body["input" if api == "openai-responses" else "messages"] = list(history)
        fork = fork_body(session.adapter, body, api, Role("critic", "You criticise.", conversation))
        turn = fork.begin(fork.queue())
        if index == 19 and not answered:
            turn.fail()
            continue
        turn.first_token()
        turn.finish({"input_tokens": 5, "output_tokens": 1} if api != "openai-chat" else {"prompt_tokens": 5})
    assert session.failures == {}


def forget(api: Api, limits: dict[str, Any]) -> None:
    """One of two conversations, then both; of each the last request failed once."""
    kept = MemoryStore()
    session = Session(SharedPrefix(system=HANDBOOK), history=History(results=ResultStore(kept)), **limits)
    marks = {name: f"mark-of-{name}-{api}-x" for name in ("one", "two")}
    for name, mark in marks.items():
        told(session, api, name, mark, answered=name == "two")
    session.forget("one")
    kept.clear("")
    assert {mark for mark, _ in held(*marks.values())} == {marks["two"]}
    told(session, api, "two", marks["two"], answered=False)
    told(session, api, "one", marks["one"])
    session.forget("one")
    session.forget("two")
    kept.clear("")
    assert not held(*marks.values()), held(*marks.values())


if __name__ == "__main__":
    for each, given in LIMITS.items():
        forget(each, given)
    print(", ".join(LIMITS))
