"""Are answers as good where a role's text stands elsewhere? The same tasks in each layout, judged by programs.

``make bench-quality ARGS="--model NAME"`` asks the server that ``OPENAI_BASE_URL`` names (OpenAI's API, ``/v1``
included; ``OPENAI_API_KEY`` where it wants one). Without that variable it asks SmolLM2-135M on this machine, with few
and short tasks: that only shows that the harness works.

``--gguf FILE`` asks a model of yours on this machine; ``--minutes`` stops after so long, with whole tasks drawn from
all kinds. ``--answers FILE`` keeps every answer as a line, and what stands there is not asked again: a run that was
stopped goes on, and one of hours can be done in pieces.

Layouts: ``own``, the role first in the system message, as applications have it; ``last``, the role behind the
conversation as a user message, and ``last-developer`` as a developer message; ``kept``, the role where it stood when
the agent last spoke; ``cards``, all roles in the system message and the name behind the conversation. The texts are
those that cacheprefix writes. ``--layouts`` takes other ones, two other wordings among them: ``last-plain``, a sentence
instead of the ``<role>`` element, and ``cards-named``, which says the name twice.

Printed and written to ``benchmarks/results/quality.json``: for each layout and temperature the rate of solved tasks
with its 95 % interval (Wilson), against ``own`` the tasks that only one of the two solved with McNemar's exact test,
the smallest difference that so many tasks would show, and a row for each kind of task. A verdict is printed only where
the model solves at least half of the tasks in its own layout and ten points of difference would be seen.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import _table
from benchmarks.quality_tasks import CONTEXTS, KINDS, Answer, Item, items
from cacheprefix import SharedPrefix
from cacheprefix.cli.paired import mcnemar, rate
from cacheprefix.layout import tail_text

LAYOUTS = ("own", "last", "last-developer", "kept", "cards")
WORDINGS = ("last-plain", "cards-named")
SOLVABLE, VISIBLE = 0.5, 0.10
"""A verdict needs this rate in the application's own layout, and this difference of rates to be seen."""

REFUSED = frozenset({400, 413, 422, 500})
"""Statuses by which servers say that they do not take such a request; llama.cpp's templates say it with 500."""
BUSY = frozenset({429, 502, 503, 529})

Message = Mapping[str, Any]


class RefusedRequestError(Exception):
    """The server does not take such a request; the message is what it said."""


def laid_out(item: Item, layout: str) -> list[Message]:
    """The item's messages in one layout. Every layout holds the same texts; cards hold the other roles' too."""
    asked = [*item.transcript, {"role": "user", "content": item.question}]
    if layout == "own":
        return [_system(f"{item.role}\n\n{item.handbook}"), *asked]
    tail = tail_text(item.name, item.role)
    if layout == "last-plain":
        tail = f'You now speak as "{item.name}".\n\n{item.role}'
    if layout in ("cards", "cards-named"):
        prefix = SharedPrefix(system=item.handbook, roles={**item.others, item.name: item.role})
        said = tail_text(item.name, item.role, card=True)
        if layout == "cards-named":
            said += f' Do as the role of "{item.name}" says, which stands at the beginning.'
        return [_system(prefix.text), *asked, {"role": "user", "content": said}]
    if layout == "kept":
        # Behind the first half of the conversation, never between a tool's call and its result.
        at = len(asked) // 2
        while asked[at].get("role") == "tool":
            at += 1
        return [_system(item.handbook), *asked[:at], {"role": "user", "content": tail}, *asked[at:]]
    role = "developer" if layout == "last-developer" else "user"
    return [_system(item.handbook), *asked, {"role": role, "content": tail}]


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


@dataclass(frozen=True)
class Asked:
    """One item in one layout at one temperature, and whether it was solved."""

    item: Item
    layout: str
    temperature: float
    solved: bool
    refused: bool = False


Ask = Callable[[Sequence[Message], Item, float], Answer]


def asker(client: httpx.Client, url: str, model: str) -> Ask:
    """Sends a request to a server that speaks OpenAI's API."""
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}

    def ask(messages: Sequence[Message], item: Item, temperature: float) -> Answer:
        body: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "temperature": temperature,
            "seed": item.number,
            "max_tokens": 96,
        }
        if item.tools:
            body["tools"] = list(item.tools)
        for pause in (1.0, 5.0, 25.0, 0.0):
            got = client.post(f"{url}/chat/completions", json=body, headers=headers)
            if got.status_code not in BUSY or not pause:
                break
            time.sleep(pause)
        if got.status_code in REFUSED:
            raise RefusedRequestError(f"{got.status_code}: {got.text[:200]}")
        got.raise_for_status()
        message = got.json()["choices"][0]["message"]
        calls = tuple(call["function"]["name"] for call in message.get("tool_calls") or ())
        return Answer(message.get("content") or "", calls)

    return ask


