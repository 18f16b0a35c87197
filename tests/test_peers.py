"""When a peer's test that differs under observation counts as chance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.peers import __main__ as peers
from tests.peers.__main__ import SUITES, Ran, alone, by_chance, differing, unlisted

A, B, C = "POST /a 1", "POST /a 2", "POST /a 3"
FAILED = None


def ran(*bodies: list[str] | None) -> list[dict[str, Ran]]:
    """Runs of one test, plain and observed in turn: what each sent; None is one that failed."""

    def one(layer: str, sent: list[str] | None) -> Ran:
        test: dict[str, Any] = {
            "outcome": "failed" if sent is None else "passed",
            "bodies": sent or [],
            "prompt": False,
        }
        return Ran(layer, {"t": test}, 0.0, "")

    pairs = zip(bodies[::2], bodies[1::2], strict=True)
    return [{"plain": one("plain", plain), "observed": one("observed", observed)} for plain, observed in pairs]


@pytest.mark.parametrize(
    ("bodies", "chance"),
    [
        ([[A, B], [B, A], [A, B], [A, B]], False),  # plain is always the same: the order is ours
        ([[A, B], [B, A], [B, A], [A, B]], True),  # plain has either order
        ([[A, B], [A, C], [B, A], [B, A]], False),  # in any order, another body
        ([[A, B], [A, C], [A, C], [A, B]], True),  # plain sends other bodies itself
        ([[A], FAILED, [A], [A]], True),  # lost once and not again
        ([[A], FAILED, [A], FAILED], False),
        ([[A], FAILED, [A], [B]], False),  # not lost again, and other bytes
        ([[A], [B], FAILED, [A]], False),  # nothing to hold it against
    ],
)
def test_what_differs_is_chance_only_where_plain_differs_from_plain(bodies, chance) -> None:
    """Else it is ours."""
    first, *more = ran(*bodies)
    assert differing(first["plain"], first["observed"]) == {"t"}
    assert by_chance("t", first, more) is chance


@pytest.mark.parametrize(
    ("alone_it", "chance"), [((True, True, True), True), ((True, False, True), False), ((False,) * 3, False)]
)
def test_what_a_fork_loses_is_chance_where_it_passes_each_time_that_it_is_run_alone(monkeypatch, alone_it, chance):
    """A test that holds a clock to half a second is lost on a busy machine; one that our text breaks always is."""
    suite = SUITES["langgraph-swarm"]
    outcomes = iter(alone_it)

    def one(layer: str, passed: bool) -> Ran:  # noqa: FBT001 - of a table
        outcome = "passed" if passed else "failed"
        return Ran(layer, {"t": {"outcome": outcome, "bodies": [], "prompt": False}}, 0.0, "")

    def again(suite, layer, *, sample, only, name):
        assert (layer, only) == ("forked", ["t"])
        return one(layer, next(outcomes))

    monkeypatch.setattr(peers, "run", again)
    first = {layer: one(layer, layer != "forked") for layer in suite.layers}
    lost = unlisted(suite, first)
    assert lost == {"forked": {"t"}, "shared": set(), "answered": set()}
    assert alone(suite, lost) == ({"t"} if chance else set())
