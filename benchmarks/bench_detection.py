"""Break detection at scale: injected breaks named rightly, undisturbed teams left in peace, time for a call.

``python -m benchmarks.bench_detection`` plays cases of ``tests/cache/faults.py`` under every rule set, from
made-up texts, from the tau-bench traces where they are at hand, and with a provider that counts tokens its own
way; prints a table and writes ``benchmarks/results/detection.json``. ``--seed`` makes other cases.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cache"))

import faults  # noqa: E402 - the generator lives with the tests

from benchmarks import _table  # noqa: E402
from benchmarks.traces_at_hand import say_missing, traces_folder  # noqa: E402
from cacheprefix.cache import CacheModel, SentBy  # noqa: E402
from cacheprefix.profiles import default_registry  # noqa: E402
from cacheprefix.wire import Memo, decode  # noqa: E402

Row = dict[str, Any]


def material() -> list[list[dict[str, Any]]]:
    """Recorded conversations; none when the traces are not at hand."""
    folder = traces_folder() / "tau_bench"
    return faults.from_traces(folder) if folder.exists() else []


def broken(
    name: str, count: int, seed: int, recorded: Sequence[Any], tokens: Callable[..., int] | None
) -> Iterator[Row]:
    """Rows for injected breaks: in all, and for each cause."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    other = equal = 0
    for number, case in enumerate(faults.all_cases(count, seed, recorded)):
        played = faults.play(case, count=tokens)
        total[case.cause or ""] += 1
        right[case.cause or ""] += played.right
        other += bool(played.false_alarms)
        equal += all(r is None or e == r for e, r in zip(played.expected, played.read, strict=True))
        _table.progress(name, number + 1, count)
    yield _table.topic(f"{name}: cause and path right", sum(right.values()) / count, "share of cases", cases=count)
    yield _table.topic(f"{name}: no alarm beside the break", 1 - other / count, "share of cases", cases=count)
    if tokens is None:
        yield _table.topic(f"{name}: expectation equals the simulator", equal / count, "share of cases", cases=count)
    for cause in sorted(total):
        yield _table.topic(f"{name}: {cause}", right[cause] / total[cause], "share of cases", cases=total[cause])


def quiet(name: str, count: int, seed: int, recorded: Sequence[Any], tokens: Callable[..., int] | None) -> Row:
    """The row for undisturbed teams."""
    loud = calls = 0
    for number in range(count):
        case = faults.undisturbed(seed + number, faults.RULES[number % len(faults.RULES)], recorded)
        played = faults.play(case, count=tokens)
        loud += bool(played.alarms)
        calls += len(case.steps)
        _table.progress(name, number + 1, count)
    return _table.topic(f"{name}: no alarm", 1 - loud / count, "share of cases", cases=count, calls=calls)


def speed(messages: int = 1000) -> Iterator[Row]:
    """Time of the model's part of one request that appends two messages to a thousand."""
    rows = [{"role": ("user", "assistant")[i % 2], "content": f"message {i} " * 40} for i in range(messages + 60)]
    for rules in ("exact", "openai", "openai-5.6"):
        memo, model, profile = Memo(), CacheModel(), default_registry().get(rules)
        prompts = [
            decode({"model": "gpt-5.6", "messages": rows[:end]}, "openai-chat", memo=memo)
            for end in range(messages, messages + 60, 2)
        ]
        best = float("inf")
        for at, prompt in enumerate(prompts):
            start = time.perf_counter()
            seen = model.begin(prompt, profile, SentBy(agent="a"), at=float(at))
            model.finish(seen, None, float(at))
            best = min(best, time.perf_counter() - start)
        yield _table.topic(f"{rules}: expectation and verdict, {messages} messages appended to", best * 1000, "ms")


def main() -> None:
    """Run all, print, write."""
    parser = _table.options("Break detection at scale.")
    parser.add_argument("--cases", type=int, default=2400, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=1_000_000)
    options = parser.parse_args()
    recorded = material()
    third = options.cases // 3
    rows = list(broken("injected", options.cases, options.seed, (), None))
    rows.append(quiet("undisturbed", options.cases, options.seed, (), None))
    if recorded:
        rows += broken("injected, tau-bench", third, options.seed + 1, recorded, None)
        rows.append(quiet("undisturbed, tau-bench", third, options.seed + 1, recorded, None))
    rows += broken("injected, another tokenizer", third, options.seed + 2, (), faults.skewed_count)
    rows.append(quiet("undisturbed, another tokenizer", third, options.seed + 2, (), faults.skewed_count))
    rows += speed()
    _table.finish("detection", rows, options, lines=_lines, whole=options.cases >= 2400)
    if not recorded:
        say_missing("rows of tau-bench")


def _lines(rows: Sequence[Row]) -> list[list[str]]:
    cases = lambda row: f"{row['cases']:,} cases" if "cases" in row else ""  # noqa: E731
    return [[*line[:3], more] for line, more in zip(_table.topics(rows), ["", *map(cases, rows)], strict=True)]


if __name__ == "__main__":
    main()
