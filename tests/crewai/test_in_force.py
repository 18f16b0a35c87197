"""Which of several installations on one object is in force: each line of the rule, without a crew."""

from __future__ import annotations

import contextvars
from types import SimpleNamespace
from typing import Any

import pytest

from cacheprefix import Session
from cacheprefix_crewai.binding import FLOW, RUN, Binding, Options, bind, binding_of


@pytest.fixture
def agent() -> Any:
    """What is installed on."""
    return SimpleNamespace()


def made(agent: Any, *, of_flow: bool = False) -> Binding:
    """One more installation, made by whoever runs here."""
    binding = Binding(Session().adapter, Options(), of_flow=of_flow)
    bind(agent, binding)
    binding.made()
    return binding


def in_runs(agent: Any, run: Binding | None = None, flow: Binding | None = None) -> Binding | None:
    """What is in force in the run of a crew's installation, within the run of a flow's."""
    context = contextvars.copy_context()
    if run is not None:
        context.run(RUN.set, run)
    if flow is not None:
        context.run(FLOW.set, SimpleNamespace(binding=flow))
    return context.run(binding_of, agent)


def test_a_runs_own_is_in_force_in_it(agent) -> None:
    """Whatever whoever runs there has installed since; a crew's within a flow's, where both are on the object."""

    def server() -> None:
        first, flow, other = made(agent), made(agent, of_flow=True), made(SimpleNamespace())
        newest = made(agent)
        assert in_runs(agent, first) is first
        assert in_runs(agent, first, flow) is first
        assert in_runs(agent, other, flow) is flow
        assert in_runs(agent, other) is newest
        first.active = False
        assert in_runs(agent, first) is newest

    contextvars.Context().run(server)


def test_else_the_newest_is_that_was_made_here(agent) -> None:
    """Whoever has installed beside it; not a flow's, and not one that was taken back."""
    here, beside = contextvars.Context(), contextvars.Context()
    first, second = (here.run(made, agent) for _ in range(2))
    here.run(made, agent, of_flow=True)
    other = beside.run(made, agent)
    assert here.run(binding_of, agent) is second
    assert beside.run(binding_of, agent) is other
    second.active = False
    assert here.run(binding_of, agent) is first


def test_else_the_only_one_is_that_there_is(agent) -> None:
    """Several that one request made count as one; of two requests nobody knows whose it would be."""
    here = contextvars.Context()
    assert binding_of(agent) is None
    here.run(made, agent, of_flow=True)
    assert binding_of(agent) is None
    first = here.run(made, agent)
    assert binding_of(agent) is first
    second = here.run(made, agent)
    assert binding_of(agent) is second
    other = contextvars.Context().run(made, agent)
    assert binding_of(agent) is None
    other.active = False
    assert binding_of(agent) is second


def test_in_a_run_only_what_its_own_request_made_is(agent) -> None:
    """A crew that was installed before or behind the agent by the same one, and not what another one installed."""
    here, beside = contextvars.Context(), contextvars.Context()
    before = here.run(made, SimpleNamespace())
    mine = here.run(made, agent)
    behind = here.run(made, SimpleNamespace())
    others = beside.run(made, SimpleNamespace())
    assert [in_runs(agent, one) for one in (before, behind, others)] == [mine, mine, None]
    theirs = beside.run(made, agent)
    assert [in_runs(agent, one) for one in (before, behind, others)] == [mine, mine, theirs]
