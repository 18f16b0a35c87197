"""``prefix_team``: a coordinator plans, specialists work side by side, one synthesis; a normal compiled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from cacheprefix import ForkPolicy, Session, Usage
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.asking import ask
from cacheprefix_langgraph.state import PrefixState
from cacheprefix_langgraph.teams.outcomes import Outcome, merged, outcome_from, total
from cacheprefix_langgraph.teams.reports import FORMATS, ReportFormat, WorkerReport, report_of
from cacheprefix_langgraph.teams.templates import fill_in
from cacheprefix_langgraph.teams.worker import AfterRound, Step, Worker, session_for, step_of, worker_for

PLAN_PROMPT = (
    "You coordinate a team for the user's goal. The specialists are:\n{roles}\n\n"
    "Write a short plan: what each specialist should find out or do, and what matters most."
)
ORDER = "Do your part of the plan as {role}, and report."
SYNTHESIS_PROMPT = (
    "You coordinate the team. Join the specialists' reports into one answer to the user's goal. "
    "Where they contradict each other, say so."
)
PROGRESS_PROMPT = "Summarise in at most two sentences how far you have come and what you do next. Call no tool."
COORDINATOR = "coordinator"
PLANNING, JOINING = "coordinate", "synthesize"
"""The coordinator's two nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRole:
    """A specialist. ``progress_every`` tool rounds a fork tells in two sentences how far it has come."""

    name: str
    instructions: str = ""
    tools: Sequence[Any] = ()
    report: ReportFormat = "prose"
    model: Any = None
    """A model of its own; it shares nothing with the others'. None takes the team's."""
    max_turns: int = 10
    """Model calls at most."""
    progress_every: int | None = None


class TeamState(MessagesState, PrefixState):
    """The state of a team's graph; ``messages`` begins with the goal and ends with the synthesis."""

    plan: str
    synthesis: str
    outcomes: Annotated[dict[str, Any], merged]
    """By step: ``plan``, each role's name, ``synthesis``."""


@dataclass(frozen=True, slots=True)
class TeamResult:
    """What a team came to."""

    plan_text: str
    reports: tuple[WorkerReport, ...]
    """One a role, in the order of the roles."""
    synthesis: str
    outcomes: Mapping[str, Outcome]

    @property
    def usage(self) -> Usage:
        """All calls added up."""
        return total(self.outcomes.values())

    @property
    def cached_share(self) -> float | None:
        """Share of the whole input that was read from the cache; None where the provider did not say."""
        return self.usage.cached_share

    @property
    def cost_units(self) -> float:
        """The whole input's price in uncached input tokens."""
        return sum(outcome.cost_units for outcome in self.outcomes.values())


