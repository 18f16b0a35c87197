"""``ask``: something beside a graph's thread, on its cached prefix, that leaves no trace in its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, ToolException
from langgraph.prebuilt import ToolNode
from typing_extensions import Unpack

from cacheprefix.adapter import AdapterSession, Api, AskOptions, ForkOptions, ForkResult, ToolSet, ask_options
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.calls import enter
from cacheprefix_langgraph.fork_context import FRAME, Frame, scope_of
from cacheprefix_langgraph.layout import ToSettle, settled
from cacheprefix_langgraph.parts import taken_apart
from cacheprefix_langgraph.request_bodies import hoists, model_name
from cacheprefix_langgraph.sdk_clients import body_of, sender
from cacheprefix_langgraph.state import CHANNEL, conversation_of, ledger_in, messages_in
from cacheprefix_langgraph.tools import name_of, union_of, with_union
from cacheprefix_langgraph.wrapping import wrapping, wrapping_of


class ThreadOptions(AskOptions, total=False):
    """How a fork of a thread is asked; options of ``ask`` and ``aask``."""

    graph: Any
    """Has the thread; without it the messages are given, or those of the node's state."""
    config: Any
    """Names the thread, and in ``config["configurable"]["cacheprefix_scope"]`` the tenant, as in the thread's runs."""
    tools: Sequence[BaseTool]
    """What the fork may call beside the tools of the graph's tool nodes and of ``SharedPrefix(tools=...)``."""
    tool_executor: Callable[..., Any] | None
    """Runs the fork's tool calls in place of all these."""
    state: Any
    """Reaches an executor that takes a fourth argument."""
    system: str | None
    """The text of an agent that shares with its own forks only."""
    messages_key: str
    """Where the state has its messages."""


def ask(
    model: Any, text: str, messages: Sequence[BaseMessage] | None = None, **options: Unpack[ThreadOptions]
) -> ForkResult:
    """Ask a fork of a conversation, with a model wrapped by ``wrap_model``; nothing is written to the graph's state.

    The conversation is ``messages`` (inside a node: its state's), or the thread that ``graph`` has under ``config``.
    ``policy`` is ``ForkPolicy.ephemeral()`` by default: one call, nothing kept. Under a policy with more turns
    (``ForkPolicy.worker()``) the fork may call tools: those of the graph's tool nodes, of ``SharedPrefix(tools=...)``
    and ``tools``, or whatever ``tool_executor(id, name, arguments)`` does; an exception goes to the model as an error
    result. Raises ``SetupError`` for a model that is not wrapped or has no SDK underneath, ``UnsafeForkError`` when the
    fork could not read the parent's cache, ``AbortedError`` when it is stopped.
    """
    graph = options.get("graph")
    values = messages if graph is None else graph.get_state(options.get("config")).values
    asked = _asked(model, values, options, later=False)
    return asked.session.side_forks.run(text, body=asked.body, api=asked.api, send=asked.send, **asked.options)


async def aask(
    model: Any, text: str, messages: Sequence[BaseMessage] | None = None, **options: Unpack[ThreadOptions]
) -> ForkResult:
    """``ask`` without blocking the event loop; tools and executors may be sync or async."""
    graph = options.get("graph")
    values = messages if graph is None else (await graph.aget_state(options.get("config"))).values
    asked = _asked(model, values, options, later=True)
    return await asked.session.side_forks.arun(text, body=asked.body, api=asked.api, send=asked.send, **asked.options)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a fork is asked of, the parent's body as its own requests have it, and how."""

    session: AdapterSession
    body: dict[str, Any]
    api: Api
    send: Callable[[dict[str, Any]], Any]
    options: ForkOptions


