"""Installations on one agent, made by several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace

from cacheprefix_crewai.binding import KEY, Bound, bind, bound_to, unbind


class _Read(list):
    """What is installed, by which two threads look at once."""

    def __init__(self, *given):
        super().__init__(given)
        self.together = Barrier(2)

    def __iter__(self):
        with suppress(BrokenBarrierError):
            self.together.wait(0.5)
        return super().__iter__()


def test_no_installation_is_lost_where_threads_make_some_at_once():
    """One that was lost would have another crew's session answer for its requests."""
    first, *others = [SimpleNamespace(active=True, of_flow=False) for _ in range(3)]
    agent, found = SimpleNamespace(), Bound()
    found._all = _Read(first)
    vars(agent)[KEY] = found
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: bind(agent, one), others))
    assert all(bound_to(agent, one) for one in (first, *others))
    found._all = _Read(*found._all)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: unbind(agent, one), others))
    assert [bound_to(agent, one) for one in (first, *others)] == [True, False, False]
