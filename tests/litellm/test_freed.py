"""What is done and gone is let go: sessions with what was wrapped in them, ended conversations, streams left unread."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import litellm
import pytest
from litellm_driver import HANDBOOK, MODELS, messages, place, router_for

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix_litellm import install, role, unwrap, wrap

BOTH = pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])


class Said(dict):
    """A message of the application's that is looked for."""


def asked(call, to, said):
    """A whole answer, a stream that is read to its end, one that is left after a chunk, and one dropped unread."""
    request = {"messages": [*messages("critic"), *said], **to}
    assert call(**request).choices
    assert list(call(**request, stream=True))
    assert next(call(**request, stream=True))
    call(**request, stream=True)


async def aasked(call, to, said):
    """The same; LiteLLM's asynchronous streams can be closed."""
    request = {"messages": [*messages("critic"), *said], **to}
    assert (await call(**request)).choices
    assert [chunk async for chunk in await call(**request, stream=True)]
    left = await call(**request, stream=True)
    assert await anext(left)
    await left.aclose()
    await call(**request, stream=True)


def in_session(provider, session, kind, *, later, said=(), conversation="one"):
    """All four by one door, in a role; gives what was wrapped."""
    to = {"model": "openai"} if kind == "router" else {"model": MODELS["openai"], **place("openai", provider)}
    name = "acompletion" if later else "completion"
    target = router_for(("openai", provider)) if kind == "router" else getattr(litellm, name)
    inside = role("critic", conversation=conversation)
    if kind == "install":
        inside = install(session, role="critic", conversation=conversation)
    else:
        target = wrap(target, session)
    with inside:
        call = getattr(target if kind == "router" else litellm, name) if kind != "function" else target
        asyncio.run(aasked(call, to, said)) if later else asked(call, to, said)
    return target


def soon(true):
    """Collects until it is so: a stream that is left is in a circle, and LiteLLM's threads hold it while they log."""
    last = time.monotonic() + 30
    while not true() and time.monotonic() < last:
        gc.collect()
        time.sleep(0.01)
    return true()


def gone(held):
    """Whether nobody holds them any more."""
    return soon(lambda: [each() for each in held] == [None] * len(held))


def held_of(session):
    """The session as the application has it, its parts, and its prompts."""
    return [weakref.ref(each) for each in (session, session.adapter, session.adapter.shared.model)]


@BOTH
@pytest.mark.parametrize("ended", ["", "unwrapped", "discarded"], ids=lambda how: how or "function")
def test_a_session_goes_with_what_was_wrapped_in_it(fresh, later, ended):
    """With its prompts. LiteLLM holds a router that was asked once; ``discard`` is its own word for the end."""
    provider = fresh("openai")

    def run():
        session = Session(SharedPrefix(system=HANDBOOK))
        wrapped = in_session(provider, session, "router" if ended else "function", later=later)
        assert {call.layout for call in session.calls} == {"fork"}
        assert session.failures == {}
        if ended == "unwrapped":
            unwrap(wrapped)
        elif ended:
            # From LiteLLM 1.110 on it has another name.
            getattr(wrapped, "retire", wrapped.discard)()
        return held_of(session)

    assert gone(run())
    assert litellm.completion(MODELS["openai"], messages("critic"), **place("openai", provider)).choices


@BOTH
def test_a_session_goes_with_its_block(fresh, later):
    """``install`` is over with its block."""
    provider = fresh("openai")

    def run():
        session = Session(SharedPrefix(system=HANDBOOK))
        in_session(provider, session, "install", later=later)
        assert soon(lambda: len(session.calls) >= 3)
        return held_of(session)

    assert gone(run())


@BOTH
@pytest.mark.parametrize("kind", ["function", "router"])
def test_a_conversation_that_has_ended_is_freed_when_it_is_forgotten(fresh, later, kind):
    """With the application's messages; another one stays, and the next one of that id starts anew."""
    provider, session = fresh("openai"), Session(SharedPrefix(system=HANDBOOK), budget=ToolResultBudget(50))
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    wrapped = []
    for name in ("one", "two"):
        said = [
            Said(role="assistant", content=None, tool_calls=[call]),
            Said(role="tool", tool_call_id="c", content=f"Found by {name}. " * 200),
            Said(role="user", content=f"And now, {name}?"),
        ]
        wrapped.append(in_session(provider, session, kind, later=later, conversation=name, said=said))
        del said
    ended, other = (weakref.ref(session.conversation(name)) for name in ("one", "two"))
    assert ended().ledger
    session.forget("one")
    assert gone([ended])
    assert other() is session.conversation("two")
    assert not session.conversation("one").ledger
    assert soon(lambda: not [one for one in gc.get_objects() if type(one) is Said])
    assert session.failures == {}
    for each in wrapped if kind == "router" else ():
        unwrap(each)
