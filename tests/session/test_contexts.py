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


def test_a_block_that_another_context_ends_is_in_force_nowhere():
    """A generator's, which is closed by another task or by the garbage collector; also where its value is kept."""
    for kept in (False, True):
        var: BlockVar[str] = BlockVar("test", kept=kept)

        def steps(var=var):
            with var.within("inside"):
                yield

        generator = steps()
        next(generator)
        copied = contextvars.copy_context()
        copied.run(generator.close)
        assert var.get() is None
        assert copied.run(var.get) is None


def test_blocks_that_end_out_of_turn_leave_the_others_in_force():
    """Two generators that are read in turns: neither one's value is there once both have ended."""
    var: BlockVar[str] = BlockVar("test", kept=True)
    with var.within("around"):
        first, second = var.set("first"), var.set("second")
        var.reset(first)
        assert var.get() == "second"
        var.reset(second)
        assert var.get() == "around"


def test_a_kept_value_goes_on_in_what_was_started_inside():
    """As tasks do that are awaited behind the block."""
    var: BlockVar[str] = BlockVar("test", kept=True)
    with var.within("inside"):
        copied = contextvars.copy_context()
    assert var.get() is None
    assert copied.run(var.get) == "inside"


def test_a_stretched_block_goes_on_in_what_was_started_in_any_part_of_it():
    """Until its end; between its parts it is not in force."""
    var: BlockVar[Thing] = BlockVar("test")
    thing = Thing()
    held, block = weakref.ref(thing), var.stretched(thing)
    del thing
    with var.stretch(block):
        started = contextvars.copy_context()
    assert var.get() is None
    assert started.run(var.get) is held()
    with var.stretch(block):
        assert var.get() is held()
    block.end()
    assert started.run(var.get) is None
    assert held() is None


def test_a_part_that_another_context_ends_ends_its_block():
    """The code that runs there next may serve somebody else."""
    var: BlockVar[str] = BlockVar("test")
    block = var.stretched("mine")
    part = var.stretch(block)
    contextvars.copy_context().run(part.__enter__)
    part.__exit__(None, None, None)
    with var.stretch(block):
        assert var.get() is None