def _asked(model: Any, values: Any, options: ThreadOptions, *, later: bool) -> _Asked:
    """Settle what ``ask`` asks of a conversation. Raises ``SetupError`` as ``ask`` does.

    ``values`` are the conversation's messages, or the state of the graph that has them (None: the node's own state).
    """
    key, config = options.get("messages_key", "messages"), options.get("config")
    known = ask_options(options, ThreadOptions)
    bound: dict[str, Any] = {}
    given = model
    while isinstance(model, RunnableBindingBase):
        bound, model = {**model.kwargs, **bound}, model.bound
    found = wrapping_of(model)
    if found is None:
        raise SetupError(f"ask takes a model from wrap_model(model, session), found {type(given).__name__}")
    session = found.session
    history = messages_in(values, key)
    if history is None:
        raise SetupError(f"ask needs messages, or graph and config of a thread whose state has {key!r}")
    settings = config or var_child_runnable_config.get()
    ledger = values.get(CHANNEL) if isinstance(values, Mapping) else ledger_in(None, session)
    talk = conversation_of(session, settings, ledger, history, returned=False)
    frame = Frame(
        session=session,
        role=known["role"],
        conversation=talk.id,
        state=talk,
        base=options.get("system"),
        scope=scope_of(settings),
    )
    body, api = body_of(model, *_parents_request(model, frame, history, bound, config))
    run_tool = options.get("tool_executor")
    how: ForkOptions = {
        "role": known["role"],
        "policy": known["policy"],
        "overrides": known["overrides"],
        "abort": known["abort"],
        "tool_executor": run_tool or _executor(session, options.get("graph"), options.get("tools", ()), later=later),
        "conversation": talk.id,
        "scope": frame.scope,
        "state": options.get("state"),
    }
    return _Asked(session, body, api, sender(model, api, later=later), how)


def _parents_request(
    model: Any, frame: Frame, history: list[BaseMessage], bound: dict[str, Any], config: Any
) -> tuple[list[BaseMessage], dict[str, Any]]:
    """The messages and options that a fork goes on from, as the conversation's own requests have them.

    ``bound`` are the options that were bound to the model.
    """
    session = frame.session
    if frame.base is None:
        begun = _begun(model, frame, history, bound, config)
        if begun is not None:
            return begun
    options = {name: value for name, value in bound.items() if name != "tool_choice"}
    # An agent alone keeps its own order: helpers that are no forks begin with the same tools.
    if session.prefix.tools and frame.base is None and "response_format" not in options:
        assert frame.state is not None
        carried = ToolSet(session.union_in(frame.state), shares=True)
        options = with_union(options, union_of(model, options, frame), frame, carried)
    parts = taken_apart(history, frame, hoists=hoists(model))
    names = tuple(map(name_of, options.get("tools") or ()))
    done = settled(ToSettle(parts, frame, wrapping(model).views, model_name(model), "", names))
    return [*parts.head, *done.messages], options


def _begun(
    model: Any, frame: Frame, history: list[BaseMessage], kwargs: dict[str, Any], config: Any
) -> tuple[list[BaseMessage], dict[str, Any]] | None:
    """The next request of the role that works here, for a fork of its own; None where another one asks.

    The role's text stands in it where that of its requests stands, so that the fork reads all that they wrote.
    """
    working = FRAME.get()
    if working is None or working.role != frame.role or not working.laid or not frame.session.related(working.session):
        return None
    # Privacy: another thread may be another user's, and what is said with this one's calls alone is not for it.
    if (working.conversation, working.scope) != (frame.conversation, frame.scope):
        return None
    made = enter(model, history, config, kwargs)
    return list(model._convert_input(made.given).to_messages()), made.options


def _known(session: AdapterSession, graph: Any, tools: Sequence[BaseTool]) -> dict[str, BaseTool]:
    """Tools by name: the session's own, the graph's own, and those given, the later ones winning."""
    # Privacy: of a tool that the application bound, another user's function may stand in the shared union.
    own = (getattr(tool, "native", tool) for tool in session.team.given.tools)
    found = {tool.name: tool for tool in own if isinstance(tool, BaseTool)}
    for node in (getattr(graph, "nodes", None) or {}).values():
        bound = getattr(node, "bound", None)
        if isinstance(bound, ToolNode):
            found.update(bound.tools_by_name)
    return {**found, **{tool.name: tool for tool in tools}}


def _executor(session: AdapterSession, graph: Any, tools: Sequence[BaseTool], *, later: bool) -> Callable[..., Any]:
    """Runs the tools that a fork calls; with ``later`` what it gives is to be awaited."""
    known = _known(session, graph, tools)

    async def awaited(tool: BaseTool, call: Any) -> str:
        return _said(await tool.ainvoke(call))

    def execute(id: str, name: str, arguments: Mapping[str, Any]) -> Any:  # noqa: A002 - the field's word
        if name not in known:
            raise ToolException(f"there is no tool {name!r}; there are: {', '.join(sorted(known)) or 'none'}")
        call: Any = {"type": "tool_call", "id": id, "name": name, "args": dict(arguments)}
        return awaited(known[name], call) if later else _said(known[name].invoke(call))

    return execute


def _said(message: Any) -> str:
    """The text of a tool's answer. Raises ``ToolException`` for one that says that the tool failed."""
    text = str(getattr(message, "text", None) or getattr(message, "content", message))
    if getattr(message, "status", None) == "error":
        raise ToolException(text)
    return text
