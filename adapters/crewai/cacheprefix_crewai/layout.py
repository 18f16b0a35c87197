"""Settle the layout of a task's requests: what to share, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from cacheprefix.bodies import LONG_ROLE as LONG
from cacheprefix.prompt import dumps
from cacheprefix_crewai.economics import Stake, Standing, Turn, extra, keeping, pays
from cacheprefix_crewai.fork_context import SYSTEM, Frame, Opening, instruction_of, tail_of
from cacheprefix_crewai.shared_text import MIN_CHARS, Piece, common_blocks, given_inputs, referred, used
from cacheprefix_crewai.tools import Offer, name_of, offer, ordered, rules_for

if TYPE_CHECKING:
    from cacheprefix_crewai.binding import Binding

TEXT_TOOLS = "\nYou ONLY have access to the following tools"
ACTION = "\nAction Input: "
_LABEL_TOKENS = 14

Mark = tuple[str, bytes]
"""A model, and the digest of what a request of it begins with."""


def settle(
    binding: Binding, model: str, opening: Opening, tools: Sequence[Any] | None, agent: Any, task: Any
) -> Frame:
    """The frame of an execution. Called once for each, under the binding's lock."""
    session = binding.session
    role = _role(agent)
    name = _task_name(task, opening)
    plain = Frame(role, name, opening, tools)
    if not binding.rewrites or not binding.union:
        return plain
    if _worded(agent):
        return replace(plain, missing=_missing(binding, role, opening))
    crew = getattr(agent, "crew", None)
    crew = None if isinstance(crew, str) else crew
    text_mode = not tools and ACTION in opening.system
    rules = rules_for(session, model, getattr(agent, "llm", None))
    offered = Offer(None) if text_mode else offer(session, rules, tools)
    if offered is None:
        return plain
    alone = _speaks_alone(crew, agent)
    if alone and tools and _same_for_all(crew):
        # In CrewAI's order, in which a manager's workers find their own tools cached.
        offered = Offer([ordered(tool) for tool in tools])
    texts = _texts(crew) if crew is not None else [*binding.remember_text(opening), opening.task]
    pieces = _pieces(binding, crew, texts)
    if crew is not None and crew.process == "hierarchical" and not alone:
        return plain  # a worker's task is in the manager's own words and shares nothing
    moved = opening.system if alone else _text_tools(opening.system, crew, binding) if text_mode else ""
    log = _log(crew, opening.task)
    opened = session.prefix.text if binding.options.declared or not alone else ""
    system = "\n\n".join(part for part in (opened, moved.strip("\n"), *(piece.block for piece in pieces)) if part)
    every = [*pieces, *log]
    instruction = instruction_of(session, role, opening, moved)
    tail = tail_of(session, instruction, opening, every, offered, tools)
    frame = Frame(
        role,
        name,
        opening,
        tools,
        forked=True,
        offer=offered,
        system=system,
        log=tuple(log),
        tail=tail,
        text_mode=text_mode,
    )
    front = referred(instruction, pieces)
    standing = _standing(binding, model, frame, crew, task, front)
    kept = keeping(standing)
    if not _worthwhile(binding, model, frame, crew, task, pieces, moved, texts, standing, kept):
        binding.sent.add(_own_mark(model, role))
        return replace(plain, missing=_missing(binding, role, opening))
    binding.said[role] = front
    if role not in kept:
        binding.sent.update([*_marks(model, frame, ""), _behind_mark(model, frame, front)])
        return frame
    binding.sent.update([_marks(model, frame, "")[0], *_marks(model, frame, front)])
    again = f"Your role is {role}." if log else ""
    return replace(frame, front=front, tail=tail_of(session, again, opening, every, offered, tools))


def _missing(binding: Binding, role: str, opening: Opening) -> str:
    """What only the session knows of the system text: the declared one and the role's card, where they are not in it.

    Requests with a declared text stay unforked only where they are too short, or were and the agent's text is long.
    """
    prefix = binding.session.prefix
    if not binding.options.declared:
        return ""
    said = opening.system or opening.task
    texts = ("" if prefix.system == SYSTEM else prefix.system.strip(), prefix.roles.get(role, "").strip())
    return "\n\n".join(text for text in texts if text and text not in said)


