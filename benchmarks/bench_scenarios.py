"""Four long sessions under two cache rules: our context state against an append-only reference.

``python -m benchmarks.bench_scenarios`` runs the scenarios, rules and drivers of the reference file
(``CACHEPREFIX_REFERENCE``, by default in the folder beside the repository) with ours as one more
driver in the same run, and writes ``benchmarks/results/scenarios.json``. Tokens are JSON characters / 4
for every driver. ``missing`` counts messages that the reference sends and ours does not.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import _table
from cacheprefix.history import Compaction, Cutting, append_message, build, compact, new_state, sliding_window
from cacheprefix.wire import views_of

Emit = Callable[..., None]


def reference() -> ModuleType:
    """The reference file as a module."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "prototypes" / "cachesim_reference.py"
    path = Path(os.environ.get("CACHEPREFIX_REFERENCE", beside))
    spec = importlib.util.spec_from_file_location("cachesim_reference", path)
    if spec is None or spec.loader is None or not path.is_file():
        print(f"bench-scenarios left out: no reference at {path} (set CACHEPREFIX_REFERENCE)")
        raise SystemExit(0)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quarter(text: str) -> int:
    """Tokens as the reference counts them."""
    return len(text) // 4


class Session:
    """One conversation as an application would hold it: append, compact when due, build, send."""

    def __init__(self, ref: ModuleType, emit: Emit, rules: Compaction | None, *, marks: bool) -> None:
        self.ref, self.emit, self.rules, self.marks = ref, emit, rules, marks
        self.state = new_state(system=ref.SYS)

    def add(self, message: dict[str, Any]) -> None:
        """Append one message."""
        self.state = append_message(self.state, message, how=Cutting(quarter))

    def send(self, volatile: str | None = None, *, par: bool = False) -> None:
        """Build the prompt and send it, breakpoints on the system text and the newest stable messages."""
        built = build(self.state, self.ref.SYS, volatile, count=quarter)
        messages = built.messages
        if self.marks:
            messages = _marked(messages, built.prefix_messages)
        self.emit(messages, self.ref.TOOLS, par=par)

    def tidy(self) -> None:
        """Compact where the policy says so."""
        if self.rules is not None:
            self.state = compact(self.state, self.rules, count=quarter)


def ours(ref: ModuleType, scenario: Any, emit: Emit, sim: Any) -> None:
    """Our driver."""
    marks = isinstance(sim, ref.AnthropicSim)
    session = Session(ref, emit, _rules(ref, scenario), marks=marks)
    if scenario.kind == "chat":
        for user, answer, volatile in scenario.turns:
            session.add(ref.U(user))
            session.send(volatile)
            session.add(ref.A(answer))
    elif scenario.kind == "toolloop":
        number = 0
        for task in range(scenario.t):
            session.add(ref.U(f"task {task}"))
            for step in range(scenario.s + 1):
                number += 1
                session.send(f"Now {number}")
                if step < scenario.s:
                    session.add(ref.call(number, f"{step}"))
                    session.add(ref.res(number, ref.text(number, 2000)))
                else:
                    session.add(ref.A("done"))
    elif scenario.kind == "team":
        session.add(ref.U("plan the goal"))
        session.send()
        session.add(ref.A(ref.text(9, 2000)))
        for number, role in enumerate(scenario.roles):
            session.send(role, par=number > 0)
        session.send("\n".join(ref.text(20 + number, 1500) for number, _ in enumerate(scenario.roles)))
    else:
        for turn in range(scenario.n):
            session.add(ref.U(ref.text(turn, 300)))
            session.tidy()
            session.send()
            session.add(ref.call(turn, "x"))
            session.add(ref.res(turn, ref.text(turn, 2000)))
            session.send()
            session.add(ref.A(ref.text(turn, 500)))


