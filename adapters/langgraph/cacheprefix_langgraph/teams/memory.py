"""What is worth remembering of a conversation: five lists, and how a model's answer changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from cacheprefix.adapter import default_counter
from cacheprefix_langgraph.teams.json_answers import object_in, strings_in

_TITLES = {
    "preferences": "Preferences",
    "project_facts": "Project facts",
    "task_state": "Task state",
    "open_questions": "Open questions",
    "artifacts": "Artifacts",
}


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What was remembered, each list in the order in which its entries came. Immutable."""

    preferences: tuple[str, ...] = ()
    """How the user wants things done."""
    project_facts: tuple[str, ...] = ()
    task_state: tuple[str, ...] = ()
    """What is done and what is left."""
    open_questions: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    """Files, links and results that were made."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _TITLES)

    def updated(self, update: MemoryUpdate) -> SessionMemory:
        """This memory after an update: removals first, then what is new; an entry never stands twice."""
        changed: dict[str, tuple[str, ...]] = {}
        for name in _TITLES:
            gone = {_same(text) for text in update.removals.get(name, ())}
            added = update.additions.get(name, ())
            kept = [text for text in getattr(self, name) if _same(text) not in gone]
            known = {_same(text) for text in kept}
            for text in added:
                if _same(text) not in known:
                    kept.append(text)
                    known.add(_same(text))
            changed[name] = tuple(kept)
        return SessionMemory(**changed)

    def to_markdown(self, max_tokens: int | None = None, *, count: Callable[[str], int] | None = None) -> str:
        """The memory as text: for a prompt's durable context, and for people. Empty when nothing is remembered.

        With ``max_tokens`` each list begins with its newest entry, and the oldest are left out until all fits;
        ``count`` counts tokens, by an estimate without it.
        """
        if max_tokens is None:
            return self._text({name: getattr(self, name) for name in _TITLES})
        counter = count or (lambda text: default_counter().count(text, ""))
        shown = {name: list[str]() for name in _TITLES}
        waiting = {name: list(getattr(self, name)) for name in _TITLES}
        while any(waiting.values()):
            # In turns, so that no list pushes the newest of another one out.
            for name, left in waiting.items():
                if not left:
                    continue
                shown[name].append(left.pop())
                if counter(self._text(shown)) > max_tokens:
                    shown[name].pop()
                    left.clear()
        return self._text(shown)

    @staticmethod
    def _text(lists: Mapping[str, Sequence[str]]) -> str:
        parts = [
            f"## {title}\n" + "\n".join(f"- {text}" for text in lists[name])
            for name, title in _TITLES.items()
            if lists[name]
        ]
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, for a store."""
        return {name: list(getattr(self, name)) for name in _TITLES}


def memory_from(data: Mapping[str, Any] | None) -> SessionMemory:
    """The memory that ``as_dict`` wrote; what is unknown or of another shape is left out."""
    return SessionMemory(**{name: strings_in((data or {}).get(name)) for name in _TITLES})


@dataclass(frozen=True, slots=True)
class MemoryUpdate:
    """What changed: texts to add and to take out, by list."""

    additions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    removals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rationale: str = ""
    understood: bool = True
    """Whether the model's answer could be read; one that could not changes nothing."""

    def __bool__(self) -> bool:
        return any(self.additions.values()) or any(self.removals.values())


def read_update(text: str) -> MemoryUpdate:
    """The update in a model's answer: a JSON object, fenced or with words around it, or nearly right.

    Known lists at its top level count as additions. Anything else, also an answer without an object, changes nothing.
    """
    data = object_in(text)
    if data is None:
        return MemoryUpdate(understood=False)
    additions, removals = data.get("additions"), data.get("removals")
    plain = additions is None and removals is None
    return MemoryUpdate(_lists(data if plain else additions), _lists(removals), str(data.get("rationale") or ""))


def prompt_for(memory: SessionMemory) -> str:
    """What the extracting fork is told."""
    known = memory.to_markdown() or "(nothing yet)"
    names = ", ".join(name.name for name in fields(SessionMemory))
    return (
        "Pause the task. Decide what of this conversation should be remembered in later sessions: preferences of the "
        "user, facts about the project, the state of the task, open questions, and artifacts that were made. Leave out "
        "what is obvious, secret, or true for this moment only.\n\n"
        f"Remembered so far:\n{known}\n\n"
        "Answer with one JSON object and nothing else: "
        '{"additions": {"preferences": ["..."], ...}, "removals": {"task_state": ["..."], ...}, "rationale": "..."}. '
        f"The lists are {names}; entries to remove are repeated word for word. Call no tool."
    )


def _lists(data: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(data, Mapping):
        return {}
    named: Iterable[tuple[str, Any]] = ((str(key).strip().lower().replace(" ", "_"), data[key]) for key in data)
    found = {_SYNONYMS.get(name, name): strings_in(value) for name, value in named}
    return {name: texts for name, texts in found.items() if name in _TITLES and texts}


_SYNONYMS = {"unresolved_questions": "open_questions", "notable_artifacts": "artifacts", "facts": "project_facts"}


def _same(text: str) -> str:
    """What entries are compared by: case, spaces and a full stop make no difference."""
    return " ".join(text.casefold().split()).rstrip(".")
