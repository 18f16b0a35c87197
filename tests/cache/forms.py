"""One conversation in every wire form, broken at random places: other texts and turns than those of ``faults``."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults import Case, Step

Body = dict[str, Any]
Call = tuple[str, str, str]
"""Id, tool, argument; of a result the third is its text."""

FORMS = {
    ("openai-chat", "groq"): "llama-4",
    ("openai-responses", "openai"): "gpt-5.1",
    ("openai-responses", "openai-5.6"): "gpt-5.6",
    ("anthropic", "anthropic"): "claude-sonnet-4-5",
    ("gemini", "gemini-implicit"): "gemini-2.5-flash",
    ("bedrock", "bedrock"): "anthropic.claude-sonnet-4-5-v1:0",
}
"""API and rules, and the model that is asked."""

CAUSES = ("tools_changed", "tools_reordered", "system_changed", "history_edited", "history_reordered",
          "history_truncated", "compacted")  # fmt: skip

_SAID = (
    "Der Kunde möchte die Buchung auf morgen verschieben.",
    "旅客希望改签到周五的航班",
    "def total(rows):\n    return sum(row['net'] for row in rows)",
    "## Findings\n- latency p99 rose to 840 ms\n- fewer hits",
    '{"status": "ok", "rows": 12, "next": null}',
    "Traceback (most recent call last):\n  File 'app.py', line 41",
    "Привет! Какой номер заказа?",
    "مرحبا، أحتاج إلى مساعدة",
)


@dataclass(slots=True)
class Talk:
    """A conversation without a form: tools as (name, text), a system text, and rows of who says what."""

    tools: list[tuple[str, str]]
    system: str
    rows: list[tuple[str, str, tuple[Call, ...]]] = field(default_factory=list)
    """("user" | "assistant" | "results", text, calls or results)."""


def body_of(talk: Talk, api: str, model: str) -> Body:
    """The conversation as a request body."""
    return {"model": model, **_WRITERS[api](talk)}


def _schema() -> Body:
    return {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def _chat(talk: Talk) -> Body:
    rows: list[Body] = [{"role": "system", "content": talk.system}]
    for who, text, calls in talk.rows:
        if who == "results":
            rows += [{"role": "tool", "tool_call_id": one[0], "content": one[2]} for one in calls]
            continue
        made: list[Body] = [
            {"id": one[0], "type": "function", "function": {"name": one[1], "arguments": json.dumps({"q": one[2]})}}
            for one in calls
        ]
        rows.append({"role": who, "content": text, **({"tool_calls": made} if made else {})})
    tools = [{"type": "function", "function": {"name": n, "description": t, "parameters": _schema()}}
             for n, t in talk.tools]  # fmt: skip
    return {"messages": rows, "tools": tools}


def _responses(talk: Talk) -> Body:
    items: list[Body] = []
    for who, text, calls in talk.rows:
        if who == "results":
            items += [{"type": "function_call_output", "call_id": one[0], "output": one[2]} for one in calls]
            continue
        kind = "input_text" if who == "user" else "output_text"
        items.append({"role": who, "content": [{"type": kind, "text": text}]})
        items += [
            {"type": "function_call", "call_id": one[0], "name": one[1], "arguments": json.dumps({"q": one[2]})}
            for one in calls
        ]
    tools = [{"type": "function", "name": n, "description": t, "parameters": _schema()} for n, t in talk.tools]
    return {"instructions": talk.system, "input": items, "tools": tools}


def _blocks(talk: Talk, write: Callable[[str, str, Call], Body]) -> list[tuple[str, list[Body]]]:
    """Each row as one message of blocks: its text, then its calls or results."""
    return [
        (who, [*([write("text", who, ("", "", text))] if text else []), *(write(who, who, one) for one in calls)])
        for who, text, calls in talk.rows
    ]


def _anthropic(talk: Talk) -> Body:
    def write(kind: str, _: str, one: Call) -> Body:
        if kind == "text":
            return {"type": "text", "text": one[2]}
        if kind == "results":
            return {"type": "tool_result", "tool_use_id": one[0], "content": one[2]}
        return {"type": "tool_use", "id": one[0], "name": one[1], "input": {"q": one[2]}}

    rows = [{"role": "assistant" if who == "assistant" else "user", "content": made}
            for who, made in _blocks(talk, write)]  # fmt: skip
    tools = [{"name": n, "description": t, "input_schema": _schema()} for n, t in talk.tools]
    return {"max_tokens": 99, "system": talk.system, "messages": rows, "tools": tools}


def _gemini(talk: Talk) -> Body:
    def write(kind: str, _: str, one: Call) -> Body:
        if kind == "text":
            return {"text": one[2]}
        if kind == "results":
            return {"functionResponse": {"name": one[1], "response": {"output": one[2]}}}
        return {"functionCall": {"name": one[1], "args": {"q": one[2]}}}

    rows = [{"role": "model" if who == "assistant" else "user", "parts": made} for who, made in _blocks(talk, write)]
    tools = [{"name": n, "description": t, "parameters": _schema()} for n, t in talk.tools]
    system = {"parts": [{"text": talk.system}]}
    return {"systemInstruction": system, "contents": rows, "tools": [{"functionDeclarations": tools}]}


def _bedrock(talk: Talk) -> Body:
    def write(kind: str, _: str, one: Call) -> Body:
        if kind == "text":
            return {"text": one[2]}
        if kind == "results":
            return {"toolResult": {"toolUseId": one[0], "content": [{"text": one[2]}]}}
        return {"toolUse": {"toolUseId": one[0], "name": one[1], "input": {"q": one[2]}}}

    rows = [{"role": "assistant" if who == "assistant" else "user", "content": made}
            for who, made in _blocks(talk, write)]  # fmt: skip
    tools = [{"toolSpec": {"name": n, "description": t, "inputSchema": {"json": _schema()}}} for n, t in talk.tools]
    return {"system": [{"text": talk.system}], "messages": rows, "toolConfig": {"tools": tools}}


_WRITERS: dict[str, Callable[[Talk], Body]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}
_MESSAGES = {"openai-responses": "input", "gemini": "contents"}


class Maker:
    """Conversations of one seed."""

    def __init__(self, seed: int, api: str, rules: str) -> None:
        self.rng = random.Random(f"{seed} {api} {rules}")
        self.api, self.rules = api, rules
        self.case = Case(rules, api, [])
        self.now = 5e5
        self.name = "clerk" if self.rng.random() < 0.8 else ""
        tools = [(f"tool_{number}", self.text(4, 9)) for number in range(self.rng.randint(3, 6))]
        self.talk = Talk(tools, self.text(300, 400), [("user", self.text(2, 9), ())])
        self.sent = 0

    def text(self, low: int, high: int) -> str:
        """Some lines, and a number that stands nowhere else."""
        lines = [self.rng.choice(_SAID) for _ in range(self.rng.randint(low, high))]
        return "\n".join([*lines, f"<{self.rng.getrandbits(48):x}>"])

    def grow(self) -> None:
        """Perhaps rounds of tools, then an answer and the next question, which may be very short."""
        rows = self.talk.rows
        for _ in range(self.rng.randint(0, 2)):
            calls = [(f"id{self.rng.getrandbits(40):x}", f"tool_{n}", self.text(1, 1))
                     for n in range(self.rng.randint(1, 3))]  # fmt: skip
            rows.append(("assistant", self.text(1, 2), tuple(calls)))
            rows.append(("results", "", tuple((id_, tool, self.text(1, 9)) for id_, tool, _ in calls)))
        rows.append(("assistant", self.text(1, 5), ()))
        rows.append(("user", "continue" if self.rng.random() < 0.3 else self.text(1, 6), ()))

    def send(self, **options: Any) -> None:
        """The request as it stands."""
        self.now += self.rng.uniform(1, 20)
        body = body_of(self.talk, self.api, FORMS[self.api, self.rules])
        self.case.steps.append(Step(self.name, body, self.now, self.now + 1, self.now + 2, **options))
        self.now += 2
        self.sent = len(self.talk.rows)

    def play(self, cause: str | None) -> Case:
        """A few turns, the break, a turn more."""
        self.send()
        for _ in range(self.rng.randint(3, 6)):
            self.grow()
            self.send()
        if cause is not None:
            self.grow()
            self._break(cause)
            self.case.cause, self.case.broken = cause, len(self.case.steps) - 1
        self.grow()
        self.send()
        return self.case

    def _break(self, cause: str) -> None:
        before = body_of(Talk(self.talk.tools, self.talk.system, self.talk.rows[: self.sent]), self.api, "")
        tools, at = self.talk.tools, self.rng.randrange(len(self.talk.tools) - 1)
        if cause == "tools_changed":
            tools[at] = self.rng.choice([(tools[at][0], tools[at][1] + " (v2)"), ("other", self.text(3, 6))])
        elif cause == "tools_reordered":
            tools[at], tools[at + 1] = tools[at + 1], tools[at]
        elif cause == "system_changed":
            self.talk.system = f"It is {self.rng.randint(1, 12)} o'clock.\n{self.talk.system}"
            self.case.path = "system[0]"
        else:
            self._rewrite(cause, self.talk.rows)
        if cause.startswith("tools"):
            whole = f"tools[0].functionDeclarations[{at}]" if self.api == "gemini" else f"tools[{at}]"
            self.case.path = whole
        elif self.case.path is None:
            after = body_of(self.talk, self.api, "")
            name = _MESSAGES.get(self.api, "messages")
            self.case.path = f"messages[{_first(before[name], after[name])}]"
        self.send(events=("compaction",) if cause == "compacted" else ())

    def _rewrite(self, cause: str, rows: list[tuple[str, str, tuple[Call, ...]]]) -> None:
        at = self.rng.randrange(self.sent - 2)
        who, text, calls = rows[at]
        if cause == "history_edited" and calls:
            rows[at] = (who, text, ((calls[0][0], calls[0][1], "[cleared]"), *calls[1:]))
        elif cause == "history_edited":
            rows[at] = (who, f"Well. {text}", calls)
        elif cause == "history_reordered" and who == "results" and len(calls) > 1:
            rows[at] = (who, text, (calls[1], calls[0], *calls[2:]))
        elif cause == "history_reordered":
            rows[at], rows[at + 1] = rows[at + 1], rows[at]
        else:
            gone = self.rng.randint(1, self.sent - at - 1)
            rows[at : at + gone] = [("user", self.text(3, 5), ())] if cause == "compacted" else []


def _first(before: Sequence[Any], after: Sequence[Any]) -> int:
    pairs = zip(before, after, strict=False)
    return next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after)))


def cases(count: int, seed: int) -> Iterator[tuple[str, Case]]:
    """``count`` broken cases, forms and causes in turn, each with a name for messages."""
    plan = [(form, cause) for form in FORMS for cause in CAUSES]
    for number in range(count):
        (api, rules), cause = plan[number % len(plan)]
        yield f"{api} {rules} {cause} {seed + number}", Maker(seed + number, api, rules).play(cause)


def undisturbed(count: int, seed: int) -> Iterator[Case]:
    """As many cases in which nothing breaks."""
    forms = list(FORMS)
    for number in range(count):
        yield copy.copy(Maker(seed + number, *forms[number % len(forms)]).play(None))
