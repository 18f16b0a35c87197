"""The crew's tools: their union, how a role is kept to its own, and functions that CrewAI calls around each tool."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from cacheprefix.adapter import (
    AdapterSession,
    Api,
    Bounded,
    ToolSource,
    Whose,
    allowed_choice,
    digest_of,
    dumps,
    loads,
    restrict,
)
from cacheprefix_crewai.binding import FLOW, WhileUsed
from cacheprefix_crewai.delegation import role_given
from cacheprefix_crewai.framing import SYSTEM, coworkers
from cacheprefix_crewai.native import KEPT_IN_WORDS

if TYPE_CHECKING:
    from cacheprefix_crewai.binding import Binding

DELEGATION = frozenset({"delegate_work_to_coworker", "ask_question_to_coworker"})
"""CrewAI words these for each agent by its coworkers; in the union they name the whole crew."""

_LAST = "additionalProperties"
_KEEP_RUNS = 2_000
_KEEP_TOOLS = 2_000
NONE: Mapping[str, Any] = MappingProxyType({})

Choice = tuple[str, ...] | None
Models = dict[str, frozenset[str]]
"""The names of the models that are asked with a tool, by the tool's name."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of a request: what is sent, and what of it the role may use."""

    tools: list[Any] | None
    choice: Choice = None
    """Names for ``tool_choice``; empty for none of them, None for no restriction."""
    said: Choice = None
    """Names to state in the tail, where the provider has no harmless ``tool_choice``."""
    late: tuple[str, ...] = ()
    """Names of tools that stand behind the union, since they came when it was frozen."""


_MODELS: WeakKeyDictionary[AdapterSession, Bounded[str, frozenset[str]]] = WeakKeyDictionary()
"""The models that are asked with the tools that installations came with."""


def render(tool: Any) -> Mapping[str, Any]:
    """A CrewAI tool, or its schema, as name, description and parameters."""
    plain = tool if isinstance(tool, Mapping) else schemas([tool])[0]
    inner: Mapping[str, Any] = plain.get("function", plain)
    return inner