def _worthwhile(
    binding: Binding,
    model: str,
    frame: Frame,
    crew: Any,
    task: Any,
    pieces: Sequence[Piece],
    moved: str,
    texts: Sequence[str],
    standing: Standing,
    kept: frozenset[str],
) -> bool:
    session, opening = binding.session, frame.opening

    def count(text: str) -> int:
        return session.count(text, model)

    union = sum(count(_schema(tool)) for tool in frame.offer.tools or ())
    own_tools = sum(count(_schema(tool)) for tool in frame.tools or ())
    system = count(frame.system)
    log = [count(piece.block) for piece in frame.log]
    if not session.shares(binding.conversation, model, lambda: union + system + sum(log) - count(session.prefix.text)):
        return False
    marks = _marks(model, frame, "")
    sizes = [union + system, *log]
    known = sum(size for mark, size in zip(marks, sizes, strict=True) if mark in binding.sent)
    own = sum(count(piece.text) for piece in used(opening.task + opening.system, [*pieces, *frame.log]))
    listed = (model, _digest("tools", *map(_schema, frame.tools or ())))
    stake = Stake(
        fresh=sum(sizes) - known,
        known=known,
        own_tools=own_tools,
        tools_known=listed in binding.sent,
        own_texts=own + count(moved),
        later=tuple(_later(binding, crew, task, frame, pieces, moved, texts, count)),
        overhead=_LABEL_TOKENS * len(used(opening.task, [*pieces, *frame.log])) + 8 * (frame.offer.said is not None),
        loops=binding.loops if frame.tools or frame.text_mode else 0,
        places=extra(standing, kept),
    )
    profile = session.profile(model)
    # A declared text is said in the crew's own layout too, so that an agent whose long text is cached there may stay.
    stays = standing.turns[0].size >= LONG and (standing.short or frame.role in standing.own)
    said = session.prefix.text.strip() == session.prefix.system.strip()
    forced = (binding.options.declared and not (stays and said)) or bool(binding.options.shared_context)
    if not forced and not pays(stake, profile.read):
        binding.sent.add(listed)
        session.note(
            f"{frame.role}: what its task shares with others is too little to pay, its requests are left as they are"
        )
        return False
    return True


def _standing(binding: Binding, model: str, frame: Frame, crew: Any, task: Any, front: str) -> Standing:
    """What the agents' texts and the results of earlier tasks have come to, and the tasks still to come."""
    session, profile, log = binding.session, binding.session.profile(model), frame.log

    def size(role: str) -> int:
        return session.count(texts[role], model) if role in texts else 0

    def met(marks: Sequence[Mark]) -> int | None:
        if marks[0] not in binding.sent:
            return None
        return sum(size for mark, size in zip(marks[1:], sizes, strict=True) if mark in binding.sent)

    sizes = [session.count(piece.block, model) for piece in log]
    tasks = list(crew.tasks) if crew is not None else []
    at = next((i for i, one in enumerate(tasks) if one is task), None)
    waiting = [] if at is None else [one for one in tasks[at + 1 :] if not binding.finished(crew, one)]
    texts = {} if not front else {**{_role(one.agent): _said(binding, one.agent) for one in tasks}, frame.role: front}
    this = Turn(frame.role, size(frame.role), logs=True)
    runs = tuple(Turn(_role(one.agent), size(_role(one.agent)), logs=_logs(one)) for one in tasks)
    later = tuple(Turn(_role(one.agent), size(_role(one.agent)), logs=_logs(one)) for one in waiting)
    fronts = {role: met(_marks(model, frame, text)) for role, text in texts.items()}
    tools = sum(session.count(_schema(tool), model) for tool in frame.tools or ())
    head = sum(session.count(_schema(tool), model) for tool in frame.offer.tools or ())
    head += session.count(frame.system, model)
    return Standing(
        turns=(this, *later),
        read=profile.read,
        blocks=profile.match == "block",
        short=head < profile.min_tokens,
        runs=runs if crew is not None else (this,),
        left=max(binding.runs_left, binding.again(crew)) if crew is not None else 1,
        log=sum(sizes),
        known=met(_marks(model, frame, "")) or 0,
        grows=min(sizes, default=0),
        front={role: had for role, had in fronts.items() if had is not None},
        behind={frame.role: sum(sizes)} if _behind_mark(model, frame, front) in binding.sent else {},
        own=frozenset(role for role in texts if _own_mark(model, role) in binding.sent),
        uncached=frozenset(role for role in texts if tools + size(role) < profile.min_tokens),
    )


def _marks(model: str, frame: Frame, front: str) -> list[Mark]:
    """What stands for a request's tools, system text (and the agent's in front), and for each result behind them."""
    head = _digest(frame.system, *map(_schema, frame.offer.tools or ())) + (_digest(front) if front else b"")
    logs = ((model, head + _digest(*(piece.block for piece in frame.log[: i + 1]))) for i in range(len(frame.log)))
    return [(model, head), *logs]


def _behind_mark(model: str, frame: Frame, front: str) -> Mark:
    return model, _marks(model, frame, "")[-1][1] + _digest("behind", front)


def _own_mark(model: str, role: str) -> Mark:
    return model, _digest("own", role)


def _worded(agent: Any) -> bool:
    """Whether the application lays the agent's prompt out itself: by templates, or without a system message."""
    templates = ("system_template", "prompt_template", "response_template")
    return getattr(agent, "use_system_prompt", True) is False or any(getattr(agent, name, None) for name in templates)


def _role(agent: Any) -> str:
    return str(getattr(agent, "role", "")).strip()