class Kept:
    """Asks as ``ask`` does, but not what the file holds an answer to; new answers are added to it.

    Answers are found by all that the request holds, so that another model, layout or wording has its own. What is
    kept is what the model said, and not whether that was right.
    """

    def __init__(self, ask: Ask, model: str, file: Path) -> None:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        self._known: dict[str, dict[str, Any]] = {line["asked"]: line for line in map(json.loads, lines)}
        self._ask, self._model, self._file = ask, model, file

    def _name(self, messages: Sequence[Message], item: Item, temperature: float) -> str:
        asked = json.dumps([self._model, list(messages), list(item.tools), temperature, item.number])
        return hashlib.sha256(asked.encode()).hexdigest()

    def holds(self, messages: Sequence[Message], item: Item, temperature: float) -> bool:
        """Whether nobody need be asked."""
        return self._name(messages, item, temperature) in self._known

    def __call__(self, messages: Sequence[Message], item: Item, temperature: float) -> Answer:
        """The answer, from the file or from the server."""
        name = self._name(messages, item, temperature)
        line = self._known.get(name)
        if line is None:
            line = {"asked": name, "model": self._model, "kind": item.kind, "temperature": temperature}
            try:
                answer = self._ask(messages, item, temperature)
                line |= {"text": answer.text, "tools": answer.tools}
            except RefusedRequestError as error:
                line |= {"refused": str(error)}
            self._known[name] = line
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as to:
                to.write(json.dumps(line) + "\n")
        if "refused" in line:
            raise RefusedRequestError(line["refused"])
        return Answer(line["text"], tuple(line["tools"]))


def run(
    ask: Ask,
    tasks: Sequence[Item],
    temperatures: Sequence[float],
    layouts: Sequence[str] = LAYOUTS,
    *,
    seconds: float = math.inf,
) -> list[Asked]:
    """Every task in every layout, layout by layout for each task, so that a drifting server treats all alike.

    After ``seconds`` no further task is begun: those that were are whole, and those that ``Kept`` holds are taken.
    """
    found: list[Asked] = []
    total = len(tasks) * len(layouts) * len(temperatures)
    until = time.monotonic() + seconds
    for item in tasks:
        if time.monotonic() > until and not (
            isinstance(ask, Kept)
            and all(ask.holds(laid_out(item, layout), item, one) for one in temperatures for layout in layouts)
        ):
            continue
        for temperature in temperatures:
            for layout in layouts:
                try:
                    solved, refused = item.judge(ask(laid_out(item, layout), item, temperature)), False
                except RefusedRequestError:
                    # Some servers' templates take no developer message or no tools: the page says how many.
                    solved, refused = False, True
                found.append(Asked(item, layout, temperature, solved, refused))
                _table.progress("asking", len(found), total)
    return found


def rows(found: Sequence[Asked], model: str) -> Iterator[dict[str, Any]]:
    """The result file's rows: rates, pairs, and a row for each kind."""
    layouts = tuple(dict.fromkeys(one.layout for one in found))
    for temperature in dict.fromkeys(one.temperature for one in found):
        at = [one for one in found if one.temperature == temperature]
        own = [one.solved for one in at if one.layout == "own"]
        for layout in layouts:
            here = [one for one in at if one.layout == layout]
            solved = rate(sum(one.solved for one in here), len(here))
            pair = mcnemar(zip(own, (one.solved for one in here), strict=True))
            yield _table.topic(
                f"{layout}, temperature {temperature:g}",
                solved.value,
                "of tasks solved",
                {"own": sum(own) / len(own)},
                low=round(solved.low, 4),
                high=round(solved.high, 4),
                tasks=len(here),
                refused=sum(one.refused for one in here),
                only_own=pair.only_first,
                only_here=pair.only_second,
                p=round(pair.p, 4),
                visible=round(pair.visible, 4),
                model=model,
            )
        for kind in dict.fromkeys(one.item.kind for one in at):
            shares = {
                layout: [one.solved for one in at if one.layout == layout and one.item.kind == kind]
                for layout in layouts
            }
            means = {layout: sum(solved) / len(solved) for layout, solved in shares.items()}
            yield _table.topic(
                f"kind {kind}, temperature {temperature:g}",
                means["own"],
                "of tasks solved in own",
                {layout: mean for layout, mean in means.items() if layout != "own"},
                tasks=len(shares["own"]),
                model=model,
            )


