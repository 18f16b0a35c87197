"""Delegation to a coworker by the name that the shared tools say: a role as the application wrote it.

In a role such as ``{topic} researcher`` CrewAI fills the kickoff's inputs in. The shared tools stand in front of all
kickoffs' requests and name no input's text, which may be another user's; so CrewAI's tool, as it is called, finds the
coworker by either name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cacheprefix_crewai.binding import WhileUsed, binding_of, replaced_method


def role_given(agent: Any) -> str:
    """An agent's role as the application gave it, with the names of inputs in their places."""
    return str(getattr(agent, "_original_role", None) or agent.role)


def _watch() -> list[Callable[[], object]]:
    """Have CrewAI's tools of delegation look for the role that is meant; the functions returned end that."""
    from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool  # noqa: PLC0415 - CrewAI loads slowly

    return [replaced_method(BaseAgentTool, "_execute", _finding)] if hasattr(BaseAgentTool, "_execute") else []


FIND_COWORKERS = WhileUsed(_watch)
"""As long as anything is installed whose requests may be changed."""


def _finding(method: Any) -> Any:
    """The method that gives a coworker its task, with the name of one that is there."""

    def _execute(self: Any, agent_name: Any, *given: Any, **named: Any) -> Any:
        binding = next((one for agent in self.agents if (one := binding_of(agent)) is not None), None)
        if binding is not None and binding.rewrites:
            agent_name = binding.session.attempt("coworker", lambda: _filled(self, agent_name), agent_name)
        return method(self, agent_name, *given, **named)

    return _execute


def _filled(tool: Any, name: Any) -> Any:
    """The role that a coworker has in this run, where ``name`` is the one that the application gave; else ``name``."""
    asked = tool.sanitize_agent_name(name)
    if any(tool.sanitize_agent_name(agent.role) == asked for agent in tool.agents):
        return name
    return next((one.role for one in tool.agents if tool.sanitize_agent_name(role_given(one)) == asked), name)