def prefix_team(
    model: Any,
    roles: Sequence[TeamRole] | Mapping[str, str],
    *,
    session: Session | None = None,
    plan_prompt: str = PLAN_PROMPT,
    order: str = ORDER,
    synthesis_prompt: str = SYNTHESIS_PROMPT,
    checkpointer: Any = None,
    store: Any = None,
    name: str = "prefix_team",
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A compiled graph: plan, the roles in parallel, synthesis; all of them forks of one prefix.

    Invoke it with ``{"messages": [HumanMessage(goal)]}`` and read the result with ``team_result``. ``roles`` are
    ``TeamRole`` objects, or names with their instructions. In the prompts ``{goal}``, ``{roles}``, and in ``order``
    ``{role}``, are filled in; other braces are text. The plan joins the conversation, so that every role reads it from
    the cache; reports stand behind it in the synthesis alone. A role that fails is left out of the synthesis and
    reported; the team fails only when the plan, the synthesis or all roles do. Raises ``SetupError`` for roles without
    names, twice the same name, or a name of a step.
    """
    bound = session_for(model, session)
    listed = (
        [TeamRole(name=key, instructions=text) for key, text in roles.items()]
        if isinstance(roles, Mapping)
        else [*roles]
    )
    _checked(listed)
    team = _Team(listed, plan_prompt, order, synthesis_prompt)
    coordinator = worker_for(model, bound, COORDINATOR, "")
    workers = [
        worker_for(
            role.model or model,
            bound,
            role.name,
            "\n\n".join(text for text in (role.instructions, FORMATS[role.report]) if text),
            role.tools,
            role.max_turns,
        )
        for role in listed
    ]
    for worker in workers:
        worker.bound  # noqa: B018 - tools join the shared union before the first request
    graph = StateGraph(TeamState)
    graph.add_node(PLANNING, team.plan(coordinator))
    graph.add_edge(START, PLANNING)
    for role, worker in zip(listed, workers, strict=True):
        graph.add_node(role.name, team.specialist(role, worker))
        graph.add_edge(PLANNING, role.name)
    graph.add_node(JOINING, team.synthesis(coordinator))
    graph.add_edge([role.name for role in listed], JOINING)
    graph.add_edge(JOINING, END)
    return graph.compile(checkpointer=checkpointer, store=store, name=name)


def team_result(values: Mapping[str, Any], roles: Sequence[TeamRole] = ()) -> TeamResult:
    """The result of a team from its graph's values; ``roles`` tells in which form reports were asked for."""
    outcomes = {key: outcome_from(data) for key, data in (values.get("outcomes") or {}).items()}
    forms = {role.name: role.report for role in roles}
    order = [role.name for role in roles] or sorted(
        (key for key in outcomes if key not in _STEPS), key=lambda key: outcomes[key].wave
    )
    reports = tuple(report_of(key, forms.get(key, "prose"), outcomes[key]) for key in order if key in outcomes)
    return TeamResult(str(values.get("plan", "")), reports, str(values.get("synthesis", "")), outcomes)


_STEPS = ("plan", "synthesis")
# LangGraph lets no node be called as a part of the state.
_TAKEN = (COORDINATOR, PLANNING, JOINING, *_STEPS, "messages", "outcomes", "cacheprefix")


def _checked(roles: Sequence[TeamRole]) -> None:
    """Raise ``SetupError`` for roles that cannot make a team."""
    if not roles:
        raise SetupError("prefix_team needs at least one role")
    seen: set[str] = set()
    for role in roles:
        if not role.name or role.name in _TAKEN or role.name.startswith("__") or set(role.name) & set(":|"):
            taken = ", ".join(_TAKEN)
            raise SetupError(f"a role cannot be called {role.name!r}: use a name without ':' and '|', and not {taken}")
        if role.name in seen:
            raise SetupError(f"there are two roles called {role.name!r}")
        if role.progress_every is not None and role.progress_every < 1:
            raise SetupError(f"role {role.name!r}: progress_every counts tool rounds from 1; None says nothing")
        seen.add(role.name)


@dataclass(frozen=True, slots=True)
class _Team:
    """Makes the nodes."""

    roles: Sequence[TeamRole]
    plan_prompt: str
    order: str
    synthesis_prompt: str

    def plan(self, worker: Worker) -> Step:
        def place(state: TeamState) -> tuple[Worker, str]:
            return self._told(worker, self.plan_prompt, state), ""

        def update(outcome: Outcome) -> dict[str, Any]:
            return {"plan": outcome.text, "messages": [AIMessage(outcome.text)]}

        return step_of("plan", worker, place, update, isolate=False)

    def specialist(self, role: TeamRole, worker: Worker) -> Step:
        place_in_row = [one.name for one in self.roles].index(role.name)
        after = None if role.progress_every is None else _progress(worker, role.progress_every)

        def place(state: TeamState) -> tuple[Worker, str]:
            return worker, fill_in(self.order, {**self._values(state), "role": role.name})

        return step_of(role.name, worker, place, after=after, wave=place_in_row)

    def synthesis(self, worker: Worker) -> Step:
        def place(state: TeamState) -> tuple[Worker, str]:
            outcomes = {one.name: outcome_from(state["outcomes"][one.name]) for one in self.roles}
            if all(outcome.status == "failed" for outcome in outcomes.values()):
                errors = "; ".join(f"{key}: {outcome.error}" for key, outcome in outcomes.items())
                raise RuntimeError(f"no specialist of the team finished: {errors}")
            said = "\n\n".join(
                f"<report role={key!r}>\n{one.text or f'(no report: {one.error})'}\n</report>"
                for key, one in outcomes.items()
            )
            return self._told(worker, self.synthesis_prompt, state), f"The specialists' reports:\n\n{said}"

        def update(outcome: Outcome) -> dict[str, Any]:
            return {"synthesis": outcome.text, "messages": [AIMessage(outcome.text)]}

        return step_of("synthesis", worker, place, update, isolate=False)

    def _told(self, worker: Worker, prompt: str, state: TeamState) -> Worker:
        """The coordinator with a prompt for this state."""
        text = fill_in(prompt, self._values(state))
        return Worker(worker.model, worker.session, worker.role, text, worker.tools, worker.max_turns)

    def _values(self, state: TeamState) -> dict[str, str]:
        """What the prompts' places are filled with."""
        goal = next((m.text for m in reversed(state["messages"]) if isinstance(m, HumanMessage)), "")
        roles = "\n".join(f"- {role.name}: {role.instructions}" for role in self.roles)
        return {"goal": goal, "roles": roles, "plan": str(state.get("plan") or "")}


def _progress(worker: Worker, every: int) -> AfterRound:
    """Tells the graph's custom stream, by a fork, how far a worker has come."""

    def after(messages: Sequence[BaseMessage], turn: int) -> None:
        if turn % every:
            return

        def tell() -> None:
            said = progress(worker.bound, messages, role=worker.role)
            if said:
                get_stream_writer()({"cacheprefix_progress": {"role": worker.role, "round": turn, "text": said}})

        worker.session.attempt("progress", tell, None)

    return after


def progress(model: Any, messages: Sequence[BaseMessage], *, role: str = "progress") -> str:
    """In two sentences, how far the work in ``messages`` has come; by a fork that leaves no trace.

    ``model`` is wrapped by ``wrap_model``, with the tools bound that the worker has. Empty where the model answers
    with a tool call instead.
    """
    result = ask(model, PROGRESS_PROMPT, messages, role=role, policy=ForkPolicy.background_summary())
    return result.text if result.stopped == "done" else ""