def schemas(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Tools in the form in which CrewAI's executor hands them to a model."""
    from crewai.utilities.agent_utils import convert_tools_to_openai_schema  # noqa: PLC0415 - slow to import

    return convert_tools_to_openai_schema(list(tools))[0]


class CrewTools(NamedTuple):
    """All tools that requests of some agents may carry."""

    schemas: list[dict[str, Any]]
    models: Models
    """The names of the models that are asked with each, by its name; a tool of which that is not known is not in it."""


def crew_tools(crew: Any, agents: Sequence[Any]) -> CrewTools:
    """All tools that requests of these agents may carry; without a ``crew``, the agents' own."""
    found = CrewTools([], {})
    for agent in agents:
        _take(found, [*(agent.tools or ()), *_of_crewai(agent, crew)], [agent])
    if crew is None:
        return found
    from crewai import Process  # noqa: PLC0415 - CrewAI loads slowly

    hierarchical = crew.process == Process.hierarchical
    for task in crew.tasks:
        _take(found, task.tools, [crew.manager_agent if hierarchical else task.agent])
    if hierarchical or any(agent.allow_delegation for agent in crew.agents):
        delegating = [crew.manager_agent] if hierarchical else [one for one in crew.agents if one.allow_delegation]
        _take(found, _delegation(crew.agents), delegating)
    return found


def _of_crewai(agent: Any, crew: Any) -> Iterator[Any]:
    """The tools that CrewAI adds to an agent's when its task begins, as far as that can be known before.

    Those of its memory or the crew's, of skills whose text it may load, and for pictures that its model does not take.
    """
    memory = getattr(agent, "memory", None) or getattr(crew, "_memory", None)
    if memory is not None:
        from crewai.tools.memory_tools import create_memory_tools  # noqa: PLC0415 - CrewAI loads slowly

        yield from create_memory_tools(memory)
    yield from _skill_loader(agent, [*(getattr(agent, "skills", None) or ()), *(getattr(crew, "skills", None) or ())])
    takes = getattr(getattr(agent, "llm", None), "supports_multimodal", None)
    # Not by its name: CrewAI warns of who reads this one so.
    if crew is not None and vars(agent).get("multimodal") and not (callable(takes) and takes()):
        yield from agent.get_multimodal_tools()


def _skill_loader(agent: Any, skills: Sequence[Any]) -> Iterator[Any]:
    """The tool by which an agent loads the text of skills; none where all were given whole."""
    try:
        from crewai.skills.models import Skill  # noqa: PLC0415 - CrewAI loads slowly
        from crewai.skills.tool import LoadSkillTool, create_skill_loader_tool  # noqa: PLC0415 - as above
    except ImportError:
        return  # an earlier version says the whole text
    loaded = [one for one in skills if isinstance(one, Skill)]
    made = create_skill_loader_tool(loaded, reserved_names=[tool.name for tool in agent.tools or ()])
    # What is a path or a name still is given by its description alone.
    if made is not None or len(loaded) < len(skills):
        yield made or LoadSkillTool()


def _take(found: CrewTools, tools: Sequence[Any] | None, askers: Sequence[Any]) -> None:
    """Add tools, with the models that their ``askers`` ask."""
    asked = frozenset(str(getattr(getattr(one, "llm", None), "model", "")) for one in askers)
    for schema in schemas(tools or []):
        name, known = name_of(schema), any(name_of(one) == name_of(schema) for one in found.schemas)
        found.schemas.append(schema)
        # CrewAI makes a manager only as it begins, and an agent may get its model later: any may be asked then.
        if "" in asked or (known and name not in found.models):
            found.models.pop(name, None)
        else:
            found.models[name] = found.models.get(name, frozenset()) | asked


def _delegation(agents: Sequence[Any]) -> list[Any]:
    """A crew's tools of delegation, with one roster: what an agent's own names stands in its tail (``coworkers_note``).

    Raises ``LookupError`` where CrewAI words the roster otherwise.
    """
    from crewai.tools.agent_tools.agent_tools import AgentTools  # noqa: PLC0415 - CrewAI loads slowly

    made = AgentTools(agents=agents).tools()
    here, said = (", ".join(map(str, roles)) for roles in ([one.role for one in agents], map(role_given, agents)))
    for tool in made:
        if here not in tool.description:
            raise LookupError(f"the tool {tool.name!r} does not name the coworkers {here}")
        # Privacy: roles that name inputs hold those of the crew's last kickoff, which was another one's. Called, the
        # tool knows both names (``delegation``).
        tool.description = tool.description.replace(here, said)
    return made


def name_of(tool: Any) -> str:
    """The name of a tool schema."""
    return str(tool.get("function", tool).get("name", "")) if isinstance(tool, Mapping) else ""


def ordered(tool: Any) -> Any:
    """A tool schema with ``additionalProperties`` behind its other keys, where CrewAI puts it.

    In a crew that was restored from a checkpoint it stands in front, and the request would be another one.
    """
    if isinstance(tool, list):
        return [ordered(item) for item in tool]
    if not isinstance(tool, Mapping):
        return tool
    keys = sorted(tool, key=lambda key: key == _LAST)
    return {key: ordered(tool[key]) for key in keys}


def adopt(binding: Binding, tools: Sequence[Mapping[str, Any]], models: Mapping[str, frozenset[str]] = NONE) -> None:
    """Add the tools of what is installed to those that the session's requests share; ``models`` as ``crew_tools`` says.

    Where two of one name differ, ``binding.clash`` names them and nothing is added. A tenant's that differ from those
    that the session's others have are shared among the tenant's crews alone.
    """
    if not binding.clash:
        binding.clash = _added(binding, tools, of_run=False)
    if not binding.clash:
        binding.tools |= frozenset(map(name_of, tools))
        binding.part(RunTools).asked("", map(name_of, tools), models)
        _MODELS.setdefault(binding.session, Bounded(_KEEP_TOOLS)).update(models)
        # Privacy: the next crew may be made for another user, and what describes its tools may speak of that one.
        binding.session.bring_tools(binding.owner, binding.tools)


def known_models(session: AdapterSession) -> Mapping[str, frozenset[str]]:
    """The models that are asked with the tools of a session's crews, by the tools' names."""
    return _MODELS.get(session, NONE)


class RunTools:
    """Which shared tools requests of an installation may carry: its own, and those that the run under way came with.

    A run (a flow's, a kickoff's) may be somebody else's than the next one, so that no other is shown what it brought.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._asked: Bounded[str, bool] = Bounded(_KEEP_RUNS)
        self._models: Bounded[str, dict[str, frozenset[str] | None]] = Bounded(_KEEP_RUNS)
        """The models that are asked with a tool, None where any may be, by the run that it came with (``""``: none)."""

    @property
    def installed(self) -> frozenset[str]:
        """The names of those that are the installation's, in each run, and everybody's."""
        return self._binding.session.tools_open_to(self._binding.owner)

    @property
    def here(self) -> frozenset[str]:
        """The names of those that only the run under way here came with."""
        run = self._run
        return self._binding.session.tools_open_to(Whose(run)) - self.installed if run else frozenset()

    def asked(self, run: str, names: Iterable[str], models: Mapping[str, frozenset[str]]) -> None:
        """Note with which models tools are asked that came with a run, or with the installation."""
        known = self._models.of(run, dict)
        for name in names:
            asked, before = models.get(name), known.get(name, frozenset())
            known[name] = None if asked is None or before is None else before | asked

    def asks(self, name: str, model: str) -> bool:
        """Whether a model may be asked with a shared tool here, as far as is known."""
        found = [known[name] for run in ("", self._run) if (known := self._models.get(run)) and name in known]
        return not found or any(models is None or model in models for models in found)

    def bring(
        self,
        tools: Sequence[Mapping[str, Any]],
        models: Mapping[str, frozenset[str]] = NONE,
        *,
        asks: bool,
        grows: bool,
    ) -> None:
        """Let the run under way here carry tools that it comes with; ``models`` as ``crew_tools`` says.

        ``asks`` with its first request: what comes behind that would change its prompts from their beginning. ``grows``
        where tools that are new to the session may join its others.
        """
        run, binding = self._run, self._binding
        with binding.lock:
            # The owners whose tools were noted longest ago are forgotten first.
            binding.session.bring_tools(binding.owner, binding.tools)
            # Privacy: where no run is under way nobody can tell whose they are.
            if not run or run in self._asked:
                return
            if asks:
                self._asked[run] = True
            if grows:
                # Another version of the installation's own would be everybody's of the installation.
                theirs = binding.tools | binding.session.team.public | DELEGATION
                differ = self._differ(tools)
                known = binding.session.prefix.tool_names
                _added(
                    binding,
                    [one for one in tools if name_of(one) not in known or name_of(one) in differ - theirs],
                    of_run=True,
                )
            # Privacy: another's tool of the same name says something else.
            binding.session.bring_tools(Whose(run), set(map(name_of, tools)), self._differ(tools))
            self.asked(run, map(name_of, tools), models)

    def _differ(self, tools: Sequence[Mapping[str, Any]]) -> set[str]:
        """The names of those that the union does not have just so."""
        union = self._binding.session.prefix.among(map(name_of, tools))
        known = {tool.name: _meaning(_native(tool)) for tool in union}
        return {name_of(tool) for tool in tools if known.get(name_of(tool)) != _meaning(tool)}

    def ended(self, run: str) -> None:
        """A run is over."""
        self._asked.pop(run, None)
        self._models.pop(run, None)
        self._binding.session.drop_tools(Whose(run))

    @property
    def _run(self) -> str:
        """The run of this installation that is under way here, the flow's where there is one; empty without."""
        flow = FLOW.get()
        return flow.id if flow is not None and flow.binding is self._binding else self._binding.own_kickoff


def _added(binding: Binding, tools: Sequence[Mapping[str, Any]], *, of_run: bool) -> str:
    """The name of two tools that differ, so that none was added; empty where all were."""
    unique: dict[str, Mapping[str, Any]] = {}
    for tool in map(ordered, tools):
        known = unique.setdefault(name_of(tool), tool)
        if known is not tool and _meaning(known) != _meaning(tool) and name_of(tool) not in DELEGATION:
            return _clash(binding.session, name_of(tool))

    earlier = [tool for tool in binding.session.prefix.among(binding.tools) if tool.name not in unique]
    differs = ""
    for session in _editions(binding, [*unique.values(), *map(_native, earlier)]):
        given = [*unique.values(), *(() if session is binding.session else earlier)]
        if clash := session.team.contradicts(given, render):
            differs = clash
            continue
        source = ToolSource(of_run=of_run, of_door=not of_run)
        session.adopt_tools(given, render, grows=True, scope=binding.scope, source=source)
        binding.session = session
        _note_apart(session, differs)
        return ""
    return _clash(session, differs, elsewhere=True)


def _editions(binding: Binding, tools: Iterable[Mapping[str, Any]]) -> Iterator[AdapterSession]:
    """Where tools may be shared: in the session, or where it has others of their names, beside those of its others.

    Crews of one tenant share what they have in common, and crews whose tools are the same.
    """
    yield binding.session
    found = [] if binding.options.scope is None else [binding.given.edition(binding.scope)]
    alike = digest_of(*sorted(_meaning(tool).hex() for tool in tools))
    for session in (*found, binding.given.edition(binding.scope, alike)):
        session.adopt_system(SYSTEM)
        yield session


def _shown(binding: Binding, model: str, own: Sequence[Any] | None) -> list[Any]:
    """The shared tools that a request of the run under way here to a model may carry, with tools of its ``own``."""
    tools, known = binding.session.prefix.tools, binding.part(RunTools)
    here, always = known.here, {*map(name_of, own or ()), *binding.session.team.given.tool_names}
    # Money: the provider shares nothing between models, so that a tool which another one is asked with is paid in vain.
    shown = frozenset(name for name in known.installed | here if name in always or known.asks(name, model))
    rosters = {tool.name: _roster(_native(tool)) for tool in tools if tool.name in DELEGATION & here}
    for one in own or ():
        # Crews of one flow delegate to their own agents each.
        if (name := name_of(one)) in rosters and not _roster(one) <= rosters[name]:
            shown -= {name}
    return [tool for tool in tools if tool.name in shown]


def differing(binding: Binding, tools: Sequence[Any] | None) -> str:
    """The name of a tool of a request that the union has with another meaning; empty where there is none."""
    session = binding.session
    by_name = {tool.name: _native(tool) for tool in _shown(binding, "", tools)}
    for tool in map(ordered, tools or ()):
        name = name_of(tool)
        if name in by_name and name not in DELEGATION and _meaning(by_name[name]) != _meaning(tool):
            session.note(f"tool {name!r} differs from the one in the shared union; its requests are left as they are")
            return name
    return ""


def offer(binding: Binding, model: str, llm: Any, tools: Sequence[Any] | None) -> Offer:
    """The union in place of a request's tools, none of which contradicts it."""
    session, union = binding.session, _shown(binding, model, tools)
    tools = [ordered(tool) for tool in tools or ()]
    if not union:
        return Offer(tools or None)
    # Privacy: copies, as what a listener of CrewAI's events or LiteLLM writes into one request's tools would be in all.
    natives = [copy.deepcopy(_native(tool)) for tool in union]
    names, own = [name_of(tool) for tool in natives], [name_of(tool) for tool in tools]
    extra = [tool for tool in tools if name_of(tool) not in names]
    late = tuple(sorted(map(name_of, extra)))
    if late:
        session.note(f"tools that came late stand behind the shared union: {', '.join(late)}")
    # LiteLLM 1.88.6 refuses a ``tool_choice`` that is a list; the limits are then said in the tail.
    lists = not getattr(llm, "is_litellm", False) and session.takes_lists(model)
    limits = restrict(own, names, session.profile(model), lists=lists)
    if limits.allowed is not None and any(kind.__module__ in KEPT_IN_WORDS for kind in type(llm).__mro__):
        limits = replace(limits, allowed=None, said=tuple(own))
    # A request without tools carries the union too, or it would share nothing.
    return Offer([*natives, *extra], limits.allowed, limits.said, late=late)


def coworkers_note(tools: Sequence[Any] | None) -> str:
    """Whom a delegation tool of this request names, for the tail: in the union it names the whole crew."""
    for tool in tools or ():
        if name_of(tool) in DELEGATION and (named := _named_coworkers(tool)):
            return coworkers(named)
    return ""


def _named_coworkers(tool: Mapping[str, Any]) -> str:
    """Whom a delegation tool names."""
    text = str(tool.get("function", tool).get("description", ""))
    return text.partition("coworkers: ")[2].partition("\n")[0].strip()


def _roster(tool: Mapping[str, Any]) -> set[str]:
    """Whom a delegation tool names, one by one."""
    return set(_named_coworkers(tool).split(", "))


def with_choice(params: dict[str, Any], names: Choice, api: Api) -> dict[str, Any]:
    """Restrict a finished body to tools by ``tool_choice``; the array of tools stays as it is."""
    if names is None or not params.get("tools"):
        return params
    if api in ("gemini", "bedrock"):
        return params  # kept to them in words
    if names and api == "anthropic":
        return params  # its ``tool_choice`` takes one name or all, and voids the cached messages
    return {**params, "tool_choice": allowed_choice(names, api)}


def canonical_ids(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages with tool-call ids by position, so that two equal runs send equal bytes.

    The provider draws them at random, and CrewAI sends them back in every later request of the loop.
    """
    ids: dict[str, str] = {}

    def changed(message: Mapping[str, Any]) -> Any:
        calls = message.get("tool_calls")
        if calls:
            return {**message, "tool_calls": [_renamed(call, "id", ids) for call in calls]}
        return _renamed(message, "tool_call_id", ids, known=True) if message.get("role") == "tool" else message

    return [changed(message) for message in messages]


def _renamed(item: Any, field: str, ids: dict[str, str], *, known: bool = False) -> Any:
    """A message or call with another id in its field; with ``known`` only where the id was renamed before."""
    found = item.get(field) if isinstance(item, Mapping) else None
    if not isinstance(found, str) or (known and found not in ids):
        return item
    return {**item, field: ids.setdefault(found, f"call_{len(ids) + 1:04d}")}


def called_in(result: Any) -> list[str]:
    """The names of the tools that a model's answer calls; none where it is no list of calls."""
    from crewai.utilities.agent_utils import extract_tool_call_info  # noqa: PLC0415 - CrewAI loads slowly

    if not isinstance(result, list) or not result or isinstance(result[0], str):
        return []
    found = map(extract_tool_call_info, result)
    return ["" if call is None else str(call[1]) for call in found]


def may_forbid(offered: Offer, llm: Any) -> bool:
    """Whether ``tool_choice`` does not forbid all tools yet, and can."""
    return offered.choice is None and not any(kind.__module__ in KEPT_IN_WORDS for kind in type(llm).__mro__)


def _native(tool: Any) -> Any:
    """A shared tool's schema in the form in which CrewAI hands it to a model."""
    native = tool.native
    if isinstance(native, Mapping):
        return native
    return {"type": "function", "function": {**loads(tool.schema), "strict": True}}


def _meaning(tool: Any) -> bytes:
    """What two tools of one name must have in common to be the same one."""
    inner = render(tool)
    return dumps([inner.get("description"), ordered(inner.get("parameters"))], "tool")


def _note_apart(session: AdapterSession, name: str) -> None:
    """Say of a tool (empty for none) that crews define it in several ways, which costs what they could share."""
    # What a crew's agents may delegate differs by crew, and nobody words it.
    if name and name not in DELEGATION:
        session.note(
            f"crews on this session have tools of the name {name!r} with different definitions (description or "
            "parameters): tools stand in front of every prompt, so that each crew shares among its own tasks alone; "
            "where crews are made for a user each, describe the tool alike for all, and say what is the user's in the "
            "task"
        )


def _clash(session: AdapterSession, name: str, *, elsewhere: bool = False) -> str:
    """Note that two tools of one name differ, so that none of the crew's are shared; the name.

    ``elsewhere``: the other one is the session's own.
    """
    whose = f"two agents have different tools of the name {name!r}: their tools cannot be shared"
    if elsewhere:
        whose = f"SharedPrefix(tools=...) has a tool {name!r} with another definition: this crew's tools are not shared"
    session.note(f"{whose}; give one of them another name to share this crew's requests")
    return name


class ToolHooks:
    """Functions that CrewAI calls before and after every tool, as long as an installation needs them.

    CrewAI's hooks are the process's, so one registration serves all installations.
    """

    def __init__(self, *, before: Callable[[Any], None] | None = None, after: Callable[[Any], str | None]) -> None:
        self._before, self._after = before, after
        self.use = WhileUsed(self._register).use

    def _register(self) -> list[Callable[[], object]]:
        """Register the functions with CrewAI; what takes them back."""
        from crewai.hooks import tool_hooks  # noqa: PLC0415 - CrewAI loads slowly

        before, after = self._before, self._after
        undo: list[Callable[[], object]] = []
        if before is not None:
            tool_hooks.register_before_tool_call_hook(before)
            undo.append(lambda: tool_hooks.unregister_before_tool_call_hook(before))
        tool_hooks.register_after_tool_call_hook(after)
        return [*undo, lambda: tool_hooks.unregister_after_tool_call_hook(after)]
