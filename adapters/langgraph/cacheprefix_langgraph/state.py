"""The conversation's ledger in the graph's own state, so that checkpoints carry it."""

from __future__ import annotations

import typing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._typing import MISSING
from langgraph.channels import BinaryOperatorAggregate
from langgraph.types import Command, Send
from typing_extensions import NotRequired, TypedDict

from cacheprefix import Conversation
from cacheprefix.adapter import AdapterSession, Bounded, Ledger, digests_of, merge_json, merged_places, update_json
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.fork_context import FRAME, checkpoint_of, configurable, scope_of, talk_of, thread_of
from cacheprefix_langgraph.views import Views

CHANNEL = "cacheprefix"
"""The state key; its values are plain JSON types, merged in any order with the same result."""


_KEEP = 10_000
"""Conversations of which is remembered what came into their states."""
_PLACES = "standing"
"""In that value, beside the ledger: where the roles' texts stand, by which their next requests go."""


def merge_state(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any]:
    """``merge_json``, and of the places of the roles' texts those that were saved later."""
    merged, mine, theirs = merge_json(old, new), (old or {}).get(_PLACES), (new or {}).get(_PLACES)
    return {**merged, _PLACES: merged_places(mine or {}, theirs or {})} if mine or theirs else merged


def update_of(session: AdapterSession, talk: Conversation, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``merge_state`` brings the saved value ``before`` up to date with; empty where nothing changed."""
    return _update(talk, session.places(talk), before)


def _update(talk: Conversation, places: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    update = update_json(before, talk.ledger)
    if not places or places == (before or {}).get(_PLACES):
        return update
    return {**(update or Ledger().to_json()), _PLACES: places}


def handed_on(session: AdapterSession, talk: Conversation, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """``update_of`` for the state of the graph in which a node or subgraph is, which takes it."""
    places = session.places(talk)
    _given_back(session)[talk.scope, talk.id] = places
    return _update(talk, places, before)


def _given_back(session: AdapterSession) -> Bounded[tuple[str, str], Any]:
    """The places that came into a state last, by tenant and conversation."""
    found: Bounded[tuple[str, str], Any] = session.beside.setdefault("places given back", Bounded(_KEEP))
    return found


def _kept_here(session: AdapterSession) -> Bounded[tuple[str, str], bool]:
    """Conversations, by tenant and id, with an agent whose decisions come into no state: one that is a node."""
    found: Bounded[tuple[str, str], bool] = session.beside.setdefault("places kept here", Bounded(_KEEP))
    return found


def is_taken(session: AdapterSession, config: Mapping[str, Any] | None, state: Mapping[str, Any]) -> bool:
    """Whether what an agent decides comes back with its next run: not as a node of a graph that has no channel for it.

    ``state`` is the agent's own. A graph around it that has the channel gives it to the agent, with nothing in it at
    first; from the run's first request on the agent's own decisions are there too, so that the first one counts.
    """
    around = str(configurable(config, "checkpoint_ns") or "").rpartition("|")[0]
    if not around:
        return True
    runs: Bounded[tuple[str | None, str, str], bool] = session.beside.setdefault("runs of agents", Bounded(_KEEP))
    return runs.of((scope_of(config), thread_of(config), around), lambda: CHANNEL in state)


PrefixChannel = Annotated[dict[str, Any], merge_state]
"""The type of the field ``cacheprefix`` in states that are pydantic models or dataclasses."""


class _Decided(BinaryOperatorAggregate[dict[str, Any]]):
    """A channel that is not there until something was decided, so that nobody sees it before."""

    def __init__(self, typ: type[dict[str, Any]], operator: Callable[[Any, Any], Any]) -> None:
        super().__init__(typ, operator)
        self.value = MISSING  # type: ignore[assignment]


DECIDED = _Decided(dict, merge_state)
"""What an agent of ours adds to its state."""

INSIDE = "__cacheprefix_inside__"
"""The channel of a graph that ``subgraph`` made: what was decided while it runs, in its own checkpoints alone.

The graph around it learns of that when it ends, and an interrupt comes before.
"""


def with_inside(graph: Any) -> None:
    """Give a copied graph the channel for what is decided inside. No input, output or stream of it has that."""
    if INSIDE in graph.channels:
        return
    graph.stream_channels = graph.stream_channels_asis
    graph.channels = {**graph.channels, INSIDE: _Decided(dict, merge_state)}


def resume_inside(session: AdapterSession, talk: Conversation, config: Mapping[str, Any] | None) -> None:
    """Go on with what was decided in the graph that runs here before it was interrupted, maybe in another process."""
    saved = _inside(config)
    if not saved:
        return
    talk.merge(saved)
    session.restore_places(talk, saved.get(_PLACES) or {}, merge=True)
    session.resume_tools(talk)


def keep_inside(session: AdapterSession, talk: Conversation, config: Mapping[str, Any] | None) -> None:
    """Save what was decided for a call with the step that makes it, where the graph that runs here has a place for it.

    By LangGraph's own sender, which is internal and may be absent.
    """
    writes, saved = _writes(config), _inside(config)
    update = {} if writes is None or saved is None else update_of(session, talk, saved)
    if update:
        writes.append((INSIDE, update))


def write_beside(config: Mapping[str, Any] | None, update: Mapping[str, Any]) -> bool:
    """Save decisions with the step that runs here, beside what its node gives back; False where that cannot be done.

    A step has one write of the key: two would be two updates in streams.
    """
    read, writes = configurable(config, "__pregel_read"), _writes(config)
    if writes is None or not callable(read) or not has_channel(read):
        return False
    before = next((one for one in writes if one[0] == CHANNEL), None)
    if before is not None:
        writes.remove(before)
    writes.append((CHANNEL, dict(update)))
    return True


def _inside(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What the channel of the graph that runs here holds; None where that graph has none."""
    read = configurable(config, "__pregel_read")
    if not callable(read) or not has_channel(read, INSIDE):
        return None
    return read(INSIDE, False) or {}  # noqa: FBT003 - LangGraph takes it by position


def _writes(config: Mapping[str, Any] | None) -> Any:
    """What the step that runs here has written so far; None where LangGraph does not show it."""
    writes = getattr(configurable(config, "__pregel_send"), "__self__", None)
    return writes if isinstance(writes, deque) else None


if TYPE_CHECKING:

    class PrefixState(TypedDict):
        """Mix into a graph's state to keep the ledger of decisions in its checkpoints.

        Mixes with ``typing.TypedDict`` and with that of ``typing_extensions``, which LangGraph's own states are made
        of; with bases of both where it is the first of them, as Python mixes no two that come before it. A pydantic
        model or a dataclass declares the field instead: ``cacheprefix: PrefixChannel``, empty by default.
        """

        cacheprefix: NotRequired[PrefixChannel]

else:
    # The two modules' classes of dicts do not mix with each other: the field is declared in both, and a state gets that
    # of the kind that its other bases are of.
    _FIELDS = {CHANNEL: NotRequired[PrefixChannel]}
    _PLAIN, _EXTENDED = typing.TypedDict("_Plain", _FIELDS), TypedDict("_Extended", _FIELDS)
    _KINDS = tuple(dict.fromkeys((type(_PLAIN), type(_EXTENDED))))

    class _AnyKind(*_KINDS):
        """The class of ``PrefixState``."""

        def __new__(
            cls, name: str, bases: tuple[Any, ...], body: dict[str, Any], /, **options: Any
        ) -> type[dict[str, Any]]:
            others = [base for base in bases if base not in (PrefixState, typing.Generic)]
            strange = next((base for base in others if not isinstance(base, _KINDS)), None)
            if strange is not None:
                raise SetupError(
                    f"{name} has PrefixState and {strange.__name__} among its bases, which is no TypedDict: "
                    "a pydantic model or a dataclass declares the field, cacheprefix: PrefixChannel, instead"
                )
            field = _PLAIN if others and all(type(base) is type(_PLAIN) for base in others) else _EXTENDED
            # Of bases of both kinds, which do not mix either, the standard library's are declared anew in the other's.
            own = tuple(field if base is PrefixState else _of_kind(base, type(field)) for base in bases)
            return type(field)(name, own, body, **options)

    def _of_kind(base: Any, kind: type) -> Any:
        """The class of dicts itself where it is of a kind, else one of that kind with its name and fields."""
        if base is typing.Generic or type(base) is kind:
            return base
        fields = {
            name: hint
            if name in base.__required_keys__ or typing.get_origin(hint) is NotRequired
            else NotRequired[hint]
            for name, hint in base.__annotations__.items()
        }
        return TypedDict(base.__name__, fields)

    _body = {name: value for name, value in vars(_EXTENDED).items() if name not in ("__dict__", "__weakref__")}
    PrefixState = type.__new__(_AnyKind, "PrefixState", (dict,), {**_body, "__module__": __name__})


def messages_in(state: Any, key: str) -> list[BaseMessage] | None:
    """The messages of a state of any shape; None where it has none under that key."""
    value = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    if value is None and isinstance(state, list):
        value = state
    if not isinstance(value, (list, tuple)):
        return None
    return [message for message in value if isinstance(message, BaseMessage)]


def ledger_in(state: Any, session: AdapterSession) -> Mapping[str, Any] | None:
    """The ledger in a node's state, or in the graph's channel where the node is given less than the state.

    A ``Send`` payload or a narrower input schema does not contain the channel; then LangGraph's own reader is
    asked, which is internal and may be absent: decisions are then made anew, with the same result.
    """
    value = state.get(CHANNEL) if isinstance(state, Mapping) else getattr(state, CHANNEL, None)
    if value is None:
        read = configurable(var_child_runnable_config.get(), "__pregel_read")
        value = (
            session.attempt("ledger channel", lambda: read(CHANNEL, False), None)  # noqa: FBT003 - LangGraph takes it by position
            if callable(read) and has_channel(read)
            else None
        )
    return value if isinstance(value, Mapping) else None


def sent_alike(config: Mapping[str, Any] | None) -> int:
    """How many tasks of a step run the very node that this one runs, each by a ``Send``; 0 where none was sent.

    By LangGraph's own reader, which is internal and may be absent.
    """
    path = ((config or {}).get("metadata") or {}).get("langgraph_path") or ()
    if not path or path[0] != "__pregel_push":
        return 0
    channels = _channels(configurable(config, "__pregel_read"))
    tasks = (channels or {}).get("__pregel_tasks")
    if tasks is None or not tasks.is_available():
        return 0
    name = ((config or {}).get("metadata") or {}).get("langgraph_node")
    return sum(getattr(one, "node", None) == name for one in tasks.get())


def has_channel(read: Any, name: str = CHANNEL) -> bool:
    """Whether the running graph's state has a channel, the ledger's by default, as far as its reader tells."""
    channels = _channels(read)
    return channels is not None and name in channels


def _channels(read: Any) -> Any:
    """The running graph's channels by name, as far as its reader tells."""
    given = (*getattr(read, "args", ()), *getattr(read, "keywords", {}).values())
    return next((one for one in given if _is_channels(one)), None)


def _is_channels(value: Any) -> bool:
    return isinstance(value, Mapping) and any(hasattr(channel, "checkpoint") for channel in value.values())


def conversation_of(
    session: AdapterSession,
    config: Mapping[str, Any] | None,
    ledger: Mapping[str, Any] | None,
    said: Sequence[BaseMessage],
    *,
    returned: bool = True,
    key: str = "",
) -> Conversation:
    """The conversation of a call, as the checkpoint that its step began with has it.

    ``ledger`` is that of the graph's state, None where the state has none: then it is the process's own. It wins over
    what the process decided since, so that a thread that was taken back to an earlier checkpoint goes on as it would
    in a fresh process; what siblings in the same step decide holds for all of them. ``returned`` is False where
    decisions do not come into the state: then the process keeps them. ``key`` names the state's messages: decisions on
    what is no longer among them are dropped.
    """
    scope = scope_of(config)
    found = session.conversation(talk_of(session, config, said, scope), scope=scope)
    level = level_of(config)
    if key and not level:
        found.messages_seen.setdefault(level, None)
    if ledger is None:
        resume_inside(session, found, config)
        return found
    known = Ledger.from_json(ledger)
    # Where the outermost graph has forks, they drop what is gone from it: a subgraph may have been given less.
    own = bool(key) and known.alters and (not level or "" not in found.messages_seen)
    whole = _messages_of(config, key) if own else None
    if whole is not None:
        known = standing(known, whole, found, level)

    whose = found.scope, found.id
    if not returned:
        _kept_here(session)[whose] = True

    def restored() -> None:
        # A checkpoint from before a role's first request has none; the process that went on has them since.
        places = ledger.get(_PLACES)
        # Money: an agent that is a node has asked behind the step that saved these, and its text stands where it
        # stood then, if they take the place of what came about since. Another checkpoint's do: that thread went back.
        if whose in _kept_here(session) and places and places == _given_back(session).get(whose):
            return
        if places or (not level and session.places(found)):
            session.restore_places(found, places or {})

    talk = found.at(checkpoint_of(config), known, returned=returned, first=restored)
    session.resume_tools(talk)
    resume_inside(session, talk, config)
    return talk


def level_of(config: Mapping[str, Any] | None) -> str:
    """The graph that a node belongs to, by the names of the nodes around it; empty for the outermost."""
    path = str(configurable(config, "checkpoint_ns") or "").split("|")[:-1]
    return "|".join(step.split(":", 1)[0] for step in path)


def _messages_of(config: Mapping[str, Any] | None, key: str) -> list[BaseMessage] | None:
    """All messages that a node's graph has in its state: the node may have been given less."""
    read = configurable(config, "__pregel_read")
    if not callable(read) or not has_channel(read, key):
        return None
    value = read(key, False)  # noqa: FBT003 - LangGraph takes it by position
    return [one for one in value if isinstance(one, BaseMessage)] if isinstance(value, list) else None


def standing(found: Ledger, messages: Sequence[BaseMessage], talk: Conversation, level: str) -> Ledger:
    """A thread's ledger without what was decided on messages that are gone from it (cleared, removed, rewound).

    ``messages`` are all that the graph at ``level`` has. They are looked at only where they do not go on from those
    seen before, and when a process sees the graph first.
    """
    known = talk.messages_seen.get(level)
    talk.messages_seen[level] = (len(messages), _mark(messages[-1:]))
    if known is not None and len(messages) >= known[0] and known[1] == _mark(messages[: known[0]][-1:]):
        return found
    live = digests_of(Views().of(messages, len))
    talk.keep(live)
    return found.standing(live)


def _mark(messages: Sequence[BaseMessage]) -> int:
    return hash(tuple((message.id, str(message.content)) for message in messages))


def with_update(result: Any, update_: Mapping[str, Any], session: AdapterSession) -> Any:
    """A node's result with the decisions it made. Shapes LangGraph takes: None, dict, Command, lists, state objects.

    Any other result is nothing that a state could be updated with, and is given back as it is: what a conditional edge
    or a task answers, or a function that a node calls.
    """
    if not update_:
        return result
    config = var_child_runnable_config.get() or {}
    read = configurable(config, "__pregel_read")
    if not callable(read) or _is_task(config):
        # Called as a plain function: nothing there would take an update.
        return result
    if not has_channel(read):
        # Without a thread nothing is saved that another process could go on from.
        if thread_of(config):
            session.note(
                "how earlier requests of a thread were laid out, and which tool results were shortened, is known in "
                "this process alone: another one that goes on with the thread pays for it anew. To save it with the "
                "thread, add cacheprefix_langgraph.PrefixState to the state's bases, as in class State(MessagesState, "
                "PrefixState); from an entrypoint save session.conversation(thread_id).dumps() yourself"
            )
        return result
    update = {CHANNEL: dict(update_)}
    if result is None:
        return update
    if isinstance(result, Command):
        return _command(result, update)
    if isinstance(result, (list, tuple)) and any(isinstance(item, Command) for item in result):
        return [*result, Command(update=update)]
    fields = _channels(read).keys() & _fields_of(result)
    if isinstance(result, dict):
        updates = fields or not result
        return {**result, CHANNEL: merge_state(result.get(CHANNEL), update[CHANNEL])} if updates else result
    return [result, Command(update=update)] if fields else result


def _is_task(config: Mapping[str, Any]) -> bool:
    """Whether the code here is a task of the functional API: what it returns goes to its caller, not into a state."""
    path: Any = (config.get("metadata") or {}).get("langgraph_path") or ()
    # Of what was sent to a node the path has a number there; of a task it has its caller's own path.
    return len(path) > 1 and path[0] == "__pregel_push" and not isinstance(path[1], int)


def _fields_of(result: Any) -> set[str]:
    """The names of a state object's fields (a mapping's keys, else annotated names); none where it is no state."""
    if isinstance(result, Mapping):
        return set(map(str, result))
    if isinstance(result, (BaseMessage, Send)):
        return set()
    return {name for kind in type(result).__mro__ for name in getattr(kind, "__annotations__", ())}


def writes_of(config: Mapping[str, Any] | None) -> Any:
    """What the step of a graph that has the channel writes, where a graph runs as that step; None elsewhere.

    By LangGraph's own sender, which is internal and may be absent. Once a step: two writes of a key are two updates in
    streams, and in a node of ours its own result has it.
    """
    read, writes = configurable(config, "__pregel_read"), _writes(config)
    if FRAME.get() is not None or not callable(read) or not has_channel(read) or writes is None:
        return None
    return None if any(one[0] == CHANNEL for one in writes) else writes


def hand_on(config: Mapping[str, Any] | None, update: Mapping[str, Any]) -> None:
    """Give the decisions of a graph that runs as a step to the graph around it: its own state need not have them."""
    writes = writes_of(config) if update else None
    if writes is not None:
        writes.append((CHANNEL, dict(update)))


def _command(command: Command[Any], update: dict[str, Any]) -> Any:
    if command.graph is not None:
        return [command, Command(update=update)]
    if command.update is None:
        return replace(command, update=update)
    if isinstance(command.update, dict):
        merged = merge_state(command.update.get(CHANNEL), update[CHANNEL])
        return replace(command, update={**command.update, CHANNEL: merged})
    return replace(command, update=[*command._update_as_tuples(), (CHANNEL, update[CHANNEL])])