def _rules(ref: ModuleType, scenario: Any) -> Compaction | None:
    """The scenario's budget as a limit: whole turns go, down to a third, as the reference does it."""
    if scenario.kind != "long":
        return None
    turn = [ref.U(ref.text(0, 300)), ref.call(0, "x"), ref.res(0, ref.text(0, 2000)), ref.A(ref.text(0, 500))]
    # The budget counts JSON, a state counts texts: the limit is the budget in the state's own tokens.
    scale = sum(view.tokens for view in views_of(turn, "openai-chat", quarter)) / (len(ref.J(turn)) / 4)
    return Compaction(
        trigger=int(scenario.budget * scale),
        target=int(scenario.budget // 3 * scale),
        policies=(sliding_window(batch=0, whole_turns=True),),
        keep_turns=1,
        keep_users=False,
        keep_head=0,
        slack=0,
        summarise=None,
        horizon=float("inf"),
    )


def _marked(messages: Sequence[dict[str, Any]], stable: int) -> list[dict[str, Any]]:
    out = [dict(message) for message in messages]
    for wanted in {0, stable - 1, max(1, stable - 14)}:
        # A message without text has no place for a marker; the one before it has.
        index = wanted
        while index > 0 and not out[index]["content"]:
            index -= 1
        content = out[index]["content"]
        if isinstance(content, str) and content:
            out[index]["content"] = [{"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}]
    return out


def run(
    ref: ModuleType, driver: Callable[..., None], scenario: Any, sim: type
) -> tuple[dict[str, Any], list[list[str]]]:
    """The reference's own accounting of a driver, and what each request held."""
    sent: list[list[str]] = []

    def recorded(sc: Any, emit: Emit, simulator: Any) -> None:
        def tap(messages: Sequence[dict[str, Any]], tools: Any = None, par: bool = False) -> None:  # noqa: FBT001, FBT002
            sent.append([_plain(message) for message in messages])
            emit(messages, tools, par=par)

        driver(sc, tap, simulator)

    return ref.run_one(recorded, scenario, sim), sent


def _plain(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, list):
        content = "".join(block["text"] for block in content)
    return json.dumps({**message, "content": content}, sort_keys=True)


def main() -> None:
    """Run, print, write."""
    options = _table.options(__doc__).parse_args()
    ref = reference()
    rows = []
    for sim in (ref.OpenAISim, ref.AnthropicSim):
        for scenario in (ref.chat(), ref.toolloop(), ref.team(), ref.long()):
            theirs, theirs_sent = run(ref, ref.DRIVERS["reference (append-only)"], scenario, sim)
            mine, mine_sent = run(ref, lambda sc, emit, s: ours(ref, sc, emit, s), scenario, sim)
            naive, _ = run(ref, ref.DRIVERS["naive"], scenario, sim)
            missing = sum(len(set(a) - set(b)) for a, b in zip(theirs_sent, mine_sent, strict=True))
            rows.append(
                _table.cost(
                    scenario.name,
                    "core",
                    sim.name,
                    sim.read,
                    _usage(naive),
                    _usage(mine),
                    best_stock=_usage(theirs),
                    ratio_to_stock=round(mine["cost_units"] / theirs["cost_units"], 4),
                    missing=missing,
                    orphans=mine["orph"],
                    largest=mine["max"],
                )
            )
            _table.progress(f"{sim.name}: {scenario.name}")
    _table.finish("scenarios", rows, options, lines=_lines)


def _lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    out = [["scenario", "rules", "naive -> ours", "reference", "ratio to it", "missing"]]
    for row in rows:
        theirs = f"{row['best_stock']['cost_units']:,.0f}"
        cells = [row["workload"], row["rules"], _table.costs(row), theirs]
        out.append([*cells, f"{row['ratio_to_stock']:.3f}", str(row["missing"])])
    return out


def _usage(run_: dict[str, Any]) -> dict[str, Any]:
    return {
        "calls": run_["n"],
        "input_tokens": run_["tok"],
        "cache_read_tokens": run_["c"],
        "cache_write_tokens": run_["w"],
        "uncached_tokens": run_["tok"] - run_["c"] - run_["w"],
        "cost_units": round(run_["cost_units"], 1),
    }


if __name__ == "__main__":
    main()
