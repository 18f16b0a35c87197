"""A context variable that keeps nothing alive behind its block."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref

from cacheprefix.contexts import BlockVar


class Thing:
    """Something that can be referred to weakly."""


def test_a_context_that_was_copied_in_the_block_holds_nothing_behind_it():
    """As a pooled connection's does; inside the block it sees the value."""
    var: BlockVar[Thing] = BlockVar("test")
    thing = Thing()
    held, token = weakref.ref(thing), var.set(thing)
    copied = contextvars.copy_context()
    assert copied.run(var.get) is thing
    var.reset(token)
    assert var.get() is None
    assert copied.run(var.get) is None
    del thing
    gc.collect()
    assert held() is None


def test_blocks_nest():
    """The outer value is in force again, and its own end ends it."""
    var: BlockVar[str] = BlockVar("test")
    outer = var.set("outer")
    inner = var.set("inner")
    assert var.get() == "inner"
    var.reset(inner)
    none = var.set(None)
    assert var.get() is None
    var.reset(none)
    assert var.get() == "outer"
    var.reset(outer)
    assert var.get() is None


async def test_tasks_of_a_block_see_its_value_and_no_other_tasks():
    """Two blocks that run together do not disturb one another."""
    var: BlockVar[str] = BlockVar("test")

    async def work(name):
        token = var.set(name)
        await asyncio.sleep(0)
        seen = await asyncio.create_task(asyncio.sleep(0, var.get()))
        var.reset(token)
        return seen

    assert await asyncio.gather(work("a"), work("b")) == ["a", "b"]
