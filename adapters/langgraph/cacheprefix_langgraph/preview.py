"""What a graph's nodes and agents will ask first, before anything is sent: their requests in the layouts of a run.

Agents of ``create_agent`` make their whole request. A node is a function of the application's, which is not run: known
of it are its role, its instruction, the state's messages, and the wrapped model and tools that its code names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain.agents.middleware.types import AgentMiddleware, ModelRequest
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable
from langgraph.graph import StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, Preview, drive, known_in_part, preview_of
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.calls import enter
from cacheprefix_langgraph.converse import converse_of
from cacheprefix_langgraph.entering import entered
from cacheprefix_langgraph.fork_context import FORK, Frame, within_frame
from cacheprefix_langgraph.middleware import ENTRY, PrefixMiddleware
from cacheprefix_langgraph.model import shadow
from cacheprefix_langgraph.pending import SENDING
from cacheprefix_langgraph.request_bodies import base_of, own_body, shows_body
from cacheprefix_langgraph.schemas import STRUCTURED, bound_schemas
from cacheprefix_langgraph.sending import finished, prepared
from cacheprefix_langgraph.state import conversation_of, messages_in
from cacheprefix_langgraph.subgraphs import fork_of
from cacheprefix_langgraph.unwrapped import AGENTS, binds_tools, closed_over, middleware_in, models_named, unbound
from cacheprefix_langgraph.views import Views
from cacheprefix_langgraph.wrapping import held, wrapped_with, wrapping_of


def preview(target: object, session: Session, task: object = None) -> Preview | None:
    """The first requests of a compiled graph's nodes and agents; None for anything else of a framework's.

    ``task`` is the state that the run begins with, a list of messages, or the text of the first one. Nodes, agents and
    models are bound to sessions already; ``session`` stands for what is bound to none. Raises ``SetupError`` for a
    graph that is not compiled yet.
    """
    if isinstance(target, StateGraph):
        raise SetupError("preview takes a compiled graph, found StateGraph: call .compile() first")
    if not isinstance(target, Pregel):
        return None
    dry = _DryRun(session.adapter, _state(task))
    dry.graph(target, None)
    seen = [preview_of(one) for one in dry.rehearsals]
    notes = dict.fromkeys([*dry.notes, *(note for one in seen for note in one.notes)])
    requests = (request for one in seen for request in one.requests)
    return Preview(tuple(requests), tuple(notes))


def _state(task: object) -> dict[str, Any]:
    """The state that a run begins with."""
    if isinstance(task, Mapping):
        return dict(task)
    if isinstance(task, (list, tuple)):
        return {"messages": list(task)}
    return {"messages": [HumanMessage(task)] if isinstance(task, str) else []}


class _DryRun:
    """One preview: a rehearsal for each session of the graph's parts, and what is not known before a run."""

    def __init__(self, session: AdapterSession, state: dict[str, Any]) -> None:
        self.notes: list[str] = []
        self._session, self._state = session, state
        self._asked: set[int] = set()
        """Graphs that a tool asks, which are shown once."""
        self._rehearsals: dict[int, tuple[AdapterSession, AdapterSession]] = {}

    @property
    def rehearsals(self) -> list[AdapterSession]:
        """The sessions that the requests were made in."""
        return [made for _, made in self._rehearsals.values()]

    def _of(self, session: AdapterSession) -> AdapterSession:
        """The rehearsal of a session, which knows what the session's own front doors told it."""
        if id(session) not in self._rehearsals:
            made = session.rehearsal()
            made.beside.update({name: list(one) for name, one in session.beside.items() if isinstance(one, list)})
            self._rehearsals[id(session)] = (session, made)
        return self._rehearsals[id(session)][1]

    # ------------------------------------------------------------------ nodes

    def graph(self, graph: Any, frame: Frame | None, around: str = "") -> None:
        """All nodes of a compiled graph, in the order of a run in which each is reached as early as it can be.

        ``around`` is the node that it is, by which a run calls those of its nodes that have no name of their own.
        """
        frame, steps = self._entered(graph) or frame, _steps(graph)
        named = ((getattr(graph, "config", None) or {}).get("metadata") or {}).get("lc_agent_name") or around
        chosen = _chosen(graph)
        # LangGraph begins the nodes of a step by their names. Of those that a branch chooses between mostly one runs.
        for name in sorted(graph.nodes, key=lambda name: (steps.get(name, len(steps)), chosen.get(name, -1), name)):
            self._node(str(name), graph.nodes[name].bound, frame, named or str(name))

    def _node(self, name: str, bound: Any, frame: Frame | None, who: str) -> None:
        """What a node asks first; for one of which that is not known, a note that says why.

        ``who`` is whom a run takes for the one who asks.
        """
        if isinstance(bound, ToolNode):
            for tool in bound.tools_by_name.values():
                self._by_tool(tool)
            return
        if name.startswith("__"):
            return
        if isinstance(bound, Pregel):
            self.graph(bound, frame, name)
            return
        function = held(bound, "func") or held(bound, "afunc") or bound
        fork = held(function, FORK) or getattr(type(bound), FORK, None)
        if fork is not None:
            if fork.volatile is not None:
                self.notes.append(f"{fork.role}: what it says for one call alone is known at the call")
            session = self._of(fork.session)
            frame = entered(replace(fork, session=session, volatile=None), self._state, {})
        if getattr(function, "__module__", "") == AGENTS:
            self._agent(function, frame, who)
            return
        found = list(models_named(function, bound))
        if not found:
            if not _quiet(name, function):
                self.notes.append(f"{name}: names no wrapped model, so what it asks is known in the run")
            return
        if isinstance(getattr(function, "__self__", None), AgentMiddleware):
            # Shown as the first to ask, it would leave the agent's own tools out of the first request.
            self.notes.append(f"{name}: a hook of the agent's, so whether it asks, and what, is known in the run")
            return
        own = None if fork is None else fork.messages_key
        messages = list(messages_in(self._state, own or "messages") or ())
        self.notes.append(
            f"{name}: a function that is not run, so what it adds to its messages itself is not counted, and what its "
            "request costs unmodified is unknown"
        )
        model, options = self._answers_by(name, function, *found[0])
        if binds_tools(function) and not options.get("tools"):
            self.notes.append(
                f"{name}: binds tools as it runs, which come late there: other roles' requests may go without them, or "
                "be written once more; bind them where the graph is built, or give them to SharedPrefix(tools=[...])"
            )
        self._ask(model, messages, options, frame, who, whole=False)

    def _answers_by(self, name: str, function: Any, model: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The model with the schema that a node's code binds as it runs, where it binds one by name."""
        found = next(bound_schemas(function), None)
        if found is None or STRUCTURED in options:
            return model, options
        how = {"method": found.method} if found.method else {}
        try:
            made, bound = unbound(model.with_structured_output(found.schema, **how))
        except Exception as error:
            # As where its class takes no such schema: the run raises it too.
            self.notes.append(f"{name}: the schema that it is to answer by is not counted ({type(error).__name__})")
            return model, options
        return made, {**options, **bound}

    def _by_tool(self, tool: Any) -> None:
        """Let agents that a tool asks, as deepagents' helpers are, come to their first requests.

        Their task is known in the run alone: here it is the run's last message.
        """
        whole = self._state
        for graph in _graphs(getattr(tool, "func", None) or getattr(tool, "coroutine", None)):
            if id(graph) in self._asked:
                continue
            self._asked.add(id(graph))
            self.notes.append(
                f"{graph.name}: asked by the tool {tool.name!r}, so what it is told is known in the run; here it is "
                "the last message"
            )
            self._state = {"messages": list(messages_in(whole, "messages") or ())[-1:]}
            self.graph(graph, None)
        self._state = whole

    def _entered(self, graph: Any) -> Frame | None:
        """The fork that a graph is, made by ``subgraph`` or ``forked``; None for any other graph."""
        known = fork_of(graph)
        if known is None:
            return None
        fork = replace(known, session=self._of(known.session))
        messages = messages_in(self._state, fork.messages_key)
        talk = conversation_of(fork.session, {}, {}, messages or (), returned=False)
        return fork.frame(talk, {}, shared=messages if fork.pinned else None)

    def _agent(self, node: Any, frame: Frame | None, who: str) -> None:
        """An agent of ``create_agent``: its model's node makes the request as it does in a run."""
        made = closed_over(node)
        if "default_tools" not in made:
            return
        messages = list(self._state.get("messages") or ())
        model, doors = made["model"], list(middleware_in(made))
        door = next((one for one in doors if isinstance(one, PrefixMiddleware)), None)
        name = who if door is None else door.role
        others = [type(one).__name__ for one in doors if not isinstance(one, PrefixMiddleware)]
        if others:
            self.notes.append(f"{name}: what its middleware changes is known in the run ({', '.join(others)})")
        state: Any = {"messages": messages, ENTRY: len(messages)}
        request: Any = ModelRequest(
            model=model,
            tools=made["default_tools"],
            system_message=made["system_message"],
            response_format=made["initial_response_format"],
            messages=messages,
            tool_choice=None,
            state=state,
            runtime=None,
        )
        if door is not None:
            if door.volatile is not None:
                self.notes.append(f"{door.role}: what it says for one call alone is known at the call")
            frame, request = door.rehearsing(self._of(door.session.adapter)).prepared(request)
        elif (again := self._rewrapped(model)) is not None:
            request = request.override(model=again)
        else:
            self.notes.append(f"{name}: its model is not wrapped, so its requests are neither changed nor measured")
            return
        binds = closed_over(made["_execute_model_sync"])["_get_bound_model"]
        asked, options = unbound(binds(request)[0])
        said = [request.system_message] if request.system_message else []
        self._ask(asked, [*said, *request.messages], options, frame, who, whole=not others)

    # ------------------------------------------------------------------ one request

    def _rewrapped(self, model: Any) -> Any:
        """A wrapped model in the rehearsal of its session; None for one that is not wrapped."""
        known = wrapping_of(model)
        if known is None:
            return None
        session = self._of(known.session)
        if any(known.session is made for made in self.rehearsals):
            return model
        return wrapped_with(shadow(model, session), replace(known, session=session, held=None, views=Views()))

    def _ask(
        self,
        given: Any,
        messages: Sequence[BaseMessage],
        kwargs: Mapping[str, Any],
        frame: Frame | None,
        who: str,
        *,
        whole: bool,
    ) -> None:
        """Lay out a model's request in the rehearsal, up to where its class would send it; nothing is sent.

        ``whole`` is False where functions that are not run make it: a node's own, or those of an agent's middleware.
        """
        known = wrapping_of(given)
        inside = known is not None and any(known.session is made for made in self.rehearsals)
        model = given if inside else self._rewrapped(given)
        with within_frame(frame):
            made = enter(model, list(messages), {"metadata": {"lc_agent_name": who}}, dict(kwargs), whole=True)
            sending, said = made.sending, model._convert_input(made.given).to_messages()
            options = {name: value for name, value in made.options.items() if name != STRUCTURED}
            with SENDING.within(sending):
                ready = drive(prepared(model, sending, said, None, options, later=False))
                if sending.pending is None and converse_of(base_of(model)) is not None:
                    finished(model, own_body(model, ready.messages, None, ready.kwargs).payload)
                elif sending.pending is None and shows_body(base_of(model)):
                    model._get_request_payload(ready.messages, stop=None, **ready.kwargs)
        if sending.pending is not None:
            sending.pending.finish(None)
        if not whole:
            session = sending.session
            asks = sending.agent if sending.frame is None else session.team.agent(sending.frame.role)
            known_in_part(session, asks)


def _steps(graph: Any) -> dict[str, int]:
    """The first step of a run (0 is the start) in which each node can be reached, as far as the edges tell."""
    builder = getattr(graph, "builder", None)
    edges: set[tuple[str, str]] = set(getattr(builder, "edges", ()))
    edges |= {(start, end) for starts, end in getattr(builder, "waiting_edges", ()) for start in starts}
    for start, branches in getattr(builder, "branches", {}).items():
        edges |= {(start, end) for branch in branches.values() for end in (branch.ends or {}).values()}
    steps, newest = {"__start__": 0}, {"__start__"}
    while newest:
        newest = {end for start, end in edges if start in newest and end not in steps}
        steps |= dict.fromkeys(newest, max(steps.values()) + 1)
    return steps


def _chosen(graph: Any) -> dict[str, int]:
    """The nodes that branches alone lead to, each with its place among those that the application added."""
    builder = getattr(graph, "builder", None)
    branches = [one for named in getattr(builder, "branches", {}).values() for one in named.values()]
    led = {end for one in branches for end in (one.ends or {}).values()}
    always = {end for _, end in getattr(builder, "edges", ())}
    return {name: at for at, name in enumerate(graph.nodes) if name in led - always}


# ---------------------------------------------------------------------- what a node's code names


def _graphs(function: Any) -> Iterator[Any]:
    """The compiled graphs that a tool's function closes over, by themselves or by name, under their bindings."""
    if getattr(function, "__code__", None) is None:
        return
    for one in closed_over(inspect.unwrap(function)).values():
        for given in one.values() if isinstance(one, Mapping) else (one,):
            graph = given
            while not isinstance(graph, Pregel) and isinstance(graph, Runnable) and hasattr(graph, "bound"):
                graph = graph.bound
            if isinstance(graph, Pregel):
                yield graph


def _quiet(name: str, function: Any) -> bool:
    """Whether a node is part of the frameworks or of cacheprefix, so that no note is needed on what it asks."""
    return (
        str(getattr(function, "__module__", "")).startswith(("langchain", "langgraph", "cacheprefix_")) or "." in name
    )
