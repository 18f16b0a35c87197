"""Context policies on real runs: what they cost at equal retained tokens, and what they forget.

``python -m benchmarks.bench_compaction`` replays the tau-bench and Who&When traces with a window of
40 % of each trace's history (Who&When's long ones at 24,000 tokens too), under the rules of Anthropic
and OpenAI, prints a table and writes ``benchmarks/results/compaction.json``. Every policy is met by
ours at the same mean of history tokens a step (within 5 %), found by scaling our window alone, and set to
do the same kind of thing: clear results where it clears, remove messages where it removes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import _table
from benchmarks.context_replay import (
    Message,
    Policy,
    Totals,
    Trace,
    profile,
    replay,
    tau_bench,
    who_and_when,
)
from benchmarks.traces_at_hand import TAU_BENCH, WHO_AND_WHEN, need
from cacheprefix.history import (
    Circumstances,
    Compaction,
    Ledger,
    Prices,
    clear_tool_results,
    drop_tool_uses,
    plan_compaction,
    sliding_window,
)
from cacheprefix.history import replay as replay_ledger
from cacheprefix.wire import apply, views_of

EQUAL = 0.05


def nothing(static: int, window: int) -> Callable[[Sequence[Message]], list[Message]]:  # noqa: ARG001
    """Everything is sent, whatever the window says."""
    return list


def ours(read: float, write: float, share: float = 0.5, **settings: Any) -> Policy:
    """Our compaction with its defaults; the window is a limit that holds whatever a compaction costs."""

    def policy(static: int, window: int) -> Callable[[Sequence[Message]], list[Message]]:
        ledger = Ledger()
        rules = Compaction(
            trigger=static + window,
            **{"target": static + int(window * share), **settings},
        )
        around = Circumstances(static, prices=Prices(read, write))

        def send(history: Sequence[Message]) -> list[Message]:
            nonlocal ledger
            views = views_of(history, "openai-chat")
            planned = plan_compaction(views, ledger, rules, around)
            if planned.due:
                ledger = planned.commit()
            out = apply(history, replay_ledger(views, ledger).decisions, "openai-chat")
            return [{k: v for k, v in message.items() if k != "_cacheprefix"} for message in out]

        return send

    return policy


def agentcache(static: int, window: int) -> Callable[[Sequence[Message]], list[Message]]:  # noqa: ARG001
    """Agentcache's policy as described; the session keeps what it changed.

    Above the limit, every tool result older than the last eight messages becomes a note with its size.
    """
    kept: list[Message] = []
    seen = 0

    def tokens(message: Message) -> int:
        calls = message.get("tool_calls") or ()
        chars = len(message["content"]) + sum(len(c["function"]["name"] + c["function"]["arguments"]) for c in calls)
        return max(1, chars // 4)

    def send(history: Sequence[Message]) -> list[Message]:
        nonlocal seen
        kept.extend(dict(message) for message in history[seen:])
        seen = len(history)
        if sum(map(tokens, kept)) > window:
            for message in kept[:-8]:
                if message["role"] == "tool":
                    message["content"] = f"[stale result cleared, ~{tokens(message)} tokens]"
        return [dict(message) for message in kept]

    return send


def clear_tool_uses(static: int, window: int) -> Callable[[Sequence[Message]], list[Message]]:  # noqa: ARG001
    """LangChain's ContextEditing with ClearToolUsesEdit, its defaults but the trigger."""
    from langchain.agents.middleware.context_editing import ClearToolUsesEdit  # noqa: PLC0415
    from langchain_core.messages import convert_to_messages, convert_to_openai_messages  # noqa: PLC0415
    from langchain_core.messages.utils import count_tokens_approximately  # noqa: PLC0415

    edit = ClearToolUsesEdit(trigger=window)

    def send(history: Sequence[Message]) -> list[Message]:
        messages = convert_to_messages([dict(message) for message in history])
        edit.apply(messages, count_tokens=count_tokens_approximately)
        back = convert_to_openai_messages(messages)
        return [
            old if new["content"] == old["content"] else {**old, "content": new["content"]}
            for old, new in zip(history, back, strict=True)
        ]

    return send


def llmbuffer(static: int, window: int) -> Callable[[Sequence[Message]], list[Message]]:  # noqa: ARG001
    """Llmbuffer's PromptManager with its defaults and the window as ``max_tokens``."""
    from llmbuffer import PromptManager  # noqa: PLC0415

    manager = PromptManager(max_tokens=window)
    seen = 0

    def send(history: Sequence[Message]) -> list[Message]:
        nonlocal seen
        for message in history[seen:]:
            manager.append(dict(message))
        seen = len(history)
        return list(manager.build_messages())

    return send


PEERS: dict[str, Policy] = {
    "nothing": nothing,
    "agentcache": agentcache,
    "ClearToolUses": clear_tool_uses,
    "llmbuffer": llmbuffer,
}


CLEARS: dict[str, Any] = {"policies": (clear_tool_results(None),), "keep_head": 0.0}
"""What agentcache and ClearToolUses do: only tool results go, and the words stay, whatever the window says."""
REMOVES: dict[str, Any] = {"keep_users": False, "keep_head": 0.4, "slack": 0.0, "share": 0.45, "batch": 0.4}
"""What llmbuffer does: the oldest messages go, the users' too, down to half of the window."""
TIGHT: dict[str, Any] = {
    "policies": (drop_tool_uses(None), sliding_window(batch=0.1)),
    "keep_users": False,
    "keep_head": 0.0,
    "keep_turns": 2,
    "slack": 0.2,
    "summary_tokens": 40,
}
"""The same for histories of some hundred tokens, where a cleared result's place holder costs as much as a result."""


