"""What waiting at the gate costs and saves: cold fan-outs with the gate as it is by default, without it, and always.

``python -m benchmarks.bench_gate`` prints a table and writes ``benchmarks/results/gate.json``. Four forks of one cold
prefix start together against the simulated provider, which sleeps for as long as a hosted model of that size takes
(``Latency``'s own values unless ``--base`` says otherwise): by prefix size, streamed and whole. Rows give the seconds
until the last sibling has its first token (streamed) or its whole answer, and the cost units of all four. ``timed`` is
a session that has seen an answer of the model before; the others know nothing yet.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from benchmarks import _table
from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Latency, SimulatedProvider
from cacheprefix_sdk import role, wrap

SENTENCE = "The handbook says that every statement needs a source and that every source has a date. "
FORKS = 4
SIZES = (2_000, 8_000, 32_000)
OUTPUT = 60
GATES: dict[str, dict[str, Any]] = {
    "without a gate": {"gate": None},
    "default": {},
    "default, timed": {},
    "always waiting": {"gate": Gate(60.0, price=0.0)},
}


def fan_out(provider: SimulatedProvider, tokens: int, gate: str, *, streams: bool) -> tuple[float, float]:
    """Seconds until the last of the forks has what is waited for, and the cost units of all of them."""
    provider.reset()
    text = SENTENCE * (tokens // ESTIMATE(SENTENCE, "gpt-5"))
    session = Session(SharedPrefix(system=text), caching=Caching(provider=RULES, counter=ESTIMATE), **GATES[gate])
    client = wrap(openai.OpenAI(base_url=provider.openai_base_url, api_key="any", max_retries=0), session)

    def ask(name: str, shared: str = text, asked: openai.OpenAI = client) -> float:
        messages: list[Any] = [{"role": "system", "content": shared}, {"role": "user", "content": "What now?"}]
        with role(name, instruction=f"You are {name}."):
            answer: Any = asked.chat.completions.create(
                model="gpt-5.6", messages=messages, max_completion_tokens=OUTPUT, stream=streams
            )
            if streams:
                next(iter(answer))
        ended = time.perf_counter()
        if streams:
            list(answer)
        return ended

    if gate.endswith("timed"):
        # Another prefix, so that this one stays cold.
        other = session.child("other", SharedPrefix(system="Another handbook. " * 300))
        own = wrap(openai.OpenAI(base_url=provider.openai_base_url, api_key="any", max_retries=0), other)
        ask("first", other.prefix.text, own)
        own.close()
    seen, begun = len(provider.requests), time.perf_counter()
    with ThreadPoolExecutor(FORKS) as pool:
        ends = list(pool.map(ask, [f"critic {number}" for number in range(FORKS)]))
    profile = default_registry().get(RULES)
    units = sum(
        cost_units(normalise_usage(record.usage, "openai-chat", profile=profile), profile)
        for record in list(provider.requests)[seen:]
    )
    client.close()
    return max(ends) - begun, units


RULES = "openai-5.6"


def main() -> None:
    """Measure, print, write."""
    parser = _table.options(__doc__)
    parser.add_argument("--base", type=float, default=Latency().base, help="seconds that every request takes")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(SIZES), help="sizes of the shared part")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with SimulatedProvider(RULES, latency=Latency(base=options.base, scale=1.0)) as provider:
        fan_out(provider, 1_500, "always waiting", streams=True)
        for streams in (True, False):
            waited = "first token" if streams else "whole answer"
            for tokens in options.tokens:
                plain: dict[str, float] = {}
                for gate in GATES:
                    _table.progress(f"{waited}, {tokens:,} tokens, {gate}")
                    seconds, units = fan_out(provider, tokens, gate, streams=streams)
                    name = f"{FORKS} cold forks of {tokens:,} tokens, {gate}"
                    rows.append(_table.topic(f"{name}: last {waited}", seconds, "s", plain, digits=2))
                    plain = plain or {gate: round(seconds, 2)}
                    rows.append(_table.topic(f"{name}, {'streamed' if streams else 'whole'}: cost", units, "units"))
    _table.finish("gate", rows, options, whole=options.tokens == list(SIZES))


if __name__ == "__main__":
    main()
