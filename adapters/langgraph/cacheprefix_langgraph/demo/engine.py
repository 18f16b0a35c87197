"""The demonstration on a real model: the same team, smaller, on this machine's own engine or any server's.

No tools and short answers, so that a small model on a laptop's processor is through in a minute or two. What the others
said comes to each agent as user messages under their names: llama.cpp takes a trailing assistant message for the
beginning of its own answer, and refuses two of them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix_langgraph.demo.handbook import HANDBOOK
from cacheprefix_langgraph.demo.run import openai_model
from cacheprefix_langgraph.demo.source import Source
from cacheprefix_langgraph.model import wrap_model
from cacheprefix_langgraph.node import forked

ANSWER_TOKENS = 48
"""Longest answer of an agent. Generating is slow on a processor, and the same in both layouts."""

ROLES = {
    "planner": "You are the planner. In one sentence, say which part of this code the reviewers should look at.",
    "security": "You are the security reviewer. In one sentence, say what input from outside could do here.",
    "correctness": "You are the correctness reviewer. In one sentence, say which edge case this code may miss.",
    "interfaces": "You are the interface reviewer. In one sentence, say what a caller could use wrongly.",
    "editor": "You are the editor. In one sentence, give the verdict of the team.",
}
"""The team in the order of its first answers, and what each role adds to the handbook."""

_EXCERPT_LINES = 40

EngineLayout = Literal["unmodified", "shared"]
LAYOUTS: tuple[EngineLayout, ...] = ("unmodified", "shared")


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One run on a real model. Tokens are the engine's own counts; times are this machine's, in seconds."""

    layout: EngineLayout
    model: str
    calls: int
    input_tokens: int
    cached_tokens: int
    """Of the input, what the engine says that it had in its cache."""
    first_token_s: float
    """Median over all calls but the first, which finds no cache in either layout; queueing counts."""
    whole_s: float
    """From the first request to the last answer."""
    answers: dict[str, str]
    """What each agent said."""


def run_engine(
    url: str, model: str, source: Source, *, provider: str | None, step: Callable[[str], None]
) -> list[EngineRow]:
    """Both layouts, one after the other, on the server at ``url`` (OpenAI's API, with ``/v1``).

    Args:
        url: the server's address.
        model: the model's name there.
        source: what is reviewed.
        provider: the row of cache rules that the server follows; None where it is told by the model's name.
        step: is told how far it is, before each run and after each answer.

    A line of its own begins each layout's handbook, so that neither reads what the other left in the cache.
    """
    rows = []
    step(_estimate(url, model))
    for layout in LAYOUTS:
        handbook = f"Handbook, {layout} run {os.urandom(4).hex()}.\n\n{HANDBOOK}"
        session = Session(
            SharedPrefix(system=handbook),
            mode="fork" if layout == "shared" else "observe",
            caching=Caching(provider=provider),
        )
        options = {"base_url": url, "api_key": os.environ.get("OPENAI_API_KEY", "none"), "temperature": 0}
        chat = wrap_model(openai_model(model, max_tokens=ANSWER_TOKENS, **options), session)
        team = _team(chat, handbook, session, partial(_said, step, layout))
        began = time.perf_counter()
        found = team.invoke({"messages": [HumanMessage(_task(source))]})
        rows.append(_row(session, layout, model, time.perf_counter() - began, found["messages"]))
    return rows


def _said(step: Callable[[str], None], layout: EngineLayout, what: str) -> None:
    step(f"{layout}: {what}")


def as_data(rows: Sequence[EngineRow]) -> list[dict[str, Any]]:
    """The rows as plain data."""
    return [asdict(row) for row in rows]


def _team(model: Any, handbook: str, session: Session, step: Callable[[str], None]) -> Any:
    """Planner, three reviewers side by side, editor. Unmodified, the session only watches."""

    def node(role: str, text: str) -> Any:
        def ask(state: MessagesState) -> dict[str, Any]:
            began = time.perf_counter()
            asked: list[AnyMessage] = [SystemMessage(f"{text}\n\n{handbook}"), *state["messages"]]
            said = str(model.invoke(asked).content).strip()
            step(f"{role} answered after {time.perf_counter() - began:.1f} s")
            return {"messages": [HumanMessage(f"{role}: {said}", id=role)]}

        return forked(session, role=role)(ask)

    graph = StateGraph(MessagesState)
    for role, text in ROLES.items():
        graph.add_node(role, node(role, text))
    first, *reviewers, last = ROLES
    graph.add_edge(START, first)
    for role in reviewers:
        graph.add_edge(first, role)
    graph.add_edge(reviewers, last)
    graph.add_edge(last, END)
    return graph.compile()


def _task(source: Source) -> str:
    (path,) = source.largest(1)
    lines = source.files[path][:_EXCERPT_LINES]
    return f"Review the beginning of {path} of the Python package {source.name}:\n\n" + "\n".join(lines)


def _row(session: Session, layout: EngineLayout, model: str, whole: float, messages: Sequence[Any]) -> EngineRow:
    calls = sorted(session.calls, key=lambda call: call.started_at)
    waits = [call.first_token_at - call.started_at for call in calls[1:] if call.first_token_at is not None]
    said = {message.id: str(message.content).partition(": ")[2] for message in messages if message.id in ROLES}
    return EngineRow(
        layout,
        model,
        len(calls),
        sum(call.usage.input_tokens or 0 for call in calls),
        sum(call.usage.cache_read_tokens or 0 for call in calls),
        round(statistics.median(waits), 3) if waits else 0.0,
        round(whole, 2),
        said,
    )


def _estimate(url: str, model: str) -> str:
    """How long it will take, by a short request to this very model on this very machine."""
    chat = openai_model(model, base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_tokens=8)
    began = time.perf_counter()
    answer = chat.invoke([HumanMessage(f"{os.urandom(4).hex()} {HANDBOOK[:800]}")])
    took = time.perf_counter() - began
    used: Any = getattr(answer, "usage_metadata", None) or {}
    speed = max(1, int(used.get("input_tokens", 200))) / took
    # Unmodified, every agent's prompt is computed whole; shared, about once and a half. Answers are extra.
    prompts = (len(HANDBOOK) + 2000) / 4 * (len(ROLES) + 2) / speed
    answers = 2 * len(ROLES) * ANSWER_TOKENS * took / 60
    return f"the model computes about {speed:,.0f} tokens a second here: {prompts + answers:,.0f} s for both runs"
