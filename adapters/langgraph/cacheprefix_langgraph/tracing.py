"""What callbacks and tracers are told of a call, and calls that no fork reaches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables.config import var_child_runnable_config
from typing_extensions import override

from cacheprefix.adapter import AdapterSession
from cacheprefix_langgraph.fork_context import FRAME, Frame, configurable, running

if TYPE_CHECKING:
    from cacheprefix_langgraph.pending import Sending

_POOLS = ("ThreadPoolExecutor-", "asyncio_")
_HOOKS = (".before_model", ".after_model", ".before_agent", ".after_agent")


class _Listener(BaseCallbackHandler):
    """Keeps the metadata that all callbacks of a call are given: tracers send it when the run ends."""

    run_inline = True

    def __init__(self, sending: Sending) -> None:
        self._sending = sending

    @override
    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, metadata: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._sending.traced = metadata


def traced_config(config: Any, settled: Mapping[str, Any], frame: Frame, sending: Sending) -> dict[str, Any]:
    """The call's configuration with our own keys in its metadata; everything else as it would be without them.

    Applications filter streams and events by their tags, so nothing of ours stands among them.
    """
    metadata = {
        **(settled.get("metadata") or {}),
        "cacheprefix_role": frame.role,
        "cacheprefix_prefix": frame.session.prefix.key,
        # Filled in when the call ends. The key stands from the start: LangGraph streams this very dictionary, and who
        # reads it in another thread would fail by one that grows.
        "cacheprefix_cause": "",
    }
    listener: BaseCallbackHandler = _Listener(sending)
    callbacks = settled.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        callbacks.add_handler(listener, inherit=False)
    else:
        callbacks = [*(callbacks or ()), listener]
    return {**(config or {}), "metadata": metadata, "callbacks": callbacks}


_OF_AGENTS = ("model", "agent")
"""The nodes by which the agents of ``create_agent`` and ``create_react_agent`` ask."""


def agent_in(config: Mapping[str, Any]) -> str:
    """Who asks, as far as a graph's own metadata tell: an agent's name, the node it is, or the node that asks.

    A node inside of either has both names: another one there asks with another prompt.
    """
    metadata = config.get("metadata") or {}
    path = str(metadata.get("langgraph_checkpoint_ns") or "").split("|")
    # A number counts the graphs that one node has run.
    nodes = [part.partition(":")[0] for part in path if not part.isdigit()]
    node = str(metadata.get("langgraph_node") or "")
    agent = str(metadata.get("lc_agent_name") or (nodes[-2] if len(nodes) > 1 else ""))
    return f"{agent}/{node}" if agent and node and node not in _OF_AGENTS else agent or node


def outside(session: AdapterSession, config: Mapping[str, Any]) -> None:
    """Warn, once, of a wrapped model that a graph calls where no fork is in force."""
    metadata, around = config.get("metadata") or {}, FRAME.get()
    if around is not None and not session.related(around.session):
        session.warn_once(
            f"other-session:{around.role}",
            f"the role {around.role!r} is one of another session than its model, so its prompt is not shared: give "
            "forked(...) or PrefixMiddleware the session that the model was wrapped with (wrap_model)",
        )
        return
    node, source = metadata.get("langgraph_node"), metadata.get("lc_source")
    if source or str(node or "").endswith(_HOOKS):
        # Middleware asks for itself, and nobody can decorate it.
        session.note(f"middleware asks the model by itself ({source or node}), and that request shares nothing")
    elif configurable(config, "ls_agent_type") == "subagent":
        pass  # deepagents makes its helpers itself and isolates them on purpose: they have lines of their own
    elif node is not None:
        session.warn_once(
            f"no-fork:{node}",
            f"node {node!r} calls a wrapped model outside a fork, so its prompt is not shared: decorate the node "
            "with forked(...), or where create_agent made it give that PrefixMiddleware(session, role=...); inside a "
            "node use ContextThreadPoolExecutor instead of a plain thread pool",
        )
    elif running(session) and var_child_runnable_config.get() is None and _in_pool():
        session.warn_once(
            "no-fork-pool",
            "a wrapped model is called in a thread pool that knows of no fork while a forked node runs, so its prompt "
            "is not shared: inside nodes use langchain_core's ContextThreadPoolExecutor, model.batch(...), or "
            "contextvars.copy_context().run",
        )


def _in_pool() -> bool:
    return threading.current_thread().name.startswith(_POOLS)
