"""``ask``: something beside a crew's work, on its cached prefix: a side question, a summary, what to remember."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from cacheprefix.adapter import AskOptions, ask_options
from cacheprefix.errors import SetupError
from cacheprefix_crewai.clients import sender
from cacheprefix_crewai.crew import agents_of, binding_on, is_flow, parts_of
from cacheprefix_crewai.history import Execution, Executions
from cacheprefix_crewai.tools import name_of, schemas

if TYPE_CHECKING:
    from cacheprefix.adapter import ForkResult
    from cacheprefix_crewai.binding import Binding

_TRANSPORT = ("stream", "stream_options")
"""Fields of a body that say how its answer comes."""


def ask(target: Any, text: str, **options: Unpack[AskOptions]) -> ForkResult:
    """Ask a fork of what an installed crew, or agents, have said, and leave no trace in it.

    The fork continues the newest request of what is asked, all that is installed or a part of it (in a kickoff, that
    kickoff's), with its answer; results of other finished tasks that are not in it stand before the question.
    ``policy`` is ``ForkPolicy.ephemeral()`` by default: one call, nothing kept, nothing written behind the shared part.
    Under a policy with more turns the fork may call the tools of the agent that it continues, and of its crew.
    ``overrides`` replaces fields of the request body. Works while the crew runs (from a callback or a tool, of what was
    said until then) and afterwards, as long as it is installed. From asynchronous code:
    ``await asyncio.to_thread(ask, crew, text)``.

    Raises ``SetupError`` for what is not installed or has sent nothing yet, ``UnsafeForkError`` when the fork could
    not read the cached prefix, ``AbortedError`` when it is stopped.
    """
    binding = binding_on(target)
    if binding is None:
        message = "ask takes a crew or agents that are installed; install(target) first, and ask before its undo()"
        raise SetupError(message)
    newest = _newest(binding, target)
    if newest is None or not newest.body:
        message = "ask continues what was said, and nothing was yet, here or in this kickoff: kick the crew off first"
        raise SetupError(message)
    body = _with_answer(newest)

    def run_tool(_: str, name: str, arguments: Mapping[str, Any]) -> str:
        return _call_tool(newest, target, name, arguments)

    return binding.session.side_forks.run(
        "\n\n".join([*_results_beside(binding, newest, body), text]),
        body=body,
        api=newest.api,
        send=sender(newest.llm, newest.api),
        tool_executor=run_tool,
        conversation=binding.conversation,
        scope=binding.scope,
        **ask_options(options),
    )


def _newest(binding: Binding, target: Any) -> Execution | None:
    """What a question continues: in a kickoff that kickoff's newest run, else the newest of what is asked."""
    runs = binding.part(Executions)
    if binding.own_kickoff or is_flow(target):
        return runs.newest
    crew, agents = parts_of(target)
    installed, asked = ({id(one) for one in some} for some in (binding.agents, agents))
    # Privacy: the crews that a flow makes, and the agents of a list, may be several people's.
    return runs.newest if installed and installed <= asked else runs.newest_of(crew, agents)


def _with_answer(execution: Execution) -> dict[str, Any]:
    """The newest body with its answer, as the agent's next request would begin."""
    body = {name: value for name, value in execution.body.items() if name not in _TRANSPORT}
    name = "input" if execution.api == "openai-responses" else "messages"
    history = body.get(name)
    if execution.answer and isinstance(history, list):
        body[name] = [*history, {"role": "assistant", "content": execution.answer}]
    return body


def _results_beside(binding: Binding, newest: Execution, body: Mapping[str, Any]) -> list[str]:
    """The results of finished tasks of the same run that a body does not hold, each with its task and agent."""
    said = json.dumps([body.get(name) for name in ("system", "messages", "input")], ensure_ascii=False, default=str)
    crew = None if newest.crew is None else newest.crew()
    found = []
    for number, task in enumerate(getattr(crew, "tasks", None) or (), 1):
        # Privacy: until it is done again, a task holds the result of the crew's run before, which is somebody else's.
        if not binding.finished(crew, task):
            continue
        raw = str(getattr(task.output, "raw", None) or "")
        if raw and json.dumps(raw, ensure_ascii=False)[1:-1] not in said:
            agent = str(getattr(task.output, "agent", "")).strip()
            found.append(f"[result of task {number} by {agent}]\n{raw}")
    return found


def _call_tool(run: Execution, target: Any, name: str, arguments: Mapping[str, Any]) -> str:
    """What a tool of the agent that asked answers, or of its crew. Raises ``LookupError`` where none has that name."""
    asker, crew = (None if one is None else one() for one in (run.asker, run.crew))
    if run.crew is not None and crew is None:
        crew = parts_of(target)[0]  # the copy of one run is gone
    # Privacy: an agent beside it, installed with it or by the same flow, may be somebody else's.
    crews_own = () if crew is None else (*agents_of(crew), *crew.tasks)
    for owner in (*filter(None, (asker,)), *crews_own):
        for tool in owner.tools or ():
            if name_of(schemas([tool])[0]) == name:
                return str(tool.run(**arguments))
    raise LookupError(f"tool {name!r} is not one of the crew's; called with {json.dumps(dict(arguments), default=str)}")
