"""A Runnable as a fork, by whichever of its methods it is run."""

from __future__ import annotations

import copy
import functools
import inspect
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from typing import Any

from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from cacheprefix.adapter import Lock, users_session
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.entering import Parts, added, entered, left
from cacheprefix_langgraph.fork_context import (
    FORK,
    FRAME,
    ForkSettings,
    Frame,
    aunder,
    configurable,
    run_of,
    task_of,
    under,
    within_frame,
)

_RUNS = 1_000
"""How many runs under way a sequence remembers its forks for."""


def forked_runnable(node: Runnable[Any, Any], fork: ForkSettings) -> Any:
    """A copy of a Runnable, of a class of its own that runs as a fork and is otherwise the same."""
    base: Any = type(node)

    class ForkedRunnable(base):  # type: ignore[misc]
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            if _runs(self, config):
                return base.invoke(self, input, config, **kwargs)
            frame = _entered(self, fork, input, config)
            with within_frame(frame):
                result = base.invoke(self, input, config, **kwargs)
            return left(fork, frame, input, result, config)

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            if _runs(self, config):
                return await base.ainvoke(self, input, config, **kwargs)
            frame = _entered(self, fork, input, config)
            with within_frame(frame):
                result = await base.ainvoke(self, input, config, **kwargs)
            return left(fork, frame, input, result, config)

        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            if _runs(self, config):
                return base.stream(self, input, config, **kwargs)
            frame = _entered(self, fork, input, config)
            # A wrapped model lays its request out where the stream is asked for, a generator where it is read.
            with within_frame(frame):
                items = base.stream(self, input, config, **kwargs)
            return _until_left(fork, frame, input, items, config)

        def astream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            if _runs(self, config):
                return base.astream(self, input, config, **kwargs)
            frame = _entered(self, fork, input, config)
            with within_frame(frame):
                items = base.astream(self, input, config, **kwargs)
            return _auntil_left(fork, frame, input, items, config)

        def transform(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            if _runs(self, config):
                yield from base.transform(self, input, config, **kwargs)
                return
            # What a fork shares is known when all of its input is there.
            parts = list(input)
            frame = _entered(self, fork, added(parts), config)
            items = base.transform(self, iter(parts), config, **kwargs)
            yield from _until_left(fork, frame, added(parts), items, config)

        async def atransform(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            if _runs(self, config):
                items = base.atransform(self, input, config, **kwargs)
            else:
                parts = [part async for part in input]
                frame = _entered(self, fork, added(parts), config)
                items = base.atransform(self, _again(parts), config, **kwargs)
                items = _auntil_left(fork, frame, added(parts), items, config)
            async with aclosing(items):
                async for item in items:
                    yield item

        # One call an input: each is a fork of its own state.
        batch = Runnable.batch
        abatch = Runnable.abatch
        batch_as_completed = Runnable.batch_as_completed
        abatch_as_completed = Runnable.abatch_as_completed

    if issubclass(base, RunnableBindingBase):
        # It asks what it holds for events; others ask themselves.
        def stream_events(self: Any, *args: Any, **kwargs: Any) -> Any:
            return base.stream_events(_holding_a_fork(self, base, fork), *args, **kwargs)

        def astream_events(self: Any, *args: Any, **kwargs: Any) -> Any:
            return base.astream_events(_holding_a_fork(self, base, fork), *args, **kwargs)

        ForkedRunnable.stream_events, ForkedRunnable.astream_events = stream_events, astream_events

    ForkedRunnable.cacheprefix_session, ForkedRunnable.cacheprefix_role = users_session(fork.session), fork.role
    setattr(ForkedRunnable, FORK, fork)
    made = _of_class(node, ForkedRunnable)
    if isinstance(made, RunnableSequence):
        # LangGraph takes a sequence apart and runs its steps itself; so does a sequence that it becomes a part of.
        passing = _Passing(fork)
        steps = [_step(step, passing, last=step is made.last) for step in made.steps]
        made.first, made.middle, made.last = steps[0], steps[1:-1], steps[-1]
    return made


def _entered(node: Any, fork: ForkSettings, state: Any, config: Any) -> Frame | None:
    """The fork that a Runnable is while it runs on ``state``."""
    frame = entered(fork, state, config)
    if frame is not None:
        frame.node = node
    return frame


def _runs(node: Any, config: Any) -> bool:
    """Whether the code here runs in the fork that a Runnable is: many of its methods go on to another of them."""
    now = FRAME.get()
    return now is not None and now.node is node and _in_its_run(now, config)


def _in_its_run(now: Frame, config: Any) -> bool:
    """Whether what is called runs for the fork in force, and not in a graph that a node's code runs by itself."""
    # Privacy: that may be another user's run, which would ask in this one's conversation and with its volatile text.
    return now.task == task_of(config)


def _holding_a_fork(node: Any, base: Any, fork: ForkSettings) -> Any:
    """A binding as it is, but that what it holds is the fork."""
    made = _twin(node)
    object.__setattr__(made, "__class__", base)
    object.__setattr__(made, "__dict__", {**node.__dict__, "bound": forked_runnable(node.bound, fork)})
    return made


def _until_left(
    fork: ForkSettings, frame: Frame | None, state: Any, items: Iterator[Any], config: Any
) -> Iterator[Any]:
    """A stream under a fork, and at its end the decisions that were made for its calls."""
    parts = Parts()
    with closing(under(frame, items)) as passed:
        for item in passed:
            parts.add(item)
            yield item
    yield from parts.rest(fork, frame, state, config)


async def _auntil_left(
    fork: ForkSettings, frame: Frame | None, state: Any, items: AsyncIterator[Any], config: Any
) -> AsyncGenerator[Any, None]:
    """``_until_left`` for an asynchronous stream."""
    parts = Parts()
    async with aclosing(aunder(frame, items)) as passed:
        async for item in passed:
            parts.add(item)
            yield item
    for item in parts.rest(fork, frame, state, config):
        yield item


async def _again(parts: list[Any]) -> AsyncIterator[Any]:
    """Parts once more, for what reads an asynchronous stream."""
    for part in parts:
        yield part


_Known = tuple["Frame | None", Any, "str | None"]
"""The fork for one step, the state that the first one was run on, and the run; no run where the fork is not its own."""


class _Passing:
    """The forks of a sequence whose steps are run one by one, from a run's first step to its last. Bounded."""

    def __init__(self, fork: ForkSettings) -> None:
        self.fork = fork
        self._runs: OrderedDict[str, tuple[Frame | None, Any]] = OrderedDict()
        self._lock = Lock()

    def known(self, config: Any) -> _Known | None:
        """The fork that a step runs in; None where the first step of its run is still to come."""
        now = FRAME.get()
        same = now is not None and now.session is self.fork.session and now.role == self.fork.role
        if now is not None and same and _in_its_run(now, config):
            return now, None, None
        run = _run_of(config)
        with self._lock:
            found = None if run is None else self._runs.get(run)
        return None if found is None else (*found, run)

    def enter(self, given: Any, config: Any) -> _Known:
        """The fork for one step, which is made for the first."""
        known = self.known(config)
        if known is not None:
            return known
        run, made = _run_of(config), (entered(self.fork, given, config), given)
        if run is not None:
            with self._lock:
                self._runs[run] = made
                while len(self._runs) > _RUNS:
                    self._runs.popitem(last=False)
        return *made, run

    def leave(self, known: _Known, result: Any, config: Any) -> Any:
        """The last step's result, with the decisions; nothing is remembered of the run any more."""
        frame, state, run = known
        if run is None:
            return result
        self._forget(run)
        return left(self.fork, frame, state, result, config)

    @contextmanager
    def running(self, known: _Known) -> Iterator[None]:
        """Around one step: a run that fails or is interrupted begins anew, with what is said by then."""
        try:
            yield
        except BaseException:
            self._forget(known[2])
            raise

    def streamed(self, known: _Known, items: Iterator[Any], config: Any, *, last: bool) -> Iterator[Any]:
        """A step's stream under its fork."""
        frame, state, run = known
        with self.running(known):
            if not last or run is None:
                yield from under(frame, items)
                return
            yield from _until_left(self.fork, frame, state, items, config)
        self._forget(run)

    async def astreamed(
        self, known: _Known, items: AsyncIterator[Any], config: Any, *, last: bool
    ) -> AsyncIterator[Any]:
        """``streamed`` for an asynchronous stream."""
        frame, state, run = known
        ends = last and run is not None
        passed = _auntil_left(self.fork, frame, state, items, config) if ends else aunder(frame, items)
        with self.running(known):
            async with aclosing(passed):
                async for item in passed:
                    yield item
        if ends:
            self._forget(run)

    def _forget(self, run: str | None) -> None:
        with self._lock:
            self._runs.pop(str(run), None)


def _run_of(config: Any) -> str | None:
    """What the steps of one run of a sequence have in common, and no other run has; None for a step by itself."""
    settled = run_of(config)
    # Privacy: without a graph there is no task, and runs at the same time may be for different users.
    run = getattr((config or {}).get("callbacks"), "parent_run_id", None)
    found = run or configurable(settled, "__pregel_task_id")
    return None if found is None else str(found)


def _step(node: Runnable[Any, Any], passing: _Passing, *, last: bool) -> Any:
    """A copy of one step of a sequence, which runs under the sequence's fork."""
    base: Any = type(node)

    class ForkedStep(base):  # type: ignore[misc]
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            known = passing.enter(input, config)
            with passing.running(known), within_frame(known[0]):
                result = base.invoke(self, input, config, **kwargs)
            return passing.leave(known, result, config) if last else result

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            known = passing.enter(input, config)
            with passing.running(known), within_frame(known[0]):
                result = await base.ainvoke(self, input, config, **kwargs)
            return passing.leave(known, result, config) if last else result

        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            known = passing.enter(input, config)
            with passing.running(known), within_frame(known[0]):
                items = base.stream(self, input, config, **kwargs)
            return passing.streamed(known, items, config, last=last)

        def astream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            known = passing.enter(input, config)
            with passing.running(known), within_frame(known[0]):
                items = base.astream(self, input, config, **kwargs)
            return passing.astreamed(known, items, config, last=last)

        def transform(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            known = passing.known(config)
            if known is None:
                parts = list(input)
                known, input = passing.enter(added(parts), config), iter(parts)  # noqa: A001 - LangChain's own name
            items = base.transform(self, input, config, **kwargs)
            yield from passing.streamed(known, items, config, last=last)

        async def atransform(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            known = passing.known(config)
            if known is None:
                parts = [part async for part in input]
                known, input = passing.enter(added(parts), config), _again(parts)  # noqa: A001 - LangChain's own name
            items = base.atransform(self, input, config, **kwargs)
            async with aclosing(passing.astreamed(known, items, config, last=last)) as passed:  # type: ignore[type-var]
                async for item in passed:
                    yield item

    return _of_class(node, ForkedStep)


_RUN_BY = ("invoke", "ainvoke", "stream", "astream", "transform", "atransform", "stream_events", "astream_events")


def _of_class(node: Runnable[Any, Any], kind: Any) -> Any:
    """A copy of a Runnable that is of a generated class, which calls itself as the Runnable's own does.

    It has the Runnable's very state, so that what the application keeps or changes there is the same for both; only a
    sequence gets other steps.
    """
    base = type(node)
    for name in _RUN_BY:
        if name in vars(kind):
            functools.update_wrapper(vars(kind)[name], getattr(base, name), updated=())
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(kind, name, getattr(base, name))
    try:
        made = copy.copy(node) if isinstance(node, RunnableSequence) else _twin(node)
        object.__setattr__(made, "__class__", kind)
    except TypeError as error:
        raise SetupError(
            f"forked cannot make a fork of a {base.__name__}: call it in a function and decorate that "
            "(@forked(session) def node(state): return it.invoke(state))"
        ) from error
    return made


def _twin(node: Runnable[Any, Any]) -> Any:
    """Another object of a Runnable's class with the Runnable's very state.

    Nothing is asked of either: a class whose ``__getattr__`` goes by its state has none yet while it is copied.
    """
    made = object.__new__(type(node))
    object.__setattr__(made, "__dict__", node.__dict__)
    for slot in (one for kind in type(node).__mro__ for one in vars(kind).values() if inspect.ismemberdescriptor(one)):
        with suppress(AttributeError):
            slot.__set__(made, slot.__get__(node))
    return made
