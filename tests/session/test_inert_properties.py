"""What may never break, on generated requests: observing changes nothing, what fails sends the own request."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "context"))
from context_histories import histories

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.bodies import Role, fork_body
from cacheprefix.plugins import CacheprefixPluginWarning

FIELD = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages"}
HANDBOOK = "Every statement needs a source. " * 200
QUICK = settings(max_examples=25, phases=(Phase.generate,), suppress_health_check=[HealthCheck.too_slow])
HOOKS = ("freeze", "fork", "count_tokens", "place_breakpoints", "before_call", "after_call", "replace_tool_result")
STEPS = (
    "cacheprefix.calls.begin.plan_breakpoints",
    "cacheprefix.calls.begin.Requests._marked",
    "cacheprefix.calls.begin.Requests._own",
    "cacheprefix.calls.state.decode",
    "cacheprefix.cache.CacheModel.begin",
    "cacheprefix.bodies._fork_layout",
    "cacheprefix.bodies._completed",
    "cacheprefix.calls.history_runner.views_of",
    "cacheprefix.calls.history_runner.apply",
)


@st.composite
def bodies(draw, api):
    """A request as an application makes it."""
    history = draw(histories(api).filter(bool))
    lead = [{"role": "system", "content": f"You object.\n\n{HANDBOOK}"}] if api == "openai-chat" else []
    more = {"system": f"You object.\n\n{HANDBOOK}"} if api == "anthropic" else {}
    more |= draw(st.fixed_dictionaries({}, optional={"temperature": st.just(0), "stream": st.booleans()}))
    return {"model": "gpt-5.2", FIELD[api]: [*lead, *history], **more}


class Raises:
    """A plugin that is wrong at every hook it has."""

    def __init__(self, hooks):
        for name in hooks:
            setattr(self, f"cacheprefix_{name}", _fails)


def _fails(*_, **__):
    raise ZeroDivisionError("wrong")


def session(**options):
    """One that shares a handbook and shortens results."""
    return Session(SharedPrefix(system=HANDBOOK), budget=ToolResultBudget(300), **options)


@pytest.mark.slow
@pytest.mark.parametrize("api", FIELD)
@QUICK
@given(data=st.data())
def test_observing_sends_what_the_application_sent(api, data):
    """The very object, unchanged, however often it is asked."""
    body = data.draw(bodies(api))
    before = copy.deepcopy(body)
    watching = session(mode="observe")
    for _ in range(2):
        fork = fork_body(watching.adapter, body, api, Role("critic", "You object."))
        turn = fork.begin(fork.queue())
        turn.finish(None)
        assert not fork.forked
        assert turn.body == body == before


@pytest.mark.slow
@pytest.mark.parametrize("api", FIELD)
@QUICK
@given(data=st.data())
def test_what_fails_sends_the_fork_or_the_own_request_and_nothing_between(api, data):
    """Whichever steps raise, and whichever hooks of a plugin: nothing is raised, and the next call is a fork again."""
    body = data.draw(bodies(api))
    before = copy.deepcopy(body)
    role = Role("critic", "You object.")
    steps = data.draw(st.sets(st.sampled_from(STEPS), min_size=1, max_size=3))
    hooks = data.draw(st.sets(st.sampled_from(HOOKS), min_size=1, max_size=3))
    right = fork_body(session().adapter, body, api, role)
    whole = fork_body(Session(right.session.prefix).adapter, body, api, role)
    own = fork_body(Session(SharedPrefix(system=HANDBOOK), mode="fork").adapter, body, api, role).own()
    allowed = (body, own, right.body, right.begin().body, whole.body, whole.begin().body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheprefixPluginWarning)
        broken = session(plugins=[Raises(hooks)])
        with ExitStack() as stack:
            for step in steps:
                stack.enter_context(patch(step, _fails))
            fork = fork_body(broken.adapter, body, api, role)
            turn = fork.begin()
            sent = json.dumps(turn.body, sort_keys=True)
            turn.finish(None)
        assert body == before
        wanted = [json.dumps(one, sort_keys=True) for one in allowed]
        assert sent in wanted
        assert turn.seen is not None or turn.body in (body, own)
        assert broken.failures or turn.seen is not None
        again = fork_body(broken.adapter, body, api, role)
        assert again.body == right.body
