"""Whose requests these are: the options of one agent's middleware."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agent_framework import Agent, AgentSession

from cacheprefix.adapter import AdapterSession, ByObject, VolatileRole, check_volatile, texts_said
from cacheprefix.errors import SetupError, check_text
from cacheprefix_maf.run_plan import WorkflowRun

ToolMemory = Literal["keep", "drop"]
Volatile = Callable[[], Mapping[str, str]]


@dataclass(slots=True)
class Member:
    """One agent in a session.

    ``name`` is the agent's own, by which its messages are known in a history; ``layout`` False leaves its
    requests as they are but for cache marks.
    """

    session: AdapterSession
    role: str
    name: str = ""
    conversation: str = ""
    """The name that the application gave; empty where each session, or workflow, is a conversation."""
    tool_memory: ToolMemory = "keep"
    volatile: Volatile | None = None
    volatile_role: VolatileRole = "user"
    scope: str | None = None
    layout: bool = True
    run: WorkflowRun | None = None
    """What is known beforehand of the workflow that it is in; None where nothing is."""
    runners: ByObject[Any, str] | None = None
    """By what runs the agent in a workflow that was given no name: its conversation. None outside of workflows."""
    differing: tuple[str, ...] = ()
    """Set where a tool of the agent's clashes with others' of the same name: its tools stay out of the union."""
    agent: weakref.ref[Agent] | None = None
    """The agent that was wrapped or, behind ``prefix_middleware``, ran last; None while it is not known."""

    def __post_init__(self) -> None:
        if self.tool_memory not in get_args(ToolMemory):
            known = ", ".join(map(repr, get_args(ToolMemory)))
            raise SetupError(f"tool_memory is one of {known}, found {self.tool_memory!r}")
        for option in ("conversation", "scope"):
            check_text(option, getattr(self, option), optional=True)
        check_text("role", self.role)
        check_volatile(self.volatile, self.volatile_role)

    def named(self, held: AgentSession | None) -> str:
        """The name of the conversation that several agents have, by the session of one's run; empty without any."""
        # Privacy: the agent may be in another workflow, of another user, and may be asked by itself.
        runners = () if self.runners is None or held is None else self.runners.items()
        mine = (name for runner, name in runners if any(one is held for one in list(vars(runner).values())))
        return self.conversation or next(mine, "")

    def lasting(self, tools: Sequence[Any]) -> Sequence[Any]:
        """Those of a request's tools that the agent itself has; none where the agent is not known."""
        agent = None if self.agent is None else self.agent()
        if agent is None:
            return ()
        own = [
            *(agent.default_options.get("tools") or ()),
            *(each for mcp in agent.mcp_tools for each in mcp.functions),
        ]
        names = {getattr(tool, "name", "") for tool in own}
        # Privacy: what came with this run may be made for who asks, its description too; no other run is shown it.
        return [tool for tool in tools if getattr(tool, "name", "") in names]

    def volatile_text(self) -> str:
        """Texts for one request alone; empty where there are none. What the function raises is the application's."""
        said = texts_said(self.volatile)
        session = self.session
        return session.attempt("volatile", lambda: session.tail_for(self.role, "", volatile=said), "") if said else ""
