"""Parallel siblings of one conversation: the same history for all, and never a request above the window."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix import Compaction, History, RequestBudget, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.wire import apply, views_of

HANDBOOK = "The handbook of the house. " * 300
MODEL = "gpt-4o"


def _history(turns, words=40):
    out = []
    for number in range(turns):
        out.append({"role": "user", "content": f"question {number}: " + "lorem ipsum " * words})
        out.append({"role": "assistant", "content": f"answer {number}: " + "dolor sit " * words})
    return [*out, {"role": "user", "content": "all of you: what now?"}]


def _body(role, history, text=""):
    system = {"role": "system", "content": f"{HANDBOOK}\n\nYou are {role}. {text}"}
    return {"model": MODEL, "messages": [system, *map(dict, history)]}


def _together(works):
    """Run works at the same time; their results in order."""
    barrier = threading.Barrier(len(works))

    def run(work):
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def _tokens(session, body):
    return sum(session.adapter.count(message["content"], MODEL) for message in body["messages"])


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 60), st.integers(5_000, 9_000), st.lists(st.integers(0, 300), min_size=2, max_size=4))
def test_no_sibling_of_a_fan_out_goes_above_the_window_or_sees_another_history(turns, window, sizes):
    """Whoever compacts, all siblings send the same history, and what they send fits the window."""
    budget = RequestBudget(window=window, reserve=500)
    limits = {"history": History(request_budget=budget), "compaction": Compaction(trigger=None)}
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, **limits)
    history = _history(turns)
    roles = {f"role {n}": "Your rules. " * size for n, size in enumerate(sizes)}
    # What each role brings was seen once, at a time when there was room for all of it.
    for role, text in roles.items():
        fork_body(session.adapter, _body(role, history[-1:], text), "openai-chat", Role(role, conversation="c"))

    def one(role, text):
        fork = fork_body(session.adapter, _body(role, history, text), "openai-chat", Role(role, conversation="c"))
        return fork.body, fork.tail

    sent = _together([lambda role=role, text=text: one(role, text) for role, text in roles.items()])
    assert all(_tokens(session, body) <= budget.room for body, _ in sent)
    histories = [[m for m in body["messages"] if m["content"] != tail] for body, tail in sent]
    assert all(one == histories[0] for one in histories)
    assert not session.failures


def _session():
    compaction = Compaction(trigger=4_000, summarise="fork", horizon=1_000)
    return Session(SharedPrefix(system="The rules of the house."), compaction=compaction)


def _views(session, history):
    return views_of(history, "openai-chat", session.adapter.counter(MODEL))


async def test_siblings_wait_for_the_summary_that_one_of_them_has_written():
    """One summary is asked for, and every sibling shows it."""
    session, history = _session(), _history(40)
    talk, views = session.conversation("c"), _views(session, history)
    asked, go = asyncio.Event(), asyncio.Event()
    requests = []

    async def ask(request):
        requests.append(request)
        asked.set()
        await go.wait()
        return "What was said, summed up by the model. " * 5

    first = asyncio.create_task(session.adapter.histories.acondense(talk, views, MODEL, ask=ask))
    await asked.wait()
    others = [asyncio.create_task(session.adapter.histories.acondense(talk, views, MODEL, ask=ask)) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(other.done() for other in others)
    go.set()
    shown = [apply(history, await task, "openai-chat") for task in (first, *others)]
    assert len(requests) == 1
    assert "summed up by the model" in str(shown[0])
    assert all(one == shown[0] for one in shown)


async def test_a_sibling_goes_on_when_the_one_that_asks_is_cancelled():
    """Nobody waits for a summary that will not come: the next one has it written."""
    session, history = _session(), _history(40)
    talk, views = session.conversation("c"), _views(session, history)
    asked = asyncio.Event()

    async def never(request):
        asked.set()
        await asyncio.Event().wait()

    async def ask(request):
        return "Written by the second. " * 5

    first = asyncio.create_task(session.adapter.histories.acondense(talk, views, MODEL, ask=never))
    await asked.wait()
    second = asyncio.create_task(session.adapter.histories.acondense(talk, views, MODEL, ask=ask))
    await asyncio.sleep(0)
    first.cancel()
    decisions = await asyncio.wait_for(second, 20)
    assert "Written by the second" in str(apply(history, decisions, "openai-chat"))
    assert talk.asking is None


async def test_who_cannot_wait_compacts_without_the_summary_and_the_late_one_is_dropped():
    """A synchronous call in the loop that the summary needs stands still for nothing, and both send the same."""
    session, history = _session(), _history(40)
    talk, views = session.conversation("c"), _views(session, history)
    asked, go = asyncio.Event(), asyncio.Event()

    async def ask(request):
        asked.set()
        await go.wait()
        return "Too late. " * 20

    first = asyncio.create_task(session.adapter.histories.acondense(talk, views, MODEL, ask=ask))
    await asked.wait()
    here = session.adapter.histories.condense(talk, views, MODEL)
    go.set()
    assert await first == here
    shown = apply(history, here, "openai-chat")
    assert len(shown) < len(history)
    assert "Too late" not in str(shown)
    assert talk.ledger.epoch == 1


@pytest.mark.parametrize("turns", [40])
def test_what_asks_for_a_summary_may_itself_be_laid_out(turns):
    """A request of the same conversation from inside the asking does not wait for itself."""
    session, history = _session(), _history(turns)
    talk, views = session.conversation("c"), _views(session, history)
    inner = []

    def ask(request):
        inner.append(session.adapter.histories.condense(talk, views, MODEL))
        return "Summed up. " * 20

    outer = session.adapter.histories.condense(talk, views, MODEL, ask=ask)
    assert inner == [outer]


def test_threads_wait_for_a_summary_too():
    """Siblings in threads of their own ask once and show the same."""
    session, history = _session(), _history(40)
    talk, views = session.conversation("c"), _views(session, history)
    asked, go, requests = threading.Event(), threading.Event(), []

    def ask(request):
        requests.append(request)
        asked.set()
        go.wait(20)
        return "Summed up in a thread. " * 10

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(session.adapter.histories.condense, talk, views, MODEL, ask=ask)
        assert asked.wait(20)
        others = [pool.submit(session.adapter.histories.condense, talk, views, MODEL, ask=ask) for _ in range(3)]
        go.set()
        found = [one.result(20) for one in (first, *others)]
    assert len(requests) == 1
    assert all(one == found[0] for one in found)
    assert "Summed up in a thread" in str(apply(history, found[0], "openai-chat"))
