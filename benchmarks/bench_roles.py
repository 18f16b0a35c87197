"""Cost of teams by the length of their role texts: three roles in turn, forks against the application's own requests.

``python -m benchmarks.bench_roles`` prints a table and writes ``benchmarks/results/roles.json``. A role's text behind
what is shared is paid anew in each turn; with long ones and short messages that would cost more than sharing saves.
Without a handbook nothing is shared before the conversation is long enough, and roles keep the application's layout.
Agents with tools of their own share by carrying all tools in each request, which pays for small ones only, and on a
guess for few: ``--known`` tells of the calls beforehand (``RunAhead``), and prints what that is worth.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from benchmarks import _table
from benchmarks.role_plans import Plan, played, session_for, side_of
from cacheprefix.profiles import default_registry

RULES = ("openai", "openai-5.6", "deepseek", "vllm", "anthropic")
HANDBOOKS = (2_000, 0)
SAID = 60
ROLES = (40, 200, 600, 1_500)
ROUNDS = (1, 4, 12)
TOOLS = (300, 1_200, 4_000)


def main() -> int:
    """Run it."""
    parser = _table.options(__doc__)
    parser.add_argument("--known", action="store_true", help="tell of the calls beforehand; writes no result file")
    given = parser.parse_args()
    rows = []
    for name, made in plans():
        _table.progress(name)
        plan = replace(made, known=given.known)
        for rules in RULES:
            profile = default_registry().get(rules)
            plain, ours = (side_of(played(plan, rules, one), profile) for one in (None, session_for(plan, rules)))
            rows.append(_table.cost(name, "none", rules, profile.read, plain, ours))
    _table.finish(
        "roles", rows, given, lines=lambda found: _table.grid(found, [""], lambda row: [row["workload"]]),
        whole=not given.known,
    )  # fmt: skip
    return 0


def plans() -> Iterator[tuple[str, Plan]]:
    """Three roles in turn, by what they bring."""
    for handbook, size, rounds in product(HANDBOOKS, ROLES, ROUNDS):
        what = f"role texts of {size:,} tokens, {_counted(rounds)}{', no handbook' * (not handbook)}"
        yield what, Plan(handbook, (size,) * 3, _turns(rounds))
    for size, rounds in product(TOOLS, ROUNDS):
        what = f"tools of {size:,} tokens each, {_counted(rounds)}"
        yield what, Plan(HANDBOOKS[0], (ROLES[0],) * 3, _turns(rounds), (size,) * 3)


def _counted(rounds: int) -> str:
    return f"{rounds} round{'s' * (rounds > 1)}"


def _turns(rounds: int) -> tuple[tuple[int, int], ...]:
    return tuple((at % 3, SAID) for at in range(3 * rounds))


if __name__ == "__main__":
    sys.exit(main())
