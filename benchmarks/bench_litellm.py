"""Roles that ask by LiteLLM, unmodified and wrapped: what their input costs under a provider's cache rules, and waits.

``python -m benchmarks.bench_litellm`` prints a table and writes ``benchmarks/results/litellm.json``; ``--markdown``
prints the table as Markdown. No model is called: a simulated provider serves every request. The texts are synthetic: a
handbook of about 1,750 tokens, role texts of 130, replies of 200.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # prices from the package: nothing is fetched

import litellm
from litellm.router import Router

from benchmarks import _table
from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Record, Reply, Request, SimulatedProvider, fill
from cacheprefix.testing.driver import HANDBOOK
from cacheprefix_litellm import role, wrap

RULES = (
    ("openai", "openai/gpt-5-2025-08-07", 0.1),
    ("openai-5.6", "openai/gpt-5.6", 0.1),
    ("anthropic", "anthropic/claude-sonnet-4-5-20250929", 0.1),
)
NAMES = ("planner", "critic", "writer")
ROUNDS = 2
Ask = Callable[..., Any]


def _said(name: str, *, role_first: bool = True) -> dict[str, str]:
    texts = [fill(f"You are the {name}.", 130), HANDBOOK]
    return {"role": "system", "content": "\n\n".join(texts if role_first else texts[::-1])}


def turns(ask: Ask, named: bool, *, role_first: bool = True) -> None:  # noqa: FBT001 - one of the workload's sides
    """Each question goes round, and everybody reads the whole conversation."""
    said: list[dict[str, str]] = []
    for at in range(ROUNDS):
        said.append({"role": "user", "content": fill(f"Question {at}:", 100)})
        for name in NAMES:
            with role(name, conversation="one") if named else nullcontext():
                answer = ask(messages=[_said(name, role_first=role_first), *said])
            said.append({"role": "user", "content": f"{name}: {answer.choices[0].message.content}"})


def at_once(ask: Ask, named: bool) -> None:  # noqa: FBT001 - as above
    """All answer the same question side by side."""

    async def one(name: str) -> None:
        with role(name, conversation="one") if named else nullcontext():
            await ask(messages=[_said(name), {"role": "user", "content": fill("Question:", 100)}])

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, NAMES))

    asyncio.run(all_of_them())


WORKLOADS: dict[str, tuple[str, Callable[[Ask, bool], None]]] = {
    "completion, 3 roles x2, role first": ("completion", turns),
    "completion, 3 roles x2, handbook first": ("completion", lambda ask, named: turns(ask, named, role_first=False)),
    "router, 3 roles x2, role first": ("router", turns),
    "acompletion, fan-out of 3": ("acompletion", at_once),
}


def run(name: str, rules: str, of: str, *, shared: bool, gated: bool = True) -> tuple[list[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them."""
    way, play = WORKLOADS[name]
    session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0) if gated else None) if shared else None

    def model(request: Request) -> Reply:
        return Reply(fill(f"Answer {len(request.prompt.sections)}:", 200))

    latency = _table.OVERLAP if "fan-out" in name else None
    with SimulatedProvider(rules, model, latency=latency) as provider:
        base = provider.anthropic_base_url if rules == "anthropic" else provider.openai_base_url
        place: dict[str, Any] = {"model": of, "api_base": base, "api_key": "any"}
        if way == "router":
            router = Router(model_list=[{"model_name": "team", "litellm_params": place}])
            ask, place = (router if session is None else wrap(router, session)).completion, {"model": "team"}
        else:
            own = getattr(litellm, way)
            ask = own if session is None else wrap(own, session)
        play(lambda **said: ask(**place, max_tokens=300, **said), shared)
        return list(provider.requests), session


def main() -> int:
    """Measure, print, write."""
    options = _table.options(__doc__, names=True).parse_args()
    rows = _table.measured("litellm", RULES, WORKLOADS, options.names, run)
    _table.finish(
        "litellm",
        rows,
        options,
        packages=("litellm",),
        lines=lambda found: _table.grid(found, ["workload"], lambda row: [row["workload"]]),
        whole=not options.names,
    )
    return 1 if any(row["ratio"] > 1 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
