"""What lifetimes cost where a conversation pauses: the default, each one on offer, and ``lifetime="auto"``.

``python -m benchmarks.bench_lifetimes`` prints a table and writes ``benchmarks/results/lifetimes.json``. Two roles
share a handbook and a conversation of eight turns, with 4, 10, 20 or 70 minutes between two turns by the clock of the
simulated provider, which the program sets. A row gives the cost units of ``auto`` by the provider's counts, and beside
it those of each lifetime when it is named, and of the default kept alive through every pause
(``Session.keep_alive``, at most what writing anew costs).
"""

from __future__ import annotations

from typing import Any

import anthropic
import openai

from benchmarks import _table
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.prompt import ESTIMATE, Api
from cacheprefix.server import SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source and that every source has a date. " * 300
MINUTES = (4, 10, 20, 70)
TURNS = 8
RULES: dict[str, tuple[Api, str, tuple[str, ...]]] = {
    "anthropic": ("anthropic", "claude-sonnet-4-5", ("5m", "1h")),
    "openai": ("openai-chat", "gpt-4.1", ("in_memory", "24h")),
    "openai-5.6": ("openai-responses", "gpt-5.6", ("30m", "12h")),
}


def run(rules: str, minutes: float, lifetime: str | None, *, kept: bool = False) -> float:
    """The cost units of the conversation with such pauses, ``kept`` alive through them."""
    now, (api, model, _) = [1_000_000.0], RULES[rules]
    with SimulatedProvider(rules, clock=lambda: now[0]) as provider:
        caching = Caching(provider=rules, counter=ESTIMATE, clock=lambda: now[0], lifetime=lifetime)
        session, said = Session(SharedPrefix(system=HANDBOOK), caching=caching), list[Any]()
        with _client(provider, api) as plain:
            client: Any = wrap(plain, session)
            for turn in range(TURNS):
                said = [*said, {"role": "user", "content": f"Question {turn}. " + "What does the handbook say? " * 20}]
                for name in ("critic", "writer"):
                    with role(name, conversation="one", instruction=f"You are the {name}."):
                        _ask(client, api, model, said)
                    now[0] += 5
                said = [*said, {"role": "assistant", "content": "It says that a source is needed. " * 40}]
                _pause(session, plain if kept else None, provider, api, now, minutes * 60)
        profile = default_registry().get(rules)
        return sum(
            cost_units(normalise_usage(record.usage, record.api, profile=profile), profile)
            for record in provider.requests
        )


def _pause(
    session: Session, client: Any, provider: SimulatedProvider, api: Api, now: list[float], seconds: float
) -> None:
    """Let the time pass, with reads before what was sent last expires where a client is given."""
    ends = now[0] + seconds
    if client is not None:
        ask = {
            "anthropic": lambda body: client.messages.create(**body),
            "openai-responses": lambda body: client.responses.create(**body),
        }.get(api, lambda body: client.chat.completions.create(**body))
        keeper = session.keep_alive(body=provider.requests[-1].json, api=api, send=ask)
        while (left := keeper.due()) is not None and now[0] + left < ends:
            now[0] += left
            keeper.keep()
    now[0] = ends


def _client(provider: SimulatedProvider, api: Api) -> Any:
    if api == "anthropic":
        return anthropic.Anthropic(base_url=provider.anthropic_base_url, api_key="any", max_retries=0)
    return openai.OpenAI(base_url=provider.openai_base_url, api_key="any", max_retries=0)


def _ask(client: Any, api: Api, model: str, said: list[Any]) -> None:
    if api == "anthropic":
        client.messages.create(model=model, max_tokens=50, system=HANDBOOK, messages=said)
    elif api == "openai-responses":
        client.responses.create(model=model, instructions=HANDBOOK, input=said)
    else:
        client.chat.completions.create(model=model, messages=[{"role": "system", "content": HANDBOOK}, *said])


def main() -> None:
    """Measure, print, write."""
    options = _table.options(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    for rules, (_, _, names) in RULES.items():
        for minutes in MINUTES:
            _table.progress(f"{rules}, pauses of {minutes} minutes")
            peers = {name: run(rules, minutes, name) for name in names}
            peers["the default"] = run(rules, minutes, None)
            peers["kept alive"] = run(rules, minutes, None, kept=True)
            rows.append(
                _table.topic(f"{rules}, pauses of {minutes} minutes: auto", run(rules, minutes, "auto"), "units", peers)
            )
    _table.finish("lifetimes", rows, options)


if __name__ == "__main__":
    main()
