"""A pytest plugin that puts us underneath another project's tests, and writes down what passed and what was sent.

``python -m tests.peers`` loads it by name (``-p underneath``, with this folder on the path), since those tests' own
package is called ``tests`` too. Read from the environment:

- ``CACHEPREFIX_LAYER``: ``plain`` (calls come by here, and nothing is put underneath), ``observed``, ``forked`` (a
  session with nothing but its defaults), ``shared`` (one with a handbook and a second role: every request moves) or
  ``answered`` (``shared``, and fake models of the tests' own answer what they would without us)
- ``CACHEPREFIX_UNDER``: how, a comma list of ``models``, ``agents``, ``nodes``, ``crewai``, ``autogen``, ``clients``
- ``CACHEPREFIX_SEEN``: the file for one JSON line a test
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

LAYER = os.environ.get("CACHEPREFIX_LAYER", "plain")
UNDER = tuple(filter(None, os.environ.get("CACHEPREFIX_UNDER", "").split(",")))
SEEN = os.environ.get("CACHEPREFIX_SEEN", "")

_RULE = "Rule {} of the house: keep to the facts, and say what you do not know."
HANDBOOK = "\n".join(_RULE.format(number) for number in range(200))
"""Long enough for every provider's minimum."""
_OURS = ("of the house: keep to the facts", "<role name=")


class Underneath:
    """What is underneath the test that runs: its session, its requests, its outcome."""

    def __init__(self) -> None:
        self.sessions: list[Any] = []
        self.bodies: list[str] = []
        self.outcome = "passed"
        self.prompt = False
        """Whether what failed shows our text: the test compares the prompt, or what a fake model made of it."""

    def session(self) -> Any:
        """The test's session, made when the test first needs one. A second role makes forks of what would be alone."""
        from cacheprefix import Session, SharedPrefix

        if not self.sessions:
            made = Session(mode="observe") if LAYER == "observed" else Session()
            if LAYER in {"shared", "answered"}:
                made = Session(SharedPrefix(system=HANDBOOK))
                made.adapter.join("colleague")
            self.sessions.append(made)
        return self.sessions[0]

    def line(self, test: str) -> str:
        """What is written down of a test."""
        layouts = Counter(call.layout for made in self.sessions for call in made.calls)
        failures = dict(Counter({name: n for made in self.sessions for name, n in made.failures.items()}))
        found = {"test": test, "outcome": self.outcome, "prompt": self.prompt, "bodies": self.bodies}
        return json.dumps({**found, "layouts": layouts, "failures": failures})


NOW = Underneath()


def _sent(request: Any) -> None:
    """Write down one HTTP request: where to, and a digest of its body."""
    try:
        body = request.read() if hasattr(request, "read") else request.content
    except Exception:
        # A stream of the test's own that can be read once: the bytes are not ours to take.
        body = b"<stream>"
    NOW.bodies.append(f"{request.method} {request.url.path} {hashlib.sha256(body).hexdigest()[:16]}")


def _watch_http() -> None:
    for name in ("httpx", "httpx2"):
        if find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        for kind in (module.Client, module.AsyncClient):
            real = kind.send

            def send(self: Any, request: Any, *given: Any, __real: Callable[..., Any] = real, **named: Any) -> Any:
                _sent(request)
                return __real(self, request, *given, **named)

            kind.send = functools.wraps(real)(send)


def _made(kinds: Callable[[Any], bool], then: Callable[[Any], Any]) -> None:
    """Have pydantic objects of some kinds go through ``then`` when they are made by calling their class."""
    from pydantic._internal._model_construction import ModelMetaclass

    before = ModelMetaclass.__dict__.get("__call__", type.__call__)

    def call(cls: Any, *given: Any, **named: Any) -> Any:
        made = before(cls, *given, **named)
        return then(made) if kinds(made) else made

    ModelMetaclass.__call__ = call  # type: ignore[method-assign]


def _models() -> None:
    """Every chat model of LangChain is a wrapped one; forked, each call is a role's fork."""
    from langchain_core.language_models import BaseChatModel

    from cacheprefix_langgraph import wrap_model
    from cacheprefix_langgraph.model import session_of

    def wrapped(made: Any) -> Any:
        if LAYER == "plain" or session_of(made) is not None:
            return made
        alone = LAYER != "observed" and "agents" not in UNDER
        ours = wrap_model(made, NOW.session(), role="assistant") if alone else wrap_model(made, NOW.session())
        if LAYER == "answered" and not type(made).__module__.startswith(("langchain_", "langgraph")):
            _answers_as_without_us(type(made), type(ours))
        return ours

    _made(lambda made: isinstance(made, BaseChatModel), wrapped)


ASKED: ContextVar[Any] = ContextVar("asked")
"""The application's own messages, while a wrapped model is asked."""


def _answers_as_without_us(kind: Any, ours: Any) -> None:
    """Have a fake model, whose words may be the prompt's, make them of the application's own messages."""
    for name in ("_generate", "_agenerate"):
        theirs = vars(kind).get(name)
        if theirs is not None and not hasattr(theirs, "told"):

            def fake(self: Any, messages: Any, *given: Any, __real: Any = theirs, **named: Any) -> Any:
                return __real(self, ASKED.get(messages), *given, **named)

            fake.told = True  # type: ignore[attr-defined]
            setattr(kind, name, fake)
    if hasattr(ours, "told"):
        return
    invoke, ainvoke, ours.told = ours.invoke, ours.ainvoke, True

    def asked(self: Any, given: Any, *more: Any, **named: Any) -> Any:
        ASKED.set(self._convert_input(given).to_messages())
        return invoke(self, given, *more, **named)

    async def asked_in_task(self: Any, given: Any, *more: Any, **named: Any) -> Any:
        ASKED.set(self._convert_input(given).to_messages())
        return await ainvoke(self, given, *more, **named)

    ours.invoke, ours.ainvoke = asked, asked_in_task


