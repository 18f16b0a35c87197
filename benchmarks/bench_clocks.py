"""Time to the first token and whole runs of four LangGraph nodes on a real engine: see ``benchmarks/_clocks.py``.

``python -m benchmarks.bench_clocks`` prints a table and writes ``benchmarks/results/clocks.json``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

from benchmarks import _clocks, _table
from benchmarks.bench_engine import context
from benchmarks.local_engine import COUNTER, MODEL, LocalEngine
from cacheprefix import Session
from cacheprefix_langgraph import forked, wrap_model


def graph(
    engine: LocalEngine, session: Session, handbook: str, *, together: bool, client: httpx.Client | None = None
) -> Any:
    """The four roles as nodes, one after the other or side by side."""
    chat = ChatOpenAI(
        model=MODEL,
        base_url=engine.openai_base_url,
        api_key=SecretStr("any"),
        max_retries=0,
        max_completion_tokens=1,
        timeout=900,
        http_client=client,
    )
    model = wrap_model(chat, session)

    def node(role: str, text: str) -> Any:
        def ask(state: MessagesState) -> dict[str, Any]:
            said = model.invoke([SystemMessage(f"{text}\n\n{handbook}"), *state["messages"]])
            return {"messages": [HumanMessage(f"{role}: {said.content}")]}

        return forked(session, role=role)(ask)

    made = StateGraph(MessagesState)
    previous = START
    for role, text in _clocks.ROLES.items():
        made.add_node(role, node(role, text))
        made.add_edge(START if together else previous, role)
        previous = role
    made.add_edge(previous, END)
    return made.compile()


def in_turn(engine: LocalEngine, session: Session, handbook: str) -> None:
    """One after the other."""
    graph(engine, session, handbook, together=False).invoke({"messages": [HumanMessage(_clocks.TASK)]})


def at_once(engine: LocalEngine, session: Session, handbook: str) -> None:
    """Four at the same moment."""
    graph(engine, session, handbook, together=True).invoke({"messages": [HumanMessage(_clocks.TASK)]})


def remains(sizes: Sequence[int], repeats: int, threads: int) -> Iterator[dict[str, Any]]:
    """Where the time of a warm fork goes: the engine's own clock for the tail, the rest of the exchange, the rest."""
    for tokens in sizes:
        whole, http, tail, lengths = (list[float]() for _ in range(4))
        for _ in range(repeats):
            answers: list[httpx.Response] = []

            def seen(answer: httpx.Response, answers: list[httpx.Response] = answers) -> None:
                answer.read()
                answers.append(answer)

            session = _clocks.session_for(handbook := context(tokens, COUNTER), "shared")
            with (
                _clocks.engine_of(threads) as engine,
                httpx.Client(timeout=900, event_hooks={"response": [seen]}) as client,
            ):
                made = graph(engine, session, handbook, together=False, client=client)
                made.invoke({"messages": [HumanMessage(_clocks.TASK)]})
            # The first request is the cold one.
            for call, answer in list(zip(session.calls, answers, strict=True))[1:]:
                timings = answer.json()["timings"]
                whole.append((call.ended_at - call.started_at) * 1_000)
                http.append(answer.elapsed.total_seconds() * 1_000)
                tail.append(timings["prompt_ms"] + timings["predicted_ms"])
                lengths.append(timings["prompt_n"])
        name = f"a warm fork of {tokens:,} tokens through LangGraph"
        times = {"whole": whole, "engine computes": tail, "engine answers": http}
        middle = {what: statistics.median(found) for what, found in times.items()}
        rest = {
            "the engine computes the tail and one token": middle["engine computes"],
            "the engine does else: template, tokens of the whole prompt, HTTP": middle["engine answers"]
            - middle["engine computes"],
            "LangChain, its client and the session": middle["whole"] - middle["engine answers"],
        }
        for what, spent in rest.items():
            yield _table.topic(f"{name}: {what}", spent, "ms", {"the whole request": middle["whole"]}, digits=2)
        yield _table.topic(f"{name}: tokens of the tail", statistics.median(lengths), "tokens", digits=0)


if __name__ == "__main__":
    _clocks.main("clocks", "LangGraph", {"in turn": in_turn, "four together": at_once}, __doc__, remains)