AIM = {
    "tau-bench 40 %": {"llmbuffer": 1.035},
    "Who&When 40 %": {"llmbuffer": 0.985},
    "Who&When 24k": {"llmbuffer": 0.985},
}
"""Where inside the band of equal tokens a row is met: above where retention is scarce, below where cost is."""


def settings_for(workload: str, peer: str) -> dict[str, Any]:
    """Ours set to do the same kind of thing as the peer; everything else at its default."""
    # Runs of ten requests end before most rewrites pay: there the window alone decides.
    forced = {"horizon": math.inf} if workload.startswith("tau") else {}
    if peer in ("agentcache", "ClearToolUses"):
        return {**CLEARS, **forced}
    if peer == "llmbuffer":
        return {**(TIGHT if workload.startswith("tau") else REMOVES), **forced}
    return {}


def scaled(window: Callable[[Trace], int], scale: float) -> Callable[[Trace], int]:
    """The window times a factor; never too small for a few words."""
    return lambda trace: max(60, int(scale * window(trace)))


def matched(
    traces: Sequence[Trace], window: Callable[[Trace], int], goal: float, settings: dict[str, Any], aim: float
) -> float:
    """The scale of the window at which ours holds ``aim * goal`` mean history tokens a step, by bisection."""
    policy = ours(0.1, 1.0, **settings)
    low, high = 0.1, 2.9
    best = (math.inf, 1.0)
    for _ in range(9):
        scale = (low + high) / 2
        off = replay(traces, policy, None, scaled(window, scale)).retained / (goal * aim) - 1
        best = min(best, (abs(off), scale))
        if abs(off) < EQUAL / 4:
            break
        low, high = (scale, high) if off < 0 else (low, scale)
    return best[1]


def workloads(limit: int | None) -> list[tuple[str, list[Trace], Callable[[Trace], int]]]:
    """The traces and their windows."""
    share = lambda trace: int(0.4 * trace.tokens)  # noqa: E731
    return [
        ("tau-bench 40 %", tau_bench()[:limit], share),
        ("Who&When 40 %", who_and_when()[:limit], share),
        ("Who&When 24k", who_and_when(24_000)[:limit], lambda _: 24_000),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    parser = _table.options(__doc__)
    parser.add_argument("--limit", type=int, default=None, help="only the first traces of each set")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--settings", type=json.loads, default={}, help="Compaction settings as JSON")
    options = parser.parse_args(arguments)
    need("bench-compaction", TAU_BENCH, *WHO_AND_WHEN)
    rows: list[dict[str, Any]] = []
    for workload, traces, window in workloads(options.limit):
        if options.only not in workload:
            continue
        for peer, policy in PEERS.items():
            goal = replay(traces, policy, None, window).retained
            settings = {**settings_for(workload, peer), **options.settings}
            scale = (
                100.0
                if policy is nothing
                else matched(traces, window, goal, settings, AIM.get(workload, {}).get(peer, 1.025))
            )
            for rules in ("anthropic", "openai"):
                found = profile(rules)
                theirs = replay(traces, policy, found, window)
                own = ours(found.read, found.ttls[0].write, **settings)
                mine = replay(traces, own, found, scaled(window, scale))
                rows.append(_row(workload, rules, found.read, peer, theirs, mine, scale))
                _table.progress(f"{workload}, {peer}, {rules}")
    whole = not (options.limit or options.only or options.settings)
    _table.finish("compaction", rows, options, packages=("llmbuffer", "langchain"), lines=lines, whole=whole)


def _row(
    workload: str, rules: str, read: float, peer: str, theirs: Totals, mine: Totals, scale: float
) -> dict[str, Any]:
    return _table.cost(
        workload,
        "core",
        rules,
        read,
        theirs.row(),
        mine.row(),
        peer=peer,
        retained_tokens={"peer": round(theirs.retained), "ours": round(mine.retained)},
        retention={"peer": round(theirs.retention, 4), "ours": round(mine.retention, 4)},
        names={"peer": round(theirs.names, 4), "ours": round(mine.names, 4)},
        invalid_requests={"peer": theirs.invalid, "ours": mine.invalid},
        over_window=theirs.over_window,
        window_scale=round(scale, 3),
    )


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """What a peer's policy costs and keeps, and ours at equal tokens."""
    out = [["traces", "rules", "peer", "tokens a step", "cost: peer -> ours", "kept", "names", "invalid", ""]]
    for row in rows:
        both = {part: (row[part]["peer"], row[part]["ours"]) for part in ("retained_tokens", "retention", "names")}
        kept = both["retention"]
        verdict = "ok" if row["ratio"] <= 1.0 and kept[1] >= kept[0] else "--"
        pairs = ("{} / {}".format(*both["retained_tokens"]), _table.costs(row))
        shares = ("{:.3f} / {:.3f}".format(*both[part]) for part in ("retention", "names"))
        invalid = "{peer} / {ours}".format(**row["invalid_requests"])
        out.append([row["workload"], row["rules"], row["peer"], *pairs, *shares, invalid, verdict])
    return out


if __name__ == "__main__":
    main()
