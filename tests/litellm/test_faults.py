"""A small matrix of faults: whatever fails, the application's result is that of the unmodified one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect

import litellm
import pytest
from litellm_driver import MODELS, place, router_for

from cacheprefix_litellm import install, role, unwrap, wrap
from tests.fault_matrix import FOUND, HANDBOOK, PROVIDER, Case, check, check_event_loop, check_fork, check_stall, names

STEPS = (
    "cacheprefix_litellm.calls._read",
    "cacheprefix_litellm.calls._streamed",
    "cacheprefix_litellm.calls._usage",
    "cacheprefix.adapter.watched_stream",
    "cacheprefix.bodies._fork_layout",
    "cacheprefix.bodies._read",
    "cacheprefix.calls.history_runner.views_of",
    "cacheprefix.layout.role_position.RolePositions.choose",
    "cacheprefix.cache.CacheModel.finish",
    "cacheprefix.cache.CacheModel.first_token",
    "cacheprefix.calls.begin.Requests.gate_key",
)
CASES = [
    *(Case(f"step {step.split('.', 1)[-1]} raises", break_=step) for step in STEPS),
    *(
        Case(f"provider: {name}, call {at + 1}", provider=PROVIDER[name], at=at)
        for name in ("400", "429", "500", "cut", "usage omitted")
        for at in (0, 2)
    ),
]
KNOWN: dict[str, list[str]] = {}
DOORS = ("acompletion", "installed acompletion", "router acompletion")
"""Where the application asks, in an event loop."""
QUESTION = "Find it and write it down."
LONG = "This role keeps to one more rule of its own list. " * 20
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}


def tool(name):
    """A function in OpenAI's form."""
    return {"type": "function", "function": {"name": name, "description": "Looks at it.", "parameters": PLACE}}


@pytest.fixture(scope="module")
def application(servers):
    """A role with a tool, then one that streams."""
    provider = servers["openai"]
    kept = provider.simulator.script

    async def run(session, replies, ask, to):
        provider.reset()
        provider.simulator.script = replies

        async def turn(name, said, **options):
            messages = [{"role": "system", "content": f"{HANDBOOK}\n\n{LONG} {name}."}, *said]
            with contextlib.nullcontext() if session is None else role(name, conversation="c"):
                answer = ask(messages=messages, **to, **options)
                return await answer if inspect.isawaitable(answer) else answer

        said = [{"role": "user", "content": QUESTION}]
        try:
            first = (await turn("finder", said, tools=[tool("look")])).choices[0].message
            result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": FOUND}
            found = (await turn("finder", [*said, first, result], tools=[tool("look")])).choices[0].message.content
            said.append({"role": "assistant", "content": found})
            stream = await turn("writer", said, tools=[tool("write")], stream=True)
            # In a loop too, what was asked for without ``await`` is read without it.
            chunks = [chunk async for chunk in stream] if ask.__name__ == "acompletion" else list(stream)
            written = "".join([chunk.choices[0].delta.content or "" for chunk in chunks])
        except Exception as error:
            return [type(error).__name__]
        return [found, written]

    def asked(session, replies, door="acompletion"):
        kind, _, name = door.rpartition(" ")
        target = router_for(("openai", provider)) if kind == "router" else getattr(litellm, name)
        inside = contextlib.nullcontext()
        if session is not None:
            inside = install(session) if kind == "installed" else contextlib.nullcontext(wrap(target, session))
        with inside as held:
            if kind == "router":
                ask, to = getattr(target, name), {"model": "openai"}
            else:
                ask = getattr(litellm, name) if kind or session is None else held
                to = {"model": MODELS["openai"], **place("openai", provider)}
            outcome = asyncio.run(run(session, replies, ask, to))
        if kind == "router":
            unwrap(target)
        # The answers do not go by what is asked: whatever fails, it is the whole conversation.
        assert all(QUESTION in str(record.json) for record in provider.requests)
        return outcome

    yield asked
    provider.simulator.script = kept


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_result_is_that_of_the_unmodified_application(case, application, monkeypatch):
    """Each of these steps is taken, and that it raised is counted."""
    check(case, application, monkeypatch, KNOWN, every=True)


@pytest.mark.parametrize("door", [*DOORS, *(door.replace("acompletion", "completion") for door in DOORS)])
def test_a_store_that_hangs_never_holds_the_event_loop(application, door):
    """Full texts and the gate, in a store that takes its time; where a loop asks without ``await`` too."""
    check_event_loop(functools.partial(application, door=door))


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_the_event_loop_goes_on_while_a_store_takes_its_time(application, door):
    """A second and a half for each call, longer than the gate waits for one: no event loop stands still for it."""
    check_stall(functools.partial(application, door=door))


@pytest.mark.slow
def test_a_child_that_is_forked_off_from_a_busy_process_runs_it(application):
    """Prefork servers and pools: no lock of the parent's holds it, and nothing of the parent's is waited for."""
    check_fork(application)