def _said(binding: Binding, agent: Any) -> str:
    """An agent's text: as it was sent, or about what it will be."""
    known = binding.said.get(_role(agent))
    return known or "\n".join(str(getattr(agent, name, "")) for name in ("role", "goal", "backstory"))


def _logs(task: Any) -> bool:
    """Whether results of earlier tasks stand in a task."""
    return bool(task.context) if isinstance(task.context, list) else task.context is not None


def _later(
    binding: Binding,
    crew: Any,
    task: Any,
    frame: Frame,
    pieces: Sequence[Piece],
    moved: str,
    texts: Sequence[str],
    count: Any,
) -> list[int]:
    """What each task still to come would carry of the shared texts itself."""
    if crew is None:
        waiting = max(0, len(binding.agents) - len(texts))
        own = sum(count(piece.text) for piece in used(frame.opening.task, pieces))
        return [own] * waiting
    tasks = list(crew.tasks)
    at = next((i for i, one in enumerate(tasks) if one is task), None)
    if at is None:
        return []
    later = []
    for index, (one, text) in enumerate(zip(tasks, texts, strict=True)):
        if index == at or binding.finished(crew, one):
            continue
        own = sum(count(piece.text) for piece in used(text, pieces)) + count(moved)
        own += sum(count(piece.text) for piece in frame.log if index > at and _consumes(one, tasks, piece))
        later.append(own)
    constant = [piece for piece in pieces if any(piece.label == f"shared input {name!r}" for name in binding.constant)]
    again = [sum(count(piece.text) for piece in used(text, constant)) + count(moved) for text in texts]
    return later + again * binding.runs_left


def _pieces(binding: Binding, crew: Any, texts: Sequence[str]) -> list[Piece]:
    options = binding.options
    pieces = [Piece("the shared context", options.shared_context)] if options.shared_context else []
    inputs = getattr(crew, "_inputs", None) or {}
    bare = [referred(text, pieces) for text in texts]
    pieces += given_inputs(inputs, bare, options.shared_inputs, binding.constant)
    bare = [referred(text, pieces) for text in texts]
    return pieces + common_blocks(bare)


def _texts(crew: Any) -> list[str]:
    return [f"{task.description}\n{task.expected_output}" for task in crew.tasks]


def _log(crew: Any, text: str) -> list[Piece]:
    """Outputs of finished tasks that stand in this one and that another one needs too, in the crew's order."""
    if crew is None:
        return []
    tasks = list(crew.tasks)
    found = []
    for index, task in enumerate(tasks):
        raw = getattr(task.output, "raw", None)
        if not raw or len(raw) < MIN_CHARS or raw not in text:
            continue
        if sum(_needs(other, task) for other in tasks[index + 1 :]) > 1:
            agent = str(getattr(task.output, "agent", "")).strip()
            found.append(Piece(f"result of task {index + 1} by {agent}", raw))
    return found


def _needs(task: Any, earlier: Any) -> bool:
    context = task.context
    return earlier in context if isinstance(context, list) else context is not None


def _consumes(task: Any, tasks: Sequence[Any], piece: Piece) -> bool:
    source = next((one for one in tasks if getattr(one.output, "raw", None) == piece.text), None)
    return source is not None and _needs(task, source)


def _text_tools(system: str, crew: Any, binding: Binding) -> str:
    """The description of tools in a text-mode system prompt, where all agents have the same tools."""
    start = system.find(TEXT_TOOLS)
    if start < 0:
        return ""
    agents = list(crew.agents) if crew is not None else binding.agents
    kinds = {tuple(sorted(str(tool.name) for tool in agent.tools or [])) for agent in agents}
    end = system.find("\n```", system.rfind("Final Answer:"))
    return system[start : end + 4] if len(kinds) == 1 and end > 0 else ""


def _speaks_alone(crew: Any, agent: Any) -> bool:
    """Whether all tasks that can share are one agent's: then its role is shared too, and stays in front."""
    if crew is None or getattr(agent, "inject_date", False):
        return False
    if crew.process == "hierarchical":
        return agent is crew.manager_agent
    return len(crew.tasks) > 1 and all(task.agent is agent for task in crew.tasks)


def _same_for_all(crew: Any) -> bool:
    """Whether a lone agent has the same tools in every task. CrewAI gives a manager to the tasks it reaches."""
    if crew.process == "hierarchical":
        waiting = [task for task in crew.tasks if task.agent is not crew.manager_agent]
        return not any(task.tools or task.agent is not None for task in waiting)
    return len({tuple(sorted(str(tool.name) for tool in task.tools or [])) for task in crew.tasks}) == 1


def _task_name(task: Any, opening: Opening) -> str:
    name = getattr(task, "name", None) or getattr(task, "description", None) or opening.task
    return " ".join(str(name).split())[:60]


def _schema(tool: Any) -> str:
    return dumps(tool, f"tool {name_of(tool)}").decode()


def _digest(*texts: str) -> bytes:
    state = blake2b(digest_size=16)
    for text in texts:
        state.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return state.digest()