def lines(made: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table on the screen."""
    table = [["", "solved", "95 %", "tasks", "only own", "only here", "p", "sees from", "refused"]]
    for row in made:
        if "p" not in row:
            table.append([row["name"], f"{row['value']:.2f}", *_kinds(row)])
            continue
        interval = f"{row['low']:.2f} to {row['high']:.2f}"
        counts = [
            f"{row['tasks']}",
            f"{row['only_own']}",
            f"{row['only_here']}",
            f"{row['p']:.3f}",
            f"{row['visible']:.2f}",
        ]
        table.append([row["name"], f"{row['value']:.2f}", interval, *counts, f"{row['refused']}"])
    return table


def _kinds(row: Mapping[str, Any]) -> list[str]:
    others = " ".join(f"{name} {value:.2f}" for name, value in row["peers"].items())
    return [others, *[""] * 6]


def verdict(made: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on the layouts, or why there is none."""
    rates = [row for row in made if "p" in row]
    own = [row for row in rates if row["name"].startswith("own,")]
    least = min(row["value"] for row in own)
    if least < SOLVABLE:
        return (
            f"No verdict: the model solves {least:.0%} of the tasks in the application's own layout, and below "
            f"{SOLVABLE:.0%} layouts cannot be told apart by what fails."
        )
    said = []
    for row in rates:
        if row in own:
            continue
        difference = row["value"] - row["peers"]["own"]
        if row["p"] < 0.05:
            word = "better" if difference > 0 else "worse"
            said.append(f"{row['name']} is {word} than own beyond chance ({difference:+.0%}, p {row['p']:.3f})")
        elif row["visible"] > VISIBLE:
            said.append(f"{row['name']}: too few tasks, only {row['visible']:.0%} and more would show")
        else:
            said.append(f"{row['name']} is not told from own ({difference:+.0%})")
    return "; ".join(said) + "."


@contextmanager
def server(model: str, file: Path | None) -> Iterator[tuple[str, str, bool]]:
    """The address, the model's name, and whether it is the wheel's small model on this machine."""
    url = os.environ.get("OPENAI_BASE_URL")
    if url and file is None:
        yield url.rstrip("/"), model, False
        return
    from cacheprefix.server import SMOLLM2, LocalEngine, idle_threads, smollm2  # noqa: PLC0415 - where nothing is named

    name = SMOLLM2 if file is None else model or file.stem
    with LocalEngine(file or smollm2(), name=name, context=8192, threads=idle_threads()) as engine:
        yield engine.openai_base_url, name, file is None


def main() -> int:
    """Ask, print, write."""
    parser = _table.options(__doc__)
    parser.add_argument("--model", default="", help="the model's name on the server of OPENAI_BASE_URL")
    parser.add_argument("--per-kind", type=int, default=0, help="tasks of each kind; 12, on the wheel's model 1")
    parser.add_argument("--contexts", type=int, nargs="+", default=[], help=f"tokens; {CONTEXTS}, on the wheel's 500")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[], help="0 and 0.7, on the wheel's 0")
    parser.add_argument("--seed", type=int, default=20261122, help="another seed draws other tasks")
    parser.add_argument("--gguf", type=Path, help="a model's file, asked on this machine")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no task after so long")
    parser.add_argument("--answers", type=Path, help="keep answers in this file, and ask for none that it holds")
    parser.add_argument(
        "--layouts", nargs="+", choices=(*LAYOUTS[1:], *WORDINGS), default=LAYOUTS[1:], help="beside own"
    )
    options = parser.parse_args()
    if os.environ.get("OPENAI_BASE_URL") and not options.model and options.gguf is None:
        parser.error("OPENAI_BASE_URL names a server: give its --model")
    layouts = (LAYOUTS[0], *options.layouts)
    with server(options.model, options.gguf) as (url, model, small), httpx.Client(timeout=900) as client:
        contexts = options.contexts or ([500] if small else CONTEXTS)
        tasks = items(options.per_kind or (1 if small else 12), seed=options.seed, contexts=contexts)
        if options.minutes < math.inf:
            # What is left out is then left out by chance, and not the last kinds.
            random.Random(options.seed).shuffle(tasks)
        temperatures = options.temperatures or ([0.0] if small else [0.0, 0.7])
        print(
            f"{len(tasks)} tasks of {len(KINDS)} kinds, {len(layouts)} layouts, {len(temperatures)} temperatures: "
            f"{len(tasks) * len(layouts) * len(temperatures):,} requests to {model}",
            file=sys.stderr,
        )
        ask: Ask = asker(client, url, model)
        if options.answers:
            ask = Kept(ask, model, options.answers)
        found = run(ask, tasks, temperatures, layouts, seconds=options.minutes * 60)
        begun = len({(one.item.kind, one.item.number) for one in found})
        sizes = " and ".join(f"{size:,}" for size in contexts)
        how = f"{begun} of {len(tasks)} tasks, contexts of {sizes} tokens, seed {options.seed}"
        made = list(rows(found, f"{model}, {how}")) if found else []
    if not made:
        print("no task was begun in the time given")
        return 0
    _table.finish("quality", made, options, lines=lines)
    print(verdict(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