def _agents() -> None:
    """Every ``create_agent`` has the middleware, last in its list."""
    import langchain.agents
    import langchain.agents.factory as home

    from cacheprefix_langgraph import PrefixMiddleware

    real = home.create_agent

    @functools.wraps(real)
    def create_agent(*given: Any, middleware: Any = (), **named: Any) -> Any:
        if LAYER != "plain":
            middleware = [*middleware, PrefixMiddleware(NOW.session())]
        return real(*given, middleware=middleware, **named)

    home.create_agent = langchain.agents.create_agent = create_agent


def _nodes() -> None:
    """Whatever is a graph's node is ``forked`` under the node's name."""
    from langchain_core.runnables import Runnable
    from langgraph.graph import StateGraph

    from cacheprefix_langgraph import forked

    real = StateGraph.add_node

    @functools.wraps(real)
    def add_node(self: Any, node: Any, action: Any = None, **named: Any) -> Any:
        given = action if isinstance(node, str) else node
        # What no node can be is LangGraph's to refuse.
        if LAYER == "plain" or not (callable(given) or isinstance(given, Runnable | dict)):
            return real(self, node, action, **named)
        if isinstance(node, str):
            return real(self, node, forked(NOW.session(), role=node)(given), **named)
        return real(self, forked(NOW.session())(given), action, **named)

    StateGraph.add_node = add_node  # type: ignore[method-assign]


def _crewai() -> None:
    """Every crew is installed when it is made, an agent of its own when it is asked."""
    from crewai import Agent, Crew

    from cacheprefix_crewai import install
    from cacheprefix_crewai.binding import binding_of

    def installed(made: Any) -> Any:
        if LAYER != "plain":
            install(made, NOW.session())
        return made

    _made(lambda made: isinstance(made, Crew) and made.agents, installed)
    for name in ("kickoff", "kickoff_async"):
        real = getattr(Agent, name)

        def asked(self: Any, *given: Any, __real: Callable[..., Any] = real, **named: Any) -> Any:
            if LAYER != "plain" and binding_of(self) is None:
                install(self, NOW.session())
            return __real(self, *given, **named)

        setattr(Agent, name, functools.wraps(real)(asked))


def _autogen() -> None:
    """Every team, and every agent outside of one, is wrapped when it first runs, or is given a state."""
    from autogen_agentchat.agents import BaseChatAgent
    from autogen_agentchat.teams import BaseGroupChat

    from cacheprefix_autogen import wrap
    from cacheprefix_autogen.binding import binding_of

    def first(kind: type, name: str) -> None:
        real = kind.__dict__.get(name)
        if real is None:
            return

        def run(self: Any, *given: Any, **named: Any) -> Any:
            if LAYER == "plain" or binding_of(self) is not None or getattr(self, "_model_client", self) is None:
                return real(self, *given, **named)
            wrap(self, NOW.session())
            # As the application would have called it then.
            return getattr(self, name)(*given, **named)

        setattr(kind, name, functools.wraps(real)(run))

    def below(kind: type) -> Iterator[type]:
        yield kind
        for one in kind.__subclasses__():
            yield from below(one)

    for name in ("run", "run_stream", "load_state"):
        first(BaseGroupChat, name)
    for kind in below(BaseChatAgent):
        for name in ("run", "run_stream", "on_messages", "on_messages_stream", "load_state"):
            if kind.__module__.startswith("autogen_agentchat"):
                first(kind, name)


def _clients() -> None:
    """Every model client of AutoGen's own is asked through a ``PrefixClient``, as a role of the session's."""
    from cacheprefix_autogen import PrefixClient
    from cacheprefix_autogen.sending import SENDING

    asked: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def through(real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(self: Any, *given: Any, **named: Any) -> Any:
            # Ours is asking already, or another client that holds this one.
            if LAYER == "plain" or SENDING.get() is not None:
                return real(self, *given, **named)
            if self not in asked:
                asked[self] = PrefixClient(self, NOW.session(), role="assistant")
            return getattr(asked[self], real.__name__)(*given, **named)

        return functools.wraps(real)(ask)

    for name in ("anthropic", "cache", "openai", "replay"):
        module = importlib.import_module(f"autogen_ext.models.{name}")
        for kind in {base for one in vars(module).values() if isinstance(one, type) for base in one.__mro__}:
            if kind.__module__.startswith("autogen_ext.models"):
                for method in {"create", "create_stream"} & set(vars(kind)):
                    setattr(kind, method, through(vars(kind)[method]))


_HOW = {
    "models": _models,
    "agents": _agents,
    "nodes": _nodes,
    "crewai": _crewai,
    "autogen": _autogen,
    "clients": _clients,
}


def pytest_configure(config: pytest.Config) -> None:
    """Before a test's module is imported."""
    if SEEN:
        Path(SEEN).write_text("", "utf-8")
        _watch_http()
    for name in UNDER:
        _HOW[name]()
    if "crewai" in UNDER:
        # Behind the other plugins, whose fixtures it overrides.
        config.pluginmanager.import_plugin("crewai_setting")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """One line a test."""
    global NOW  # noqa: PLW0603
    NOW = Underneath()
    try:
        return (yield)
    finally:
        if SEEN:
            with Path(SEEN).open("a", encoding="utf-8") as file:
                file.write(NOW.line(item.nodeid) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test passes when nothing of it failed."""
    if report.failed:
        NOW.outcome = "failed"
        NOW.prompt = NOW.prompt or any(text in report.longreprtext for text in _OURS)
    elif report.skipped and NOW.outcome == "passed":
        NOW.outcome = "skipped"
